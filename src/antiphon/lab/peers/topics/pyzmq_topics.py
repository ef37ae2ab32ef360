"""pyzmq, XPUB to SUB over TCP, with its default high-water marks.

A PUB socket drops what exceeds its mark. XPUB with ``XPUB_NODROP`` is the same socket, except that
it waits, and that it tells who subscribes: so nothing is lost, at the mark or before a subscription
is known. One socket per sending thread, since ZeroMQ sockets may not be shared; one SUB socket for
both topics, which takes from its publishers in turn.

The topic is a prefix in the message's only frame: with a frame of its own every message would cost
about twice as much.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import zmq

from antiphon.lab.peers.base import EndpointConfig, OnData, payload_of
from antiphon.lab.peers.topics.base import LOAD, PACED, TopicEndpoint, TopicSender

__all__ = ["ENDPOINT", "XpubSub"]

PREFIXES = {LOAD: b"L", PACED: b"P"}
# How long a blocked call sleeps before it looks whether it should stop.
LOOK_MS = 200
# A send that makes no progress for so long raises: the subscriber is gone.
STUCK_MS = 20_000


class XpubSender(TopicSender):
    """One XPUB socket, connected to the subscriber."""

    def __init__(self, context: Any, config: EndpointConfig, topic: int, address: str) -> None:
        self._config = config
        self._prefix = PREFIXES[topic]
        self._payload = payload_of(config.size)
        self._socket: Any = context.socket(zmq.XPUB)
        self._socket.setsockopt(zmq.XPUB_NODROP, 1)
        self._socket.setsockopt(zmq.SNDTIMEO, STUCK_MS)
        self._socket.setsockopt(zmq.RCVTIMEO, STUCK_MS)
        self._socket.connect(address)
        # The subscriber asks for all of its topics, one after the other.
        while self._socket.recv() != b"\x01" + self._prefix:
            pass

    def burst(self) -> int:
        send = self._socket.send
        prefix = self._prefix
        payload = self._payload
        for _ in range(self._config.burst):
            send(prefix + payload)
        return self._config.burst

    def publish(self, data: bytes) -> None:
        self._socket.send(self._prefix + data)

    def close(self) -> None:
        # What is queued is still sent: the context waits for it, at most so long.
        self._socket.close(linger=5_000)


class XpubSub(TopicEndpoint):
    """A SUB socket read by its own thread, and XPUB senders."""

    def __init__(
        self,
        config: EndpointConfig,
        on_data: OnData | None = None,
        on_paced: OnData = lambda data: None,
    ) -> None:
        super().__init__(config, on_data, on_paced)
        self._context: Any = zmq.Context()
        self._sub: Any = None
        self._address = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._fault = ""

    def listen(self) -> str:
        self._sub = self._context.socket(zmq.SUB)
        if self.config.capacity is not None:
            self._sub.setsockopt(zmq.RCVHWM, self.config.capacity)
        self._sub.setsockopt(zmq.RCVTIMEO, LOOK_MS)
        for topic in self.topics:
            self._sub.setsockopt(zmq.SUBSCRIBE, PREFIXES[topic])
        self._sub.bind("tcp://127.0.0.1:*")
        address: str = self._sub.getsockopt_string(zmq.LAST_ENDPOINT)
        self._thread = threading.Thread(target=self._run, name="receive", daemon=True)
        self._thread.start()
        return address

    def connect(self, addresses: Mapping[int, str]) -> None:
        self._address = addresses[0]

    def sender(self, topic: int = LOAD) -> XpubSender:
        return XpubSender(self._context, self.config, topic, self._address)

    def _run(self) -> None:
        try:
            if self.on_data is None and self.topics == (LOAD,):
                self._count_load()
            else:
                self._deliver()
        except Exception as error:
            if not self._stop.is_set():
                self._fault = f"{type(error).__name__}: {error}"

    def _count_load(self) -> None:
        n = 0
        last: bytes | None = None
        self._reader = lambda: (n, None if last is None else len(last))
        receive = self._sub.recv
        while not self._stop.is_set():
            try:
                for _ in range(1000):
                    last = receive()[1:]
                    n += 1
            except zmq.Again:
                continue

    def _deliver(self) -> None:
        n = 0
        last: bytes | None = None
        self._reader = lambda: (n, None if last is None else len(last))
        receive = self._sub.recv
        paced = PREFIXES[PACED][0]
        on_data, on_paced = self.on_data, self.on_paced
        while not self._stop.is_set():
            try:
                for _ in range(1000):
                    frame = receive()
                    data = frame[1:]
                    if frame[0] == paced:
                        on_paced(data)
                        continue
                    if on_data is None:
                        last = data
                    else:
                        on_data(data)
                    n += 1
            except zmq.Again:
                continue

    def fault(self) -> str:
        return self._fault

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5.0)
        if self._sub is not None:
            self._sub.close(linger=0)
        self._context.term()


ENDPOINT = XpubSub
