"""The report of small tables: what it draws, and that it stays whole whatever they hold."""

from __future__ import annotations

import re
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import ConfigError
from antiphon.pipeline.report import papers, write_report
from antiphon.pipeline.report.data import Tables
from antiphon.pipeline.report.looks import DARK, LIGHT, Looks
from antiphon.pipeline.report.page import CSV_ROWS, TABLE_ROWS
from antiphon.pipeline.report.shape import MAX_FACETS, MAX_POINTS, MAX_TRACES
from antiphon.pipeline.schemas import TABLES
from unit.pipeline import report_story as story
from unit.pipeline.report_page import Report, made
from unit.pipeline.report_tables import KEYS, MACHINE, spread, write

FIGURES = {
    "degradation", "ecdf", "bandwidth", "cpu", "versus", "delay-by-rate", "distribution", "jitter",
    "publishers", "predicted", "scaling", "slowdown", "round-trip", "gain", "sizing", "streams",
    "timelines",
}  # fmt: skip


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Report:
    out = tmp_path_factory.mktemp("tables")
    story.stability(out)
    story.everything_else(out)
    return made(out)


def test_tables_of_every_kind_give_every_figure(everything: Report) -> None:
    report = everything
    assert set(report.figures) == FIGURES
    assert "Not measured here" not in report.words
    for key in report.figures:
        for facet in report.figure(key):
            assert facet["traces"], f"{key} {facet['at']} is empty"


def test_a_figure_without_data_is_a_line_that_says_what_would_give_it(tmp_path: Path) -> None:
    story.stability(tmp_path)
    report = made(tmp_path)
    assert set(report.figures) == {"degradation", "ecdf", "bandwidth", "cpu"}
    assert report.words.count("Not measured here") == len(FIGURES) - 4
    assert "antiphon lab run real-time" in report.words


def test_the_file_asks_for_nothing_and_runs_only_its_own_scripts(everything: Report) -> None:
    report = everything
    for tag, given in report.elements:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            target = given.get(name, "#")
            assert target.startswith(("#", "data:")), f"<{tag} {name}={target[:60]}>"
    assert len(report.scripts) == 2
    assert report.source.count("* plotly.js v") == 1
    policy = next(given["content"] for _, given in report.elements if "http-equiv" in given)
    assert "default-src 'none'" in policy
    assert policy.count("'sha256-") == 2
    assert "@import" not in report.source.split("<body>")[0]


def test_every_figure_has_its_table_and_a_file_with_the_same_rows(everything: Report) -> None:
    report = everything
    assert set(report.files) == {f"{key}.csv" for key in FIGURES}
    rows = report.files["degradation.csv"]
    at = {name: where for where, name in enumerate(rows[0])}
    kept = {(row[at["protocol"]], row[at["workload"]]): float(row[at["kept"]]) for row in rows[1:]}
    assert kept["jgroups-udp", "garbage"] == 0.06
    assert len(kept) == 8


def test_a_protocol_has_one_colour_in_all_figures(everything: Report) -> None:
    report = everything
    colours: dict[str, set[str]] = {}
    for key in ("ecdf", "delay-by-rate", "distribution"):
        for facet in report.figure(key):
            for trace in facet["traces"]:
                if "Tempo" not in trace["name"]:
                    colours.setdefault(trace["name"], set()).add(trace["line"]["color"])
    for facet in report.figure("bandwidth"):
        for trace in facet["traces"]:
            if trace["type"] == "bar":
                colours.setdefault(trace["y"][0], set()).add(trace["marker"]["color"])
    assert len(colours["pyzmq"]) == 1
    assert all(len(one) == 1 for one in colours.values())


def test_a_ninth_protocol_and_a_second_variant_look_different() -> None:
    rows = [KEYS | {"protocol": f"p{at}"} for at in range(9)]
    rows.append(KEYS | {"protocol": "p0", "variant": "batch"})
    looks = Looks(rows)
    shapes = [(looks.colour(row), looks.line(row)["line"]["dash"]) for row in rows]
    assert len(set(shapes)) == len(rows)
    assert looks.colour(rows[0]) == looks.colour(rows[9])


@pytest.mark.parametrize(
    ("palette", "page"), [(LIGHT, "#ffffff"), (DARK, "#1a1d22")], ids=["light", "dark"]
)
def test_colours_can_be_seen_on_their_page(palette: tuple[str, ...], page: str) -> None:
    for colour in palette:
        lighter, darker = sorted((_luminance(colour), _luminance(page)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 3, colour


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_names_with_html_in_them_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    keys = KEYS | {"protocol": evil, "campaign": "c1"}
    run = keys | MACHINE | {"run": "r1", "repeat": 1, "host": evil, "cpu": '" onload="alert(3)'}
    write(tmp_path, "runs", [run | {"outcome": "complete", "window_seconds": 30.0}])
    lost = {"outcome": "error", "runs": 1, "of": 1, "part": 1.0, "reasons": [evil]}
    write(tmp_path, "outcomes", [keys | lost])
    write(tmp_path, "throughput", [keys | {"repeats": 1} | spread("bytes_per_second", 1e6)])
    report = made(tmp_path)
    assert len(report.scripts) == 2
    assert not [tag for tag, _ in report.elements if tag == "img"]
    assert not [given for _, given in report.elements if any(name[:2] == "on" for name in given)]
    assert evil in report.words
    (facet,) = report.figure("bandwidth")
    label = facet["traces"][0]["y"][0]
    assert "<" not in label
    assert label.startswith("&lt;/script&gt;")


def test_a_name_that_a_spreadsheet_would_compute_is_quoted_in_the_file(tmp_path: Path) -> None:
    keys = KEYS | {"protocol": "=1+1", "campaign": "c1"}
    write(tmp_path, "throughput", [keys | {"repeats": 1} | spread("bytes_per_second", -5.0)])
    rows = made(tmp_path).files["bandwidth.csv"]
    assert rows[1][rows[0].index("protocol")] == "'=1+1"
    assert rows[1][rows[0].index("bytes_per_second_mean")] == "-5.0"


def test_thousands_of_series_are_thinned_and_the_page_says_so(tmp_path: Path) -> None:
    throughput: list[dict[str, Any]] = []
    ecdf: list[dict[str, Any]] = []
    for at in range(3_000):
        keys = KEYS | {"protocol": f"protocol-{at:04}", "size": 2000 + at % 3}
        throughput.append(keys | {"repeats": 1} | spread("bytes_per_second", 1e6 + at))
        ecdf += [
            keys | {"bytes_per_second": 1e6 * step, "seconds": 1, "cumulative": step / 3}
            for step in (1, 2, 3)
        ]
    for at in range(500):
        keys = KEYS | {"protocol": "one", "rate": None, "size": 10_000 + at}
        throughput.append(keys | {"repeats": 1} | spread("bytes_per_second", 1e6))
    write(tmp_path, "throughput", throughput)
    write(tmp_path, "bandwidth_ecdf", ecdf)
    begin = time.process_time()
    path = write_report(tmp_path)
    assert time.process_time() - begin < 10
    assert path.stat().st_size < 12_000_000
    report = made(tmp_path)
    assert len(report.figure("bandwidth")) == MAX_FACETS
    assert f"{MAX_FACETS} of 503 views are drawn" in report.words
    assert all(len(facet["traces"]) <= MAX_TRACES for facet in report.figure("ecdf"))
    assert f"{MAX_TRACES} of 1,000 series are drawn" in report.words
    assert len(report.files["bandwidth.csv"]) == 3_501
    assert f"The first {TABLE_ROWS} of 3,500 rows" in report.words


def test_a_file_of_too_many_rows_is_cut_and_says_so(tmp_path: Path) -> None:
    rows = [
        KEYS | {"protocol": f"p{at}", "repeats": 1} | spread("bytes_per_second", 1.0 + at)
        for at in range(CSV_ROWS + 10)
    ]
    write(tmp_path, "throughput", rows)
    report = made(tmp_path)
    assert len(report.files["bandwidth.csv"]) == CSV_ROWS + 1
    assert f"CSV, the first {CSV_ROWS:,} of {CSV_ROWS + 10:,} rows" in report.words


def test_a_long_run_is_thinned_to_a_bounded_number_of_points(tmp_path: Path) -> None:
    run = KEYS | MACHINE | {"run": "long", "repeat": 1, "outcome": "complete"}
    write(tmp_path, "runs", [run])
    seconds = [
        KEYS
        | {"run": "long", "repeat": 1, "second": at, "host": "aida", "role": "writer"}
        | {"kept": True, "cpu_cores": 1.0, "resident_bytes": at, "process_threads": 3}
        for at in range(20_000)
    ]
    write(tmp_path, "resources", seconds)
    for facet in made(tmp_path).figure("timelines"):
        (trace,) = facet["traces"]
        assert len(trace["x"]) <= MAX_POINTS
        assert (trace["x"][0], trace["x"][-1]) == (0, 19_999)


def test_a_table_that_cannot_be_read_is_named_and_the_rest_is_drawn(tmp_path: Path) -> None:
    story.stability(tmp_path)
    broken = next((tmp_path / "cpu").rglob("*.parquet"))
    broken.write_bytes(b"no Parquet at all")
    report = made(tmp_path)
    assert "The table cpu could not be read" in report.words
    assert "cpu" not in report.figures
    assert "degradation" in report.figures


def test_the_view_that_compares_the_most_is_shown_first(tmp_path: Path) -> None:
    rows = [KEYS | {"protocol": "few", "size": 10}]
    rows += [KEYS | {"protocol": name, "size": 64} for name in ("one", "two")]
    made_up = {"repeats": 1} | spread("bytes_per_second", 1e6)
    write(tmp_path, "throughput", [row | made_up for row in rows])
    report = made(tmp_path)
    assert [facet["at"] for facet in report.figure("bandwidth")] == [["10\u00a0B"], ["64\u00a0B"]]
    assert report.blocks["data-bandwidth"]["start"] == 1


def test_a_directory_without_tables_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no tables; make them: antiphon pipeline run"):
        write_report(tmp_path)


def test_a_report_that_is_written_again_replaces_the_first(tmp_path: Path) -> None:
    story.stability(tmp_path)
    first = write_report(tmp_path)
    first.write_text("old")
    assert write_report(tmp_path) == first
    assert first.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert not list(tmp_path.glob(".report*"))


def test_infinite_and_missing_numbers_do_not_break_a_figure(tmp_path: Path) -> None:
    story.queues(tmp_path)
    nan = KEYS | {"protocol": "nan", "repeats": 1} | spread("bytes_per_second", float("nan"))
    write(tmp_path, "throughput", [nan])
    report = made(tmp_path)
    assert report.figures == ["predicted"]
    assert "1 of 11 topics got more than their share can serve" in report.words
    marks = [
        trace for trace in report.figure("predicted")[0]["traces"] if trace["mode"] == "markers"
    ]
    assert len(marks[0]["x"]) == 10


def test_a_small_campaign_takes_less_than_five_seconds(tmp_path: Path) -> None:
    story.stability(tmp_path)
    story.everything_else(tmp_path)
    # Of the processor: how busy the machine is otherwise is no property of the report.
    begin = time.process_time()
    write_report(tmp_path)
    assert time.process_time() - begin < 5


def test_the_papers_values_stand_beside_ours(everything: Report) -> None:
    report = everything
    assert "JGroups over UDP beside a garbage collector 6.0 % 6.0 % Throughput stability" in (
        _spaced(report)
    )
    assert "compare shapes and ratios" in report.words
    drawn = [trace["name"] for facet in report.figure("slowdown") for trace in facet["traces"]]
    assert "JGroups in J2EE clusters: TCP, n-n, below 1 kB" in drawn
    facet = next(one for one in report.figure("degradation") if one["at"] == ["garbage"])
    (mark,) = [one for one in facet["traces"] if one.get("name") == "Throughput stability"]
    assert (mark["x"], mark["y"]) == ([6.0], ["jgroups-udp"])
    # It is no reason to show this view first.
    assert report.blocks["data-degradation"]["start"] == 0


def test_what_one_sender_gets_through_is_held_against_the_papers_groups(tmp_path: Path) -> None:
    group = {"protocol": "jgroups-udp", "pattern": "1-n", "size": 100, "nodes": 8, "senders": 1}
    one = {"messages_per_second_node": 700.0, "bytes_per_second_node": 70_000.0}
    write(tmp_path, "scaling", [KEYS | group | one | {"messages_per_second_total": 4900.0}])
    values = papers.Papers(Tables(tmp_path)).beside("scaling")
    found = {value.says: (value.theirs, value.ours) for value in values}
    assert found["UDP, one to all, up to 1 kB, 2 to 8 nodes"] == ("800/s", "700/s")
    assert found["UDP, all to all, 1 kB, 16 nodes, per node"] == ("1.20/s", "not measured")


def test_where_a_paper_adds_both_directions_ours_are_added_too(tmp_path: Path) -> None:
    # 10 MB/s from every node, and so as much to it: 20 MB/s as the paper counts.
    cluster = {"protocol": "antiphon-node", "pattern": "n-n", "nodes": 8, "senders": 8}
    one = {"messages_per_second_node": 2_500.0, "bytes_per_second_node": 10e6, "slowdown": 1.0}
    write(tmp_path, "scaling", [KEYS | cluster | one | {"size": 4096}])
    found = {value.says: value for value in papers.Papers(Tables(tmp_path)).beside("scaling")}
    value = found["4 KiB, per node, 8 nodes, both directions together"]
    assert (value.theirs, value.ours) == ("1.37\u00a0GB/s", "20\u00a0MB/s")
    facets = {one["at"][0]: one for one in made(tmp_path).figure("scaling")}
    ours, theirs = facets["bytes per node"]["traces"]
    assert (ours["y"], theirs["y"]) == ([10.0], [685.0])
    assert theirs["name"] == "EthDXNet: 8 nodes, one direction"


def test_the_papers_bytes_on_the_ip_layer_are_held_against_the_same_of_ours(
    tmp_path: Path,
) -> None:
    pair = KEYS | {"series": "pair", "size": 64, "pattern": "duplex", "variant": "callback"}
    rows = [
        pair | {"wire_bytes_per_message": 132.0, "ip_bytes_per_message": 118.0},
        pair | {"variant": "batch", "wire_bytes_per_message": 80.0, "ip_bytes_per_message": 70.0},
        pair | {"pattern": "n-n", "wire_bytes_per_message": 300.0, "ip_bytes_per_message": 290.0},
    ]
    write(tmp_path, "throughput", rows)
    found = {value.says: value for value in papers.Papers(Tables(tmp_path)).beside("bandwidth")}
    value = found["a message of 64 B on the IP layer; ours with all acknowledgements"]
    assert (value.theirs, value.ours) == ("115\u00a0B", "118\u00a0B")


def _spaced(report: Report) -> str:
    """Its cells one after the other, with a space between them."""
    apart = re.sub(r"</t[dh]>", " ", report.source)
    return " ".join(re.sub(r"<[^>]*>", "", apart).replace("\u00a0", " ").split())


def test_every_value_of_a_paper_belongs_to_a_figure_and_to_columns_that_exist() -> None:
    path = Path(papers.__file__).with_name("papers.toml")
    listed = tomllib.loads(path.read_text(encoding="utf-8"))
    names = {"EthDXNet", "Throughput stability", "Tempo", "JGroups in J2EE clusters"}
    names.add("NaradaBrokering")
    for value in listed["value"]:
        assert value["figure"] in FIGURES | {"outcomes"}, value
        assert value["paper"] in names
        assert ("value" in value) != ("words" in value), value
        if match := value.get("match"):
            columns = TABLES[match["table"]]
            assert match["column"] in columns, value
            for name in match["where"]:
                bare = name.removesuffix("_to").removesuffix("_from")
                assert name in columns or bare in columns, value
    for curve in listed["curve"]:
        assert curve["figure"] in FIGURES
        assert len(curve["x"]) == len(curve["y"])
    assert {value["paper"] for value in listed["value"]} == names
