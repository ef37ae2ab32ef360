"""What one client may take of a broker: numbers, checked when made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from antiphon.errors import ConfigError
from antiphon.settings import Settings

__all__ = ["Limits"]


def _size(default: int | None) -> Any:
    return field(default=default, metadata={"size": True})


@dataclass(frozen=True, kw_only=True)
class Limits(Settings):
    """Bounds of a broker, ``[broker.limits]``; raises `ConfigError` that says what is allowed."""

    max_clients: int = 10_000
    """Clients that are connected; the next one is refused. Each takes two descriptors
    while it is connected, and none afterwards."""

    max_topics: int = 1_000_000
    """Publishers that one client may have."""

    max_subscriptions: int = 1_000_000
    """Subscriptions that one client may have."""

    max_durables: int = 10_000
    """Durable subscriptions that belong to one client, held or not: each has files. Where nobody
    has a token they belong to nobody, and count together."""

    max_recorded: int = 100_000
    """Topics that are recorded because one client asked, or published them, since the broker
    started: each has files, and stays. Clients without a token count together."""

    max_events_per_s: float | None = None
    """Events that one client may publish in a second, on the average; None: any number. What is
    above, beyond one second's worth at once, is dropped: subscribers find ``missed``."""

    max_bytes_per_s: int | None = _size(None)
    """The same of bytes of data and properties."""

    max_message_bytes: int | None = _size(None)
    """The largest event; None: that of the node's settings. Its publisher gets `MessageTooLarge`.
    Read when the broker starts."""

    def __post_init__(self) -> None:
        for name, most in (
            ("max_clients", 65_535),
            ("max_topics", 2**31),
            ("max_subscriptions", 2**31),
            ("max_durables", 2**31),
            ("max_recorded", 2**31),
            ("max_message_bytes", 2**31),
        ):
            value: object = getattr(self, name)
            if value is None and name == "max_message_bytes":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise _refuse(name, value, f"a whole number from 1 to {most}")
        for name in ("max_events_per_s", "max_bytes_per_s"):
            rate: object = getattr(self, name)
            if rate is None:
                continue
            number = isinstance(rate, int | float) and not isinstance(rate, bool)
            if not number or not math.isfinite(rate) or not 1 <= rate <= 1e12:  # type: ignore[arg-type,operator]
                raise _refuse(name, rate, "a number from 1 to 1e12, or none")


def _refuse(name: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"{name} is {value!r}; it must be {wanted}", setting=name, value=value)
