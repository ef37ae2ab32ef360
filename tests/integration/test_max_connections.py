"""``max_connections``: connections are given back and opened again, and nothing is lost by it.

A hub knows more peers than it may stay connected with. Whatever passes between them is booked on
both sides (crowds.py). The limit is soft, so nothing here asserts it at a given moment, only that
it is come to once there is peace.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import threading
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from antiphon import (
    ConfigError,
    Node,
    NodeConfig,
    PeerUnreachable,
    RequestTimeout,
    SendTimeout,
)
from antiphon.testing import Child, Collected, Control, eventually
from integration.asking import Slow
from integration.crowds import (
    FIRST,
    HUB,
    LARGE,
    WAYS,
    Books,
    by_many,
    by_request,
    comes_to,
    connected,
    crowd,
    dismissals,
    limited,
    losses,
    undisturbed,
)
from integration.tls_tools import Authority
from unit.node.pairs import KIND, OTHER, THIRD, Gate, Running, all_results, stop

pytestmark = pytest.mark.timeout(120)

_names = itertools.count(1)


# --- the setting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, True, False, 1.5, "3", b"3", [3], 2**70])
def test_a_limit_that_makes_no_sense_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="max_connections") as refused:
        Node(HUB, config=NodeConfig(max_connections=value))
    assert refused.value.setting == "max_connections"
    assert refused.value.value == value


@pytest.mark.parametrize("value", [None, 1, 2, 65535])
def test_every_limit_from_one_on_and_none_work(value: int | None) -> None:
    assert NodeConfig().max_connections is None
    with crowd(2, value) as (hub, others, books):
        assert hub.config.max_connections == value
        for other in others:
            books.send(hub, other.id)
        undisturbed(hub, others, books)


def test_the_limit_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_NODE_MAX_CONNECTIONS", "7")
    assert NodeConfig.load().max_connections == 7
    monkeypatch.setenv("ANTIPHON_NODE_MAX_CONNECTIONS", "none")
    assert NodeConfig.load().max_connections is None
    monkeypatch.setenv("ANTIPHON_NODE_MAX_CONNECTIONS", "0")
    with pytest.raises(ConfigError, match="max_connections"):
        NodeConfig.load()


def test_without_a_limit_nobody_is_dismissed() -> None:
    with crowd(20, None) as (hub, others, books):
        for _ in range(3):
            for other in others:
                books.send(hub, other.id)
                books.send(other, HUB)
        undisturbed(hub, others, books)
        assert len(connected(hub)) == 20
        assert dismissals(hub, *others) == 0
        assert not books.ended.items


# --- who goes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["asks", "is asked"])
def test_the_one_used_least_recently_goes(way: str) -> None:
    with crowd(5, 3) as (hub, others, books):

        def use(each: int) -> None:
            if way == "asks":
                hub.request(others[each].id, b"x", kind=OTHER)
            else:
                others[each].request(HUB, b"x", kind=OTHER)

        def gone() -> list[int]:
            return [peer - FIRST for node, peer, _ in books.ended.items if node == HUB]

        for each in (0, 1, 2, 0, 3):
            use(each)
        eventually(lambda: gone() == [1], 10, "the second was used least recently")
        for each in (2, 0, 4):
            use(each)
        eventually(lambda: gone() == [1, 3], 10, "then the fourth")
        comes_to(hub, 3)
        assert connected(hub) == {FIRST, FIRST + 2, FIRST + 4}
        assert dismissals(hub) == 2
        undisturbed(hub, others, books)


def test_the_busy_stays_while_others_come_and_go() -> None:
    with crowd(12, 2) as (hub, others, books):
        busy = others[0].id
        end = time.monotonic() + 60
        while dismissals(hub) <= 50:
            assert time.monotonic() < end, "too few were dismissed"
            for other in others[1:]:
                hub.request(busy, b"x", kind=OTHER)
                hub.request(other.id, b"x", kind=OTHER)
        assert busy not in {peer for node, peer, _ in books.ended.items if node == HUB}
        undisturbed(hub, others, books)


def test_both_ends_say_that_it_was_a_dismissal() -> None:
    with crowd(2, 1) as (hub, others, books):
        for other in others:
            hub.request(other.id, b"x", kind=OTHER)
        ended = books.ended.first(2)
        assert {(node, peer) for node, peer, _ in ended} == {(HUB, FIRST), (FIRST, HUB)}
        assert dismissals(hub) == 1
        assert dismissals(*others) == 0
        undisturbed(hub, others, books)


@pytest.mark.parametrize("ways", ["receives", "sends", "both"])
@pytest.mark.parametrize("limit", [1, 4])
def test_the_limit_is_come_to_and_kept(ways: str, limit: int) -> None:
    with crowd(16, limit) as (hub, others, books):
        for _ in range(4):
            for other in others:
                if ways != "receives":
                    books.send(hub, other.id)
                if ways != "sends":
                    books.send(other, HUB)
        books.balance()
        comes_to(hub, limit)
        assert dismissals(hub) >= 16 - limit
        for other in others:  # and those that went are reached again
            books.send(hub, other.id)
            books.send(other, HUB)
        undisturbed(hub, others, books)
        comes_to(hub, limit)


@pytest.mark.parametrize("ways", ["one way", "both ways"])
def test_nodes_that_are_all_limited_ask_each_other_at_once(ways: str) -> None:
    """Everyone with everyone, one connection each: the questions cross all the time."""
    books = Books()
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(Node(FIRST + i, config=limited(1))) for i in range(6)]
        for one in members:
            books.watch(one)
            for other in members:
                if one is not other:
                    one.add_peer(other.id, other.address)

        def talk(one: Node, seed: int) -> None:
            draw = random.Random(seed)
            half = members[len(members) // 2 :]
            targets = [n for n in (members if ways == "both ways" else half) if n is not one]
            deadline = time.monotonic() + 20
            while True:
                for _ in range(150):
                    target = draw.choice(targets)
                    for _ in range(draw.choice((1, 3, 40))):
                        books.send(one, target.id)
                if dismissals(*members) > 5 or time.monotonic() > deadline:
                    return

        talkers = members if ways == "both ways" else members[: len(members) // 2]
        all_results([Running(partial(talk, one, seed)) for seed, one in enumerate(talkers)], 40)
        books.balance()
        assert dismissals(*members) > 5
        books.only_dismissals()
        assert losses(*members) == 0


# --- every way to send ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("direction", ["from the hub", "to the hub", "both"])
def test_every_way_to_send_outlives_dismissals(way: str, direction: str) -> None:
    """Several threads, each with peers of its own, take turns; the limit is one."""
    call, rounds = WAYS[way]
    with crowd(8, 1) as (hub, others, books):

        def outward(own: list[Node]) -> None:
            for other in own * rounds:
                call(hub, other.id, books)

        def inward(own: Node) -> None:
            for _ in range(rounds):
                call(own, HUB, books)

        running: list[Running[None]] = []
        if direction != "to the hub":
            running += [Running(partial(outward, others[n::2])) for n in range(2)]
        if direction != "from the hub":
            running += [Running(partial(inward, own)) for own in others]
        all_results(running, 40)
        books.balance()
        comes_to(hub, 1)
        assert dismissals(hub) >= 7
        undisturbed(hub, others, books)


def test_everything_at_once() -> None:
    """Each thread draws what it does next; hub and peers, and peers among each other."""
    with crowd(8, 2) as (hub, others, books):
        for one, next_one in zip(others, others[1:] + others[:1], strict=True):
            one.add_peer(next_one.id, next_one.address)
        began = time.monotonic()

        def goes_on() -> bool:
            """For a while, and until there were enough dismissals; not for ever."""
            passed = time.monotonic() - began
            return passed < 2.0 or (dismissals(hub) <= 10 and passed < 30)

        def talk(node: Node, targets: list[int], seed: int) -> None:
            draw = random.Random(seed)
            calls = [call for call, _ in WAYS.values()]
            while goes_on():
                draw.choice(calls)(node, draw.choice(targets), books)
                if draw.random() < 0.3:
                    time.sleep(draw.random() * 0.01)

        jobs = [partial(talk, hub, [each.id for each in others[n::2]], n) for n in range(2)]
        jobs += [
            partial(talk, one, [HUB, next_one.id], one.id)
            for one, next_one in zip(others, others[1:] + others[:1], strict=True)
        ]
        all_results([Running(job) for job in jobs], 60)
        undisturbed(hub, others, books)
        assert dismissals(hub) > 10
        comes_to(hub, 2)


def test_many_threads_may_send_to_one_peer_that_is_dismissed_all_the_time() -> None:
    """A connection may have been opened and given back before a sender wakes up."""
    with crowd(6, 1) as (hub, others, books):
        answered = itertools.count()

        def ask(seed: int) -> None:
            draw = random.Random(seed)
            for _ in range(40):
                data = os.urandom(8)
                assert hub.request(draw.choice(others).id, data, kind=OTHER) == data
                next(answered)
                hub.send_many(draw.choice(others).id, [b"x"] * 500, kind=THIRD + 1)

        for other in others:
            other.on(THIRD + 1, lambda source, data: None)
        rounds = 0
        while rounds < 10 and dismissals(hub) <= 5:  # all of it may be over in a tenth of a second
            all_results([Running(partial(ask, seed)) for seed in range(8)], 40)
            rounds += 1
        assert next(answered) == 320 * rounds
        hub.flush(20)
        assert dismissals(hub) > 5
        undisturbed(hub, others, books)


def test_a_dismissed_peer_is_reached_by_try_send_again() -> None:
    with crowd(2, 1) as (hub, others, books):
        for other in others:
            books.send(hub, other.id)
            books.balance()
        eventually(lambda: connected(hub) == {FIRST + 1}, 10, "the first is dismissed")
        data = books.message(hub, FIRST)
        assert not hub.try_send(FIRST, data, kind=KIND)
        eventually(lambda: hub.try_send(FIRST, data, kind=KIND), 10, "it is connected again")
        undisturbed(hub, others, books)


def test_asyncio_may_ask_everybody_at_once() -> None:
    with crowd(30, 5) as (hub, others, books):

        async def ask() -> None:
            for turn in range(5):
                questions = [b"%d %d" % (turn, other.id) for other in others]
                waiting = [
                    hub.request_async(other.id, data, kind=THIRD)
                    for other, data in zip(others, questions, strict=True)
                ]
                assert await asyncio.gather(*waiting) == questions

        asyncio.run(ask())
        comes_to(hub, 5)
        assert dismissals(hub) >= 25
        undisturbed(hub, others, books)


# --- what keeps a connection ----------------------------------------------------------------------


@pytest.mark.parametrize("asker", ["hub", "peer"])
def test_an_open_request_keeps_its_connection(asker: str) -> None:
    with crowd(6, 1) as (hub, others, books), Slow() as slow:
        node, target = (hub, FIRST) if asker == "hub" else (others[0], HUB)
        (others[0] if asker == "hub" else hub).on(THIRD + 1, slow)
        waiting = [node.request_async(target, b"%d" % n, kind=THIRD + 1) for n in range(5)]
        slow.asked.first(1)
        for other in others[1:] * 5:
            hub.request(other.id, b"x", kind=OTHER)
        assert FIRST in connected(hub)
        assert FIRST not in {peer for at, peer, _ in books.ended.items if at == HUB}
        assert dismissals(hub) > 0
        slow.let(5)
        assert [future.result(10) for future in waiting] == [b"%d" % n for n in range(5)]
        comes_to(hub, 1)
        undisturbed(hub, others, books)


def test_handlers_may_ask_the_one_who_asked_under_a_limit_of_one() -> None:
    with crowd(6, 1) as (hub, others, books):
        hub.on(THIRD + 1, lambda source, data: hub.request(source, data, kind=OTHER), ordered=False)
        for other in others:

            def back(source: int, data: bytes, other: Node = other) -> bytes:
                return other.request(source, data, kind=THIRD + 1)

            other.on(THIRD + 1, back, ordered=False)

        def ask(other: Node) -> None:
            for number in range(10):
                data = b"%d %d" % (other.id, number)
                assert hub.request(other.id, data, kind=THIRD + 1) == data

        all_results([Running(partial(ask, other)) for other in others], 40)
        comes_to(hub, 1)
        undisturbed(hub, others, books)


def test_what_is_not_handled_keeps_its_connection_and_flush_waits_for_it() -> None:
    with crowd(3, 1) as (hub, others, books), Gate() as gate:
        others[0].on(THIRD + 1, gate)
        for number in range(20):
            hub.send(FIRST, b"%d" % number, kind=THIRD + 1)
        gate.entered.wait(10)
        for other in others[1:]:
            hub.request(other.id, b"x", kind=OTHER)
        with pytest.raises(SendTimeout):
            hub.flush(0.3)
        assert FIRST in connected(hub)  # what is not handled yet keeps its connection
        flushing = Running(lambda: hub.flush(20))
        time.sleep(0.1)  # in which it must not return
        assert not flushing.done
        gate.open()
        flushing.result()
        assert gate.data == [b"%d" % number for number in range(20)]
        undisturbed(hub, others, books)


def test_the_capacity_of_a_handler_holds_across_dismissals() -> None:
    """Another connection would bring another window, while the last one lies in the queue."""
    capacity = 50
    with crowd(2, 1) as (hub, others, _), Gate() as gate:
        others[0].on(THIRD + 1, gate, capacity=capacity)
        hub.send(FIRST, b"x", kind=THIRD + 1)
        gate.entered.wait(10)
        sent = 1
        for _ in range(6):
            refused = 0
            while refused < 20:
                if hub.try_send(FIRST, b"x", kind=THIRD + 1):
                    sent += 1
                else:
                    refused += 1
                    time.sleep(0.005)
            hub.request(others[1].id, b"x", kind=OTHER)
        kinds = others[0].statistics().kinds
        (pending,) = [entry.pending for entry in kinds if entry.kind == THIRD + 1]
        gate.open()
        hub.flush(10)
        assert len(gate.data) == sent
        assert pending <= capacity


# --- transports and proofs ------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["tcp", "unix", "inproc", "secret", "certificates"])
def test_it_works_over(transport: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca") if transport == "certificates" else None

    def listen() -> str:
        return {
            "unix": f"unix://{tmp_path}/{next(_names)}.sock",
            "inproc": f"inproc://max-connections-{next(_names)}",
        }.get(transport, "tcp://127.0.0.1:0")

    def options(id: int) -> dict[str, Any]:
        if authority is not None:
            return {"tls": authority.node(id)}
        return {"secret": "a secret of some length"} if transport == "secret" else {}

    with crowd(8, 2, listen=listen, options=options) as (hub, others, books):
        for turn in range(4):
            for other in others:
                by_many(hub, other.id, books)
                books.send(other, HUB, LARGE if turn == 1 else 100)
                by_request(hub, other.id, books)
                by_request(other, HUB, books)
                if turn == 2:
                    books.send(hub, other.id, LARGE)
        hub.flush(20)
        undisturbed(hub, others, books)
        comes_to(hub, 2)
        assert dismissals(hub) >= 20


def test_a_peer_without_a_listener_is_never_dismissed() -> None:
    with crowd(6, 2) as (hub, others, books), contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(
                Node(100 + n, listen=None, peers={HUB: hub.address}, config=limited(None))
            )
            for n in range(4)
        ]
        for node in silent:
            books.watch(node)
            books.send(node, HUB)
        for _ in range(3):
            for other in others:
                hub.request(other.id, b"x", kind=OTHER)
            for node in silent:
                books.send(hub, node.id)
        undisturbed(hub, [*others, *silent], books)
        assert connected(hub) >= {node.id for node in silent}
        assert not {peer for at, peer, _ in books.ended.items if at == HUB and peer >= 100}
        eventually(lambda: len(connected(hub)) == 4, 10, "the others go, to the last")


def test_a_node_without_a_listener_keeps_its_connections_whatever_its_limit() -> None:
    with crowd(4, None) as (_, others, books):
        peers = {other.id: other.address for other in others}
        with Node(100, listen=None, peers=peers, config=limited(1)) as dialler:
            books.watch(dialler)
            for _ in range(3):
                for other in others:
                    books.send(dialler, other.id)
                    by_request(dialler, other.id, books)
                    books.send(other, 100)
            undisturbed(dialler, others, books)
            assert len(connected(dialler)) == 4
            assert dismissals(dialler, *others) == 0


# --- comings and goings ---------------------------------------------------------------------------


def test_every_connection_is_reported_and_every_end_of_one() -> None:
    with crowd(8, 2) as (hub, others, books):
        events: Collected[tuple[int, str]] = Collected()
        hub.on_connected(lambda peer, reason: events.add((peer, "connected")))
        hub.on_disconnected(lambda peer, reason: events.add((peer, reason)))
        for _ in range(5):
            for other in others:
                books.send(hub, other.id)
                books.send(other, HUB)
        books.balance()
        comes_to(hub, 2)

        def last_words() -> bool:
            heard = events.items
            up = {peer for peer, word in dict(heard).items() if word == "connected"}
            ends = sum(word != "connected" for _, word in heard)
            return up == connected(hub) and ends == dismissals(hub)

        eventually(last_words, 10, "the reports have come up with the facts")
        by_peer: dict[int, list[str]] = defaultdict(list)
        for peer, word in events.items:
            by_peer[peer].append(word)
        assert set(by_peer) == {other.id for other in others}
        for words in by_peer.values():
            assert words[0::2] == ["connected"] * len(words[0::2])
            assert all(word.startswith("dismissed") for word in words[1::2])
        undisturbed(hub, others, books)


@pytest.mark.parametrize("who", ["hub", "peers"])
def test_what_was_accepted_arrives_though_its_sender_closes(who: str) -> None:
    """Amid dismissals: the last of them may be under way when the node begins to close."""
    for turn in range(4):
        with crowd(6, 1) as (hub, others, books):

            def talk(pairs: list[tuple[Node, int]], turn: int = turn, books: Books = books) -> None:
                draw = random.Random(turn)
                for _ in range(20):
                    node, target = draw.choice(pairs)
                    for _ in range(draw.choice((1, 20, 200))):
                        books.send(node, target)

            if who == "hub":
                talk([(hub, other.id) for other in others])
                hub.close(drain=10)
            else:
                all_results([Running(partial(talk, [(one, HUB)])) for one in others], 40)
                all_results([Running(partial(one.close, 10)) for one in others], 40)
            books.balance()


def mortal(control: Control, id: int, hub: str) -> None:
    """Asks and answers without end."""
    import contextlib
    import threading

    import antiphon

    config = antiphon.NodeConfig(heartbeat=0.3, max_connections=1, request_timeout=5.0)
    with antiphon.Node(id, peers={1: hub}, config=config) as node:
        node.on(200, lambda source, data: None)
        node.on(201, lambda source, data: data, ordered=False)

        def ask() -> None:
            while True:
                with contextlib.suppress(antiphon.AntiphonError):
                    node.request(1, b"x", kind=201)

        threading.Thread(target=ask, daemon=True).start()
        control.tell("ready", address=node.address)
        control.hear()


@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_a_peer_that_fails_amid_dismissals_fails_only_its_own_calls(fault: str) -> None:
    # The good ones are given time. The bad one is known to be dead before.
    config = NodeConfig(max_connections=1, heartbeat=0.5, connect_timeout=5.0)
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(Node(HUB, config=config))
        books = Books()
        books.watch(hub)
        good = [stack.enter_context(Node(FIRST + n, config=limited(None))) for n in range(3)]
        for other in good:
            books.watch(other)
            hub.add_peer(other.id, other.address)
        child = stack.enter_context(Child(mortal, id=2, hub=hub.address))
        hub.add_peer(2, child.expect("ready")["address"])
        stops = threading.Event()
        stack.callback(stops.set)

        def ask_good(other: Node) -> int:
            turns = 0
            while not stops.is_set():
                by_request(hub, other.id, books)
                books.send(hub, other.id)
                turns += 1
                time.sleep(0.02)  # who is never idle is never dismissed
            return turns

        def ask_bad() -> int:
            failed = 0
            while failed < 2:
                try:
                    hub.send(2, b"x" * 1000, kind=KIND)
                    hub.request(2, b"x", kind=OTHER)
                except (PeerUnreachable, RequestTimeout, SendTimeout):
                    failed += 1
            return failed

        fine = [Running(partial(ask_good, other)) for other in good]
        bad = Running(ask_bad)
        eventually(lambda: dismissals(hub) > 5, 20, "dismissals go on")
        child.kill() if fault == "killed" else stop(child.pid)
        assert bad.result(40) == 2
        began = dismissals(hub)
        eventually(lambda: dismissals(hub) > began, 20, "and go on")
        stops.set()
        assert all(turns > 0 for turns in all_results(fine, 20))
        books.balance()
        ends = [why for at, peer, why in books.ended.items if at == HUB and peer != 2]
        assert all(why.startswith("dismissed") for why in ends)
        closing = Running(hub.close)
        closing.result(20)
