"""Filters over the properties of events: the part of the SQL-92 selectors that a bus understands.

::

    filter     = term { AND term }
    term       = comparison | "(" filter ")"
    comparison = property operator value
    operator   = "=" | "<>" | "<" | "<=" | ">" | ">="
    value      = 'text' | [ "+" | "-" ] number | TRUE | FALSE

Keywords are written in any case; property names are not. A quote inside a text is doubled. A
number without a point and an exponent is an integer and has 64 bits, also when it begins with 0.

A property that an event does not carry is NULL, and to compare NULL, or to compare values of
different types, gives UNKNOWN; an event matches when everything is true, so UNKNOWN does not
match, for ``<>`` neither. A bool is not a number. Integers and floats compare by their exact
values and never by rounding one to the other. NaN is a value that is not there: it compares to
UNKNOWN with every operator, while the infinities are numbers as others.

Names are of ASCII letters, although SQL would let a vendor allow more: an accented letter has two
spellings in Unicode which look alike and are not equal.

The rest of the language belongs to brokers, which filter for everybody and so may spend more on
it. What this module takes means the same there.

Receives the text of ``where=`` and properties of events; hands a verdict back to the bus.
"""

from __future__ import annotations

import math
import operator
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from antiphon.errors import ConfigError, FilterError

__all__ = ["MAX_CHARACTERS", "MAX_COMPARISONS", "MAX_PROPERTIES", "Where", "check_properties"]

MAX_CHARACTERS = 4096
"""Of a filter."""

MAX_COMPARISONS = 64
"""In a filter."""

MAX_PROPERTIES = 64
"""Of an event."""

_INT64 = range(-(2**63), 2**63)
_ELSEWHERE = frozenset({"BETWEEN", "ESCAPE", "IN", "IS", "LIKE", "NOT", "OR"})
_KEYWORDS = _ELSEWHERE | {"AND", "FALSE", "NULL", "TRUE"}
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$.]*")
_TOKEN = re.compile(
    rf"""
      (?P<space> [ \t\r\n\f]+ )
    | (?P<word> {_NAME.pattern} )
    | (?P<number> (?: [0-9]+ (?: \.[0-9]* )? | \.[0-9]+ ) (?: [eE][+-]?[0-9]+ )?
                  (?! [A-Za-z0-9_$.] ) )
    | (?P<string> (?: '[^']*' )+ (?!') )
    | (?P<operator> <> | <= | >= | [=<>] )
    | (?P<arithmetic> [-+*/] )
    | (?P<open> \( )
    | (?P<close> \) )
    | (?P<stray> . )
    """,
    re.VERBOSE | re.DOTALL,
)

# What is expected where. The texts are the fact `expected` of errors and part of their sentence.
_PROPERTY = "a comparison, such as temp > 30 or (site = 'A')"
_OPERATOR = "one of = <> < <= > >="
_VALUE = "a 'text', a number, TRUE or FALSE"
_SUBSET = "without one a filter is comparisons joined by AND"

Test = Callable[[object], bool]

_brief = reprlib.Repr()
_brief.maxstring = 80


class _Token(NamedTuple):
    kind: str
    text: str
    column: int

    @property
    def keyword(self) -> str:
        """The keyword in capitals, or nothing."""
        upper = self.text.upper() if self.kind == "word" else ""
        return upper if upper in _KEYWORDS else ""


@dataclass(frozen=True, slots=True)
class Where:
    """A filter, read once and applied to many events. The module says what may be written.

    Raises `FilterError` with the ``column`` at which reading stopped, counted from 1, and with
    what was ``expected`` there. Also refused: ordering text or booleans, more than
    `MAX_CHARACTERS` or `MAX_COMPARISONS`. Two filters are equal when their texts are. A filter
    does not change, so threads may share it.
    """

    text: str
    _program: tuple[tuple[str, Test], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_program", _Reader(self.text).read())

    def matches(self, properties: Mapping[str, object]) -> bool:
        """Whether every comparison is true. Raises nothing, whatever the values are.

        Values of types that `check_properties` refuses compare to UNKNOWN.
        """
        get = properties.get
        for name, test in self._program:  # noqa: SIM110 - a generator costs a quarter more
            if not test(get(name)):
                return False
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return Where, (self.text,)


def check_properties(properties: object) -> None:
    """Whether an event can carry them; raises `ConfigError` that says which one it cannot.

    A mapping of at most `MAX_PROPERTIES`, from names that a filter can write to values that are
    exactly str, int of 64 bits, float or bool. Subclasses, such as numpy's floats, are refused: the
    subscriber would get another type than the publisher gave. NaN and infinities pass; NaN never
    matches a filter.
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
    for name, value in properties.items():
        _check_name(name)
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
                f"property {_brief.repr(name)} is of type {kind.__name__}; "
                "give a str, int, float or bool",
                value,
            )


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


class _Reader:
    """Reads one filter from left to right and stops at the first thing wrong.

    AND is all that joins, so parentheses need only be balanced, and no depth of them costs stack.
    """

    def __init__(self, text: object) -> None:
        self._text = _check_filter(text)
        self._tokens = self._split()
        self._program: list[tuple[str, Test]] = []

    def read(self) -> tuple[tuple[str, Test], ...]:
        opened: list[_Token] = []
        token = next(self._tokens)
        while True:
            while token.kind == "open":
                opened.append(token)
                token = next(self._tokens)
            self._comparison(token)
            token = next(self._tokens)
            while token.kind == "close" and opened:
                opened.pop()
                token = next(self._tokens)
            if token.keyword == "AND":
                token = next(self._tokens)
            elif token.kind != "end":
                self._refuse(token, "AND or )" if opened else "AND or the end")
            elif opened:
                self._fail(opened[-1].column, "this ( is not closed; add a )", "AND or )")
            else:
                return tuple(self._program)

    def _comparison(self, name: _Token) -> None:
        if name.kind in ("number", "string") or name.keyword in ("TRUE", "FALSE"):
            self._fail(name.column, "a value; write the property to the left of it", _PROPERTY)
        if name.kind != "word" or name.keyword:
            self._refuse(name, _PROPERTY)
        if len(self._program) == MAX_COMPARISONS:
            self._fail(
                name.column, f"more than {MAX_COMPARISONS} comparisons; use fewer", "the end"
            )
        compare = next(self._tokens)
        if compare.kind != "operator":
            self._refuse(compare, _OPERATOR)
        self._program.append((name.text, self._test(compare)))

    def _test(self, compare: _Token) -> Test:
        token = next(self._tokens)
        if token.kind == "string":
            self._unordered(compare, "text")
            return _text_test(compare.text, token.text[1:-1].replace("''", "'"))
        if token.keyword in ("TRUE", "FALSE"):
            self._unordered(compare, "TRUE and FALSE")
            return _bool_test(compare.text, token.keyword == "TRUE")
        if token.keyword == "NULL":
            self._fail(token.column, "nothing compares to NULL, and IS NULL needs a broker", _VALUE)
        if token.kind == "word" and not token.keyword:
            self._fail(
                token.column,
                f"comparing two properties needs a broker; for a text write '{token.text}'",
                _VALUE,
            )
        first = token
        if token.text in ("+", "-"):
            token = next(self._tokens)
            if token.kind != "number":
                self._refuse(token, "a number")
        if token.kind != "number":
            self._refuse(token, _VALUE)
        return _number_test(compare.text, self._number(first, token))

    def _unordered(self, compare: _Token, what: str) -> None:
        if compare.text not in ("=", "<>"):
            self._fail(compare.column, f"{compare.text} does not order {what}", "= or <>")

    def _number(self, first: _Token, digits: _Token) -> int | float:
        minus = first.text == "-"
        if digits.text.isdigit():
            # Cut to what shows that it is too long: int() has a limit of its own for digits.
            whole = int(digits.text.lstrip("0")[:20] or "0") * (-1 if minus else 1)
            if whole not in _INT64:
                self._fail(first.column, "this does not fit in 64 bits; add .0 for a float", _VALUE)
            return whole
        value = float(digits.text)
        if math.isinf(value):
            self._fail(first.column, "this is larger than every float", _VALUE)
        return -value if minus else value

    def _split(self) -> Iterator[_Token]:
        for found in _TOKEN.finditer(self._text):
            if found.lastgroup != "space":
                yield _Token(str(found.lastgroup), found[0], found.start() + 1)
        end = _Token("end", "", len(self._text) + 1)
        while True:
            yield end

    def _refuse(self, token: _Token, expected: str) -> NoReturn:
        """Say why ``token`` cannot stand where ``expected`` should."""
        text = token.text
        if token.kind == "end":
            why = f"the filter ends; expected {expected}"
        elif token.keyword in _ELSEWHERE:
            why = f"{token.keyword} needs a broker; {_SUBSET}"
        elif token.kind == "arithmetic":
            why = f"{text} is arithmetic, which needs a broker; {_SUBSET}"
        elif text == "'":
            why = "this text is not closed; end it with '"
        elif text == '"':
            why = "write text in single quotes"
        elif text == "!":
            why = "write <> for unequal, NOT needs a broker"
        elif token.kind == "stray" and text in "0123456789.":
            why = "this is not a number; write 3, -3, 3.5 or 3e5"
        else:
            why = f"found {_brief.repr(text)}; expected {expected}"
        self._fail(token.column, why, expected)

    def _fail(self, column: int, why: str, expected: str) -> NoReturn:
        raise FilterError(
            f"where {_brief.repr(self._text)}, column {column}: {why}",
            column=column,
            expected=expected,
        )


def _check_filter(text: object) -> str:
    if not isinstance(text, str):
        raise FilterError(
            f"where is of type {type(text).__name__}; write a text such as \"site = 'A'\"",
            expected="a text",
        )
    if len(text) > MAX_CHARACTERS:
        raise FilterError(
            f"where {_brief.repr(text)} has {len(text)} characters; shorten it to {MAX_CHARACTERS}",
            column=MAX_CHARACTERS + 1,
            expected="the end",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        column = error.start + 1
        raise FilterError(
            f"where {_brief.repr(text)}, column {column}: half of a surrogate pair; remove it",
            column=column,
            expected="whole characters",
        ) from None
    return text


# The tests look at the exact type: one look tells a bool from an int, and NULL (None) from both.


def _text_test(sign: str, literal: str) -> Test:
    if sign == "=":
        return lambda value: type(value) is str and value == literal
    return lambda value: type(value) is str and value != literal


def _bool_test(sign: str, literal: bool) -> Test:
    wanted = literal if sign == "=" else not literal
    return lambda value: value is wanted


def _number_test(sign: str, literal: int | float) -> Test:
    compare = _COMPARE[sign]

    def test(value: object) -> bool:
        kind = type(value)
        return (kind is int or kind is float) and compare(value, literal)

    return test


def _differ(left: Any, right: Any) -> bool:
    """Not ``!=``, which holds for NaN."""
    return bool(left < right or left > right)


# Python compares an int with a float by their exact values.
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": _differ,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
