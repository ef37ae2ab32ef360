"""Waiting for answers: time, futures, and many who wait at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import math
import random
import threading
import time
from typing import Any

import pytest

from antiphon import (
    AntiphonError,
    ConfigError,
    Node,
    NodeConfig,
    PeerUnreachable,
    RemoteError,
    RequestCancelled,
    RequestTimeout,
    UnknownKind,
    WouldBlock,
)
from antiphon.node.future import Future
from antiphon.testing import Collected, Host
from integration.asking import SOON, Slow, ask, asleep, echo, slow_there
from unit.node.pairs import (
    HERE,
    KIND,
    NORMAL,
    OTHER,
    SMALL,
    THERE,
    THIRD,
    Heard,
    Running,
    all_results,
    eventually,
    nodes,
)

pytestmark = pytest.mark.timeout(60)


# --- time -----------------------------------------------------------------------------------------


def test_a_request_times_out_and_its_late_answer_is_dropped_and_counted() -> None:
    with slow_there() as (here, _, slow):
        slow.let()
        here.request(THERE, b"connects", kind=KIND)
        began = time.monotonic()
        with pytest.raises(RequestTimeout) as error:
            here.request(THERE, b"slow", kind=KIND, timeout=0.2)
        waited = time.monotonic() - began
        assert 0.2 <= waited < SOON
        assert 0.2 <= error.value.waited <= waited
        assert (error.value.peer, error.value.kind) == (THERE, KIND)
        assert isinstance(error.value, TimeoutError)
        assert here.statistics().requests_open == 0
        assert here.statistics().late_responses == 0
        slow.let()
        eventually(lambda: here.statistics().late_responses == 1)
        slow.let()
        assert here.request(THERE, b"next", kind=KIND) == b"next"
        assert here.statistics().late_responses == 1


@pytest.mark.parametrize("timeout", [0, 0.0, -1.0])
def test_without_time_a_request_is_made_and_not_waited_for(timeout: float) -> None:
    with slow_there() as (here, _, slow):
        slow.let()
        here.request(THERE, b"connects", kind=KIND)
        with pytest.raises(RequestTimeout):
            here.request(THERE, b"now", kind=KIND, timeout=timeout)
        future = here.request_async(THERE, b"async", kind=KIND, timeout=timeout)
        with pytest.raises(RequestTimeout):
            future.result()
        slow.let(2)
        assert slow.asked.first(3) == [b"connects", b"now", b"async"]
        eventually(lambda: here.statistics().late_responses == 2)


@pytest.mark.parametrize("timeout", [math.inf, 1e300, 1e10, 86400 * 365])
def test_any_long_time_may_be_given(timeout: float) -> None:
    with slow_there() as (here, _, slow):
        waiting = Running(lambda: here.request(THERE, b"x", kind=KIND, timeout=timeout))
        future = here.request_async(THERE, b"y", kind=KIND, timeout=timeout)
        slow.asked.first(1)
        slow.let(2)
        assert waiting.result() == b"x"
        assert future.result(5) == b"y"


@pytest.mark.parametrize("timeout", [math.inf, 1e300, 1e10, 86400 * 365])
def test_any_long_time_may_be_waited_for_a_future_before_its_connection(timeout: float) -> None:
    with Host() as host, Node(HERE, peers={THERE: host.address}, config=NORMAL) as here:
        future = here.request_async(THERE, b"x", kind=KIND, timeout=timeout)
        waiting = Running(lambda: future.result(timeout))
        asleep([waiting])
        assert future.cancel()
        assert isinstance(waiting.error(), RequestCancelled)


def test_the_time_is_the_configured_one_unless_it_is_given() -> None:
    with slow_there(NodeConfig(request_timeout=0.2)) as (here, there, slow):
        there.send(HERE, b"connects", kind=OTHER)  # an answer would not wait for it for long
        with pytest.raises(RequestTimeout) as error:
            here.request(THERE, b"x", kind=KIND)
        assert 0.2 <= error.value.waited < SOON
        assert isinstance(here.request_async(THERE, b"x", kind=KIND).exception(), RequestTimeout)
        patient = Running(lambda: here.request(THERE, b"x", kind=KIND, timeout=30))
        slow.asked.first(1)
        slow.let(3)
        assert patient.result() == b"x"


def test_a_request_that_waits_for_credit_keeps_to_its_time() -> None:
    with slow_there(capacity=1) as (here, _, slow):
        first = here.request_async(THERE, b"first", kind=KIND)
        slow.asked.first(1)
        began = time.monotonic()
        with pytest.raises(RequestTimeout):
            here.request(THERE, b"second", kind=KIND, timeout=0.2)
        with pytest.raises(RequestTimeout):
            here.request(THERE, bytes(5_000_000), kind=KIND, timeout=0.2)
        assert 0.4 <= time.monotonic() - began < SOON
        slow.let()
        assert first.result(5) == b"first"


@pytest.mark.parametrize("call", ["request", "request_async"])
def test_a_request_whose_time_ends_before_there_is_a_connection_has_timed_out(call: str) -> None:
    """The peer may be well: connecting had seconds left."""
    with Host() as host, Node(HERE, peers={THERE: host.address}, config=NORMAL) as here:
        with pytest.raises(RequestTimeout) as error:
            ask(here, call, b"x", timeout=0.1)
        assert error.value.peer == THERE


@pytest.mark.parametrize("call", ["request", "request_async"])
def test_a_peer_that_does_not_speak_costs_no_more_than_the_time_given(call: str) -> None:
    with Host() as host, Node(HERE, peers={THERE: host.address}, config=NORMAL) as here:
        began = time.monotonic()
        with pytest.raises((RequestTimeout, PeerUnreachable)):
            ask(here, call, b"x", timeout=0.3)
        assert 0.25 <= time.monotonic() - began < SOON


def test_a_request_behind_others_that_wait_keeps_to_its_own_time() -> None:
    with Host() as host, Node(HERE, peers={THERE: host.address}, config=NORMAL) as here:
        patient = here.request_async(THERE, b"patient", kind=KIND, timeout=30)
        began = time.monotonic()
        hasty = here.request_async(THERE, b"hasty", kind=KIND, timeout=0.3)
        with pytest.raises((RequestTimeout, PeerUnreachable)):
            hasty.result()
        assert time.monotonic() - began < SOON
        assert patient.cancel()


# --- futures --------------------------------------------------------------------------------------


def test_a_future_is_done_when_the_answer_is_here() -> None:
    with slow_there() as (here, _, slow):
        future = here.request_async(THERE, b"x", kind=KIND)
        assert isinstance(future, Future)
        slow.asked.first(1)
        assert not future.done()
        began = time.monotonic()
        for wait in (future.result, future.exception):
            with pytest.raises(TimeoutError) as error:
                wait(0.1)
            assert not isinstance(error.value, AntiphonError)  # the request itself goes on
        assert time.monotonic() - began >= 0.2
        with pytest.raises(TimeoutError):
            future.result(0)
        slow.let()
        eventually(future.done)
        assert [future.result() for _ in range(3)] == [b"x"] * 3
        assert future.result(0) == b"x"
        assert future.exception() is None


def test_a_futures_error_is_raised_each_time_it_is_asked() -> None:
    with nodes() as (here, _):
        future = here.request_async(THERE, b"x", kind=KIND)
        assert isinstance(future.exception(5), UnknownKind)
        assert future.done()
        for _ in range(2):
            with pytest.raises(UnknownKind):
                future.result()
        assert not future.cancel()


def test_a_future_that_timed_out_stays_so_when_the_answer_comes() -> None:
    with slow_there() as (here, _, slow):
        slow.let()
        here.request(THERE, b"connects", kind=KIND)
        future = here.request_async(THERE, b"x", kind=KIND, timeout=0.1)
        with pytest.raises(RequestTimeout):
            future.result()
        assert future.done()
        assert not future.cancel()
        slow.let()
        eventually(lambda: here.statistics().late_responses == 1)
        with pytest.raises(RequestTimeout):
            future.result()
        assert isinstance(future.exception(), RequestTimeout)


def test_cancelling_before_the_answer_gives_it_up() -> None:
    with slow_there() as (here, _, slow):
        slow.let()
        here.request(THERE, b"connects", kind=KIND)
        future = here.request_async(THERE, b"x", kind=KIND)
        slow.asked.first(2)
        assert future.cancel()
        assert not future.cancel()
        assert future.done()
        with pytest.raises(RequestCancelled) as error:
            future.result()
        assert (error.value.peer, error.value.kind) == (THERE, KIND)
        assert isinstance(future.exception(), RequestCancelled)
        assert here.statistics().requests_open == 0
        slow.let()
        eventually(lambda: here.statistics().late_responses == 1)
        with pytest.raises(RequestCancelled):
            future.result()


def test_cancelling_after_the_answer_changes_nothing() -> None:
    with slow_there() as (here, _, slow):
        slow.let()
        future = here.request_async(THERE, b"x", kind=KIND)
        eventually(future.done)
        assert not future.cancel()
        assert future.result() == b"x"
        assert here.statistics().late_responses == 0


def test_cancelling_wakes_whoever_waits() -> None:
    with slow_there() as (here, _, slow):
        future = here.request_async(THERE, b"x", kind=KIND)
        waiting = [Running(lambda: future.result(30)) for _ in range(3)]
        slow.asked.first(1)
        asleep(waiting)
        began = time.monotonic()
        assert future.cancel()
        for one in waiting:
            assert isinstance(one.error(), RequestCancelled)
        assert time.monotonic() - began < SOON


def test_one_who_stops_waiting_for_a_future_does_not_leave_the_others_asleep() -> None:
    # No sign of life comes between: it would wake the one who reads.
    with slow_there(NodeConfig(heartbeat=30.0, request_timeout=30.0)) as (here, _, slow):
        slow.let()
        here.request(THERE, b"connects", kind=KIND)
        future = here.request_async(THERE, b"x", kind=KIND)
        patient = Running(lambda: future.result(30))  # the first: the one that reads the channel
        slow.asked.first(2)
        asleep([patient])
        with pytest.raises(TimeoutError):
            Running(lambda: future.result(0.05)).result()
        began = time.monotonic()
        assert future.cancel()
        assert isinstance(patient.error(), RequestCancelled)
        assert time.monotonic() - began < SOON


def test_several_threads_may_wait_for_one_answer() -> None:
    with slow_there() as (here, _, slow):
        future = here.request_async(THERE, b"x", kind=KIND)
        waiting = [Running(lambda: future.result(10)) for _ in range(8)]
        slow.asked.first(1)
        slow.let()
        assert all_results(waiting) == [b"x"] * 8


@pytest.mark.parametrize("connected", [True, False])
def test_a_future_that_nobody_keeps_is_given_up(connected: bool) -> None:
    with slow_there() as (here, _, slow):
        if connected:
            slow.let()
            here.request(THERE, b"connects", kind=KIND)
        here.request_async(THERE, b"dropped", kind=KIND)
        slow.asked.first(2 if connected else 1)
        eventually(lambda: here.statistics().requests_open == 0, "it is given up", SOON)
        slow.let(2)
        assert here.request(THERE, b"next", kind=KIND) == b"next"
        assert here.statistics().late_responses == 1


def test_a_future_before_its_connection_can_be_cancelled() -> None:
    with Host() as host, Node(HERE, peers={THERE: host.address}, config=NORMAL) as here:
        future = here.request_async(THERE, b"x", kind=KIND)
        waiting = Running(future.result)
        behind = here.request_async(THERE, b"x", kind=KIND)
        with pytest.raises(TimeoutError):
            future.result(0.05)
        assert not future.done()
        assert future.cancel()
        assert future.done()
        assert isinstance(waiting.error(SOON), RequestCancelled)
        assert isinstance(future.exception(), RequestCancelled)
        assert behind.cancel()
        with pytest.raises(RequestCancelled) as error:
            behind.result()
        assert (error.value.peer, error.value.kind) == (THERE, KIND)


def test_the_question_is_what_it_was_when_it_was_asked() -> None:
    with slow_there() as (here, _, slow):
        slow.let(2)
        asked = []
        for _ in range(2):  # before there is a connection, and over it
            data = bytearray(b"before")
            future = here.request_async(THERE, data, kind=KIND)
            data[:] = b"behind"
            asked.append(future.result(5))
    assert asked == [b"before", b"before"]


def test_futures_are_answered_in_any_order() -> None:
    with contextlib.ExitStack() as stack:
        slow = {number: stack.enter_context(Slow()) for number in range(10, 16)}
        here = stack.enter_context(Node(HERE, config=NORMAL))
        for number, handler in slow.items():
            node = stack.enter_context(Node(number, config=NORMAL))
            node.on(KIND, handler)
            here.add_peer(number, node.address)
            stack.callback(handler.let, 10)
        futures = {number: here.request_async(number, b"%d" % number, kind=KIND) for number in slow}
        order = list(slow)
        random.Random(1).shuffle(order)
        for place, number in enumerate(order):
            slow[number].let()
            assert futures[number].result(5) == b"%d" % number
            assert not any(futures[later].done() for later in order[place + 1 :])


def test_on_a_thread_with_a_running_loop_waiting_is_refused_and_the_twin_named() -> None:
    with slow_there() as (here, _, slow):

        async def ask() -> None:
            with pytest.raises(WouldBlock, match="request_async") as error:
                here.request(THERE, b"never sent", kind=KIND)
            assert error.value.twin == "request_async()"
            future = here.request_async(THERE, b"x", kind=KIND)
            with pytest.raises(WouldBlock, match="await") as error:
                future.result()
            assert error.value.twin == "await"
            slow.let()
            assert await future == b"x"
            assert future.result() == b"x"  # which waits for nothing any more

        asyncio.run(ask())
        assert slow.asked.items == [b"x"]


def test_that_waiting_is_refused_is_not_taken_for_the_requests_own_error() -> None:
    with slow_there() as (here, _, slow):

        async def ask() -> None:
            future = here.request_async(THERE, b"x", kind=KIND)
            with pytest.raises(WouldBlock, match="await"):
                future.exception()
            slow.let()
            assert await future == b"x"
            assert future.exception() is None

        asyncio.run(ask())


# --- many at once ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threads", "turns", "spin"), [(16, 300, 0.0), (100, 40, 0.0), (16, 100, 50.0)]
)
@pytest.mark.parametrize("ordered", [True, False])
def test_every_thread_gets_its_own_answers(
    threads: int, turns: int, spin: float, ordered: bool
) -> None:
    with nodes(NodeConfig(spin_us=spin)) as (here, there):
        there.on(KIND, lambda source, data: b"answer to " + data, ordered=ordered)

        def ask(thread: int) -> int:
            right = 0
            for turn in range(turns):
                question = b"%d %d" % (thread, turn)
                right += here.request(THERE, question, kind=KIND) == b"answer to " + question
            return right

        asking = [Running(lambda thread=thread: ask(thread)) for thread in range(threads)]  # type: ignore[misc]
        assert all_results(asking) == [turns] * threads
        statistics = here.statistics()
        assert statistics.requests == threads * turns
        assert (statistics.requests_open, statistics.late_responses) == (0, 0)
        eventually(lambda: there.statistics().answers == threads * turns)


def test_many_futures_at_once_each_get_their_own_answer() -> None:
    with nodes() as (here, there):
        there.on(KIND, lambda source, data: data[::-1], capacity=64)
        questions = [b"question %d" % number for number in range(5000)]
        futures = [here.request_async(THERE, question, kind=KIND) for question in questions]
        assert [future.result(20) for future in futures] == [each[::-1] for each in questions]
        assert here.statistics().requests_open == 0


def named(id: int, source: int, data: bytes) -> bytes:
    return b"%d %s" % (id, data)


def test_a_node_asks_several_at_once() -> None:
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(Node(10 + n, config=NORMAL)) for n in range(4)]
        for node in others:
            node.on(KIND, functools.partial(named, node.id))
        peers = {node.id: node.address for node in others}
        here = stack.enter_context(Node(HERE, peers=peers, config=NORMAL))

        def ask(target: int) -> bool:
            return all(
                here.request(target, b"%d" % turn, kind=KIND) == b"%d %d" % (target, turn)
                for turn in range(200)
            )

        asking = [Running(lambda t=t: ask(t)) for t in [*peers] * 3]  # type: ignore[misc]
        assert all_results(asking) == [True] * 12


def test_requests_and_one_way_messages_of_a_thread_keep_their_order() -> None:
    heard = Heard()
    with nodes() as (here, there):

        def handler(source: int, data: bytes) -> bytes:
            heard(source, data)
            return data

        there.on(KIND, handler)
        for turn in range(300):
            here.send(THERE, b"%d send" % turn, kind=KIND)
            here.send_many(THERE, [b"%d many" % turn] * 3, kind=KIND)
            assert here.request(THERE, b"%d ask" % turn, kind=KIND) == b"%d ask" % turn
    wanted = ([b"send"] + [b"many"] * 3 + [b"ask"],)
    assert heard.data == [b"%d %s" % (n, what) for n in range(300) for what in wanted[0]]


def test_requests_go_on_beside_a_flood_of_one_way_messages() -> None:
    stop = threading.Event()
    got = itertools.count()
    with nodes(SMALL) as (here, there):
        there.on(KIND, echo)
        there.on(OTHER, lambda source, data: next(got))
        here.on(OTHER, lambda source, data: next(got))

        def flood(node: Node, target: int) -> int:
            sent = 0
            while not stop.is_set():
                node.send_many(target, [b"x" * 100] * 20, kind=OTHER)
                sent += 20
            node.flush(10)
            return sent

        flooding = [Running(lambda: flood(here, THERE)), Running(lambda: flood(there, HERE))]

        def ask(thread: int) -> bool:
            return all(
                here.request(THERE, b"%d %d" % (thread, turn), kind=KIND)
                == b"%d %d" % (thread, turn)
                for turn in range(50)
            )

        try:
            assert all_results([Running(lambda t=t: ask(t)) for t in range(4)]) == [True] * 4  # type: ignore[misc]
        finally:
            stop.set()
        sent = sum(all_results(flooding))
        assert next(got) == sent > 0


def test_an_inbox_at_the_caller_is_fed_while_it_waits_for_an_answer() -> None:
    """Whoever waits reads the channel for the others too."""
    with slow_there() as (here, there, slow):
        inbox = here.inbox(OTHER)
        waiting = Running(lambda: here.request(THERE, b"x", kind=KIND))
        slow.asked.first(1)
        for number in range(1000):
            there.send(HERE, b"%d" % number, kind=OTHER)
        assert [inbox.receive(5)[1] for _ in range(1000)] == [b"%d" % n for n in range(1000)]
        assert not waiting.done
        slow.let()
        assert waiting.result() == b"x"


@pytest.mark.parametrize("spin_us", [0, 20.0, 1000])
def test_with_any_spin_answers_and_errors_and_time_are_as_without(spin_us: float) -> None:
    with slow_there(NodeConfig(spin_us=spin_us)) as (here, there, slow):
        there.on(OTHER, echo)
        assert all(here.request(THERE, b"%d" % n, kind=OTHER) == b"%d" % n for n in range(100))
        with pytest.raises(UnknownKind):
            here.request(THERE, b"x", kind=THIRD)
        slow.let()
        here.request(THERE, b"x", kind=KIND)  # has a window: without, the next may never be sent
        with pytest.raises(RequestTimeout) as error:
            here.request(THERE, b"x", kind=KIND, timeout=0.1)
        assert 0.1 <= error.value.waited < SOON
        slow.let()
        eventually(lambda: here.statistics().late_responses == 1)


@pytest.mark.parametrize("spin_us", [-1, 1001, math.nan, "many"])
def test_spin_is_from_0_to_1000_microseconds(spin_us: Any) -> None:
    with pytest.raises(ConfigError) as error:
        NodeConfig(spin_us=spin_us)
    assert error.value.setting == "spin_us"


@pytest.mark.parametrize("way", ["unordered", "kinds"])
def test_handlers_on_two_nodes_may_ask_each_other(way: str) -> None:
    with nodes() as (here, there):
        ordered = way == "kinds"

        def down(node: Node, target: int, asked: int, next_kind: int) -> None:
            def handler(source: int, data: bytes) -> bytes:
                left = int(data)
                if left == 0:
                    return b"end"
                return node.request(target, b"%d" % (left - 1), kind=next_kind) + b"%d" % left

            node.on(asked, handler, ordered=ordered)

        if way == "kinds":
            down(here, THERE, KIND, KIND)
            down(there, HERE, KIND, OTHER)
            down(here, THERE, OTHER, OTHER)
            down(there, HERE, OTHER, KIND)
        else:
            down(here, THERE, KIND, KIND)
            down(there, HERE, KIND, KIND)
        # A handler of `here` asks one of `there`, which asks one of `here`.
        assert there.request(HERE, b"2", kind=KIND) == b"end12"


def test_a_request_that_its_own_handler_keeps_waiting_says_what_to_do() -> None:
    with nodes() as (here, there):
        errors: Collected[RequestTimeout] = Collected()

        def on_here(source: int, data: bytes) -> bytes:
            return here.request(THERE, data, kind=KIND)

        def on_there(source: int, data: bytes) -> bytes:
            try:
                return there.request(HERE, data, kind=KIND, timeout=0.5)
            except RequestTimeout as error:
                errors.add(error)
                raise

        here.on(KIND, on_here)
        there.on(KIND, on_there)
        with pytest.raises(RemoteError, match="ordered=False"):
            there.request(HERE, b"x", kind=KIND)
        assert "ordered=False" in str(errors.first(1)[0])
