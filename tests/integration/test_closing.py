"""Closing: what is drained, who is woken, and what cannot hold it up."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from antiphon import Closed, Node, NodeConfig, Schedule, WouldBlock
from unit.node.pairs import (
    HERE,
    KIND,
    NORMAL,
    OTHER,
    SMALL,
    THERE,
    Gate,
    Heard,
    Running,
    all_results,
    eventually,
    kind_of,
    nodes,
    numbered,
    pattern,
    to,
)

pytestmark = pytest.mark.timeout(60)


# --- what is sent ---------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [NORMAL, SMALL], ids=["default", "small"])
def test_everything_sent_before_close_reaches_the_receiver(config: NodeConfig) -> None:
    heard = Heard()
    with nodes(config) as (here, there):
        there.on(KIND, heard)
        for start in range(0, 10_000, 100):
            here.send_many(THERE, numbered(100, start), kind=KIND)
        here.close()
        assert heard.wait(10_000) == numbered(10_000)


def test_a_message_sent_just_before_close_arrives_every_time() -> None:
    with Node(THERE, config=NORMAL) as there:
        inbox = there.inbox(KIND)
        for number in range(50):
            with Node(100 + number, peers={THERE: there.address}, config=NORMAL) as here:
                here.send(THERE, b"%d" % number, kind=KIND)
            assert inbox.receive(5) == (100 + number, b"%d" % number)


@pytest.mark.parametrize("config", [NORMAL, SMALL], ids=["default", "small"])
def test_large_messages_sent_before_close_arrive_whole(config: NodeConfig) -> None:
    messages = [pattern(3_000_000, seed) for seed in range(3)]
    heard = Heard()
    with nodes(config) as (here, there):
        there.on(KIND, heard)
        for message in messages:
            here.send(THERE, message, kind=KIND)
        here.close()
        assert heard.wait(3) == messages


def test_close_of_the_sender_drains_to_a_receiver_that_is_slow() -> None:
    heard = Heard()

    def slow(source: int, data: bytes) -> None:
        time.sleep(0.0005)  # the handler's work, not a wait of the test
        heard(source, data)

    with nodes() as (here, there):
        there.on(KIND, slow)
        here.send_many(THERE, numbered(500), kind=KIND)
        here.close()
        assert heard.wait(500) == numbered(500)


def test_close_waits_no_longer_than_its_drain_for_a_receiver_that_does_not_read() -> None:
    with nodes() as (here, there):
        there.inbox(KIND, capacity=1)
        here.send(THERE, b"x", kind=KIND)
        began = time.monotonic()
        here.close(drain=0.5)
        assert time.monotonic() - began < 15


def test_an_idle_node_closes_at_once() -> None:
    with nodes() as (here, there):
        there.on(KIND, Heard())
        here.send(THERE, b"x", kind=KIND)
        here.flush()
        for node in (here, there):
            began = time.monotonic()
            node.close(drain=40)
            assert time.monotonic() - began < 15


# --- what is received -----------------------------------------------------------------------------


def slow_handler(
    done: list[bytes], seconds: float, gate: Gate | None = None
) -> Callable[[int, bytes], None]:
    """One that keeps what it has handled; it begins when the gate is open."""

    def handler(source: int, data: bytes) -> None:
        if gate is not None:
            gate(source, data)
        time.sleep(seconds)  # the handler's work, not a wait of the test
        done.append(data)

    return handler


def opened_by_closing(gate: Gate, node: Node) -> Running[None]:
    """Opens the gate once the node is being closed: not before is anything handled."""

    def wait() -> None:
        eventually(lambda: node.closed)
        gate.open()

    return Running(wait)


def test_what_was_received_is_handled_before_close_returns() -> None:
    done: list[bytes] = []
    with nodes() as (here, there):
        there.on(KIND, slow_handler(done, 0.002))
        here.send_many(THERE, numbered(100), kind=KIND)
        eventually(lambda: kind_of(there).messages == 100)
        there.close()
        assert done == numbered(100)


def test_leaving_the_with_statement_drains() -> None:
    done: list[bytes] = []
    with Node(HERE, config=NORMAL) as here:
        with Node(THERE, config=NORMAL) as there:
            here.add_peer(THERE, there.address)
            there.on(KIND, slow_handler(done, 0.002))
            here.send_many(THERE, numbered(50), kind=KIND)
            eventually(lambda: kind_of(there).messages == 50)
        assert done == numbered(50)


def test_a_with_statement_left_by_an_exception_drains_nothing() -> None:
    done: list[bytes] = []
    with Node(HERE, config=NORMAL) as here, Gate() as gate:

        def leave() -> None:
            with Node(THERE, config=NORMAL) as there:
                here.add_peer(THERE, there.address)
                there.on(KIND, slow_handler(done, 0.05, gate))
                here.send_many(THERE, numbered(100), kind=KIND)
                eventually(lambda: kind_of(there).messages == 100)
                opened_by_closing(gate, there)
                raise LookupError("on purpose")

        leaving = Running(leave)
        with pytest.raises(LookupError, match="on purpose"):
            leaving.result(15)
    assert len(done) < 50


def test_close_without_drain_handles_nothing_more() -> None:
    done: list[bytes] = []
    with nodes() as (here, there), Gate() as gate:
        there.on(KIND, slow_handler(done, 0.05, gate))
        here.send_many(THERE, numbered(100), kind=KIND)
        eventually(lambda: kind_of(there).messages == 100)
        opened_by_closing(gate, there)
        began = time.monotonic()
        there.close(drain=0)
        assert time.monotonic() - began < 15
        seen = len(done)
        assert seen < 50
    assert len(done) == seen


def test_drain_ends_when_its_time_is_up() -> None:
    done: list[bytes] = []
    with nodes() as (here, there):
        there.on(KIND, slow_handler(done, 0.05))
        here.send_many(THERE, numbered(500), kind=KIND)  # the work of 25 seconds
        eventually(lambda: kind_of(there).messages == 500)
        began = time.monotonic()
        there.close(drain=0.5)
        assert 0.4 < time.monotonic() - began < 15
    assert 1 <= len(done) < 400


def test_a_handler_may_send_while_its_node_drains() -> None:
    heard = Heard()
    with nodes() as (here, there):

        def answer(source: int, data: bytes) -> None:
            time.sleep(0.002)  # the handler's work, not a wait of the test
            there.send(source, data, kind=OTHER)

        here.on(OTHER, heard)
        there.on(KIND, answer)
        here.send_many(THERE, numbered(50), kind=KIND)
        eventually(lambda: kind_of(there).messages == 50)
        there.close()
        assert heard.wait(50) == numbered(50)


def test_messages_in_an_inbox_can_still_be_read_while_the_node_drains() -> None:
    with nodes() as (here, there), Gate() as gate:
        inbox = there.inbox(KIND)
        there.on(OTHER, gate)
        here.send_many(THERE, numbered(10), kind=KIND)
        here.send(THERE, b"x", kind=OTHER)
        assert gate.entered.wait(5)
        eventually(lambda: inbox.pending == 10)
        closing = Running(there.close)
        eventually(lambda: there.closed)
        got = [inbox.receive(1)[1] for _ in range(10)]
        gate.open()
        closing.result()
    assert got == numbered(10)


# --- who is woken ---------------------------------------------------------------------------------


@pytest.mark.parametrize("drain", [0.0, 5.0])
def test_close_wakes_everybody_who_waits(drain: float) -> None:
    with nodes() as (here, there):
        there.inbox(KIND, capacity=1)
        mine = here.inbox(OTHER)
        here.send(THERE, b"x", kind=KIND)
        waits = to(here).credit_waits
        waiting: dict[str, Running[Any]] = {
            "send": Running(lambda: here.send(THERE, b"y", kind=KIND)),
            "send_many": Running(lambda: here.send_many(THERE, numbered(10), kind=KIND)),
            "receive": Running(mine.receive),
            "receive_many": Running(lambda: mine.receive_many(5)),
            "flush": Running(lambda: here.flush(50)),
        }
        iterating = Running(lambda: list(mine))
        waits_for_end = Running(here.wait)
        eventually(lambda: to(here).credit_waits >= waits + 2)
        began = time.monotonic()
        here.close(drain)
        for name, one in waiting.items():
            assert isinstance(one.error(), Closed), name
        assert iterating.result() == []
        waits_for_end.result()
        assert time.monotonic() - began < 20


def test_a_send_that_waits_is_woken_before_the_drain_is_over() -> None:
    with nodes() as (here, there), Gate() as gate:
        there.inbox(KIND, capacity=1)
        here.on(OTHER, gate)  # holds the drain
        there.send(HERE, b"x", kind=OTHER)
        assert gate.entered.wait(5)
        here.send(THERE, b"x", kind=KIND)
        waits = to(here).credit_waits
        sending = Running(lambda: here.send(THERE, b"y", kind=KIND))
        eventually(lambda: to(here).credit_waits > waits)
        closing = Running(lambda: here.close(drain=25))
        assert isinstance(sending.error(15), Closed)
        assert not closing.done
        gate.open()
        closing.result()


def test_a_large_send_that_waits_is_woken() -> None:
    config = NodeConfig(
        ring_bytes=64 << 10,
        flow_window_bytes=16 << 10,
        max_message_bytes=100_000,
        large_message_bytes=100_000,
    )
    with nodes(config) as (here, there):
        there.inbox(KIND)
        here.send(THERE, bytes(100_000), kind=KIND)
        sending = Running(lambda: here.send(THERE, bytes(100_000), kind=KIND))
        eventually(lambda: there.statistics().large_bytes_in_use == 100_000)
        here.close(drain=0)
        assert isinstance(sending.error(), Closed)


def test_a_handler_that_waits_in_send_is_woken_by_close() -> None:
    errors: list[BaseException] = []
    with nodes() as (here, there):
        there.inbox(KIND, capacity=1)

        def forward(source: int, data: bytes) -> None:
            try:
                for message in numbered(5):
                    here.send(THERE, message, kind=KIND)
            except BaseException as error:
                errors.append(error)

        here.on(OTHER, forward)
        there.send(HERE, b"go", kind=OTHER)
        eventually(lambda: any(info.credit_waits >= 2 for info in here.connections()))
        began = time.monotonic()
        here.close(drain=0.3)
        assert time.monotonic() - began < 15
        assert [type(error) for error in eventually(lambda: errors)] == [Closed]


# --- twice, at once, from inside ------------------------------------------------------------------


def test_a_second_close_does_nothing() -> None:
    with nodes() as (here, there):
        there.on(KIND, Heard())
        here.send(THERE, b"x", kind=KIND)
        here.close()
        here.close()
        here.close(drain=0)
        assert here.closed


def test_several_threads_may_close_at_once_and_all_return() -> None:
    with nodes() as (here, there):
        there.on(KIND, Heard())
        here.send_many(THERE, numbered(1000), kind=KIND)
        all_results([Running(here.close) for _ in range(8)])
        assert here.closed


def test_close_inside_a_handler_raises_and_closes_nothing() -> None:
    errors: list[BaseException] = []
    heard = Heard()
    with nodes() as (here, there):

        def handler(source: int, data: bytes) -> None:
            try:
                there.close()
            except WouldBlock as error:
                errors.append(error)

        there.on(KIND, handler)
        there.on(OTHER, heard)
        here.send(THERE, b"x", kind=KIND)
        here.flush()
        assert not there.closed
        here.send(THERE, b"y", kind=OTHER)
        here.flush()
    assert len(errors) == 1
    assert "another thread" in str(errors[0])
    assert heard.data == [b"y"]


def test_close_while_others_send_as_fast_as_they_can() -> None:
    heard = Heard()
    with nodes() as (here, there):
        there.on(KIND, heard)

        def flood() -> int:
            sent = 0
            try:
                while True:
                    here.send(THERE, b"x", kind=KIND)
                    sent += 1
            except Closed:
                return sent

        flooding = [Running(flood) for _ in range(4)]
        heard.wait(1000)
        here.close()
        sent = sum(all_results(flooding))
        heard.wait(sent)
        assert len(heard.calls) == sent


def test_both_ends_may_close_at_once() -> None:
    for _ in range(10):
        with nodes() as (here, there):
            for node in (here, there):
                node.on(KIND, Heard())
            here.send(THERE, b"x", kind=KIND)
            there.send(HERE, b"x", kind=KIND)
            began = time.monotonic()
            all_results([Running(lambda n=n: n.close(40)) for n in (here, there)])  # type: ignore[misc]
            assert time.monotonic() - began < 15


# --- what cannot hold it up -----------------------------------------------------------------------


def test_a_handler_that_never_returns_does_not_hang_close_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with nodes() as (here, there), Gate() as gate:
        there.on(KIND, gate)
        here.send(THERE, b"x", kind=KIND)
        assert gate.entered.wait(5)
        began = time.monotonic()
        there.close(drain=0.2)
        assert time.monotonic() - began < 15
        warnings = [
            record
            for record in caplog.records
            if record.name.startswith("antiphon.") and record.levelno == logging.WARNING
        ]
        assert any("handler" in record.getMessage() for record in warnings)
        assert str(THERE) in warnings[0].getMessage()


def test_a_handler_that_returns_after_close_harms_nobody() -> None:
    entered, release, returned = threading.Event(), threading.Event(), threading.Event()

    def late(source: int, data: bytes) -> None:
        entered.set()
        release.wait(20)
        returned.set()

    with nodes() as (here, there):
        there.on(KIND, late)
        here.send_many(THERE, numbered(10), kind=KIND)
        assert entered.wait(5)
        there.close(drain=0)
        assert there.statistics().messages_in == 10
    del there
    release.set()
    assert returned.wait(5)
    with nodes() as (here, there):
        there.on(KIND, Heard())
        here.send(THERE, b"x", kind=KIND)
        here.flush()


def test_a_peer_that_is_gone_does_not_hold_close_up() -> None:
    with nodes() as (here, there):
        there.inbox(KIND)
        here.send_many(THERE, numbered(1000), kind=KIND)
        there.close(drain=0)
        began = time.monotonic()
        here.close(drain=40)
        assert time.monotonic() - began < 15


def test_a_connection_that_is_being_tried_does_not_hold_close_up() -> None:
    with nodes() as (here, _):
        here.add_peer(7, "tcp://127.0.0.1:9")
        sending = Running(lambda: here.send(7, b"x", kind=KIND))
        eventually(lambda: any(info.id == 7 for info in here.connections()))
        began = time.monotonic()
        here.close(drain=40)
        assert time.monotonic() - began < 15
        sending.error()


def test_a_closed_node_takes_no_more_peers_and_callbacks() -> None:
    with Node(HERE) as node:
        node.add_peer(THERE, "tcp://127.0.0.1:9")
    calls: list[Callable[[], object]] = [
        lambda: node.add_peer(OTHER, "tcp://127.0.0.1:9"),
        lambda: node.remove_peer(THERE),
        lambda: node.on_connected(lambda peer, reason: None),
        lambda: node.on_disconnected(lambda peer, reason: None),
    ]
    for call in calls:
        with pytest.raises(Closed, match="this node is closed"):
            call()


# --- inboxes --------------------------------------------------------------------------------------


def test_closing_an_inbox_drops_what_came_together_with_a_message_that_was_received() -> None:
    with nodes() as (here, there):
        inbox = there.inbox(KIND)
        here.send_many(THERE, numbered(10), kind=KIND)
        eventually(lambda: inbox.pending == 10)
        assert inbox.receive(5) == (HERE, b"0")
        inbox.close()
        assert inbox.pending == 0
        assert inbox.dropped == 9
        for call in (inbox.receive, lambda: inbox.receive_many(10), lambda: inbox.receive(0)):
            with pytest.raises(Closed):
                call()
        assert list(inbox) == []
        here.flush(timeout=5)
        eventually(lambda: to(here).flows_out[0].in_flight == 0 or not to(here).flows_out)


def test_what_a_closing_inbox_drops_is_counted_also_where_it_still_waits() -> None:
    with nodes() as (here, there):
        inbox = there.inbox(KIND)
        here.send_many(THERE, numbered(5), kind=KIND)
        eventually(lambda: inbox.pending == 5)
        here.send(THERE, b"later", kind=KIND)
        eventually(lambda: inbox.pending == 6)
        inbox.close()
        inbox.close()
        assert (inbox.pending, inbox.dropped) == (0, 6)
        here.flush(timeout=5)


def test_a_flush_that_waits_for_an_inbox_ends_when_that_is_closed() -> None:
    with nodes() as (here, there):
        inbox = there.inbox(KIND)
        here.send_many(THERE, numbered(10), kind=KIND)
        eventually(lambda: inbox.pending == 10)
        inbox.receive(5)
        flushing = Running(lambda: here.flush(timeout=20))
        time.sleep(0.1)  # so that the mark is there
        assert not flushing.done
        inbox.close()
        flushing.result(10)


def test_an_inbox_that_threads_receive_from_can_be_closed_at_any_moment() -> None:
    with nodes() as (here, there):
        for _ in range(30):
            inbox = there.inbox(KIND)

            def take(inbox: Any = inbox) -> int:
                return sum(1 for _ in inbox)

            threads = [Running(take) for _ in range(3)]
            here.send_many(THERE, numbered(2000), kind=KIND)
            eventually(lambda inbox=inbox: inbox._core.received > 0)  # type: ignore[misc]
            inbox.close()
            taken = sum(all_results(threads))
            assert inbox.pending == 0
            assert taken == inbox._core.received
            here.flush(timeout=10)


# --- registrations --------------------------------------------------------------------------------


def test_every_thread_that_closes_a_registration_waits_for_the_running_call() -> None:
    with Gate() as gate, nodes() as (here, there):
        registration = there.on(KIND, gate)
        here.send(THERE, b"x", kind=KIND)
        assert gate.entered.wait(10)
        closing = [Running(registration.close) for _ in range(3)]
        time.sleep(0.3)
        assert not any(one.done for one in closing)
        gate.open()
        all_results(closing)
        registration.close()  # of one that nobody runs any more: at once


def test_closing_waits_for_a_handler_that_has_closed_itself_and_goes_on() -> None:
    with Gate() as gate, nodes() as (here, there):

        def handler(source: int, data: bytes) -> None:
            registration.close()
            registration.close()
            gate(source, data)

        registration = there.on(KIND, handler)
        here.send(THERE, b"x", kind=KIND)
        assert gate.entered.wait(10)
        closing = Running(registration.close)
        time.sleep(0.3)
        assert not closing.done
        gate.open()
        closing.result()


def test_a_handler_may_close_itself_while_another_thread_waits_for_it() -> None:
    with Gate() as gate, nodes() as (here, there):

        def handler(source: int, data: bytes) -> None:
            gate(source, data)
            registration.close()

        registration = there.on(KIND, handler)
        here.send(THERE, b"x", kind=KIND)
        assert gate.entered.wait(10)
        closing = Running(registration.close)
        time.sleep(0.1)
        gate.open()
        closing.result()


def test_handlers_that_close_each_other_do_not_wait_for_each_other() -> None:
    meeting = threading.Barrier(2, timeout=10)
    config = NodeConfig(schedule=Schedule(threads=2))
    with nodes(config) as (here, there):

        def handler(source: int, data: bytes) -> None:
            meeting.wait()
            (second if data == b"first" else first).close()
            ended.release()

        ended = threading.Semaphore(0)
        first, second = there.on(KIND, handler), there.on(OTHER, handler)
        here.send(THERE, b"first", kind=KIND)
        here.send(THERE, b"second", kind=OTHER)
        assert all(ended.acquire(timeout=10) for _ in range(2))
        all_results([Running(first.close), Running(second.close)])


def test_what_a_registration_had_in_hand_is_dropped_when_another_handler_closes_it() -> None:
    def slow(source: int, data: bytes) -> None:
        began.set()
        time.sleep(0.0005)  # many calls in a turn, so that it is between two when it is closed

    began = threading.Event()
    with nodes() as (here, there):
        registration = there.on(KIND, slow)
        there.on(OTHER, lambda source, data: registration.close())
        here.send_many(THERE, numbered(500), kind=KIND)
        assert began.wait(10)
        here.send(THERE, b"x", kind=OTHER)
        here.flush(timeout=10)
