"""``antiphon demo`` as people run it: in a terminal, in a pipe, interrupted, without pyzmq."""

from __future__ import annotations

import ast
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from antiphon.cli import demo
from antiphon.cli.acts.stage import CODE_COLUMNS, Act, ActFailed, Stage
from antiphon.cli.main import main

# The same acts in less time: the figures are not looked at here.
QUICK = """
import sys
from antiphon.cli.acts import messages
from antiphon.cli.main import main
from antiphon.lab.bench.point import Options
messages.OPTIONS = Options(seconds=0.15, warmup=0.05, min_bytes=0)
"""
WITHOUT_PYZMQ = """
import dataclasses
from antiphon.lab.peers import PEERS, Requirement
gone = (Requirement("no_such_module", "the package pyzmq"),)
PEERS["pyzmq"] = dataclasses.replace(PEERS["pyzmq"], requires=gone)
"""


def run_demo(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    code = f"{QUICK}{before}\nsys.exit(main(['demo', *{list(arguments)!r}]))"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False
    )


def children_of(pid: int) -> set[int]:
    """Every living process below ``pid``."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(path.parent.name)] = int(fields[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


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
    assert done.stderr == ""


def test_json_is_one_document_with_the_figures_of_every_act() -> None:
    done = run_demo("--json", before=WITHOUT_PYZMQ)
    document = json.loads(done.stdout)
    assert set(document["acts"]) == {act.name for act in demo.ACTS}
    points = document["acts"]["messages"]["points"]
    assert [point["variant"] for point in points] == ["callback", "inbox", "batch"]
    assert all(point["outcome"] == "ok" for point in points), points


# How many workers there are when the keys are pressed, and how long they have been there.
@pytest.mark.parametrize(("workers", "later"), [(0, 0.0), (1, 0.0), (2, 0.0), (2, 0.6), (2, 1.5)])
def test_control_c_leaves_nothing_behind(workers: int, later: float) -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "antiphon.cli.main", "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    seen: set[int] = set()
    try:
        assert command.stdout is not None
        assert "antiphon" in command.stdout.readline()
        deadline = time.monotonic() + 20
        while len(now := children_of(command.pid)) < workers and time.monotonic() < deadline:
            seen |= now
            time.sleep(0.005)
        time.sleep(later)
        seen |= children_of(command.pid)
        # As a terminal does it: to everyone in the foreground.
        os.killpg(command.pid, signal.SIGINT)
        output, errors = command.communicate(timeout=15)
        assert command.returncode == 130, errors
        assert "Traceback" not in output + errors
        deadline = time.monotonic() + 5
        while any(alive(pid) for pid in seen) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not [pid for pid in seen if alive(pid)]
    finally:
        command.kill()
        command.communicate()


def test_an_act_that_fails_is_one_line_and_status_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(stage: Stage) -> dict[str, object]:
        raise ActFailed("the orchestra is late")

    monkeypatch.setattr(demo, "ACTS", (Act("late", "Late", "pass", 1.0, fail),))
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
    ast.parse(act.code)
    assert max(map(len, act.code.splitlines())) <= CODE_COLUMNS
    assert act.seconds <= 30


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--help"]) == 0
    assert "antiphon demo" in capsys.readouterr().out
