"""Two campaigns beside each other: a verdict where the repeats allow one, and else none."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from antiphon.cli.main import main
from antiphon.errors import ConfigError
from antiphon.pipeline.compare import (
    CANNOT_TELL,
    FASTER,
    SAME,
    SLOWER,
    Comparison,
    compare,
    interval,
    print_comparison,
    to_json,
)
from unit.pipeline.finished import run, write


def repeats(factor: float = 1.0, delay: float = 1.0, **more: Any) -> list[dict[str, Any]]:
    """Three runs that differ by two per cent."""
    return [
        run(
            rate=1000.0 * factor * part,
            p50=round(100 * delay * part),
            p99=round(900 * delay * part),
            repeat=number,
            **more,
        )
        for number, part in enumerate((0.99, 1.0, 1.01), 1)
    ]


def compared(
    tmp_path: Path, old: list[dict[str, Any]], new: list[dict[str, Any]], **options: Any
) -> Comparison:
    a = write(tmp_path / "a", "runs", "old", old)
    b = write(tmp_path / "b", "runs", "new", new)
    return compare(a, b, **options)


def verdicts(found: Comparison) -> dict[str, str]:
    return {row.metric: row.verdict for row in found.rows}


def test_the_same_figures_are_the_same(tmp_path: Path) -> None:
    found = compared(tmp_path, repeats(), repeats())
    assert verdicts(found) == {"messages/s": SAME, "p50 us": SAME, "p99 us": SAME}
    assert not found.slower
    assert not found.warnings
    assert (found.before, found.after) == ("old", "new")


def test_less_throughput_is_slower(tmp_path: Path) -> None:
    found = compared(tmp_path, repeats(), repeats(factor=0.8))
    assert verdicts(found) == {"messages/s": SLOWER, "p50 us": SAME, "p99 us": SAME}
    (row,) = found.slower
    assert row.keys["protocol"] == "pyzmq"
    assert row.ratio == pytest.approx(0.8)
    assert row.low is not None
    assert row.high is not None
    # Of the repeats, no draw can be further apart than their extremes.
    assert 0.8 * 0.99 / 1.01 <= row.low < 0.8 < row.high <= 0.8 * 1.01 / 0.99


def test_more_throughput_is_faster(tmp_path: Path) -> None:
    found = compared(tmp_path, repeats(), repeats(factor=1.3))
    assert verdicts(found)["messages/s"] == FASTER
    assert not found.slower


def test_longer_delays_are_slower_and_shorter_ones_faster(tmp_path: Path) -> None:
    found = compared(tmp_path, repeats(), repeats(delay=1.5))
    assert verdicts(found) == {"messages/s": SAME, "p50 us": SLOWER, "p99 us": SLOWER}
    again = compare(tmp_path / "b", tmp_path / "a")
    assert verdicts(again) == {"messages/s": SAME, "p50 us": FASTER, "p99 us": FASTER}


def test_two_microseconds_are_no_difference(tmp_path: Path) -> None:
    old = [run(p50=4, p99=10), run(p50=4, p99=10)]
    new = [run(p50=6, p99=13), run(p50=6, p99=13)]
    assert verdicts(compared(tmp_path, old, new)) == {
        "messages/s": SAME,
        "p50 us": SAME,
        "p99 us": SLOWER,
    }


def test_a_change_within_the_tolerance_is_none(tmp_path: Path) -> None:
    old, new = repeats(), repeats(factor=0.93)
    assert verdicts(compared(tmp_path, old, new))["messages/s"] == SAME
    strict = compare(tmp_path / "a", tmp_path / "b", tolerance=0.02)
    assert verdicts(strict)["messages/s"] == SLOWER


def test_repeats_that_lie_far_apart_tell_nothing(tmp_path: Path) -> None:
    old = [run(rate=rate) for rate in (500.0, 1000.0, 1500.0)]
    new = [run(rate=rate) for rate in (400.0, 800.0, 1200.0)]
    found = compared(tmp_path, old, new)
    assert verdicts(found)["messages/s"] == CANNOT_TELL
    assert not found.slower


def test_with_one_repeat_nothing_can_be_told_however_large_the_change(tmp_path: Path) -> None:
    found = compared(tmp_path, repeats(), [run(rate=10.0, p50=9000, p99=90_000)])
    assert set(verdicts(found).values()) == {CANNOT_TELL}
    assert not found.slower
    assert all(row.low is None and row.high is None for row in found.rows)
    assert any("one repeat" in warning for warning in found.warnings)


def test_a_protocol_that_no_longer_finishes_is_slower(tmp_path: Path) -> None:
    new = [run(outcome="blocked", rate=None, p50=None, p99=None) for _ in range(3)]
    found = compared(tmp_path, repeats(), new)
    (row,) = found.slower
    assert row.metric == "finished"
    assert row.note == "blocked 3 of 3"
    back = compare(tmp_path / "b", tmp_path / "a")
    assert [one.verdict for one in back.rows] == [FASTER]


def test_one_run_of_three_that_fails_is_told_and_not_judged(tmp_path: Path) -> None:
    new = [*repeats()[:2], run(outcome="disconnected")]
    found = compared(tmp_path, repeats(), new)
    assert verdicts(found)["finished"] == CANNOT_TELL
    (row,) = (one for one in found.rows if one.metric == "messages/s")
    assert row.repeats == (3, 2)


def test_figures_of_runs_that_did_not_finish_do_not_count(tmp_path: Path) -> None:
    new = [*repeats(), run(rate=1.0, outcome="error")]
    assert verdicts(compared(tmp_path, repeats(), new))["messages/s"] == SAME


def test_every_key_sets_measurements_apart(tmp_path: Path) -> None:
    old = [*repeats(), *repeats(workload="cpu-60"), *repeats(nodes=4)]
    new = [*repeats(), *repeats(workload="cpu-60", factor=0.5), *repeats(nodes=4)]
    found = compared(tmp_path, old, new)
    assert len(found.rows) == 9
    (row,) = found.slower
    assert row.keys["workload"] == "cpu-60"
    assert "cpu-60" in row.name
    assert "2000B" in row.name


def test_what_only_one_side_has_is_said(tmp_path: Path) -> None:
    found = compared(tmp_path, repeats(), repeats(protocol="redis"))
    assert not found.rows
    assert any("before only: pyzmq" in warning for warning in found.warnings)
    assert any("after only: redis" in warning for warning in found.warnings)
    assert any("no measurement in common" in warning for warning in found.warnings)


def test_another_machine_is_warned_about(tmp_path: Path) -> None:
    found = compared(tmp_path, repeats(), repeats(cpu="a faster one", cores=64))
    (warning,) = found.warnings
    assert "different machines" in warning
    assert "a processor" in warning
    assert "64 cores" in warning


def test_another_version_is_a_note_and_no_other_machine(tmp_path: Path) -> None:
    found = compared(tmp_path, repeats(), repeats(antiphon="0.2.0"))
    assert found.warnings == ("antiphon was 0.1.0, and is 0.2.0 after",)


def test_two_campaigns_of_one_directory_are_named_by_their_ids(tmp_path: Path) -> None:
    directory = write(tmp_path, "runs", "monday", repeats())
    write(directory, "runs", "tuesday", repeats(factor=0.5))
    with pytest.raises(ConfigError, match="several campaigns; name one of: monday, tuesday"):
        compare(directory, directory)
    found = compare(directory, directory, before="monday", after="tuesday")
    assert [row.metric for row in found.slower] == ["messages/s"]
    with pytest.raises(ConfigError, match="no campaign sunday"):
        compare(directory, directory, before="monday", after="sunday")


def test_a_directory_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="antiphon pipeline run"):
        compare(tmp_path, tmp_path)


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, 7.0])
def test_a_tolerance_that_makes_no_sense_is_refused(tmp_path: Path, tolerance: float) -> None:
    with pytest.raises(ConfigError, match="tolerance"):
        compare(tmp_path, tmp_path, tolerance=tolerance)


@pytest.mark.parametrize(
    ("new", "options", "code"),
    [
        (repeats(), (), 0),
        ([run(rate=10.0)], (), 0),  # one repeat: nothing can be told, and nothing is claimed
        (repeats(factor=0.5), (), 1),
        (repeats(protocol="nats"), (), 1),
        (repeats(outcome="blocked"), ("--before", "old"), 1),
        (repeats(), ("--tolerance", "7"), 2),
        (repeats(), ("--before", "other"), 2),
        (repeats(), ("--json", "--after"), 2),
    ],
)
def test_a_script_can_tell_slower_from_a_mistake_of_its_own(
    new: list[dict[str, Any]],
    options: tuple[str, ...],
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    a = write(tmp_path / "a", "runs", "old", repeats())
    b = write(tmp_path / "b", "runs", "new", new)
    assert main(["pipeline", "compare", str(a), str(b), *options]) == code
    assert capsys.readouterr().err.count("\n") == (code == 2)
    assert main(["pipeline", "compare", str(a), str(tmp_path / "nowhere")]) == 2


def test_what_completed_on_neither_side_is_not_called_the_same(tmp_path: Path) -> None:
    found = compared(tmp_path, repeats(outcome="blocked"), repeats(outcome="blocked"))
    assert not found.rows
    assert any("completed in neither" in warning for warning in found.warnings)


def test_it_comes_out_the_same_each_time(tmp_path: Path) -> None:
    first = compared(tmp_path, repeats(), repeats(factor=0.9))
    assert compare(tmp_path / "a", tmp_path / "b") == first
    other = compare(tmp_path / "a", tmp_path / "b", seed=2, resamples=100)
    assert [row.ratio for row in other.rows] == [row.ratio for row in first.rows]


def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says() -> None:
    draws = random.Random(3)
    held = 0
    for _ in range(300):
        old = [draws.gauss(1000, 30) for _ in range(12)]
        new = [draws.gauss(900, 30) for _ in range(12)]
        low, high = interval(old, new, 400, draws) or (0.0, 0.0)
        held += low <= 0.9 <= high
    # A bootstrap of twelve repeats is a little too narrow: 95 % become some 91.
    assert 0.85 < held / 300 < 0.99


def test_the_document_for_programs_has_it_all(tmp_path: Path) -> None:
    found = compared(tmp_path, repeats(), repeats(factor=0.5))
    document = json.loads(to_json(found))
    assert document["slower"] == 1
    assert document["tolerance"] == 0.1
    assert len(document["rows"]) == 3
    assert document["rows"][0]["verdict"] == SLOWER
    assert document["rows"][0]["keys"]["protocol"] == "pyzmq"


def test_people_see_what_changed_and_a_count_of_what_did_not(tmp_path: Path) -> None:
    found = compared(tmp_path, repeats(), repeats(factor=0.5))
    text = io.StringIO()
    print_comparison(found, Console(file=text, width=200))
    shown = text.getvalue()
    assert "throughput pyzmq" in shown
    assert "0.500" in shown
    assert "p99" not in shown
    assert "old -> new, tolerance 10%: 1 slower, 0 faster, 2 same, 0 cannot tell" in shown
    whole = io.StringIO()
    print_comparison(found, Console(file=whole, width=200), everything=True)
    assert "p99" in whole.getvalue()
