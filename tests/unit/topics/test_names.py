from __future__ import annotations

import copy
import dataclasses
import pickle
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ConfigError
from antiphon.topics.names import (
    MAX_NAME_BYTES,
    RESERVED,
    Pattern,
    PatternIndex,
    TopicIndex,
    check_topic,
)

# Few levels and many stars: then names and patterns meet, and the stars compete for levels.
LEVELS = st.sampled_from(["a", "b", "ab", "$sys"])
STARS = st.one_of(LEVELS, st.sampled_from(["*", "**", "**"]))
NAMES = st.lists(LEVELS, min_size=1, max_size=6).map("/".join)
PATTERNS = st.lists(STARS, min_size=1, max_size=6).map("/".join)
KEYS = st.integers(0, 3)
PAIRS = st.lists(st.tuples(st.booleans(), PATTERNS, KEYS), max_size=30)
NAME_PAIRS = st.lists(st.tuples(st.booleans(), NAMES, KEYS), max_size=30)

EVIL = "**/a/" * 170 + "**/b"
DEEP = "/".join("a" * 512)


def naive(pattern: list[str], name: list[str]) -> bool:
    """The definition, written down."""
    if not pattern:
        return not name
    first, rest = pattern[0], pattern[1:]
    if first == "**":
        return any(naive(rest, name[taken:]) for taken in range(len(name) + 1))
    return bool(name) and first in ("*", name[0]) and naive(rest, name[1:])


def fits(pattern: str, name: str) -> bool:
    levels = pattern.split("/"), name.split("/")
    if levels[1][0] in RESERVED and levels[0][0] != levels[1][0]:
        return False
    return naive(*levels)


def fastest(function: Callable[[], object], times: int) -> float:
    """Seconds of the best of several runs: the others were disturbed."""
    best = float("inf")
    for _ in range(times):
        begin = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - begin)
    return best


@pytest.mark.parametrize(
    "name",
    [
        "x",
        "plant/7/temp",
        "$dead/billing",
        "with space/ /and.dots",
        "größe/温度",
        "x" * MAX_NAME_BYTES,
        "ä" * (MAX_NAME_BYTES // 2),
        "\N{LINE SEPARATOR}",
    ],
)
def test_a_good_name_is_given_back(name: str) -> None:
    assert check_topic(name) == name
    assert Pattern(name).literal


BAD_IN_BOTH = [
    ("", "empty; write"),
    ("/a", "in front"),
    ("a/", "at the end"),
    ("/", "in front"),
    ("a//b", "an empty level"),
    ("a\nb", r"character 2 is the control character '\\n'"),
    ("a/b\0", "character 4"),
    ("a\x7f", "control character"),
    ("a\x85", "control character"),
    ("a\ud800", "character 2 is half of a surrogate pair"),
    ("x" * (MAX_NAME_BYTES + 1), "takes 1025 bytes; shorten it to 1024"),
    ("ä" * (MAX_NAME_BYTES // 2) + "x", "takes 1025 bytes"),
    (None, "of type NoneType: not a text"),
    (b"a", "of type bytes: not a text"),
    (42, "of type int: not a text"),
    pytest.param(10**5000, "of type int: not a text", id="longer than int() prints"),
]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        *BAD_IN_BOTH,
        ("a/*", "belongs to patterns"),
        ("**", "belongs to patterns"),
        ("a*b", "belongs to patterns"),
    ],
)
def test_a_bad_name_is_refused_with_what_is_wrong(name: object, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"^topic .*{hint}") as caught:
        check_topic(name)
    assert caught.value.setting == "topic"
    assert caught.value.value is name


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        *BAD_IN_BOTH,
        ("a*b", "part of the level 'a[*]b'; let it stand alone"),
        ("a/b*", "stand alone"),
        ("a/***", "stand alone"),
        ("**a/b", "stand alone"),
    ],
)
def test_a_bad_pattern_is_refused_with_what_is_wrong(text: object, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"^pattern .*{hint}") as caught:
        Pattern(text)  # type: ignore[arg-type]
    assert caught.value.setting == "pattern"
    assert caught.value.value is text


def test_an_error_shows_only_the_ends_of_a_long_name() -> None:
    with pytest.raises(ConfigError) as caught:
        check_topic("x" * 10**6)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("plant/7/temp", "plant/7/temp", True),
        ("plant/7/temp", "Plant/7/temp", False),
        ("plant/*/temp", "plant/7/temp", True),
        ("plant/*/temp", "plant/temp", False),
        ("plant/*/temp", "plant/7/8/temp", False),
        ("*", "plant", True),
        ("*", "plant/7", False),
        ("*/*", "plant/7", True),
        ("**", "plant", True),
        ("**", "plant/7/temp", True),
        ("plant/**", "plant", True),
        ("plant/**", "plant/7/temp", True),
        ("plant/**", "plants/7", False),
        ("**/temp", "temp", True),
        ("**/temp", "plant/7/temp", True),
        ("**/temp", "plant/7/temp/raw", False),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/b/b/a/b", True),
        ("a/**/b", "a", False),
        ("**/**", "a", True),
        ("**/*/**", "a", True),
        ("*/**/*", "a", False),
        ("**/a/**/a/**/b", "a/a/b", True),
        ("**/a/**/a/**/b", "a/b", False),
        ("$dead/**", "$dead/x", True),
        ("**", "$dead/x", False),
        ("*/x", "$sys/x", False),
        ("$sys/**", "$sys/x/y", True),
        ("$sys/**", "$sys", True),
        ("**", "$other/x", True),
        ("a.c", "abc", False),
    ],
)
def test_a_star_is_one_level_and_two_are_any_number(
    pattern: str, name: str, expected: bool
) -> None:
    assert fits(pattern, name) is expected
    assert Pattern(pattern).matches(name) is expected


@given(PATTERNS, NAMES)
def test_a_pattern_matches_what_its_definition_says(pattern: str, name: str) -> None:
    assert Pattern(pattern).matches(name) is fits(pattern, name)


@given(PATTERNS)
def test_literal_means_without_a_star(pattern: str) -> None:
    assert Pattern(pattern).literal is ("*" not in pattern)


def test_patterns_are_frozen_values() -> None:
    pattern = Pattern("a/*")
    assert pattern == Pattern("a/*") != Pattern("a/**")
    assert Pattern("*/**") != Pattern("**/*")
    assert len({pattern, Pattern("a/*")}) == 1
    assert repr(pattern) == "Pattern(text='a/*')"
    for copied in (pickle.loads(pickle.dumps(pattern)), copy.deepcopy(pattern)):
        assert copied == pattern
        assert copied.matches("a/b")
    with pytest.raises(dataclasses.FrozenInstanceError):
        pattern.text = "b"  # type: ignore[misc]


@pytest.mark.timeout(20)
def test_no_pattern_is_expensive_to_match() -> None:
    # What goes back over the name for every "**" would not end within anybody's life.
    pattern = Pattern(EVIL)
    assert len(EVIL) < MAX_NAME_BYTES
    assert not pattern.matches(DEEP)
    assert pattern.matches(DEEP[:-1] + "b")
    index: PatternIndex[str] = PatternIndex()
    names: TopicIndex[str] = TopicIndex()
    for stars in (EVIL, EVIL.replace("a", "*"), "/".join(["**"] * 340), "/".join(["*"] * 512)):
        index.add(Pattern(stars), stars[:12])
    for depth in range(1, 512):
        names.add("/".join("a" * depth), "short")
    names.add(DEEP[:-1] + "b", "deep")
    assert index.matching(DEEP) == {"**/**/**/**/", "*/*/*/*/*/*/"}
    assert len(index.matching(DEEP[:-1] + "b")) == 4
    assert names.matching(pattern) == {"deep"}


@given(PAIRS, st.lists(NAMES, min_size=1, max_size=5))
def test_an_index_of_patterns_finds_what_asking_each_would(
    pairs: list[tuple[bool, str, int]], names: list[str]
) -> None:
    index: PatternIndex[int] = PatternIndex()
    model: set[tuple[str, int]] = set()
    for add, text, key in pairs:
        if add:
            assert index.add(Pattern(text), key) is ((text, key) not in model)
            model.add((text, key))
        else:
            assert index.remove(Pattern(text), key) is ((text, key) in model)
            model.discard((text, key))
        assert len(index) == len(model)
    for name in names:
        assert index.matching(name) == {key for text, key in model if fits(text, name)}


@given(NAME_PAIRS, st.lists(PATTERNS, min_size=1, max_size=5))
def test_an_index_of_names_finds_what_asking_each_would(
    pairs: list[tuple[bool, str, int]], patterns: list[str]
) -> None:
    index: TopicIndex[int] = TopicIndex()
    model: set[tuple[str, int]] = set()
    for add, name, key in pairs:
        if add:
            assert index.add(name, key) is ((name, key) not in model)
            model.add((name, key))
        else:
            assert index.remove(name, key) is ((name, key) in model)
            model.discard((name, key))
        assert len(index) == len(model)
    for text in patterns:
        found = index.matching(Pattern(text))
        assert found == {key for name, key in model if fits(text, name)}
    assert index.matching(Pattern("**")) == {key for name, key in model if fits("**", name)}


@given(st.permutations(["**", "a/*", "a/*/b", "a/**", "a/**/b", "*/**/a", "a", "a/b"]))
def test_an_index_of_patterns_that_was_emptied_holds_nothing(order: list[str]) -> None:
    index: PatternIndex[int] = PatternIndex()
    for text in order:
        index.add(Pattern(text), 1)
    for text in sorted(order):
        index.remove(Pattern(text), 1)
    assert len(index) == 0
    assert index._root.empty
    assert not index._literal


@given(st.permutations(["a", "a/b", "a/b/c", "a/d", "b", "b/a/a/a"]))
def test_an_index_of_names_that_was_emptied_holds_nothing(order: list[str]) -> None:
    index: TopicIndex[int] = TopicIndex()
    for name in order:
        index.add(name, 1)
    for name in sorted(order):
        index.remove(name, 1)
    assert len(index) == 0
    assert not index._root.children
    assert not index._names


def test_patterns_that_match_the_same_are_still_two() -> None:
    index: PatternIndex[str] = PatternIndex()
    for text in ("**/*", "*/**", "**/**/*"):
        assert index.add(Pattern(text), "key")
    assert index.remove(Pattern("**/*"), "key")
    assert not index.remove(Pattern("**/*"), "key")
    assert len(index) == 2
    assert index.matching("a") == {"key"}


def test_what_an_index_gives_belongs_to_the_caller() -> None:
    patterns: PatternIndex[int] = PatternIndex()
    names: TopicIndex[int] = TopicIndex()
    patterns.add(Pattern("a"), 1)
    patterns.add(Pattern("*"), 2)
    names.add("a", 1)
    for _ in range(2):
        mine = patterns.matching("a")
        assert mine == {1, 2}
        mine.clear()
        for text in ("a", "*", "**"):
            found = names.matching(Pattern(text))
            assert found == {1}
            found.clear()


def test_fifty_thousand_literals_do_not_slow_a_lookup() -> None:
    few: PatternIndex[int] = PatternIndex()
    many: PatternIndex[int] = PatternIndex()
    names: TopicIndex[int] = TopicIndex()
    for number in range(50_000):
        many.add(Pattern(f"plant/{number}/temp"), number)
        names.add(f"plant/{number}/temp", number)
    for index in (few, many):
        index.add(Pattern("plant/7/temp"), 7)
        index.add(Pattern("plant/*/temp"), -1)
        index.add(Pattern("**/temp"), -2)

    def look(index: PatternIndex[int]) -> None:
        for _ in range(100):
            assert index.matching("plant/7/temp") == {7, -1, -2}

    # A scan would be some thousand times slower; the factor is for a busy machine.
    assert fastest(lambda: look(many), 20) < 20 * fastest(lambda: look(few), 20)
    literal, beginning, everything = Pattern("plant/7/temp"), Pattern("plant/7/*"), Pattern("**")
    assert names.matching(literal) == names.matching(beginning) == {7}
    assert len(names.matching(everything)) == 50_000
    scan = fastest(lambda: names.matching(everything), 3)
    assert fastest(lambda: names.matching(literal), 20) < scan / 10
    assert fastest(lambda: names.matching(beginning), 20) < scan / 10


# --- one pattern within another -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("**", "a", True),
        ("**", "a/*/b", True),
        ("**", "**", True),
        ("**", "$sys/broker", False),
        ("**", "$sys/**", False),
        ("$sys/**", "$sys/clients/*", True),
        ("plant/**", "plant/7/temp", True),
        ("plant/**", "plant/*/temp", True),
        ("plant/**", "**", False),
        ("plant/**", "*/7", False),
        ("plant/*/temp", "plant/*/temp", True),
        ("plant/*/temp", "plant/**/temp", False),
        ("plant/*/temp", "plant/**", False),
        ("plant/7/temp", "plant/*/temp", False),
        ("a/**/b", "a/**/c/b", True),
        ("a/**/b", "a/**/b/c", False),
        ("**/a/**", "a", True),
        ("**/a/**", "*/a/*", True),
        ("**/a/**", "*/b/*", False),
    ],
)
def test_whether_a_pattern_lies_within_another(wide: str, narrow: str, expected: bool) -> None:
    assert Pattern(wide).covers(Pattern(narrow)) is expected


@given(PATTERNS, PATTERNS, st.lists(NAMES, min_size=1, max_size=20))
def test_what_a_pattern_within_another_means_is_meant_by_both(
    wide: str, narrow: str, names: list[str]
) -> None:
    if Pattern(wide).covers(Pattern(narrow)):
        for name in names:
            assert not fits(narrow, name) or fits(wide, name)


@given(PATTERNS)
def test_a_pattern_lies_within_itself(text: str) -> None:
    assert Pattern(text).covers(Pattern(text))


@pytest.mark.timeout(20)
def test_comparing_evil_patterns_ends_soon() -> None:
    began = time.perf_counter()
    Pattern(EVIL).covers(Pattern("*/" * 400 + "**"))
    Pattern(EVIL).covers(Pattern(EVIL))
    assert time.perf_counter() - began < 10
