"""Runs, and how they ended."""

from __future__ import annotations

from antiphon.lab.protocols import PROTOCOLS
from antiphon.pipeline.tables.common import GROUPS, LOSSY
from antiphon.pipeline.tables.runs import outcomes, runs
from unit.pipeline.campaigns import delay, run, sample
from unit.pipeline.together import Asks, Together, in_order, put

TESTS = Together()
made = TESTS.fixture()


@TESTS.add
def test_a_run_has_its_window_and_what_was_counted() -> Asks:
    samples = [
        sample(second=0, kept=False, received_messages=100, sent_messages=100),
        sample(second=1, received_messages=7),
        sample(second=2, received_messages=8),
        sample(second=1, process=11, role="writer", sent_messages=9),
        sample(second=1, process=None, role="machine"),
    ]
    delays = [delay(-5), delay(1_000), delay(2_000), delay(2_500)]
    (row,) = yield put(runs, [run()], samples, delays)
    assert row["window_seconds"] == 10.0
    assert (row["sent_messages"], row["received_messages"]) == (9, 15)
    assert (row["latency_rows"], row["clock_errors"]) == (4, 1)
    assert (row["latency_p50_us"], row["latency_p99_us"]) == (2, 2)


@TESTS.add
def test_what_is_lost_is_known_only_where_it_can_be() -> Asks:
    counted = [
        run("sure", protocol="pyzmq"),
        run("lossy", protocol="udp-c"),
        run("number", protocol="pyzmq", messages=20),
        run("group", protocol="jgroups-udp", pattern="n-n", nodes=3, senders=3, messages=20),
        run("failed", protocol="udp-c", outcome="blocked"),
        # Adapters of one's own, which only the run knows.
        run("mine", protocol="mine", pattern="n-n", nodes=3, senders=3, receivers=2, lossy=True),
        run("others", protocol="others", pattern="n-n", nodes=3, receivers=1, lossy=False),
    ]
    samples = [
        row
        for one in counted
        for row in (
            sample(run=one["run"], kept=one["outcome"] == "complete", sent_messages=20),
            sample(run=one["run"], kept=False, process=11, role="writer", received_messages=17),
            sample(run=one["run"], kept=True, process=11, role="writer", received_messages=1),
        )
    ]
    lost = {row["run"]: row["lost_messages"] for row in (yield put(runs, counted, samples))}
    # Of the group every message has two receivers; 18 of 40 have come.
    assert lost == {
        "sure": None,
        "lossy": 19,
        "number": 2,
        "group": 22,
        "failed": None,
        "mine": 39,  # of what is counted in the window
        "others": None,
    }


@TESTS.add
def test_a_run_without_samples_is_there_all_the_same() -> Asks:
    absent = run(
        outcome="absent", reason="no library", kept_from_ns=None, kept_until_ns=None, rate=None
    )
    (row,) = yield put(runs, [absent])
    assert (row["outcome"], row["reason"]) == ("absent", "no library")
    assert (row["window_seconds"], row["sent_messages"], row["clock_errors"]) == (None, None, 0)
    assert row["latency_p99_us"] is None


@TESTS.add
def test_outcomes_count_how_runs_of_a_measurement_ended() -> Asks:
    four = [
        run("a", repeat=1),
        run("b", repeat=2, outcome="blocked", reason="nothing came for 10 s"),
        run("c", repeat=3, outcome="blocked", reason="nothing came for 12 s"),
        run("d", repeat=4, outcome="blocked", reason="nothing came for 10 s"),
        run("e", protocol="enet", outcome="unbounded_growth", reason="writer doubled"),
    ]
    first, second, third = in_order((yield put(outcomes, four)), "protocol", "outcome")
    assert (first["protocol"], first["outcome"]) == ("enet", "unbounded_growth")
    assert (first["runs"], first["of"], first["part"]) == (1, 1, 1.0)
    assert (second["outcome"], second["runs"], second["of"]) == ("blocked", 3, 4)
    assert second["part"] == 0.75
    assert second["reasons"] == ["nothing came for 10 s", "nothing came for 12 s"]
    assert (third["outcome"], third["part"], third["reasons"]) == ("complete", 0.25, [])


def test_groups_and_lossy_protocols_are_those_of_the_lab() -> None:
    ours = {name for name, one in PROTOCOLS.items() if one.group}
    assert ours <= set(GROUPS)
    assert set(GROUPS) - ours <= {"antiphon-group", "spread", "appia"}  # none can be run yet
    lossy = {name for name, one in PROTOCOLS.items() if one.lossy}
    assert set(LOSSY) == lossy | {"link-udp"}
