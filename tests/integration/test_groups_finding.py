"""How members of a group find each other, over real nodes in one process."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from antiphon import Node
from integration.parties import Party

pytestmark = pytest.mark.timeout(60)


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
