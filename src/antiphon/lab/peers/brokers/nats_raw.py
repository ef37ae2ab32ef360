"""NATS without a client library: its protocol over plain sockets, in blocks made by hand.

The publisher writes blocks of ``PUB`` that were put together before; a ``PING`` behind each burst
is answered when the server has taken it. The subscriber reads as much as there is. Under load every
message is as long as the others, so it counts by lengths and looks at one header per block: no
Python program can do less with what comes.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping

from antiphon.lab.peers.base import LOOPBACK, EndpointConfig, OnData, payload_of
from antiphon.lab.peers.nats_server import serve_nats
from antiphon.lab.peers.topics.base import LOAD, PACED, TopicEndpoint, TopicSender

__all__ = ["ENDPOINT", "RawTopics"]

HELLO = b'CONNECT {"verbose":false,"pedantic":false,"tls_required":false,"echo":false}\r\n'
PING = b"PING\r\n"
STUCK = 20.0
READ = 1 << 20
SUBJECTS = {LOAD: b"bench.load", PACED: b"bench.paced"}


class Link:
    """One connection that was greeted."""

    def __init__(self, service: str) -> None:
        host, _, port = service.removeprefix("nats://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=STUCK)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""
        self.line()  # INFO
        self.socket.sendall(HELLO)
        self.ping()

    def line(self) -> bytes:
        while b"\r\n" not in self.rest:
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionError("nats-server closed the connection")
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\r\n")
        return line

    def ping(self) -> None:
        """Returns when the server has taken all before it. For those who get no messages."""
        self.socket.sendall(PING)
        while True:
            line = self.line()
            if line == b"PONG":
                return
            if line == b"PING":
                self.socket.sendall(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise ConnectionError(f"nats-server: {line.decode(errors='replace')}")


class RawSender(TopicSender):
    """A connection that only publishes."""

    def __init__(self, config: EndpointConfig, topic: int) -> None:
        self._link = Link(config.service)
        self._subject = SUBJECTS[topic]
        batch = max(1, config.batch)
        self._block = self._message(payload_of(config.size)) * batch
        self._rounds = max(1, config.burst // batch)
        self._burst = self._rounds * batch

    def _message(self, data: bytes) -> bytes:
        return b"PUB %b %d\r\n%b\r\n" % (self._subject, len(data), data)

    def burst(self) -> int:
        send, block = self._link.socket.sendall, self._block
        for _ in range(self._rounds):
            send(block)
        self._link.ping()
        return self._burst

    def publish(self, data: bytes) -> None:
        self._link.socket.sendall(self._message(data))

    def flush(self, timeout: float) -> None:
        self._link.ping()

    def close(self) -> None:
        self._link.socket.close()


class RawTopics(TopicEndpoint):
    """A connection with a thread that reads it."""

    def __init__(
        self,
        config: EndpointConfig,
        on_data: OnData | None = None,
        on_paced: OnData = lambda data: None,
    ) -> None:
        super().__init__(config, on_data, on_paced)
        self._link: Link | None = None
        self._thread: threading.Thread | None = None
        self._fault = ""
        self._closing = False

    @classmethod
    def serve(cls, host: str = LOOPBACK) -> tuple[str, list[int], Callable[[], None]]:
        return serve_nats(host)

    def listen(self) -> str:
        self._link = link = Link(self.config.service)
        for topic in self.topics:
            link.socket.sendall(b"SUB %b %d\r\n" % (SUBJECTS[topic], topic + 1))
        link.ping()
        link.socket.settimeout(None)
        (topic,) = self.topics
        every = self.on_paced if topic == PACED else self.on_data
        run = self._count_all if every is None else lambda: self._read_each(every)
        self._thread = threading.Thread(target=self._run, args=(run,), daemon=True)
        self._thread.start()
        return self.config.service

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Nothing to do: the server is the address."""

    def sender(self, topic: int = LOAD) -> RawSender:
        return RawSender(self.config, topic)

    def _run(self, read: Callable[[], None]) -> None:
        try:
            read()
        except (OSError, ConnectionError, ValueError) as error:
            if not self._closing:
                self._fault = f"{type(error).__name__}: {error}"

    def _recv(self) -> bytes:
        assert self._link is not None
        data = self._link.socket.recv(READ)
        if not data:
            raise ConnectionError("nats-server closed the connection")
        return data

    def _count_all(self) -> None:
        """By lengths. A PING of the server between messages shifts those behind it."""
        assert self._link is not None
        head = b"MSG %b %d %d\r\n" % (SUBJECTS[LOAD], LOAD + 1, self.config.size)
        each = len(head) + self.config.size + 2
        taken = n = 0
        size: int | None = None
        self._reader = lambda: (n, size)
        first = self._link.rest
        while True:
            data = first or self._recv()
            first = b""
            at = -taken % each  # where the first header in this block begins
            if at + len(head) + len(PING) <= len(data) and not data.startswith(head, at):
                at += len(PING)
                if not data.startswith(head, at):
                    raise ValueError(f"something else than a message: {data[at : at + 40]!r}")
                taken -= len(PING)
                self._link.socket.sendall(b"PONG\r\n")
            taken += len(data)
            n = taken // each
            size = self.config.size if n else None

    def _read_each(self, deliver: OnData) -> None:
        assert self._link is not None
        rest, n = self._link.rest, 0
        size: int | None = None
        self._reader = lambda: (n, size)
        while True:
            at = 0
            while (end := rest.find(b"\r\n", at)) >= 0:
                line = rest[at:end]
                if not line.startswith(b"MSG "):
                    if line == b"PING":
                        self._link.socket.sendall(b"PONG\r\n")
                    at = end + 2
                    continue
                length = int(line[line.rindex(b" ") :])
                if len(rest) < end + 4 + length:
                    break
                deliver(rest[end + 2 : end + 2 + length])
                n, size = n + 1, length
                at = end + 4 + length
            rest = rest[at:] + self._recv()

    def fault(self) -> str:
        return self._fault

    def close(self) -> None:
        self._closing = True
        if self._link is not None:
            self._link.socket.shutdown(socket.SHUT_RDWR)
            self._link.socket.close()
        if self._thread is not None:
            self._thread.join(STUCK)


ENDPOINT = RawTopics
