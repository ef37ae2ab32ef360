"""Members that were stopped for a while and did not die: asked, perhaps put out, and back."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from antiphon.testing import Child

from .group_members import Crowd, ask, until

pytestmark = pytest.mark.timeout(120)

STACKS = pytest.mark.parametrize("stack", ["tcp", "udp"])


@pytest.fixture
def crowd(channel: str) -> Iterator[Crowd]:
    with ExitStack() as stack:
        yield Crowd(stack, f"stopped-{time.monotonic_ns()}")


def count(child: Child, wanted: dict[str, int]) -> dict[str, Any]:
    return ask(child, "count", "counted", wanted=wanted)  # type: ignore[no-any-return]


def test_a_false_suspicion_is_cleared_by_an_answer(crowd: Crowd) -> None:
    """Silent for longer than the others bear it, but not for as long as they wait for an answer."""
    crowd.start_in_turn(3, config={"failure_timeout": 1.0, "verify_timeout": 30.0})
    first, stopped, last = crowd.members
    before = ask(first, "statistics", "statistics")
    stopped.signal(signal.SIGSTOP)
    for child in (first, last):
        child.tell("send", count=1000)
        until(child, "sent")
    deadline = time.monotonic() + 30
    while True:
        asked = ask(first, "statistics", "statistics")["layers"]["failure-detection"]["questions"]
        if asked > before["layers"]["failure-detection"]["questions"]:
            break
        assert time.monotonic() < deadline
    stopped.signal(signal.SIGCONT)
    ask(stopped, "send", "sent", count=1000)
    for child in crowd.members:
        assert count(child, {"m0": 1000, "m1": 1000, "m2": 1000})["wrong"] == []
        after = ask(child, "statistics", "statistics")
        assert after["view"] == before["view"]
        assert after["layers"]["failure-detection"]["suspected"] == 0


@STACKS
def test_one_that_was_put_out_by_mistake_comes_back_and_nothing_comes_twice(
    crowd: Crowd, stack: str
) -> None:
    crowd.start_in_turn(3, options={"stack": stack}, config={"failure_timeout": 3.0})
    first, stopped, last = crowd.members
    for child in crowd.members:
        ask(child, "send", "sent", count=100)
    for child in crowd.members:
        assert count(child, {"m0": 100, "m1": 100, "m2": 100})["wrong"] == []
    stopped.signal(signal.SIGSTOP)
    for child in (first, last):
        crowd.wait_for(child, lambda view: len(view["members"]) == 2)
        ask(child, "send", "sent", count=100)
    stopped.signal(signal.SIGCONT)
    views = [
        crowd.wait_for(child, lambda view: len(view["members"]) == 3) for child in crowd.members
    ]
    assert len({(view["id"], tuple(view["members"])) for view in views}) == 1
    for child in crowd.members:
        ask(child, "send", "sent", count=100)
    for child in (first, last):  # of the one that was away, too, they have all
        assert count(child, {"m0": 300, "m1": 200, "m2": 300}) == {
            "event": "counted",
            "got": {"m0": 300, "m1": 200, "m2": 300},
            "wrong": [],
        }
    # What was sent while it was out is not for it, unless it came before it knew; nothing again.
    away = count(stopped, {"m0": 300, "m1": 200, "m2": 300})
    assert away["got"] == {"m0": 300, "m1": 200, "m2": 300}
    for text in away["wrong"]:
        came, _, _, expected = text.partition(": ")[2].split()
        assert 100 <= int(expected) < int(came) <= 200, away["wrong"]
