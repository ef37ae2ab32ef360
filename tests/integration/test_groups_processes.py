"""Groups of real processes: members that are killed, stopped, cut off; many that come at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from antiphon.testing import Child, Control, Network

pytestmark = pytest.mark.timeout(600 if os.environ.get("ANTIPHON_STRESS") == "full" else 120)


def member(
    control: Control,
    group: str,
    number: int,
    listen: str | None = None,
    discover: list[str] | None = None,
    secret: str | None = None,
) -> None:
    """Joins, tells every view, and does as it is told."""
    import struct
    import threading
    import time

    import antiphon

    next_from: dict[str, int] = {}
    wrong: list[str] = []
    counted = threading.Condition()

    def take(source: antiphon.Member, data: bytes) -> None:
        (sent,) = struct.unpack_from("<Q", data)
        with counted:
            expected = next_from.get(source.name)
            if expected is not None and sent != expected:
                wrong.append(f"{source.name}: {sent} instead of {expected}")
            next_from[source.name] = sent + 1
            counted.notify_all()

    node = None
    if listen is not None:
        node = antiphon.Node(listen=listen, secret=secret)
        node.start()
    one = antiphon.Group(
        group, node=node, discover=discover or "local://", member_name=f"m{number}"
    )
    one.on_message(take)

    @one.on_view
    def seen(view: antiphon.View) -> None:
        control.tell(
            "view",
            id=view.id,
            members=[other.name for other in view.members],
            crashed=[other.name for other in view.crashed],
            at=time.monotonic(),
        )

    with one:
        control.tell("joined", address=one.node.address, took=time.monotonic())
        sent = 0
        while True:
            order = control.hear()
            if order["order"] == "send":
                for _ in range(order["count"]):
                    one.send(struct.pack("<Q", sent) + bytes(order.get("size", 100)), timeout=60)
                    sent += 1
                control.tell("sent", count=sent)
            elif order["order"] == "count":
                until = time.monotonic() + 40
                with counted:
                    while time.monotonic() < until and any(
                        next_from.get(name, 0) < at for name, at in order["wanted"].items()
                    ):
                        counted.wait(1.0)
                    control.tell("counted", got=dict(next_from), wrong=list(wrong))
            elif order["order"] == "leave":
                break
    control.tell("left")


class Crowd:
    """Processes of one group, and the views that they tell."""

    def __init__(self, stack: ExitStack, name: str) -> None:
        self._stack = stack
        self.name = name
        self.members: list[Child] = []

    def start(self, **options: Any) -> Child:
        number = len(self.members)
        child = Child(member, group=self.name, number=number, **options)
        self._stack.enter_context(child)
        self.members.append(child)
        return child

    def wait_for(
        self, child: Child, done: Callable[[dict[str, Any]], bool], timeout: float = 40.0
    ) -> dict[str, Any]:
        """The first view of that kind that it tells."""
        until = time.monotonic() + timeout
        while True:
            fact = child.hear(max(0.1, until - time.monotonic()), "a view")
            if fact["event"] == "view" and done(fact):
                return fact

    def all_see(self, size: int, timeout: float = 40.0) -> None:
        for child in self.members:
            self.wait_for(child, lambda view: len(view["members"]) == size, timeout)


@pytest.fixture
def crowd(channel: str) -> Iterator[Crowd]:
    with ExitStack() as stack:
        yield Crowd(stack, f"crowd-{time.monotonic_ns()}")


def without(name: str) -> Callable[[dict[str, Any]], bool]:
    return lambda view: name not in view["members"]


def test_twenty_that_start_together_are_one_group(crowd: Crowd) -> None:
    for _ in range(20):
        crowd.start()
    crowd.all_see(20, 90)


@pytest.mark.parametrize("victim", [2, 0], ids=["a member", "the coordinator"])
def test_one_that_is_killed_is_out_soon(crowd: Crowd, victim: int) -> None:
    """Under 2 s, the coordinator under 3, on a machine that does nothing else; here with room."""
    for _ in range(4):
        crowd.start()
    crowd.all_see(4)
    began = time.monotonic()
    crowd.members[victim].kill()
    for number, child in enumerate(crowd.members):
        if number != victim:
            view = crowd.wait_for(child, lambda view: len(view["members"]) == 3)
            assert f"m{victim}" not in view["members"]
            assert len(view["crashed"]) == 1
            assert view["at"] - began < 10


def test_one_that_is_stopped_is_put_out_and_comes_back(crowd: Crowd) -> None:
    for _ in range(3):
        crowd.start()
    crowd.all_see(3)
    crowd.members[1].signal(signal.SIGSTOP)
    for child in (crowd.members[0], crowd.members[2]):
        crowd.wait_for(child, lambda view: len(view["members"]) == 2)
    crowd.members[1].signal(signal.SIGCONT)
    crowd.all_see(3)


def test_the_sixteenth_joins_soon(crowd: Crowd) -> None:
    for _ in range(15):
        crowd.start()
    crowd.all_see(15, 90)
    last = crowd.start()
    crowd.wait_for(last, lambda view: len(view["members"]) == 16)


def test_everybody_gets_everything_in_order(crowd: Crowd, count: Callable[[int, int], int]) -> None:
    many = count(5000, 50_000)
    for _ in range(4):
        crowd.start()
    crowd.all_see(4)
    for child in crowd.members:
        child.tell("send", count=many)
    for child in crowd.members:
        child.tell("count", wanted={f"m{number}": many for number in range(4)})
    for child in crowd.members:
        counted = _until(child, "counted")
        assert counted["wrong"] == []
        assert counted["got"] == {f"m{number}": many for number in range(4)}


def test_survivors_of_a_killed_sender_have_no_gaps(
    crowd: Crowd, count: Callable[[int, int], int]
) -> None:
    for _ in range(count(1, 10)):
        with ExitStack() as stack:
            again = Crowd(stack, f"{crowd.name}-{time.monotonic_ns()}")
            for _ in range(3):
                again.start()
            again.all_see(3)
            again.members[2].tell("send", count=10_000_000)
            again.members[0].tell("count", wanted={"m2": 1000})
            assert _until(again.members[0], "counted")["wrong"] == []
            again.members[2].kill()
            for child in again.members[:2]:
                again.wait_for(child, without("m2"))
                child.tell("send", count=10)
            for child in again.members[:2]:
                child.tell("count", wanted={"m0": 10, "m1": 10})
                assert _until(child, "counted")["wrong"] == []


def _until(child: Child, event: str) -> dict[str, Any]:
    until = time.monotonic() + 100
    while True:
        fact = child.hear(max(0.1, until - time.monotonic()), event)
        if fact["event"] == event:
            return fact


@pytest.mark.needs("netns")
def test_a_cut_link_is_noticed_and_healed(crowd: Crowd) -> None:
    with Network(3) as network:
        addresses = [f"tcp://{one.address}:7800" for one in network.members]
        for one, address in zip(network.members, addresses, strict=True):
            crowd.start(
                prefix=one.prefix, listen=address, discover=addresses, secret="between us all"
            )
        crowd.all_see(3)
        began = time.monotonic()
        network.members[2].vanish()
        for child in crowd.members[:2]:
            view = crowd.wait_for(child, lambda view: len(view["members"]) == 2)
            assert view["at"] - began < 15  # under 5 on a machine that does nothing else
        crowd.wait_for(crowd.members[2], lambda view: len(view["members"]) == 1)
        network.members[2].reappear()
        crowd.all_see(3)
