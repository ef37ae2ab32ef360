"""The secret of a channel, for commands: from a file, since arguments are seen by everybody."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antiphon.errors import ConfigError

__all__ = ["SecretFile", "read_secret"]

SecretFile = Annotated[
    Path | None,
    typer.Option(help="A file with the secret that all parties have; needed off loopback."),
]


def read_secret(path: Path | None) -> bytes | None:
    """What is in the file, without the line's end."""
    if path is None:
        return None
    try:
        secret = path.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(
            f"the secret cannot be read from {path}: {error.strerror}", setting="secret"
        ) from error
    if not secret:
        raise ConfigError(f"the file {path} is empty; put a secret into it", setting="secret")
    return secret
