"""The stage ``clean``, on rows made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from antiphon.pipeline import clean
from antiphon.pipeline.read import Read
from antiphon.pipeline.schemas import CLEAN, FACTS, FILES, RUNS
from unit.pipeline.campaigns import frame
from unit.pipeline.made import SECOND, message, sample

NUMBERS = {"samples": 1, "latency": 2, "topics": 3}


def runs(spark: SparkSession, *changes: dict[str, Any]) -> DataFrame:
    """A run for each; the files of the n-th are numbered n1, n2 and n3."""
    rows = []
    for number, change in enumerate(changes):
        rows.append(
            {
                "campaign": "c",
                "run": f"r{number}",
                "outcome": "complete",
                "kept_from_ns": 1 * SECOND,
                "kept_until_ns": 5 * SECOND,
                **{f"{kind}_file": number * 10 + at for kind, at in NUMBERS.items()},
                **change,
            }
        )
    return frame(spark, RUNS, rows)


def rows(spark: SparkSession, kind: str, *values: dict[str, Any]) -> DataFrame:
    """Rows of the first run, unless they say another ``file``."""
    return frame(
        spark,
        {**FILES[kind], "file": "bigint"},
        [{"file": NUMBERS[kind], **value} for value in values],
    )


def kinds(table: DataFrame) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in table.schema.fields}


def test_what_is_handed_on_has_the_declared_columns(spark: SparkSession) -> None:
    data = Read(
        runs=runs(spark, {}),
        samples=rows(spark, "samples"),
        latency=rows(spark, "latency"),
        topics=rows(spark, "topics"),
        events=rows(spark, "samples"),
    )
    inputs = clean.clean(data)
    assert kinds(inputs.runs) == FACTS
    assert kinds(inputs.samples) == CLEAN["samples"]
    assert kinds(inputs.latency) == CLEAN["latency"]
    assert kinds(inputs.topics) == CLEAN["topics"]


class TestSamples:
    def of(
        self, spark: SparkSession, *values: dict[str, Any], **facts: Any
    ) -> list[dict[str, Any]]:
        cleaned = clean.samples(rows(spark, "samples", *values), runs(spark, facts))
        return [row.asDict() for row in cleaned.orderBy("role", "second").collect()]

    def test_counters_become_differences_and_the_rest_stays(self, spark: SparkSession) -> None:
        first, second, third = self.of(
            spark,
            sample(1, received_bytes=100, cpu_seconds=0.25, resident_bytes=7, ring_bytes=3),
            sample(2, received_bytes=350, cpu_seconds=0.75, resident_bytes=9, ring_bytes=2),
            sample(3, received_bytes=350, cpu_seconds=1.0, resident_bytes=8, ring_bytes=1),
        )
        assert (first["received_bytes"], first["elapsed_ns"], first["kept"]) == (None, None, False)
        assert first["resident_bytes"] == 7
        assert (second["received_bytes"], second["elapsed_ns"]) == (250, SECOND)
        assert (second["cpu_seconds"], second["kept"]) == (0.5, True)
        assert (third["received_bytes"], third["cpu_seconds"]) == (0, 0.25)
        assert (third["resident_bytes"], third["ring_bytes"], third["threads"]) == (8, 1, 3)

    def test_processes_and_runs_are_apart(self, spark: SparkSession) -> None:
        cleaned = clean.samples(
            rows(
                spark,
                "samples",
                sample(1, received_bytes=1),
                sample(2, received_bytes=11),
                sample(2, received_bytes=500, process=99),
                sample(2, received_bytes=700, file=11),
                sample(3, received_bytes=800, file=11),
                sample(3, received_bytes=800, file=12345),
            ),
            runs(spark, {}, {}),
        )
        found = cleaned.where("received_bytes is not null").select("run", "received_bytes")
        assert sorted(tuple(row) for row in found.collect()) == [("r0", 10), ("r1", 100)]
        assert cleaned.count() == 5  # a file of no run has no place

    def test_only_what_lies_between_two_rows_of_the_window_is_kept(
        self, spark: SparkSession
    ) -> None:
        found = self.of(spark, *(sample(second) for second in range(8)))
        assert [row["second"] for row in found if row["kept"]] == [2, 3, 4, 5]

    def test_a_run_that_failed_keeps_its_rows_and_none_counts(self, spark: SparkSession) -> None:
        found = self.of(spark, *(sample(second) for second in range(4)), outcome="blocked")
        assert [row["kept"] for row in found] == [False] * 4
        assert found[-1]["received_bytes"] == 1000

    def test_a_counter_that_was_set_back_says_nothing(self, spark: SparkSession) -> None:
        _, second, third = self.of(
            spark,
            sample(1, sent_bytes=900),
            sample(2, sent_bytes=100),
            sample(3, sent_bytes=300),
        )
        assert (second["sent_bytes"], second["received_bytes"]) == (None, 1000)
        assert third["sent_bytes"] == 200

    def test_a_clock_that_goes_backwards_gives_no_rates(self, spark: SparkSession) -> None:
        _, second, third, fourth = self.of(
            spark,
            sample(1),
            sample(2, time_ns=SECOND // 2),
            sample(3, time_ns=SECOND // 2),
            sample(4),
        )
        for row in (second, third):
            assert (row["elapsed_ns"], row["kept"], row["received_bytes"]) == (None, False, None)
        assert fourth["elapsed_ns"] == 4 * SECOND - SECOND // 2
        assert fourth["kept"]

    def test_of_a_number_of_messages_all_count_also_those_before_the_first_row(
        self, spark: SparkSession
    ) -> None:
        rows = (
            sample(1, sent_messages=30, sent_bytes=3000, cpu_seconds=0.25),
            sample(2, sent_messages=50, sent_bytes=5000, cpu_seconds=0.5),
        )
        first, second = self.of(spark, *rows, messages=50)
        assert (first["sent_messages"], first["sent_bytes"], first["kept"]) == (30, 3000, False)
        assert first["cpu_seconds"] is None  # a process has used some before it sends
        assert (second["sent_messages"], second["cpu_seconds"], second["kept"]) == (20, 0.25, True)
        first, _ = self.of(spark, *rows)
        assert first["sent_messages"] is None

    def test_of_a_number_of_messages_the_times_tell_what_is_kept(self, spark: SparkSession) -> None:
        # Written while nobody knew when the last message would come: at 3.2 s, and the rest of it
        # is waiting for what was lost. The first was sent just after the first row.
        late = sample(3, time_ns=3 * SECOND + SECOND // 4)
        rows = [sample(1, kept=False), sample(2), sample(3), late, sample(4), sample(5)]
        window = {"kept_from_ns": SECOND + 1000, "kept_until_ns": 3 * SECOND + SECOND // 5}
        found = self.of(spark, *rows, messages=50, **window)
        assert [row["kept"] for row in found] == [False, True, True, True, False, False]

    def test_the_machine_has_no_process_number(self, spark: SparkSession) -> None:
        found = self.of(spark, sample(1, "machine"), sample(2, "machine"))
        assert found[1]["cpu_seconds"] == 0.5


class TestLatency:
    def of(
        self, spark: SparkSession, *values: dict[str, Any], **facts: Any
    ) -> list[dict[str, Any]]:
        cleaned = clean.latency(rows(spark, "latency", *values), runs(spark, facts))
        return [row.asDict() for row in cleaned.orderBy("sequence").collect()]

    def test_what_was_due_in_the_window_counts_from_when_it_was_due(
        self, spark: SparkSession
    ) -> None:
        found = self.of(
            spark,
            message(0, SECOND - 1, 9),
            message(1, SECOND, 9, sent_ns=SECOND + 5),
            message(2, 5 * SECOND - 1, 3 * SECOND),
            message(3, 5 * SECOND, 9),
        )
        assert [row["sequence"] for row in found] == [1, 2]
        assert [row["latency_ns"] for row in found] == [9, 3 * SECOND]
        assert (found[0]["campaign"], found[0]["run"], found[0]["stage"]) == ("c", "r0", "delivery")

    def test_runs_that_failed_have_no_delays(self, spark: SparkSession) -> None:
        assert self.of(spark, message(0, 2 * SECOND, 9), outcome="out_of_memory") == []

    def test_a_run_without_a_window_has_no_delays(self, spark: SparkSession) -> None:
        assert self.of(spark, message(0, 2 * SECOND, 9), kept_from_ns=None) == []

    def test_clock_errors_are_kept_to_be_counted(self, spark: SparkSession) -> None:
        (row,) = self.of(spark, message(0, 2 * SECOND, -40))
        assert row["latency_ns"] == -40

    def test_both_ends_are_brought_to_one_clock(self, spark: SparkSession) -> None:
        # Role 0 receives and is 7 s ahead; role 1 sends and is 50 ns behind.
        due = 2 * SECOND - 50
        offsets = [7 * SECOND, -50]
        (row,) = self.of(
            spark,
            message(0, due, 7 * SECOND + 50 + 30, sent_ns=due + 4),
            clock_offsets_ns=offsets,
        )
        assert (row["intended_ns"], row["sent_ns"]) == (2 * SECOND, 2 * SECOND + 4)
        assert (row["received_ns"], row["latency_ns"]) == (2 * SECOND + 30, 30)

    def test_a_round_trip_is_timed_by_whoever_asks(self, spark: SparkSession) -> None:
        (row,) = self.of(
            spark,
            message(0, 2 * SECOND - 50, 30, stage="round-trip"),
            clock_offsets_ns=[7 * SECOND, -50],
        )
        assert (row["intended_ns"], row["latency_ns"]) == (2 * SECOND, 30)

    def test_the_window_is_that_of_the_campaigns_clock(self, spark: SparkSession) -> None:
        late = message(0, 6 * SECOND, 10, source=0)
        (row,) = self.of(spark, late, clock_offsets_ns=[3 * SECOND, 0])
        assert row["intended_ns"] == 3 * SECOND

    @pytest.mark.parametrize("role", [None, 9])
    def test_a_role_that_no_host_has_is_on_the_campaigns_clock(
        self, spark: SparkSession, role: int | None
    ) -> None:
        odd = message(0, 2 * SECOND, 10, source=role, target=role)
        (row,) = self.of(spark, odd, clock_offsets_ns=[5, 5])
        assert row["latency_ns"] == 10


def test_topics_of_complete_runs_in_the_window(spark: SparkSession) -> None:
    def at(time: int, **values: Any) -> dict[str, Any]:
        return {"time_ns": time, "second": time // SECOND, "topic": "t", "arrivals": time, **values}

    late = 5 * SECOND + SECOND // 2
    table = rows(
        spark, "topics", at(SECOND - 1), at(SECOND), at(late), at(late + 1), at(SECOND, file=13)
    )
    cleaned = clean.topics(table, runs(spark, {}, {"outcome": "error"}))
    assert sorted(row["arrivals"] for row in cleaned.collect()) == [SECOND, late]
