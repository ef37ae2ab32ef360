"""Certificates to throw away: an authority that signs whatever is asked for, good or bad.

Receives names, numbers and times; hands out PEM files, and `antiphon.TLS` made of them. Needs the
package cryptography, so ``antiphon.testing`` itself does not import it. Not for real use: the keys
lie beside the certificates, without a password unless one is given.
"""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from antiphon import TLS

__all__ = ["DAY", "Authority", "node_uri"]

DAY = datetime.timedelta(days=1)


def node_uri(id: int | str) -> str:
    """The URI by which a certificate names its node; ``"*"`` is any."""
    return f"antiphon:node:{id}"


class Authority:
    """Signs certificates, and writes them with their keys into ``folder``, which it makes.

    ``path`` is its own certificate. Two authorities may have one name: what tells them apart is
    the key, which stays in memory.
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
        certificate, key = self.issue(name, node_uri(id), begins=begins, ends=ends)
        return TLS(str(certificate), str(key), str((trusts or self).path))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem_key(key: ec.EllipticCurvePrivateKey, password: bytes | None) -> bytes:
    lock: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        lock = serialization.BestAvailableEncryption(password)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption_algorithm=lock
    )
