"""Groups of several sizes, what is gained by a change, and how large a cluster must be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import DataFrame

from antiphon.errors import ConfigError
from antiphon.pipeline.inputs import Inputs
from antiphon.pipeline.sizing import requests_per_second
from antiphon.pipeline.tables import TABLES
from antiphon.pipeline.tables.groups import comparison, scaling
from unit.pipeline.campaigns import run
from unit.pipeline.together import Asks, Together, in_order, put

TESTS = Together()
made = TESTS.fixture()


def _group(nodes: int, per_sender: float, pattern: str = "n-n", **facts: Any) -> dict[str, Any]:
    """A group in which every sender gets so many messages a second to all others."""
    senders = {"n-n": nodes, "1-n": 1}.get(pattern, facts.get("senders", 2))
    received = per_sender * senders * (nodes - 1)
    keys = {
        "series": f"{pattern}-tcp-small",
        "protocol": "jgroups-tcp",
        "stack": "paper-tcp",
        "pattern": pattern,
        "nodes": nodes,
        "senders": senders,
        "size": 100,
        "messages_per_second": received,
        "bytes_per_second": received * 100,
    } | facts
    name = ".".join(str(keys.get(key)) for key in ("series", "stack", "link", "size", "nodes"))
    return run(f"{name}.r{keys.get('repeat', 1)}", **keys)


@TESTS.add
def test_slowdown_is_against_the_smallest_group_as_in_the_papers_table() -> Asks:
    runs = [
        _group(nodes, rate, pattern)
        for pattern, rates in (
            ("1-n", {2: 1300.0, 4: 1083.0, 16: 450.0}),
            ("n-n", {2: 966.0, 16: 185.0}),
        )
        for nodes, rate in rates.items()
    ]
    rows = in_order((yield put(scaling, runs)), "pattern", "nodes")
    found = [(one["pattern"], one["nodes"], round(one["slowdown"], 1)) for one in rows]
    assert found == [
        ("1-n", 2, 1.0),
        ("1-n", 4, 1.2),
        ("1-n", 16, 2.9),
        ("n-n", 2, 1.0),
        ("n-n", 16, 5.2),
    ]
    last = rows[-1]
    assert (last["smallest_nodes"], last["repeats"]) == (2, 1)
    assert last["messages_per_second_node"] == pytest.approx(185.0)
    assert last["messages_per_second_total"] == 185.0 * 16 * 15
    assert last["bytes_per_second_total"] == 185.0 * 16 * 15 * 100
    assert last["bytes_per_second_node"] == pytest.approx(18_500.0)


@TESTS.add
def test_a_message_to_one_node_counts_once() -> Asks:
    all_to_all = run(protocol="pyzmq", pattern="n-n", nodes=4, senders=4, messages_per_second=80.0)
    (row,) = yield put(scaling, [all_to_all])
    assert (row["messages_per_second_node"], row["slowdown"]) == (20.0, 1.0)


@TESTS.add
def test_sizes_of_messages_and_numbers_of_senders_are_not_mixed() -> Asks:
    runs = [
        _group(2, 100.0),
        _group(4, 20.0, size=1000),
        _group(4, 50.0, "m-n", senders=2),
        _group(8, 10.0, "m-n", senders=4),
    ]
    assert {row["slowdown"] for row in (yield put(scaling, runs))} == {1.0}


@TESTS.add
def test_publishers_scale_too_and_single_pairs_do_not() -> Asks:
    runs = [
        run("one", protocol="antiphon-topic", senders=1, nodes=2, bytes_per_second=100.0),
        run("four", protocol="antiphon-topic", senders=4, nodes=5, bytes_per_second=200.0),
        run("pair", protocol="pyzmq"),
    ]
    rows = in_order((yield put(scaling, runs)), "nodes")
    assert [(one["protocol"], one["slowdown"]) for one in rows] == [
        ("antiphon-topic", 1.0),
        ("antiphon-topic", 2.0),
    ]


@TESTS.add
def test_sizing_is_the_papers_rule() -> Asks:
    runs = [_group(8, 3.3, protocol="jgroups-udp", stack="paper-udp"), _group(8, 150.7)]
    tcp, udp = in_order((yield put(TABLES["sizing"], runs)), "protocol")
    assert udp["updates_per_second_total"] == pytest.approx(26.4)
    assert udp["requests_per_second_node"] == pytest.approx(22.0)
    assert udp["requests_per_second_total"] == pytest.approx(176.0)
    assert tcp["requests_per_second_node"] == pytest.approx(150.7 / 0.15)
    assert tcp["update_share"] == 0.15


@TESTS.add
def test_who_sends_to_one_at_a_time_tells_all_others_of_an_update() -> Asks:
    # As many messages come as in the group, and each of them is for one node.
    same = _group(4, 30.0)
    keys = {"protocol": "antiphon-node", "stack": None}
    runs = [same, {**same, **keys, "run": "to one"}]
    node, group = in_order((yield put(TABLES["sizing"], runs)), "protocol")
    assert (group["updates_per_second_node"], group["updates_per_second_total"]) == (30.0, 120.0)
    assert (node["updates_per_second_node"], node["updates_per_second_total"]) == (30.0, 120.0)
    assert node["requests_per_second_total"] == group["requests_per_second_total"]


@TESTS.add
def test_a_group_of_ones_own_is_sized_as_any_other() -> Asks:
    """That each of its messages goes to all is told by the run, and nowhere else."""
    group = _group(4, 30.0)
    own = {**group, "protocol": "mine", "stack": None, "run": "own", "receivers": 3}
    first, other = yield put(TABLES["sizing"], [group, own])
    assert first["updates_per_second_total"] == other["updates_per_second_total"] == 120.0


@TESTS.add
def test_round_trips_are_no_updates() -> Asks:
    asked = _group(4, 30.0, protocol="antiphon-node", stack=None, variant="request")
    assert (yield put(TABLES["sizing"], [asked])) == []


def _half_updates(given: Inputs) -> DataFrame:
    return TABLES["sizing"](replace(given, update_share=0.5))


@TESTS.add
def test_where_one_node_makes_all_updates_it_limits_them_all() -> Asks:
    (row,) = yield put(_half_updates, [_group(4, 30.0, "1-n")])
    assert (row["updates_per_second_node"], row["updates_per_second_total"]) == (30.0, 30.0)
    assert (row["requests_per_second_total"], row["requests_per_second_node"]) == (60.0, 15.0)


def test_sizing_refuses_what_makes_no_sense() -> None:
    assert requests_per_second(150.7) == pytest.approx(1004.67, abs=0.01)
    for share in (0.0, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="update_share"):
            requests_per_second(1.0, share)
    with pytest.raises(ConfigError, match="updates_per_second"):
        requests_per_second(-1.0)


def _gains(rows: list[dict[str, Any]], question: str) -> list[tuple[Any, ...]]:
    return [
        (
            one["size"],
            one["nodes"],
            one["over"],
            one["this"],
            one["pairs"],
            one["gain_percent_mean"],
        )
        for one in rows
        if one["question"] == question
    ]


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return in_order(rows, "question", "over", "this", "size", "nodes")


@TESTS.add
def test_tcp_over_udp_is_found_across_series() -> Asks:
    udp = {"series": "n-n-udp-small", "protocol": "jgroups-udp", "stack": "paper-udp"}
    runs = [_group(2, 250.0), _group(4, 90.0), _group(2, 100.0, **udp), _group(4, 60.0, **udp)]
    rows = _sorted((yield put(comparison, runs)))
    pair = ("jgroups-udp/paper-udp", "jgroups-tcp/paper-tcp")
    overall, *each = _gains(rows, "transport")
    assert each == [(100, 2, *pair, 1, 150.0), (100, 4, *pair, 1, pytest.approx(50.0))]
    assert overall == (None, None, *pair, 2, pytest.approx(100.0))
    first = next(one for one in rows if one["question"] == "transport")
    assert (first["gain_percent_min"], first["gain_percent_max"]) == (pytest.approx(50.0), 150.0)
    assert (first["protocol"], first["series"], first["pattern"]) == (None, None, "n-n")


@TESTS.add
def test_flow_control_is_held_against_none() -> Asks:
    udp = {"series": "n-n-udp-small", "protocol": "jgroups-udp"}
    runs = [
        _group(4, 100.0, stack="paper-udp", **udp),
        _group(4, 80.0, stack="paper-udp-fc", **udp),
    ]
    rows = _sorted((yield put(comparison, runs)))
    _, one = _gains(rows, "stack")
    assert one == (100, 4, "paper-udp", "paper-udp-fc", 1, pytest.approx(-20.0))


@TESTS.add
def test_gigabit_is_held_against_fast_ethernet_repeat_by_repeat() -> Asks:
    runs = [
        _group(2, rate, link=link, repeat=repeat)
        for link, rates in (("fast", (100.0, 200.0)), ("gigabit", (150.0, 220.0)))
        for repeat, rate in enumerate(rates, start=1)
    ]
    rows = _sorted((yield put(comparison, runs)))
    overall, one = (row for row in rows if row["question"] == "link")
    assert (one["over"], one["this"], one["pairs"]) == ("fast", "gigabit", 2)
    assert one["gain_percent_min"] == pytest.approx(10.0)
    assert one["gain_percent_mean"] == pytest.approx(30.0)
    assert one["gain_percent_max"] == pytest.approx(50.0)
    assert (overall["pairs"], overall["gain_percent_mean"]) == (1, pytest.approx(30.0))


@TESTS.add
def test_protocols_are_compared_once_and_ours_is_held_against_others() -> Asks:
    runs = [
        run("a", protocol="antiphon-node", variant="callback", bytes_per_second=300.0),
        run("z", protocol="zenoh", variant="pub-sub", bytes_per_second=100.0),
        run("bad", protocol="pyzmq", outcome="blocked", bytes_per_second=999.0),
    ]
    found = _gains(_sorted((yield put(comparison, runs))), "protocol")
    pair = ("zenoh/pub-sub", "antiphon-node/callback")
    assert found == [(None, None, *pair, 1, 200.0), (100, 2, *pair, 1, 200.0)]


@TESTS.add
def test_what_differs_in_more_than_one_thing_is_not_compared() -> Asks:
    runs = [_group(2, 100.0, link="fast"), _group(2, 150.0, link="gigabit", workload="cpu")]
    assert _sorted((yield put(comparison, runs))) == []
