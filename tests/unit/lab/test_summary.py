"""From repeats to medians, spreads, ratios, targets and tables, on made-up measurements."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from antiphon.lab.bench.machine import Machine
from antiphon.lab.bench.plan import Group, Point
from antiphon.lab.bench.point import Measurement, Options
from antiphon.lab.bench.probes import Connections, Idle, Stalled
from antiphon.lab.bench.report import Probe, document, print_header, print_report, reach_table
from antiphon.lab.bench.run import run_plan
from antiphon.lab.bench.summary import Row, evaluate, ratio, summarise

OURS = Point("antiphon", "callback")
PACKED = Point("antiphon", "packed")
BATCH = Point("antiphon", "batch")
PYZMQ = Point("pyzmq", "push-pull")
STREAM = Point("raw-tcp", "stream")
NATS = Point("nats", "pub-sub")
MACHINE = Machine("a processor", 2, 16.0, "Linux 6", True)


def measured(point: Point, *rates: float, outcome: str = "ok") -> list[Measurement]:
    return [
        Measurement(
            point,
            repeat,
            outcome,
            "" if outcome == "ok" else "a reason",
            messages=int(rate),
            seconds=1.0,
            rate=rate,
            cpu=rate * 1e-6,
            others=0.1 * repeat,
        )
        for repeat, rate in enumerate(rates)
    ]


def rows_of(*measurements: list[Measurement]) -> list[Row]:
    points = tuple(items[0].point for items in measurements)
    return summarise([Group("a group", points)], [item for items in measurements for item in items])


def test_a_row_has_the_median_and_the_extremes() -> None:
    (row,) = rows_of(measured(OURS, 30.0, 10.0, 20.0))
    assert (row.median, row.low, row.high) == (20.0, 10.0, 30.0)
    assert row.others == pytest.approx(0.1)
    assert row.cpu_per_message == pytest.approx(1e-6)
    assert row.megabytes == pytest.approx(20.0 * 64 / 1e6)


def test_an_even_number_of_repeats_has_the_mean_of_the_middle_two() -> None:
    (row,) = rows_of(measured(OURS, 10.0, 20.0))
    assert row.median == 15.0


def test_ratios_are_of_medians_within_the_group() -> None:
    ours, stream, pyzmq = rows_of(
        measured(OURS, 50.0, 60.0, 70.0), measured(STREAM, 120.0), measured(PYZMQ, 9.0, 10.0, 11.0)
    )
    assert ours.to_pyzmq == pytest.approx(6.0)
    assert ours.to_raw == pytest.approx(0.5)
    assert pyzmq.to_pyzmq == pytest.approx(1.0)
    assert stream.to_raw == pytest.approx(1.0)


def test_typed_is_held_against_typed() -> None:
    typed = Point("antiphon", "typed")
    rows = rows_of(
        measured(typed, 30.0), measured(PYZMQ, 5.0), measured(Point("pyzmq", "typed"), 10.0)
    )
    assert rows[0].to_pyzmq == pytest.approx(3.0)


def test_without_pyzmq_there_is_no_ratio() -> None:
    (row,) = rows_of(measured(OURS, 10.0))
    assert row.to_pyzmq is None
    assert row.to_raw is None


@pytest.mark.parametrize(("value", "base"), [(None, 1.0), (1.0, None), (1.0, 0.0)])
def test_a_ratio_of_nothing_is_nothing(value: float | None, base: float | None) -> None:
    assert ratio(value, base) is None


def test_one_bad_repeat_shows_in_the_row_and_keeps_the_others() -> None:
    failed = Measurement(OURS, 2, "timed out", "no answer")
    (row,) = rows_of([*measured(OURS, 10.0, 20.0), failed])
    assert (row.outcome, row.reason) == ("timed out", "no answer")
    assert row.median == 15.0


def test_an_absent_peer_is_a_row_without_figures() -> None:
    absent = Measurement(NATS, 0, "absent", "nats: nats-server not found; install nats-server")
    (row,) = rows_of([absent])
    assert row.median is None
    assert row.megabytes is None
    assert row.outcome == "absent"


def test_a_point_that_was_not_reached_says_so() -> None:
    (row,) = summarise([Group("a group", (OURS,))], [])
    assert row.outcome == "not run"


def test_targets_take_the_best_of_their_points() -> None:
    rows = rows_of(
        measured(OURS, 60.0), measured(BATCH, 100.0), measured(PACKED, 200.0), measured(PYZMQ, 10.0)
    )
    reach = {item.measure: item for item in evaluate(rows)}
    assert reach["64 B one way, send to callback"].measured == pytest.approx(6.0)
    batches = reach["64 B one way, send_many or send_packed to batch"]
    assert batches.measured == pytest.approx(20.0)
    assert batches.note == "with packed"
    assert batches.target == "at least 18 x pyzmq"


def test_encrypted_is_held_against_plain_of_the_same_size() -> None:
    rows = rows_of(
        measured(OURS, 100.0),
        measured(Point("antiphon", "tls"), 80.0),
        measured(Point("antiphon", "callback", size=4096), 50.0),
        measured(Point("antiphon", "tls", size=4096), 25.0),
    )
    reach = {item.measure: item for item in evaluate(rows)}
    small = reach["64 B one way over TLS, send to callback"]
    assert (small.target, small.measured) == ("at least 0.7 x plain callback", 0.8)
    large = reach["4 KiB one way over TLS, send to callback"]
    assert (large.target, large.measured) == ("at least 0.4 x plain callback", 0.5)


def test_a_target_says_what_its_points_lack() -> None:
    lacking = "antiphon tls: cryptography not found; install the package cryptography"
    absent = Measurement(Point("antiphon", "tls"), 0, "absent", lacking)
    reach = {item.measure: item for item in evaluate(rows_of(measured(OURS, 1.0), [absent]))}
    assert reach["64 B one way over TLS, send to callback"].note == lacking


def test_a_target_without_its_points_is_not_part_of_the_run() -> None:
    assert {item.note for item in evaluate([])} == {"not part of this run"}
    assert {item.measured for item in evaluate([])} == {None}


def test_a_target_says_when_its_base_was_disturbed() -> None:
    rows = rows_of(measured(OURS, 60.0), measured(PYZMQ, 10.0, outcome="lost"))
    assert evaluate(rows)[0].note == "pyzmq a reason"


def test_a_plan_runs_its_groups_in_turn() -> None:
    seen: list[tuple[str, int]] = []

    def fake(point: Point, options: Options, repeat: int) -> Measurement:
        seen.append((point.system, repeat))
        return measured(point, 1.0)[0]

    groups = [Group("one", (OURS, PYZMQ)), Group("two", (STREAM,))]
    done = run_plan(groups, 2, Options(), measure_point=fake)
    assert seen == [
        ("antiphon", 0),
        ("pyzmq", 0),
        ("pyzmq", 1),
        ("antiphon", 1),
        ("raw-tcp", 0),
        ("raw-tcp", 1),
    ]
    assert len(done) == 6


def test_the_report_shows_figures_losses_and_absences() -> None:
    rows = rows_of(
        measured(OURS, 5e6, 6e6, 7e6),
        measured(PYZMQ, 1e6, outcome="lost"),
        [Measurement(NATS, 0, "absent", "nats: install nats-server")],
    )
    out = io.StringIO()
    console = Console(file=out, width=160)
    print_header(console, MACHINE, {"python": "3.11", "pyzmq": "27"}, "antiphon bench node")
    probes: dict[str, Probe] = {
        "idle": Idle(0.001, 20_000_000, 3.0),
        "connections": Connections(1000, 999, 12_345.0, 0.0082, 5.0),
        "stalled": Stalled(9_000_000, 0, 3.0, 100),
    }
    print_report(console, rows, evaluate(rows), ["nats: install nats-server"], probes)
    text = out.getvalue()
    for expected in (
        "a processor, 2 cores, virtual, 16 GB, Linux 6",
        "pyzmq 27",
        "antiphon bench node",
        "6,000,000",
        "5.00M..7.00M",
        "6.00",
        "1,000,000 *",
        "pyzmq push-pull, one-way, 64 B: lost, a reason",
        "absent: nats: install nats-server",
        "0.10%, 20.0 MB",
        "+0.0 MB in 3 s",
        "1,000 idle connections, above the node alone",
        "under 20 KB each, under 1 % of a core",
        "12.3 KB each, 0.82%",
        "over 5 s, 999 of 1,000 alive",
        "5 x pyzmq",
    ):
        assert expected in text, expected


def test_a_probe_that_could_not_be_made_says_why() -> None:
    out = io.StringIO()
    lacking = "3,069 file descriptors are needed and RLIMIT_NOFILE allows 1,024"
    Console(file=out, width=200).print(reach_table([], {"connections": lacking}))
    assert lacking in out.getvalue()


def test_the_document_is_json_with_every_repeat() -> None:
    rows = rows_of(measured(OURS, 5.0, 6.0, 7.0), measured(PYZMQ, 1.0))
    probes: dict[str, Probe] = {
        "idle": "antiphon: not built",
        "connections": Connections(1000, 1000, 12_345.0, 0.0082, 5.0),
    }
    made = document(
        MACHINE, {"python": "3"}, "antiphon bench node", Options(), rows, evaluate(rows), [], probes
    )
    read = json.loads(json.dumps(made))
    ours = read["points"][0]
    assert [repeat["messages_per_second"] for repeat in ours["repeats"]] == [5.0, 6.0, 7.0]
    assert ours["ratio_to_pyzmq"] == pytest.approx(6.0)
    assert ours["system"] == "antiphon"
    assert ours["encoding"] == "raw"
    assert read["probes"]["idle"] == {"error": "antiphon: not built"}
    assert read["probes"]["connections"]["bytes_each"] == 12_345.0
    assert read["machine"]["cores"] == 2
