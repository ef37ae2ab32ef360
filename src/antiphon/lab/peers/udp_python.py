"""UDP sockets of the standard library: one message per datagram, and nothing done about loss.

Nobody holds a sender back, so a receiver that is slower loses what its kernel buffer does not hold.
That is a count and no error: what was sent less what was received. What arrives over the loopback
arrives whole and in order.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping

from antiphon.lab.peers.base import (
    Endpoint,
    EndpointConfig,
    OnData,
    PullEndpoint,
    Sender,
    payload_of,
)
from antiphon.lab.peers.sockets_tcp import kernel_timeout

__all__ = ["ENDPOINT", "LARGEST", "Datagrams"]

# 65535 less the headers of IP and UDP.
LARGEST = 65_507
# Thousands of small messages, or about seventy of the largest. The kernel may grant less
# (net.core.rmem_max).
BUFFER_BYTES = 4 * 1024 * 1024
LOOK = 0.2


def check_size(size: int) -> None:
    """Raise for what does not fit a datagram."""
    if size > LARGEST:
        raise ValueError(f"a message of {size} bytes: a UDP datagram holds at most {LARGEST}")


class DatagramSender(Sender):
    """One connected socket per target."""

    def __init__(self, config: EndpointConfig, addresses: Mapping[int, str]) -> None:
        self._config = config
        self._payload = payload_of(config.size)
        self._sockets: dict[int, socket.socket] = {}
        for target in config.targets:
            host, _, port = addresses[target].rpartition(":")
            link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            link.connect((host, int(port)))
            self._sockets[target] = link
        self._sends = [link.send for link in self._sockets.values()]

    def burst(self) -> int:
        payload = self._payload
        rounds = max(1, self._config.burst // len(self._sends))
        for _ in range(rounds):
            for send in self._sends:
                try:
                    send(payload)
                except ConnectionRefusedError:
                    # An earlier one found nobody there: lost like any other.
                    continue
        return rounds * len(self._sends)

    def send(self, target: int, data: bytes) -> None:
        check_size(len(data))
        with contextlib.suppress(ConnectionRefusedError):
            self._sockets[target].send(data)

    def close(self) -> None:
        for link in self._sockets.values():
            link.close()


class Datagrams(PullEndpoint):
    """A bound socket read by its own thread, and connected ones to send."""

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        check_size(config.size)
        super().__init__(config, on_data)
        self._addresses: Mapping[int, str] = {}
        self._socket: socket.socket | None = None

    def listen(self) -> str:
        self._socket = link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, kernel_timeout(LOOK))
        link.bind((self.config.host, 0))
        host, port = link.getsockname()
        self._start_receiving()
        return f"{host}:{port}"

    def connect(self, addresses: Mapping[int, str]) -> None:
        self._addresses = addresses

    def sender(self) -> DatagramSender:
        return DatagramSender(self.config, self._addresses)

    def _receive(self) -> None:
        assert self._socket is not None
        n = 0
        last: bytes | None = None
        self._reader = lambda: (n, None if last is None else len(last))
        on_data = self.on_data
        view = memoryview(bytearray(LARGEST))
        receive = self._socket.recv_into
        while not self._stop.is_set():
            try:
                for _ in range(1000):
                    count = receive(view)
                    last = bytes(view[:count])
                    n += 1
                    if on_data is not None:
                        on_data(last)
            except BlockingIOError:
                continue

    def close(self) -> None:
        self._stop_receiving()
        if self._socket is not None:
            self._socket.close()


ENDPOINT: type[Endpoint] = Datagrams
