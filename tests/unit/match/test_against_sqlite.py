"""Random well-typed filters mean what SQLite says that they mean.

Left out here, and in the table of `test_conformance`: integers that run over (SQLite goes on in
floats), unlike types (SQLite orders types, and makes numbers of texts), ordered texts (refused), an
ESCAPE before other characters (refused), and a property that stands for a truth and is none.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings

from antiphon.topics.publisher import encode_properties
from antiphon.topics.where import Where
from unit.match.expressions import conditions, events

NAMES = ("n", "m", "x", "s", "t", "p", "q")


@pytest.fixture(scope="module")
def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.execute("PRAGMA case_sensitive_like = ON")
    yield connection
    connection.close()


def answer(database: sqlite3.Connection, text: str, event: dict[str, Any]) -> bool | None:
    columns = ", ".join(f"? AS {name}" for name in NAMES)
    (found,) = database.execute(
        f"SELECT {text} FROM (SELECT {columns})", [event.get(name) for name in NAMES]
    ).fetchone()
    return None if found is None else bool(found)


@settings(max_examples=1500)
@given(conditions, events)
def test_a_filter_says_what_sqlite_says(
    database: sqlite3.Connection, text: str, event: dict[str, Any]
) -> None:
    where = Where(text)
    expected = answer(database, text, event)
    assert where.evaluate(event) is expected
    encoded = encode_properties(event)
    assert where.core.evaluate_encoded(encoded) is expected
    assert where.core.matches_encoded(encoded) is (expected is True)


def test_the_oracle_knows_what_we_take_it_for(database: sqlite3.Connection) -> None:
    assert answer(database, "s LIKE 'A%'", {"s": "abc"}) is False
    assert answer(database, "x IS NULL", {"x": math.nan}) is True
    assert answer(database, "n / 2 = 3", {"n": 7}) is True
    assert answer(database, "n / 0 = 3", {"n": 7}) is None
