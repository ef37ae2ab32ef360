"""What a subscription may want of a broker: checks ``start``, ``speed``, ``durable``, ``group``."""

from __future__ import annotations

import datetime
from typing import Any

from antiphon.errors import ConfigError
from antiphon.topics.announcements import Wish
from antiphon.topics.names import Pattern

__all__ = ["Start", "check_name", "make_wish"]

Start = str | int | datetime.datetime | None

_LONGEST_NAME = 200
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def make_wish(
    pattern: Pattern,
    *,
    durable: str | None,
    start: Start,
    speed: float | None,
    group: str | None,
    ack: str,
    capacity: int,
) -> Wish | None:
    """None: it wants nothing but events as they come. Raises `ConfigError`."""
    if ack not in ("auto", "manual"):
        raise ConfigError(f"ack {ack!r}: auto or manual", setting="ack", value=ack)
    if ack == "manual" and durable is None and group is None:
        raise ConfigError(
            "ack='manual' needs durable= or group=: nothing else is acknowledged", setting="ack"
        )
    if durable is None and start is None and speed is None and group is None:
        return None
    for setting, name in (("durable", durable), ("group", group)):
        if name is not None:
            check_name(setting, name)
    pace = _speed(speed)
    if pace and start is None:
        raise ConfigError(
            "speed= is for a replay, and nothing is replayed; say from where, such as "
            "start='earliest'",
            setting="speed",
            value=speed,
        )
    if pace and (durable is not None or group is not None):
        raise ConfigError(
            "speed= is for a replay that nobody acknowledges; leave out durable= and group=",
            setting="speed",
        )
    begin, time_ns = _start(pattern, start)
    return Wish(begin, time_ns, pace, durable, group, capacity)


def check_name(setting: str, name: object) -> str:
    """The name of a durable subscription or of a group; raises `ConfigError`."""
    good = isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME
    if not good or not str(name).isprintable() or set(str(name)) & set("/*$"):
        raise ConfigError(
            f"{setting} {name!r}: give a name of up to {_LONGEST_NAME} characters, without / * $",
            setting=setting,
            value=name,
        )
    return str(name)


def _speed(speed: object) -> float:
    if speed is None:
        return 0.0
    number = isinstance(speed, int | float) and not isinstance(speed, bool)
    if not number or not 0 < float(speed) < 1e9:  # type: ignore[arg-type]
        raise ConfigError(
            f"speed {speed!r}: give how many times the original, above 0; None is as fast as it "
            "goes",
            setting="speed",
            value=speed,
        )
    return float(speed)  # type: ignore[arg-type]


def _start(pattern: Pattern, start: Any) -> tuple[Any, int | None]:
    """As a `Wish` says it: a word or a sequence, or a time."""
    if start is None or start in ("earliest", "latest"):
        return start, None
    if isinstance(start, datetime.datetime):
        if start.tzinfo is None:
            raise ConfigError(
                "start= is a time without a time zone; say which, as datetime.now(UTC) does",
                setting="start",
                value=start,
            )
        return None, (start - _EPOCH) // datetime.timedelta(microseconds=1) * 1000
    if isinstance(start, int) and not isinstance(start, bool) and 0 <= start < 2**63:
        if "*" in pattern.text:
            raise ConfigError(
                f"start={start} is a sequence, which counts within one topic; {pattern.text} may "
                "be several",
                setting="start",
                value=start,
            )
        return start, None
    raise ConfigError(
        f"start {start!r}: earliest, latest, a sequence, or a datetime with a time zone",
        setting="start",
        value=start,
    )
