"""The settings of a broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from antiphon import settings
from antiphon.errors import ConfigError

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
        patience: object = self.max_block
        number = isinstance(patience, int | float) and not isinstance(patience, bool)
        if not number or not 0 <= self.max_block <= 3600:
            raise ConfigError(
                f"max_block is {self.max_block!r}; it must be a number of seconds from 0 to 3600",
                setting="max_block",
                value=self.max_block,
            )
