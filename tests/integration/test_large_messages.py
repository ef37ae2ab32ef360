"""Messages of every size: one frame, many fragments, exactly a ring, and one byte too much."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from antiphon import MessageTooLarge, NodeConfig, SendTimeout
from unit.node.pairs import (
    HERE,
    KIND,
    NORMAL,
    OTHER,
    SMALL,
    THERE,
    Gate,
    Heard,
    Ping,
    Running,
    all_results,
    eventually,
    kind_of,
    nodes,
    numbered,
    pattern,
    place,
    to,
)

pytestmark = pytest.mark.timeout(60)

HEADER = 12
FRAGMENT = HEADER + 8


def around(*limits: int) -> list[int]:
    """Sizes at, just below and just above each limit, as payload and with either header."""
    steps = (-1, 0, 1)
    return sorted(
        {
            max(0, limit - header + step)
            for limit in limits
            for header in (0, HEADER, FRAGMENT)
            for step in steps
        }
    )


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def check_sizes(sizes: Iterable[int], config: NodeConfig, there: NodeConfig | None = None) -> None:
    """Sends one message of each size and compares them, in order, byte by byte."""
    sizes = list(sizes)
    received: list[tuple[int, str]] = []
    with nodes(config, there) as (here, receiver):
        receiver.on(KIND, lambda source, data: received.append((len(data), digest(data))))
        for seed, size in enumerate(sizes):
            here.send(THERE, pattern(size, seed), kind=KIND)
        here.flush(20)
        assert receiver.statistics().protocol_errors == 0
        assert to(here).losses == 0
    assert received == [(size, digest(pattern(size, seed))) for seed, size in enumerate(sizes)]


LIMITS = {
    "the largest frame": 4 << 10,
    "a quarter of the ring": 16 << 10,
    "half of the ring": 32 << 10,
    "the ring": 64 << 10,
    "two rings": 128 << 10,
    "the window": 16 << 10,
    "many rings": 1 << 20,
}


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_messages_around_a_limit_of_small_rings_and_windows_arrive_whole(limit: int) -> None:
    check_sizes(around(limit), SMALL)


@pytest.mark.parametrize("fragments", [1, 2, 3, 16, 100])
def test_messages_that_just_fill_their_fragments_arrive_whole(fragments: int) -> None:
    part = (4 << 10) - FRAGMENT
    check_sizes([fragments * part + step for step in (-1, 0, 1)], SMALL)


DEFAULT_LIMITS = {
    "a quarter of the window and of the ring": 1 << 20,
    "the window and the ring": 4 << 20,
    "two rings": 8 << 20,
}


@pytest.mark.parametrize("limit", DEFAULT_LIMITS.values(), ids=DEFAULT_LIMITS)
def test_messages_around_a_limit_of_the_defaults_arrive_whole(limit: int) -> None:
    check_sizes([limit - HEADER - 1, limit - HEADER, limit - 1, limit, limit + 1], NORMAL)


def test_messages_of_every_small_size_arrive_whole() -> None:
    check_sizes(range(0, 3000, 7), SMALL)


@pytest.mark.parametrize("way", ["small to large", "large to small"])
def test_nodes_with_other_rings_and_windows_understand_each_other(way: str) -> None:
    here, there = (SMALL, NORMAL) if way == "small to large" else (NORMAL, SMALL)
    check_sizes(around(4 << 10, 16 << 10, 64 << 10, 512 << 10), here, there)


def test_a_large_window_behind_a_small_ring_and_the_reverse() -> None:
    small_ring = NodeConfig(ring_bytes=64 << 10, flow_window_bytes=4 << 20)
    check_sizes(around(16 << 10, 64 << 10, 1 << 20), small_ring)
    small_window = NodeConfig(ring_bytes=4 << 20, flow_window_bytes=16 << 10)
    check_sizes(around(4 << 10, 16 << 10, 1 << 20), small_window)


def test_receive_buffers_smaller_than_a_frame_are_no_obstacle() -> None:
    config = NodeConfig(buffer_pool={4096: 4}, ring_bytes=1 << 20, flow_window_bytes=1 << 20)
    check_sizes(around(4 << 10, 16 << 10, 256 << 10, 1 << 20), config)


@pytest.mark.parametrize("capacity", [1, 3, 100_000])
def test_large_messages_go_with_every_capacity(capacity: int) -> None:
    heard = Heard()
    messages = [pattern(size, size) for size in (0, 4000, 5000, 17_000, 70_000, 10, 300_000)]
    with nodes(SMALL) as (here, there):
        there.on(KIND, heard, capacity=capacity)
        for message in messages * 3:
            here.send(THERE, message, kind=KIND)
        here.flush()
    assert heard.data == messages * 3


# --- the limit ------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 1000, 4096, 65536, 1 << 20])
@pytest.mark.parametrize("connected", [False, True])
def test_a_message_of_the_limit_goes_and_one_byte_more_is_refused(
    limit: int, connected: bool
) -> None:
    config = NodeConfig(
        ring_bytes=64 << 10, flow_window_bytes=16 << 10, max_message_bytes=limit, send_timeout=10
    )
    heard = Heard()
    with nodes(config) as (here, there):
        there.on(KIND, heard)
        expected = []
        if connected:
            here.send(THERE, bytes(limit), kind=KIND)
            expected = [bytes(limit)]
        with pytest.raises(MessageTooLarge, match="max_message_bytes") as error:
            here.send(THERE, bytes(limit + 1), kind=KIND)
        assert (error.value.size, error.value.limit) == (limit + 1, limit)
        here.send(THERE, bytes(limit), kind=KIND)
        here.flush()
        assert to(here).losses == 0
    assert heard.data == [*expected, bytes(limit)]


@pytest.mark.parametrize("limit", [1000, 100_000])
@pytest.mark.parametrize("connected", [False, True])
def test_the_limit_of_the_receiver_counts_as_well(limit: int, connected: bool) -> None:
    receiver = NodeConfig(max_message_bytes=limit)
    heard = Heard()
    with nodes(NORMAL, receiver) as (here, there):
        there.on(KIND, heard)
        expected = []
        if connected:
            here.send(THERE, bytes(limit), kind=KIND)
            expected = [bytes(limit)]
        with pytest.raises(MessageTooLarge) as error:
            here.send(THERE, bytes(limit + 1), kind=KIND)
        assert (error.value.size, error.value.limit) == (limit + 1, limit)
        here.send(THERE, bytes(limit), kind=KIND)
        here.flush()
        assert to(here).losses == 0
    assert heard.data == [*expected, bytes(limit)]


@pytest.mark.parametrize("how", ["try_send", "typed"])
def test_the_limit_holds_for_every_way_to_send(how: str) -> None:
    config = NodeConfig(max_message_bytes=1000)
    with nodes(config) as (here, there):
        there.inbox(KIND)
        there.inbox(Ping)
        here.send(THERE, b"connect", kind=KIND)
        here.send(THERE, Ping(1))
        calls: dict[str, Callable[[], object]] = {
            "try_send": lambda: here.try_send(THERE, bytes(1001), kind=KIND),
            "typed": lambda: here.send(THERE, Ping(1, bytes(1000))),
        }
        with pytest.raises(MessageTooLarge) as error:
            calls[how]()
        assert error.value.limit == 1000


def test_the_default_limit_is_64_mib_exactly() -> None:
    limit = 64 << 20
    with nodes() as (here, there):
        inbox = there.inbox(KIND)
        message = bytearray(limit + 1)
        message[0], message[-2] = 1, 2
        with pytest.raises(MessageTooLarge):
            here.send(THERE, message, kind=KIND)
        sending = Running(lambda: here.send(THERE, memoryview(message)[:-1], kind=KIND))
        data = inbox.receive(15)[1]
        sending.result()
        assert data == memoryview(message)[:-1]


# --- several at once ------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [NORMAL, SMALL], ids=["default", "small"])
def test_large_messages_of_several_threads_and_small_ones_do_not_mix(config: NodeConfig) -> None:
    size = config.ring_bytes * 2 + 12_345
    turns = 5 if config is SMALL else 2
    heard = Heard()
    with nodes(config) as (here, there):
        there.on(KIND, heard)

        def send_large(name: int) -> None:
            for turn in range(turns):
                here.send(THERE, pattern(size + name, name * 100 + turn), kind=KIND)

        def send_small(name: int) -> None:
            for number in range(500):
                here.send(THERE, b"%d %d" % (name, number), kind=KIND)

        all_results(
            [Running(lambda n=n: send_large(n)) for n in range(3)]  # type: ignore[misc]
            + [Running(lambda n=n: send_small(n)) for n in range(3)]  # type: ignore[misc]
        )
        here.flush(20)
    small = [data for data in heard.data if len(data) < 100]
    for name in range(3):
        mine = [data for data in small if data.startswith(b"%d " % name)]
        assert mine == [b"%d %d" % (name, number) for number in range(500)]
        large = [digest(data) for data in heard.data if len(data) == size + name]
        assert large == [digest(pattern(size + name, name * 100 + turn)) for turn in range(turns)]
    assert len(heard.data) == 1500 + 3 * turns


def test_small_messages_go_on_between_the_fragments_of_a_large_one() -> None:
    message = bytes(48 << 20)
    heard: list[int] = []
    with nodes(SMALL) as (here, there):
        for kind in (KIND, OTHER):
            there.on(kind, lambda source, data: heard.append(len(data)))
        here.send(THERE, b"warm", kind=OTHER)
        here.flush()

        def overtakes() -> bool:
            heard.clear()
            eventually(lambda: there.statistics().large_bytes_in_use == 0)
            sending = Running(lambda: here.send(THERE, message, kind=KIND))
            eventually(lambda: sending.done or there.statistics().large_bytes_in_use > 0)
            here.send(THERE, b"small", kind=OTHER)
            sending.result(20)
            here.flush(20)
            assert sorted(heard) == [5, len(message)]
            return heard == [5, len(message)]

        # One of five: on a busy machine the large one may be through before the small one is sent.
        assert any(overtakes() for _ in range(5))


def test_large_and_small_messages_of_one_thread_keep_their_order() -> None:
    sizes = [10, 100_000, 20, 5000, 30, 200_000, 4084, 4085, 0, 66_000]
    messages = [pattern(size, seed) for seed, size in enumerate(sizes * 5)]
    heard = Heard()
    with nodes(SMALL) as (here, there):
        there.on(KIND, heard)
        for message in messages:
            here.send(THERE, message, kind=KIND)
        here.flush()
    assert list(map(digest, heard.data)) == list(map(digest, messages))


def test_large_messages_in_both_directions_at_once() -> None:
    heard = {HERE: Heard(), THERE: Heard()}
    with nodes(SMALL) as (here, there):
        for node in (here, there):
            node.on(KIND, heard[node.id])

        def send(node: Any, target: int) -> None:
            for seed in range(10):
                node.send(target, pattern(300_000, seed), kind=KIND)

        all_results([Running(lambda: send(here, THERE)), Running(lambda: send(there, HERE))])
        here.flush()
        there.flush()
    for one in heard.values():
        assert list(map(digest, one.data)) == [digest(pattern(300_000, n)) for n in range(10)]


def test_a_handler_may_send_large_messages() -> None:
    heard = Heard()
    with nodes(SMALL) as (here, there):
        here.on(OTHER, heard)
        there.on(KIND, lambda source, data: there.send(source, data[::-1], kind=OTHER))
        message = pattern(500_000)
        for _ in range(3):
            here.send(THERE, message, kind=KIND)
        heard.wait(3)
    assert heard.data == [message[::-1]] * 3


# --- the budget -----------------------------------------------------------------------------------

BUDGET = dataclasses.replace(SMALL, max_message_bytes=100_000, large_message_bytes=100_000)


def test_large_messages_beyond_the_budget_wait_and_then_arrive() -> None:
    messages = [pattern(100_000, seed) for seed in range(5)]
    with nodes(BUDGET) as (here, there):
        inbox = there.inbox(KIND)
        sending = [
            Running(lambda m=m: here.send(THERE, m, kind=KIND))  # type: ignore[misc]
            for m in messages
        ]
        eventually(lambda: inbox.pending == 1)
        eventually(lambda: sum(one.done for one in sending) == 1)
        assert there.statistics().large_bytes_in_use == 100_000
        got = []
        for count in range(1, 6):
            got.append(digest(inbox.receive(5)[1]))
            assert sum(one.done for one in sending) <= count + 1
        all_results(sending)
        assert sorted(got) == sorted(map(digest, messages))
        eventually(lambda: there.statistics().large_bytes_in_use == 0)


def test_small_messages_pass_while_a_large_one_waits_for_the_budget() -> None:
    with nodes(BUDGET) as (here, there):
        inbox, small = there.inbox(KIND), there.inbox(OTHER)
        here.send(THERE, bytes(100_000), kind=KIND)
        waiting = Running(lambda: here.send(THERE, bytes(100_000), kind=KIND))
        here.send_many(THERE, numbered(100), kind=OTHER)
        assert [small.receive(5)[1] for _ in range(100)] == numbered(100)
        assert not waiting.done
        inbox.receive(5)
        inbox.receive(5)
        waiting.result()


def test_large_answers_come_while_unread_messages_have_all_of_the_budget() -> None:
    wide = dataclasses.replace(BUDGET, large_message_bytes=200_000)
    with nodes(wide) as (here, there):
        there.on(OTHER, lambda source, data: pattern(100_000, 7))
        inboxes = [here.inbox(kind) for kind in (KIND, KIND + 50)]
        for kind in (KIND, KIND + 50):  # one flow may have half
            there.send(HERE, bytes(100_000), kind=kind)
        eventually(lambda: here.statistics().large_bytes_in_use == 200_000)
        assert here.request(THERE, b"", kind=OTHER) == pattern(100_000, 7)
        assert [one.pending for one in inboxes] == [1, 1]


def test_a_large_message_that_waits_too_long_times_out_and_the_next_goes() -> None:
    config = dataclasses.replace(BUDGET, send_timeout=0.3)
    with nodes(config) as (here, there):
        inbox = there.inbox(KIND)
        place(here, bytes(100_000))
        for _ in range(3):
            with pytest.raises(SendTimeout) as error:
                here.send(THERE, bytes(90_000), kind=KIND)
            assert (error.value.peer, error.value.kind) == (THERE, KIND)
            assert error.value.waited >= 0.3
        inbox.receive(5)
        place(here, bytes(80_000))
        assert len(inbox.receive(5)[1]) == 80_000
        eventually(lambda: there.statistics().large_bytes_in_use == 0)


def test_the_budget_is_given_back_when_a_sender_goes_away_in_the_middle() -> None:
    with nodes(BUDGET) as (here, there), Gate() as gate:
        there.on(KIND, gate)
        here.send(THERE, bytes(100_000), kind=KIND)
        assert gate.entered.wait(5)
        waiting = Running(lambda: here.send(THERE, bytes(100_000), kind=KIND))
        eventually(lambda: there.statistics().large_bytes_in_use == 100_000)
        here.close(drain=0)
        waiting.error()
        gate.open()
        eventually(lambda: there.statistics().large_bytes_in_use == 0)


def test_large_messages_that_a_policy_drops_give_the_budget_back() -> None:
    with nodes(BUDGET) as (here, there):
        there.inbox(KIND, capacity=1, when_full="drop_newest")
        for _ in range(20):
            here.send(THERE, bytes(20_000), kind=KIND)
        eventually(lambda: kind_of(there).messages == 20)
        eventually(lambda: kind_of(there).dropped == 19)
        eventually(lambda: there.statistics().large_bytes_in_use <= 20_000)


def test_large_messages_in_send_many_are_counted_in_sent() -> None:
    config = dataclasses.replace(BUDGET, large_message_bytes=200_000, send_timeout=3.0)
    with nodes(config) as (here, there):
        inbox = there.inbox(KIND)
        place(here, b"connects")  # which may take longer than a send waits
        inbox.receive(5)
        messages = list(itertools.repeat(bytes(100_000), 5))
        with pytest.raises(SendTimeout) as error:
            here.send_many(THERE, [b"small", *messages], kind=KIND)
        sent = error.value.sent
        assert 2 <= sent <= 3  # one flow need not get all of the budget
        eventually(lambda: inbox.pending == sent)
        assert inbox.receive(5) == (HERE, b"small")
