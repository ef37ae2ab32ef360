"""Filters over the properties of events: SQL-92's conditions, in the dialect of JMS selectors.

``price > 100 AND region IN ('EU', 'UK')``: comparison, arithmetic, BETWEEN, IN, LIKE with ESCAPE,
IS NULL, and AND, OR and NOT of three values. ``docs/reference/filters.md`` has the language. The
core reads and applies filters (``native/match``); they mean the same with a broker and without.

A property that an event does not carry is NULL, and to compare NULL, or to compare values of
different types, gives UNKNOWN; an event matches when its filter is TRUE, so UNKNOWN does not
match, for ``<>`` neither. A bool is not a number. Integers and floats compare by their exact
values and never by rounding one to the other. NaN is a value that is not there: NULL, while the
infinities are numbers as others.

Names are of ASCII letters, although SQL would let a vendor allow more: an accented letter has two
spellings in Unicode which look alike and are not equal.

Receives the text of ``where=`` and properties of events; hands what the core has read to the bus.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from antiphon._core import (
    FILTER_CHARACTERS,
    FILTER_COMPARISONS,
    FILTER_PROPERTIES,
    Filter,
    read_filter,
)
from antiphon.errors import ConfigError, FilterError

__all__ = ["MAX_CHARACTERS", "MAX_COMPARISONS", "MAX_PROPERTIES", "Where", "plain_properties"]

MAX_CHARACTERS = FILTER_CHARACTERS
"""Of a filter."""

MAX_COMPARISONS = FILTER_COMPARISONS
"""In a filter; BETWEEN, IN, LIKE, IS NULL and a property that stands alone are comparisons too."""

MAX_PROPERTIES = FILTER_PROPERTIES
"""Of an event."""

_INT64 = range(-(2**63), 2**63)
_PLAIN = frozenset({str, int, float, bool})
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$.]*")
_KEYWORDS = frozenset(
    {"AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"}
)

_brief = reprlib.Repr()
_brief.maxstring = 80


@dataclass(frozen=True, slots=True)
class Where:
    """A filter, read once and applied to many events. The module says what may be written.

    Raises `FilterError` with the ``column`` at which reading stopped, counted from 1, and with
    what was ``expected`` there. Also refused: types that cannot go together, whatever an event
    carries, more than `MAX_CHARACTERS` or `MAX_COMPARISONS`. Two filters are equal when their texts
    are. A filter does not change, so threads may share it.
    """

    text: str
    core: Filter = field(init=False, repr=False, compare=False)
    """As publishers want it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "core", _read(self.text))

    def evaluate(self, properties: Mapping[str, object]) -> bool | None:
        """True, False, or None for UNKNOWN.

        Values of types that `plain_properties` refuses are NULL.
        """
        return self.core.evaluate(properties)

    def matches(self, properties: Mapping[str, object]) -> bool:
        """Whether it is true."""
        return self.core.evaluate(properties) is True

    def __reduce__(self) -> tuple[Any, ...]:
        return Where, (self.text,)


def _read(text: object) -> Filter:
    if not isinstance(text, str):
        raise FilterError(
            f"where is of type {type(text).__name__}; write a text such as \"site = 'A'\"",
            expected="a text",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # The core is given UTF-8, which has no such thing.
        why, column, expected = "half of a surrogate pair", error.start + 1, "whole characters"
        raise _mistake(text, column, f"{why}; remove it", expected) from None
    read = read_filter(text)
    if isinstance(read, Filter):
        return read
    column, why, found, expected = read
    raise _mistake(
        text, column, why or f"found {_brief.repr(found)}; expected {expected}", expected
    )


def _mistake(text: str, column: int, why: str, expected: str) -> FilterError:
    return FilterError(
        f"where {_brief.repr(text)}, column {column}: {why}", column=column, expected=expected
    )


def plain_properties(properties: object) -> dict[str, str | int | float | bool]:
    """What an event carries; raises `ConfigError` that says which one it cannot.

    A mapping of at most `MAX_PROPERTIES`, from names that a filter can write to values that are
    str, int of 64 bits, float or bool. What is one of those and something else, such as a member
    of an `enum.IntEnum` or one of numpy's floats, is made a plain one. NaN and infinities pass;
    NaN never matches a filter. A dict with plain values is returned as it is.
    """
    if not isinstance(properties, Mapping):
        raise _refuse(
            f"properties are a {type(properties).__name__}; give a mapping of names to values",
            properties,
        )
    if len(properties) > MAX_PROPERTIES:
        raise _refuse(
            f"{len(properties)} properties; an event carries at most {MAX_PROPERTIES}, "
            "put the rest into its data",
            len(properties),
        )
    odd: dict[str, str | int | float | bool] = {}
    for name, given in properties.items():
        _check_name(name)
        value, kind = given, type(given)
        if kind not in _PLAIN and isinstance(given, str | int | float):
            value = odd[name] = _made_plain(given)
            kind = type(value)
        if kind is str:
            _check_encodable(name, value)
        elif kind is int:
            if value not in _INT64:
                raise _refuse(
                    f"property {_brief.repr(name)} does not fit in 64 bits; give a float or a text",
                    value,
                )
        elif value is None:
            raise _refuse(
                f"property {_brief.repr(name)} is None; leave it out, absent is NULL", value
            )
        elif kind is not float and kind is not bool:
            raise _refuse(
                f"property {_brief.repr(name)} is of type {_full_name(kind)}; "
                "give a str, int, float or bool",
                value,
            )
    # The encoder knows dictionaries only.
    if odd or not isinstance(properties, dict):
        return {**properties, **odd}
    return properties


def _made_plain(value: str | float) -> str | int | float:
    """Not by what its class says of itself, as the text of a member of an enumeration."""
    if isinstance(value, str):
        return str.__str__(value)
    return int.__int__(value) if isinstance(value, int) else float.__float__(value)


def _full_name(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _check_name(name: object) -> None:
    if type(name) is not str:
        raise _refuse(f"property name of type {type(name).__name__}; give a str", name)
    if not _NAME.fullmatch(name):
        raise _refuse(
            f"property name {_brief.repr(name)} cannot be written in a filter; begin with "
            "a letter, _ or $ and go on with these, digits and dots (ASCII)",
            name,
        )
    if name.upper() in _KEYWORDS:
        raise _refuse(
            f"property name {name!r} is a word of the filter language; choose another", name
        )


def _check_encodable(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _refuse(
            f"property {_brief.repr(name)}: character {error.start + 1} is half of a surrogate "
            "pair; remove it",
            value,
        ) from None


def _refuse(text: str, value: object) -> ConfigError:
    return ConfigError(text, setting="properties", value=value)
