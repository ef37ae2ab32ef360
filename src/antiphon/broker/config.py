"""The settings of a broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from antiphon import settings
from antiphon.errors import ConfigError
from antiphon.topics.names import Pattern

__all__ = ["BrokerConfig"]


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker, checked when made; raises `ConfigError` that says what is allowed.

    `BrokerConfig.load` also looks at ``ANTIPHON_BROKER_*`` and at ``[broker]`` in
    ``antiphon.toml``; a broker that is given no configuration uses that.
    """

    capacity: int = 4096
    """Events of one topic that may wait in the broker; then its publishers wait, and no others."""

    max_block: float = 1.0
    """Seconds for which a subscription without room holds up the publishers of its topic. Then it
    misses events, until it has room again."""

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
    """Seconds after which an event that nobody has acknowledged is handed out again."""

    max_attempts: int = 5
    """How often an event is handed out before it becomes a dead letter."""

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Arguments, ``ANTIPHON_BROKER_*``, ``[broker]`` in antiphon.toml, then defaults."""
        return settings.load(cls, "broker", overrides)

    def __post_init__(self) -> None:
        self._whole("capacity", 1, 2**24)
        self._seconds("max_block", 0, 3600)
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
        for pattern in self.record:
            Pattern(pattern)
        if self.record and self.store is None:
            raise ConfigError(
                "record names topics, and there is no store to record them in; set store too",
                setting="record",
                value=self.record,
            )

    def _whole(self, setting: str, least: int, most: int) -> None:
        value: object = getattr(self, setting)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ConfigError(
                f"{setting} is {value!r}; it must be a whole number from {least} to {most}",
                setting=setting,
                value=value,
            )

    def _seconds(self, setting: str, least: float, most: float) -> None:
        value: object = getattr(self, setting)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not least <= value <= most:  # type: ignore[operator]
            raise ConfigError(
                f"{setting} is {value!r}; it must be a number of seconds from {least} to {most}",
                setting=setting,
                value=value,
            )
