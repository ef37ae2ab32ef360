"""Many members in one process, with a clock that jumps: every course again from its seed.

The network loses, delays, doubles and reorders messages, and is cut in parts; members crash, leave
and come. The stacks are the ones that run over nodes; only what is around them is made up. Nothing
here waits, so that thousands of courses take a minute.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from antiphon.groups.protocol import (
    Busy,
    Contact,
    Contacts,
    Disconnected,
    HeldUp,
    Installed,
    JoinGroup,
    Layer,
    LeaveGroup,
    Left,
    Received,
    Reset,
    Send,
    Signal,
    Stack,
    Stuck,
)
from antiphon.groups.view import Member, View

__all__ = ["Faults", "Person", "Simulator"]

_TICK = 0.05


@dataclass
class Faults:
    """What the network does to messages, until it is changed."""

    loss: float = 0.0
    duplication: float = 0.0
    delay: tuple[float, float] = (0.0005, 0.005)
    """Seconds, each message by itself: so they overtake each other."""


@dataclass
class Person:
    """One simulated process: its stack, and what its application has seen."""

    node: int
    stack: Stack
    me: Member
    alive: bool = True
    views: list[View] = field(default_factory=list)
    lives: list[int] = field(default_factory=list)
    """The life of this member in which each of the views was seen."""
    left: bool = False
    hung: float | None = None
    """Since when its application has been at one message."""
    full: float | None = None
    """Since when its senders have wanted more than the window holds."""
    stuck: set[int] = field(default_factory=set)
    """Lives of others that it knows to be stuck."""

    @property
    def view(self) -> View | None:
        """The last one, if it is of the present life."""
        return self.views[-1] if self.views and self.lives[-1] == self.me.life else None


class Simulator:
    """A course of events. ``make`` makes the layers of one member."""

    def __init__(
        self, seed: int, make: Callable[[], Iterable[Layer]], faults: Faults | None = None
    ) -> None:
        self.rng = random.Random(seed)
        self.faults = faults or Faults()
        self.now = 0.0
        self.people: dict[int, Person] = {}
        self.sent = self.lost = 0
        self._make = make
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._parts: dict[int, int] = {}

    # --- time -------------------------------------------------------------------------------

    def at(self, when: float, call: Callable[..., None], *arguments: Any) -> None:
        """Calls it at that time."""
        self._number += 1
        heapq.heappush(self._queue, (when, self._number, call, arguments))

    def run(self, until: float) -> None:
        """Everything that happens before that time."""
        while self._queue and self._queue[0][0] <= until:
            self.now, _, call, arguments = heapq.heappop(self._queue)
            call(*arguments)
        self.now = max(self.now, until)

    def run_until(self, done: Callable[[], bool], most: float, step: float = 0.1) -> bool:
        """Until it is so, or for at most so long. Whether it is so."""
        end = self.now + most
        while not done() and self.now < end:
            self.run(self.now + step)
        return done()

    # --- members ----------------------------------------------------------------------------

    def join(self, node: int) -> Person:
        """A process begins, and joins."""
        life = self.rng.getrandbits(63) | 1
        me = Member(node, f"m{node}", f"sim://{node}", life)
        rng = random.Random(self.rng.getrandbits(64))
        stack = Stack(tuple(self._make()), rng, lambda: self.now)
        person = Person(node, stack, me)
        self.people[node] = person
        self._tell_contacts()
        self._carry_out(person, person.stack.down(JoinGroup(me), self.now))
        self.at(self.now + self.rng.uniform(0, _TICK), self._tick, person)
        return person

    def crash(self, node: int, noticed: bool = True) -> None:
        """A process dies; its peers may see their connections close."""
        person = self.people.pop(node)
        person.alive = False
        self._tell_contacts()
        if not noticed:
            return
        for other in list(self.people.values()):
            if self._connected(node, other.node):
                self.at(self.now + self.rng.uniform(0.0, 0.01), self._disconnected, other, node)

    def leave(self, node: int) -> None:
        """A process leaves, and ends when it is let go."""
        person = self.people[node]
        self._carry_out(person, person.stack.down(LeaveGroup(), self.now))

    def partition(self, parts: Iterable[Iterable[int]]) -> None:
        """Cuts the network; those that are not named are with nobody."""
        self._parts = {node: number for number, part in enumerate(parts, 1) for node in part}

    def heal(self) -> None:
        """All reach all again."""
        self._parts = {}

    def agreed(self) -> bool:
        """All that are alive, and nobody else, are in one view, and all have it."""
        people = list(self.people.values())
        views = [person.view for person in people]
        if not people or any(view is None for view in views):
            return not people
        wanted = {person.me.life for person in people}
        keys = {(view.id, tuple(one.life for one in view.members)) for view in views if view}
        return len(keys) == 1 and {one.life for one in views[0].members} == wanted  # type: ignore[union-attr]

    # --- the network ------------------------------------------------------------------------

    def _connected(self, one: int, other: int) -> bool:
        return not self._parts or (self._parts.get(one, -one) == self._parts.get(other, -other))

    def _tick(self, person: Person) -> None:
        if not person.alive:
            return
        hung = self.now - person.hung if person.hung is not None else 0.0
        self._carry_out(person, person.stack.up(Busy(hung), self.now))
        for other, since in self._behind(person):
            self._carry_out(person, person.stack.up(HeldUp(other, self.now - since), self.now))
        self._carry_out(person, person.stack.tick(self.now))
        self.at(self.now + _TICK, self._tick, person)

    def _behind(self, person: Person) -> list[tuple[int, float]]:
        """Members for which its senders wait, and since when: those that hang."""
        view, full = person.view, person.full
        if view is None or full is None:
            return []
        lives = {one.life for one in view.members}
        return [
            (one.me.life, max(one.hung, full))
            for one in self.people.values()
            if one.hung is not None and one.me.life in lives and one is not person
        ]

    def _disconnected(self, person: Person, node: int) -> None:
        if person.alive:
            self._carry_out(person, person.stack.up(Disconnected(node), self.now))

    def _tell_contacts(self) -> None:
        contacts = tuple(Contact(node, one.me.address) for node, one in self.people.items())
        for person in list(self.people.values()):
            others = tuple(one for one in contacts if one.node != person.node)
            self._carry_out(person, person.stack.up(Contacts(others), self.now))

    def _carry_out(self, person: Person, actions: list[Signal]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._send(person.node, action)
            elif isinstance(action, Installed):
                person.views.append(action.view)
                person.lives.append(action.me.life)
            elif isinstance(action, Reset):
                person.me = action.me
                person.stuck.clear()
            elif isinstance(action, Stuck):
                (person.stuck.add if action.seconds else person.stuck.discard)(action.member.life)
            elif isinstance(action, Left):
                person.left = True
                person.alive = False
                self.people.pop(person.node, None)
                self.at(self.now, self._tell_contacts)

    def _send(self, source: int, action: Send) -> None:
        self.sent += 1
        copies = 2 if self.rng.random() < self.faults.duplication else 1
        for _ in range(copies):
            if self.rng.random() < self.faults.loss:
                self.lost += 1
                continue
            delay = self.rng.uniform(*self.faults.delay)
            self.at(self.now + delay, self._arrive, source, action)

    def _arrive(self, source: int, action: Send) -> None:
        person = self.people.get(action.node)
        if person is None or not person.alive or not self._connected(source, action.node):
            return
        event = Received(source, action.message)
        self._carry_out(person, person.stack.up(event, self.now))
