"""The sentences of the report: true of the data, and honest where there are few."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from antiphon.pipeline.report import units
from antiphon.pipeline.report.words import listed
from unit.pipeline import report_story as story
from unit.pipeline.report_page import made
from unit.pipeline.report_tables import KEYS, MACHINE, spread, write


def test_the_answer_says_who_holds_who_collapses_and_by_how_much(tmp_path: Path) -> None:
    story.stability(tmp_path)
    said = made(tmp_path).words
    assert "antiphon-node holds best of 4: it keeps 81 % (77 to 85 %)" in said
    assert "beside cpu-60, its worst" in said
    assert "jgroups-udp collapses: it keeps 6.0 % (5.7 to 6.3 %) of its throughput" in said
    assert "Measured on aida: Example CPU at 3 GHz, 2 cores, 23 GB, Linux 6.1.0" in said
    assert "Without load antiphon-node is the fastest of 4: 900 MB/s in messages of 2 kB" in said
    assert "15.0 times as much as jgroups-udp" in said


def test_one_repeat_is_said_to_be_one_and_has_no_interval(tmp_path: Path) -> None:
    story.stability(tmp_path, repeats=1)
    report = made(tmp_path)
    assert "it keeps 81 % of its throughput beside cpu-60" in report.words
    assert "Each was measured once, so there are no intervals" in report.words
    assert "12 measurements had one repeat only" in report.words
    bars = [one for one in report.figure("degradation")[0]["traces"] if one["type"] == "bar"]
    assert not any("error_x" in one for one in bars)


def test_what_could_not_be_measured_is_named(tmp_path: Path) -> None:
    story.stability(tmp_path)
    later = "missing until a later version (needs antiphon-group)"
    for protocol, reason in (("antiphon-group", later), ("nats", "nats-server is not installed")):
        keys = KEYS | {"protocol": protocol, "size": None, "outcome": "absent"}
        write(tmp_path, "runs", [keys | MACHINE | {"run": protocol, "reason": reason}])
        write(tmp_path, "outcomes", [keys | {"runs": 1, "of": 1, "reasons": [reason]}])
    said = made(tmp_path).words
    assert "1 run did not take place (nats)" in said
    assert "Planned, and missing until a later version of Antiphon: antiphon-group." in said
    assert later in said
    assert "5protocols" in said  # those that ran


def test_intervals_are_drawn_where_there_are_repeats(tmp_path: Path) -> None:
    story.stability(tmp_path)
    facet = next(one for one in made(tmp_path).figure("degradation") if one["at"] == ["garbage"])
    bar = next(one for one in facet["traces"] if one["y"] == ["jgroups-udp"])
    assert bar["x"] == pytest.approx([6.0])
    assert bar["error_x"]["array"] == pytest.approx([0.3])
    assert bar["error_x"]["arrayminus"] == pytest.approx([0.3])


def _kept(protocol: str, kept: float, low: float | None, high: float | None) -> dict[str, Any]:
    keys = KEYS | {"protocol": protocol, "workload": "cpu-60"}
    interval = {"kept": kept, "kept_low": low, "kept_high": high}
    return keys | interval | {"repeats": 3, "baseline_repeats": 3}


def _with_runs(out: Path, *rows: dict[str, Any]) -> str:
    runs = [row | MACHINE | {"run": row["protocol"], "outcome": "complete"} for row in rows]
    write(out, "runs", runs)
    write(out, "degradation", list(rows))
    return made(out).words


def test_two_whose_intervals_overlap_are_not_ranked(tmp_path: Path) -> None:
    said = _with_runs(tmp_path, _kept("one", 0.9, 0.85, 0.95), _kept("two", 0.88, 0.8, 0.93))
    assert "one holds best of 2" in said
    assert "It cannot be told apart from two: the intervals overlap." in said
    assert "None collapses; the weakest is two" in said


def test_two_whose_intervals_lie_apart_are_ranked_without_a_word(tmp_path: Path) -> None:
    said = _with_runs(tmp_path, _kept("one", 0.9, 0.88, 0.95), _kept("two", 0.7, 0.6, 0.8))
    assert "cannot be told apart" not in said


def test_where_all_collapse_nobody_is_said_to_hold(tmp_path: Path) -> None:
    said = _with_runs(tmp_path, _kept("one", 0.4, None, None), _kept("two", 0.2, None, None))
    assert "All 2 protocols collapse. one keeps the most: it keeps 40 %" in said
    assert "holds best" not in said


def test_a_single_protocol_is_compared_with_nobody(tmp_path: Path) -> None:
    said = _with_runs(tmp_path, _kept("lonely", 0.7, None, None))
    assert "Only lonely was measured under load. It keeps 70 %" in said


def _beside(out: Path, kept: dict[str, dict[str, float | str | None]]) -> str:
    """By protocol and load the part kept, or how the run ended. Without load all complete."""
    runs, idle, rows = [], [], []
    for protocol, loads in kept.items():
        keys = KEYS | {"protocol": protocol}
        idle.append(keys | {"repeats": 1} | spread("bytes_per_second", 1e6))
        for load, part in {"none": 1.0, **loads}.items():
            ended = part if isinstance(part, str) else "complete"
            at = keys | {"workload": load}
            runs.append(at | MACHINE | {"run": f"{protocol}.{load}", "outcome": ended})
            if load != "none" and not isinstance(part, str):
                rows.append(at | {"kept": part, "repeats": 1, "baseline_repeats": 1})
    write(out, "runs", runs)
    write(out, "throughput", idle)
    write(out, "degradation", rows)
    return made(out).words


def test_who_does_not_complete_beside_a_load_keeps_nothing_there(tmp_path: Path) -> None:
    said = _beside(
        tmp_path,
        {
            "breaks": {"cpu": 0.99, "garbage": "out_of_memory"},
            "bends": {"cpu": 0.9, "garbage": 0.7},
        },
    )
    assert "bends keeps the most of 2: it keeps 70 %" in said
    assert "breaks collapses: it keeps nothing beside garbage, where it ran out of memory" in said
    assert "99 %ran out of memory" in said


def test_a_load_that_nobody_completes_is_a_load_all_the_same(tmp_path: Path) -> None:
    said = _beside(
        tmp_path,
        {name: {"cpu": 0.9, "garbage": "blocked"} for name in ("one", "two")},
    )
    assert "All 2 protocols collapse." in said
    assert "beside garbage, where it stood still" in said


def test_who_was_not_tried_beside_all_loads_is_named_and_not_ranked(tmp_path: Path) -> None:
    said = _beside(
        tmp_path,
        {
            "tcp-c": {"cpu": 0.99, "garbage": "not_applicable"},
            "one": {"cpu": 0.85, "garbage": 0.9},
            "two": {"cpu": 0.95, "garbage": 0.4},
        },
    )
    assert "one holds best of 2: it keeps 85 %" in said
    assert "two collapses: it keeps 40 %" in said
    assert "Not ranked: tcp-c was not measured beside garbage." in said


def test_where_no_two_bore_the_same_loads_the_one_with_the_most_is_told(tmp_path: Path) -> None:
    said = _beside(tmp_path, {"one": {"cpu": 0.99}, "two": {"cpu": 0.8, "garbage": 0.7}})
    assert "Only two was measured beside cpu and garbage. It keeps 70 %" in said
    assert "Not ranked: one was not measured beside garbage." in said


def test_without_load_the_answer_is_about_speed_and_says_what_is_missing(tmp_path: Path) -> None:
    rows = [
        KEYS | {"protocol": name, "repeats": 3} | spread("bytes_per_second", speed)
        for name, speed in (("quick", 8e8), ("slow", 2e8))
    ]
    write(tmp_path, "throughput", rows)
    runs = [row | MACHINE | {"run": row["protocol"], "outcome": "complete"} for row in rows]
    write(tmp_path, "runs", runs)
    said = made(tmp_path).words
    assert "Which messaging system is the fastest here?" in said
    assert "4.0 times as much as slow (200 MB/s)" in said
    assert "Nothing was measured beside competing work." in said


def test_runs_that_all_failed_are_a_result(tmp_path: Path) -> None:
    run = KEYS | MACHINE | {"protocol": "spread", "run": "r1", "outcome": "blocked"}
    write(tmp_path, "runs", [run])
    ended = {"outcome": "blocked", "runs": 1, "of": 1, "part": 1.0, "reasons": ["silence"]}
    write(tmp_path, "outcomes", [KEYS | {"protocol": "spread"} | ended])
    said = made(tmp_path).words
    assert "The only run did not complete, so nothing can be compared." in said
    assert "spread stood still (1 run)" in said
    assert "silence" in said


def test_what_did_not_finish_is_told_with_its_reason(tmp_path: Path) -> None:
    story.stability(tmp_path)
    said = made(tmp_path).words
    assert "Failing to finish is a result too: spread lost its connection (1 run)." in said
    assert "1 of 37 runs did not complete" in said
    assert "the daemon closed the connection" in said


def _burst(protocol: str, messages: int, outcome: str = "complete", **more: Any) -> dict[str, Any]:
    """A run of a plan that tries several numbers of messages."""
    keys = KEYS | {"series": "burst", "pattern": "n-n", "size": 1000, "protocol": protocol}
    ran = {"run": f"{protocol}.{messages}.{more}", "outcome": outcome, "messages": messages}
    return keys | MACHINE | ran | more


def test_the_most_messages_that_finished_in_one_go_are_told(tmp_path: Path) -> None:
    tcp = {"stack": "paper-tcp"}
    runs = [
        _burst("jgroups-tcp", 1_000, **tcp),
        _burst("jgroups-tcp", 10_000, **tcp),
        # Of two repeats one did not finish: a larger number that did is chance.
        _burst("jgroups-tcp", 20_000, **tcp),
        _burst("jgroups-tcp", 20_000, "out_of_memory", reason="java heap", **tcp, repeat=2),
        _burst("jgroups-tcp", 50_000, **tcp),
        _burst("antiphon-group", 1_000, stack="udp"),
        _burst("antiphon-group", 100_000, stack="udp"),
        _burst("appia", 1_000, "blocked"),
        _burst("appia", 2_000, "blocked"),
        # Neither tried at all, nor tried with more than one number.
        _burst("spread", 1_000, "absent"),
        _burst("spread", 2_000, "absent"),
        _burst("nats", 500),
    ]
    write(tmp_path, "runs", runs)
    report = made(tmp_path)
    cells = [" ".join(row) for row in _cells(report.source, "How many messages in one go?")]
    assert cells[1:] == [
        "antiphon-group udp 1 kB 100,000 messages 100 MB not tried —",
        "appia — 1 kB none — 1,000 stood still",
        "jgroups-tcp paper-tcp 1 kB 10,000 messages 10 MB 20,000 ran out of memory: java heap",
    ]


def test_without_several_numbers_nothing_is_said_of_bursts(tmp_path: Path) -> None:
    write(tmp_path, "runs", [_burst("nats", 500), _burst("pyzmq", 500)])
    assert "in one go" not in made(tmp_path).words


def _cells(source: str, after: str) -> list[list[str]]:
    """The rows of the first table after some words."""
    table = source.partition(after)[2].partition("<table>")[2].partition("</table>")[0]
    return [
        [one.replace("\u00a0", " ") for one in re.findall(r"<t[dh][^>]*>([^<]*)", row)]
        for row in table.split("<tr>")[1:]
    ]


def test_campaigns_of_different_machines_are_warned_of(tmp_path: Path) -> None:
    story.stability(tmp_path)
    assert "These campaigns come from" not in made(tmp_path).words
    story.stability(tmp_path, campaign="stability-2", host="boris", cores=8)
    said = made(tmp_path).words
    assert "These campaigns come from 2 machines." in said
    assert "boris: Example CPU at 3 GHz, 8 cores" in said
    assert "(stability-2)" in said
    assert "This is told of stability-2; the figures have stability-1 too." in said


def test_sampled_tails_short_windows_and_bad_clocks_are_warned_of(tmp_path: Path) -> None:
    story.delays(tmp_path)
    run = KEYS | MACHINE | {"campaign": "c2", "run": "r1", "outcome": "complete"}
    facts = {"window_seconds": 3.0, "clock_errors": 7, "lost_messages": 1_500}
    write(tmp_path, "runs", [run | facts])
    said = made(tmp_path).words
    assert "Delays of 9 series are a sample, down to 1 message in 12" in said
    assert "Windows are as short as 3 s, as in a quick plan" in said
    assert "7 messages seemed to arrive before being sent" in said
    assert "Messages were lost on the way by antiphon-node 1,500" in said


def test_a_number_of_messages_that_is_soon_over_is_no_short_window(tmp_path: Path) -> None:
    run = KEYS | MACHINE | {"campaign": "c2", "run": "r1", "outcome": "complete"}
    write(tmp_path, "runs", [run | {"messages": 500, "window_seconds": 0.007}])
    said = made(tmp_path).words
    assert "Windows are as short" not in said
    assert "a given number of messages were over within 7.00 ms" in said


@pytest.mark.parametrize(("load", "said"), [(None, None), (0.04, None), (0.31, "31 %")])
def test_a_machine_that_was_busy_already_is_warned_of(
    tmp_path: Path, load: float | None, said: str | None
) -> None:
    story.stability(tmp_path, other_load=load)
    words = made(tmp_path).words
    assert ("The machine was busy before anything began" in words) == bool(said)
    if said:
        assert f"other programs used {said} of all its cores. All figures are" in words
        story.stability(tmp_path, campaign="stability-2", other_load=0.01)
        assert f"{said} of all its cores (stability-1)." in made(tmp_path).words


def test_tables_of_before_it_was_looked_at_what_else_goes_on_are_read(tmp_path: Path) -> None:
    story.stability(tmp_path)
    for path in (tmp_path / "runs").rglob("*.parquet"):
        pq.write_table(pq.read_table(path, partitioning=None).drop_columns("other_load"), path)
    assert "antiphon-node holds best of 4" in made(tmp_path).words


def test_a_load_that_missed_its_aim_is_warned_of(tmp_path: Path) -> None:
    story.stability(tmp_path)
    run = KEYS | MACHINE | {"campaign": "stability-1", "workload": "cpu-60", "run": "r9"}
    shares = {"cpu_share": 0.6, "cpu_share_measured": 0.35, "outcome": "complete"}
    write(tmp_path, "runs", [run | shares])
    said = made(tmp_path).words
    assert "The competing load cpu-60 reached 35 % of the processor where 60 % was asked" in said
    assert "cpu-60 takes 35 % of all cores for itself." in said


def test_a_load_on_collectors_that_was_late_and_messages_never_sent_are_warned_of(
    tmp_path: Path,
) -> None:
    story.stability(tmp_path)
    run = KEYS | MACHINE | {"campaign": "stability-1", "workload": "garbage", "run": "r9"}
    late = {"garbage_per_second": 50_000.0, "garbage_per_second_measured": 12_345.0}
    paced = {"run": "r10", "rate": 1000.0, "latency_skipped": 1_200, "outcome": "complete"}
    free = late | {"latency_skipped": 70, "outcome": "complete"}
    write(tmp_path, "runs", [run | free, run | paced])
    said = made(tmp_path).words
    assert "70 delays of runs without a rate were not taken" in said
    assert "garbage replaced 12,345 objects a second in a process where 50,000 were" in said
    assert "1,200 messages that were due were never sent" in said


def test_what_was_set_aside_is_listed(tmp_path: Path) -> None:
    story.stability(tmp_path)
    aside = [{"campaign": None, "path": "c/run-1", "reason": "run.json is cut off"}]
    (tmp_path / "set_aside.json").write_text(json.dumps(aside))
    said = made(tmp_path).words
    assert "1 file or folder could not be used" in said
    assert "c/run-1: run.json is cut off" in said


def test_delays_are_told_at_the_rate_that_most_protocols_share(tmp_path: Path) -> None:
    story.delays(tmp_path)
    said = made(tmp_path).words
    assert (
        "At 1,000/s in messages of 128 B over loopback, 99 of 100 messages of antiphon-topic come "
        "within 244 µs"
    ) in said
    assert "The latest is nats with 976 µs" in said


def _delays(out: Path, *rows: dict[str, Any]) -> str:
    paced = [
        {**KEYS, "rate": 1000.0, "stage": "delivery", "p50_us": 1, "mean_us": 1.0, **row}
        for row in rows
    ]
    write(out, "latency", paced)
    runs = [
        row | MACHINE | {"run": f"r{at}", "outcome": "complete"} for at, row in enumerate(paced)
    ]
    write(out, "runs", runs)
    return made(out).words


def test_delays_are_compared_in_one_setting_alone(tmp_path: Path) -> None:
    said = _delays(
        tmp_path,
        {"protocol": "one", "p99_us": 100},
        {"protocol": "two", "p99_us": 300},
        {"protocol": "one", "p99_us": 1, "link": "gigabit"},
        {"protocol": "one", "p99_us": 7000, "size": 65536},
        {"protocol": "two", "p99_us": 8000, "workload": "cpu-60"},
        {"protocol": "three", "p99_us": 8000, "workload": "cpu-60"},
        {"protocol": "four", "p99_us": 8000, "workload": "cpu-60"},
        {"protocol": "two", "p99_us": 9000, "senders": 16},
    )
    assert "of one come within 100 µs" in said
    assert "the earliest of 2. The latest is two with 300 µs." in said


def test_where_some_keep_the_rate_it_is_their_topics_that_are_told(tmp_path: Path) -> None:
    shares = {"protocol": "antiphon-topic", "senders": 2, "paced": 1}
    said = _delays(
        tmp_path,
        shares | {"topic": "lab/0/1", "mean_us": 9.0, "p99_us": 40},
        shares | {"topic": "lab/0/2", "mean_us": 9000.0, "p99_us": 60_000},
    )
    assert (
        "At 1,000/s in messages of 2 kB over loopback from 2 senders, 99 of 100 messages of "
        "antiphon-topic come within 40 µs"
    ) in said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (units.speed(1.234e9), "1.23 GB/s"),
        (units.speed(999_999.0), "1.00 MB/s"),
        (units.speed(0.0), "0 B/s"),
        (units.took(0.4), "0.4 µs"),
        (units.took(999.9), "1.00 ms"),
        (units.took(12_345.0), "12.3 ms"),
        (units.took(2.5e6), "2.50 s"),
        (units.rate(1_500_000.0), "1.50 million/s"),
        (units.share(0.06), "6.0 %"),
        (units.share(0.0996), "10 %"),
        (units.share(1.02), "102 %"),
        (units.span(0.057, 0.123), "5.7 to 12 %"),
        (units.size(2000), "2 kB"),
        (units.size(4096), "4 KiB"),
        (units.size(1500), "1,500 B"),
        (units.key_text("workload", "none"), "no load"),
        (units.key_text("nodes", 1), "1 node"),
        (listed(["a"]), "a"),
        (listed(["a", "b", "c"]), "a, b and c"),
        (listed([str(at) for at in range(9)]), "0, 1, 2, 3, 4, 5 and 3 more"),
    ],
)
def test_numbers_are_written_as_people_read_them(value: str, said: str) -> None:
    assert value.replace("\u00a0", " ") == said


def _paced(row: dict[str, Any], rate: float) -> dict[str, Any]:
    return row | {"series": "delay", "rate": rate}


def test_a_timetable_that_was_kept_is_no_answer_where_somebody_went_as_fast_as_he_could(
    tmp_path: Path,
) -> None:
    said = _with_runs(
        tmp_path,
        *(_paced(_kept(name, 1.0, 1.0, 1.0), 500.0) for name in ("one", "two", "three")),
        _kept("one", 0.9, 0.88, 0.95),
        _kept("two", 0.3, 0.2, 0.4),
    )
    assert "one holds best of 2: it keeps 90 %" in said
    assert "two collapses: it keeps 30 %" in said
    assert "none was asked for more" not in said


def test_the_first_figure_begins_with_what_the_answer_is_about(tmp_path: Path) -> None:
    names = ("one", "two", "three")
    kept = (0.5, 0.3, 0.2)
    rows = [_kept(*one, None, None) for one in zip(names, kept, strict=True)]
    garbage = [row | {"workload": "garbage", "kept": 0.9} for row in (*rows, *rows[:1])]
    garbage[-1] |= {"variant": "inbox"}
    paced = [
        _paced(row | {"size": 500, "kept": 1.0, "protocol": name}, 87.0)
        for row in rows
        for name in (row["protocol"], f"{row['protocol']}-again")
    ]
    _with_runs(tmp_path, *rows, *garbage, *paced)
    report = made(tmp_path)
    assert "it keeps 50 % of its throughput beside cpu-60" in report.words
    start = report.blocks["data-degradation"]["start"]
    shown = report.figure("degradation")[start]
    assert [trace["x"] for trace in shown["traces"][:-1]] == [[20.0], [30.0], [50.0]]
    # The others are still to be had, and their view has the most bars.
    assert max(len(facet["traces"]) for facet in report.figure("degradation")) == 7


def test_where_all_keep_to_a_timetable_the_answer_says_so(tmp_path: Path) -> None:
    rows = [_paced(_kept(name, kept, None, None), 500.0) for name, kept in (("a", 1), ("b", 0.7))]
    idle = [
        row | {"workload": "none", "repeats": 3} | spread("bytes_per_second", 1e6) for row in rows
    ]
    write(tmp_path, "throughput", idle)
    said = _with_runs(tmp_path, *rows)
    assert "a holds best of 2: it keeps 100 %" in said
    assert "All were to send at 500/s, and none was asked for more" in said
    assert "is the fastest" not in said
