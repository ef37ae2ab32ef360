"""The settings of a broker: all that ``broker.toml`` may say in ``[broker]``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from antiphon import settings
from antiphon.broker.limits import Limits
from antiphon.broker.tokens import Token, check_name
from antiphon.errors import ConfigError
from antiphon.frozen import FrozenDict
from antiphon.node import TLS
from antiphon.topics.rights import Rights

__all__ = ["BrokerConfig"]

LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker, checked when made; raises `ConfigError` that says what is allowed.

    `BrokerConfig.load` also looks at ``ANTIPHON_BROKER_*`` and at ``[broker]`` in
    ``antiphon.toml``; a broker that is given no configuration uses that.
    """

    listen: str = "tcp://127.0.0.1:7000"
    """Where buses find it."""

    secret_file: str | None = None
    """A file with the secret that all parties have; the end of the line does not count."""

    tls: TLS | None = None
    """Certificates, instead of a secret."""

    capacity: int = 4096
    """Events of one topic that may wait in the broker; then its publishers wait, and no others."""

    max_block: float = 1.0
    """Seconds for which a subscription without room holds up the publishers of its topic. Then it
    misses events, until it has room again; or it is ended, as it has asked for."""

    system_interval: float = 5.0
    """Seconds between two events of a topic under ``$sys/``, while somebody subscribes to it."""

    log_level: str = "info"
    """For ``antiphon broker``: debug, info, warning or error."""

    limits: Limits = field(default_factory=Limits)
    """What one client may take."""

    tokens: Mapping[str, Token] = field(default_factory=FrozenDict)
    """Clients by name: the hash of the token of each, and what it may do. Where there are none,
    and nothing is said of ``anonymous``, everybody may do everything."""

    anonymous: Rights | None = None
    """What clients without a token may do; None, where there are tokens: they are not let in."""

    RELOADED: ClassVar[tuple[str, ...]] = ("tokens", "anonymous", "limits", "log_level")
    """What a broker that runs can change; ``max_message_bytes`` of the limits is not among it."""

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Arguments, ``ANTIPHON_BROKER_*``, ``[broker]`` in antiphon.toml, then defaults."""
        return settings.load(cls, "broker", overrides)

    def __post_init__(self) -> None:
        capacity: object = self.capacity
        whole = isinstance(capacity, int) and not isinstance(capacity, bool)
        if not whole or not 1 <= self.capacity <= 2**24:
            raise ConfigError(
                f"capacity is {self.capacity!r}; it must be a whole number from 1 to {2**24}",
                setting="capacity",
                value=self.capacity,
            )
        self._check_seconds("max_block", 0, 3600)
        self._check_seconds("system_interval", 0.1, 3600)
        if self.log_level not in LOG_LEVELS:
            raise ConfigError(
                f"log_level is {self.log_level!r}; it must be one of {', '.join(LOG_LEVELS)}",
                setting="log_level",
                value=self.log_level,
            )
        if not isinstance(self.limits, Limits):
            raise ConfigError("limits: give antiphon.broker.Limits(...)", setting="limits")
        if self.anonymous is not None and not isinstance(self.anonymous, Rights):
            raise ConfigError("anonymous: give antiphon.broker.Rights(...)", setting="anonymous")
        object.__setattr__(self, "tokens", _check_tokens(self.tokens))

    def _check_seconds(self, name: str, low: float, high: float) -> None:
        value: object = getattr(self, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not low <= value <= high:  # type: ignore[arg-type,operator]
            raise ConfigError(
                f"{name} is {value!r}; it must be a number of seconds from {low:g} to {high:g}",
                setting=name,
                value=value,
            )

    def reloaded(self, new: BrokerConfig) -> tuple[Self, list[str], list[str]]:
        """As this one, with what a running broker takes over from ``new``.

        And the names of what has changed, and of what would have but needs a restart.
        """
        limits = replace(new.limits, max_message_bytes=self.limits.max_message_bytes)
        taken = replace(
            self,
            tokens=new.tokens,
            anonymous=new.anonymous,
            limits=limits,
            log_level=new.log_level,
        )
        changed = [name for name in self.RELOADED if getattr(taken, name) != getattr(self, name)]
        kept = [
            one.name
            for one in fields(self)
            if one.name not in self.RELOADED and getattr(new, one.name) != getattr(self, one.name)
        ]
        if new.limits != limits:
            kept.append("limits.max_message_bytes")
        return taken, changed, kept


def _check_tokens(tokens: object) -> Mapping[str, Token]:
    if not isinstance(tokens, Mapping) or not all(isinstance(t, Token) for t in tokens.values()):
        raise ConfigError(
            "tokens: give a table for each client, [broker.tokens.NAME], as 'antiphon broker "
            "token NAME' prints it",
            setting="tokens",
        )
    holders: dict[str, str] = {}
    for name, token in tokens.items():
        check_name(name)
        if token.hash in holders:
            raise ConfigError(
                f"tokens: {holders[token.hash]} and {name} have one hash; give each its own",
                setting="tokens",
            )
        holders[token.hash] = name
    return FrozenDict(tokens)
