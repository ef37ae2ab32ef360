"""The settings of a bus."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

from antiphon import settings
from antiphon.errors import ConfigError

__all__ = ["BusConfig"]


@dataclass(frozen=True, kw_only=True)
class BusConfig(settings.Settings, table="bus"):
    """Settings of one bus, checked when made; raises `ConfigError` that says what is allowed.

    A bus takes what is not written here from ``ANTIPHON_BUS_*``, then ``[bus]`` in
    ``antiphon.toml``, then the default; `BusConfig.load` does so at once.
    """

    announce_interval: float = 1.0
    """Seconds between two signs of life of this bus on its channel."""

    announce_expiry: float = 5.0
    """Seconds of silence after which another bus, its topics and its subscriptions are forgotten;
    where the channel can tell a death (``local://``) it is noticed at once."""

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Arguments, then ``ANTIPHON_BUS_*``, then ``[bus]`` in antiphon.toml, then defaults."""
        return settings.load(cls, "bus", overrides)

    def __post_init__(self) -> None:
        for name in ("announce_interval", "announce_expiry"):
            value: object = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(getattr(self, name)) or not 0.01 <= value <= 3600:  # type: ignore[operator]
                raise ConfigError(
                    f"{name} is {value!r}; it must be a number of seconds from 0.01 to 3600",
                    setting=name,
                    value=value,
                )
        if self.announce_expiry <= self.announce_interval:
            raise ConfigError(
                f"announce_expiry is {self.announce_expiry!r}; it must be longer than "
                f"announce_interval ({self.announce_interval!r})",
                setting="announce_expiry",
                value=self.announce_expiry,
            )
