"""How long somebody is willing to wait: the same check for every ``timeout`` and ``drain``."""

from __future__ import annotations

import math
import threading
from typing import Any

from antiphon.errors import ConfigError

__all__ = ["check_drain", "check_timeout"]


def check_timeout(value: Any, setting: str = "timeout") -> float | None:
    """Seconds from 0 to what a thread can wait for; None is for ever. Raises `ConfigError`.

    What is past already is 0: a program that computes what is left to it may come out below. NaN
    is refused. It compares with nothing, so a wait for it would never end, or never begin.
    """
    return None if value is None else _seconds(value, setting, "a number of seconds, or None")


def check_drain(value: Any) -> float:
    """As `check_timeout`, for what must end. Raises `ConfigError`: nothing was closed then."""
    return _seconds(value, "drain", "a number of seconds")


def _seconds(value: Any, setting: str, wanted: str) -> float:
    try:
        wrong = math.isnan(value)
    except OverflowError:  # a whole number that is more than any float
        wrong = False
    except TypeError:
        wrong = True
    if wrong:
        raise ConfigError(
            f"{setting} is {value!r}; it must be {wanted}", setting=setting, value=value
        )
    return float(min(max(0, value), threading.TIMEOUT_MAX))
