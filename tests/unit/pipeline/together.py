"""Tests that put a few rows into a table, evaluated together.

The plan of a table takes Spark a second or two, a few rows more or less take nothing. So such a
test is a generator: it yields what it puts in, and is given what came out. What all tests of a
module yield is evaluated once, each as a campaign of its own::

    TESTS = Together()
    made = TESTS.fixture()

    @TESTS.add
    def test_one_message_has_no_spacing() -> Asks:
        (row,) = yield put(jitter, [run()], latency=[delay(9)])
        assert row["out_stddev_us"] is None

The first half of a test runs when its module is read. That campaigns do not meet is itself a test,
of every table that has more than one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from antiphon.pipeline.inputs import Inputs
from unit.pipeline.campaigns import inputs

Row = dict[str, Any]
Rows = Sequence[Row]
Table = Callable[[Inputs], DataFrame]


@dataclass(frozen=True)
class Put:
    """What goes into a table."""

    table: Table
    rows: dict[str, Rows]


Asks = Generator[Put | tuple[Put, ...], Any, None]


def put(table: Table, runs: Rows, samples: Rows = (), latency: Rows = (), topics: Rows = ()) -> Put:
    return Put(table, {"runs": runs, "samples": samples, "latency": latency, "topics": topics})


def in_order(rows: Rows, *names: str) -> list[Row]:
    """By these columns, as Spark does it: null comes first."""
    return sorted(rows, key=lambda row: [(row[name] is not None, row[name]) for name in names])


class Together:
    """The tests of a module."""

    def __init__(self) -> None:
        self._cases: list[Put] = []

    def add(self, test: Callable[[], Asks]) -> Callable[[dict[int, list[Row]]], None]:
        running = test()
        asked = next(running)
        several = asked if isinstance(asked, tuple) else (asked,)
        first = len(self._cases)
        self._cases += several

        def finish(made: dict[int, list[Row]]) -> None:
            found = [made[first + at] for at in range(len(several))]
            with pytest.raises(StopIteration):
                running.send(found if isinstance(asked, tuple) else found[0])

        # Not by functools.wraps: pytest would take it for the generator that it wraps.
        finish.__name__, finish.__doc__ = test.__name__, test.__doc__
        return finish

    def fixture(self) -> Any:
        """To be called ``made`` in the module."""

        @pytest.fixture(scope="module", name="made")
        def make(spark: SparkSession) -> dict[int, list[Row]]:
            return self._made(spark)

        return make

    def _made(self, spark: SparkSession) -> dict[int, list[Row]]:
        found: dict[int, list[Row]] = {number: [] for number in range(len(self._cases))}
        for table in dict.fromkeys(case.table for case in self._cases):
            together: dict[str, list[Row]] = {}
            for number, case in enumerate(self._cases):
                for kind, rows in case.rows.items() if case.table is table else ():
                    named = [{**row, "campaign": f"{number} {row['campaign']}"} for row in rows]
                    together.setdefault(kind, []).extend(named)
            for row in table(inputs(spark, **together)).collect():
                number, campaign = row["campaign"].split(" ")
                found[int(number)].append({**row.asDict(), "campaign": campaign})
        return found
