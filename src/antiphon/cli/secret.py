"""The secret of a channel, certificates, and the token of a client, for commands: from files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antiphon.errors import ConfigError
from antiphon.node import TLS
from antiphon.node import secret as files

__all__ = [
    "SecretFile",
    "TlsAuthority",
    "TlsCertificate",
    "TlsKey",
    "TokenFile",
    "read_secret",
    "read_tls",
    "read_token",
]

SecretFile = Annotated[
    Path | None,
    typer.Option(help="A file with the secret that all parties have; needed off loopback."),
]
TokenFile = Annotated[
    Path | None, typer.Option(help="A file with the token that says who this is to a broker.")
]
TlsCertificate = Annotated[
    Path | None,
    typer.Option(help="A PEM file: this node's certificate. With --tls-key and --tls-authority."),
]
TlsKey = Annotated[Path | None, typer.Option(help="A PEM file: the key of the certificate.")]
TlsAuthority = Annotated[
    Path | None, typer.Option(help="A PEM file: whoever has signed the certificates of all.")
]


def read_tls(certificate: Path | None, key: Path | None, authority: Path | None) -> TLS | None:
    """None where there is none of the three. Raises `ConfigError` for some of them alone, and for
    files that do not fit together."""
    given = {"certificate": certificate, "key": key, "authority": authority}
    missing = [f"--tls-{name}" for name, path in given.items() if path is None]
    if len(missing) == len(given):
        return None
    if certificate is None or key is None or authority is None:
        raise ConfigError(
            f"certificates are three files; {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing",
            setting="tls",
        )
    return TLS(str(certificate), str(key), str(authority))


def read_secret(path: Path | None) -> bytes | None:
    """What is in the file, without the line's end."""
    return None if path is None else files.read_secret(path)


def read_token(path: Path | None) -> str | None:
    """As above."""
    if path is None:
        return None
    try:
        return files.read_secret(path, "token").decode().strip()
    except UnicodeDecodeError:
        raise ConfigError(f"the file {path} holds no token", setting="token") from None
