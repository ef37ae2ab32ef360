"""The settings of a broker: all that ``broker.toml`` may say in ``[broker]``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from antiphon import settings
from antiphon.broker.limits import Limits
from antiphon.broker.shares import check_shares
from antiphon.broker.tokens import Token, check_name
from antiphon.errors import ConfigError
from antiphon.frozen import FrozenDict
from antiphon.node import TLS
from antiphon.node.address import parse_address
from antiphon.node.config import check_type
from antiphon.topics.names import Pattern
from antiphon.topics.rights import Rights

__all__ = ["BrokerConfig"]

LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, kw_only=True)
class BrokerConfig(settings.Settings, table="broker"):
    """Settings of one broker, checked when made; raises `ConfigError` that says what is allowed.

    A broker takes what is not written here from ``ANTIPHON_BROKER_*``, then ``[broker]`` in
    ``antiphon.toml``, then the default; `BrokerConfig.load` does so at once.
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

    shares: Mapping[str, float] = field(default_factory=FrozenDict)
    """Topics by name, each with the fraction of the broker's schedule that it can count on. They
    sum to at most 1; topics without one divide the rest."""

    system_interval: float = 5.0
    """Seconds between two events of a topic under ``$sys/``, while somebody subscribes to it."""

    log_level: str = "info"
    """For ``antiphon broker``: debug, info, warning or error."""

    limits: Limits = field(default_factory=lambda: settings.whole(Limits()))
    """What one client may take."""

    tokens: Mapping[str, Token] = field(default_factory=FrozenDict)
    """Clients by name: the hash of the token of each, and what it may do. Where there are none,
    and nothing is said of ``anonymous``, everybody may do everything."""

    anonymous: Rights | None = None
    """What clients without a token may do; None, where there are tokens: they are not let in."""

    store: str | None = None
    """The directory of the logs of recorded topics; None: nothing is recorded."""

    record: tuple[str, ...] = ()
    """Patterns of topics that are recorded, whoever publishes them."""

    fsync: str = "interval"
    """When a recorded event is acknowledged: ``none`` after the write, ``interval`` and ``always``
    after an fdatasync, which comes at intervals, or at once."""

    fsync_interval: float = 0.01
    """Seconds between two of them, with ``interval``."""

    segment_bytes: int = field(default=64 << 20, metadata={"size": True})
    """Size of one file of a log. Only whole ones are dropped."""

    keep_bytes: int = field(default=0, metadata={"size": True})
    """Of each recorded topic, in whole segments; 0: all."""

    keep_age: float = 0.0
    """Seconds for which recorded events are kept; 0: for ever."""

    ack_timeout: float = 30.0
    """Seconds after which an event that nobody has acknowledged is handed out again; they begin
    when its subscriber has acknowledged those before it."""

    max_attempts: int = 5
    """How often an event is handed out before it becomes a dead letter."""

    RELOADED: ClassVar[tuple[str, ...]] = (
        "tokens",
        "anonymous",
        "limits",
        "shares",
        "log_level",
    )
    """What a broker that runs can change; ``max_message_bytes`` of the limits is not among it."""

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Arguments, ``ANTIPHON_BROKER_*``, ``[broker]`` in antiphon.toml, then defaults."""
        return settings.load(cls, "broker", overrides)

    def __post_init__(self) -> None:
        self._whole("capacity", 1, 2**24)
        self._seconds("max_block", 0, 3600)
        self._seconds("system_interval", 0.1, 3600)
        self._seconds("fsync_interval", 0.0001, 60)
        self._seconds("keep_age", 0, 2**32)
        self._seconds("ack_timeout", 0.01, 86400)
        self._whole("segment_bytes", 4096, 2**40)
        self._whole("keep_bytes", 0, 2**47)
        self._whole("max_attempts", 1, 255)
        if self.fsync not in ("none", "interval", "always"):
            raise ConfigError(
                f"fsync is {self.fsync!r}; it is one of none, interval, always",
                setting="fsync",
                value=self.fsync,
            )
        if self.log_level not in LOG_LEVELS:
            raise ConfigError(
                f"log_level is {self.log_level!r}; it must be one of {', '.join(LOG_LEVELS)}",
                setting="log_level",
                value=self.log_level,
            )
        parse_address(self.listen, setting="listen", listening=True)
        self._path("secret_file")
        self._path("store")
        check_type("tls", self.tls, TLS)
        patterns: object = self.record
        if isinstance(patterns, str) or not isinstance(patterns, Iterable):
            raise ConfigError(
                f"record is {self.record!r}; it must be a list of patterns",
                setting="record",
                value=self.record,
            )
        for pattern in self.record:
            Pattern(pattern)
        if self.record and self.store is None:
            raise ConfigError(
                "record names topics, and there is no store to record them in; set store too",
                setting="record",
                value=self.record,
            )
        if not isinstance(self.limits, Limits):
            raise ConfigError("limits: give antiphon.broker.Limits(...)", setting="limits")
        if self.anonymous is not None and not isinstance(self.anonymous, Rights):
            raise ConfigError("anonymous: give antiphon.broker.Rights(...)", setting="anonymous")
        object.__setattr__(self, "shares", check_shares(self.shares))
        object.__setattr__(self, "tokens", _check_tokens(self.tokens))

    def _whole(self, setting: str, least: int, most: int) -> None:
        value: object = getattr(self, setting)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ConfigError(
                f"{setting} is {value!r}; it must be a whole number from {least} to {most}",
                setting=setting,
                value=value,
            )

    def _path(self, setting: str) -> None:
        value: object = getattr(self, setting)
        if value is not None and (not isinstance(value, str) or not value):
            raise ConfigError(
                f"{setting} is {value!r}; it must be a path, as text, or None",
                setting=setting,
                value=value,
            )

    def _seconds(self, setting: str, least: float, most: float) -> None:
        value: object = getattr(self, setting)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not least <= value <= most:  # type: ignore[operator]
            raise ConfigError(
                f"{setting} is {value!r}; it must be a number of seconds from {least:g} to "
                f"{most:g}",
                setting=setting,
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
            shares=new.shares,
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
