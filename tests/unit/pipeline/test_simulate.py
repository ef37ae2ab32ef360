"""Simulated campaigns: written as the lab writes, and their answers are right.

The answers are computed from formulas; here they are held against the files, by DuckDB.
"""

from __future__ import annotations

import json
import math
import statistics
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import ConfigError
from antiphon.lab.campaign import Campaign
from antiphon.lab.record import SCHEMAS
from antiphon.pipeline import schemas
from antiphon.pipeline.answers import QUANTILES
from antiphon.pipeline.known import Delays, quantile_us
from antiphon.pipeline.simulate import ANSWERS, simulate

ROWS = 40_000
PROTOCOLS = ("antiphon-topic", "redis", "pyzmq", "udp-python")


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("simulated") / "campaign"
    return simulate(out, ROWS, protocols=PROTOCOLS, repeats=2, seed=7)


@pytest.fixture(scope="module")
def known(campaign: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((campaign / ANSWERS).read_text())
    return found


def folders(campaign: Path) -> list[Path]:
    return sorted(path.parent for path in campaign.glob("*/run.json"))


def test_it_is_a_campaign_of_the_lab_with_every_run_done(campaign: Path) -> None:
    opened = Campaign.open(campaign)
    assert all(opened.done(run) for run in opened.runs())
    assert {path.name for path in folders(campaign)} == {run.id for run in opened.runs()}
    facts = opened.outcome(opened.runs()[0])
    assert facts["campaign"] == opened.id
    assert set(schemas.KEYS) <= facts.keys()


def test_its_files_have_the_schemas_of_the_lab(campaign: Path) -> None:
    for folder in folders(campaign):
        for table, schema in SCHEMAS.items():
            assert pq.read_schema(folder / f"{table}.parquet").equals(schema), (folder, table)


def test_it_has_exactly_as_many_rows_as_were_asked_for(
    campaign: Path, known: dict[str, Any]
) -> None:
    counts = [pq.read_metadata(folder / "latency.parquet").num_rows for folder in folders(campaign)]
    assert sum(counts) == ROWS == known["rows"]
    assert max(counts) - min(counts) <= 1


def test_every_row_is_due_in_its_window(campaign: Path) -> None:
    for folder in folders(campaign):
        facts = json.loads((folder / "run.json").read_text())
        due = pq.read_table(folder / "latency.parquet")["intended_ns"].to_numpy()
        assert facts["kept_from_ns"] <= due.min()
        assert due.max() < facts["kept_until_ns"]


def test_the_answers_for_delays_are_those_of_the_files(
    campaign: Path, known: dict[str, Any]
) -> None:
    runs: dict[str, list[str]] = {}
    for folder in folders(campaign):
        facts = json.loads((folder / "run.json").read_text())
        if facts["outcome"] == "complete":
            key = json.dumps([facts[name] for name in schemas.KEYS])
            runs.setdefault(key, []).append(str(folder / "latency.parquet"))
    rows = {
        json.dumps([row[name] for name in schemas.KEYS]): row for row in known["tables"]["latency"]
    }
    assert rows.keys() == runs.keys()
    quantiles = ", ".join(
        f"quantile_disc(us, {part}/{of}) as {name}" for name, (part, of) in QUANTILES.items()
    )
    for key, files in runs.items():
        answer = duckdb.sql(
            f"""select count(*) as count, sum(ns)::hugeint as sum_ns, avg(ns) / 1000 as mean_us,
            stddev_samp(ns) / 1000 as stddev_us, min(us) as min_us, max(us) as max_us, {quantiles}
            from (select received_ns - intended_ns as ns, ns // 1000 as us
                  from read_parquet({files}) where ns >= 0)"""
        ).to_arrow_table()
        (found,) = answer.to_pylist()
        row = rows[key]
        for name, value in found.items():
            if name in ("mean_us", "stddev_us"):
                assert row[name] == pytest.approx(value, rel=1e-9), (key, name)
            else:
                assert row[name] == value, (key, name)


def test_the_answers_for_throughput_are_those_of_the_samples(
    campaign: Path, known: dict[str, Any]
) -> None:
    by_run = {row["run"]: row for row in known["tables"]["runs"]}
    for folder in folders(campaign):
        samples = pq.read_table(folder / "samples.parquet").to_pandas()
        kept = samples[samples["kept"] & (samples["role"] != "machine")]
        ends = kept.groupby("role")[["sent_messages", "received_messages"]].agg(
            lambda counts: counts.iloc[-1] - counts.iloc[0]
        )
        row = by_run[folder.name]
        if row["outcome"] == "complete":
            assert row["received_messages"] == ends["received_messages"].sum()
            assert row["sent_messages"] == ends["sent_messages"].sum()
        seconds = kept["second"].max() - kept["second"].min()
        assert row["window_seconds"] == seconds
        facts = json.loads((folder / "run.json").read_text())
        assert facts["messages_per_second"] == pytest.approx(
            ends["received_messages"].sum() / seconds
        )
        assert row["messages_per_second"] == facts["messages_per_second"]


def test_some_runs_do_not_finish_and_some_clocks_disagree(known: dict[str, Any]) -> None:
    runs = known["tables"]["runs"]
    ended = {row["outcome"] for row in runs}
    assert ended == {"complete", "disconnected", "unbounded_growth"}
    assert sum(row["clock_errors"] for row in runs) > 0
    stalled = [row for row in known["tables"]["stability"] if row["longest_stall_seconds"] > 0]
    assert {row["protocol"] for row in stalled} == {"udp-python"}


def test_load_costs_throughput(known: dict[str, Any]) -> None:
    kept = [row["kept"] for row in known["tables"]["degradation"] if row["rate"] is None]
    assert kept
    assert all(0.2 < one < 0.95 for one in kept)


def test_the_same_arguments_give_the_same_campaign(tmp_path: Path) -> None:
    first, second, third = (
        simulate(tmp_path / name, 500, protocols=["pyzmq"], groups=False, repeats=1, seed=seed)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert (first / ANSWERS).read_text() == (second / ANSWERS).read_text()
    assert (first / ANSWERS).read_text() != (third / ANSWERS).read_text()
    for folder in folders(first):
        for table in SCHEMAS:
            ours = pq.read_table(folder / f"{table}.parquet")
            assert ours.equals(pq.read_table(second / folder.name / f"{table}.parquet"))


def test_a_slower_protocol_has_less_throughput_and_longer_delays(tmp_path: Path) -> None:
    options: dict[str, Any] = {"protocols": ["pyzmq", "redis"], "groups": False, "repeats": 1}
    usual = json.loads((simulate(tmp_path / "a", 500, **options) / ANSWERS).read_text())
    slow = simulate(tmp_path / "b", 500, slower={"pyzmq": 0.5}, **options)
    changed = json.loads((slow / ANSWERS).read_text())
    for before, after in zip(
        usual["tables"]["throughput"], changed["tables"]["throughput"], strict=True
    ):
        ratio = after["messages_per_second_mean"] / before["messages_per_second_mean"]
        less = before["protocol"] == "pyzmq" and before["rate"] is None
        assert ratio == pytest.approx(0.5 if less else 1.0, rel=1e-4)
    for before, after in zip(usual["tables"]["latency"], changed["tables"]["latency"], strict=True):
        ratio = after["min_us"] / before["min_us"]
        assert ratio == pytest.approx(2.0 if before["protocol"] == "pyzmq" else 1.0, rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rows": 10}, "too few"),
        ({"protocols": ["carrier-pigeon"]}, "no such protocol: carrier-pigeon"),
        ({"protocols": []}, "no such protocol"),
        ({"repeats": 0}, "at least one repeat"),
        ({"slower": {"pyzmq": 0.0}}, "0.01 to 100"),
        ({"slower": {"carrier-pigeon": 0.5}}, "no such protocol: carrier-pigeon"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    tmp_path: Path, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        simulate(tmp_path / "out", **{"rows": 1000, "repeats": 1, **arguments})
    assert not (tmp_path / "out").exists()


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        simulate(tmp_path, 1000)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def delays(count: int, base: int = 20_000, tail: int = 2_000) -> Delays:
    jump = max(1, round(count * 0.618))
    while math.gcd(jump, count) != 1:
        jump += 1
    return Delays(count, base, tail, jump, first=count // 3)


@settings(max_examples=50)
@given(st.integers(1, 3000), st.integers(1, 3000))
def test_quantiles_are_those_of_the_sorted_list(count: int, more: int) -> None:
    both = [delays(count), delays(more, base=35_000)]
    values = np.sort(np.concatenate([one.drawn(0, one.count) for one in both])) // 1000
    for part, of in QUANTILES.values():
        rank = math.ceil(Fraction(part, of) * len(values))
        assert quantile_us(both, part, of) == values[rank - 1]
    assert min(one.least_us for one in both) == values[0]
    assert max(one.most_us for one in both) == values[-1]


@settings(max_examples=25)
@given(st.integers(1, 100_000))
def test_sums_are_exact_and_every_delay_is_handed_out_once(count: int) -> None:
    one = delays(count)
    drawn = one.drawn(0, count)
    assert one.sums[0] == sum(drawn.tolist())
    assert one.sums[1] == sum(value * value for value in drawn.tolist())
    halves = np.concatenate([one.drawn(0, count // 2), one.drawn(count // 2, count)])
    assert np.array_equal(drawn, halves)
    order = np.sort(drawn)
    assert np.array_equal(order, one.table[np.arange(count) * len(one.table) // count])
    assert one.up_to(one.most_us) == count
    assert one.up_to(one.least_us - 1) == 0
    assert statistics.fmean(drawn.tolist()) == pytest.approx(one.sums[0] / count)
