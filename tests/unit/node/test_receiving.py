"""The future of a message: asked by threads, cancelled, out of time; none of it loses a message."""

from __future__ import annotations

import functools
import gc
import random
import threading
import time
from collections import Counter

import pytest

from antiphon import Closed, Future, Inbox, Node, ProtocolError, ReceiveTimeout, RequestCancelled
from unit.node.pairs import (
    HERE,
    KIND,
    THERE,
    Ping,
    Running,
    all_results,
    eventually,
    nodes,
    numbered,
    python,
)

pytestmark = pytest.mark.timeout(60)


def blocked(inbox: Inbox[bytes], future: Future[tuple[int, bytes]]) -> Running[tuple[int, bytes]]:
    """A thread that waits for it; in the core, as far as one can see."""
    before = future._blocked  # type: ignore[attr-defined]
    running = Running(future.result)
    eventually(lambda: future._blocked > before)  # type: ignore[attr-defined]
    return running


def test_receive_async_returns_the_one_kind_of_future() -> None:
    with nodes() as (here, there):
        inbox = there.inbox(KIND)
        future = inbox.receive_async()
        assert isinstance(future, Future)
        assert not future.done()
        here.send(THERE, b"x", kind=KIND)
        assert future.result(10) == (HERE, b"x")
        assert future.done()
        assert future.exception() is None
        assert future.result() == (HERE, b"x")  # as often as one likes
        assert not future.cancel()
        assert future.result(0) == (HERE, b"x")


def test_a_future_that_is_asked_whether_it_is_done_takes_what_is_there_and_keeps_it() -> None:
    with nodes() as (here, there):
        inbox = there.inbox(KIND)
        future = inbox.receive_async()
        for message in numbered(2):
            here.send(THERE, message, kind=KIND)
        eventually(future.done)
        assert not future.cancel()
        assert inbox.receive(10) == (HERE, b"1")
        assert future.result(0) == (HERE, b"0")


def test_futures_that_nobody_asks_take_nothing() -> None:
    with nodes() as (here, there):
        inbox = there.inbox(KIND)
        futures = [inbox.receive_async() for _ in range(5)]
        for message in numbered(3):
            here.send(THERE, message, kind=KIND)
        eventually(lambda: inbox.pending == 3)
        assert futures[4].result(10) == (HERE, b"0")
        futures.clear()
        gc.collect()
        assert [inbox.receive(10) for _ in range(2)] == [(HERE, b"1"), (HERE, b"2")]


def test_a_typed_one_gives_messages_and_raises_what_cannot_be_decoded() -> None:
    with nodes() as (here, there):
        inbox = there.inbox(Ping)
        here.send(THERE, b"\xc1", kind=61001)
        here.send(THERE, Ping(1))
        broken = inbox.receive_async()
        for _ in range(2):
            with pytest.raises(ProtocolError):
                broken.result(10)
        assert inbox.receive_async().result(10) == (HERE, Ping(1))


def test_cancelling_wakes_the_thread_that_waits_and_loses_no_message() -> None:
    with nodes() as (here, there):
        inbox = there.inbox(KIND)
        future = inbox.receive_async()
        waiting = [blocked(inbox, future) for _ in range(2)]
        assert future.cancel()
        assert not future.cancel()
        for one in waiting:
            error = one.error()
            assert isinstance(error, RequestCancelled)
            assert error.kind == KIND
        assert future.done()
        assert isinstance(future.exception(), RequestCancelled)
        here.send(THERE, b"x", kind=KIND)
        assert inbox.receive(10) == (HERE, b"x")


def test_a_result_that_is_not_there_in_time_may_still_come() -> None:
    with nodes() as (here, there):
        future = there.inbox(KIND).receive_async()
        for timeout in (0, 0.02, -1):
            with pytest.raises(TimeoutError) as error:
                future.result(timeout)
            assert not isinstance(error.value, ReceiveTimeout)
        here.send(THERE, b"x", kind=KIND)
        assert future.result(10) == (HERE, b"x")


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_a_future_that_has_run_out_of_time_stays_so_and_takes_nothing(timeout: float) -> None:
    with nodes() as (here, there):
        inbox = there.inbox(KIND)
        began = time.monotonic()
        future = inbox.receive_async(timeout)
        with pytest.raises(ReceiveTimeout, match="kind 200") as error:
            future.result(30)
        assert timeout <= error.value.waited <= time.monotonic() - began
        here.send(THERE, b"x", kind=KIND)
        eventually(lambda: inbox.pending == 1)
        assert future.done()
        with pytest.raises(ReceiveTimeout):
            future.result()
        assert inbox.receive_async(0).result() == (HERE, b"x")  # what is here needs no time


@pytest.mark.parametrize("close", [Inbox.close, lambda inbox: None], ids=["inbox", "node"])
def test_closing_wakes_whoever_waits(close: object) -> None:
    with Node(THERE) as there:
        inbox = there.inbox(KIND)
        waiting = [blocked(inbox, inbox.receive_async()) for _ in range(2)]
        close(inbox)  # type: ignore[operator]
    for one in waiting:
        assert isinstance(one.error(), Closed)
    with pytest.raises(Closed):
        inbox.receive_async().result()


def test_all_who_ask_one_future_get_its_message_and_the_next_is_for_others() -> None:
    with nodes() as (here, there):
        inbox = there.inbox(KIND)
        future = inbox.receive_async()
        waiting = [blocked(inbox, future) for _ in range(4)]
        other = Running(lambda: inbox.receive(20))
        # Together, so that more threads than one may be woken for either.
        here.send_many(THERE, numbered(2), kind=KIND)
        got = {*all_results(waiting)}
        assert len(got) == 1
        assert {*got, other.result()} == {(HERE, b"0"), (HERE, b"1")}


def test_futures_and_receivers_that_come_and_go_miss_no_message() -> None:
    """Some are cancelled, some give up, some are blocked for good: what comes is taken at once."""
    count = 1500
    with nodes() as (here, there):
        inbox = there.inbox(KIND)
        got: list[bytes] = []
        over = threading.Event()

        def take(number: int) -> None:
            chance = random.Random(number)
            while not over.is_set():
                future = inbox.receive_async(chance.choice([None, 0.001, 5.0]))
                cancelling = None
                if chance.random() < 0.5:
                    cancelling = threading.Timer(chance.random() * 0.002, future.cancel)
                    cancelling.start()
                try:
                    got.append(future.result(chance.choice([None, 0.001]))[1])
                except (RequestCancelled, ReceiveTimeout, Closed):
                    pass
                except TimeoutError:
                    if not future.cancel():  # it came just then, to this future
                        got.append(future.result()[1])
                if cancelling is not None:
                    cancelling.join()

        def receive() -> None:
            for _, data in inbox:
                got.append(data)

        taking = [Running(functools.partial(take, number)) for number in range(4)]
        receiving = Running(receive)
        for start in range(0, count, 3):
            here.send_many(THERE, numbered(3, start), kind=KIND)
        eventually(lambda: len(got) == count, "all are taken", 40)
        over.set()
        inbox.close()
        all_results([*taking, receiving])
        assert Counter(got) == Counter(numbered(count))


FORKED = """
import os
import antiphon

with antiphon.Node(1) as node:
    future = node.inbox(200).receive_async()
    assert not future.done()
    child = os.fork()
    if child == 0:
        try:
            future.result(5)
        except antiphon.Closed:
            os._exit(0 if not future.cancel() else 3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert future.cancel()
"""


def test_a_forked_child_cannot_ask_the_future_of_its_parent() -> None:
    done = python(FORKED)
    assert done.returncode == 0, done.stderr
