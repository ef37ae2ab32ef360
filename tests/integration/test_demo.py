"""``antiphon demo`` as people run it: in a terminal, in a pipe, interrupted, without pyzmq."""

from __future__ import annotations

import ast
import functools
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from antiphon.cli import demo
from antiphon.cli.acts.stage import CODE_COLUMNS, Act, ActFailed, Scene, Stage
from antiphon.cli.main import main
from integration.demos import interrupt, quick_demo

pytestmark = pytest.mark.timeout(120)

WITHOUT_PYZMQ = """
import dataclasses
from antiphon.lab.peers import PEERS, Requirement
from antiphon.lab.peers.requests import REQUEST_PEERS
gone = (Requirement("no_such_module", "the package pyzmq"),)
for peers in (PEERS, REQUEST_PEERS):
    peers["pyzmq"] = dataclasses.replace(peers["pyzmq"], requires=gone)
messages.ROUNDS = round_trips.ROUNDS = 1
"""
# Straight to the second scene, so that Ctrl-C need not wait for the first. Its last part takes so
# many rounds that it is not over when the keys are pressed, however late; so with the others.
ROUND_TRIPS_ONLY = """
import dataclasses
demo.ACTS = (dataclasses.replace(messages.ACT, scenes=(round_trips.SCENE,)),)
compare = round_trips.compare
def at_length(stage, group, figure, name, rounds, *rest):
    rounds = 1 if group.points[0].threads == 1 else 60
    return compare(stage, group, figure, name, rounds, *rest)
round_trips.compare = at_length
"""
SHARES_ONLY = "demo.ACTS = (shares.ACT,)\nshares.SECONDS = 30.0\n"
ORDERS_ONLY = "demo.ACTS = (orders.ACT,)\norders.SECONDS = 3.0\n"


@functools.cache
def run_demo(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    command = quick_demo(*arguments, before=before)
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.needs("pyzmq")
def test_code_comes_first_and_figures_with_the_ratio_after_it() -> None:
    done = run_demo()
    assert done.returncode == 0, done.stderr
    text = done.stdout
    shown, measured = text.index("node.on(200, handler)"), text.index("million messages/s")
    assert shown < measured < text.index("x pyzmq")
    for variant in ("callback", "inbox", "batch"):
        assert text.count(f"antiphon, {variant}") == 3, "two rounds and one row of the table"
    assert text.count("pyzmq PUSH/PULL") == 3


@pytest.mark.needs("pyzmq")
def test_round_trips_show_their_code_then_the_latency_and_the_rate_with_their_ratios() -> None:
    done = run_demo()
    assert done.returncode == 0, done.stderr
    text = done.stdout
    places = [
        text.index(shown)
        for shown in (
            "node.on(200, lambda source, data: data)",
            "node.request(1, payload, kind=200)",
            "us, p50",
            "64 B and back, 1 thread ",
            "requests/s, 16 threads",
            "64 B and back, 16 threads",
        )
    ]
    assert places == sorted(places)
    assert text.count("x pyzmq") == 3
    for name in ("antiphon, request", "pyzmq REQ/REP"):
        assert text.count(name) == 2 * 3, "twice two rounds and one row of the table"


def test_without_a_terminal_there_are_no_escapes() -> None:
    done = run_demo(before=WITHOUT_PYZMQ)
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout


def test_a_missing_pyzmq_is_one_line_and_no_failure() -> None:
    done = run_demo(before=WITHOUT_PYZMQ)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("no ratio")]
    assert "pip install 'antiphon[lab]'" in line
    assert "antiphon, callback" in done.stdout
    assert "antiphon, request" in done.stdout
    assert done.stderr == ""


def test_json_is_one_document_with_the_figures_of_every_act() -> None:
    done = run_demo("--json", before=WITHOUT_PYZMQ)
    document = json.loads(done.stdout)
    assert set(document["acts"]) == {act.name for act in demo.ACTS[:-1]}
    both = document["acts"]["shares"]["shares"]
    assert [row["name"] for row in both] == ["shares off", "a share of 0.2"]
    assert all(row["events"] >= 10 and row["max"] >= row["p99"] >= row["p50"] > 0 for row in both)
    orders = document["acts"]["orders"]
    assert orders["missed"] == 0 < orders["orders"]
    act = document["acts"]["messages"]
    assert [point["variant"] for point in act["points"]] == ["callback", "inbox", "batch"]
    assert [point["threads"] for point in act["round_trips"]] == [1, 16]
    measured = [*act["points"], *act["round_trips"]]
    assert all(point["outcome"] == "ok" for point in measured), measured
    assert all(point["latency_us"]["p50"] > 0 for point in act["round_trips"])
    assert all(point["p50_ratio_to_pyzmq"] is None for point in act["round_trips"])


def test_a_share_shows_its_code_the_prediction_and_both_measurements() -> None:
    done = run_demo(before=WITHOUT_PYZMQ)
    assert done.returncode == 0, done.stderr
    text = done.stdout
    places = [
        text.find(shown)
        for shown in (
            "sub.share = 0.2",
            "shares off: predicted mean response",
            "a share of 0.2: predicted mean response",
            "the paced topic",
        )
    ]
    assert -1 not in places, text
    assert places == sorted(places)


SCENES = {
    "all": [sys.executable, "-m", "antiphon.cli.main", "demo"],
    "second": quick_demo(before=ROUND_TRIPS_ONLY),
    "shares": quick_demo(before=SHARES_ONLY),
    "orders": quick_demo(before=ORDERS_ONLY),
}


# What was said last and how many workers there are when the keys are pressed, and how long both
# have been there.
@pytest.mark.parametrize(
    ("scenes", "line", "workers", "later"),
    [
        ("all", "antiphon", 0, 0.0),
        ("all", "antiphon", 1, 0.0),
        ("all", "antiphon", 2, 0.0),
        ("all", "antiphon", 2, 0.6),
        ("all", "antiphon", 2, 1.5),
        ("second", "node.request", 1, 0.0),
        ("second", "node.request", 2, 0.0),
        ("second", "node.request", 2, 0.4),
        ("second", "and back, 1 thread", 2, 0.0),
        ("second", "and back, 1 thread", 2, 0.4),
        ("second", "requests/s", 0, 0.0),
        ("shares", "sub.predict", 0, 0.0),
        ("shares", "sub.predict", 1, 0.0),
        ("shares", "sub.predict", 1, 0.6),
        ("shares", "shares off", 1, 0.2),
        ("orders", "bus.subscribe", 1, 0.0),
        ("orders", "bus.subscribe", 3, 0.3),
        ("orders", "killed with -9", 2, 0.1),
    ],
)
def test_control_c_leaves_nothing_behind(
    scenes: str, line: str, workers: int, later: float, tmp_path: Path
) -> None:
    interrupt(SCENES[scenes], line, workers, later, tmp_path)


def test_an_act_that_fails_is_one_line_and_status_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(stage: Stage) -> dict[str, object]:
        raise ActFailed("the orchestra is late")

    monkeypatch.setattr(demo, "ACTS", (Act("late", "Late", 1.0, (Scene("pass", fail),)),))
    assert main(["demo"]) == 1
    assert capsys.readouterr().err == "antiphon: the demonstration stopped: the orchestra is late\n"


def test_in_a_terminal_the_line_about_what_runs_goes_away() -> None:
    screen = io.StringIO()
    stage = Stage(Console(file=screen, force_terminal=True, width=80))
    with stage.now("round 1: something"):
        assert "round 1: something" in screen.getvalue()
    assert screen.getvalue().endswith("\r")
    stage.code("node.send(1, b'')")
    assert "\x1b[" in screen.getvalue()


def test_a_stage_for_a_poor_terminal_uses_plain_characters() -> None:
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    stage = Stage(Console(file=screen, width=60))
    stage.title("Title")
    stage.show(Table(stage.block))
    screen.seek(0)
    assert screen.read().isascii()


@pytest.mark.parametrize("act", demo.ACTS, ids=lambda act: act.name)
def test_the_code_of_an_act_is_python_that_fits_a_terminal(act: Act) -> None:
    for scene in act.scenes:
        ast.parse(scene.code)
        assert max(map(len, scene.code.splitlines())) <= CODE_COLUMNS
    assert act.seconds <= 60


def test_the_whole_takes_less_than_three_minutes() -> None:
    assert sum(act.seconds for act in demo.ACTS) <= 150


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--help"]) == 0
    assert "antiphon demo" in capsys.readouterr().out
