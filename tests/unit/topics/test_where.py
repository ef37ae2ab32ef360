from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import math
import operator
import pickle
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.errors import ConfigError, FilterError
from antiphon.topics.where import (
    MAX_CHARACTERS,
    MAX_COMPARISONS,
    MAX_PROPERTIES,
    Where,
    plain_properties,
)

TOP, BOTTOM = 2**63 - 1, -(2**63)
NAN, INF = math.nan, math.inf

SIGNS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@pytest.mark.parametrize(
    ("text", "properties", "expected"),
    [
        # numbers
        ("temp > 30", {"temp": 31}, True),
        ("temp > 30", {"temp": 30}, False),
        ("temp >= 30", {"temp": 30}, True),
        ("temp < 30", {"temp": 29.5}, True),
        ("temp <= 30", {"temp": 30.5}, False),
        ("temp = 30", {"temp": 30.0}, True),
        ("temp <> 30", {"temp": 31}, True),
        ("temp <> 30", {"temp": 30}, False),
        ("temp = 30.0", {"temp": 30}, True),
        ("temp = -5", {"temp": -5}, True),
        ("temp = - 5", {"temp": -5}, True),
        ("temp = +5", {"temp": 5}, True),
        ("temp=-.5", {"temp": -0.5}, True),
        ("temp = 7.", {"temp": 7}, True),
        ("temp = 1.5e3", {"temp": 1500}, True),
        ("temp = 15E-1", {"temp": 1.5}, True),
        ("temp = 1e+2", {"temp": 100}, True),
        ("temp = 007", {"temp": 7}, True),
        ("temp = 0", {"temp": -0.0}, True),
        (f"n = {TOP}", {"n": TOP}, True),
        (f"n = {BOTTOM}", {"n": BOTTOM}, True),
        ("n = " + "0" * 4000 + "1", {"n": 1}, True),
        # exact, although both round to the same float
        (f"n = {2**53}.0", {"n": 2**53 + 1}, False),
        (f"n < {2**53}.0", {"n": 2**53 + 1}, False),
        (f"n > {2**53}.0", {"n": 2**53 + 1}, True),
        (f"n <> {2**53 + 1}", {"n": float(2**53)}, True),
        (f"n < {TOP}", {"n": 2.0**63}, False),
        # not a number, and more than any
        ("x = 1", {"x": NAN}, False),
        ("x <> 1", {"x": NAN}, False),
        ("x < 1", {"x": NAN}, False),
        ("x >= 1", {"x": NAN}, False),
        ("x <> 1.5", {"x": NAN}, False),
        (f"x > {TOP}", {"x": INF}, True),
        ("x < -1e308", {"x": -INF}, True),
        # text
        ("site = 'A'", {"site": "A"}, True),
        ("site = 'A'", {"site": "a"}, False),
        ("site <> 'A'", {"site": "B"}, True),
        ("site <> 'A'", {"site": "A"}, False),
        ("site = ''", {"site": ""}, True),
        ("site = ''''", {"site": "'"}, True),
        ("site = 'it''s'", {"site": "it's"}, True),
        ("site = 'a'''", {"site": "a'"}, True),
        ("site = '''''a'", {"site": "''a"}, True),
        ("site = ' AND (x > 1) '", {"site": " AND (x > 1) "}, True),
        ("site = 'größe\n\0'", {"site": "größe\n\0"}, True),
        # booleans
        ("on = TRUE", {"on": True}, True),
        ("on = true", {"on": False}, False),
        ("on = False", {"on": False}, True),
        ("on <> TRUE", {"on": False}, True),
        ("on <> fAlSe", {"on": False}, False),
        # absent, NULL, unlike
        ("temp > 30", {}, False),
        ("temp <> 30", {}, False),
        ("temp <> 30", {"temp": None}, False),
        ("site <> 'A'", {}, False),
        ("on <> TRUE", {}, False),
        ("temp <> 30", {"temp": "31"}, False),
        ("temp = 1", {"temp": True}, False),
        ("temp <> 0", {"temp": True}, False),
        ("temp > 0", {"temp": True}, False),
        ("on = TRUE", {"on": 1}, False),
        ("on <> TRUE", {"on": 0}, False),
        ("on <> TRUE", {"on": "x"}, False),
        ("site <> 'A'", {"site": 1}, False),
        ("site = 'A'", {"site": b"A"}, False),
        ("temp <> 1", {"temp": [1]}, False),
        ("temp <> 1", {"temp": Fraction(1, 2)}, False),
        # names
        ("_a$.b2.C = 1", {"_a$.b2.C": 1}, True),
        ("$ = 1", {"$": 1}, True),
        ("Temp = 1", {"temp": 1}, False),
        ("android = 1", {"android": 1}, True),
        ("e1 = 1", {"e1": 1}, True),
        # joined
        ("a = 1 AND b = 2", {"a": 1, "b": 2}, True),
        ("a = 1 AND b = 2", {"a": 1, "b": 3}, False),
        ("a = 1 and b = 2 aNd c = 3", {"a": 1, "b": 2, "c": 3}, True),
        ("a > 1 AND a < 3", {"a": 2, "z": 0}, True),
        ("a=1AND b=2", None, None),
        ("a='x'AND b=2", {"a": "x", "b": 2}, True),
        (" \t\r\n\f a\n=\n1 ", {"a": 1}, True),
        ("(a = 1)", {"a": 1}, True),
        ("((a = 1) AND (b = 2))", {"a": 1, "b": 2}, True),
        ("((a = 1) AND (b = 2))", {"a": 1, "b": 1}, False),
        ("(a = 1 AND b = 2) AND c = 3", {"a": 1, "b": 2, "c": 3}, True),
        ("a = 1 AND (b = 2 AND (c = 3))", {"a": 1, "b": 2, "c": 4}, False),
    ],
)
def test_a_filter_means_what_sql_says(
    text: str, properties: dict[str, object] | None, expected: bool | None
) -> None:
    if properties is None:
        with pytest.raises(FilterError):
            Where(text)
    else:
        assert Where(text).matches(properties) is expected


CONDITION = "a comparison, such as temp > 30"
VALUE = "a property, a 'text', a number, TRUE or FALSE"
NUMBER = "a number or a property"
OPERATOR = "one of = <> < <= > >= BETWEEN IN LIKE IS"


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("", 1, f"the filter ends; expected {CONDITION}"),
        ("   ", 4, "the filter ends"),
        ("temp + 1", 9, f"the filter ends; expected {OPERATOR}"),
        ("5", 2, f"the filter ends; expected {OPERATOR}"),
        ("'x'", 4, f"the filter ends; expected {OPERATOR}"),
        ("temp >", 7, f"the filter ends; expected {NUMBER}"),
        ("temp =", 7, f"the filter ends; expected {VALUE}"),
        ("temp > 30 AND", 14, f"the filter ends; expected {CONDITION}"),
        ("temp > 30 OR", 13, f"the filter ends; expected {CONDITION}"),
        ("NOT", 4, f"the filter ends; expected {CONDITION}"),
        ("AND a = 1", 1, f"found 'AND'; expected {CONDITION}"),
        ("OR a = 1", 1, "found 'OR'"),
        ("a = 1 AND AND b = 2", 11, "found 'AND'"),
        ("a = 1 AND OR b = 2", 11, "found 'OR'"),
        ("a = 1 b = 2", 7, "found 'b'; expected AND, OR or the end"),
        ("a = 1 NOT b = 2", 7, "found 'NOT'; expected AND, OR or the end"),
        ("a = 1, b = 2", 6, "found ','"),
        ("a = 1;", 6, "found ';'"),
        ("a b", 3, f"found 'b'; expected {OPERATOR}"),
        ("a + 1 AND b", 7, f"found 'AND'; expected {OPERATOR}"),
        ("'x' OR b", 5, f"found 'OR'; expected {OPERATOR}"),
        ("NOT 5 AND b", 7, f"found 'AND'; expected {OPERATOR}"),
        ("(a = 1 AND 5)", 13, rf"found '\)'; expected {OPERATOR}"),
        ("= 1", 1, "found '='"),
        ("a == 1", 4, f"found '='; expected {VALUE}"),
        ("a => 1", 4, "found '>'"),
        ("a != 1", 3, "write <>"),
        ("a = NULL", 5, "nothing compares to NULL; write IS NULL"),
        ("NULL = 1", 1, "write IS NULL"),
        ("a = b = c", 7, "found '='; expected AND, OR or the end"),
        ("a < b < c", 7, "found '<'; expected AND, OR or the end"),
        ("a IS NULL = TRUE", 11, "found '='; expected AND, OR or the end"),
        ("a IN ('x') + 1 = 2", 12, r"found '\+'; expected AND, OR or the end"),
        ("a = NOT b", 5, f"found 'NOT'; expected {VALUE}"),
        # IN
        ("a IN 'x'", 6, r"expected \( and a list"),
        ("a IN ()", 7, "expected a 'text' or a number"),
        ("a IN ('x',)", 11, "expected a 'text'"),
        ("a IN ('x' 'y')", 11, r"expected , or \)"),
        ("a IN ('x', 1)", 12, "expected a 'text'"),
        ("a IN (1, 'x')", 10, "expected a number"),
        ("a IN (-'x')", 8, "expected a number"),
        ("a IN (b)", 7, "expected a 'text' or a number"),
        ("a IN (TRUE)", 7, "expected a 'text' or a number"),
        ("a IN (NULL)", 7, "expected a 'text' or a number"),
        ("a IN ('x'", 10, r"the filter ends; expected , or \)"),
        ("1 IN ('x')", 3, "IN looks for a number in a list of texts"),
        ("'x' IN (1)", 5, "IN looks for text in a list of numbers"),
        ("TRUE IN ('x')", 6, "IN does not look at TRUE and FALSE"),
        (f"a IN ({TOP + 1})", 7, "does not fit in 64 bits"),
        ("a NOT 5", 7, "expected BETWEEN, IN or LIKE"),
        ("a NOT = 5", 7, "expected BETWEEN, IN or LIKE"),
        # LIKE
        ("a LIKE b", 8, "expected a pattern in quotes"),
        ("a LIKE 5", 8, "expected a pattern in quotes"),
        ("a LIKE 'x' ESCAPE", 18, "expected one character in quotes"),
        ("a LIKE 'x' ESCAPE ''", 19, "expected one character in quotes"),
        ("a LIKE 'x' ESCAPE 'ab'", 19, "expected one character in quotes"),
        ("a LIKE 'x' ESCAPE b", 19, "expected one character in quotes"),
        ("a LIKE 'x!y' ESCAPE '!'", 8, "stands before something else"),
        ("a LIKE 'x!' ESCAPE '!'", 8, "stands before something else"),
        ("a LIKE '%" + "_" * 65 + "%'", 8, "a _ and more than 64 characters"),
        ("a = 'x' ESCAPE '!'", 9, "found 'ESCAPE'; expected AND, OR or the end"),
        ("5 LIKE 'x'", 3, "LIKE does not look at a number"),
        ("TRUE LIKE 'x'", 6, "LIKE does not look at TRUE and FALSE"),
        # BETWEEN
        ("a BETWEEN 1", 12, "the filter ends; expected AND"),
        ("a BETWEEN 1 OR 2", 13, "found 'OR'; expected AND"),
        ("(a BETWEEN 1) AND 2", 13, r"found '\)'; expected AND"),
        ("a BETWEEN 1 AND", 16, f"the filter ends; expected {NUMBER}"),
        ("a BETWEEN AND 2", 11, f"found 'AND'; expected {NUMBER}"),
        ("a BETWEEN 1 = 2 AND 3", 13, "found '='; expected AND"),
        ("a BETWEEN 'x' AND 'y'", 3, "BETWEEN does not order text"),
        ("a BETWEEN 1 AND 'y'", 3, "BETWEEN does not order text"),
        ("'a' BETWEEN 1 AND 2", 5, "BETWEEN does not order text"),
        # IS NULL
        ("a IS", 5, "expected NULL or NOT NULL"),
        ("a IS TRUE", 6, "expected NULL or NOT NULL"),
        ("a IS NOT 5", 10, "expected NULL"),
        # arithmetic
        ("a + > 2", 5, f"found '>'; expected {NUMBER}"),
        ("a + ", 5, f"the filter ends; expected {NUMBER}"),
        ("a * / 2 = 1", 5, "found '/'"),
        ("a + 'x' = 1", 5, "does not compute with text; expected a number"),
        ("'x' + a = 1", 1, "does not compute with text"),
        ("a + TRUE = 1", 5, "does not compute with TRUE and FALSE"),
        ("(a = 1) + 1 = 2", 1, "does not compute with TRUE and FALSE"),
        ("a = -'x'", 6, "expected a number"),
        ("a = - ", 7, "expected a number"),
        ("a % 2 = 1", 3, "found '%'"),
        # no order, and types that never go together
        ("site < 'A'", 6, "< does not order text"),
        ("site >= 'A'", 6, ">= does not order text"),
        ("'A' < site", 5, "< does not order text"),
        ("a = 1 AND on > TRUE", 14, "> does not order TRUE and FALSE"),
        ("(a = 1) > b", 9, "> does not order TRUE and FALSE"),
        ("1 = 'x'", 3, "= compares a number with text, which is never true"),
        ("a + 1 <> 'x'", 7, "<> compares a number with text"),
        ("(a = 1) = 1", 9, "= compares TRUE and FALSE with a number"),
        # parentheses
        ("(a = 1", 1, r"this \( is not closed"),
        ("a = 1 AND ((b = 2)", 11, r"this \( is not closed"),
        ("a = 1)", 6, r"found '\)'; expected AND, OR or the end"),
        ("()", 2, rf"found '\)'; expected {CONDITION}"),
        ("a = ()", 6, rf"found '\)'; expected {VALUE}"),
        ("(a = 1 b", 8, r"expected AND, OR or \)"),
        # texts
        ("a = 'x", 5, "not closed; end it with '"),
        ("a = 'x''", 5, "not closed"),
        ("a = '", 5, "not closed"),
        ("a = '''", 5, "not closed"),
        ("a = 'x' 'y'", 9, "expected AND, OR or the end"),
        ('a = "x"', 5, "single quotes"),
        ("a = x'", 6, "not closed"),
        # numbers
        (f"a = {TOP + 1}", 5, "does not fit in 64 bits; add .0"),
        (f"a > 1 AND a = -{TOP + 2}", 15, "does not fit in 64 bits"),
        (f"a - {TOP + 1} = 1", 5, "does not fit in 64 bits"),
        ("a = 1e309", 5, "larger than every float"),
        ("a = -1e309", 5, "larger than every float"),
        ("a = 0." + "0" * 400 + "1e800", 5, "larger than every float"),
        ("a = 12x", 5, "not a number"),
        ("a = 0x10", 5, "not a number"),
        ("a = 1_000", 5, "not a number"),
        ("a = 1.2.3", 5, "not a number"),
        ("a = 1e", 5, "not a number"),
        ("a = .", 5, "not a number"),
        ("a = 1L", 5, "not a number"),
        ("a = ٣", 5, "found '٣'"),
        # names
        ("1a = 1", 1, "not a number"),
        (".a = 1", 1, "not a number"),
        ("größe = 1", 3, "found 'ö'"),
        ("a\N{NO-BREAK SPACE}= 1", 2, r"found '\\xa0'"),
        ("a\0 = 1", 2, r"found '\\x00'"),
        ("a = 'x\ud800'", 7, "surrogate"),
    ],
)
def test_a_wrong_filter_is_refused_at_its_column(text: str, column: int, says: str) -> None:
    with pytest.raises(FilterError, match=says) as caught:
        Where(text)
    assert caught.value.column == column
    assert f"column {column}:" in str(caught.value)


def test_an_error_carries_what_was_expected() -> None:
    with pytest.raises(FilterError) as caught:
        Where("temp > 30 AND site = 7up")
    assert caught.value.column == 22
    assert caught.value.expected == VALUE
    with pytest.raises(FilterError) as caught:
        Where("temp > 30 AND site IN 'A'")
    assert (caught.value.column, caught.value.expected) == (23, "( and a list of texts or numbers")
    with pytest.raises(FilterError) as caught:
        Where("site > 'A'")
    assert caught.value.expected == "= or <>"


@pytest.mark.parametrize("text", [None, b"a = 1", 1, ["a = 1"]])
def test_a_filter_is_a_text(text: object) -> None:
    with pytest.raises(FilterError, match=f"where is of type {type(text).__name__}"):
        Where(text)  # type: ignore[arg-type]


def test_a_filter_has_a_longest_length() -> None:
    longest = "a = '" + "x" * (MAX_CHARACTERS - 6) + "'"
    assert len(longest) == MAX_CHARACTERS
    assert Where(longest).matches({"a": "x" * (MAX_CHARACTERS - 6)})
    with pytest.raises(FilterError, match="4097 characters; shorten it to 4096") as caught:
        Where(longest + " ")
    assert caught.value.column == MAX_CHARACTERS + 1
    assert len(str(caught.value)) < 250


def test_a_filter_has_a_largest_number_of_comparisons() -> None:
    most = " AND ".join(["a = 1"] * MAX_COMPARISONS)
    assert Where(most).matches({"a": 1})
    with pytest.raises(FilterError, match="more than 64 comparisons") as caught:
        Where(f"{most} AND b = 2")
    assert caught.value.column == len(most) + len(" AND ") + 1


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        "(" * MAX_CHARACTERS,
        "(" * 2045 + "a = 1",
        "a = 1" + ")" * 4000,
        "a = '" + "''" * 2040,
        "a = '" + "'x" * 2040,
        "'" * 4095,
        "a = " + "1" * 4090,
        "a = " + "1" * 4090 + "x",
        "a = 1." + "1" * 4080 + "x",
        "a = 1e" + "1" * 4080 + "x",
        "a = " + "1e" * 2040,
        "a = " + "1." * 2040,
        "a = 1e" + "9" * 4000,
        "a = " + "-" * 4000,
        "a = " + "-(" * 2000,
        "NOT " * 1000,
        "a IN (" + "'x'," * 1000,
        "a." * 2047 + "= ",
        "1+(" * 1300 + "a",
        "a LIKE '" + "%_" * 2000,
        "a BETWEEN " * 400,
        " " * MAX_CHARACTERS,
        "\0" * MAX_CHARACTERS,
    ],
    ids=lambda text: f"{text[:8]!r}...",
)
def test_a_hostile_filter_is_refused_and_nothing_else_happens(text: str) -> None:
    for _ in range(20):
        with pytest.raises(FilterError) as caught:
            Where(text)
        assert caught.value.column is not None


def test_parentheses_may_be_as_deep_as_the_text_is_long() -> None:
    depth = (MAX_CHARACTERS - 5) // 2
    assert Where("(" * depth + "a = 1" + ")" * depth).matches({"a": 1})
    assert Where("a = " + "(" * 2000 + "1" + ")" * 2000).matches({"a": 1})


def test_values_that_wait_for_their_operators_have_a_bound() -> None:
    nested = "a = 1"
    for _ in range(MAX_COMPARISONS - 1):
        nested = f"a = 1 AND ({nested})"
    assert Where(nested).matches({"a": 1})
    deep = "a"
    for _ in range(200):
        deep = f"1 + ({deep})"
    with pytest.raises(FilterError, match="nested too deeply"):
        Where(f"{deep} = 1")
    assert Where(" + ".join(["1"] * 1000) + " = a").matches({"a": 1000})


def test_a_part_of_a_pattern_is_searched_for_at_every_place() -> None:
    where = Where("a LIKE '%" + "_" * 63 + "x%'")
    assert where.matches({"a": "é" * 70 + "x"})
    assert not where.matches({"a": "é" * 62 + "x"})


@given(st.text(alphabet="aAN Dd=<>()'1.e-+*/,%_$\n\"ORTISLö", max_size=40))
@example("a = 1e")
def test_any_text_is_a_filter_or_a_filter_error_with_a_column(text: str) -> None:
    try:
        where = Where(text)
    except FilterError as error:
        refused = error
    else:
        assert where.matches({}) is (where.evaluate({}) is True)
        return
    assert refused.expected
    assert refused.column in range(1, len(text) + 2)


NUMBERS = st.one_of(
    st.integers(-2, 2),
    st.sampled_from([BOTTOM, TOP, 2**53, 2**53 + 1, -(2**53) - 1]),
    st.sampled_from([-1.0, 0.0, 0.5, 1.0, float(2**53), 2.0**63, 1e300]),
)
VALUES = st.one_of(NUMBERS, st.booleans(), st.sampled_from(["", "'", "a", "b'a", "1", "TRUE"]))
CARRIED = st.one_of(VALUES, st.sampled_from([NAN, INF, -INF]))
NAMES = st.sampled_from(["a", "b", "c.d"])


def family(value: object) -> type:
    return float if type(value) is int else type(value)


def written(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).upper() if isinstance(value, bool) else repr(value)


@st.composite
def comparisons(draw: st.DrawFn) -> tuple[str, str, Any]:
    value = draw(VALUES)
    signs = sorted(SIGNS) if family(value) is float else ["=", "<>"]
    return draw(NAMES), draw(st.sampled_from(signs)), value


def holds(carried: Any, sign: str, value: Any) -> bool:
    """Three-valued comparison as the standard has it, with UNKNOWN as False."""
    if family(carried) is not family(value) or carried != carried:
        return False
    if family(value) is float and math.isfinite(carried):
        return bool(SIGNS[sign](Fraction(carried), Fraction(value)))
    return bool(SIGNS[sign](carried, value))


@given(
    st.lists(comparisons(), min_size=1, max_size=4),
    st.dictionaries(NAMES, CARRIED),
    st.sampled_from([" AND ", " and ", ") AND (", "\nAND\t"]),
    st.sampled_from([" ", "", "  "]),
)
def test_a_filter_finds_what_the_definition_says(
    parts: list[tuple[str, str, Any]], properties: dict[str, Any], glue: str, gap: str
) -> None:
    text = glue.join(f"{name}{gap}{sign}{gap}{written(value)}" for name, sign, value in parts)
    where = Where(f"({text})")
    expected = all(
        name in properties and holds(properties[name], sign, value) for name, sign, value in parts
    )
    assert where.matches(properties) is expected
    assert where.matches(MappingProxyType(properties)) is expected


@given(st.text())
def test_any_text_can_be_written_as_a_value(value: str) -> None:
    where = Where(f"a = {written(value)}")
    assert where.matches({"a": value})
    assert not where.matches({"a": value + "x"})


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_finite_float_can_be_written_as_a_value(value: float) -> None:
    assert Where(f"a = {value!r}").matches({"a": value})


def test_filters_are_frozen_values() -> None:
    where = Where("a = 1")
    assert where.text == "a = 1"
    assert where == Where("a = 1") != Where("a=1")
    assert len({where, Where("a = 1")}) == 1
    assert repr(where) == "Where(text='a = 1')"
    for copied in (pickle.loads(pickle.dumps(where)), copy.deepcopy(where)):
        assert copied == where
        assert copied.matches({"a": 1})
    with pytest.raises(dataclasses.FrozenInstanceError):
        where.text = "b = 1"  # type: ignore[misc]


class Color(enum.IntEnum):
    RED = 1


class Large(enum.IntEnum):
    TOP = 2**63


class Text(enum.StrEnum):
    RED = "red"

    def __str__(self) -> str:
        return "another"


class Real(float):
    def __float__(self) -> float:
        return 7.0


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"site": "A", "temp": 31.5, "n": 3, "on": True},
        {"n": TOP, "m": BOTTOM, "x": NAN, "y": -INF},
        {"_a$.b": "", "$": "größe\0", "android": 1},
        MappingProxyType({"a": 1}),
        {f"p{number}": number for number in range(MAX_PROPERTIES)},
    ],
)
def test_good_properties_pass(properties: object) -> None:
    plain_properties(properties)


def test_what_is_a_plain_value_and_something_else_becomes_plain() -> None:
    values = {"a": Color.RED, "b": Text.RED, "c": Real(1.5), "d": True, "e": 2}
    plain = plain_properties(MappingProxyType(values))
    assert plain == {"a": 1, "b": "red", "c": 1.5, "d": True, "e": 2}
    assert [type(value) for value in plain.values()] == [int, str, float, bool, int]
    assert type(values["a"]) is Color
    numpy = pytest.importorskip("numpy")
    plain = plain_properties({"a": numpy.float64(1.5), "b": numpy.str_("x")})
    assert [type(value) for value in plain.values()] == [float, str]
    with pytest.raises(ConfigError, match=r"property 'a' is of type numpy\.bool"):
        plain_properties({"a": numpy.bool_(True)})


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        (None, "are a NoneType; give a mapping"),
        ([("a", 1)], "are a list"),
        ({f"p{number}": 0 for number in range(MAX_PROPERTIES + 1)}, "65 properties; .* at most 64"),
        ({1: 1}, "name of type int; give a str"),
        ({b"a": 1}, "name of type bytes"),
        ({10**5000: 1}, "name of type int"),
        ({"": 1}, "name '' cannot be written"),
        ({"1a": 1}, "name '1a' cannot be written"),
        ({".a": 1}, "cannot be written"),
        ({"a b": 1}, "cannot be written"),
        ({"a-b": 1}, "cannot be written"),
        ({"a\n": 1}, "cannot be written"),
        ({"größe": 1}, "cannot be written"),
        ({"and": 1}, "name 'and' is a word of the filter language"),
        ({"In": 1}, "is a word of the filter language"),
        ({"NULL": 1}, "is a word of the filter language"),
        ({"a": None}, "property 'a' is None; leave it out"),
        ({"a": b"x"}, "property 'a' is of type bytes; give a str, int, float or bool"),
        ({"a": [1]}, "of type list"),
        ({"a": Fraction(1, 2)}, r"property 'a' is of type fractions\.Fraction; give a str"),
        ({"a": Large.TOP}, "does not fit in 64 bits"),
        ({"ok": 1, "a": TOP + 1}, "property 'a' does not fit in 64 bits"),
        ({"a": BOTTOM - 1}, "does not fit in 64 bits"),
        ({"a": 10**5000}, "does not fit in 64 bits"),
        ({"a": "x\ud800"}, "character 2 is half of a surrogate pair"),
    ],
)
def test_bad_properties_are_refused_with_the_one_that_is_wrong(
    properties: object, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        plain_properties(properties)
    assert caught.value.setting == "properties"


def test_the_names_that_pass_are_those_that_a_filter_can_write() -> None:
    for name in ("a", "_", "$x", "a.b", "not", "true", "a b", "1", "ä", "escape", "a$1"):
        try:
            plain_properties({name: 7})
        except ConfigError:
            with contextlib.suppress(FilterError):
                assert not Where(f"{name} = 7").matches({name: 7})  # a number is no name
        else:
            assert Where(f"{name} = 7").matches({name: 7})


def test_conditions_that_compare_nothing_are_counted_too() -> None:
    assert Where(" AND ".join(["TRUE"] * 63 + ["x LIKE 'a%'"])).matches({"x": "ab"})
    with pytest.raises(FilterError, match="more than 64 conditions"):
        Where(" AND ".join(["TRUE"] * 64 + ["x LIKE 'a%'"]))


def test_an_exponent_of_any_length_has_the_last_word() -> None:
    for large in ("1e9223372036854775807", "0.001e9223372036854775807", "1e99999999999999999999"):
        with pytest.raises(FilterError, match="larger than every float"):
            Where(f"x < {large}")
    for small in (
        "0.001e-9223372036854775808",
        "1e-9223372036854775808",
        "1e-99999999999999999999",
    ):
        assert Where(f"x = {small}").matches({"x": 0})
