"""Certificates as tests want them, good and bad, and an ear on the line between two nodes.

The authorities themselves, ``ours`` and ``theirs``, are fixtures of conftest.py.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon import TLS, NodeConfig
from antiphon._core import build_info
from antiphon.node.address import parse_address
from antiphon.testing import Collected
from antiphon.testing.certificates import DAY, Authority

__all__ = [
    "BEAT",
    "DAY",
    "KIND",
    "QUICK",
    "TLS_TESTS",
    "Authority",
    "Tap",
    "TlsClient",
    "client_context",
    "client_hello",
    "make_tls",
    "tapped",
]

TLS_TESTS = [
    pytest.mark.timeout(600 if os.environ.get("ANTIPHON_STRESS") == "full" else 60),
    pytest.mark.skipif(not build_info()["openssl"], reason="there is no OpenSSL 3 here"),
]
"""The marks of every module of tests that needs TLS."""

KIND = 200
BEAT = 0.3
QUICK = NodeConfig(connect_timeout=5.0, heartbeat=BEAT)
"""A dead line is found in a second and a half."""


def make_tls(certificate: Path, key: Path, authority: Path) -> TLS:
    return TLS(str(certificate), str(key), str(authority))


def client_context(tls: TLS | None) -> ssl.SSLContext:
    """Python's own TLS, as a client of a node."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if tls is None:
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(tls.authority)
        context.load_cert_chain(tls.certificate, tls.key)
    return context


class TlsClient:
    """TLS by hand over a socket: what is sealed may be sent in parts, or not at all."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        self._socket = connection
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out)

    def first_words(self) -> bytes:
        """The ClientHello, not sent."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        return self._out.read()

    def shake_hands(self) -> None:
        """Blocks. ssl.SSLError or EOFError when the node does not want to."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._socket.sendall(self._out.read())
                self._hear()
            else:
                self._socket.sendall(self._out.read())
                return

    def seal(self, data: bytes) -> bytes:
        """The records that carry ``data``, not sent."""
        self._tls.write(data)
        return self._out.read()

    def read(self) -> bytes:
        """What the node says next. Blocks; empty at the end."""
        while True:
            try:
                return self._tls.read(65536)
            except ssl.SSLWantReadError:
                self._hear()

    def _hear(self) -> None:
        heard = self._socket.recv(65536)
        if not heard:
            raise EOFError("the node closed the connection")
        self._in.write(heard)


def client_hello() -> bytes:
    """The first words of a client, whole."""
    with socket.socket() as nobody:
        return TlsClient(nobody, client_context(None)).first_words()


class Tap:
    """Stands in front of ``target`` at ``address`` and keeps all that passes; a context manager.

    ``forward`` and ``back`` are the chunks of all connections, in the order in which they passed.
    """

    def __init__(self, target: str) -> None:
        self._target = parse_address(target)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._door.getsockname()[1]}"
        self.forward: Collected[bytes] = Collected()
        self.back: Collected[bytes] = Collected()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def heard(self) -> bytes:
        """All of it, the way there before the way back."""
        return b"".join(self.forward.items) + b"".join(self.back.items)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            server = socket.create_connection((self._target.host, self._target.port), 5)
            self._sockets += [client, server]
            for ends in ((client, server, self.forward), (server, client, self.back)):
                thread = threading.Thread(target=self._pass, args=ends)
                self._threads.append(thread)
                thread.start()

    def _pass(self, source: socket.socket, sink: socket.socket, heard: Collected[bytes]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                heard.add(data)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends everything, its threads included."""
        for one in (self._door, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for thread in self._threads:
            thread.join()
        for one in (self._door, *self._sockets):
            one.close()


@contextlib.contextmanager
def tapped(target: str) -> Iterator[Tap]:
    tap = Tap(target)
    try:
        yield tap
    finally:
        tap.close()
