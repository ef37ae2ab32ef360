"""What is printed of runs: from made-up facts, as ``run.json`` has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from antiphon.cli.lab_table import print_results, told
from antiphon.lab.plan import Plan, load_plan, runs_of
from antiphon.lab.record import Report, facts_of

PLAN = """
[times]
kept_until = 10

[[series]]
name = "one"
pattern = "one-way"
protocols = ["tcp-python", "udp-python", "spread"]
sizes = [64]
"""
DELAYS = {"latency_p50_us": 1234, "latency_p99_us": 5678, "latency_max_us": 91_011}
RATES = {"messages_per_second": 1000.0, "bytes_per_second": 64_000.0, "reason": ""}


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "mine.toml"
    path.write_text(PLAN, encoding="utf-8")
    return load_plan(path)


def ended(plan: Plan, **more: dict[str, Any]) -> list[dict[str, Any]]:
    """Every run of the plan; ``more`` has further facts by protocol."""
    return [
        facts_of(run) | RATES | {"outcome": "complete"} | more.get(run.protocol.split("-")[0], {})
        for run in runs_of(plan)
    ]


def printed(
    plan: Plan,
    done: list[dict[str, Any]],
    capfd: pytest.CaptureFixture[str],
) -> dict[str, list[str]]:
    """By what they begin with, the words of every line."""
    print_results(plan, done)
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    return {words[0]: words[1:] for words in lines if words}


def test_delays_are_in_the_table(plan: Plan, capfd: pytest.CaptureFixture[str]) -> None:
    absent = {"outcome": "absent", "reason": "nowhere", **dict.fromkeys(DELAYS)}
    done = ended(plan, tcp=DELAYS | {"latency_one_in": 1.0}, spread=absent)
    said = printed(plan, done, capfd)
    assert " ".join(said["protocol"]) == "MB/s messages/s p50 us p99 us max us outcome"
    assert said["tcp-python"] == ["0.1", "1,000", "1,234", "5,678", "91,011", "complete"]
    assert said["udp-python"] == ["0.1", "1,000", "complete"]
    assert said["spread"] == ["absent:", "nowhere"]
    assert "~" not in said


def test_delays_of_a_sample_are_told_from_those_of_all(
    plan: Plan, capfd: pytest.CaptureFixture[str]
) -> None:
    said = printed(plan, ended(plan, tcp=DELAYS | {"latency_one_in": 40.0}), capfd)
    assert said["tcp-python"][2:5] == ["~1,234", "~5,678", "~91,011"]
    assert "sample" in said["~"]


def test_without_any_delay_the_table_has_no_columns_for_them(
    plan: Plan, capfd: pytest.CaptureFixture[str]
) -> None:
    said = printed(plan, ended(plan), capfd)
    assert " ".join(said["protocol"]) == "MB/s messages/s outcome"


def test_the_line_of_a_run_has_its_delay(plan: Plan) -> None:
    report = Report(runs_of(plan)[0], "complete", "", 1000.0, 2e6, ("a note",), DELAYS)
    assert told(report) == (
        "complete, 2 MB/s, 1,000 messages/s, p50 1,234 us, p99 5,678 us; a note"
    )


def test_what_was_lost_is_in_the_table_and_in_the_line(
    plan: Plan, capfd: pytest.CaptureFixture[str]
) -> None:
    loss = {"sent": 165_304, "received": 150_336, "lost": 14_968}
    said = printed(plan, ended(plan, udp=loss), capfd)
    assert said["protocol"] == ["MB/s", "messages/s", "lost", "outcome"]
    assert said["udp-python"] == ["0.1", "1,000", "9.1", "%", "complete"]
    assert said["tcp-python"] == ["0.1", "1,000", "complete"]
    report = Report(runs_of(plan)[0], "complete", "", 1000.0, 2e6, loss=loss)
    assert told(report) == "complete, 2 MB/s, 1,000 messages/s, 9.1 % lost"


@pytest.mark.parametrize(
    ("lost", "words"), [(0, ["0.0", "%"]), (1, ["<", "0.1", "%"]), (10_000, ["100.0", "%"])]
)
def test_little_is_not_nothing(
    plan: Plan, capfd: pytest.CaptureFixture[str], lost: int, words: list[str]
) -> None:
    done = ended(plan, udp={"sent": 10_000, "received": 10_000 - lost, "lost": lost})
    assert printed(plan, done, capfd)["udp-python"][2:-1] == words


def links(plan: Plan, *names: str) -> list[Report]:
    """The three checks of these links, as they end where everything works."""
    run = runs_of(plan)[0]
    shown: dict[str, dict[str, Any]] = {
        "link-ping": {"rate": 400.0, "bytes": 22_400.0, "delays": DELAYS | {"latency_p50_us": 20}},
        "link-tcp": {"rate": 33_920.0, "bytes": 2.223e9, "delays": dict.fromkeys(DELAYS)},
        "link-udp": {
            "rate": 100.0,
            "bytes": 147_200.0,
            "loss": {"sent": 400, "received": 100, "lost": 300},
        },
    }
    return [
        Report(
            replace(run, id=f"{check}.{name}", series="links", protocol=check, link=name),
            "complete",
            "",
            **figures,
        )
        for name in names
        for check, figures in shown.items()
    ]


def facts_of_link(report: Report) -> dict[str, Any]:
    rates = {"messages_per_second": report.rate, "bytes_per_second": report.bytes}
    ended = {"outcome": report.outcome, "reason": report.reason}
    return facts_of(report.run) | rates | ended | dict(report.delays) | dict(report.loss)


def test_a_check_of_a_bare_link_is_told_by_its_name_and_its_figure(plan: Plan) -> None:
    assert [told(report) for report in links(plan, "office")] == [
        "bare office: link-ping 20 us",
        "bare office: link-tcp 2,223 MB/s",
        "bare office: link-udp 0 MB/s, 75.0 % lost",
    ]
    ping = replace(links(plan, "office")[0], outcome="absent", reason="no raw socket")
    assert told(ping) == "bare office: link-ping absent: no raw socket"


def test_every_bare_link_has_a_line_before_the_table(
    plan: Plan, capfd: pytest.CaptureFixture[str]
) -> None:
    both = [facts_of_link(one) for one in links(plan, "loopback", "office")]
    print_results(plan, ended(plan), both)
    first, second, same, head, *_ = capfd.readouterr().out.splitlines()
    figures = "link-ping 20 us; link-tcp 2,223 MB/s; link-udp 0 MB/s, 75.0 % lost"
    assert (first, second) == (f"bare loopback: {figures}", f"bare office: {figures}")
    assert same == "all runs: pattern one-way, load none, link loopback, size 64"
    assert head.split() == ["protocol", "MB/s", "messages/s", "outcome"]


def test_a_narrow_terminal_has_no_room_for_the_largest_delay_and_all_others(
    plan: Plan, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    loss = {"sent": 10_000, "received": 9_000, "lost": 1_000}
    large = {"messages_per_second": 1_234_567.0, "bytes_per_second": 2_345_600_000.0}
    said = printed(plan, ended(plan, udp=DELAYS | loss | large), capfd)
    assert " ".join(said["protocol"]) == "MB/s messages/s p50 us p99 us lost outcome"
    assert " ".join(said["udp-python"]) == "2,345.6 1,234,567 1,234 5,678 10.0 % complete"
