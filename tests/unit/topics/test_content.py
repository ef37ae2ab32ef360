"""Expressions over content: what is accepted, and where a mistake is said to be."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from antiphon import AllOf, FilterError, Regex, XPath
from antiphon.topics.content import MAX_CONDITIONS, Condition, check_condition, read_where
from antiphon.topics.regexes import MAX_REGEX_CHARACTERS
from antiphon.topics.xpaths import MAX_XPATH_CHARACTERS


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("a(b", 4, ")"),
        ("ab)c", 3, "("),
        ("x)(y", 2, "("),
        (r"\)a(b)c)d", 8, "("),
        ("a[bc", 2, "]"),
        ("*a", 1, "repeat"),
        ("ab**", 3, "one sign"),
        ("a{1001}", 2, "1000"),
        ("((a{100}){100}){100}", 4, "1000"),
        ("x(?=y)", 2, "look-around"),
        (r"(a)\1", 4, "back-references"),
        ("é[z-a]", 3, "upward"),
        ("abc\\", 4, "after the \\"),
        ("(?P<n", 1, "(?P<name>"),
        ("(?z)a", 1, "flags"),
        ("\ud800", 1, "whole characters"),
        ("a" * (MAX_REGEX_CHARACTERS + 1), MAX_REGEX_CHARACTERS + 1, "at most"),
        (r"(\pL{1,50}){1,20}" * 50, 1, "less memory"),
    ],
)
def test_a_mistake_in_an_expression_has_a_column(text: str, column: int, expected: str) -> None:
    with pytest.raises(FilterError) as raised:
        Regex(text)
    assert raised.value.column == column
    assert raised.value.expected is not None
    assert expected in raised.value.expected
    assert f"column {column}" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("/order[", 8, "]"),
        ("/order[total > 100", 19, "]"),
        ("/order[total > 100]]", 20, "the end"),
        ("/order)or(true()", 7, "the end"),
        ("/order[(total]", 14, ")"),
        ("//a = 'x", 7, "'"),
        ("foo(1)", 1, "starts-with"),
        ("/a[document('x')]", 4, "starts-with"),
        ("//x:y", 3, "namespaces={'x': ...}"),
        ("/a[$b > 1]", 4, "no variables"),
        ("/over::a", 2, "ancestor"),
        ("1 +", 4, "XPath 1.0"),
        ("/a/é//", 7, "XPath 1.0"),
        ("", 1, "/order"),
        ("  ", 1, "/order"),
        ("count('x')", 1, "types"),
        ("a\x00", 2, "XML"),
        ("(" * 17 + "1" + ")" * 17, 17, "at most 16"),
        ("/" + "a" * MAX_XPATH_CHARACTERS, MAX_XPATH_CHARACTERS + 1, "at most"),
    ],
)
def test_a_mistake_in_xpath_has_a_column(text: str, column: int, expected: str) -> None:
    with pytest.raises(FilterError) as raised:
        XPath(text)
    assert raised.value.column == column
    assert raised.value.expected is not None
    assert expected in raised.value.expected
    assert f"column {column}" in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "/order[total > 100]",
        "//item[@price div 2 >= 10 and not(@gone)] | //gift",
        "count(//item) > 3 or /order/@urgent = 'yes'",
        "ancestor-or-self::node()/child::text()[starts-with(., 'a(b')]",
        "processing-instruction('x') or comment()",
        "/*[local-name() = 'order'][1]/following-sibling::*",
        "'a text with ) and $x and y:z in it'",
        "/a[b = 1 and (c or d) mod (2)]",
        ".5 + 1. > -(1)",
    ],
)
def test_xpath_as_it_is_written_elsewhere_is_accepted(text: str) -> None:
    assert XPath(text).text == text


@pytest.mark.parametrize(
    "namespaces",
    [
        {"": "urn:a"},
        {None: "urn:a"},
        {"a b": "urn:a"},
        {"a": ""},
        {"a": 1},
        {f"a{n}": "urn:a" for n in range(17)},
        "urn:a",
    ],
)
def test_namespaces_are_prefixes_with_names(namespaces: Any) -> None:
    with pytest.raises(FilterError):
        XPath("//a", namespaces=namespaces)


def test_a_filter_is_a_value() -> None:
    for one in (Regex("a"), XPath("//x:a", {"x": "urn:x"}), AllOf("a = 1", Regex("b"))):
        assert pickle.loads(pickle.dumps(one)) == one == copy.deepcopy(one)
        assert hash(one) == hash(copy.deepcopy(one))
    assert Regex("a") != Regex("b")
    assert repr(AllOf("a = 1", Regex("b"))) == "AllOf('a = 1', Regex(text='b'))"


def test_filters_are_joined() -> None:
    assert read_where(None) == (None, ())
    assert read_where("a = 1") == ("a = 1", ())
    assert read_where(Regex("x")) == (None, (Condition("regex", "x"),))
    joined = AllOf("a = 1", Regex("x"), AllOf("b = 2 OR c = 3", XPath("//n:y", {"n": "urn:n"})))
    assert read_where(joined) == (
        "(a = 1) AND (b = 2 OR c = 3)",
        (Condition("regex", "x"), Condition("xpath", "//n:y", (("n", "urn:n"),))),
    )
    assert read_where(AllOf(Regex("x"), Regex("x"))) == (None, (Condition("regex", "x"),))


def test_what_is_no_filter_is_refused() -> None:
    for wrong in (5, b"a = 1", ["a = 1"]):
        with pytest.raises(FilterError, match="give a text such as"):
            read_where(wrong)
    with pytest.raises(FilterError, match="AllOf of nothing"):
        AllOf()
    with pytest.raises(FilterError, match=f"at most {MAX_CONDITIONS}"):
        AllOf(*(Regex(str(number)) for number in range(MAX_CONDITIONS + 1)))
    with pytest.raises(FilterError, match="column 4"):
        AllOf("a =", Regex("x"))
    with pytest.raises(FilterError, match="Regex of type bytes"):
        Regex(b"x")  # type: ignore[arg-type]
    with pytest.raises(FilterError, match="XPath of type int"):
        XPath(1)  # type: ignore[arg-type]
    deep: Any = Regex("x")
    for _ in range(MAX_CONDITIONS - 1):
        deep = AllOf(deep)
    with pytest.raises(FilterError):
        AllOf(AllOf(deep))


def test_conditions_of_a_peer_are_checked_as_well() -> None:
    check_condition(Condition("regex", "a|b"))
    check_condition(Condition("xpath", "//x:a", (("x", "urn:x"),)))
    for wrong in (
        Condition("regex", "a("),
        Condition("xpath", "//a["),
        Condition("xpath", "//x:a"),
        Condition("xpath", "//a", (("", "urn:x"),)),
    ):
        with pytest.raises(FilterError):
            check_condition(wrong)
