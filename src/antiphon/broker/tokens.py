"""Tokens: how clients of a broker say who they are.

A token is drawn, never chosen, and has 256 random bits: its plain SHA-256 in the settings tells
nobody what it is, and no slow hash is needed to keep guessers away. What is shown is hashed and
looked up, so the time that takes says nothing about the token either.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass

from antiphon.errors import ConfigError
from antiphon.topics.rights import Rights

__all__ = ["Token", "check_name", "hash_token", "new_token"]

_PREFIX = "antiphon-"
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class Token(Rights):
    """A client that is known: the hash of its token, and what it may do; ``[broker.tokens.NAME]``.

    Raises `ConfigError` for a hash that is none.
    """

    hash: str

    def __post_init__(self) -> None:
        super().__post_init__()
        shown: object = self.hash
        if not isinstance(shown, str) or not _HASH.fullmatch(shown):
            raise ConfigError(
                f"hash is {self.hash!r}; it must be what 'antiphon broker token NAME' prints, "
                "sha256: and 64 hexadecimal digits",
                setting="hash",
                value=self.hash,
            )


def new_token() -> str:
    """A new one; shown once, kept by the client alone."""
    return _PREFIX + secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """What the settings hold of it."""
    return "sha256:" + hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def check_name(name: object) -> str:
    """The name of a client; raises `ConfigError` for what cannot be one."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"client {name!r}: give 1 to 64 letters, digits, '-', '_' or '.'",
            setting="tokens",
            value=name,
        )
    return name
