"""Messages about membership for nodes that do not take them: bounded in number and in time."""

from __future__ import annotations

from antiphon import Closed
from antiphon.groups.outbox import _MOST, _STALE, Outbox


class Nodes:
    """Those that take what they are told."""

    def __init__(self) -> None:
        self.there: set[int] = set()
        self.failing: set[int] = set()
        self.told: list[tuple[int, bytes]] = []

    def tell(self, node: int, message: bytes) -> bool:
        if node in self.failing:
            raise Closed("gone", what="node")
        if node in self.there:
            self.told.append((node, message))
        return node in self.there


def test_what_a_node_does_not_take_waits_and_goes_in_order() -> None:
    nodes = Nodes()
    outbox = Outbox(nodes.tell)
    for number in range(3):
        outbox.put(1, b"%d" % number, float(number))
    outbox.put(2, b"other", 3.0)
    nodes.there = {1}
    outbox.put(1, b"3", 4.0)
    assert nodes.told == [(1, b"%d" % number) for number in range(4)]
    assert len(outbox) == 1
    nodes.there = {1, 2}
    outbox.flush(5.0)
    assert nodes.told[4:] == [(2, b"other")]
    assert len(outbox) == 0


def test_nodes_that_are_gone_leave_nothing_behind() -> None:
    nodes = Nodes()
    outbox = Outbox(nodes.tell)
    nodes.failing = set(range(0, 100, 2))
    for node in range(100):
        outbox.put(node, b"are you there", 0.0)
    outbox.flush(_STALE)
    assert len(outbox) == 100
    outbox.flush(_STALE + 0.1)
    assert len(outbox) == 0


def test_of_too_much_the_oldest_is_lost() -> None:
    nodes = Nodes()
    outbox = Outbox(nodes.tell)
    for number in range(_MOST + 10):
        outbox.put(1, b"%d" % number, 0.0)
    nodes.there = {1}
    outbox.flush(1.0)
    assert [int(message) for _, message in nodes.told] == list(range(10, _MOST + 10))
