"""Statistics: what was sent is what is counted, on both sides, by connection, flow and kind."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from array import array
from typing import Any

import pytest

from antiphon import ConnectionInfo, Node, NodeConfig, NodeStatistics
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
    Running,
    all_results,
    eventually,
    fail,
    free_address,
    go_on,
    kind_of,
    nodes,
    numbered,
    python_running,
    stop,
    to,
)

pytestmark = pytest.mark.timeout(60)

HEADER = 12


def by_kind(flows: Any) -> dict[int, Any]:
    return {flow.kind: flow for flow in flows}


# --- messages and bytes ---------------------------------------------------------------------------


def test_single_messages_are_counted_with_their_bytes_on_both_sides() -> None:
    sizes = [0, 1, 100, 1000, 50_000]
    with nodes() as (here, there):
        there.on(KIND, Heard())
        for size in sizes:
            here.send(THERE, bytes(size), kind=KIND)
        here.flush()
        sent, received = here.statistics(), there.statistics()
        wire = sum(sizes) + HEADER * len(sizes)
        assert (sent.messages_out, sent.bytes_out) == (len(sizes), wire)
        assert (received.messages_in, received.bytes_in) == (len(sizes), wire)
        assert (sent.messages_in, received.messages_out) == (0, 0)
        assert (kind_of(there).messages, kind_of(there).bytes) == (len(sizes), wire)


@pytest.mark.parametrize("how", ["send", "send_many", "send_packed", "try_send", "large"])
@pytest.mark.parametrize("config", [NORMAL, SMALL], ids=["default", "small"])
def test_what_goes_out_here_comes_in_there(config: NodeConfig, how: str) -> None:
    count = 5 if how == "large" else 3000
    size = config.ring_bytes if how == "large" else 30
    messages = [bytes(size)] * count
    with nodes(config) as (here, there):
        there.on(KIND, Heard())
        here.send(THERE, bytes(size), kind=KIND)
        if how in ("send", "large"):
            for message in messages:
                here.send(THERE, message, kind=KIND)
        elif how == "try_send":
            for message in messages:
                eventually(lambda m=message: here.try_send(THERE, m, kind=KIND))  # type: ignore[misc]
        elif how == "send_many":
            here.send_many(THERE, messages, kind=KIND)
        else:
            offsets = array("q", range(0, size * count + 1, size))
            here.send_packed(THERE, b"".join(messages), offsets, kind=KIND)
        here.flush()
        sent, received = here.statistics(), there.statistics()
    assert sent.messages_out == received.messages_in == count + 1
    assert sent.bytes_out == received.bytes_in
    assert sent.bytes_out >= (count + 1) * size


def test_every_kind_is_counted_on_its_own() -> None:
    counts = {KIND: 3, OTHER: 50, THIRD: 700}
    with nodes() as (here, there):
        for kind in counts:
            there.on(kind, Heard())
        for kind, count in counts.items():
            for _ in range(count):
                here.send(THERE, bytes(kind), kind=kind)
        here.flush()
        out, into = by_kind(to(here).flows_out), by_kind(to(there, HERE).flows_in)
        for kind, count in counts.items():
            wire = count * (kind + HEADER)
            assert (out[kind].messages, out[kind].bytes) == (count, wire)
            assert (into[kind].messages, into[kind].bytes) == (count, wire)
            assert (kind_of(there, kind).messages, kind_of(there, kind).bytes) == (count, wire)
            assert out[kind].flow == into[kind].flow != 0


def test_every_connection_is_counted_on_its_own() -> None:
    with Node(2) as two, Node(3) as three:
        for node in (two, three):
            node.on(KIND, Heard())
        with Node(HERE, peers={2: two.address, 3: three.address}) as here:
            for _ in range(10):
                here.send(2, b"x", kind=KIND)
            for _ in range(30):
                here.send(3, b"x", kind=KIND)
            here.flush()
            assert (to(here, 2).messages_out, to(here, 3).messages_out) == (10, 30)
            assert (to(two, HERE).messages_in, to(three, HERE).messages_in) == (10, 30)
            assert here.statistics().messages_out == 40


def test_the_sums_are_those_of_the_parts() -> None:
    with nodes() as (here, there):
        for node in (here, there):
            node.on(KIND, Heard())
            node.on(OTHER, Heard())
        for kind in (KIND, OTHER, THIRD):
            here.send_many(THERE, numbered(20), kind=kind)
            there.send_many(HERE, numbered(30), kind=kind)
        here.flush()
        there.flush()
        for node in (here, there):
            whole = node.statistics()
            (only,) = whole.connections
            assert (
                whole.messages_out == only.messages_out == sum(f.messages for f in only.flows_out)
            )
            assert whole.messages_in == only.messages_in == sum(f.messages for f in only.flows_in)
            assert whole.bytes_out == only.bytes_out == sum(f.bytes for f in only.flows_out)
            assert whole.bytes_in == only.bytes_in == sum(f.bytes for f in only.flows_in)
        assert here.statistics().messages_out == 60
        assert there.statistics().messages_out == 90


def test_kinds_that_the_receiver_does_not_know_are_counted_as_kind_0() -> None:
    with nodes() as (here, there):
        here.send_many(THERE, numbered(7), kind=OTHER)
        eventually(lambda: there.statistics().drops["unknown_kind"] == 7)
        assert by_kind(to(here).flows_out)[0].messages == 7
        assert by_kind(to(there, HERE).flows_in)[0].messages == 7


def test_a_node_that_sends_to_itself_counts_both_ways() -> None:
    with Node(HERE, config=NORMAL) as node:
        node.on(KIND, Heard())
        node.send_many(HERE, numbered(10), kind=KIND)
        node.flush()
        (only,) = node.connections()
        assert (only.id, only.messages_out, only.messages_in) == (HERE, 10, 10)


def test_large_messages_are_counted_apart_too() -> None:
    with nodes(SMALL) as (here, there):
        there.on(KIND, Heard())
        for _ in range(3):
            here.send(THERE, bytes(100_000), kind=KIND)
        here.send(THERE, b"small", kind=KIND)
        here.flush()
        assert (to(here).large_out, to(there, HERE).large_in) == (3, 3)
        assert (to(here).messages_out, to(there, HERE).messages_in) == (4, 4)


# --- depths ---------------------------------------------------------------------------------------


def test_the_depth_of_a_queue_is_what_waits_in_it() -> None:
    with nodes() as (here, there):
        inbox = there.inbox(KIND, capacity=500)
        here.send_many(THERE, [bytes(100)] * 50, kind=KIND)
        # They are counted as received before they are in the queue.
        eventually(lambda: kind_of(there).pending == 50)
        eventually(lambda: kind_of(there).pending_bytes >= 5000)
        counted = kind_of(there)
        assert (counted.messages, counted.pending, counted.capacity) == (50, 50, 500)
        inbox.receive_many(50, 5)
        counted = kind_of(there)
        assert (counted.pending, counted.pending_bytes) == (0, 0)
        assert counted.messages == 50


def test_what_is_in_flight_is_what_is_not_handled() -> None:
    with nodes() as (here, there):
        inbox = there.inbox(KIND, capacity=10)
        for message in numbered(8):
            here.send(THERE, message, kind=KIND)
        flow = by_kind(to(here).flows_out)[KIND]
        assert flow.window == NORMAL.flow_window_bytes
        assert 0.7 * flow.window <= flow.in_flight <= flow.window
        for _ in range(8):
            inbox.receive(5)
        eventually(lambda: by_kind(to(here).flows_out)[KIND].in_flight <= 0.6 * flow.window)


def test_memory_in_use_falls_back_to_nothing() -> None:
    with nodes() as (here, there):
        inbox = there.inbox(KIND)
        for _ in range(500):
            here.send(THERE, bytes(1000), kind=KIND)
        here.send(THERE, bytes(3_000_000), kind=KIND)
        eventually(lambda: inbox.pending == 501)
        busy = there.statistics()
        assert 500_000 <= busy.buffer_bytes <= busy.buffer_bytes_bound
        assert busy.large_bytes_in_use == 3_000_000
        assert 0 < busy.window_bytes_granted <= NORMAL.receive_bytes
        inbox.receive_many(501, 5)
        eventually(lambda: there.statistics().large_bytes_in_use == 0)
        eventually(lambda: there.statistics().buffer_bytes < 300_000)


def test_the_ring_shows_what_a_stopped_peer_has_not_read() -> None:
    receiver = """
import antiphon
config = antiphon.NodeConfig(heartbeat=20, socket_buffer_bytes=256 << 10)
node = antiphon.Node(2, config=config).start()
inbox = node.inbox(200)
print(node.address, flush=True)
for _ in inbox:
    pass
"""
    config = NodeConfig(heartbeat=20, socket_buffer_bytes=256 << 10)
    with python_running(receiver) as stopped:
        assert stopped.stdout is not None
        address = stopped.stdout.readline().strip()
        with Node(HERE, peers={THERE: address}, config=config) as here:
            here.send(THERE, b"x", kind=KIND)
            here.flush()
            assert to(here).ring_used == 0
            stop(stopped.pid)
            while here.try_send(THERE, bytes(10_000), kind=KIND):
                pass
            info = to(here)
            assert info.ring_bytes == config.ring_bytes
            assert 100_000 < info.ring_used <= info.ring_bytes
            go_on(stopped.pid)
            here.flush(10)
            assert to(here).ring_used == 0


# --- waits, drops and handlers --------------------------------------------------------------------


def test_waits_for_credit_are_counted_by_flow() -> None:
    with nodes() as (here, there), Gate() as gate:
        there.on(KIND, gate, capacity=1)
        there.on(OTHER, Heard())
        here.send(THERE, b"x", kind=OTHER)
        here.send(THERE, b"x", kind=KIND)
        before = by_kind(to(here).flows_out)
        sending = Running(lambda: here.send(THERE, b"y", kind=KIND))
        eventually(lambda: to(here).credit_waits > sum(flow.waits for flow in before.values()))
        after = by_kind(to(here).flows_out)
        assert after[KIND].waits == before[KIND].waits + 1
        assert after[OTHER].waits == before[OTHER].waits
        gate.open()
        sending.result()


def test_drops_are_counted_by_their_reason(caplog: pytest.LogCaptureFixture) -> None:
    with nodes() as (here, there):
        there.on(KIND, fail)
        there.inbox(OTHER, capacity=5, when_full="drop_newest")
        for _ in range(3):
            here.send(THERE, b"x", kind=THIRD)
        for _ in range(4):
            here.send(THERE, b"x", kind=KIND)
        for _ in range(12):
            here.send(THERE, b"x", kind=OTHER)
        eventually(lambda: there.statistics().messages_in == 19)
        eventually(lambda: kind_of(there).handled == 4)
        # A message is counted as received before it is let in, or not.
        eventually(lambda: sum(there.statistics().drops.values()) >= 14)
        assert dict(there.statistics().drops) == {
            "unknown_kind": 3,
            "handler_failed": 4,
            "queue_full": 7,
            "unconfirmed": 0,
        }
        assert sum(here.statistics().drops.values()) == 0
    assert len(caplog.records) == 4


def test_drops_do_not_fall_when_a_registration_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with nodes() as (here, there):
        failing = there.on(KIND, fail)
        full = there.inbox(OTHER, capacity=5, when_full="drop_newest")
        for _ in range(4):
            here.send(THERE, b"x", kind=KIND)
        for _ in range(12):
            here.send(THERE, b"x", kind=OTHER)
        eventually(lambda: kind_of(there).handled == 4 and full.dropped == 7)
        before = dict(there.statistics().drops)
        failing.close()
        full.close()
        after = dict(there.statistics().drops)
    assert len(caplog.records) == 4
    assert after["handler_failed"] >= before["handler_failed"] == 4
    assert after["queue_full"] >= before["queue_full"] == 7


def test_counters_can_still_be_read_after_the_node_was_closed() -> None:
    with nodes() as (here, there):
        inbox = there.inbox(OTHER, capacity=5, when_full="drop_newest")
        there.on(KIND, Heard())
        here.send_many(THERE, numbered(10), kind=KIND)
        for _ in range(12):
            here.send(THERE, b"x", kind=OTHER)
        eventually(lambda: inbox.dropped == 7 and kind_of(there).handled == 10)
        before = there.statistics()
        there.close()
        after = there.statistics()
    assert (after.messages_in, after.bytes_in) == (before.messages_in, before.bytes_in)
    assert after.drops["queue_full"] == 7
    assert {entry.kind: entry.messages for entry in after.kinds} == {KIND: 10, OTHER: 12}


def test_the_time_in_handlers_and_their_calls_are_counted() -> None:
    def slow(source: int, data: bytes) -> None:
        time.sleep(0.03)  # the handler's work, not a wait of the test

    with nodes() as (here, there):
        there.on(KIND, slow)
        there.on(OTHER, lambda source, batch: None, batch=True)
        here.send_many(THERE, numbered(5), kind=KIND)
        here.send_many(THERE, numbered(100), kind=OTHER)
        here.flush()
        # The time is added when the slice ends, and a flush does not wait for that.
        eventually(lambda: kind_of(there).handler_ns >= 0.15e9)
        eventually(lambda: kind_of(there, OTHER).handler_ns > 0)
        eventually(lambda: there.statistics().slices >= 2)
        slow_kind, batch_kind = kind_of(there), kind_of(there, OTHER)
        whole = there.statistics()
    assert (slow_kind.handled, slow_kind.calls, slow_kind.failed) == (5, 5, 0)
    assert slow_kind.handler_ns < 15e9
    assert (batch_kind.handled, batch_kind.calls) == (100, 1)
    assert batch_kind.handler_ns < slow_kind.handler_ns
    assert whole.scheduler_threads >= 1


def test_a_peer_tells_how_long_its_handler_has_been_running() -> None:
    config = NodeConfig(heartbeat=0.3)
    with nodes(config) as (here, there), Gate() as gate:
        there.on(KIND, gate)
        here.send(THERE, b"x", kind=KIND)
        assert gate.entered.wait(5)
        eventually(lambda: to(here).oldest_work > 0.5)
        gate.open()
        eventually(lambda: to(here).oldest_work == 0.0)


# --- connections ----------------------------------------------------------------------------------


def test_a_connection_tells_who_and_where_its_peer_is() -> None:
    with nodes() as (here, there):
        (before,) = here.connections()
        assert (before.sending, before.receiving, before.ring_bytes) == (False, False, 0)
        assert (before.connects, before.losses) == (0, 0)
        there.on(KIND, Heard())
        here.on(KIND, Heard())
        here.send(THERE, b"x", kind=KIND)
        there.send(HERE, b"x", kind=KIND)
        eventually(lambda: to(here).receiving)
        (info,) = here.connections()
        assert isinstance(info, ConnectionInfo)
        assert (info.id, info.address) == (THERE, there.address)
        assert (info.sending, info.receiving, info.connects, info.losses) == (True, True, 1, 0)
        assert info.incarnation != 0
        assert info.ring_bytes == NORMAL.ring_bytes


def test_system_calls_are_fewer_than_messages() -> None:
    with nodes() as (here, there):
        there.on(KIND, Heard())
        for message in numbered(20_000):
            here.send(THERE, message, kind=KIND)
        here.flush()
        info, other = to(here), to(there, HERE)
        assert 1 <= info.writes + info.inline_writes < 10_000
        assert 1 <= other.reads < 10_000


def test_a_reconnect_is_counted_and_the_peer_has_another_incarnation() -> None:
    lost = threading.Event()
    with Node(HERE, config=NORMAL) as here:
        here.on_disconnected(lambda peer, reason: lost.set())
        incarnations = set()
        address = free_address()
        for turn in range(3):
            lost.clear()
            with Node(THERE, listen=address, config=NORMAL) as there:
                here.add_peer(THERE, address)
                there.on(KIND, Heard())
                here.send(THERE, b"x", kind=KIND)
                here.flush()
                info = to(here)
                incarnations.add(info.incarnation)
                assert (info.connects, info.reconnects, info.losses) == (turn + 1, turn, turn)
                assert here.statistics().reconnects == turn
            assert lost.wait(5)
        assert len(incarnations) == 3
        assert not to(here).sending
        assert to(here).losses == 3
        assert to(here).messages_out == 3


def test_counters_of_a_connection_do_not_fall_when_it_is_made_again() -> None:
    with Node(HERE, config=NORMAL) as here:
        address = free_address()
        for turn in range(1, 4):
            with Node(THERE, listen=address, config=NORMAL) as there:
                here.add_peer(THERE, address)
                there.on(KIND, Heard())
                eventually(lambda: not to(here).sending)
                here.send_many(THERE, numbered(100), kind=KIND)
                here.flush()
                assert to(here).messages_out == 100 * turn
                assert by_kind(to(here).flows_out)[KIND].messages == 100 * turn


def test_messages_that_died_with_a_connection_are_counted_as_unconfirmed() -> None:
    receiver = """
import antiphon
node = antiphon.Node(2).start()
inbox = node.inbox(200)
print(node.address, flush=True)
import time
time.sleep(60)
"""
    lost: list[str] = []
    with python_running(receiver) as killed:
        assert killed.stdout is not None
        address = killed.stdout.readline().strip()
        with Node(HERE, peers={THERE: address}, config=NORMAL) as here:
            here.on_disconnected(lambda peer, reason: lost.append(reason))
            here.send_many(THERE, numbered(100), kind=KIND)
            killed.kill()
            eventually(lambda: lost)
            assert here.statistics().drops["unconfirmed"] == 100
            assert to(here).unconfirmed_messages == 100
            assert to(here).losses == 1
            assert "100 messages" in lost[0]


def test_handled_messages_are_not_unconfirmed_when_the_peer_closes() -> None:
    with nodes() as (here, there):
        there.on(KIND, Heard())
        here.send_many(THERE, numbered(100), kind=KIND)
        here.flush()
        there.close()
        eventually(lambda: to(here).losses == 1)
        assert to(here).unconfirmed_messages == 0


# --- looking --------------------------------------------------------------------------------------


def test_statistics_are_frozen_pictures() -> None:
    with nodes() as (here, there):
        there.on(KIND, Heard())
        here.send(THERE, b"x", kind=KIND)
        here.flush()
        picture = here.statistics()
        assert isinstance(picture, NodeStatistics)
        for part, name in (
            (picture, "messages_out"),
            (picture.connections[0], "messages_out"),
            (picture.connections[0].flows_out[0], "messages"),
            (there.statistics().kinds[0], "messages"),
        ):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(part, name, 0)
        here.send(THERE, b"y", kind=KIND)
        assert picture.messages_out == 1


def test_the_drops_of_a_picture_cannot_be_changed() -> None:
    with Node(config=NORMAL) as node:
        drops: Any = node.statistics().drops
        with pytest.raises(TypeError):
            drops["unknown_kind"] = 5


def test_several_threads_may_look_while_traffic_runs() -> None:
    stop = threading.Event()
    heard = Heard()
    with nodes() as (here, there):
        there.on(KIND, heard)
        there.on(OTHER, Heard())

        def traffic(kind: int) -> int:
            sent = 0
            while not stop.is_set():
                here.send_many(THERE, numbered(20), kind=kind)
                sent += 20
            return sent

        def look(node: Node) -> int:
            last_in = last_out = looks = 0
            while not stop.is_set():
                now = node.statistics()
                assert now.messages_in >= last_in
                assert now.messages_out >= last_out
                last_in, last_out = now.messages_in, now.messages_out
                looks += 1
            return looks

        sending = [Running(lambda k=k: traffic(k)) for k in (KIND, OTHER)]  # type: ignore[misc]
        looking = [Running(lambda n=n: look(n)) for n in (here, there, here, there)]  # type: ignore[misc]
        eventually(lambda: there.statistics().messages_in > 20_000)
        stop.set()
        sent = sum(all_results(sending))
        assert min(all_results(looking)) >= 1
        here.flush()
        assert here.statistics().messages_out == there.statistics().messages_in == sent


def test_looking_is_quick_while_a_handler_hangs() -> None:
    with nodes() as (here, there), Gate() as gate:
        there.on(KIND, gate)
        here.send(THERE, b"x", kind=KIND)
        assert gate.entered.wait(5)
        began = time.monotonic()
        for _ in range(20):
            there.statistics()
            there.connections()
        assert time.monotonic() - began < 10


def test_looking_while_the_node_closes_neither_hangs_nor_raises() -> None:
    for _ in range(5):
        with nodes() as (here, there):
            there.on(KIND, Heard())
            here.send(THERE, b"x", kind=KIND)
            stop = threading.Event()

            def look() -> None:
                for _ in itertools.takewhile(lambda _: not stop.is_set(), itertools.count()):  # noqa: B023
                    there.statistics()
                    there.connections()

            looking = [Running(look) for _ in range(3)]
            there.close()
            stop.set()
            all_results(looking)
