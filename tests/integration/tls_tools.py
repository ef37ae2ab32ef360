"""Certificates as tests want them, good and bad, and an ear on the line between two nodes."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from antiphon import TLS
from antiphon.node.address import parse_address
from antiphon.testing import Collected

DAY = datetime.timedelta(days=1)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem_key(key: ec.EllipticCurvePrivateKey, password: bytes | None = None) -> bytes:
    lock: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        lock = serialization.BestAvailableEncryption(password)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption_algorithm=lock
    )


class Authority:
    """Signs certificates, and writes them with their keys into ``folder``.

    Two authorities may have one name: what tells them apart is the key.
    """

    def __init__(self, folder: Path, name: str = "our nodes") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.path = folder / "authority.pem"
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        made = (
            self._builder(self._name, self._key, -DAY, DAY)
            .add_extension(constraints, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        begins: datetime.timedelta,
        ends: datetime.timedelta,
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins)
            .not_valid_after(now + ends)
        )

    def issue(
        self,
        name: str,
        *uris: str,
        begins: datetime.timedelta = -DAY,
        ends: datetime.timedelta = DAY,
        password: bytes | None = None,
    ) -> tuple[Path, Path]:
        """A certificate with these URIs, and its key: the paths of both, ``name`` in ``folder``."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(name), key, begins, ends)
        if uris:
            names = [x509.UniformResourceIdentifier(uri) for uri in uris]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate, private = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        signed = builder.sign(self._key, hashes.SHA256())
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        private.write_bytes(_pem_key(key, password))
        return certificate, private

    def node(
        self,
        id: int | str,
        *,
        begins: datetime.timedelta = -DAY,
        ends: datetime.timedelta = DAY,
        trusts: Authority | None = None,
    ) -> TLS:
        """What node ``id`` is given, or any node with ``"*"``; it trusts this authority."""
        name = f"node-{'any' if id == '*' else id}"
        certificate, key = self.issue(name, f"antiphon:node:{id}", begins=begins, ends=ends)
        return make_tls(certificate, key, (trusts or self).path)


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
