"""What ``antiphon lab`` says before it starts anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphon.cli import lab
from antiphon.cli.main import main
from antiphon.lab import hosts
from antiphon.lab.plan import load_plan, runs_of, shipped_plans

PLAN = """
title = "Now and later"

[times]
kept_until = 2

[[series]]
name = "now"
pattern = "one-way"
protocols = ["spread"]
sizes = [64]

[[series]]
name = "then"
later = ["antiphon-pigeon"]
pattern = "one-way"
protocols = ["antiphon-pigeon"]
sizes = [64]
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(PLAN, encoding="utf-8")
    return path


def test_what_comes_later_is_named_as_missing(
    plan: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "run", str(plan), "--dry-run"]) == 0
    (line,) = [one for one in capfd.readouterr().out.splitlines() if "pigeon" in one]
    assert line == ("missing until a later version: then: antiphon-pigeon (needs antiphon-pigeon)")
    assert main(["lab", "run", str(plan), "--dry-run", "--json"]) == 0
    (later,) = json.loads(capfd.readouterr().out)["later"]
    assert (later["series"], later["needs"]) == ("then", ["antiphon-pigeon"])


def test_the_table_at_the_end_has_a_row_for_what_is_missing(
    plan: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "250")  # so that no row takes two lines
    assert main(["lab", "run", str(plan), "--out", str(tmp_path / "out")]) == 0
    rows = capfd.readouterr().out.splitlines()
    (absent,) = [row for row in rows if row.split()[:1] == ["spread"]]
    assert "in no registry" in absent
    (missing,) = [row for row in rows if row.split()[:1] == ["antiphon-pigeon"]]
    assert "missing until a later version (then needs antiphon-pigeon)" in missing


@pytest.mark.parametrize("name", ["wide-area"])
def test_shipped_plans_name_what_they_wait_for(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "run", name, "--quick", "--dry-run"]) == 0
    assert "missing until a later version: " in capfd.readouterr().out


def test_the_list_of_plans_names_what_they_wait_for(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "plans"]) == 0
    said = capfd.readouterr().out.splitlines()
    assert "wide-area: missing until a later version: antiphon-bulk (streams)" in said


@pytest.mark.parametrize(
    ("plan_name", "protocol"),
    [("wide-area", "antiphon-bulk"), ("stability", "antiphon-bulk"), ("mine", "antiphon-pigeon")],
)
def test_a_protocol_that_comes_later_is_missing_and_not_unheard_of(
    plan: Path, plan_name: str, protocol: str, capfd: pytest.CaptureFixture[str]
) -> None:
    name = str(plan) if plan_name == "mine" else plan_name
    assert main(["lab", "run", name, "--dry-run", "--protocols", protocol]) != 0
    said = capfd.readouterr().err
    assert f"missing until a later version: {protocol}; there are" in said
    assert "no such protocol" not in said


def test_beside_others_what_comes_later_is_named_as_missing(
    plan: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    both = "spread,antiphon-pigeon"
    assert main(["lab", "run", str(plan), "--dry-run", "--protocols", both]) == 0
    assert "missing until a later version: then" in capfd.readouterr().out


UNFIT = """
[times]
kept_until = 10

[[series]]
name = "far-too-long"
pattern = "one-way"
protocols = ["udp-python", "tcp-python"]
sizes = [100_000]
"""


def test_what_does_not_apply_is_told_before_and_takes_no_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "unfit.toml"
    path.write_text(UNFIT)
    assert main(["lab", "run", str(path), "--dry-run"]) == 0
    said = capfd.readouterr().out
    assert "not applicable: a message of 100000 bytes: udp-python carries" in said
    assert "(1 run)" in said
    assert main(["lab", "run", str(path), "--dry-run", "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert list(facts["not_applicable"].values()) == [1]
    # Three checks of the link, and one run.
    assert facts["seconds"] == pytest.approx(3 * 4.5 + 11.5)
    assert len(facts["ids"]) == 2


def test_the_memory_of_the_largest_run_is_told_before(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "run", "group", "--dry-run", "--json"]) == 0
    needed = json.loads(capfd.readouterr().out)["memory_bytes"]
    # Sixteen JVMs, each with all of its heap from the begin.
    assert 16 * 512 * 2**20 < needed < 16 * 1024 * 2**20
    assert main(["lab", "run", "group", "--dry-run"]) == 0
    assert f"{needed / 1e9:.1f} GB of memory" in capfd.readouterr().out


FAULTY = """
[times]
kept_until = 10

[[series]]
name = "links"
pattern = "one-way"
protocols = ["link-ping"]
sizes = [0]
"""


def test_every_fault_of_a_plan_has_a_line_of_its_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "faulty.toml"
    path.write_text(FAULTY)
    assert main(["lab", "run", str(path), "--dry-run"]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["antiphon"] * 3
    assert [line.split(": ")[2] for line in lines] == [
        "series.links.name", "series.links.protocols", "series.links.sizes",
    ]  # fmt: skip
    # What is measured in any case cannot be asked for, and is not offered.
    assert "link-" not in lines[1].partition("allowed")[2]


MANY = """
[times]
kept_until = 10

[[series]]
name = "rates"
pattern = "one-way"
protocols = ["spread", "appia"]
sizes = [64]
rates = [10, 1_000]
"""


def test_the_table_at_the_end_tells_runs_apart_and_names_protocols_in_full(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    path = tmp_path / "many.toml"
    path.write_text(
        MANY.replace('"spread"', '"antiphon-topic-of-mine"').replace(
            "[[series]]", '[adapters.antiphon-topic-of-mine]\nfile = "broken.py"\n\n[[series]]'
        )
    )
    (tmp_path / "broken.py").write_text("no Python")
    assert main(["lab", "run", str(path), "--out", str(tmp_path / "out")]) == 0
    lines = capfd.readouterr().out.splitlines()
    (begin,) = [at for at, line in enumerate(lines) if line.startswith("all runs: ")]
    same, head, *rows = lines[begin:]
    assert lines[0].startswith("bare loopback: link-ping ")
    assert same == "all runs: pattern one-way, load none, link loopback, size 64"
    assert head.split() == ["protocol", "rate/s", "MB/s", "messages/s", "outcome"]
    named = [row.split()[:2] for row in rows if not row.startswith(" ")]
    assert named == [
        ["antiphon-topic-of-mine", "1,000"], ["antiphon-topic-of-mine", "10"],
        ["appia", "1,000"], ["appia", "10"],
    ]  # fmt: skip


@pytest.mark.parametrize(("load", "warned"), [(0.05, False), (0.1, True), (0.83, True)])
@pytest.mark.parametrize("begun", [False, True], ids=["run", "resume"])
def test_a_machine_that_others_keep_busy_is_told_before_the_first_run(
    plan: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    load: float,
    warned: bool,
    begun: bool,
) -> None:
    # What was there when it was made says nothing of now.
    monkeypatch.setattr(hosts, "other_load", lambda: 1.0 if begun else load)
    monkeypatch.setattr(lab, "other_load", lambda: load)
    monkeypatch.setattr(lab, "run_campaign", lambda *_: None)
    monkeypatch.setattr(lab, "_summarise", lambda *_: None)
    out = str(tmp_path / "out")
    assert main(["lab", "run", str(plan), "--out", out]) == 0
    if begun:
        capfd.readouterr()
        assert main(["lab", "resume", out]) == 0
    first = capfd.readouterr().err.splitlines()[0]
    assert first.startswith("warning: ") == warned
    assert (f"others use {load:.0%} of this machine" in first) == warned


@pytest.mark.parametrize("name", shipped_plans())
def test_a_plan_that_is_printed_is_one_that_can_be_run(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "plans", name]) == 0
    copy = tmp_path / "copy.toml"
    copy.write_text(capfd.readouterr().out, encoding="utf-8")
    assert copy.read_text() == load_plan(name).text
    assert runs_of(load_plan(copy)) == runs_of(load_plan(name))
    assert main(["lab", "plans", name, "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert (facts["name"], facts["toml"]) == (name, copy.read_text())


def test_a_plan_that_does_not_come_with_it_cannot_be_printed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["lab", "plans", "stabilty"]) == 2
    said = capfd.readouterr().err
    assert "'stabilty'" in said
    assert "stability" in said
