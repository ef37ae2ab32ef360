"""How long somebody is willing to wait: the same check for every ``timeout`` and ``drain``."""

from __future__ import annotations

import math
import threading
from typing import Any

from antiphon.errors import ConfigError

__all__ = ["check_drain", "check_timeout"]


def check_timeout(value: Any, setting: str = "timeout") -> float | None:
    """Seconds from 0 to what a thread can wait for; None is for ever. TypeError for no number.

    What is past already is 0: a program that computes what is left to it may come out below. NaN
    is refused, with `ConfigError`. It compares with nothing, so a wait for it would never end, or
    never begin.
    """
    return None if value is None else _seconds(value, setting, "a number of seconds or None")


def check_drain(value: Any) -> float:
    """As `check_timeout`, for what must end. When it raises, nothing was closed yet."""
    return _seconds(value, "drain", "a number of seconds")


def _seconds(value: Any, setting: str, wanted: str) -> float:
    try:
        nothing = math.isnan(value)
    except OverflowError:  # a whole number that is more than any float
        nothing = False
    except TypeError:
        raise TypeError(f"{setting} is {wanted}, not {type(value).__name__}") from None
    if nothing:
        raise ConfigError(f"{setting} is NaN; give {wanted}", setting=setting, value=value)
    return float(min(max(0, value), threading.TIMEOUT_MAX))
