"""A hundred million messages in and out: none lost, none doubled, none out of order."""

from __future__ import annotations

import contextlib

import pytest

from antiphon.testing import Child
from stress.counting import NO_DROPS, Count, block_receiver, counted, receiver, sender

pytestmark = pytest.mark.stress

MILLION = 1_000_000
LONGEST = 1800.0


@pytest.mark.parametrize(
    ("send", "receive", "small", "full"),
    [
        ("send", "callback", 50_000, 10 * MILLION),
        ("send", "inbox", 50_000, 10 * MILLION),
        ("send_many", "batch", 100_000, 40 * MILLION),
        ("send_packed", "batch", 100_000, 40 * MILLION),
    ],
)
def test_every_message_arrives_once_and_in_its_order(
    send: str, receive: str, small: int, full: int, count: Count
) -> None:
    total = count(small, full)
    with contextlib.ExitStack() as stack:
        if receive == "batch":
            there = stack.enter_context(Child(block_receiver, id=2))
        else:
            there = stack.enter_context(Child(receiver, id=2, way=receive))
        address = there.expect("ready")["address"]
        here = stack.enter_context(Child(sender, target=address, total=total, ways=[send]))
        done = here.expect("done", LONGEST)
        assert done == {
            "event": "done",
            "failed": [],
            "messages_out": total,
            "drops": NO_DROPS,
        }
        told = counted(there)
        assert told["counted"] == [[1, 0, 0, total]]
        assert told["messages_in"] == total


def test_the_threads_of_several_senders_each_keep_their_order(count: Count) -> None:
    """Four processes of two threads each, which share a connection and mix the ways to send."""
    total = count(5_000, 500_000)
    ways = [["send", "send"], ["send", "send_many"], ["send_many", "send_packed"], ["send"] * 2]
    with contextlib.ExitStack() as stack:
        there = stack.enter_context(Child(receiver, id=100))
        address = there.expect("ready")["address"]
        senders = [
            stack.enter_context(
                Child(sender, target=address, to=100, total=total, id=number, ways=lanes)
            )
            for number, lanes in enumerate(ways, 1)
        ]
        for child in senders:
            done = child.expect("done", LONGEST)
            assert done["failed"] == []
            assert done["messages_out"] == 2 * total
            assert done["drops"] == NO_DROPS
        told = counted(there)
        expected = [[source, lane, 0, total] for source in range(1, 5) for lane in range(2)]
        assert sorted(told["counted"]) == expected
        assert told["messages_in"] == 8 * total
