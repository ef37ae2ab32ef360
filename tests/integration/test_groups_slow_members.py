"""Members that hang, sleep or are stopped, as real processes: told, waited for, or put out."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from .group_members import Crowd, ask, until

pytestmark = pytest.mark.timeout(120)

SMALL = 1 << 16


@pytest.fixture
def crowd(channel: str) -> Iterator[Crowd]:
    with ExitStack() as stack:
        yield Crowd(stack, f"slow-{time.monotonic_ns()}")


def three(crowd: Crowd, stack: str = "tcp", **config: Any) -> None:
    """Small windows, and nobody put out unless the test says so."""
    settings = {"window_bytes": SMALL, "stability_timeout": 0.0, "stuck_after": 0.0, **config}
    crowd.start_in_turn(3, config=settings, options={"stack": stack})


def hang(crowd: Crowd, number: int) -> None:
    """Its handler does not come back from the next message."""
    ask(crowd.members[number], "hang", "ready")
    ask(crowd.members[1], "send", "sent", count=1)
    assert ask(crowd.members[number], "hangs", "hangs")["so"]


def size_is(size: int) -> Any:
    return lambda view: len(view["members"]) == size


def test_one_whose_handler_hangs_is_called_stuck_and_stays(crowd: Crowd) -> None:
    three(crowd, stuck_after=1.0)
    hang(crowd, 2)
    for child in crowd.members[:2]:
        assert ask(child, "stuck", "stuck", count=1)["members"] == ["m2"]
    assert ask(crowd.members[2], "stuck", "stuck", count=0)["members"] == []
    crowd.members[2].tell("go on")
    for child in crowd.members[:2]:
        assert ask(child, "stuck", "stuck", count=0)["members"] == []
        figures = ask(child, "statistics", "statistics")
        assert figures["layers"]["membership"]["evicted"] == 0
        assert figures["view"] == 3


@pytest.mark.parametrize("number", [2, 0], ids=["a member", "the coordinator"])
def test_one_that_is_stuck_is_put_out_by_policy_and_back_when_it_goes_on(
    crowd: Crowd, number: int
) -> None:
    three(crowd, stuck_after=1.0, evict_stuck=True)
    hang(crowd, number)
    others = [child for at, child in enumerate(crowd.members) if at != number]
    for child in others:
        view = crowd.wait_for(child, size_is(2))
        assert view["crashed"] == [f"m{number}"]
    crowd.members[number].tell("go on")
    for child in crowd.members:
        crowd.wait_for(child, lambda view: len(view["members"]) == 3 and view["id"] > 4)
    ask(crowd.members[1], "send", "sent", count=5)
    for child in crowd.members:
        assert ask(child, "count", "counted", wanted={"m1": 6})["wrong"] == []


@pytest.mark.parametrize("stack", ["tcp", "udp"])
def test_senders_wake_when_one_that_holds_them_up_is_put_out(crowd: Crowd, stack: str) -> None:
    three(crowd, stack, stability_timeout=1.5)
    hang(crowd, 2)
    # Far more than the window holds: it returns only when somebody is put out.
    assert ask(crowd.members[0], "send", "sent", count=2000, size=1000)["count"] == 2000
    for child in crowd.members[:2]:
        child.tell("count", wanted={"m0": 2000})
        assert until(child, "counted")["got"]["m0"] == 2000
    figures = ask(crowd.members[0], "statistics", "statistics")
    assert figures["layers"]["stability"]["excluded"] == 1
    assert figures["layers"]["stability"]["longest"] >= 1.5
    assert figures["waits"] > 0
    crowd.members[2].tell("go on")
    for child in crowd.members:
        crowd.wait_for(child, lambda view: len(view["members"]) == 3 and view["id"] > 4)


@pytest.mark.parametrize("stack", ["tcp", "udp"])
def test_senders_wake_when_a_stopped_member_is_given_up(crowd: Crowd, stack: str) -> None:
    three(crowd, stack)
    crowd.members[2].signal(signal.SIGSTOP)
    assert ask(crowd.members[0], "send", "sent", count=2000, size=1000)["count"] == 2000
    for child in crowd.members[:2]:
        assert ask(child, "count", "counted", wanted={"m0": 2000})["wrong"] == []
    crowd.members[2].signal(signal.SIGCONT)
    for child in crowd.members:
        crowd.wait_for(child, lambda view: len(view["members"]) == 3 and view["id"] > 4)


@pytest.mark.parametrize(
    ("timeout", "error"), [(0.0, "QueueFull"), (1.0, "SendTimeout")], ids=["refuses", "times out"]
)
def test_a_full_window_refuses_or_times_out_and_nobody_is_put_out(
    crowd: Crowd, timeout: float, error: str
) -> None:
    three(crowd)
    hang(crowd, 2)
    filled = ask(crowd.members[0], "fill", "filled", patience=timeout)
    assert filled["error"] == error
    assert filled["took"] >= timeout
    assert filled["count"] >= 50
    # The others have everything that was taken; when the slow one goes on, so has it.
    wanted = {"m0": filled["count"]}
    assert ask(crowd.members[1], "count", "counted", wanted=wanted)["wrong"] == []
    crowd.members[2].tell("go on")
    counted = ask(crowd.members[2], "count", "counted", wanted=wanted)
    assert counted["got"]["m0"] == filled["count"]
    assert counted["wrong"] == []
    assert ask(crowd.members[0], "statistics", "statistics")["view"] == 3


def test_a_sender_waits_for_a_slow_member_and_goes_on_with_it(crowd: Crowd) -> None:
    three(crowd)
    hang(crowd, 2)
    crowd.members[0].tell("send", count=1000, size=1000)
    # It cannot be done with it before the other goes on.
    assert ask(crowd.members[1], "count", "counted", wanted={"m0": 50})["wrong"] == []
    crowd.members[2].tell("go on")
    assert until(crowd.members[0], "sent")["count"] == 1000
    for child in crowd.members:
        counted = ask(child, "count", "counted", wanted={"m0": 1000})
        assert counted["got"]["m0"] == 1000
        assert counted["wrong"] == []
    assert ask(crowd.members[0], "statistics", "statistics")["view"] == 3
