"""pynng (nng), PUSH to PULL over TCP, blocking calls with default buffers."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import pynng

from antiphon.lab.peers.base import (
    EndpointConfig,
    OnData,
    PullEndpoint,
    Sender,
    payload_of,
)

__all__ = ["ENDPOINT", "PushPull"]

LOOK_MS = 200
STUCK_MS = 20_000


class PushSender(Sender):
    """One socket per target, each connected before the first message."""

    def __init__(self, config: EndpointConfig, addresses: Mapping[int, str]) -> None:
        self._config = config
        self._payload = payload_of(config.size)
        self._sockets: dict[int, Any] = {
            target: pynng.Push0(dial=addresses[target], block_on_dial=True, send_timeout=STUCK_MS)
            for target in config.targets
        }
        self._sends = [push.send for push in self._sockets.values()]

    def burst(self) -> int:
        payload = self._payload
        sends = self._sends
        rounds = max(1, self._config.burst // len(sends))
        if len(sends) == 1:
            send = sends[0]
            for _ in range(rounds):
                send(payload)
        else:
            for _ in range(rounds):
                for send in sends:
                    send(payload)
        return rounds * len(sends)

    def send(self, target: int, data: bytes) -> None:
        self._sockets[target].send(data)

    def close(self) -> None:
        for push in self._sockets.values():
            push.close()


class PushPull(PullEndpoint):
    """A Pull0 socket read by its own thread, and Push0 senders."""

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        super().__init__(config, on_data)
        self._pull: Any = None
        self._addresses: Mapping[int, str] = {}

    def listen(self) -> str:
        self._pull = pynng.Pull0(recv_timeout=LOOK_MS)
        if self.config.capacity is not None:
            self._pull.recv_buffer_size = self.config.capacity
        listener = self._pull.listen(f"tcp://{self.config.host}:0")
        # nng keeps the port in network byte order.
        port = socket.ntohs(listener.local_address.port)
        self._start_receiving()
        return f"tcp://{self.config.host}:{port}"

    def connect(self, addresses: Mapping[int, str]) -> None:
        self._addresses = addresses

    def sender(self) -> PushSender:
        return PushSender(self.config, self._addresses)

    def _receive(self) -> None:
        n = 0
        last: bytes | None = None
        self._reader = lambda: (n, None if last is None else len(last))
        receive = self._pull.recv
        on_data = self.on_data
        while not self._stop.is_set():
            try:
                if on_data is None:
                    for _ in range(1000):
                        last = receive()
                        n += 1
                else:
                    on_data(receive())
                    n += 1
            except pynng.Timeout:
                continue

    def close(self) -> None:
        self._stop_receiving()
        if self._pull is not None:
            self._pull.close()


ENDPOINT = PushPull
