"""How members of a group find each other, over real nodes in one process."""

from __future__ import annotations

import json
import os
import socket
from contextlib import ExitStack
from typing import Any

import pytest

from antiphon import Node
from antiphon.testing import Network
from integration.group_members import Crowd, ask
from integration.parties import Party

pytestmark = pytest.mark.timeout(120)

SECRET = "between us all"


def exchange(crowd: Crowd) -> None:
    """Each sends, and everybody has it all."""
    for child in crowd.members:
        ask(child, "send", "sent", count=10)
    wanted = {f"m{number}": 10 for number in range(len(crowd.members))}
    for child in crowd.members:
        assert ask(child, "count", "counted", wanted=wanted)["got"] == wanted


def test_members_find_each_other_by_addresses(party: Party) -> None:
    with Node() as first, Node() as second:
        a = party.join(node=first, discover=[first.address])
        b = party.join(node=second, discover=[first.address, "tcp://127.0.0.1:1"])
        party.all_see(2)
        assert a.view.coordinator == a.me
        b.send(b"found")
        assert party.came[0].first(1) == [("m1", b"found")]
        b.close()
        a.close()


def test_members_that_listen_on_all_interfaces_reach_each_other(party: Party) -> None:
    """None of them knows its own address; the two that came later never dialled each other."""
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(Node(listen="tcp://0.0.0.0:0", secret="shared" * 4))
            for _ in range(3)
        ]
        first = f"tcp://127.0.0.1:{nodes[0].address.rpartition(':')[2]}"
        for node in nodes:
            party.join(node=node, discover=[first])
        party.all_see(3)
        party.groups[1].send(b"from the second")
        for came in party.came:
            assert came.first(1) == [("m1", b"from the second")]
        for group in reversed(party.groups):
            group.close()


def test_members_find_each_other_by_a_directory(party: Party, tmp_path: Any) -> None:
    for _ in range(2):
        party.join(discover=f"file://{tmp_path}")
    party.all_see(2)


def test_members_find_each_other_by_several_ways_at_once(party: Party, tmp_path: Any) -> None:
    party.join(discover=[f"file://{tmp_path}", "local://"])
    party.join(discover="local://")
    party.join(discover=[f"file://{tmp_path}"])
    party.all_see(3)


@pytest.mark.needs("netns")
@pytest.mark.parametrize("own", [True, False], ids=["own-node", "all-interfaces"])
def test_a_directory_joins_machines(channel: str, tmp_path: Any, own: bool) -> None:
    """Each in a network of its own address: what stands in the directory is all they know."""
    with ExitStack() as stack, Network(3) as network:
        crowd = Crowd(stack, "machines", discover=[f"file://{tmp_path}"])
        proof = {"options": {"secret": SECRET}} if own else {"secret": SECRET}
        listen = None if own else "tcp://0.0.0.0:0"
        for one in network.members:
            crowd.start(prefix=one.prefix, listen=listen, **proof)
        crowd.all_see(3)
        files = (tmp_path / "machines").glob("*.member")
        told = {json.loads(file.read_text())["address"].rpartition(":")[0] for file in files}
        assert told == {f"tcp://{one.address}" for one in network.members}
        exchange(crowd)


@pytest.mark.parametrize("stack", ["tcp", "udp"])
def test_processes_find_each_other_by_multicast(channel: str, stack: str) -> None:
    way = f"mcast://239.77.{os.getpid() % 250}.4:7796?interface=127.0.0.1"
    with ExitStack() as closing:
        crowd = Crowd(closing, f"cast-{stack}", discover=[way], options={"stack": stack})
        crowd.start_in_turn(2)
        exchange(crowd)


def test_a_member_that_is_found_by_multicast_is_found_on_its_machine_too(channel: str) -> None:
    """Whichever stands first: one node for all ways, at an address for all of them."""
    cast = f"mcast://239.77.{os.getpid() % 250}.5:7797?interface=127.0.0.1"
    with ExitStack() as closing:
        crowd = Crowd(closing, "both")
        crowd.start(discover=[cast, "local://"])
        crowd.start(discover=["local://", "local://others", cast])
        crowd.start(discover=[cast])
        crowd.start(discover=["local://"])
        crowd.all_see(4)
        exchange(crowd)


@pytest.mark.needs("netns")
def test_machines_find_each_other_by_multicast(channel: str) -> None:
    way = "mcast://239.77.0.4:7796?interface=eth0"
    with ExitStack() as closing, Network(2) as network:
        crowd = Crowd(closing, "cast", discover=[way], options={"secret": SECRET})
        for one in network.members:
            crowd.start(prefix=one.prefix)
        crowd.all_see(2)
        exchange(crowd)


def test_processes_find_each_other_by_a_name(channel: str) -> None:
    """The name is this machine's own; whoever comes first is at the port, the others ask there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ExitStack() as closing:
        crowd = Crowd(closing, "named", discover=[f"dns://localhost:{port}"])
        first = crowd.start(listen=f"tcp://127.0.0.1:{port}")
        crowd.wait_for(first, lambda view: len(view["members"]) == 1)
        for _ in range(2):
            crowd.start(listen="tcp://127.0.0.1:0")
        crowd.all_see(3)
        exchange(crowd)
