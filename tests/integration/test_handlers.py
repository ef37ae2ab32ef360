"""Handlers: what they may do, what happens when they fail, and who runs while they block."""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
import time
from collections import Counter
from typing import Any

import pytest

from antiphon import Node, NodeConfig, Schedule, SendTimeout, WouldBlock
from unit.node.pairs import (
    HERE,
    KIND,
    NORMAL,
    OTHER,
    SMALL,
    THERE,
    THIRD,
    Gate,
    Heard,
    Ping,
    Running,
    all_results,
    eventually,
    fail,
    failures,
    kind_of,
    nodes,
    numbered,
    to,
)

pytestmark = pytest.mark.timeout(60)

TWO_THREADS = dataclasses.replace(NORMAL, schedule=Schedule(threads=2))


# --- failing --------------------------------------------------------------------------------------


def test_a_handler_that_raises_is_logged_with_its_kind_and_source_and_the_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with nodes() as (here, there):
        there.on(KIND, fail)
        here.send(THERE, b"x", kind=KIND)
        here.flush()
    (record,) = failures(caplog)
    assert record.levelno == logging.ERROR
    assert str(KIND) in record.getMessage()
    assert str(HERE) in record.getMessage()
    kind, error, trace = record.exc_info  # type: ignore[misc]
    assert kind is ValueError
    assert str(error) == "on purpose"
    assert trace is not None
    assert trace.tb_frame.f_code.co_name == "fail"


def test_the_message_after_one_that_failed_is_handled(caplog: pytest.LogCaptureFixture) -> None:
    done: list[bytes] = []

    def handler(source: int, data: bytes) -> None:
        if int(data) % 2:
            raise ValueError(data)
        done.append(data)

    with nodes() as (here, there):
        there.on(KIND, handler)
        here.send_many(THERE, numbered(100), kind=KIND)
        here.flush()
        counted = kind_of(there)
        drops = there.statistics().drops
    assert done == numbered(100)[::2]
    assert (counted.handled, counted.failed, counted.calls) == (100, 50, 100)
    assert drops["handler_failed"] == 50
    assert len(failures(caplog)) == 50


def test_a_message_that_cannot_be_decoded_is_logged_and_counted_and_the_next_is_handled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard = Heard()
    with nodes() as (here, there):
        there.on(Ping, heard)
        here.send(THERE, Ping(1))
        here.send(THERE, b"\xc1", kind=61001)
        here.send(THERE, b"", kind=61001)
        here.send(THERE, Ping(2))
        here.flush()
        assert kind_of(there, 61001).failed == 2
    assert heard.data == [Ping(1), Ping(2)]
    assert [str(61001) in record.getMessage() for record in failures(caplog)] == [True, True]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, BaseException])
def test_nothing_that_a_handler_raises_ends_its_thread(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()

    def leave(source: int, data: bytes) -> None:
        raise error("on purpose")

    with nodes() as (here, there):
        there.on(KIND, leave)
        there.on(OTHER, heard)
        for message in numbered(10):
            here.send(THERE, message, kind=KIND)
            here.send(THERE, message, kind=OTHER)
        here.flush()
        assert kind_of(there).failed == 10
        here.send(THERE, b"still here", kind=KIND)
        here.flush()
        assert kind_of(there).handled == 11
    assert heard.data == numbered(10)
    assert {record.exc_info[0] for record in failures(caplog) if record.exc_info} == {error}


def test_a_batch_handler_that_raises_has_failed_for_every_message_of_its_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with nodes() as (here, there):
        there.on(KIND, fail, batch=True)
        here.send_many(THERE, numbered(10), kind=KIND)
        here.flush()
        counted = kind_of(there)
    assert (counted.handled, counted.failed, counted.calls) == (10, 10, 1)
    assert len(failures(caplog)) == 1


def test_a_handler_with_the_wrong_arguments_fails_like_any_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with nodes() as (here, there):
        there.on(KIND, lambda: None)
        here.send(THERE, b"x", kind=KIND)
        here.flush()
        assert kind_of(there).failed == 1
    assert failures(caplog)[0].exc_info[0] is TypeError  # type: ignore[index]


@pytest.mark.parametrize("value", [b"bytes", Ping(1), 5, object(), "text"])
def test_what_a_handler_returns_is_ignored(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    with nodes() as (here, there):
        there.on(KIND, lambda source, data: value)
        here.send_many(THERE, numbered(5), kind=KIND)
        here.flush()
        assert kind_of(there).failed == 0
    assert failures(caplog) == []


def test_a_logging_handler_that_raises_does_not_end_the_thread() -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("the log is full")

    unraisable: list[Any] = []
    previous, sys.unraisablehook = sys.unraisablehook, unraisable.append
    broken = Broken()
    logging.getLogger("antiphon").addHandler(broken)
    try:
        with nodes() as (here, there):
            there.on(KIND, fail)
            here.send_many(THERE, numbered(3), kind=KIND)
            here.flush()
            assert kind_of(there).handled == 3
    finally:
        logging.getLogger("antiphon").removeHandler(broken)
        sys.unraisablehook = previous
        unraisable.clear()


# --- order and concurrency ------------------------------------------------------------------------


def test_an_ordered_handler_runs_one_call_at_a_time() -> None:
    inside = 0
    most = 0

    def handler(source: int, data: bytes) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.001)  # long enough for a second thread to come in, if it were let in
        inside -= 1

    with nodes() as (here, there), Node(7, peers={THERE: there.address}) as third:
        there.on(KIND, handler)
        for node in (here, third):
            for message in numbered(50):
                node.send(THERE, message, kind=KIND)
        here.flush()
        third.flush()
    assert most == 1


class Meeting:
    """A handler in which two calls wait for each other; keeps whether they met."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2)
        self.met: list[bool] = []

    def __call__(self, source: int, data: bytes) -> None:
        try:
            self.barrier.wait(5)
            self.met.append(True)
        except threading.BrokenBarrierError:
            self.met.append(False)


def test_unordered_handlers_run_at_once_when_messages_come_apart() -> None:
    meeting = Meeting()
    with nodes() as (here, there):
        there.on(KIND, meeting, ordered=False)
        here.send(THERE, b"first", kind=KIND)
        eventually(lambda: meeting.barrier.n_waiting == 1)
        here.send(THERE, b"second", kind=KIND)
        here.flush(10)
    assert meeting.met == [True, True]


@pytest.mark.parametrize("how", ["send", "send_many"])
def test_unordered_handlers_run_at_once_when_messages_come_together(how: str) -> None:
    meeting = Meeting()
    with nodes() as (here, there):
        there.on(KIND, meeting, ordered=False)
        if how == "send":
            here.send(THERE, b"first", kind=KIND)
            here.send(THERE, b"second", kind=KIND)
        else:
            here.send_many(THERE, [b"first", b"second"], kind=KIND)
        here.flush(10)
    assert meeting.met == [True, True]


def test_unordered_handlers_lose_and_double_nothing() -> None:
    seen: Counter[bytes] = Counter()
    threads: set[int] = set()
    lock = threading.Lock()

    def handler(source: int, data: bytes) -> None:
        with lock:
            threads.add(threading.get_ident())
        if data == b"0":
            eventually(lambda: len(threads) > 1, "another thread goes on")
        elif int(data) % 100 == 0:
            time.sleep(0.006)  # as a handler that blocks: the other threads go on
        with lock:
            seen[data] += 1

    with nodes() as (here, there):
        there.on(KIND, handler, ordered=False)
        for start in range(0, 4000, 50):
            here.send_many(THERE, numbered(50, start), kind=KIND)
        here.flush(20)
        assert kind_of(there).handled == 4000
    assert seen == Counter(numbered(4000))
    assert len(threads) > 1


def test_flush_of_unordered_handlers_waits_for_all_of_them() -> None:
    first, second = threading.Event(), threading.Event()
    done: list[bytes] = []

    def handler(source: int, data: bytes) -> None:
        (first if data == b"first" else second).wait(20)
        done.append(data)

    with nodes() as (here, there):
        there.on(KIND, handler, ordered=False)
        here.send(THERE, b"first", kind=KIND)
        eventually(lambda: there.statistics().kinds[0].pending == 0)
        here.send(THERE, b"second", kind=KIND)
        flushing = Running(lambda: here.flush(20))
        second.set()
        eventually(lambda: done == [b"second"])
        assert not flushing.done
        first.set()
        flushing.result()
        assert sorted(done) == [b"first", b"second"]


def test_a_handler_that_takes_long_does_not_stop_other_kinds() -> None:
    heard = Heard()
    with nodes() as (here, there), Gate() as gate:
        there.on(KIND, gate)
        there.on(OTHER, heard)
        here.send(THERE, b"x", kind=KIND)
        assert gate.entered.wait(5)
        here.send_many(THERE, numbered(100), kind=OTHER)
        assert heard.wait(100) == numbered(100)


# --- sending inside handlers ----------------------------------------------------------------------


def test_a_handler_may_send_to_a_handler_that_sends_back() -> None:
    done = threading.Event()
    rounds = 200
    with nodes() as (here, there):

        def at_here(source: int, data: bytes) -> None:
            number = int(data)
            if number == rounds:
                done.set()
            else:
                here.send(source, b"%d" % (number + 1), kind=KIND)

        here.on(KIND, at_here)
        there.on(KIND, lambda source, data: there.send(source, data, kind=KIND))
        here.send(THERE, b"0", kind=KIND)
        assert done.wait(15)


def test_a_blocked_handler_here_is_fed_by_a_handler_there_that_sends_here() -> None:
    # Each message of KIND makes here wait for credit that there gives only after its own answer,
    # of another kind, has found a thread here.
    answers = Heard()
    with nodes() as (here, there):

        def begin(source: int, data: bytes) -> None:
            for message in numbered(200):
                here.send(THERE, message, kind=OTHER)

        here.on(KIND, begin)
        here.on(THIRD, answers, capacity=1)
        there.on(OTHER, lambda source, data: there.send(HERE, data, kind=THIRD), capacity=1)
        there.send(HERE, b"go", kind=KIND)
        assert answers.wait(200, timeout=20) == numbered(200)


def test_handlers_that_block_in_send_are_replaced_so_that_other_kinds_run() -> None:
    heard = Heard()
    kinds = range(600, 606)  # more than there are threads at first
    with nodes() as (here, there):
        inboxes = {kind: there.inbox(kind, capacity=1) for kind in kinds}
        entered: set[int] = set()

        def forward(kind: int) -> Any:
            def handler(source: int, data: bytes) -> None:
                here.send(THERE, b"first", kind=kind)
                entered.add(kind)
                here.send(THERE, b"second", kind=kind)

            return handler

        for kind in kinds:
            here.on(kind, forward(kind))
            there.send(HERE, b"go", kind=kind)
        here.on(OTHER, heard)
        eventually(lambda: entered == set(kinds))
        there.send_many(HERE, numbered(50), kind=OTHER)
        assert heard.wait(50) == numbered(50)
        for inbox in inboxes.values():
            assert [inbox.receive(5)[1] for _ in range(2)] == [b"first", b"second"]
        there.flush()


def test_a_handler_that_blocks_in_send_is_replaced_while_another_one_takes_long() -> None:
    heard = Heard()
    with Gate() as gate, nodes(TWO_THREADS) as (here, there):
        inbox = there.inbox(THIRD, capacity=1)
        waits = to(here).credit_waits if here.connections() else 0

        def blocks(source: int, data: bytes) -> None:
            for message in numbered(2):
                here.send(THERE, message, kind=THIRD)

        here.on(KIND, blocks)
        here.on(OTHER, gate)  # in no call of ours
        here.on(600, heard)
        there.send(HERE, b"go", kind=KIND)
        eventually(lambda: here.connections() and to(here).credit_waits > waits)
        there.send(HERE, b"go", kind=OTHER)
        assert gate.entered.wait(10)
        there.send_many(HERE, numbered(50), kind=600)
        assert heard.wait(50) == numbered(50)
        assert here.statistics().scheduler_threads == 3
        gate.open()
        assert [inbox.receive(5)[1] for _ in range(2)] == numbered(2)
        there.flush()


def test_requests_inside_a_handler_need_no_thread_more_while_nothing_else_is_to_do() -> None:
    done = threading.Event()
    with nodes(TWO_THREADS) as (here, there):

        def asks(source: int, data: bytes) -> None:
            for _ in range(200):
                here.request(THERE, b"?", kind=THIRD)
            done.set()

        there.on(THIRD, lambda source, data: data)
        here.on(KIND, asks)
        there.send(HERE, b"go", kind=KIND)
        assert done.wait(30)
        assert here.statistics().scheduler_threads == 2


def test_a_send_inside_a_handler_has_the_patience_of_requests() -> None:
    errors: list[SendTimeout] = []
    config = NodeConfig(send_timeout=25.0, request_timeout=0.3)
    with nodes(config) as (here, there):
        there.inbox(OTHER, capacity=1)

        def handler(source: int, data: bytes) -> None:
            try:
                for message in numbered(3):
                    here.send(THERE, message, kind=OTHER)
            except SendTimeout as error:
                errors.append(error)

        here.on(KIND, handler)
        here.send(THERE, b"connects", kind=THIRD)  # which may take longer than the handler waits
        there.send(HERE, b"go", kind=KIND)
        (error,) = eventually(lambda: errors)
        assert (error.peer, error.kind) == (THERE, OTHER)
        assert error.waited >= 0.3


@pytest.mark.parametrize("small", [False, True])
def test_two_nodes_that_flood_each_other_from_handlers_end_in_timeouts(small: bool) -> None:
    sizes = {"ring_bytes": 64 << 10, "flow_window_bytes": 16 << 10} if small else {}
    config = NodeConfig(request_timeout=0.5, **sizes)  # type: ignore[arg-type]
    timeouts: dict[int, list[SendTimeout]] = {HERE: [], THERE: []}
    stop = threading.Event()
    with nodes(config) as (here, there):

        def flood(node: Node) -> Any:
            def handler(source: int, data: bytes) -> None:
                if stop.is_set():
                    return
                try:
                    for _ in range(2):  # each message makes two
                        node.send(source, data, kind=KIND)
                except SendTimeout as error:
                    timeouts[node.id].append(error)

            return handler

        # Both ways: that may take longer than a handler waits.
        here.send(THERE, b"connects", kind=OTHER)
        there.send(HERE, b"connects", kind=OTHER)
        here.on(KIND, flood(here), capacity=64)
        there.on(KIND, flood(there), capacity=64)
        here.send(THERE, bytes(50), kind=KIND)
        eventually(lambda: timeouts[HERE] or timeouts[THERE], timeout=15)
        stop.set()
        here.flush(10)
        there.flush(10)
        for node in (here, there):
            # A handler that had begun before the stop may have sent one more since.
            eventually(lambda n=node: kind_of(n).pending == 0)  # type: ignore[misc]
            assert kind_of(node).failed == 0
    for error in timeouts[HERE] + timeouts[THERE]:
        assert error.kind == KIND
        assert error.waited >= 0.5


def test_three_nodes_in_a_ring_pass_messages_on_from_handlers() -> None:
    # Fewer tokens than would fill the windows, so that somebody can always move.
    config = SMALL
    rounds, tokens = 30, 8
    done: list[bytes] = []
    with (
        Node(1, config=config) as one,
        Node(2, config=config) as two,
        Node(3, config=config) as three,
    ):
        ring = [one, two, three]
        for node in ring:
            for other in ring:
                if other is not node:
                    node.add_peer(other.id, other.address)

        def passing(node: Node, following: int) -> Any:
            def handler(source: int, data: bytes) -> None:
                left, _, name = data.partition(b" ")
                if left == b"0":
                    done.append(name)
                else:
                    node.send(following, b"%d %s" % (int(left) - 1, name), kind=KIND)

            return handler

        for node, following in ((one, 2), (two, 3), (three, 1)):
            node.on(KIND, passing(node, following), capacity=8)
        for name in range(tokens):
            one.send(2, b"%d %d" % (rounds * 3, name), kind=KIND)
        eventually(lambda: len(done) == tokens, timeout=20)
    assert sorted(map(int, done)) == list(range(tokens))


# --- what is forbidden ----------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["flush", "close"])
def test_a_wait_for_oneself_inside_a_handler_raises_would_block(call: str) -> None:
    errors: list[BaseException] = []
    with nodes() as (here, there):

        def handler(source: int, data: bytes) -> None:
            for node in (there, here):  # its own node, and another one of this process
                try:
                    getattr(node, call)()
                except BaseException as error:
                    errors.append(error)

        there.on(KIND, handler)
        here.send(THERE, b"x", kind=KIND)
        here.flush()
        assert not there.closed
        assert kind_of(there).failed == 0
    assert [type(error) for error in errors] == [WouldBlock, WouldBlock]
    assert all(isinstance(error, RuntimeError) for error in errors)
    assert all(call in str(error) for error in errors)


def test_a_handler_may_look_at_statistics_and_register() -> None:
    heard = Heard()
    seen: list[int] = []
    with nodes() as (here, there):

        def handler(source: int, data: bytes) -> None:
            seen.append(there.statistics().messages_in)
            there.on(OTHER, heard)

        there.on(KIND, handler)
        here.send(THERE, b"x", kind=KIND)
        here.flush()
        here.send(THERE, b"y", kind=OTHER)
        heard.wait(1)
    assert seen == [1]


def test_a_handler_of_a_node_that_computes_beside_is_run() -> None:
    heard = Heard()
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            sum(range(1000))

    computing = [Running(compute) for _ in range(2)]
    with nodes() as (here, there):
        there.on(KIND, heard)
        here.send_many(THERE, numbered(100), kind=KIND)
        heard.wait(100)
    stop.set()
    all_results(computing)
