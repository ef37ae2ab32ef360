"""Numbers and tags as topics: how they are written inside, and that no name is one of them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import ConfigError, Tag
from antiphon.topics.kinds import check_text, pattern_of, text_of, topic_of
from antiphon.topics.names import MAX_NAME_BYTES, Pattern, PatternIndex, TopicIndex, check_topic

TOP, BOTTOM = 2**63 - 1, -(2**63)

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
TAGS = st.builds(Tag, TEXTS, TEXTS)
LEVELS = st.text("ab%/*", min_size=1, max_size=3)
NAMES = st.lists(st.text("ab%", min_size=1, max_size=2), min_size=1, max_size=3).map("/".join)
TOPICS = st.one_of(
    st.integers(-3, 3), st.integers(BOTTOM, TOP), st.builds(Tag, LEVELS, LEVELS), NAMES
)
PATTERNS = st.one_of(
    TOPICS,
    st.builds(Tag, LEVELS),
    st.lists(st.sampled_from(["*", "**", "a", "b", "int", "tag"]), min_size=1, max_size=4).map(
        "/".join
    ),
)


@given(TOPICS | TAGS)
def test_a_topic_comes_back_as_it_was_given(topic: Any) -> None:
    text = text_of(topic)
    back = topic_of(text)
    assert back == topic
    assert type(back) is type(topic)
    assert check_text(text) == text
    assert pattern_of(topic).literal
    assert pattern_of(topic).text == text
    if not isinstance(topic, str):
        with pytest.raises(ConfigError):
            check_topic(text)
        with pytest.raises(ConfigError):
            text_of(text)
        with pytest.raises(ConfigError):
            pattern_of(text)


def meant(pattern: Any, topic: Any) -> bool:
    """Without texts and indexes."""
    if isinstance(pattern, Tag) and pattern.value is None:
        return isinstance(topic, Tag) and topic.name == pattern.name
    if isinstance(pattern, str) and isinstance(topic, str):
        return Pattern(pattern).matches(topic)
    return type(pattern) is type(topic) and bool(pattern == topic)


@given(st.lists(PATTERNS, max_size=8), st.lists(TOPICS, max_size=8))
def test_the_indexes_find_what_is_meant(patterns: list[Any], topics: list[Any]) -> None:
    by_name: PatternIndex[int] = PatternIndex()
    by_pattern: TopicIndex[int] = TopicIndex()
    for number, pattern in enumerate(patterns):
        by_name.add(pattern_of(pattern), number)
    for number, topic in enumerate(topics):
        by_pattern.add(text_of(topic), number)
    for topic in topics:
        expected = {i for i, pattern in enumerate(patterns) if meant(pattern, topic)}
        assert by_name.matching(text_of(topic)) == expected
    for pattern in patterns:
        expected = {i for i, topic in enumerate(topics) if meant(pattern, topic)}
        assert by_pattern.matching(pattern_of(pattern)) == expected
        for topic in topics:
            assert pattern_of(pattern).matches(text_of(topic)) == meant(pattern, topic)


def test_no_star_stands_for_what_is_no_name() -> None:
    for pattern in ("**", "*/**", "**/42", "*/*/*", "**/int/**"):
        for topic in (42, Tag("int", "42")):
            assert not Pattern(pattern).matches(text_of(topic))
    assert Pattern("int/*").matches("int/42")


def test_a_tag_is_a_value() -> None:
    tag = Tag("room", "blue")
    assert pickle.loads(pickle.dumps(tag)) == tag == copy.deepcopy(tag)
    assert {tag: 1}[Tag("room", "blue")] == 1
    assert str(tag) == "room=blue"
    assert str(Tag("room")) == "room=*"
    assert pattern_of(Tag("room")).matches(text_of(tag))
    assert not pattern_of(Tag("room", "*")).matches(text_of(tag))
    assert not pattern_of(Tag("roo")).matches(text_of(tag))


@pytest.mark.parametrize("number", [TOP + 1, BOTTOM - 1, 2**64, 10**30])
def test_a_number_has_64_bits(number: int) -> None:
    for use in (text_of, pattern_of):
        with pytest.raises(ConfigError, match="64 bits"):
            use(number)
    assert topic_of(text_of(TOP)) == TOP
    assert topic_of(text_of(BOTTOM)) == BOTTOM


@pytest.mark.parametrize(
    "wrong",
    [True, None, 1.5, b"a", ("a", "b"), "/int/42", "/tag/a/b", "/a", "a//b", ""],
)
def test_what_is_no_topic_is_refused(wrong: object) -> None:
    for use in (text_of, pattern_of):
        with pytest.raises(ConfigError):
            use(wrong)


def test_a_tag_without_a_value_cannot_be_published() -> None:
    with pytest.raises(ConfigError, match="has no value"):
        text_of(Tag("room"))
    with pytest.raises(ConfigError, match="belongs to patterns"):
        check_text("/tag/room/*")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("", "a"),
        ("a", ""),
        (5, "a"),
        ("a", 5),
        (None, "a"),
        ("a\n", "b"),
        ("a", "\x7f"),
        ("a", "\ud800"),
        ("a" * MAX_NAME_BYTES, "b"),
        ("a", "/" * (MAX_NAME_BYTES // 3)),
    ],
)
def test_a_tag_is_two_texts(name: Any, value: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        Tag(name, value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "/",
        "/int",
        "/int/",
        "/int/x",
        "/int/007",
        "/int/-0",
        "/int/+1",
        "/int/1/2",
        "/int/*",
        "/int/9223372036854775808",
        "/int/99999999999999999999999",
        "/int/\u0661",
        "/tag/a",
        "/tag/a/",
        "/tag//b",
        "/tag/a/b/c",
        "/tag/*/b",
        "/tag/a/%41",
        "/tag/a/**",
        "/tag/a/b*",
        "/other/a",
        "//int/1",
    ],
)
def test_a_peer_can_say_no_other_text(text: str) -> None:
    with pytest.raises(ConfigError):
        check_text(text)
    with pytest.raises(ConfigError):
        Pattern(text)
