"""The secret of a channel and the token of a client, for commands: from files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antiphon.errors import ConfigError
from antiphon.node import secret as files

__all__ = ["SecretFile", "TokenFile", "read_secret", "read_token"]

SecretFile = Annotated[
    Path | None,
    typer.Option(help="A file with the secret that all parties have; needed off loopback."),
]
TokenFile = Annotated[
    Path | None, typer.Option(help="A file with the token that says who this is to a broker.")
]


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
