"""Secrets and tokens come from files: arguments and variables are seen by too many."""

from __future__ import annotations

from pathlib import Path

from antiphon.errors import ConfigError

__all__ = ["read_secret"]


def read_secret(path: str | Path, what: str = "secret") -> bytes:
    """What is in the file, without the line's end. Raises `ConfigError`."""
    try:
        secret = Path(path).read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(
            f"the {what} cannot be read from {path}: {error.strerror}", setting=what
        ) from error
    if not secret:
        raise ConfigError(f"the file {path} is empty; put a {what} into it", setting=what)
    return secret
