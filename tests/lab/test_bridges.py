"""Campaigns over a bridge: real namespaces, real traffic, a rate that is kept, and nothing left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from antiphon.cli.main import main
from antiphon.lab.bridges import NAMES, cannot_bridge, open_bridge, remove_leftovers
from antiphon.lab.campaign import Campaign
from antiphon.lab.conduct import conduct
from antiphon.lab.plan import load_plan
from antiphon.lab.protocols import PROTOCOLS, missing
from antiphon.lab.record import Report
from antiphon.lab.runner import run_campaign
from antiphon.testing.waiting import eventually
from unit.lab.descendants import alive, await_none, descendants

pytestmark = [pytest.mark.needs("netns"), pytest.mark.timeout(180)]

RATE = 20e6
# What is sampled and when are not quite the same moment, least of all on a busy machine.
NEAR = 1.15
RUNNING = [name for name, protocol in PROTOCOLS.items() if not protocol.note]

PLAN = """\
name = "small"
title = "A small one"

[times]
traffic = 0.2
kept_from = 0.5
kept_until = {until}

[links.fast]
kind = "bridge"

[links.slow]
kind = "bridge"
rate_bits = "20Mbit"

[[series]]
name = "one"
pattern = "{pattern}"
protocols = ["{protocol}"]
sizes = [{size}]
links = ["{link}"]
"""


@pytest.fixture(autouse=True)
def _possible() -> None:
    if reason := cannot_bridge(RATE):
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def _nothing_left(_possible: None) -> Iterator[None]:
    """The machine's own network is as before, and no name of ours is left."""
    interfaces = socket.if_nameindex()
    yield
    assert names(os.getpid()) == []
    assert socket.if_nameindex() == interfaces


def names(owner: int) -> list[str]:
    return sorted(path.name for path in NAMES.glob(f"antiphon-lab-{owner}-*"))


def campaign_of(
    folder: Path,
    protocol: str,
    link: str = "slow",
    until: float = 2.6,
    pattern: str = "one-way",
    size: int = 1000,
) -> Campaign:
    path = folder / "small.toml"
    path.write_text(
        PLAN.format(protocol=protocol, link=link, until=until, pattern=pattern, size=size)
    )
    return Campaign.create(load_plan(path), folder / "out")


def conducted(campaign: Campaign) -> Report:
    """Its one run, without the checks of the link."""
    (run,) = campaign.runs()
    with campaign:
        return conduct(campaign, run)


def needed(protocol: str) -> None:
    if reason := missing(PROTOCOLS[protocol]):
        pytest.skip(reason)


def samples_of(campaign: Campaign, report: Report) -> list[dict[str, Any]]:
    path = campaign.directory / report.run.id / "samples.parquet"
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


@pytest.mark.parametrize(
    "protocol", ["tcp-python", "antiphon-node", "antiphon-topic", "pyzmq", "nats"]
)
def test_a_rate_is_kept_and_used(tmp_path: Path, protocol: str) -> None:
    needed(protocol)
    report = conducted(campaign_of(tmp_path, protocol, until=4.5))
    assert (report.outcome, report.reason) == ("complete", "")
    assert RATE / 2 <= report.bytes * 8 <= RATE * NEAR


@pytest.mark.parametrize("protocol", RUNNING)
def test_every_protocol_works_between_namespaces(tmp_path: Path, protocol: str) -> None:
    needed(protocol)
    campaign = campaign_of(tmp_path, protocol, "fast", until=1.6)
    report = conducted(campaign)
    assert (report.outcome, report.reason) == ("complete", "")
    assert report.rate > 10
    (reader,) = [row for row in samples_of(campaign, report) if row["role"] == "reader"][-1:]
    # It has really gone over the wire, and not by some way around it.
    assert reader["network_received_bytes"] > reader["received_bytes"]


def test_everybody_speaks_to_everybody(tmp_path: Path) -> None:
    report = conducted(campaign_of(tmp_path, "antiphon-topic", "fast", pattern="n-n"))
    assert (report.outcome, report.reason) == ("complete", "")


def test_what_each_interface_carries_is_in_the_row_of_its_process(tmp_path: Path) -> None:
    needed("nats")
    campaign = campaign_of(tmp_path, "nats")
    report = conducted(campaign)
    assert report.outcome == "complete", report.reason
    facts = campaign.outcome(report.run)
    roles = {host["name"]: host["roles"] for host in facts["hosts"]}
    assert roles == {"netns-0": [0], "netns-1": [1], "netns-2": []}
    last = {row["role"]: row for row in samples_of(campaign, report)}
    assert {role: row["host"] for role, row in last.items()} == {
        "reader": "netns-0",
        "writer": "netns-1",
        "server": "netns-2",
        "machine": "local",
    }
    server, reader, writer = last["server"], last["reader"], last["writer"]
    # Through the server and out again, each time with headers.
    assert writer["network_sent_bytes"] > reader["received_bytes"]
    assert server["network_received_bytes"] > reader["received_bytes"]
    assert server["network_sent_bytes"] > reader["received_bytes"]
    assert reader["network_received_bytes"] > reader["received_bytes"]
    assert reader["network_received_packets"] > reader["received_bytes"] / 65536
    # Counted at one end and at the other, a moment later.
    assert reader["network_received_bytes"] < 1.5 * server["network_sent_bytes"]


def test_the_bare_link_is_measured_between_two_namespaces(tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path, "spread")
    reports = {report.run.protocol: report for report in run_campaign(campaign)}
    for check in ("link-ping", "link-tcp", "link-udp"):
        assert (reports[check].outcome, reports[check].reason) == ("complete", "")
    for check in ("link-tcp", "link-udp"):
        assert RATE / 2 <= reports[check].bytes * 8 <= RATE * NEAR
    facts = campaign.outcome(reports["link-udp"].run)
    assert 0 < facts["received"] <= facts["sent"]
    times = pq.read_table(campaign.directory / "link-ping.slow" / "latency.parquet").to_pylist()
    assert len(times) > 10
    assert all(row["sent_ns"] < row["received_ns"] for row in times)


_MULTICAST = """
import socket, struct, sys
own, role = sys.argv[1:]
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if role == "hear":
    link.bind(("239.1.2.3", 7000))
    link.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP,
                    struct.pack("4sL", socket.inet_aton("239.1.2.3"), socket.INADDR_ANY))
    link.settimeout(20)
    print("here", flush=True)
    print(link.recvfrom(100)[1][0], flush=True)
else:
    for _ in range(3):
        link.sendto(b"all", ("239.1.2.3", 7000))
"""


def test_a_group_reaches_the_other_members(tmp_path: Path) -> None:
    """Without saying by which interface: the route does."""
    with open_bridge(2) as (one, other):
        command = (sys.executable, "-c", _MULTICAST)
        with subprocess.Popen(
            [*one.command, *command, one.address, "hear"], stdout=subprocess.PIPE, text=True
        ) as hears:
            assert hears.stdout is not None
            assert hears.stdout.readline() == "here\n"
            subprocess.run([*other.command, *command, other.address, "say"], check=True, timeout=20)
            assert hears.stdout.readline() == f"{other.address}\n"


def test_an_error_leaves_nothing() -> None:
    def fail() -> None:
        with open_bridge(3, 1e8):
            assert len(names(os.getpid())) == 4
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_a_bridge_that_cannot_be_finished_leaves_nothing() -> None:
    with pytest.raises(OSError, match="tc"), open_bridge(1, 1e30):
        pytest.fail("there is no such rate")


def test_two_bridges_do_not_meet() -> None:
    with open_bridge(1) as (one,), open_bridge(1) as (other,):
        assert one.address == other.address
        assert one.command != other.command


def test_a_process_that_dies_leaves_nothing(tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path, "tcp-python", "fast", until=20.0)
    before = descendants(os.getpid())

    def kill() -> None:
        eventually(lambda: len(in_namespaces(os.getpid())) >= 2, 60)
        os.kill(min(in_namespaces(os.getpid())), signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    report = conducted(campaign)
    thread.join()
    assert report.outcome == "disconnected"
    await_none(descendants(os.getpid()) - before)


def in_namespaces(owner: int) -> set[int]:
    """The processes in all namespaces of that owner."""
    found: set[int] = set()
    for name in names(owner):
        done = subprocess.run(
            ["ip", "netns", "pids", name], capture_output=True, text=True, timeout=20, check=False
        )
        found |= {int(word) for word in done.stdout.split()}
    return found


def started(folder: Path) -> subprocess.Popen[bytes]:
    """A campaign in a process of its own, with both roles at work."""
    campaign_of(folder, "tcp-python", "fast", until=30.0)
    running = subprocess.Popen(
        [sys.executable, "-m", "antiphon.cli.main", "lab", "resume", str(folder / "out")],
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: list((folder / "out").glob("one.*.partial")), 90)
        eventually(lambda: len(in_namespaces(running.pid)) == 2, 30)
    except BaseException:
        running.kill()
        running.wait()
        raise
    return running


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(tmp_path: Path, ending: signal.Signals, times: int) -> None:
    running = started(tmp_path)
    inside = in_namespaces(running.pid)
    for _ in range(times):
        running.send_signal(ending)
    assert running.wait(20) != 0
    assert names(running.pid) == []
    await_none(inside)


def doctored() -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "antiphon.cli.main", "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [one["name"] for one in json.loads(done.stdout)["leftovers"] if not one["reason"]]


def next_bridge() -> list[str]:
    with open_bridge(1):
        return []


@pytest.mark.parametrize("remove", [doctored, next_bridge])
def test_what_a_killed_campaign_leaves_is_removed(
    tmp_path: Path, remove: Callable[[], list[str]]
) -> None:
    running = started(tmp_path)
    inside = in_namespaces(running.pid)
    left = names(running.pid)
    assert len(left) == 3
    # In use: nobody else may take it.
    assert not {one.name for one in remove_leftovers()} & set(left)
    with subprocess.Popen(["nsenter", f"--net={NAMES / left[0]}", "sleep", "100"]) as lost:
        eventually(lambda: lost.pid in in_namespaces(running.pid))
        # Not waited for: one that is dead and still has its number owns nothing.
        running.kill()
        eventually(lambda: not alive(running.pid))
        await_none(inside)
        assert names(running.pid) == left
        removed = remove()
        assert lost.wait(10) == -signal.SIGKILL
    assert names(running.pid) == []
    assert set(left) <= set(removed) or remove is next_bridge
    running.wait()


def test_the_doctor_says_what_it_removes(capfd: pytest.CaptureFixture[str]) -> None:
    """The owner's number may be taken again, by a process that was started at another time."""
    name = f"antiphon-lab-{os.getpid()}-1-0-hub"
    subprocess.run(["ip", "netns", "add", name], check=True, timeout=20)
    assert main(["doctor"]) == 0
    said = [line for line in capfd.readouterr().out.splitlines() if name in line]
    assert said == [f"left by a campaign: network namespace {name}: removed"]
    assert main(["doctor"]) == 0
    assert name not in capfd.readouterr().out


# In a user namespace that maps nobody, root is nobody.
AS_NOBODY = ["unshare", "-U", sys.executable]


def test_without_root_one_line_says_so() -> None:
    code = "from antiphon.lab.bridges import cannot_bridge; print(cannot_bridge(None))"
    done = subprocess.run(
        [*AS_NOBODY, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "a bridge needs network namespaces: run as root\n"


def test_without_its_program_one_line_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert cannot_bridge(None) == "a bridge needs the program ip; install the package iproute2"


def test_a_doctor_who_is_not_root_says_what_is_left() -> None:
    name = f"antiphon-lab-{os.getpid()}-1-0-hub"
    subprocess.run(["ip", "netns", "add", name], check=True, timeout=20)
    try:
        done = subprocess.run(
            [*AS_NOBODY, "-m", "antiphon.cli.main", "doctor"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True, timeout=20)
    assert f"{name}: cannot be removed: run as root to remove it" in done.stdout
