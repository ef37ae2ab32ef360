"""Blocking TCP sockets of the standard library, as a Python programmer writes them without asyncio.

A frame is a four-byte length and the payload. Every message is one ``sendall``; each connection has
a thread that reads with ``recv_into`` into a buffer of its own and cuts it into messages. ``sctp``
is the same with another protocol below.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from antiphon.lab.peers.base import Endpoint, EndpointConfig, OnData, Sender, payload_of
from antiphon.lab.peers.readers import ManyReaders

__all__ = ["ENDPOINT", "TCP", "Sockets", "Transport", "kernel_timeout"]

LENGTH = struct.Struct("<I")
READ_BYTES = 256 * 1024
# A longer frame is no frame of ours.
LARGEST = 256 * 1024 * 1024
STUCK = 20.0


def kernel_timeout(seconds: float) -> bytes:
    """For SO_SNDTIMEO and SO_RCVTIMEO. ``settimeout`` would cost a poll before every call."""
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))


@dataclass(frozen=True, slots=True)
class Transport:
    """What carries the bytes: the protocol's number, and its option against waiting for more."""

    protocol: int
    no_delay: int

    def open(self) -> socket.socket:
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM, self.protocol)

    def listen(self, host: str) -> socket.socket:
        """On a free port."""
        listener = self.open()
        try:
            listener.bind((host, 0))
            listener.listen(128)
        except OSError:
            listener.close()
            raise
        return listener

    def dial(self, address: str) -> socket.socket:
        """Connected; a send that gets no further for `STUCK` raises `BlockingIOError`."""
        host, _, port = address.rpartition(":")
        link = self.open()
        try:
            link.settimeout(STUCK)
            link.connect((host, int(port)))
            link.settimeout(None)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, kernel_timeout(STUCK))
            link.setsockopt(self.protocol, self.no_delay, 1)
        except OSError:
            link.close()
            raise
        return link


TCP = Transport(socket.IPPROTO_TCP, socket.TCP_NODELAY)


class SocketSender(Sender):
    """One connection per target."""

    def __init__(
        self, config: EndpointConfig, addresses: Mapping[int, str], transport: Transport
    ) -> None:
        self._config = config
        self._payload = payload_of(config.size)
        self._sockets: dict[int, socket.socket] = {}
        for target in config.targets:
            self._sockets[target] = transport.dial(addresses[target])
        self._sends = [link.sendall for link in self._sockets.values()]

    def burst(self) -> int:
        payload = self._payload
        pack = LENGTH.pack
        rounds = max(1, self._config.burst // len(self._sends))
        try:
            for send in self._sends:
                for _ in range(rounds):
                    send(pack(len(payload)) + payload)
        except BlockingIOError:
            raise TimeoutError(f"the receiver took nothing for {STUCK:g} s") from None
        return rounds * len(self._sends)

    def send(self, target: int, data: bytes) -> None:
        try:
            self._sockets[target].sendall(LENGTH.pack(len(data)) + data)
        except BlockingIOError:
            raise TimeoutError(f"the receiver took nothing for {STUCK:g} s") from None

    def close(self) -> None:
        for link in self._sockets.values():
            link.close()


class Sockets(ManyReaders):
    """A listening socket with a thread that accepts, and a thread per connection that reads."""

    transport = TCP

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        super().__init__(config, on_data)
        self._addresses: Mapping[int, str] = {}
        self._listener: socket.socket | None = None
        self._links: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._stopping = False
        self._fault = ""

    def listen(self) -> str:
        self._listener = self.transport.listen(self.config.host)
        host, port = self._listener.getsockname()
        if self.config.consume:
            self._start(self._accept, self._listener)
        return f"{host}:{port}"

    def connect(self, addresses: Mapping[int, str]) -> None:
        self._addresses = addresses

    def sender(self) -> Sender:
        return SocketSender(self.config, self._addresses, self.transport)

    def _start(self, work: Callable[[socket.socket], None], link: socket.socket) -> None:
        thread = threading.Thread(target=self._run, args=(work, link), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, work: Callable[[socket.socket], None], link: socket.socket) -> None:
        try:
            work(link)
        except Exception as error:
            if not self._stopping:
                self._fault = f"{type(error).__name__}: {error}"

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopping:
            link, _ = listener.accept()
            self._links.append(link)
            self._start(self._read, link)

    def _read(self, link: socket.socket) -> None:
        n = 0
        last: bytes | None = None
        self._readers.append(lambda: (n, None if last is None else len(last)))
        on_data = self.on_data
        length_at = LENGTH.unpack_from
        buffer = bytearray(READ_BYTES)
        view = memoryview(buffer)
        end = 0
        while count := link.recv_into(view[end:]):
            end += count
            position = 0
            needed = 0
            while position + 4 <= end:
                start = position + 4
                stop = start + length_at(buffer, position)[0]
                if stop > end:
                    needed = stop - position
                    break
                last = bytes(view[start:stop])
                n += 1
                if on_data is not None:
                    on_data(last)
                position = stop
            # What has come of the next frame moves to the front, into a larger buffer if need be.
            rest = buffer[position:end]
            if needed > len(buffer):
                if needed > LARGEST:
                    raise ValueError(f"a frame of {needed} bytes: not one of ours")
                buffer = bytearray(needed)
                view = memoryview(buffer)
            end = len(rest)
            buffer[:end] = rest

    def fault(self) -> str:
        return self._fault

    def close(self) -> None:
        self._stopping = True
        # To shut a socket down wakes the thread that waits in it; to close it does not.
        for link in (self._listener, *self._links):
            if link is not None:
                with contextlib.suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5.0)
        for link in (self._listener, *self._links):
            if link is not None:
                link.close()


ENDPOINT: type[Endpoint] = Sockets
