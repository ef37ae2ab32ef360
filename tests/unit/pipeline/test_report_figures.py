"""What single figures draw, of rows made for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.pipeline.report import data
from unit.pipeline.report_page import made
from unit.pipeline.report_tables import KEYS, MACHINE, write


def _run(keys: dict[str, Any], **facts: Any) -> dict[str, Any]:
    return keys | MACHINE | {"run": "a", "repeat": 1, "outcome": "complete"} | facts


def test_where_some_keep_the_rate_their_topics_are_drawn(tmp_path: Path) -> None:
    shares = KEYS | {"protocol": "antiphon-topic", "senders": 2, "paced": 1, "rate": 1000.0}
    kept, flood = (shares | {"stage": "delivery", "topic": f"lab/0/{one}"} for one in (1, 2))
    late = {"mean_us": 9000.0, "p99_us": 90_000}
    write(tmp_path, "runs", [_run(shares)])
    write(tmp_path, "latency", [kept | {"mean_us": 20.0, "p99_us": 50}, flood | late])
    counts = [kept | {"latency_us": 20, "count": 7}, flood | {"latency_us": 9000, "count": 99}]
    write(tmp_path, "latency_counts", counts)
    report = made(tmp_path)
    drawn = {facet["at"][0]: facet["traces"][0]["y"] for facet in report.figure("delay-by-rate")}
    assert (drawn["mean"], drawn["99th"]) == ([20.0], [50.0])
    (facet,) = report.figure("distribution")
    assert [trace["y"] for trace in facet["traces"]] == [[7]]


def _seconds(keys: dict[str, Any], run: str, seconds: int, memory: int) -> list[dict[str, Any]]:
    one = {"run": run, "repeat": 1, "host": "aida", "role": "reader", "kept": True}
    return [
        keys | one | {"second": second, "resident_bytes": memory, "cpu_cores": 0.5}
        for second in range(seconds)
    ]


def test_runs_of_two_series_that_are_alike_have_time_lines_of_their_own(tmp_path: Path) -> None:
    keys = {name: KEYS | {"series": name} for name in ("short", "long")}
    write(tmp_path, "runs", [_run(one, run=name) for name, one in keys.items()])
    rows = [
        *_seconds(keys["short"], "short", 3, 1_000_000),
        *_seconds(keys["long"], "long", 9, 5_000_000),
    ]
    write(tmp_path, "resources", rows)
    facets = [one for one in made(tmp_path).figure("timelines") if one["at"][0] == "memory"]
    drawn = {one["at"][1]: one["traces"][0] for one in facets}
    assert set(drawn) == {"short", "long"}
    assert len(drawn["short"]["x"]) == 3
    assert {name: set(one["y"]) for name, one in drawn.items()} == {"short": {1.0}, "long": {5.0}}


def test_another_repeat_is_not_added_where_another_campaign_draws_it(tmp_path: Path) -> None:
    here, there = KEYS, KEYS | {"campaign": "stability-2"}
    write(tmp_path, "runs", [_run(here, run="r1"), _run(here, run="r2", repeat=2)])
    write(tmp_path, "runs", [_run(there, run="r2", repeat=2)])
    rows = [
        *_seconds(here, "r1", 3, 1_000_000),
        *_seconds(here, "r2", 3, 2_000_000),
        *_seconds(there, "r2", 3, 7_000_000),
    ]
    write(tmp_path, "resources", rows)
    facets = [one for one in made(tmp_path).figure("timelines") if one["at"][0] == "memory"]
    assert sorted({value for one in facets for value in one["traces"][0]["y"]}) == [1.0, 7.0]


def test_series_that_differ_in_what_they_measure_share_a_picture(tmp_path: Path) -> None:
    sizes = {"small": 100, "large": 10_000}
    keys = [
        KEYS | {"series": name, "size": size, "pattern": "n-n", "nodes": nodes, "senders": nodes}
        for name, size in sizes.items()
        for nodes in (2, 4)
    ]
    write(tmp_path, "runs", [_run(one, run=f"{at}") for at, one in enumerate(keys)])
    figures = {"messages_per_second_node": 5.0, "bytes_per_second_node": 5.0, "slowdown": 1.0}
    write(tmp_path, "scaling", [one | figures for one in keys])
    for facet in made(tmp_path).figure("scaling"):
        assert not {"small", "large"} & set(facet["at"])


def test_a_table_that_is_cut_says_how_much_of_it_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "MAX_ROWS", 4)
    write(tmp_path, "runs", [_run(KEYS)])
    write(tmp_path, "resources", _seconds(KEYS, "a", 9, 1_000_000))
    outcomes = [KEYS | {"size": size, "outcome": "error", "runs": 1} for size in range(7)]
    write(tmp_path, "outcomes", outcomes)
    report = made(tmp_path)
    assert len(report.figure("timelines")[0]["traces"][0]["x"]) == 4
    line = "The table resources has 9 rows that belong here; 4 of them are used, and 5 are left out"
    # In the summary, and below the figure that it is about.
    assert report.words.count(line) == 2
    assert "and 3 are left out" in report.words
    assert "throughput has" not in report.words


def test_gains_are_drawn_of_those_that_went_as_fast_as_they_could(tmp_path: Path) -> None:
    asked = {"question": "protocol", "this": "antiphon-node/callback", "pairs": 1}
    free = KEYS | asked | {"protocol": None, "over": "pyzmq/push-pull"}
    paced = [
        free | {"size": 128, "rate": 1000.0, "over": over, "gain_percent_mean": 0.0}
        for over in ("pyzmq/push-pull", "zenoh/pub-sub")
    ]
    write(tmp_path, "comparison", [free | {"gain_percent_mean": 80.0}, *paced])
    report = made(tmp_path)
    (facet,) = report.figure("versus")
    assert facet["traces"][0]["x"] == [80.0]
    assert len(report.files["versus.csv"]) == 4
    assert "Runs at a given rate are only in the table" in report.words


def test_a_key_that_is_compared_has_a_name_among_the_views(tmp_path: Path) -> None:
    gain = KEYS | {"protocol": None, "pairs": 1, "gain_percent_mean": 9.0}
    links = gain | {"question": "link", "link": None, "this": "gigabit", "over": "fast"}
    stacks = [
        gain | {"question": "stack", "link": link, "this": "udp-fc", "over": "udp"}
        for link in ("fast", "gigabit")
    ]
    write(tmp_path, "comparison", [links, *stacks])
    report = made(tmp_path)
    views = [value for facet in report.figure("gain") for value in facet["at"]]
    assert "compared" in views
    assert "—" not in views
    assert "CSV, 3 rows" in report.words


def _jitter(before: float, after: float) -> dict[str, Any]:
    spaced = {"in_stddev_us": before, "out_stddev_us": after, "count": 9}
    return KEYS | {"rate": 1000.0, "stage": "delivery"} | spaced


@pytest.mark.parametrize(
    ("before", "after", "low", "high"),
    [
        (617.0, 668.0, 500, 1_000),  # between two marks
        (500.0, 500.0, 200, 1_000),  # on one
        (3e9, 3.1e9, 5e8, 3.1e9),  # beyond all
        (130.0, 160.0, 100, 200),
    ],
)
def test_dots_that_lie_close_together_have_numbers_beside_them(
    tmp_path: Path, before: float, after: float, low: float, high: float
) -> None:
    write(tmp_path, "runs", [_run(KEYS)])
    write(tmp_path, "jitter", [_jitter(before, after)])
    report = made(tmp_path)
    axis = report.figure("jitter")[0]["layout"]["xaxis"]
    ends = [10**end for end in axis["range"]]
    assert ends == pytest.approx([low, high], rel=0.08)
    assert [at for at in axis["tickvals"] if ends[0] <= at <= ends[1]]
    assert "CSV, 1 row " in report.words


def test_dots_that_lie_far_apart_are_left_to_the_browser(tmp_path: Path) -> None:
    write(tmp_path, "runs", [_run(KEYS)])
    write(tmp_path, "jitter", [_jitter(40.0, 668.0)])
    assert "range" not in made(tmp_path).figure("jitter")[0]["layout"]["xaxis"]


def _by_rate(out: Path, *rates: float) -> dict[str, dict[str, Any]]:
    """By statistic, the lying axis of the delays."""
    row = KEYS | {"stage": "delivery", "count": 3000, "mean_us": 20.0, "p50_us": 9, "p95_us": 50}
    write(out, "runs", [_run(KEYS)])
    write(out, "latency", [row | {"rate": rate} for rate in rates])
    facets = made(out).figure("delay-by-rate")
    return {facet["at"][0]: facet["layout"]["xaxis"] for facet in facets}


def test_a_papers_point_has_its_mark_on_the_axis_too(tmp_path: Path) -> None:
    axes = _by_rate(tmp_path, 1000.0)
    assert axes["mean"]["ticktext"] == ["1k", "120k"]
    assert axes["95th"]["ticktext"] == ["1k", "10k", "120k"]
    assert axes["median"]["ticktext"] == ["1k"]


def test_many_rates_that_lie_close_together_have_round_ones_beside_them(tmp_path: Path) -> None:
    axis = _by_rate(tmp_path, *(2_000.0 + 100 * at for at in range(1, 12)))["median"]
    shown = [
        said
        for at, said in zip(axis["tickvals"], axis["ticktext"], strict=True)
        if 10 ** axis["range"][0] <= at <= 10 ** axis["range"][1]
    ]
    assert shown == ["2k", "5k"]


@pytest.mark.parametrize("little", [None, 168.0])
def test_littles_law_is_said_to_hold_where_events_come_at_random(
    tmp_path: Path, little: float | None
) -> None:
    topic = KEYS | {"protocol": "antiphon-topic", "rate": 1000.0, "topic": "a", "stable": True}
    told = {"estimate_us": 21.0, "measured_mean_us": 19.8, "little_us": little}
    write(tmp_path, "runs", [_run(KEYS)])
    write(tmp_path, "queueing", [topic | told])
    words = made(tmp_path).words
    assert ("It holds where they come at random; a stream by a timetable" in words) == bool(little)


@pytest.mark.parametrize(("one_in", "sample"), [(None, False), (1.002, False), (1.5, True)])
def test_all_but_those_at_the_ends_of_a_window_is_no_sample(
    tmp_path: Path, one_in: float | None, sample: bool
) -> None:
    row = KEYS | {"rate": 1000.0, "stage": "delivery", "count": 3000, "mean_us": 20.0, "p50_us": 9}
    write(tmp_path, "runs", [_run(KEYS)])
    write(tmp_path, "latency", [row | {"sampled_one_in": one_in}])
    assert ("those of the sample" in made(tmp_path).words) == sample
