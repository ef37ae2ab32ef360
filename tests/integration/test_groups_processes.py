"""Groups of real processes: members that are killed, stopped, cut off; many that come at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import antiphon
from antiphon.testing import Network, eventually
from integration.parties import threads

from .group_members import Crowd, ask, until

pytestmark = pytest.mark.timeout(600 if os.environ.get("ANTIPHON_STRESS") == "full" else 120)


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


def test_twenty_that_join_at_once_make_few_views(crowd: Crowd) -> None:
    """One or two on a machine that does nothing else; one for each would be twenty."""
    first = crowd.start()
    crowd.wait_for(first, lambda view: len(view["members"]) == 1)
    for _ in range(20):
        crowd.start(wait=True)
    for child in crowd.members[1:]:
        until(child, "ready")
    for child in crowd.members[1:]:
        child.tell("join")
    views = 0

    def last(view: dict[str, Any]) -> bool:
        nonlocal views
        views += 1
        return len(view["members"]) == 21

    seen = crowd.wait_for(first, last, 90)
    for child in crowd.members[1:]:
        view = crowd.wait_for(child, lambda view: len(view["members"]) == 21)
        assert (view["id"], view["members"]) == (seen["id"], seen["members"])
    assert views <= 10


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


def test_membership_needs_nothing_that_carries_messages(crowd: Crowd) -> None:
    """Who is there, who was killed and who has left, with no other layer above."""
    for _ in range(4):
        crowd.start(options={"stack": "membership"})
    crowd.all_see(4)
    crowd.members[0].kill()
    for child in crowd.members[1:]:
        assert crowd.wait_for(child, lambda view: len(view["members"]) == 3)["crashed"]
    crowd.members[3].tell("leave")
    for child in crowd.members[1:3]:
        view = crowd.wait_for(child, lambda view: len(view["members"]) == 2)
        assert view["left"] == ["m3"]
    crowd.start(options={"stack": "membership"})
    for child in (*crowd.members[1:3], crowd.members[4]):
        crowd.wait_for(child, lambda view: len(view["members"]) == 3)


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


@pytest.mark.parametrize("stack", ["tcp", "udp"])
def test_threads_do_not_grow_with_members(crowd: Crowd, stack: str) -> None:
    with antiphon.Group(crowd.name, stack=stack) as group:
        crowd.start(options={"stack": stack})
        eventually(lambda: len(group.members) == 2, 40)
        for child in crowd.members:
            ask(child, "send", "sent", count=100)
        before = threads()
        for _ in range(8):
            crowd.start(options={"stack": stack})
        eventually(lambda: len(group.members) == 10, 60)
        for child in crowd.members:
            ask(child, "send", "sent", count=100)
        # Waiting calls may have a spare of the scheduler's; nothing is per member.
        eventually(lambda: threads() <= before + 3, 30)


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
        counted = until(child, "counted")
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
            assert until(again.members[0], "counted")["wrong"] == []
            again.members[2].kill()
            for child in again.members[:2]:
                again.wait_for(child, without("m2"))
                child.tell("send", count=10)
            for child in again.members[:2]:
                child.tell("count", wanted={"m0": 10, "m1": 10})
                assert until(child, "counted")["wrong"] == []


def test_coordinator_and_next_leave_together(crowd: Crowd) -> None:
    crowd.start_in_turn(4)
    for child in crowd.members[:2]:
        child.tell("leave")
    for child in crowd.members[:2]:
        until(child, "left")
    for child in crowd.members[2:]:
        view = crowd.wait_for(child, lambda view: view["members"] == ["m2", "m3"])
        assert view["crashed"] == []


def test_the_first_half_leaves(crowd: Crowd) -> None:
    crowd.start_in_turn(6)
    for child in crowd.members[:3]:
        child.tell("leave")
    for child in crowd.members[3:]:
        view = crowd.wait_for(child, lambda view: view["members"] == ["m3", "m4", "m5"])
        assert view["crashed"] == []
    for child in crowd.members[3:]:
        child.tell("send", count=10)
    for child in crowd.members[3:]:
        counted = ask(child, "count", "counted", wanted={"m3": 10, "m4": 10, "m5": 10})
        assert counted["wrong"] == []


def test_a_huge_message_whose_sender_is_killed_comes_to_nobody_and_harms_nothing(
    crowd: Crowd,
) -> None:
    crowd.start_in_turn(3)
    first, second, sender = crowd.members
    # One that hangs keeps the window full: so the message is under way when its sender dies.
    ask(second, "hang", "ready")
    ask(sender, "send", "sent", count=1)
    assert ask(second, "hangs", "hangs")["so"]
    sender.tell("send", count=1, size=60_000_000)
    assert ask(first, "count", "counted", wanted={"m2": 1})["got"] == {"m2": 1}
    deadline = time.monotonic() + 60
    while ask(first, "statistics", "statistics")["unfinished"] == 0:
        assert time.monotonic() < deadline
    sender.kill()
    second.tell("go on")
    for child in (first, second):
        crowd.wait_for(child, without("m2"))
        child.tell("send", count=10)
    for child in (first, second):
        counted = ask(child, "count", "counted", wanted={"m0": 10, "m1": 10})
        assert counted == {**counted, "got": {"m0": 10, "m1": 10, "m2": 1}, "wrong": []}
        assert ask(child, "statistics", "statistics")["unfinished"] == 0


@pytest.mark.needs("netns")
@pytest.mark.parametrize("stack", ["tcp", "udp"])
def test_a_cut_link_is_noticed_and_healed(crowd: Crowd, stack: str) -> None:
    with Network(3) as network:
        addresses = [f"tcp://{one.address}:7800" for one in network.members]
        for one, address in zip(network.members, addresses, strict=True):
            crowd.start(
                prefix=one.prefix,
                listen=address,
                discover=addresses,
                secret="between us all",
                options={"stack": stack},
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
