"""Plans: what ships loads and expands, and what is wrong with a file is told with its line."""

from __future__ import annotations

import itertools
import pickle
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import ConfigError
from antiphon.lab.java.programs import HEAP_BYTES
from antiphon.lab.plan import (
    KNOWN_PROTOCOLS,
    LINK_KINDS,
    PATTERNS,
    SCHEDULING,
    Garbage,
    Plan,
    PlanError,
    Run,
    estimate,
    load_plan,
    runs_of,
    shipped_plans,
)
from antiphon.lab.protocols import PROTOCOLS, REQUEST, protocol_of, unsuited
from antiphon.toml_lines import lines_of

ROOT = Path(__file__).parents[3]
SHIPPED = ("all-to-all", "group", "real-time", "shootout", "stability", "wide-area")

GOOD = """\
title = "A plan"
repeats = 2

[times]
traffic = 1
kept_from = 2
kept_until = 5

[workloads.busy]
cpu = 0.5

[workloads.heap.garbage]
replaced_per_second = 100

[links.slow]
kind = "bridge"
rate_bits = "100Mbit"

[[series]]
name = "first"
pattern = "one-way"
protocols = ["tcp-c", "antiphon-node"]
variants = { antiphon-node = ["callback", "batch"] }
sizes = [
    64,
    "4KiB",
]
workloads = ["none", "busy"]

[[series]]
name = "second"
pattern = "m-n"
protocols = ["zenoh"]
sizes = [64]
nodes = [2, 4]
senders = [1, 2, 3]
links = ["slow"]

[quick]
repeats = 1
protocols = ["tcp-c"]

[quick.times]
kept_until = 3

[quick.series.first]
sizes = [64]
"""


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refused(path: Path) -> PlanError:
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    return caught.value


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) >= 1, old
    return GOOD.replace(old, new, 1)


def line_with(text: str, what: str) -> int:
    return text[: text.index(what)].count("\n") + 1


# --- what ships -----------------------------------------------------------------------------------


def test_the_plans_of_all_five_papers_and_the_shootout_ship() -> None:
    assert shipped_plans() == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_plan_says_what_it_is_and_keeps_its_text(name: str) -> None:
    plan = load_plan(name)
    assert plan.name == name
    assert plan.title
    assert tomllib.loads(plan.text)["name"] == name
    assert plan.quick().text == plan.text


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_plan_comes_to_runs_whose_ids_are_unique_file_names(
    name: str, quick: bool
) -> None:
    plan = load_plan(name).quick() if quick else load_plan(name)
    runs = runs_of(plan)
    ids = [run.id for run in runs]
    assert runs
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,200}", one) for one in ids)
    assert {run.protocol for run in runs} <= set(KNOWN_PROTOCOLS)
    assert all(run.workload in plan.workloads and run.link in plan.links for run in runs)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_quick_plan_is_five_protocols_three_seconds_one_repeat_and_two_minutes(name: str) -> None:
    plan = load_plan(name).quick()
    runs = runs_of(plan)
    assert len({run.protocol for run in runs}) == 5
    assert plan.times.kept_until - plan.times.kept_from == 3
    assert {run.repeat for run in runs} == {1}
    assert estimate(plan)[0] < 120
    assert plan.quick() is plan


def test_stability_quick_is_five_protocols_under_three_loads() -> None:
    plan = load_plan("stability").quick()
    runs = runs_of(plan)
    assert Counter(run.protocol for run in runs) == dict.fromkeys(
        ("antiphon-node", "tcp-python", "asyncio", "pyzmq", "zenoh"), 3
    )
    assert {run.size for run in runs} == {2000}
    assert {run.workload for run in runs} == {"none", "garbage", "cpu-60"}
    assert plan.times.kept_until <= 5.5
    assert plan.workloads["garbage"].garbage == Garbage(100_000, 10_000, 0.3, 64 * 2**20)


def test_stability_in_full_has_the_times_and_loads_of_the_paper() -> None:
    plan = load_plan("stability")
    times = plan.times
    assert (times.load, times.traffic, times.kept_from, times.kept_until) == (0, 240, 270, 570)
    assert plan.workloads["garbage"].garbage == Garbage(None, 50_000, 0.3, 384 * 2**20)
    assert plan.workloads["cpu-60"].cpu == 0.6
    assert plan.workloads["cpu-as-garbage"].cpu_as_garbage
    ways = {run.variant for run in runs_of(plan) if run.protocol == "antiphon-node"}
    assert ways == {"callback", "inbox", "batch"}
    slow = {(run.protocol, run.workload) for run in runs_of(plan) if run.series == "slow-receiver"}
    groups, loads = ("jgroups-udp", "jgroups-tcp"), ("none", "slow-receiver")
    assert slow == set(itertools.product(groups, loads))
    assert plan.workloads["slow-receiver"].slow_receiver == 1000


def test_all_to_all_has_the_threads_of_the_paper() -> None:
    plan = load_plan("all-to-all")
    assert plan.handlers == plan.quick().handlers == 2
    assert {run.threads for run in runs_of(plan) if run.series in ("pair", "all")} == {1}
    asking = {run.threads for run in runs_of(plan) if run.series == "round-trip"}
    assert asking == {1, 16, 100}


def test_all_to_all_holds_its_round_trips_against_those_of_others() -> None:
    runs = [run for run in runs_of(load_plan("all-to-all")) if run.series == "round-trip-others"]
    others = {name for name, one in PROTOCOLS.items() if REQUEST in one.variants}
    assert {run.protocol for run in runs} == others - {"antiphon-node"}
    assert {run.variant for run in runs} == {REQUEST}


@pytest.mark.parametrize("name", ["all-to-all", "group", "real-time", "wide-area"])
def test_every_run_of_these_plans_is_one_that_its_protocol_can_make(name: str) -> None:
    plan = load_plan(name)
    for run in runs_of(plan):
        workload = plan.workloads[run.workload]
        assert unsuited(protocol_of(plan, run.protocol), run, workload) == "", run.id


def test_our_groups_are_measured_wherever_the_others_are() -> None:
    cells: dict[bool, set[tuple[Any, ...]]] = {True: set(), False: set()}
    usual: dict[bool, set[tuple[Any, ...]]] = {True: set(), False: set()}
    for run in runs_of(load_plan("group")):
        ours = run.protocol == "antiphon-group"
        if run.series.startswith("usual-"):
            over = run.stack if ours else run.protocol.removeprefix("jgroups-")
            usual[ours].add((over, run.link, run.size, run.nodes, run.messages))
        elif run.stack is not None:
            what = (run.pattern, run.stack, run.link, run.size, run.nodes, run.senders)
            cells[ours].add((*what, run.messages))
    assert usual[False] < usual[True]
    assert {one[0] for one in usual[True]} == {"tcp", "udp", "udp-flow", "udp-fc"}
    assert cells[True] == cells[False]
    assert {one[-1] for one in cells[True]} == {1, 10, 100, 1_000, 10_000}
    stacks = {"paper-tcp", "paper-udp", "paper-udp-flow", "paper-udp-fc"}
    for pattern in ("1-n", "n-n", "m-n"):
        assert {one[1] for one in cells[True] if one[0] == pattern} == stacks


def test_the_search_for_the_largest_burst_goes_to_the_paper_s_sixteen_nodes() -> None:
    for pattern in ("1-n", "n-n"):
        ladder = [run for run in runs_of(load_plan("group")) if run.series.startswith("burst-")]
        for protocol in ("jgroups-udp", "jgroups-tcp", "antiphon-group"):
            those = [run for run in ladder if (run.pattern, run.protocol) == (pattern, protocol)]
            assert max(run.nodes for run in those) == 16


def test_every_protocol_is_in_the_shootout() -> None:
    assert {run.protocol for run in runs_of(load_plan("shootout"))} == set(KNOWN_PROTOCOLS)


@pytest.mark.parametrize("variant", ["callback", "recorded"])
def test_the_broker_is_compared_with_and_without_its_store(variant: str) -> None:
    compared = runs_of(load_plan("shootout"))
    for series in ("throughput", "delay"):
        runs = [run for run in compared if run.series == series]
        assert {run.size for run in runs if _is_broker(run, variant)} == {run.size for run in runs}
    lan = [run for run in runs_of(load_plan("wide-area")) if run.series == "delay-lan"]
    rows = {(run.size, run.link) for run in lan if run.protocol == "nats"}
    assert {link for _, link in rows} == {"loopback", "lan"}
    assert {(run.size, run.link) for run in lan if _is_broker(run, variant)} == rows


def _is_broker(run: Run, variant: str) -> bool:
    return (run.protocol, run.variant) == ("antiphon-broker", variant)


@pytest.mark.parametrize("name", SHIPPED)
def test_series_that_come_later_are_listed_and_come_to_no_runs(name: str) -> None:
    plan = load_plan(name)
    made = {run.series for run in runs_of(plan)}
    assert made == {series.name for series in plan.series if not series.later}


def test_the_page_of_plans_says_how_long_the_shipped_ones_take() -> None:
    page = (ROOT / "docs/reference/plans.md").read_text()
    for name in SHIPPED:
        plan = load_plan(name)
        hours, quick = estimate(plan)[0] / 3600, estimate(plan.quick())[0]
        runs = len(runs_of(plan))
        row = f"| {runs:,} runs, {hours:.0f} h, {estimate(plan)[1] / 1e9:.1f} GB | {quick:.0f} s |"
        assert re.search(rf"^\| `{name}` .*{re.escape(row)}$", page, re.MULTILINE), row


# --- runs -----------------------------------------------------------------------------------------


def test_runs_are_the_product_with_variants_by_protocol(tmp_path: Path) -> None:
    runs = runs_of(load_plan(write(tmp_path, GOOD)))
    first = [run for run in runs if run.series == "first"]
    assert len(first) == 2 * (1 + 2) * 2 * 2
    assert {(run.protocol, run.variant) for run in first} == {
        ("tcp-c", None),
        ("antiphon-node", "callback"),
        ("antiphon-node", "batch"),
    }
    assert {run.plan for run in runs} == {"mine"}


def test_in_m_n_there_are_fewer_senders_than_nodes(tmp_path: Path) -> None:
    runs = runs_of(load_plan(write(tmp_path, GOOD)))
    pairs = {(run.nodes, run.senders) for run in runs if run.series == "second"}
    assert pairs == {(2, 1), (4, 1), (4, 2), (4, 3)}


@pytest.mark.parametrize(
    ("pattern", "keys", "expected"),
    [
        ("one-way", "senders = [1, 3]", {(2, 1), (4, 3)}),
        ("duplex", "", {(2, 2)}),
        ("1-n", "nodes = [2, 8]", {(2, 1), (8, 1)}),
        ("n-n", "nodes = [2, 8]", {(2, 2), (8, 8)}),
    ],
)
def test_nodes_and_senders_are_those_of_the_pattern(
    tmp_path: Path, pattern: str, keys: str, expected: set[tuple[int, int]]
) -> None:
    text = f"""[times]\nkept_until = 1\n[[series]]\nname = "a"\npattern = "{pattern}"
protocols = ["tcp-c"]\nsizes = [1]\n{keys}\n"""
    runs = runs_of(load_plan(write(tmp_path, text)))
    assert {(run.nodes, run.senders) for run in runs} == expected


def test_the_ids_are_the_same_whenever_the_plan_is_read(tmp_path: Path) -> None:
    ids = [run.id for run in runs_of(load_plan(write(tmp_path, GOOD)))]
    assert ids == [run.id for run in runs_of(load_plan(write(tmp_path, GOOD)))]
    assert "first.antiphon-node_batch.busy.loopback.4096B.r2" in ids
    assert "second.zenoh.none.slow.64B.n4.s3.r1" in ids


def test_all_first_repeats_come_before_all_second_ones_each_in_an_order_of_its_own() -> None:
    plan = load_plan("shootout")
    runs = runs_of(plan)
    assert [run.repeat for run in runs] == sorted(run.repeat for run in runs)
    orders = [
        [run.id.rpartition(".")[0] for run in runs if run.repeat == repeat]
        for repeat in range(1, plan.repeats + 1)
    ]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    assert len({tuple(order) for order in orders}) == 3
    # Protocols are mixed: none of them has all its runs in one half of a repeat.
    halves = orders[0][: len(orders[0]) // 2]
    ours = [one for one in orders[0] if "antiphon-node" in one]
    assert 0 < sum(one in halves for one in ours) < len(ours)


def test_a_protocol_less_leaves_the_others_in_their_order() -> None:
    plan = load_plan("shootout").quick()
    without = ["tcp-python", "pyzmq", "zenoh"]
    expected = [run for run in runs_of(plan) if run.protocol in without]
    assert list(runs_of(plan.with_protocols(without))) == expected


def test_another_seed_is_another_order_and_recorded(tmp_path: Path) -> None:
    one = runs_of(load_plan(write(tmp_path, GOOD)))
    two = runs_of(load_plan(write(tmp_path, "seed = 7\n" + GOOD)))
    assert [run.id for run in one] != [run.id for run in two]
    assert sorted(run.id for run in one) == sorted(run.id for run in two)
    assert {(run.repeat, run.seed) for run in two} == {(1, 7), (2, 8)}


def test_a_number_of_messages_and_who_is_paced_are_in_every_run_and_not_in_its_id(
    tmp_path: Path,
) -> None:
    plain = runs_of(load_plan(write(tmp_path, GOOD)))
    assert {(run.messages, run.paced) for run in plain} == {(None, None)}
    text = changed(
        "senders = [1, 2, 3]", "senders = [1, 2, 3]\nmessages = 7\nrates = [9]\npaced = 1"
    )
    some = [run for run in runs_of(load_plan(write(tmp_path, text))) if run.series == "second"]
    assert {(run.messages, run.paced, run.rate) for run in some} == {(7, 1, 9)}
    assert sorted(run.id.replace(".9ps", "") for run in some) == sorted(
        run.id for run in plain if run.series == "second"
    )


def test_several_numbers_of_messages_are_as_many_runs_and_in_their_ids(tmp_path: Path) -> None:
    plain = [run for run in runs_of(load_plan(write(tmp_path, GOOD))) if run.series == "second"]
    text = changed("senders = [1, 2, 3]", "senders = [1, 2, 3]\nmessages = [7, 70]")
    some = [run for run in runs_of(load_plan(write(tmp_path, text))) if run.series == "second"]
    assert len(some) == 2 * len(plain)
    assert len({run.id for run in some}) == len(some)
    assert {run.messages for run in some} == {7, 70}
    assert all(f".m{run.messages}." in run.id for run in some)


def test_in_the_shares_of_real_time_only_the_first_publisher_is_paced() -> None:
    for plan in (load_plan("real-time"), load_plan("real-time").quick()):
        shares = [run for run in runs_of(plan) if run.series == "shares"]
        assert {run.variant for run in shares} == {"callback", "shares"}
        assert {(run.senders, run.paced, run.rate) for run in shares} == {(2, 1, 1000)}


def test_a_plan_can_be_sent_to_another_process(tmp_path: Path) -> None:
    plan = load_plan(write(tmp_path, GOOD))
    again: Plan = pickle.loads(pickle.dumps(plan))
    assert again == plan
    assert hash(again) == hash(plan)


# --- quick and protocols --------------------------------------------------------------------------


def test_quick_changes_what_its_table_names_and_drops_series_without_a_protocol(
    tmp_path: Path,
) -> None:
    plan = load_plan(write(tmp_path, GOOD))
    quick = plan.quick()
    assert [series.name for series in quick.series] == ["first"]
    assert quick.series[0].protocols == ("tcp-c",)
    assert quick.series[0].sizes == (64,)
    assert quick.series[0].workloads == ("none", "busy")
    assert (quick.times.kept_from, quick.times.kept_until) == (2, 3)
    assert (quick.repeats, plan.repeats) == (1, 2)


def test_quick_leaves_out_series_by_name(tmp_path: Path) -> None:
    text = changed('protocols = ["tcp-c"]\n\n[quick', 'leave_out = ["first"]\n\n[quick')
    assert [s.name for s in load_plan(write(tmp_path, text)).quick().series] == ["second"]


def test_a_plan_without_the_table_has_no_quick_form(tmp_path: Path) -> None:
    plan = load_plan(write(tmp_path, GOOD[: GOOD.index("[quick]")]))
    with pytest.raises(PlanError, match=r"no \[quick\] table; add one"):
        plan.quick()


def test_protocols_widen_a_quick_plan_to_those_of_the_full_one(tmp_path: Path) -> None:
    plan = load_plan(write(tmp_path, GOOD))
    wider = plan.quick().with_protocols(["antiphon-node", "tcp-c"])
    assert wider.series[0].protocols == ("tcp-c", "antiphon-node")
    assert Counter(run.protocol for run in runs_of(wider)) == {"tcp-c": 2, "antiphon-node": 4}
    assert plan.with_protocols(["antiphon-node", "tcp-c"]).quick() == wider


def test_a_series_without_a_quick_protocol_is_there_when_one_of_its_own_is_named(
    tmp_path: Path,
) -> None:
    plan = load_plan(write(tmp_path, GOOD))
    assert [series.name for series in plan.quick().series] == ["first"]
    wider = plan.quick().with_protocols(["zenoh"])
    assert [series.name for series in wider.series] == ["second"]
    assert {run.protocol for run in runs_of(wider)} == {"zenoh"}
    assert plan.with_protocols(["zenoh"]).quick() == wider
    # Left out by its name it stays out.
    text = changed('protocols = ["tcp-c"]\n\n[quick', 'leave_out = ["second"]\n\n[quick')
    with pytest.raises(PlanError, match="in none of its series"):
        load_plan(write(tmp_path, text)).quick().with_protocols(["zenoh"])


@pytest.mark.parametrize("name", SHIPPED)
def test_a_quick_plan_is_widened_to_every_protocol_of_the_full_one(name: str) -> None:
    plan = load_plan(name)
    document = tomllib.loads(plan.text)
    left_out = document["quick"].get("leave_out", [])
    for protocol in sorted({one for series in plan.series for one in series.protocols}):
        wider = plan.quick().with_protocols([protocol])
        having = [series.name for series in plan.series if protocol in series.protocols]
        assert {one.name for one in wider.series} == set(having) - set(left_out), protocol
        later = all(series.later for series in wider.series)
        assert {run.protocol for run in runs_of(wider)} == (set() if later else {protocol})
        assert estimate(wider)[0] < 120, protocol


def test_protocols_narrow_a_plan_and_series_without_any_are_dropped(tmp_path: Path) -> None:
    plan = load_plan(write(tmp_path, GOOD)).with_protocols(["zenoh"])
    assert [series.name for series in plan.series] == ["second"]
    assert {series.name for series in plan.with_protocols(["zenoh"]).series} == {"second"}


@pytest.mark.parametrize("names", [["nats"], []])
def test_protocols_that_the_plan_does_not_have_are_refused(
    tmp_path: Path, names: list[str]
) -> None:
    plan = load_plan(write(tmp_path, GOOD))
    with pytest.raises(PlanError, match="allowed are tcp-c, antiphon-node, zenoh") as caught:
        plan.with_protocols(names)
    assert caught.value.allowed == ("tcp-c", "antiphon-node", "zenoh")


# --- estimate -------------------------------------------------------------------------------------


def test_the_estimate_is_time_of_runs_and_links_and_grows_with_what_is_recorded(
    tmp_path: Path,
) -> None:
    plan = load_plan(write(tmp_path, GOOD))
    seconds, size = estimate(plan)
    # What does not apply is written down, and takes no time.
    runs = [
        run
        for run in runs_of(plan)
        if not unsuited(protocol_of(plan, run.protocol), run, plan.workloads[run.workload])
    ]
    assert len(runs) < len(runs_of(plan))
    assert seconds == pytest.approx(len(runs) * (5 + 1.5) + 2 * 3 * 4.5)
    slower = load_plan(write(tmp_path, changed("sizes = [\n", "rates = [10]\nsizes = [\n")))
    fewer = load_plan(write(tmp_path, changed("sizes = [\n", "messages = 10\nsizes = [\n")))
    assert 0 < estimate(slower)[1] < size
    assert 0 < estimate(fewer)[1] < size
    assert estimate(slower)[0] == seconds


# --- errors ---------------------------------------------------------------------------------------

NODE_VARIANTS = ("callback", "inbox", "batch", "request")

FAULTS = [
    # what is replaced, by what, the text on the line that is named, field, words, allowed
    ('title = "A plan"', "title = 3", "title", "title", "3 is not a text", ()),
    ('title = "A plan"', 'titel = "A"', "titel", "titel", "did you mean title?", None),
    ('title = "A plan"', 'name = "a/b"', "name =", "name", "'a/b' is not a name", None),
    ("repeats = 2", "repeats = 0", "repeats", "repeats", "0 is out", None),
    ("repeats = 2", "repeats = true", "repeats", "repeats", "True is out", None),
    ("repeats = 2", "handlers = 0", "handlers", "handlers", "0 is out", None),
    ("repeats = 2", 'pinned = "yes"', "pinned", "pinned", "'yes'", ("true", "false")),
    ("repeats = 2", 'scheduling = "rr"', "scheduling", "scheduling", "'rr'", SCHEDULING),
    ("repeats = 2", "gc = { thresholds = [] }", "gc =", "gc.thresholds", "one to three", ()),
    ("repeats = 2", "memory_limit = 5", "memory_limit", "memory_limit", "5 is out of range", None),
    ("[times]", "[adapters.pyzmq]\nfile = 'a.py'\n[times]", "[adapters", None, "already", ()),
    ("[times]", "[adapters.mine]\n[times]", "[adapters", "adapters.mine.file", "missing", ()),
    ("repeats = 2", "gc = 3", "gc =", "gc", "not a table", ()),
    ("kept_until = 5", "kept_until = 2", "kept_until", "times.kept_until", "not after", None),
    ("kept_until = 5", "", "[times]", "times.kept_until", "is missing", ()),
    ("kept_until = 5", "kept_until = nan", "kept_until", "times.kept_until", "range", None),
    ("traffic = 1", "traffic = 3", "traffic", "times.traffic", "after kept_from", ("0 to 2",)),
    ("traffic = 1", "traffic = 1\nload = 1.5", "load", "times.load", "after traffic", ("0 to 1",)),
    ("traffic = 1", 'traffic = "1 s"', "traffic", "times.traffic", "not a number", None),
    ("cpu = 0.5", "cpu = 60", "cpu = 60", "workloads.busy.cpu", "out of range", None),
    ("cpu = 0.5", "", "[workloads.busy]", "workloads.busy", "no load", None),
    ("[workloads.busy]", "[workloads.none]", "[workloads.none]", "workloads.none", "no load", ()),
    ("cpu = 0.5", "cpu = 0.5\ncpu_as_garbage = true", "cpu_as", None, "stands instead", ()),
    ("replaced_per", "live_objects = 0\nreplaced_per", "live_obj", None, "0 is out", None),
    ("replaced_per_second = 100", "", "[workloads.heap.garbage]", None, "is missing", ()),
    ('kind = "bridge"', 'kind = "wifi"', "kind", "links.slow.kind", "'wifi'", LINK_KINDS),
    ('kind = "bridge"', 'kind = "loopback"', "rate_bits", None, "bridge has it", ()),
    ('kind = "bridge"\nrate_bits = "100Mbit"', 'kind = "ssh"', "[links.slow]", None, "hosts", ()),
    ('rate_bits = "100Mbit"', 'rate_bits = "fast"', "rate_bits", None, "not a rate", None),
    ('rate_bits = "100Mbit"', "delay = 0.05", "delay", "links.slow.delay", "come later", ()),
    ('rate_bits = "100Mbit"', "loss = 0.01", "loss", "links.slow.loss", "come later", ()),
    ('rate_bits = "100Mbit"', 'hosts = ["a"]', "hosts", "links.slow.hosts", "ssh has them", ()),
    ('name = "second"', 'name = "first"', 'name = "first"\npattern = "m-n"', None, "two", ()),
    ('name = "second"', "", "[[series]]\n\n", "series.[1].name", "is missing", ()),
    ('name = "first"', 'name = "First_One"', "First", None, "'First_One' is not a name", None),
    ('"one-way"', '"n-m"', "n-m", "series.first.pattern", "'n-m'", PATTERNS),
    ('["tcp-c", ', '["tcpc", ', "tcpc", "series.first.protocols", "did you mean tcp-c?", None),
    ('["tcp-c", ', '["tcp-c", "tcp-c", ', "protocols =", None, "'tcp-c' is there twice", ()),
    ('["zenoh"]', '"zenoh"', '"zenoh"', "series.second.protocols", "write ['zenoh']", ()),
    ('["zenoh"]', "[]", "protocols = []", "series.second.protocols", "empty", ()),
    ('["callback", "batch"]', '["callbak"]', "variants", None, "mean callback?", NODE_VARIANTS),
    ("{ antiphon-node", "{ nats", "variants", "series.first.variants.nats", "not a protocol", None),
    ('    "4KiB",', '    "4 KX",', "4 KX", "series.first.sizes", "'4 KX' is not a size", None),
    ("    64,", "    0,", "    0,", "series.first.sizes", "out of range", None),
    ('["none", "busy"]', '["bussy"]', "bussy", None, "mean busy?", ("none", "busy", "heap")),
    ('links = ["slow"]', 'links = ["x"]', '"x"', None, "'x'", ("loopback", "slow")),
    ("nodes = [2, 4]", "nodes = [1]", "nodes", "series.second.nodes", "1 is out", None),
    ("senders = [1, 2, 3]", "senders = [4]", "senders", None, "more nodes than senders", ()),
    ('pattern = "m-n"', 'pattern = "n-n"', "senders", None, "one-way, m-n", ()),
    ('pattern = "m-n"', 'pattern = "one-way"', "nodes", None, "1-n, n-n, m-n", ()),
    ("nodes = [2, 4]", 'rates = ["fast"]', "rates", None, "'fast' is not a number", None),
    ("senders = [1, 2, 3]", "paced = 1", "paced", "series.second.paced", "no rate to keep", ()),
    ("nodes = [2, 4]", "rates = [9]\npaced = 3", "paced", None, "all 3 keep the rate", ()),
    ("sizes = [\n", "rates = [9]\npaced = 0\nsizes = [\n", "paced", None, "0 is out", None),
    ("nodes = [2, 4]", "node = [2]", "node = [2]", "series.second.node", "mean nodes?", None),
    ("[quick]", "[quick]\nrepeat = 1", "repeat = 1", "quick.repeat", "mean repeats?", None),
    ('["tcp-c"]\n', '["nats"]\n', '["nats"]', "quick.protocols", "'nats'", None),
    ("kept_until = 3", "kept_until = 1", "kept_until = 1", "quick.times.kept_until", "after", None),
    ("kept_until = 3", "kept = 3", "kept = 3", "quick.times.kept", "no such key", None),
    ("[quick.series.first]", "[quick.series.fist]", "fist", "quick.series.fist", "first?", None),
]


@pytest.mark.parametrize(("old", "new", "where", "field", "words", "allowed"), FAULTS)
def test_a_fault_is_one_line_with_file_line_field_and_what_is_allowed(
    tmp_path: Path,
    old: str,
    new: str,
    where: str,
    field: str | None,
    words: str,
    allowed: tuple[str, ...] | None,
) -> None:
    text = changed(old, new)
    path = write(tmp_path, text)
    error = refused(path).faults[0]
    line = line_with(text, where)
    assert str(error).startswith(f"{path}, line {line}: {error.setting}: ")
    assert "\n" not in str(error)
    assert words in str(error)
    assert (error.file, error.line) == (str(path), line)
    if field is not None:
        assert error.setting == field
    if allowed is None:
        assert error.allowed
    else:
        assert error.allowed == tuple(allowed)
    if error.allowed:
        assert str(error).endswith(f"; allowed are {', '.join(error.allowed)}")


def test_all_faults_of_a_file_are_told_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = changed("repeats = 2", "repeats = 0")
    text = text.replace("cpu = 0.5", "cpu = 2").replace("64,", "0,")
    error = refused(write(tmp_path, text))
    assert [fault.setting for fault in error.faults] == [
        "repeats",
        "workloads.busy.cpu",
        "series.first.sizes",
    ]
    assert str(error).splitlines() == [str(fault) for fault in error.faults]
    assert (error.setting, error.value, error.line) == ("repeats", 0, 2)
    assert isinstance(error, ConfigError)


def test_a_fault_can_be_sent_to_another_process(tmp_path: Path) -> None:
    error = refused(write(tmp_path, changed("repeats = 2", "repeats = 0")))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.line, again.setting) == (str(error), 2, "repeats")


def test_what_quick_breaks_without_naming_it_is_told_where_it_stands(tmp_path: Path) -> None:
    text = changed("kept_until = 3", "kept_from = 6")
    error = refused(write(tmp_path, text))
    assert error.line == line_with(text, "kept_until = 5")
    assert error.setting == "times.kept_until with [quick] applied"


def test_quick_may_not_change_what_a_series_is(tmp_path: Path) -> None:
    text = changed("[quick.series.first]", '[quick.series.first]\npattern = "duplex"')
    error = refused(write(tmp_path, text))
    assert error.setting == "quick.series.first.pattern"


def test_a_quick_table_that_leaves_nothing_is_refused(tmp_path: Path) -> None:
    text = changed("[quick]", '[quick]\nleave_out = ["first", "second"]')
    assert "no series is left" in str(refused(write(tmp_path, text)))


def test_cpu_as_garbage_needs_the_one_load_that_it_is_measured_by(tmp_path: Path) -> None:
    text = changed("cpu = 0.5", "cpu_as_garbage = true")
    assert load_plan(write(tmp_path, text)).workloads["busy"].cpu_as_garbage
    none = text.replace("[workloads.heap.garbage]\nreplaced_per_second = 100", "")
    error = refused(write(tmp_path, none))
    assert "needs one workload with garbage, and there are 0" in str(error)
    assert error.line == line_with(none, "cpu_as_garbage")


def test_a_link_with_delay_may_wait_in_a_series_that_comes_later(tmp_path: Path) -> None:
    text = changed('rate_bits = "100Mbit"', "delay = 0.05").replace(
        'name = "second"', 'name = "second"\nlater = "delay-links"'
    )
    plan = load_plan(write(tmp_path, text))
    assert plan.links["slow"].delay == 0.05
    assert plan.series[1].later == ("delay-links",)
    assert {run.series for run in runs_of(plan)} == {"first"}


def test_a_series_that_comes_later_may_name_the_protocol_that_is_missing(tmp_path: Path) -> None:
    text = changed('["zenoh"]', '["antiphon-bulk"]')
    assert "'antiphon-bulk' is not a known protocol" in str(refused(write(tmp_path, text)))
    later = text.replace('name = "second"', 'name = "second"\nlater = ["antiphon-bulk"]')
    assert load_plan(write(tmp_path, later)).series[1].protocols == ("antiphon-bulk",)


def test_hosts_of_ssh_are_no_options_of_ssh(tmp_path: Path) -> None:
    ssh = 'kind = "ssh"\nhosts = ["pi@10.0.0.7", "other"]'
    text = changed('kind = "bridge"\nrate_bits = "100Mbit"', ssh)
    assert load_plan(write(tmp_path, text)).links["slow"].hosts == ("pi@10.0.0.7", "other")
    error = refused(write(tmp_path, text.replace("other", "-oProxyCommand=x")))
    assert error.setting == "links.slow.hosts"


def test_a_protocol_of_ones_own_is_known_when_the_caller_says_so(tmp_path: Path) -> None:
    path = write(tmp_path, changed('["zenoh"]', '["carrier-pigeon"]'))
    known = [*KNOWN_PROTOCOLS, "carrier-pigeon"]
    assert load_plan(path, known=known).series[1].protocols == ("carrier-pigeon",)


def test_too_many_runs_are_refused_before_they_are_made(tmp_path: Path) -> None:
    sizes = ", ".join(map(str, range(1, 1001)))
    threads = ", ".join(map(str, range(1, 1001)))
    text = changed("sizes = [64]\nnodes", f"sizes = [{sizes}]\nthreads = [{threads}]\nnodes")
    assert "8,000,024 runs; 100,000 are allowed" in str(refused(write(tmp_path, text)))


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (b"repeats = 1\nseed = = 2\n", 2, "not TOML"),
        (b"repeats = 1\nrepeats = 2\n", 2, "not TOML"),
        (b'title = """open\n\n', 3, "not TOML"),
        (b"repeats = 1\ntitle = '\xff'\n", 2, "not UTF-8"),
        (b"repeats = 1\n", 1, "times.kept_until: is missing"),
        (b"series = []\n[times]\nkept_until = 1\n", 1, "one [[series]] or more"),
        (b"series = 3\n[times]\nkept_until = 1\n", 1, "write [[series]]"),
        (b"series = [3]\n[times]\nkept_until = 1\n", 1, "3 is not a table"),
        (b"quick = 3\n[times]\nkept_until = 1\n", 1, "series: is missing"),
        (b"x = " + b"[" * 5000 + b"]" * 5000, None, "nested too deeply"),
    ],
)
def test_a_file_that_cannot_be_a_plan_says_where(
    tmp_path: Path, content: bytes, line: int | None, words: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    error = refused(path)
    assert words in str(error)
    assert error.line == line


def test_a_plan_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="there is no plan 'stabilty'") as caught:
        load_plan("stabilty")
    assert caught.value.allowed == SHIPPED
    assert "cannot be read: No such file" in str(refused(tmp_path / "none.toml"))


# --- lines ----------------------------------------------------------------------------------------


def test_lines_are_found_past_strings_comments_and_brackets() -> None:
    text = r"""
a = "x # [not] = a table" # [b]
b = QQQ
[c]
QQQ
d = [ # first
  1, [2,
  3], { x = 1, y.z = 2 },
]
"e.f" . g = 1979-05-27T07:32:00Z
[h.'i j']
k = "quoted \" ] "
[[l]]
[[l.m]]
[[l]]
[[l.m]]
[[l.m]]
n = { o = [1, 2], p = {} }
[l.q]
r = ''
s = DDD"" ] \DDD DDD
t = 1
"""
    text = text.removeprefix("\n").replace("QQQ", "'" * 3).replace("DDD", '"' * 3)
    tomllib.loads(text)
    lines = lines_of(text)
    assert lines[("b",)] == 2
    assert ("c",) not in lines
    assert [lines[("d", 0)], lines[("d", 1, 1)], lines[("d", 2, "y", "z")]] == [6, 7, 7]
    assert lines[("e.f", "g")] == 9
    assert lines[("h", "i j", "k")] == 11
    assert [lines[("l", 0)], lines[("l", 0, "m", 0)], lines[("l", 1)]] == [12, 13, 14]
    assert lines[("l", 1, "m", 1, "n", "o", 1)] == 17
    assert [lines[("l", 1, "q", key)] for key in "rst"] == [19, 20, 21]


def keys_of(value: Any, at: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    found = {at} if at else set()
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    return found.union(*(keys_of(one, (*at, key)) for key, one in inner))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_key_of_a_shipped_plan_has_a_line_and_it_holds_that_key(name: str) -> None:
    text = load_plan(name).text
    lines, rows = lines_of(text), text.splitlines()
    assert set(lines) == keys_of(tomllib.loads(text))
    for keys, line in lines.items():
        if isinstance(keys[-1], str):
            assert keys[-1] in rows[line - 1]


# --- any plan -------------------------------------------------------------------------------------

names = st.from_regex(r"[a-z0-9][a-z0-9-]{0,23}", fullmatch=True)


def some(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(elements, min_size=1, max_size=2, unique=True)


def variants_of(name: str) -> st.SearchStrategy[str]:
    return st.sampled_from(PROTOCOLS[name].variants) if name in PROTOCOLS else names


@st.composite
def series(draw: st.DrawFn) -> dict[str, Any]:
    pattern = draw(st.sampled_from(PATTERNS))
    found: dict[str, Any] = {
        "pattern": pattern,
        "protocols": draw(some(st.sampled_from(KNOWN_PROTOCOLS))),
        "sizes": draw(some(st.integers(1, 2**30))),
        "rates": draw(some(st.floats(0.001, 1e9) | st.integers(1, 10**9) | st.just("max"))),
        "threads": draw(some(st.integers(1, 1024))),
        "streams": draw(some(st.integers(1, 256))),
        "stacks": draw(some(names)),
        "placements": draw(some(names)),
        "workloads": draw(some(st.sampled_from(["none", "busy"]))),
    }
    if pattern in ("1-n", "n-n", "m-n"):
        found["nodes"] = draw(some(st.integers(2, 1024)))
    if pattern in ("one-way", "m-n"):
        found["senders"] = draw(some(st.integers(1, 1 if pattern == "m-n" else 1024)))
    chosen = draw(st.lists(st.sampled_from(found["protocols"]), max_size=1))
    found["variants"] = {name: draw(some(variants_of(name))) for name in chosen}
    return found


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}" = {toml(one)}' for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


@settings(max_examples=20, deadline=None)
@given(found=st.dictionaries(names, series(), min_size=1, max_size=2), repeats=st.integers(1, 2))
def test_any_plan_comes_to_as_many_runs_as_its_lists_say_and_no_id_twice(
    tmp_path_factory: pytest.TempPathFactory, found: dict[str, dict[str, Any]], repeats: int
) -> None:
    text = f"repeats = {repeats}\n[times]\nkept_until = 1\n[workloads.busy]\ncpu = 1\n"
    expected = 0
    for name, one in found.items():
        text += f'[[series]]\nname = "{name}"\n'
        text += "".join(f"{key} = {toml(value)}\n" for key, value in one.items())
        ways = sum(len(one["variants"].get(protocol, [0])) for protocol in one["protocols"])
        for key, value in one.items():
            if key not in ("pattern", "protocols", "variants"):
                ways *= len(value)
        expected += ways * repeats
    path = write(tmp_path_factory.getbasetemp(), text, "any.toml")
    if expected > 100_000:
        assert "runs; 100,000 are allowed" in str(refused(path))
        return
    runs = runs_of(load_plan(path))
    assert len(runs) == len({run.id for run in runs}) == expected
    assert max(len(run.id) for run in runs) <= 250


def test_a_series_may_have_a_limit_of_memory_of_its_own(tmp_path: Path) -> None:
    text = changed("repeats = 2", 'repeats = 2\nmemory_limit = "1GiB"')
    text = text.replace('name = "second"', 'name = "second"\nmemory_limit = "64MiB"')
    for plan in (load_plan(write(tmp_path, text)), load_plan(write(tmp_path, text)).quick()):
        limits = {run.series: plan.limit_of(run) for run in runs_of(plan)}
        assert limits.items() <= {"first": 2**30, "second": 2**26}.items()
    plan = load_plan(write(tmp_path, GOOD))
    assert {plan.limit_of(run) for run in runs_of(plan)} == {None}
    with pytest.raises(PlanError, match=r"series\.second\.memory_limit"):
        load_plan(write(tmp_path, text.replace('"64MiB"', "5")))


def test_bursts_of_ours_have_as_much_memory_as_those_of_a_jvm() -> None:
    plan = load_plan("group")
    ours = [
        run for run in runs_of(plan) if run.series.startswith("burst-") and "antiphon" in run.series
    ]
    assert {run.protocol for run in ours} == {"antiphon-group"}
    assert {plan.limit_of(run) for run in ours} == {HEAP_BYTES}
    others = {plan.limit_of(run) for run in runs_of(plan) if "antiphon" not in run.series}
    assert others == {None}  # the heap is theirs
