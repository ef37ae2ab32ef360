"""Windows and lanes, as the core has them, in simulated courses: order, completeness, bounds.

A way between two members is a series of sessions, as a connection is that breaks and is made
again: what a session carries comes in order or not at all. What is under way when it breaks is
lost, data and acknowledgements alike.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from antiphon._core import LaneCore, ReceiveCore

pytestmark = pytest.mark.timeout(120)

PART = 256
WINDOW = 1 << 13


@dataclass
class Way:
    """From one member to another."""

    session: int = 1
    under_way: deque[Any] = field(default_factory=deque)

    def cut(self) -> None:
        self.session += 1
        self.under_way.clear()


class Sender:
    """One member that sends, and all that get it."""

    def __init__(self, seed: int) -> None:
        self.choice = random.Random(f"fifo {seed}")
        self.lane = LaneCore(WINDOW, 256)
        self.ways: dict[int, Way] = {}
        self.back: dict[int, Way] = {}
        self.windows: dict[int, ReceiveCore] = {}
        self.got: dict[int, list[bytes]] = {}
        self.from_number: dict[int, int] = {}
        self.sent: list[bytes] = []
        self.full = 0
        self.repeats = 0

    def add(self, member: int) -> None:
        self.lane.add(member)
        self.ways[member], self.back[member] = Way(), Way()
        self.windows[member] = ReceiveCore(1 << 20)
        self.got[member] = []
        self.from_number[member] = len(self.sent)

    def remove(self, member: int) -> None:
        self.lane.remove(member)
        del self.ways[member], self.back[member], self.windows[member]

    def send(self) -> None:
        size = self.choice.choice([0, 1, 10, 100, 255, 256, 257, 1000, 3000])
        message = len(self.sent).to_bytes(4, "big") + self.choice.randbytes(size)
        if self.lane.append(message, PART, len(self.sent) & 0xFFFFFFFF):
            self.sent.append(message)
        else:
            self.full += 1
        assert self.lane.used <= self.lane.capacity

    def pump(self, member: int) -> None:
        way = self.ways[member]
        batch = self.lane.batch(member, way.session, self.choice.choice([1, 3, 100]))
        if batch is not None:
            way.under_way.append(batch)

    def arrive(self, member: int) -> None:
        way, back = self.ways[member], self.back[member]
        if way.under_way:
            first, base, batch = way.under_way.popleft()
            delivered, gap = self.windows[member].receive(base, first, batch)
            self.got[member] += delivered
            if self.choice.random() < 0.5 or gap or not batch:
                back.under_way.append((self.windows[member].expected, gap))
        if back.under_way:
            upto, resume = back.under_way.popleft()
            self.lane.acknowledge(member, upto, resume)

    def probe(self, member: int) -> None:
        if self.lane.quiet(member):
            batch = self.lane.probe(member)
            if batch is not None:
                self.ways[member].under_way.append(batch)

    def finish(self) -> None:
        for _ in range(10_000):
            if self.lane.settled:
                return
            for member in list(self.ways):
                self.pump(member)
                self.arrive(member)
                self.probe(member)
        raise AssertionError("what was sent has not become stable")


def course(seed: int, steps: int = 250) -> Sender:
    sender = Sender(seed)
    choice = sender.choice
    member = 1
    for _ in range(choice.randint(1, 4)):
        sender.add(member)
        member += 1
    breaks = choice.choice([0.0, 0.02, 0.1])
    for _ in range(steps):
        if not sender.ways:
            sender.add(member)
            member += 1
        members = list(sender.ways)
        act = choice.random()
        if act < 0.4:
            sender.send()
        elif act < 0.65:
            sender.pump(choice.choice(members))
        elif act < 0.95:
            sender.arrive(choice.choice(members))
        elif act < 0.97:
            sender.probe(choice.choice(members))
        elif act < 0.98 and len(members) < 6:
            sender.add(member)
            member += 1
        elif act < 0.985 and len(members) > 1:
            sender.remove(choice.choice(members))
        if choice.random() < breaks:
            broken = choice.choice(members)
            if broken in sender.ways:
                sender.ways[broken].cut()
                sender.back[broken].cut()
    return sender


def in_order(sender: Sender, member: int) -> bool:
    """A prefix without a gap of what was sent since it came."""
    got = sender.got[member]
    begin = sender.from_number[member]
    return got == sender.sent[begin : begin + len(got)]


@pytest.mark.timeout(3600)
def test_every_member_gets_everything_once_and_in_order(count: Callable[[int, int], int]) -> None:
    full = repeated = duplicates = 0
    for seed in range(count(300, 10_000)):
        sender = course(seed)
        assert all(in_order(sender, member) for member in sender.got), f"seed {seed}"
        sender.finish()
        for member in sender.ways:
            assert sender.got[member] == sender.sent[sender.from_number[member] :], f"seed {seed}"
        full += sender.full
        repeated += sender.lane.repeated
        duplicates += sum(one.duplicates for one in sender.windows.values())
        assert not any(one.malformed for one in sender.windows.values())
    # The courses were hard enough to mean something.
    assert full > 0
    assert repeated > 0
    assert duplicates > 0


def test_a_full_window_takes_nothing_until_everybody_has_something() -> None:
    sender = Sender(1)
    sender.add(1)
    sender.add(2)
    while sender.full == 0:
        sender.send()
    for _ in range(1000):
        sender.pump(1)
        sender.arrive(1)
        sender.probe(1)
    used = sender.lane.used
    assert used > 0  # the other one has nothing
    sender.remove(2)
    assert sender.lane.used < used or sender.lane.settled


def test_a_slow_member_holds_up_no_other() -> None:
    sender = Sender(2)
    sender.add(1)
    sender.add(2)
    for _ in range(5):
        sender.send()
    for _ in range(50):
        sender.pump(1)
        sender.arrive(1)
    assert sender.got[1] == sender.sent
    assert sender.got[2] == []


def test_a_dropped_last_message_is_found() -> None:
    sender = Sender(3)
    sender.add(1)
    sender.send()
    sender.pump(1)
    sender.ways[1].cut()  # with the first and last message under way
    sender.finish()
    assert sender.got[1] == sender.sent


def test_lost_acknowledgements_do_not_repeat_for_ever() -> None:
    sender = Sender(4)
    sender.add(1)
    for _ in range(20):
        sender.send()
    for _ in range(200):
        sender.pump(1)
        sender.arrive(1)
        sender.back[1].under_way.clear()  # never one that comes
        sender.probe(1)
    # Within a session nothing is sent twice: it is asked how far it is, and that is all.
    assert sender.lane.repeated == 0
    assert sender.got[1] == sender.sent
    sender.finish()


def test_a_member_that_joins_gets_what_follows() -> None:
    sender = Sender(5)
    sender.add(1)
    for _ in range(3):
        sender.send()
    sender.add(2)
    sender.send()
    sender.finish()
    assert sender.got[2] == sender.sent[3:]


def test_a_part_that_lies_about_its_size_takes_no_memory() -> None:
    window = ReceiveCore(1000)
    part = b"\x01" + (7).to_bytes(4, "little") + (1 << 40).to_bytes(8, "little") + b"x"
    last = b"\x02" + (7).to_bytes(4, "little") + (1).to_bytes(8, "little") + b"xy"
    delivered, gap = window.receive(1, 1, [part, last, b"", b"\x09", b"\x00good"])
    assert delivered == [b"good"]
    assert not gap
    assert window.malformed == 4
