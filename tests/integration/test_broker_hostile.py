"""Clients that attack a broker: what only a broker has to bear, beside what any node has.

The broker runs in a process of its own, so that its memory can be watched. Meanwhile a publisher
and a subscriber exchange events through it, and none of them may be late or missing.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from antiphon._core import build_info
from antiphon.errors import PermissionDenied
from antiphon.testing import Child, Control, Stranger, eventually, strangers
from antiphon.testing.strangers import frame
from antiphon.topics import Bus, Event
from antiphon.topics.announcements import Subscribed, Update, Want, encode
from antiphon.topics.rights import Ask, Ended, Stopped, Welcome
from integration.buses import PATIENCE, Events, serves

pytestmark = pytest.mark.timeout(120)

MIB = 1 << 20
KIND, EVENT, BIND = 33, 32, 26


def target(control: Control, limits: dict[str, int], tokens: dict[str, list[str]]) -> None:
    """A broker whose counts can be asked for."""
    import dataclasses

    from antiphon import Broker, BrokerConfig, NodeConfig
    from antiphon.broker import Limits, Token
    from antiphon.broker.tokens import hash_token

    known = {
        name: Token(hash=hash_token(name), publish=tuple(topics), subscribe=tuple(topics))
        for name, topics in tokens.items()
    }
    config = BrokerConfig(limits=Limits(**limits), tokens=known, max_block=0.2)
    node = NodeConfig(connect_timeout=2.0, heartbeat=0.5)
    with Broker("tcp://127.0.0.1:0", config=config, node_config=node) as broker:
        control.tell("ready", address=broker.address, id=broker.node.id)
        while True:
            control.hear()
            control.tell("counts", **dataclasses.asdict(broker.statistics()))


class Target:
    """The broker, and what goes through it meanwhile."""

    def __init__(self, child: Child, token: str | None) -> None:
        self.child = child
        self.address = str(child.expect("ready")["address"])
        self._here = Bus(self.address, token=token).start()
        self._there = Bus(self.address, token=token).start()
        self._events = Events()
        self._there.subscribe("honest/**", self._hear)
        self._publisher = self._here.publisher("honest/1")
        serves(self._publisher)
        self._numbers = itertools.count(1)

    def _hear(self, event: Event) -> None:
        if event.source == self._here.node.id:  # a stranger may be allowed to publish
            self._events(event)

    def counts(self) -> dict[str, Any]:
        self.child.tell("count")
        return self.child.expect("counts", PATIENCE)

    def passes(self) -> None:
        """One event comes through."""
        number = next(self._numbers)
        self._publisher.publish(b"%d" % number)
        assert self._events.wait(number)[-1] == b"%d" % number

    @contextlib.contextmanager
    def undisturbed(self, growth: int = 32 * MIB) -> Iterator[None]:
        """Events come through without a gap, and the memory does not grow."""
        before = peak = self.child.resident_bytes
        ended, problems = threading.Event(), []

        def watch() -> None:
            nonlocal peak
            try:
                while not ended.wait(0.01):
                    self.passes()
                    peak = max(peak, self.child.resident_bytes)
            except BaseException as error:
                problems.append(error)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
        assert not problems
        self.passes()
        assert set(self._events.missed) == {0}
        if not build_info()["sanitizers"]:  # they keep what was freed
            assert peak - before < growth, f"grew by {(peak - before) / MIB:.0f} MiB"

    def dial(self, number: int = 7, life: int | None = None) -> Stranger:
        """A client of the hand-shake that will say anything."""
        stranger = Stranger.dial(self.address)
        stranger.hand_shake(number, incarnation=life or secrets.randbits(63))
        return stranger

    def close(self) -> None:
        self._here.close()
        self._there.close()


@contextlib.contextmanager
def attacked(
    tokens: dict[str, list[str]] | None = None, token: str | None = None, **limits: int
) -> Iterator[Target]:
    with Child(target, limits=limits, tokens=tokens or {}) as child:
        one = Target(child, token)
        try:
            yield one
        finally:
            one.close()


def everything(topics: dict[int, str], *subscriptions: Subscribed) -> bytes:
    return encode(Update(secrets.randbits(63), -1, 1, topics, [], list(subscriptions), []))


NONSENSE = [
    b"",
    b"\xc1",
    os.urandom(64),
    msgspec.msgpack.encode(["update"]),
    msgspec.msgpack.encode(["update", 1, -1, 1, {"a": "b"}, [], [], []]),
    msgspec.msgpack.encode(["update", 1, -1, 1, {1: 5}, [], [], []]),
    msgspec.msgpack.encode(["update", 1, -1, 1, {1: "x" * 2000}, [], [], []]),
    msgspec.msgpack.encode(["update", 1, -5, 1, {}, [], [], []]),
    msgspec.msgpack.encode(["update", 1, -1, 1, {}, [], [[1, "a", -1, None]], []]),
    msgspec.msgpack.encode(["update", 1, -1, 1, {}, [], [[1, "a", 1, "x" * 70_000]], []]),
    msgspec.msgpack.encode(["want", "x", "y"]),
    msgspec.msgpack.encode(["ask", "x" * 5000]),
    msgspec.msgpack.encode(["coup", 1]),
    b"\xdf\xff\xff\xff\xff",
    b"\x98\xa6update\x01\xff\x01\xdf\x7f\xff\xff\xff",
    encode(Welcome("me", True)),
    encode(Ended(1, "because")),
    encode(Stopped()),
    encode(Want(0, 2**40)),
]


def test_announcements_that_are_none_have_no_effect() -> None:
    with attacked() as broker:
        before = broker.counts()
        with broker.undisturbed():
            for number, noise in enumerate(NONSENSE):
                with broker.dial(100 + number) as stranger:
                    stranger.say(frame(KIND, noise))
                    stranger.say(frame(KIND, encode(Want(0, 0))))
                    stranger.say(frame(KIND, noise))
        eventually(lambda: broker.counts()["clients"] == 2, PATIENCE)
        after = broker.counts()
        assert (after["topics"], after["subscriptions"]) == (
            before["topics"],
            before["subscriptions"],
        )


@pytest.mark.parametrize(
    "wrong",
    ["*/a*", "", "/", "a//b", "a/", "\x00", "**" + "/**" * 340, "a/" * 511 + "a", "$sys/**"],
)
def test_patterns_and_names_that_are_none_have_no_effect(wrong: str) -> None:
    with attacked() as broker, broker.undisturbed(), broker.dial() as stranger:
        stranger.keep_alive()
        stranger.say(frame(KIND, everything({1: wrong}, Subscribed(9, wrong, 1))))
        eventually(lambda: broker.counts()["clients"] == 3, PATIENCE)
        counts = broker.counts()
        assert counts["topics"] <= 1 + (wrong == "a/" * 511 + "a")
        assert counts["subscriptions"] <= 2


def test_enormous_filters_are_refused_and_hold_nobody_up() -> None:
    """Of the largest size that is allowed: deep, wide, and not even a condition."""
    conditions = [
        "(" * 30_000 + "a = 1" + ")" * 30_000,
        " AND ".join(f"p{n} = {n}" for n in range(4000)),
        "NOT " * 16_000 + "a = 1",
        "a LIKE '" + "%a" * 30_000 + "'",
        "a IN (" + ", ".join(f"'{n}'" for n in range(7000)) + ")",
        "x" * 65_536,
        "a = " + "-" * 60_000 + "1",
    ]
    with attacked() as broker, broker.undisturbed(64 * MIB):
        for number, text in enumerate(conditions):
            with broker.dial(100 + number) as stranger:
                stranger.keep_alive()
                one = Subscribed(10 + number, "honest/**", 1, text[:65_536])
                stranger.say(frame(KIND, everything({1: f"heard/{number}"}, one)))
                eventually(lambda: broker.counts()["topics"] == 2, PATIENCE)
            eventually(lambda: broker.counts()["topics"] == 1, PATIENCE)


def test_more_topics_than_allowed_turn_a_client_away() -> None:
    with attacked(max_topics=1000, max_subscriptions=1000) as broker, broker.undisturbed():
        for announced in (
            everything({number: f"t/{number}" for number in range(5000)}),
            everything({}, *(Subscribed(n, f"t/{n}", 1) for n in range(1, 3000))),
        ):
            with broker.dial() as stranger:
                stranger.keep_alive()
                stranger.say(frame(KIND, announced))
                assert stranger.dropped_within(PATIENCE)
        eventually(lambda: broker.counts()["refused"] == 2, PATIENCE)
        assert broker.counts()["topics"] == 1
        # And bit by bit.
        life = secrets.randbits(63)
        with broker.dial(8, life) as stranger:
            stranger.keep_alive()
            for version in range(1, 100):
                first = 100 * version
                some = {number: f"t/{number}" for number in range(first, first + 100)}
                update = Update(life, version - 1 or -1, version, some, [], [], [])
                if stranger.say(frame(KIND, encode(update)), timeout=1.0) == 0:
                    break
            assert stranger.dropped_within(PATIENCE)
        eventually(lambda: broker.counts()["topics"] == 1, PATIENCE)


@pytest.mark.timeout(300)
def test_a_million_topics_are_refused_in_bounded_memory() -> None:
    """One announcement of many megabytes, which travels in fragments."""
    topics = {number: f"t/{number}" for number in range(1_000_000)}
    with attacked(max_topics=1000) as broker, broker.undisturbed(400 * MIB):
        with Bus(broker.address) as liar:
            liar._ledger.topics.update(topics)
            liar._ledger.version += 5000
            with liar._lock:
                liar._changed.notify_all()
            eventually(lambda: broker.counts()["refused"] >= 1, 120)
            liar._ledger.topics.clear()
        eventually(lambda: broker.counts()["clients"] == 2, PATIENCE)
        assert broker.counts()["topics"] == 1


def test_events_with_numbers_that_nobody_announced_are_bounded() -> None:
    """Each number that a publisher binds is a way through the broker."""
    with attacked(max_topics=10) as broker, broker.undisturbed():
        topic = next(iter(broker._here._neighbours.all.values()))
        flows = [
            one.flow
            for neighbour in broker._here._neighbours.all.values()
            for one in neighbour.table.subscriptions.values()
            if one.pattern == "honest/1"
        ]
        assert topic is not None
        with broker.dial() as stranger:
            stranger.keep_alive()
            stranger.say(frame(KIND, everything({1: "honest/1"})))
            eventually(lambda: broker.counts()["clients"] == 3, PATIENCE)
            for number in range(1, 5000):
                name = b"honest/1"
                bind = struct.pack("<IIH", number, 1, len(name)) + name
                head = struct.pack("<IIQqII", number, 1, 1, 0, 0, 0)
                data = frame(BIND, bind, flow=flows[0]) + frame(EVENT, head, flow=flows[0])
                if stranger.say(data, timeout=2.0) < len(data):
                    break
            assert stranger.dropped_within(PATIENCE)
        eventually(lambda: broker.counts()["clients"] == 2, PATIENCE)


def test_a_flood_of_clients_is_bounded_and_they_are_told_why() -> None:
    with attacked(max_clients=10) as broker, broker.undisturbed():
        with contextlib.ExitStack() as stack:
            for number in range(100):
                with contextlib.suppress(AssertionError, EOFError, TimeoutError):
                    stranger = stack.enter_context(Stranger.dial(broker.address))
                    stranger.hand_shake(100 + number)
                    stranger.say(frame(KIND, everything({})))
            eventually(lambda: broker.counts()["clients"] <= 10, PATIENCE)

            def refused() -> bool:
                try:
                    Bus(broker.address).start().close()
                except PermissionDenied as error:
                    return error.action == "connect"
                return False

            eventually(refused, PATIENCE, "an honest one is told that there is no room")

        def comes_in() -> bool:
            try:
                Bus(broker.address).start().close()
            except PermissionDenied:
                return False
            return True

        eventually(comes_in, PATIENCE, "when they have gone there is room")


def test_connections_that_say_nothing_are_closed(
    need_descriptors: Callable[[int], None],
) -> None:
    need_descriptors(2000)
    with attacked() as broker, broker.undisturbed(), contextlib.ExitStack() as stack:
        silent = []
        for number in range(20):
            stranger = stack.enter_context(broker.dial(200 + number))
            stranger.keep_alive()  # it lives, and never says who it is
            silent.append(stranger)
        half_open = [stack.enter_context(Stranger.dial(broker.address)) for _ in range(100)]
        assert all(one.dropped_within(30) for one in silent)
        assert all(one.dropped_within(PATIENCE) for one in half_open)


def test_tokens_cannot_be_guessed_quickly_nor_without_a_trace() -> None:
    with attacked({"honest": ["honest/**"]}, token="honest") as broker, broker.undisturbed():
        for number in range(20):
            with broker.dial(300 + number) as stranger:
                lie = Update(1, -1, 1, {1: "honest/1"}, [], [Subscribed(9, "**", 1)], [], "guess")
                stranger.keep_alive()
                stranger.say(frame(KIND, encode(lie)))
                stranger.say(frame(KIND, encode(Ask("guess"))))
                assert stranger.dropped_within(PATIENCE)
        counts = broker.counts()
        assert counts["refused"] >= 20
        assert (counts["topics"], counts["subscriptions"]) == (1, 1)


def test_a_client_that_reads_nothing_holds_nobody_up() -> None:
    """It subscribes to everything and never takes a byte."""
    with attacked() as broker, broker.undisturbed(), contextlib.ExitStack() as stack:
        for number in range(5):
            life = secrets.randbits(63)
            mine = stack.enter_context(broker.dial(400 + number, life))
            mine.keep_alive()
            yours = stack.enter_context(Stranger.dial(broker.address, receive_buffer=4096))
            yours.hand_shake(400 + number, direction=strangers.YOURS, incarnation=life)
            yours.be_ready(KIND, 65536)
            update = Update(life, -1, 1, {}, [], [Subscribed(1, "**", 1)], [])
            mine.say(frame(KIND, encode(update)))
        eventually(lambda: broker.counts()["subscriptions"] == 6, PATIENCE)
        for _ in range(200):
            broker.counts()
