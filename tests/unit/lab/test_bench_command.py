"""``antiphon bench node``, ``request`` and ``topic`` as commands: arguments, tables, JSON."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from antiphon.cli import bench
from antiphon.lab.bench.latency import Latency
from antiphon.lab.bench.plan import Group, Point
from antiphon.lab.bench.point import Measurement, Options
from antiphon.lab.bench.prediction import Predicted, Prediction
from antiphon.lab.bench.topic_probes import Dispatch, Echo, Registration, Scaling, Shares
from antiphon.lab.peers import PEERS, Requirement

Call = tuple[list[Group], int, Options]
TIMED = {"call", "paced", "half", "isolation"}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """The plans that would have been run; every point answers at once."""
    seen: list[Call] = []
    outcomes = {"nats": "absent"}

    def fake_run(
        groups: list[Group], repeats: int, options: Options, *_: object
    ) -> list[Measurement]:
        seen.append((groups, repeats, options))
        return [
            answer(point, repeat) for g in groups for point in g.points for repeat in range(repeats)
        ]

    def answer(point: Point, repeat: int) -> Measurement:
        outcome = outcomes.get(point.system, "ok")
        rate = 0.0 if outcome == "absent" else 1000.0 + repeat
        latency = Latency(50.0, 60.0, 70.0, 80.0, 12_345.0) if point.pattern in TIMED else None
        figures = {"period_us": 1e4, "longest_call_us": 50.0, "scheduled": 1000}
        return Measurement(
            point,
            repeat,
            outcome,
            messages=1000,
            seconds=1.0,
            rate=rate,
            sent=1000,
            received=1000,
            latency=latency,
            figures=figures if point.pattern == "isolation" else {},
        )

    monkeypatch.setattr(bench, "run_plan", fake_run)
    monkeypatch.setattr(bench, "probe_idle", lambda seconds: "not probed")
    monkeypatch.setattr(bench, "probe_stalled", lambda seconds: "not probed")
    monkeypatch.setattr(bench, "probe_connections", lambda seconds: "not probed")
    monkeypatch.setattr(bench, "probe_shares", lambda seconds: Shares({2: 0.01, 50: 0.025}, 2.0))
    delays = Latency(50.0, 60.0, 90.0, 200.0, 1000.0)
    monkeypatch.setattr(
        bench, "probe_echo", lambda seconds: Echo(10_000, 0.01, 200, delays, delays)
    )
    monkeypatch.setattr(bench, "probe_scaling", lambda seconds: Scaling(2, 1.93, 0.98))
    near = Predicted("constant", 0.2, 1000, 0.0095, 0.0100, 0.020, 0, 0.9, 1e-5)
    far = Predicted("exponential", 0.8, 4000, 0.0110, 0.0100, 0.009, 0, 0.8, 1e-5)
    monkeypatch.setattr(bench, "probe_prediction", lambda: Prediction([near, far], 0.03))
    monkeypatch.setattr(
        bench,
        "probe_many_topics",
        lambda seconds: {
            "registration": Registration(50_000, 12.34, 5.6),
            "dispatch": Dispatch(50_000, 50, 400_000.0, 380_000.0),
        },
    )
    return seen


def test_the_options_reach_the_plan(calls: list[Call]) -> None:
    arguments = ["node", "--size", "256", "--seconds", "3", "--peers", "pyzmq", "--repeats", "5"]
    result = CliRunner().invoke(bench.app, arguments)
    assert result.exit_code == 0, result.output
    ((groups, repeats, options),) = calls
    assert {point.size for group in groups for point in group.points} == {256}
    assert {point.system for group in groups for point in group.points} == {"antiphon", "pyzmq"}
    assert repeats == 5
    assert options.seconds == 3.0


def test_the_whole_run_says_what_it_leaves_out_and_a_part_of_it_does_not(calls: list[Call]) -> None:
    result = CliRunner().invoke(bench.app, ["node", "--peers", "pyzmq,pynng", "--repeats", "1"])
    assert result.exit_code == 0, result.output
    assert "Not measured, so that it ends in time: 256 B, one way and" in result.stdout
    assert "threads: pynng." in " ".join(result.stdout.split())
    result = CliRunner().invoke(bench.app, ["node", "--json", "--repeats", "1"])
    assert any("full duplex" in line for line in json.loads(result.stdout)["left_out"])
    for part in (["--quick"], ["--size", "256"]):
        result = CliRunner().invoke(bench.app, ["node", "--repeats", "1", *part])
        assert result.exit_code == 0, result.output
        assert "Not measured" not in result.stdout


def test_json_is_one_document_on_standard_output(calls: list[Call]) -> None:
    result = CliRunner().invoke(bench.app, ["node", "--quick", "--json", "--repeats", "2"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["benchmark"] == "node"
    assert {"machine", "versions", "command", "points", "reach", "absent"} <= set(document)
    assert all(len(point["repeats"]) == 2 for point in document["points"])


def test_requests_have_latencies_in_the_document(calls: list[Call]) -> None:
    result = CliRunner().invoke(bench.app, ["request", "--quick", "--json", "--repeats", "2"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["benchmark"] == "request"
    ours = document["points"][0]
    assert ours["latency_us"]["p999"] == 80.0
    assert [repeat["latency_us"]["maximum"] for repeat in ours["repeats"]] == [12_345.0] * 2
    targets = {item["target"]: item["measured"] for item in document["reach"]}
    assert targets["at most 1.05 x python-sockets"] == 1.0
    assert targets["at least 2 x pyzmq DEALER/ROUTER"] == 1.0
    assert targets["at least 4 x nats.py"] is None


def test_requests_are_a_table_with_percentiles_and_targets(calls: list[Call]) -> None:
    arguments = ["request", "--quick", "--seconds", "0.1", "--repeats", "1"]
    result = CliRunner().invoke(bench.app, arguments)
    assert result.exit_code == 0, result.output
    for expected in ("p99.9", "12ms", "1000 tasks", "16 threads", "at most 0.2 x pyzmq REQ/REP"):
        assert expected in result.stdout, expected
    ((_, repeats, options),) = calls
    assert repeats == 1
    assert options.seconds == 0.1


def test_topics_are_a_table_with_delays_targets_and_probes(calls: list[Call]) -> None:
    result = CliRunner().invoke(bench.app, ["topic", "--seconds", "1", "--repeats", "1"])
    assert result.exit_code == 0, result.output
    for expected in (
        "beside a flood",
        "half its most",
        "10,000/s",
        "12ms",
        "at least 10 x the best peer",
        "p99.9 0.08 ms; T 10 ms, longest call 0.05 ms",
        "1,000 of 1,000",
        "0.025",
        "by number of handlers 2: 0.010, 50: 0.025",
        "50 and 90 us",
        "2 topics; 0.98 where every event is a call in Python",
        "1.10",
        "exponential, load 0.80; of 2 loads 1 above the bound; 5,000",
        "12.3 us each",
        "380k against 400k msgs/s",
    ):
        assert expected in result.stdout, expected
    ((groups, repeats, options),) = calls
    assert len(groups) == 4
    assert (repeats, options.seconds) == (1, 1.0)


@pytest.mark.parametrize(
    ("arguments", "repeats", "seconds", "probes"),
    [
        ([], 3, 4.0, {"echo", "shares", "scaling", "prediction", "registration", "dispatch"}),
        (["--quick"], 2, 0.5, set()),
        (["--size", "64"], 3, 4.0, set()),
        (["--quick", "--repeats", "5", "--seconds", "0.2"], 5, 0.2, set()),
    ],
)
def test_topics_have_their_own_counts_and_probes(
    arguments: list[str], repeats: int, seconds: float, probes: set[str], calls: list[Call]
) -> None:
    result = CliRunner().invoke(bench.app, ["topic", "--json", *arguments])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["benchmark"] == "topic"
    assert set(document["probes"]) == probes
    ((_, runs, options),) = calls
    assert (runs, options.seconds) == (repeats, seconds)


def test_an_absent_peer_is_no_failure(calls: list[Call]) -> None:
    result = CliRunner().invoke(bench.app, ["node", "--size", "64", "--peers", "nats"])
    assert result.exit_code == 0, result.output
    assert "absent" in result.stdout


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    ("arguments", "probes"),
    [
        ([], {"stalled", "idle", "connections"}),
        (["--quick"], set()),
        (["--size", "64"], set()),
    ],
)
def test_only_a_full_run_probes(arguments: list[str], probes: set[str]) -> None:
    result = CliRunner().invoke(bench.app, ["node", "--json", "--repeats", "1", *arguments])
    assert result.exit_code == 0, result.output
    assert set(json.loads(result.stdout)["probes"]) == probes


def absent(groups: list[Group], *_: object) -> list[Measurement]:
    """What a run gives on a machine as it is described to the peers."""
    return [
        Measurement(point, 0, "absent", line)
        if (line := PEERS[point.system].missing(point.variant))
        else Measurement(point, 0, "ok", messages=1000, seconds=1.0, rate=1000.0)
        for group in groups
        for point in group.points
    ]


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    ("lacking", "code", "line"),
    [
        ("cryptography", 0, "absent: antiphon tls: cryptography not found; install the package"),
        ("OpenSSL 3", 0, "absent: antiphon tls: OpenSSL 3 not found; install the system package"),
        ("antiphon._core", 1, "absent: antiphon: antiphon._core not found; install antiphon"),
    ],
)
def test_what_ours_lacks_is_said_once_and_fails_only_when_nothing_works(
    lacking: str, code: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Requirement, "present", lambda self: self.name != lacking)
    monkeypatch.setattr(bench, "run_plan", absent)
    arguments = ["node", "--size", "64", "--peers", "asyncio", "--repeats", "1"]
    result = CliRunner().invoke(bench.app, arguments)
    assert result.exit_code == code, result.output
    assert result.stdout.count(line) == 1
    assert result.stderr.count(line) == 1


@pytest.mark.usefixtures("calls")
def test_a_failure_of_ours_is_exit_code_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(groups: list[Group], *_: object) -> list[Measurement]:
        return [Measurement(p, 0, "timed out", "no answer") for g in groups for p in g.points]

    monkeypatch.setattr(bench, "run_plan", fail)
    result = CliRunner().invoke(bench.app, ["node", "--quick"])
    assert result.exit_code == 1
    assert "timed out, no answer" in result.stdout


@pytest.mark.parametrize("command", ["node", "request", "topic"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["--peers", "kafka"],
        ["--size", "0"],
        ["--size", "99999999999"],
        ["--repeats", "0"],
        ["--seconds", "0"],
        ["--no-such-option"],
    ],
)
def test_bad_arguments_are_exit_code_two(
    command: str, arguments: list[str], calls: list[Call]
) -> None:
    result = CliRunner().invoke(bench.app, [command, *arguments])
    assert result.exit_code == 2
    assert calls == []


def test_help_has_an_example() -> None:
    result = CliRunner().invoke(bench.app, ["node", "--help"])
    assert result.exit_code == 0
    assert "antiphon bench node --size 4096" in result.stdout


def test_help_of_topics_has_an_example() -> None:
    result = CliRunner().invoke(bench.app, ["topic", "--help"])
    assert result.exit_code == 0
    assert "antiphon bench topic --size 1024" in result.stdout


def test_help_of_requests_has_an_example() -> None:
    result = CliRunner().invoke(bench.app, ["request", "--help"])
    assert result.exit_code == 0
    assert "antiphon bench request --size 64" in result.stdout
