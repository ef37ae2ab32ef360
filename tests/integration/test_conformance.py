"""Who overruns its share, or cannot keep up, is reported; who keeps to it is not."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from antiphon import Closed, Node, NodeConfig, Schedule
from antiphon.testing import Collected, eventually
from antiphon.topics import Bus, Conformance, Event, Timer
from integration.buses import PATIENCE, burn, serves
from unit.node.pairs import Running, failures

pytestmark = pytest.mark.timeout(60)

LONG = Schedule(period=0.2)
"""Half of this period is more than a collection of garbage takes, in whose handler it may be."""

TINY = 0.02
"""A share of it: 4 ms of credits."""

TOO_LONG = 0.02
"""Seconds of a handler that are more than those credits, and not more than half of a period."""


class Reports(Collected[Conformance]):
    """A callback that keeps what it is told."""

    def __call__(self, conformance: Conformance) -> None:
        self.add(conformance)

    def of(self, pattern: str) -> list[Conformance]:
        return [one for one in self.items if one.pattern == pattern]

    def named(self, name: str) -> list[Conformance]:
        """All that is told of one, once that is something. Blocks."""
        return eventually(
            lambda: [one for one in self.items if one.name == name], PATIENCE, f"a report: {name}"
        )

    def wait(self, pattern: str, count: int = 1) -> list[Conformance]:
        """All that is told of one, once that is ``count`` times. Blocks."""
        eventually(lambda: len(self.of(pattern)) >= count, PATIENCE, f"{count} reports: {pattern}")
        return self.of(pattern)


@contextlib.contextmanager
def traffic(bus: Bus, topic: str, distance: float) -> Iterator[None]:
    """Events at a distance in seconds, from a thread of their own."""
    publisher = bus.publisher(topic)
    serves(publisher)
    stop = threading.Event()

    def publish() -> None:
        with contextlib.suppress(Closed):
            while not stop.wait(distance):
                publisher.publish(b"x")

    publishing = Running(publish)
    try:
        yield
    finally:
        stop.set()
        publishing.result(PATIENCE)


def burning(seconds: float) -> Callable[[Event], None]:
    """A handler."""
    return lambda event: burn(seconds)


def test_who_overruns_its_share_is_reported_and_nobody_else(channel: str) -> None:
    reports = Reports()
    done = threading.Event()

    def compete(event: Event) -> None:
        if not done.is_set():
            burn(0.0002)

    config = NodeConfig(schedule=dataclasses.replace(LONG, threads=1))
    with Bus(channel, node_config=config) as bus:
        assert bus.on_conformance(reports) is reports
        over = bus.subscribe("over/*", burning(TOO_LONG), share=TINY)
        rival = bus.subscribe("rival", compete, capacity=50_000)
        good = bus.subscribe("good", burning(0.0002), share=0.5)
        # It takes long too, and is always full, but was promised nothing.
        free = bus.subscribe("free", burning(TOO_LONG), capacity=2, when_full="drop_newest")
        busy = bus.publisher("rival")
        serves(busy)
        busy.publish_many([b"x"] * 25_000)
        with (
            traffic(bus, "over/1", 0.005),
            traffic(bus, "good", 0.01),
            traffic(bus, "free", 0.005),
        ):
            told = reports.wait("over/*")
            assert rival.pending > 0  # there was somebody to compete with
            # Those without a share wait for what the others leave.
            eventually(
                lambda: all(one.statistics()["handled"] for one in (over, rival, good, free)),
                PATIENCE,
            )
        done.set()
        counts = {one.pattern: one.statistics() for one in (over, rival, good, free)}
        for one in (over, free):
            one.close()
        assert {one.pattern for one in reports.items} == {"over/*"}
        for conformance in told:
            assert isinstance(conformance, Conformance)
            assert conformance.conformant is False
            assert conformance.stable is True
            assert conformance.overruns >= 1
            # By what is left of an event when its credits are used up.
            assert TOO_LONG / 2 < conformance.longest_overrun < 1
            assert conformance.full == 0.0
            assert conformance.name == "subscription 'over/*'"
        mine = counts["over/*"]
        assert told[0].overruns <= mine["overruns"] <= mine["slices"]
        ended = over.statistics()  # nothing is forgotten with the end
        assert ended["overruns"] >= mine["overruns"]
        assert ended["slices"] >= mine["slices"]
        assert counts["good"]["overruns"] == 0
        assert all(one["handled"] > 0 for one in counts.values())


def test_whose_queue_is_often_full_is_reported_and_nobody_else(channel: str) -> None:
    """Sleeping costs no credits: they keep to their shares, and cannot keep up all the same."""
    reports = Reports()

    def slow(event: Event) -> None:
        time.sleep(0.002)

    with Bus(channel, node_config=NodeConfig(schedule=LONG)) as bus:
        bus.on_conformance(reports)
        bus.subscribe("old", slow, share=0.2, capacity=4, when_full="drop_oldest")
        bus.subscribe("new", slow, share=0.2, capacity=4, when_full="drop_newest")
        bus.subscribe("good", slow, share=0.2, capacity=1000)
        with (
            traffic(bus, "old", 0.0002),
            traffic(bus, "new", 0.0002),
            traffic(bus, "good", 0.05),
        ):
            told = [*reports.wait("old"), *reports.wait("new")]
        assert {one.pattern for one in reports.items} == {"old", "new"}
        for conformance in told:
            assert conformance.conformant is True
            assert conformance.stable is False
            assert conformance.overruns == 0
            assert conformance.longest_overrun == 0.0
            assert 0.1 < conformance.full <= 1.0


def ended_as_often_as_called(timer: Timer) -> bool:
    counts = timer.statistics()
    return bool(counts["slices"] >= counts["calls"] > 0)


def test_timers_and_handlers_of_the_node_are_held_to_their_shares_as_well(channel: str) -> None:
    reports = Reports()

    def over() -> None:
        burn(TOO_LONG)

    def good() -> None:
        """Takes nothing."""

    def free() -> None:
        burn(TOO_LONG)

    config = NodeConfig(schedule=LONG)
    with Node(1, config=config) as node, Bus(channel, node=node) as bus:
        bus.on_conformance(reports)
        node.on(200, lambda source, data: burn(TOO_LONG), share=TINY)
        node.on(201, lambda source, data: None, share=0.3)
        node.on(202, lambda source, data: None)
        names = [one.__qualname__ for one in (over, good)]
        # So far apart that a slow machine misses none.
        timers = [bus.every(4.0, over, share=TINY), bus.every(4.0, good, share=0.3)]
        timers.append(bus.every(4.0, free))
        calm = bus.publisher("calm", share=0.3)
        serving = bus.subscribe("calm")
        serves(calm)
        for _ in range(5):
            for kind in (200, 201, 202):
                node.send(1, b"x", kind=kind)
            calm.publish(b"x")
        told = [*reports.named(f"timer {names[0]}"), *reports.named("kind 200")]
        eventually(lambda: all(one.statistics()["calls"] for one in timers), PATIENCE)
        eventually(lambda: serving.pending == 5, PATIENCE)
        for conformance in told:
            assert not conformance.conformant
            assert conformance.stable
            assert conformance.overruns >= 1
            assert conformance.longest_overrun > TOO_LONG / 2
            assert conformance.pattern == ""
        assert {one.name for one in reports.items} == {f"timer {names[0]}", "kind 200"}
        # And it can be looked up; a slice counts when it has ended.
        counts = [one.statistics() for one in timers]
        assert 1 <= counts[0]["overruns"] <= counts[0]["slices"]
        assert [one["overruns"] for one in counts[1:]] == [0, 0]
        for timer in timers:
            eventually(functools.partial(ended_as_often_as_called, timer), PATIENCE)
        kinds = {one.kind: one for one in node.statistics().kinds}
        assert 1 <= kinds[200].overruns <= kinds[200].slices
        assert kinds[201].overruns == kinds[202].overruns == 0
        assert min(kinds[201].slices, kinds[202].slices) >= 1
        sent = calm.statistics()
        assert sent["overruns"] == 0
        assert sent["slices"] >= 1


def test_a_publisher_that_overruns_its_share_is_reported(channel: str) -> None:
    """With credits of a microsecond, which no event is sent in."""
    reports = Reports()
    config = NodeConfig(schedule=Schedule(period=0.001, buckets=10_000))
    with Bus(channel, node_config=config) as bus:
        bus.on_conformance(reports)
        subscription = bus.subscribe("a")
        publisher, direct = bus.publisher("a", share=0.001), bus.publisher("a")
        serves(publisher)
        serves(direct)
        for _ in range(20):
            publisher.publish(bytes(100_000))
            assert subscription.receive(PATIENCE).data == bytes(100_000)
        direct.publish(b"x")
        (told, *_) = reports.named("publisher 'a'")
        assert not told.conformant
        assert told.pattern == ""
        counts = publisher.statistics()
        assert 1 <= counts["overruns"] <= counts["slices"]
        # Without a queue it is no task.
        assert (direct.statistics()["overruns"], direct.statistics()["slices"]) == (0, 0)


def test_a_timer_that_misses_and_a_publisher_that_is_full_are_not_stable(channel: str) -> None:
    reports = Reports()

    def slow() -> None:
        time.sleep(0.01)  # costs no credits

    stop = threading.Event()
    with Bus(channel, node_config=NodeConfig(schedule=LONG)) as bus:
        bus.on_conformance(reports)
        bus.every(0.002, slow, share=0.2)
        bus.subscribe("a", burning(0.0), when_full="drop_newest")
        publisher = bus.publisher("a", share=0.2, capacity=1, when_full="drop_newest")
        serves(publisher)

        def publish() -> None:
            while not stop.wait(0.005):
                publisher.publish_many([b"x"] * 1000)

        publishing = Running(publish)
        try:
            told = [*reports.named(f"timer {slow.__qualname__}"), *reports.named("publisher 'a'")]
        finally:
            stop.set()
            publishing.result(PATIENCE)
        for conformance in told:
            assert conformance.conformant
            assert not conformance.stable
            assert 0.1 < conformance.full <= 1.0
        assert publisher.statistics()["dropped"] > 0


def test_a_callback_that_raises_is_logged_and_the_others_are_called(
    channel: str, caplog: pytest.LogCaptureFixture
) -> None:
    threads: set[int] = set()
    order: list[str] = []
    last = Reports()
    bus = Bus(channel, node_config=NodeConfig(schedule=LONG))

    @bus.on_conformance
    def first(conformance: Conformance) -> None:
        order.append("first")
        raise ValueError("on purpose")

    @bus.on_conformance
    def second(conformance: Conformance) -> None:
        order.append("second")
        threads.add(threading.get_ident())

    assert callable(first)
    assert callable(second)

    def over(event: Event) -> None:
        burn(TOO_LONG)
        handling.add(threading.get_ident())

    handling: set[int] = set()
    with bus:
        bus.on_conformance(last)  # later works as well
        bus.subscribe("over", over, share=TINY)
        with traffic(bus, "over", 0.05):
            last.wait("over")
    # By a thread of the bus.
    assert order == ["first", "second"] * len(last)
    assert len(threads) == 1
    assert threads.isdisjoint({*handling, threading.get_ident()})
    records = failures(caplog)
    assert len(records) == len(last)
    assert records[0].name == "antiphon.topics"
    assert records[0].levelno == logging.ERROR
    assert "on_conformance" in records[0].getMessage()
    assert records[0].exc_info is not None
    assert records[0].exc_info[0] is ValueError


def test_a_callback_may_use_its_bus_and_end_what_it_was_told_of(channel: str) -> None:
    """On a node that is shared, of subscriptions that get their shares later."""
    reports = Reports()
    config = NodeConfig(schedule=LONG)
    with Node(1, config=config) as node, Bus(channel, node=node) as bus:
        subscriptions = {
            name: bus.subscribe(name, burning(TOO_LONG)) for name in ("close", "take", "keep")
        }
        bus.subscribe("good", burning(0.0002), share=0.5)
        heard = bus.subscribe("reports/*")

        def act(conformance: Conformance) -> None:
            reports(conformance)
            subscription = subscriptions[conformance.pattern]
            bus.publisher(f"reports/{conformance.pattern}").publish(b"x")
            if conformance.pattern == "close":
                subscription.close()
            elif conformance.pattern == "take":
                subscription.share = None
            elif len(reports.of("keep")) == 2:
                bus.close(drain=0.0)

        bus.on_conformance(act)
        for subscription in subscriptions.values():
            subscription.share = TINY
        with (
            traffic(bus, "close", 0.05),
            traffic(bus, "take", 0.05),
            traffic(bus, "keep", 0.05),
            traffic(bus, "good", 0.01),
        ):
            reports.wait("keep", 2)
            eventually(lambda: bus.closed, PATIENCE, "the callback closes the bus")
        assert sorted(one.pattern for one in reports.items) == ["close", "keep", "keep", "take"]
        # Each tells of its own second, and of the longest ever.
        first, second = reports.of("keep")
        assert min(first.overruns, second.overruns) >= 1
        assert first.longest_overrun <= second.longest_overrun
        eventually(lambda: heard.closed, PATIENCE)
        assert not node.closed
        # All of it is free again.
        eventually(lambda: not bus.statistics().shares, PATIENCE)


def test_what_a_report_says_cannot_be_changed(channel: str) -> None:
    names = [field.name for field in dataclasses.fields(Conformance)]
    assert names == [
        "pattern",
        "conformant",
        "stable",
        "overruns",
        "longest_overrun",
        "full",
        "name",
    ]
    values: dict[str, Any] = dict(zip(names, ("a", True, True, 0, 0.0, 0.0, "b"), strict=True))
    conformance = Conformance(**values)
    assert conformance == Conformance(**values)
    with pytest.raises(dataclasses.FrozenInstanceError):
        conformance.full = 1.0  # type: ignore[misc]


def test_a_closed_bus_reports_to_nobody(channel: str) -> None:
    reports = Reports()
    started, never = Bus(channel).start(), Bus(channel)
    for bus in (started, never):
        bus.on_conformance(reports)
        bus.close()
        with pytest.raises(Closed):
            bus.on_conformance(reports)
    assert len(reports) == 0
