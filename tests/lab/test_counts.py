"""Runs of a given number of messages: all of them arrive, not one more is sent, then it ends."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from antiphon.lab.campaign import Campaign
from antiphon.lab.protocols import PROTOCOLS, missing
from antiphon.lab.runner import run_campaign
from lab.small_plans import Recorded, carried_out, searched

pytestmark = pytest.mark.timeout(180)

# A run may take this long, and none here does.
LONG = 60.0
NEEDS = {"pyzmq": "pyzmq", "zenoh": "zenoh", "nats": "nats", "java-net": "java"}


def one_way(protocol: str, more: str = "") -> str:
    return f'pattern = "one-way"\nprotocols = ["{protocol}"]\n{more}\n'


def checked(run: Recorded, messages: int) -> None:
    """Complete, with all that was sent, and soon."""
    facts = run.facts
    assert run.ended == ("complete", "")
    assert run.received() == run.sent() == messages
    seconds = (facts["kept_until_ns"] - facts["kept_from_ns"]) / 1e9
    assert 0 < seconds < LONG / 2
    assert facts["messages_per_second"] == pytest.approx(run.received() / seconds)
    assert facts["bytes_per_second"] == pytest.approx(facts["size"] * run.received() / seconds)
    rows = run.table("latency")
    assert rows
    for row in rows:
        assert facts["kept_from_ns"] <= row["intended_ns"] <= row["sent_ns"]
        assert row["sent_ns"] <= facts["kept_until_ns"]


def marked(protocol: str, *values: Any) -> Any:
    marks = [pytest.mark.needs(NEEDS[protocol])] if protocol in NEEDS else []
    return pytest.param(protocol, *values, marks=marks, id=" ".join(map(str, (protocol, *values))))


@pytest.mark.parametrize(
    ("protocol", "variant"),
    [
        marked("antiphon-node", "callback"),
        marked("antiphon-node", "batch"),
        marked("antiphon-topic", "batch"),
        marked("antiphon-broker", "batch"),
        marked("antiphon-broker", "recorded"),
        marked("tcp-c", "stream"),
        marked("tcp-python", "sockets"),
        marked("asyncio", "streams"),
        marked("pyzmq", "push-pull"),
        marked("zenoh", "pub-sub"),
    ],
)
def test_as_many_are_sent_and_arrive_as_the_plan_says(
    tmp_path: Path, protocol: str, variant: str
) -> None:
    keys = one_way(protocol, f'messages = 5_003\nvariants = {{ {protocol} = ["{variant}"] }}')
    began = time.monotonic()
    (run,) = carried_out(tmp_path, keys, kept_until=LONG)
    assert time.monotonic() - began < LONG
    assert run.facts["messages"] == 5003
    checked(run, 5003)


@pytest.mark.parametrize("messages", [1, 40])
def test_few_are_enough(tmp_path: Path, messages: int) -> None:
    (run,) = carried_out(tmp_path, one_way("tcp-python", f"messages = {messages}"), kept_until=LONG)
    checked(run, messages)


def test_all_count_from_the_first_on_whatever_is_kept_of_other_runs(tmp_path: Path) -> None:
    keys = one_way("tcp-python", "messages = 2_000")
    (run,) = carried_out(tmp_path, keys, kept_from=LONG - 1, kept_until=LONG)
    checked(run, 2000)


def test_threads_and_senders_send_it_each(tmp_path: Path) -> None:
    keys = one_way("tcp-python", "messages = 1_001\nthreads = [3]\nsenders = [2]")
    (run,) = carried_out(tmp_path, keys, kept_until=LONG)
    checked(run, 2002)
    assert run.last()["writer-0"]["sent_messages"] == 1001


@pytest.mark.parametrize(("pattern", "nodes"), [("duplex", 2), ("n-n", 3)])
def test_everybody_sends_it(tmp_path: Path, pattern: str, nodes: int) -> None:
    more = f"nodes = [{nodes}]" if pattern == "n-n" else ""
    keys = f'pattern = "{pattern}"\nprotocols = ["antiphon-node"]\nmessages = 1_500\n{more}\n'
    (run,) = carried_out(tmp_path, keys, kept_until=LONG)
    checked(run, nodes * 1500)
    assert {row["sent_messages"] for row in run.last().values()} == {1500}


def test_by_a_timetable_every_one_has_its_times(tmp_path: Path) -> None:
    keys = one_way("tcp-python", "messages = 60\nrates = [100]")
    (run,) = carried_out(tmp_path, keys, kept_until=LONG)
    checked(run, 60)
    rows = run.table("latency")
    assert [row["sequence"] for row in rows] == list(range(60))
    times = [row["intended_ns"] for row in rows]
    assert all(later - one >= 9_999_999 for one, later in itertools.pairwise(times))
    assert run.facts["latency_one_in"] == 1.0


def test_requests_can_be_counted_too(tmp_path: Path) -> None:
    more = 'messages = 301\nthreads = [2]\nvariants = { antiphon-node = ["request"] }'
    (run,) = carried_out(tmp_path, one_way("antiphon-node", more), kept_until=LONG)
    checked(run, 301)
    assert {row["stage"] for row in run.table("latency")} == {"round-trip"}


@pytest.mark.parametrize("protocol", ["udp-c", "udp-python", marked("nats")])
def test_what_is_lost_is_a_count_and_not_waited_for_long(tmp_path: Path, protocol: str) -> None:
    (run,) = carried_out(tmp_path, one_way(protocol, "messages = 4_000"), kept_until=LONG)
    assert run.ended == ("complete", "")
    assert run.sent() == 4000
    assert 0 < run.received() <= 4000
    assert (run.facts["sent"], run.facts["received"]) == (4000, run.received())
    assert run.facts["lost"] == 4000 - run.received()
    assert run.after_window() < LONG / 2
    # What was waited for has rows of its own: one ends where the messages do.
    ends = [row["time_ns"] - run.facts["kept_until_ns"] for row in run.table("samples")]
    assert any(0 <= end <= 500_000_000 for end in ends)


def test_what_is_lost_in_a_window_is_counted_and_of_others_nothing_is_said(tmp_path: Path) -> None:
    keys = one_way("udp-python", "").replace('"udp-python"', '"udp-python", "tcp-python"')
    runs = {run.facts["protocol"]: run for run in carried_out(tmp_path, keys)}
    facts = runs["udp-python"].facts
    assert runs["udp-python"].ended == ("complete", "")
    grown = {"sent": 0, "received": 0}
    for role in ("reader", "writer"):
        samples = runs["udp-python"].table("samples")
        kept = [row for row in samples if row["kept"] and row["role"] == role]
        for name in grown:
            grown[name] += kept[-1][f"{name}_messages"] - kept[0][f"{name}_messages"]
    assert grown["received"] > 0
    assert {name: facts[name] for name in grown} == grown
    assert facts["lost"] == max(0, grown["sent"] - grown["received"])
    assert not {"sent", "received", "lost"} & runs["tcp-python"].facts.keys()


def test_a_row_from_before_the_first_message_lets_all_of_them_count(tmp_path: Path) -> None:
    (run,) = carried_out(tmp_path, one_way("tcp-python", "messages = 9"), kept_until=LONG)
    rows = [row for row in run.table("samples") if row["role"] == "writer"]
    before = [row for row in rows if row["time_ns"] <= run.facts["kept_from_ns"]]
    assert before[-1]["sent_messages"] == 0
    assert run.facts["kept_from_ns"] - before[-1]["time_ns"] < 500_000_000


def test_what_has_not_come_at_the_end_is_said(tmp_path: Path) -> None:
    keys = one_way("tcp-python", "messages = 1_000\nrates = [50]")
    # A third of the window without a message would be another outcome.
    (run,) = carried_out(tmp_path, keys, kept_until=8.0)
    outcome, reason = run.ended
    assert outcome == "error"
    seen, _, rest = reason.partition(" ")
    assert rest == "of 1000 messages had come by the end"
    # Another one may have come before the last sample.
    assert 0 < int(seen) <= run.received() < 600


def test_the_largest_number_that_fits_is_searched_for(tmp_path: Path) -> None:
    # Some 460 can be sent in the time that there is.
    keys = one_way("tcp-python", "messages = [20, 2_000]\nrates = [60]\nsearch = 2")
    carried_out(tmp_path, keys, kept_until=8.0)
    found = searched(tmp_path)
    assert [run.facts["messages"] for run in found] == [200, 632]
    assert [run.facts["outcome"] == "complete" for run in found] == [True, False]
    # One that was killed on the way does the rest of its search, and no more.
    first = (found[0].folder / "run.json").read_bytes()
    shutil.rmtree(found[1].folder)
    (again,) = run_campaign(Campaign.open(tmp_path / "out"))
    assert again.run.messages == 632
    assert (found[0].folder / "run.json").read_bytes() == first


@pytest.mark.needs("java")
@pytest.mark.parametrize("messages", [1, 5_000])
def test_a_java_role_sends_the_number_and_knows_when_the_last_one_came(
    tmp_path: Path, messages: int
) -> None:
    if reason := missing(PROTOCOLS["java-net"]):
        pytest.skip(reason)
    (run,) = carried_out(tmp_path, one_way("java-net", f"messages = {messages}"), kept_until=LONG)
    checked(run, messages)
    # A sample that notices it comes later, and its time is not the end of the window.
    noticed = max(row["time_ns"] for row in run.table("samples"))
    assert run.facts["kept_until_ns"] < noticed
    last = max(row["received_ns"] for row in run.table("latency"))
    assert last <= run.facts["kept_until_ns"]
