"""pyzmq, PUSH to PULL over TCP, with its default API and default high-water marks.

One PUSH socket per sending thread (ZeroMQ sockets may not be shared), connected to every target:
ZeroMQ itself deals the messages out in turn. ``typed`` encodes and decodes a struct of three fields
with msgspec, as an array, which is the fastest way a pyzmq user has to send typed messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import zmq

from antiphon.lab.peers.base import (
    EndpointConfig,
    OnData,
    PullEndpoint,
    Sender,
    payload_of,
    typed_body,
)

__all__ = ["ENDPOINT", "PushPull", "Reading"]

# How long a blocked call sleeps before it looks whether it should stop.
LOOK_MS = 200
# A send that makes no progress for so long raises: the receiver is gone.
STUCK_MS = 20_000


class Reading(msgspec.Struct, array_like=True):
    """The typed message: three fields, as in the antiphon adapter."""

    sequence: int
    value: float
    body: bytes


class PushSender(Sender):
    """One PUSH socket per target for single sends, one over all targets for bursts."""

    def __init__(self, context: Any, config: EndpointConfig, addresses: Mapping[int, str]) -> None:
        self._config = config
        self._context = context
        self._addresses = addresses
        self._all = self._dial(*(addresses[target] for target in config.targets))
        self._single: dict[int, Any] = {}
        self._payload = payload_of(config.size)
        self._body = typed_body(config.size)
        self._encode = msgspec.msgpack.Encoder().encode
        self._typed = config.variant == "typed"

    def _dial(self, *addresses: str) -> Any:
        push = self._context.socket(zmq.PUSH)
        push.setsockopt(zmq.SNDTIMEO, STUCK_MS)
        for address in addresses:
            push.connect(address)
        return push

    def burst(self) -> int:
        send = self._all.send
        count = self._config.burst
        if self._typed:
            encode = self._encode
            body = self._body
            for i in range(count):
                send(encode(Reading(i, 0.5, body)))
        else:
            payload = self._payload
            for _ in range(count):
                send(payload)
        return count

    def send(self, target: int, data: bytes) -> None:
        push = self._all if len(self._config.targets) == 1 else self._single.get(target)
        if push is None:
            push = self._single[target] = self._dial(self._addresses[target])
        push.send(self._encode(Reading(0, 0.5, data)) if self._typed else data)

    def close(self) -> None:
        # What is queued is still sent: the context waits for it, at most so long.
        for push in (self._all, *self._single.values()):
            push.close(linger=5_000)


class PushPull(PullEndpoint):
    """A PULL socket read by its own thread, and PUSH senders."""

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        super().__init__(config, on_data)
        self._context: Any = zmq.Context()
        self._pull: Any = None
        self._addresses: Mapping[int, str] = {}

    @property
    def expected_size(self) -> int:
        if self.config.variant == "typed":
            return len(typed_body(self.config.size))
        return self.config.size

    def listen(self) -> str:
        self._pull = self._context.socket(zmq.PULL)
        if self.config.capacity is not None:
            self._pull.setsockopt(zmq.RCVHWM, self.config.capacity)
        self._pull.setsockopt(zmq.RCVTIMEO, LOOK_MS)
        self._pull.bind(f"tcp://{self.config.host}:*")
        address: str = self._pull.getsockopt_string(zmq.LAST_ENDPOINT)
        self._start_receiving()
        return address

    def connect(self, addresses: Mapping[int, str]) -> None:
        self._addresses = addresses

    def sender(self) -> PushSender:
        return PushSender(self._context, self.config, self._addresses)

    def _receive(self) -> None:
        if self.on_data is not None:
            self._deliver(self.on_data)
        elif self.config.variant == "typed":
            self._count_typed()
        else:
            self._count_raw()

    def _count_raw(self) -> None:
        n = 0
        last: bytes | None = None
        self._reader = lambda: (n, None if last is None else len(last))
        receive = self._pull.recv
        while not self._stop.is_set():
            try:
                for _ in range(1000):
                    last = receive()
                    n += 1
            except zmq.Again:
                continue

    def _count_typed(self) -> None:
        n = 0
        last: Reading | None = None
        self._reader = lambda: (n, None if last is None else len(last.body))
        receive = self._pull.recv
        decode = msgspec.msgpack.Decoder(Reading).decode
        while not self._stop.is_set():
            try:
                for _ in range(1000):
                    last = decode(receive())
                    n += 1
            except zmq.Again:
                continue

    def _deliver(self, on_data: OnData) -> None:
        n = 0
        self._reader = lambda: (n, None)
        decode = msgspec.msgpack.Decoder(Reading).decode
        typed = self.config.variant == "typed"
        while not self._stop.is_set():
            try:
                data = self._pull.recv()
            except zmq.Again:
                continue
            on_data(decode(data).body if typed else data)
            n += 1

    def close(self) -> None:
        self._stop_receiving()
        if self._pull is not None:
            self._pull.close(linger=0)
        self._context.term()


ENDPOINT = PushPull
