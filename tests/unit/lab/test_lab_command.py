"""What ``antiphon lab`` says before it starts anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphon.cli.main import main

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


@pytest.mark.parametrize("name", ["stability", "group", "wide-area", "shootout"])
def test_shipped_plans_name_what_they_wait_for(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "run", name, "--quick", "--dry-run"]) == 0
    assert "missing until a later version: " in capfd.readouterr().out
