"""From one node to another: every way to send, every way to receive, in each sender's order."""

from __future__ import annotations

import itertools
import threading
from array import array
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon import (
    Batch,
    ConfigError,
    MessageTooLarge,
    Node,
    NodeConfig,
    PeerUnreachable,
    SendTimeout,
    UnknownPeer,
)
from unit.node.pairs import (
    HERE,
    KIND,
    NORMAL,
    OTHER,
    SILENT,
    SMALL,
    THERE,
    THIRD,
    Heard,
    Ping,
    Pong,
    Running,
    all_results,
    eventually,
    extra_nodes,
    fail,
    has_ipv6,
    kind_of,
    nodes,
    numbered,
    pattern,
    place,
    to,
)

pytestmark = pytest.mark.timeout(60)

NOWHERE = "tcp://127.0.0.1:9"  # the discard port, on which nobody listens


def test_a_raw_handler_gets_the_source_and_bytes() -> None:
    heard = Heard()
    with nodes() as (here, there):
        there.on(KIND, heard)
        here.send(THERE, b"raw", kind=KIND)
        here.flush()
    assert heard.calls == [(HERE, b"raw")]
    assert type(heard.calls[0][0]) is int


def test_a_typed_handler_gets_the_source_and_a_message() -> None:
    heard = Heard()
    with nodes() as (here, there):
        there.on(Ping, heard)
        here.send(THERE, Ping(5, b"body"))
        here.flush()
    assert heard.calls == [(HERE, Ping(5, b"body"))]
    assert type(heard.data[0]) is Ping


def test_a_batch_handler_gets_the_source_and_a_batch() -> None:
    heard = Heard()
    with nodes() as (here, there):
        there.on(KIND, heard, batch=True)
        here.send_many(THERE, numbered(10), kind=KIND)
        here.flush()
    assert all(isinstance(data, Batch) for data in heard.data)
    assert [message for batch in heard.data for message in batch] == numbered(10)


@pytest.mark.parametrize("scheme", ["tcp", "tcp6", "unix", "inproc"])
def test_every_transport_carries_small_and_large_messages_both_ways(
    scheme: str, tmp_path: Path
) -> None:
    where = {
        "tcp": ("tcp://127.0.0.1:0", "tcp://127.0.0.1:0"),
        "tcp6": ("tcp://[::1]:0", "tcp://[::1]:0"),
        "unix": (f"unix://{tmp_path}/one.sock", f"unix://{tmp_path}/two.sock"),
        "inproc": ("inproc://one", "inproc://two"),
    }[scheme]
    if scheme == "tcp6" and not has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    messages = [b"", *numbered(100), pattern(3_000_000)]
    heard = {HERE: Heard(), THERE: Heard()}
    with (
        Node(HERE, listen=where[0], config=NORMAL) as here,
        Node(THERE, listen=where[1], config=NORMAL) as there,
    ):
        here.add_peer(THERE, there.address)
        for node in (here, there):
            node.on(KIND, heard[node.id])
        for node, target in ((here, THERE), (there, HERE)):
            for message in messages:
                node.send(target, message, kind=KIND)
            node.flush()
    assert heard[THERE].calls == [(HERE, message) for message in messages]
    assert heard[HERE].calls == [(THERE, message) for message in messages]


def test_kinds_do_not_get_each_others_messages() -> None:
    heard: dict[int, Heard] = {kind: Heard() for kind in range(300, 350)}
    with nodes() as (here, there):
        for kind, handler in heard.items():
            there.on(kind, handler)
        for turn in range(20):
            for kind in heard:
                here.send(THERE, b"%d %d" % (kind, turn), kind=kind)
        here.flush()
    for kind, handler in heard.items():
        assert handler.data == [b"%d %d" % (kind, turn) for turn in range(20)]


def test_both_directions_work_at_once() -> None:
    heard_here, heard_there = Heard(), Heard()
    with nodes() as (here, there):
        here.on(KIND, heard_here)
        there.on(KIND, heard_there)
        sending = [
            Running(lambda: here.send_many(THERE, numbered(5000), kind=KIND)),
            Running(lambda: there.send_many(HERE, numbered(5000), kind=KIND)),
        ]
        all_results(sending)
        here.flush()
        there.flush()
    assert heard_here.data == numbered(5000)
    assert heard_there.data == numbered(5000)


def test_a_node_that_was_dialled_can_answer_without_knowing_an_address() -> None:
    heard = Heard()
    with Node(THERE) as there, Node(HERE, peers={THERE: there.address}) as here:
        here.on(KIND, heard)
        there.on(KIND, lambda source, data: there.send(source, data + b"!", kind=KIND))
        here.send(THERE, b"hello", kind=KIND)
        assert heard.wait(1) == [b"hello!"]


@pytest.mark.parametrize("config", [NORMAL, SMALL], ids=["default", "small"])
@pytest.mark.parametrize("receive", ["handler", "batch", "inbox"])
def test_each_senders_messages_come_in_its_order(receive: str, config: NodeConfig) -> None:
    seen: dict[int, list[int]] = defaultdict(list)
    count = 2000

    def keep(source: int, data: bytes) -> None:
        seen[source].append(int(data))

    def keep_batch(source: int, batch: Batch) -> None:
        seen[source].extend(int(data) for data in batch)

    with Node(THERE, config=config) as there, extra_nodes(3, there) as senders:
        pulling = None
        if receive == "inbox":
            inbox = there.inbox(KIND)

            def pull() -> None:
                for _ in range(3 * count):
                    keep(*inbox.receive(10))

            pulling = Running(pull)
        elif receive == "batch":
            there.on(KIND, keep_batch, batch=True)
        else:
            there.on(KIND, keep)

        def send(node: Node) -> None:
            numbers = iter(range(count))
            while chunk := list(itertools.islice(numbers, 7)):
                if chunk[0] % 2:
                    node.send_many(THERE, [b"%d" % n for n in chunk], kind=KIND)
                else:
                    for number in chunk:
                        node.send(THERE, b"%d" % number, kind=KIND)
            node.flush(10)

        all_results([Running(lambda node=node: send(node)) for node in senders])  # type: ignore[misc]
        if pulling:
            pulling.result()
        assert {node.id: list(range(count)) for node in senders} == seen


def test_each_threads_messages_come_in_its_order() -> None:
    seen: dict[bytes, list[int]] = defaultdict(list)

    def keep(source: int, data: bytes) -> None:
        name, _, number = data.partition(b" ")
        seen[name].append(int(number))

    with nodes() as (here, there):
        there.on(KIND, keep)

        def send(name: int) -> None:
            for number in range(2000):
                here.send(THERE, b"%d %d" % (name, number), kind=KIND)

        all_results([Running(lambda name=name: send(name)) for name in range(4)])  # type: ignore[misc]
        here.flush()
    assert seen == {b"%d" % name: list(range(2000)) for name in range(4)}


def test_the_ways_to_send_keep_one_order_among_them() -> None:
    heard = Heard()
    with nodes() as (here, there):
        there.on(KIND, heard)
        number = itertools.count()
        for _ in range(100):
            here.send(THERE, b"%d" % next(number), kind=KIND)
            here.send_many(THERE, [b"%d" % next(number) for _ in range(5)], kind=KIND)
            three = [b"%d" % next(number) for _ in range(3)]
            offsets = array("i", itertools.accumulate(map(len, three), initial=0))
            here.send_packed(THERE, b"".join(three), offsets, kind=KIND)
            message = b"%d" % next(number)
            eventually(lambda m=message: here.try_send(THERE, m, kind=KIND))  # type: ignore[misc]
        here.flush()
    assert heard.data == numbered(1000)


# --- several targets ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [list, tuple, set, iter, lambda ids: (i for i in ids)])
def test_send_to_several_reaches_each_of_them(make: Callable[[list[int]], Any]) -> None:
    heard = {number: Heard() for number in (2, 3, 4)}
    with Node(2) as two, Node(3) as three, Node(4) as four:
        targets = {node.id: node.address for node in (two, three, four)}
        for node in (two, three, four):
            node.on(KIND, heard[node.id])
            node.on(Ping, heard[node.id])
        with Node(HERE, peers=targets) as here:
            here.send(make([2, 3, 4]), b"raw", kind=KIND)
            here.send(make([2, 3, 4]), Ping(1))
            here.flush()
    assert all(set(map(str, one.data)) == {"b'raw'", str(Ping(1))} for one in heard.values())


def test_send_to_nobody_sends_nothing() -> None:
    with nodes() as (here, _):
        here.send([], b"x", kind=KIND)
        assert here.statistics().messages_out == 0


def test_send_to_several_tries_all_and_names_each_that_failed() -> None:
    heard = Heard()
    config = NodeConfig(connect_timeout=0.3)
    with (
        Node(4) as four,
        Node(HERE, peers={3: NOWHERE, 4: four.address}, config=config) as here,
    ):
        four.on(KIND, heard)
        # To connect may take longer than that.
        eventually(lambda: here.try_send(4, b"before", kind=KIND))
        with pytest.raises(UnknownPeer) as error:
            here.send([2, 3, 4, 5], b"x", kind=KIND)
        here.flush()
    failed = error.value.failed
    assert set(failed) == {2, 3, 5}
    assert isinstance(failed[2], UnknownPeer)
    assert isinstance(failed[3], PeerUnreachable)
    assert isinstance(failed[5], UnknownPeer)
    assert [failed[number].peer for number in (2, 3, 5)] == [2, 3, 5]  # type: ignore[attr-defined]
    assert heard.data == [b"before", b"x"]


def test_send_to_several_waits_for_the_stalled_one_and_serves_the_others() -> None:
    heard = Heard()
    config = NodeConfig(send_timeout=0.3)
    with Node(2) as two, Node(3) as three:
        two.inbox(KIND, capacity=1)
        three.on(KIND, heard)
        peers = {2: two.address, 3: three.address}
        with Node(HERE, peers=peers, config=config) as here:
            for target in peers:
                place(here, b"first", target=target)
            with pytest.raises(SendTimeout) as error:
                here.send([2, 3], b"second", kind=KIND)
            assert set(error.value.failed) == {2}
            assert error.value.peer == 2
            eventually(lambda: heard.data == [b"first", b"second"])


def test_an_error_of_several_targets_can_be_shown_and_logged() -> None:
    with nodes() as (here, _):
        with pytest.raises(UnknownPeer) as error:
            here.send([7, 8], b"x", kind=KIND)
        assert "7" in repr(error.value)
        assert "8" in repr(error.value)
        assert "nodes 7, 8" in str(error.value)
        # Whoever walks through the tree of errors comes to an end.
        assert not any(one.failed for one in error.value.failed.values())


def test_a_message_that_is_too_large_fails_for_each_target() -> None:
    with Node(2) as two, Node(3) as three:
        peers = {2: two.address, 3: three.address}
        with (
            Node(HERE, peers=peers, config=NodeConfig(max_message_bytes=1000)) as here,
            pytest.raises(MessageTooLarge) as error,
        ):
            here.send([2, 3], bytes(1001), kind=KIND)
    assert set(error.value.failed) == {2, 3}


def test_a_mistake_in_the_message_is_raised_as_for_one_target() -> None:
    with nodes() as (here, _):
        with pytest.raises(TypeError, match="bytes"):
            here.send([THERE], "text", kind=KIND)
        with pytest.raises(ConfigError, match="64 to 65535"):
            here.send([THERE], b"x", kind=5)


# --- kinds that the receiver does not know --------------------------------------------------------


def test_an_unknown_kind_is_skipped_and_counted_and_the_stream_stays_in_step() -> None:
    heard = Heard()
    with nodes() as (here, there):
        there.on(KIND, heard)
        for turn in range(100):
            here.send(THERE, b"unknown" * turn, kind=OTHER)
            here.send(THERE, b"%d" % turn, kind=KIND)
            here.send_many(THERE, [b"u"] * 3, kind=THIRD)
        here.flush()
        statistics = there.statistics()
    assert heard.data == numbered(100)
    assert statistics.drops["unknown_kind"] == 400
    assert statistics.protocol_errors == 0
    assert statistics.messages_in == 500


@pytest.mark.parametrize("size", [0, 100, 70_000, 1_000_000, 5_000_000])
def test_an_unknown_kind_of_any_size_is_skipped(size: int) -> None:
    heard = Heard()
    with nodes() as (here, there):
        there.on(KIND, heard)
        for _ in range(5):
            here.send(THERE, bytes(size), kind=OTHER)
        here.send(THERE, b"after", kind=KIND)
        here.flush()
        assert there.statistics().drops["unknown_kind"] == 5
        eventually(lambda: there.statistics().large_bytes_in_use == 0)
    assert heard.data == [b"after"]


def test_an_unknown_kind_never_stops_its_sender() -> None:
    with nodes(SMALL) as (here, there):
        for _ in range(300):
            here.send_many(THERE, [bytes(50)] * 100, kind=OTHER)
        here.flush()
        assert there.statistics().drops["unknown_kind"] == 30_000


def test_a_kind_that_is_registered_later_is_handled_from_then_on() -> None:
    heard = Heard()
    with nodes() as (here, there):
        here.send_many(THERE, numbered(10), kind=KIND)
        eventually(lambda: there.statistics().drops["unknown_kind"] == 10)
        there.on(KIND, heard)
        here.send_many(THERE, numbered(10, 10), kind=KIND)
        heard.wait(10)
        here.send_many(THERE, numbered(10, 20), kind=KIND)
        here.flush()
    assert heard.data == numbered(20, 10)


def test_a_class_that_is_registered_later_is_handled_from_then_on() -> None:
    with nodes() as (here, there):
        here.send(THERE, Pong("early"))
        eventually(lambda: there.statistics().drops["unknown_kind"] == 1)
        inbox = there.inbox(Pong)
        here.send(THERE, Pong("late"))
        assert inbox.receive(5) == (HERE, Pong("late"))


def test_a_hundred_kinds_registered_under_traffic_all_work() -> None:
    heard: dict[int, Heard] = {}
    stop = threading.Event()
    with nodes() as (here, there):
        there.on(KIND, Heard())

        def traffic() -> None:
            while not stop.is_set():
                here.send_many(THERE, numbered(10), kind=KIND)

        flooding = Running(traffic)
        for kind in range(1000, 1100):
            heard[kind] = Heard()
            there.on(kind, heard[kind])
            here.send(THERE, b"%d" % kind, kind=kind)
        stop.set()
        flooding.result()
        for kind, handler in heard.items():
            assert handler.wait(1) == [b"%d" % kind]
        assert there.statistics().drops["unknown_kind"] == 0


# --- to oneself -----------------------------------------------------------------------------------


def test_a_node_can_send_to_itself() -> None:
    heard = Heard()
    with Node(HERE, config=NORMAL) as node:
        node.on(KIND, heard)
        node.on(Ping, heard)
        node.send(HERE, b"raw", kind=KIND)
        node.flush()
        node.send(HERE, Ping(1))
        node.send_many(HERE, numbered(100), kind=KIND)
        node.flush()
    assert heard.data[0] == b"raw"
    assert heard.data.count(Ping(1)) == 1
    assert [data for data in heard.data[1:] if isinstance(data, bytes)] == numbered(100)
    assert {source for source, _ in heard.calls} == {HERE}


def test_a_node_without_a_listener_can_send_to_itself() -> None:
    heard = Heard()
    with Node(listen=None, config=NORMAL) as node:
        node.on(KIND, heard)
        node.send(node.id, b"x", kind=KIND)
        node.flush()
        assert heard.calls == [(node.id, b"x")]


def test_a_large_message_to_oneself_arrives() -> None:
    with Node(HERE, config=SMALL) as node:
        inbox = node.inbox(KIND)
        message = bytes(range(256)) * 4000
        node.send(HERE, message, kind=KIND)
        assert inbox.receive(5) == (HERE, message)


def test_a_handler_can_send_to_its_own_node() -> None:
    heard = Heard()
    with Node(HERE, config=NORMAL) as node:

        def count_down(source: int, data: bytes) -> None:
            heard(source, data)
            if data:
                node.send(HERE, data[1:], kind=KIND)

        node.on(KIND, count_down)
        node.send(HERE, bytes(50), kind=KIND)
        assert heard.wait(51) == [bytes(n) for n in range(50, -1, -1)]


# --- flush ----------------------------------------------------------------------------------------


def test_flush_waits_until_messages_are_handled_and_not_only_received() -> None:
    release = threading.Event()
    done: list[bytes] = []

    def slow(source: int, data: bytes) -> None:
        release.wait(20)
        done.append(data)

    with nodes() as (here, there):
        there.on(KIND, slow)
        here.send_many(THERE, numbered(3), kind=KIND)
        flushing = Running(lambda: here.flush(20))
        eventually(lambda: kind_of(there).messages == 3)
        assert not flushing.done
        assert done == []
        release.set()
        flushing.result()
        assert done == numbered(3)


def test_flush_covers_many_kinds_peers_and_threads() -> None:
    counted = dict.fromkeys((2, 3, 4), 0)
    lock = threading.Lock()

    def counter(number: int) -> Callable[[int, bytes], None]:
        def count(source: int, data: bytes) -> None:
            with lock:
                counted[number] += 1

        return count

    with Node(2) as two, Node(3) as three, Node(4) as four:
        for node in (two, three, four):
            for kind in range(500, 520):
                node.on(kind, counter(node.id))
        peers = {node.id: node.address for node in (two, three, four)}
        with Node(HERE, peers=peers) as here:

            def send(kind: int) -> None:
                for _ in range(50):
                    here.send([2, 3, 4], b"x", kind=kind)

            all_results([Running(lambda k=k: send(k)) for k in range(500, 520)])  # type: ignore[misc]
            here.flush(10)
            assert counted == {2: 1000, 3: 1000, 4: 1000}


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_flush_gives_up_in_time_with_the_facts(timeout: float) -> None:
    with nodes() as (here, there):
        there.inbox(KIND)
        here.send(THERE, b"never read", kind=KIND)
        with pytest.raises(SendTimeout, match="node 2") as error:
            here.flush(timeout)
        assert error.value.peer == THERE
        assert error.value.waited >= timeout


def test_flush_with_a_stalled_inbox_ends_when_it_is_read() -> None:
    with nodes() as (here, there):
        inbox = there.inbox(KIND)
        other = Heard()
        there.on(OTHER, other)
        here.send_many(THERE, numbered(10), kind=KIND)
        here.send(THERE, b"x", kind=OTHER)
        flushing = Running(lambda: here.flush(20))
        other.wait(1)
        for _ in range(9):
            inbox.receive(5)
        assert not flushing.done
        inbox.receive(5)
        flushing.result()


def test_flush_ends_when_the_stalled_inbox_is_closed() -> None:
    with nodes() as (here, there):
        inbox = there.inbox(KIND)
        here.send_many(THERE, numbered(10), kind=KIND)
        flushing = Running(lambda: here.flush(20))
        eventually(lambda: inbox.pending == 10)
        inbox.close()
        flushing.result()


def test_flush_does_not_wait_for_what_comes_after_it() -> None:
    with nodes(SILENT) as (here, there):
        inbox = there.inbox(KIND)
        here.send(THERE, b"before", kind=KIND)
        eventually(lambda: inbox.pending == 1)
        reads = to(there, HERE).reads
        flushing = Running(lambda: here.flush(20))
        eventually(lambda: to(there, HERE).reads > reads)  # the question has come
        stop = threading.Event()

        def more() -> None:
            while not stop.is_set():
                here.try_send(THERE, b"after", kind=KIND)

        sending = Running(more)
        inbox.receive(5)
        flushing.result()
        stop.set()
        sending.result()


def test_many_threads_may_flush_at_once() -> None:
    heard = Heard()
    with nodes() as (here, there):
        there.on(KIND, heard)
        counts: list[tuple[int, int]] = []

        def send_and_flush(name: int) -> None:
            for turn in range(20):
                here.send(THERE, b"%d" % name, kind=KIND)
                here.flush(10)
                counts.append((heard.data.count(b"%d" % name), turn + 1))

        all_results([Running(lambda n=n: send_and_flush(n)) for n in range(8)])  # type: ignore[misc]
    assert all(handled == sent for handled, sent in counts)


def test_dropped_failed_and_unknown_messages_count_as_handled() -> None:
    with nodes() as (here, there):
        there.on(KIND, fail)
        there.inbox(OTHER, capacity=1, when_full="drop_newest").close()
        here.send_many(THERE, numbered(10), kind=KIND)
        here.send_many(THERE, numbered(10), kind=OTHER)
        here.flush(5)
        assert kind_of(there).failed == 10


def test_flush_covers_a_message_to_a_handler_that_the_sender_had_not_heard_of() -> None:
    # The receiver registers and the sender sends before the news has reached it.
    with nodes() as (here, there):
        there.on(KIND, Heard())
        here.send(THERE, b"connect", kind=KIND)
        here.flush()
        early: list[int] = []
        for kind in range(1000, 1030):
            release = threading.Event()
            handled = threading.Event()

            def slow(source: int, data: bytes) -> None:
                release.wait(0.02)  # noqa: B023
                handled.set()  # noqa: B023

            there.on(kind, slow)
            here.send(THERE, b"x", kind=kind)
            here.flush(5)
            if not handled.is_set():
                early.append(kind)
            release.set()
        assert early == []


def test_flush_ends_although_the_last_message_is_received_at_the_same_moment() -> None:
    with nodes() as (here, there):
        inbox = there.inbox(KIND)
        here.send(THERE, b"warm", kind=KIND)
        inbox.receive(5)
        for _ in range(1500):
            here.send(THERE, b"x", kind=KIND)
            flushing = Running(lambda: here.flush(8))
            while not inbox.pending:
                pass
            inbox.receive(0)
            flushing.result()


def test_flush_of_large_messages_waits_for_them() -> None:
    heard = Heard()
    with nodes(SMALL) as (here, there):
        there.on(KIND, heard)
        here.send(THERE, bytes(500_000), kind=KIND)
        here.flush()
        assert len(heard.data) == 1
        assert to(here).large_out == 1
