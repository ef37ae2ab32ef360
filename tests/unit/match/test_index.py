"""The index of many filters finds what each of them would have found by itself."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon._core import FilterIndex
from antiphon.topics.publisher import encode_properties
from antiphon.topics.where import Where
from unit.match.expressions import conditions, events, written

NAMES = st.sampled_from(["n", "m", "x", "s", "p"])
VALUES = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([-0.0, 0.5, 1.0, 2.5, 2**53, 2**53 + 1, float(2**53), -(2**63), 2**63 - 1]),
    st.sampled_from(["", "a", "b"]),
    st.booleans(),
)


@st.composite
def looked_up(draw: st.DrawFn) -> str:
    """A condition that the index has a place for."""
    name, value = draw(NAMES), draw(VALUES)
    if isinstance(value, bool):
        return draw(st.sampled_from([name, f"NOT {name}", f"{name} = {written(value)}"]))
    plain = written(value).strip("()")
    if isinstance(value, str):
        return draw(st.sampled_from([f"{name} = {plain}", f"{name} IN ({plain}, 'c', 'a')"]))
    other = draw(st.integers(-3, 3))
    forms = ["{0} = {1}", "{0} < {1}", "{0} >= {1}", "{1} > {0}", "{1} <= {0}", "{0} IN ({1}, {2})"]
    forms += ["{0} BETWEEN {1} AND {2}", "{0} > {2} AND {0} <= {1}", "{0} BETWEEN {2} AND {1}"]
    return draw(st.sampled_from(forms)).format(name, plain, other)


FILTERS = st.lists(st.one_of(looked_up(), conditions), min_size=1, max_size=4).map(
    lambda parts: " AND ".join(f"({part})" for part in parts)
)
CARRIED = st.dictionaries(NAMES, VALUES)


@settings(max_examples=400)
@given(
    st.dictionaries(st.integers(0, 2**64 - 1), FILTERS, max_size=20),
    st.lists(st.one_of(CARRIED, events), max_size=4),
    st.data(),
)
def test_the_index_finds_what_the_naive_evaluator_finds(
    filters: dict[int, str], asked: list[dict[str, Any]], data: st.DataObject
) -> None:
    index = FilterIndex()
    wheres = {number: Where(text) for number, text in filters.items()}
    for number, where in wheres.items():
        assert index.add(number, where.core)

    def check() -> None:
        assert len(index) == len(wheres)
        for event in asked:
            encoded = encode_properties(event)
            expected = [number for number, where in wheres.items() if where.evaluate(event) is True]
            assert sorted(index.match(encoded)) == sorted(expected)

    check()
    for number in data.draw(st.sets(st.sampled_from(sorted(wheres)))) if wheres else ():
        assert index.remove(number)
        assert not index.remove(number)
        del wheres[number]
    check()


def test_an_id_is_used_once() -> None:
    index = FilterIndex()
    assert index.add(7, Where("a = 1").core)
    assert not index.add(7, Where("a = 2").core)
    assert index.match(encode_properties({"a": 2})) == []
    assert index.remove(7)
    assert index.add(7, Where("a = 2").core)
    assert index.match(encode_properties({"a": 2})) == [7]


def test_very_many_filters_come_and_go() -> None:
    index = FilterIndex()
    chance = random.Random(7)
    wheres: dict[int, Where] = {}
    for number in range(20_000):
        low, least = chance.randrange(1000), number % 7
        wheres[number] = Where(
            f"symbol = 'S{number % 500}' AND price BETWEEN {low} AND {low + 20} AND qty > {least}"
        )
        index.add(number, wheres[number].core)
    for _ in range(2):
        for _ in range(30):
            event = {
                "symbol": f"S{chance.randrange(500)}",
                "price": chance.randrange(1000),
                "qty": chance.randrange(9),
            }
            expected = {number for number, where in wheres.items() if where.matches(event)}
            assert set(index.match(encode_properties(event))) == expected
        for number in chance.sample(sorted(wheres), len(wheres) * 3 // 4):
            del wheres[number]
            assert index.remove(number)
    for number in wheres:
        assert index.remove(number)
    assert len(index) == 0


@pytest.mark.parametrize("order", ["by chance", "upward", "all alike"])
@pytest.mark.parametrize("sides", [2, 3, 4])
def test_ranges_of_several_properties_come_and_go(sides: int, order: str) -> None:
    """Enough of them for several trees, which are joined, struck out of and made anew."""
    chance, names = random.Random(sides), "abcd"[:sides]
    forms = ["{0} > {1}", "{0} <= {1}", "{0} BETWEEN {1} AND {1} + {2}", "{0} BETWEEN {1} AND {3}"]

    def made(number: int) -> Where:
        parts = []
        for name in names:
            low = {"by chance": chance.randrange(100), "upward": number // 8, "all alike": 50}[
                order
            ]
            form = chance.choice(forms) if order != "all alike" else forms[0]
            high = low + chance.choice((0, 1, 10, 60))
            parts.append(form.format(name, low, 0, high))
        return Where(" AND ".join(parts))

    index, wheres, count = FilterIndex(), {}, 0

    def check() -> None:
        assert len(index) == len(wheres)
        for _ in range(6):
            event = {name: chance.choice((chance.randrange(110), 50.5)) for name in names}
            expected = sorted(number for number, where in wheres.items() if where.matches(event))
            assert sorted(index.match(encode_properties(event))) == expected

    for more, fewer in ((700, 100), (50, 600), (300, 349), (40, 41)):
        for _ in range(more):
            wheres[count] = made(count)
            assert index.add(count, wheres[count].core)
            count += 1
        check()
        for number in chance.sample(sorted(wheres), fewer):
            del wheres[number]
            assert index.remove(number)
        check()
    assert not wheres


def test_properties_that_are_none_are_looked_at_as_none() -> None:
    index = FilterIndex()
    index.add(1, Where("a IS NULL").core)
    index.add(2, Where("a = 1").core)
    for encoded in (b"", b"\x80", b"\xff", b"\x81\xa1a", b"\x81\xa1a\x01x", b"\x91\x01", b"\xc0"):
        assert index.match(encoded) == [1], encoded
    assert index.match(b"\x82\xa1a\x02\xa1a\x01") == [2]  # the last word counts


def test_what_holds_a_filter_in_the_core_holds_no_object_of_python() -> None:
    """It is let go by threads without the interpreter's lock, which must not wait for it."""
    index, read = FilterIndex(), Where("n = 1").core
    before = sys.getrefcount(read)
    assert index.add(1, read)
    assert sys.getrefcount(read) == before
    del read
    assert index.match(encode_properties({"n": 1})) == [1]
