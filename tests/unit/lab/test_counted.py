"""Runs of a given number of messages: when they are over, and what their window is."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.lab.counted import SETTLE, TOLD, Count
from antiphon.lab.plan import Run, load_plan, runs_of
from antiphon.lab.protocols import PROTOCOLS
from antiphon.lab.writers import parts_of

SURE, LOSSY, GROUP = (PROTOCOLS[name] for name in ("tcp-python", "udp-python", "jgroups-tcp"))


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    def make(senders: int = 1, messages: int = 10) -> Run:
        path = tmp_path_factory.mktemp("plan") / "counted.toml"
        path.write_text(
            "[times]\nkept_until = 1\n[[series]]\nname = 'a'\npattern = 'one-way'\n"
            f"protocols = ['tcp-python']\nsizes = [64]\nmessages = {messages}\n"
            f"senders = [{senders}]\n"
        )
        (made,) = runs_of(load_plan(path))
        return made

    return make


def said(sent: int = 0, received: int = 0, done: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "sent": sent,
        "received": received,
        "received_bytes": 64 * received,
        "done": done,
        "begun_ns": 0,
        "last_ns": 0,
        **more,
    }


def test_it_is_over_when_all_is_sent_and_has_come(run: Callable[..., Run]) -> None:
    count = Count(run(senders=2), SURE)
    assert not count.see([said(received=9), said(4, done=False), said(5)])
    assert count.missing == "9 of 20 messages had come by the end"
    assert not count.see([said(received=19), said(10), said(10)])
    first, last = time.monotonic_ns() - 2_000_000_000, time.monotonic_ns()
    ended = [
        said(received=20, last_ns=last),
        said(10, begun_ns=first + 5),
        said(10, begun_ns=first),
    ]
    assert count.see(ended)
    assert count.missing == ""
    assert count.window == (first, last)
    messages, size = count.rates()
    assert messages == pytest.approx(10, rel=0.01)
    assert size == pytest.approx(640, rel=0.01)


def test_every_member_of_a_group_gets_every_message(run: Callable[..., Run]) -> None:
    three = dataclasses.replace(run(), pattern="1-n", nodes=4)
    count = Count(three, GROUP)
    assert not count.see([said(10), said(received=10), said(received=10), said(received=9)])
    assert count.missing == "29 of 30 messages had come by the end"
    assert count.see([said(10), said(received=10), said(received=10), said(received=10)])


def test_a_group_is_waited_for_until_every_sender_knows(run: Callable[..., Run]) -> None:
    count = Count(dataclasses.replace(run(senders=2), pattern="m-n", nodes=3), GROUP)
    first = said(10, 10, begun_ns=1_000, acks=2, acked_ns=9_000)
    second = said(10, 10, begun_ns=3_000, acks=1, acked_ns=8_000)
    silent = said(received=20)
    assert not count.see([first, second, silent])
    assert count.slowest is None
    assert count.see([first, second | {"acks": 2, "acked_ns": 12_000}, silent])
    assert count.slowest == 9_000  # by its own clock, though the first one began before it
    assert count.missing == ""


def test_one_that_never_tells_is_not_waited_for(run: Callable[..., Run]) -> None:
    count = Count(dataclasses.replace(run(), pattern="1-n", nodes=2), GROUP)
    answers = [said(10, begun_ns=1), said(received=10)]
    assert not count.see(answers)
    time.sleep(TOLD + 0.05)
    assert count.see(answers)
    assert count.slowest is None
    assert count.missing == ""


def test_what_may_be_lost_is_not_waited_for(run: Callable[..., Run]) -> None:
    lossy, other = Count(run(), LOSSY), Count(run(), SURE)
    answers = [said(received=8, last_ns=time.monotonic_ns()), said(10)]
    assert not lossy.see(answers)
    assert not other.see(answers)
    time.sleep(SETTLE + 0.05)
    assert lossy.see(answers)
    assert lossy.missing == ""
    assert not other.see(answers)
    assert other.missing == "8 of 10 messages had come by the end"


def test_it_is_still_when_all_was_sent_and_no_more_has_come(run: Callable[..., Run]) -> None:
    count = Count(run(), LOSSY)
    seen = []
    for sent, received in ((5, 5), (5, 5), (10, 7), (10, 8), (10, 8)):
        count.see([said(received=received), said(sent, done=sent == 10)])
        seen.append(count.still)
    assert seen == [False, False, False, False, True]


def test_nothing_at_all_is_missing_even_where_it_may_be_lost(run: Callable[..., Run]) -> None:
    count = Count(run(), LOSSY)
    count.see([said(), said(10)])
    assert count.missing == "0 of 10 messages had come by the end"


def test_the_window_is_that_of_the_messages_however_late_it_is_looked_at(
    run: Callable[..., Run],
) -> None:
    count = Count(run(), SURE)
    begun, last = time.monotonic_ns() - 9_000_000_000, time.monotonic_ns() - 8_000_000_000
    assert count.see([said(received=10, last_ns=last), said(10, begun_ns=begun)])
    assert count.window == (begun, last)


@pytest.mark.parametrize(("messages", "threads"), [(10, 3), (2, 5), (7, 1), (1000, 16)])
def test_threads_send_the_number_together(messages: int, threads: int) -> None:
    parts = list(parts_of(messages, threads))
    assert len(parts) == threads
    assert sum(part or 0 for part in parts) == messages
    assert max(part or 0 for part in parts) - min(part or 0 for part in parts) <= 1
    assert list(parts_of(None, threads)) == [None] * threads
