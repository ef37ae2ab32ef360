"""What a value in a plan may be: small readers that each take a TOML value and check it.

A reader is a function from the value to what the plan holds; it raises `Wrong`, which says what is
wrong and what would be right. `antiphon.lab.plan_faults` puts file, line and field before that.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from antiphon import settings

__all__ = [
    "NAME",
    "Reader",
    "Wrong",
    "bits",
    "choice",
    "flag",
    "hint",
    "host",
    "listed",
    "name",
    "number",
    "only",
    "size",
    "text",
    "whole",
]

NAME = "small letters, digits and hyphens, at most 24"

T = TypeVar("T")
U = TypeVar("U")
Reader = Callable[[object], T]

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,23}")
# Given to ssh as an argument: nothing that it could take for an option.
_HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9.:-]*")
_BITS = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kMG]?)bit\s*")
_THOUSANDS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


class Wrong(Exception):
    """The value cannot stay; ``at`` is the number of the element, if it is in a list."""

    def __init__(self, what: str, allowed: Iterable[str] = (), at: int | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.allowed = tuple(allowed)
        self.at = at


def text(value: object) -> str:
    """Any text."""
    if not isinstance(value, str):
        raise Wrong(f"{value!r} is not a text")
    return value


def name(value: object) -> str:
    """A name that can be a part of a file's name."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise Wrong(f"{value!r} is not a name", [NAME])
    return value


def host(value: object) -> str:
    """``host`` or ``user@host``, as ssh takes it."""
    if not isinstance(value, str) or not _HOST.fullmatch(value):
        raise Wrong(f"{value!r} is not a host", ["HOST", "USER@HOST"])
    return value


def flag(value: object) -> bool:
    """``true`` or ``false``."""
    if not isinstance(value, bool):
        raise Wrong(f"{value!r} is not true or false", ["true", "false"])
    return value


def whole(low: int, high: int) -> Reader[int]:
    """A whole number within bounds."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Wrong(f"{value!r} is out of place", [f"whole numbers from {low} to {high}"])
        return value

    return read


def number(low: float, high: float, *, above: bool = False) -> Reader[float]:
    """A number within bounds, the lower one excluded with ``above``."""
    allowed = [f"numbers {'above' if above else 'from'} {low:g} to {high:g}"]

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Wrong(f"{value!r} is not a number", allowed)
        if not math.isfinite(value) or not low <= value <= high or (above and value == low):
            raise Wrong(f"{value!r} is out of range", allowed)
        return float(value)

    return read


def size(low: int, high: int) -> Reader[int]:
    """Bytes, as a number or as text such as ``"4KiB"``."""
    allowed = [f"{low} to {high} bytes, as a number or a text such as '4KiB'"]

    def read(value: object) -> int:
        try:
            found = settings.parse_size(value)
        except ValueError:
            raise Wrong(f"{value!r} is not a size", allowed) from None
        if not low <= found <= high:
            raise Wrong(f"{value!r} is out of range", allowed)
        return found

    return read


def bits(value: object) -> int:
    """Bits per second, as text such as ``"100Mbit"`` or as a number."""
    allowed = ["bits per second from 8000, as a number or a text such as '100Mbit'"]
    found: float = 0
    if isinstance(value, str) and (match := _BITS.fullmatch(value)):
        found = float(match[1]) * _THOUSANDS[match[2]]
    elif isinstance(value, int) and not isinstance(value, bool):
        found = value
    if not 8000 <= found <= 10**12 or found != int(found):
        raise Wrong(f"{value!r} is not a rate", allowed)
    return int(found)


def choice(allowed: Collection[str], what: str) -> Reader[str]:
    """One of some words."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise Wrong(f"{value!r} is not {what}{hint(value, allowed)}", allowed)
        return value

    return read


def only(word: str, meaning: U, other: Reader[T]) -> Reader[T | U]:
    """A word with a meaning of its own, or else what ``other`` reads."""

    def read(value: object) -> T | U:
        if value == word:
            return meaning
        try:
            return other(value)
        except Wrong as wrong:
            raise Wrong(wrong.what, [f"{word!r}", *wrong.allowed]) from None

    return read


def listed(element: Reader[T]) -> Reader[tuple[T, ...]]:
    """A list that is not empty and has nothing twice."""

    def read(value: object) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise Wrong(f"{value!r} is not a list; write [{value!r}]")
        if not value:
            raise Wrong("the list is empty")
        found: list[T] = []
        for at, one in enumerate(value):
            try:
                item = element(one)
            except Wrong as wrong:
                raise Wrong(wrong.what, wrong.allowed, at) from None
            if item in found:
                raise Wrong(f"{one!r} is there twice", at=at)
            found.append(item)
        return tuple(found)

    return read


def hint(value: object, allowed: Iterable[str]) -> str:
    """``; did you mean X?``, if there is something that looks like it."""
    close = difflib.get_close_matches(str(value), list(allowed), n=1)
    return f", did you mean {close[0]}?" if close else ""
