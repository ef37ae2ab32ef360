"""Timers: when they call, what they tell, what they miss, and how they end."""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import math
import pickle
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from antiphon import Closed, ConfigError, Node, NodeConfig, Schedule, WouldBlock
from antiphon.testing import Child, Collected, Control, eventually
from antiphon.topics import Bus, Event, Timer
from integration.buses import PATIENCE, Events, Held, burn, serves
from unit.node.pairs import KIND, Running, failures

pytestmark = pytest.mark.timeout(60)

ONE_THREAD = NodeConfig(schedule=Schedule(threads=1))

SHORT = 0.002
"""Seconds, where only the fact of a call matters."""


def nothing() -> None:
    """A function of a timer."""


class Tick:
    """One call: its event, and when it was by the clock that runs evenly."""

    def __init__(self, event: Event) -> None:
        self.at = time.monotonic()
        self.event = event

    @property
    def due(self) -> float:
        """When it should have been. A little late: from there to here takes a few microseconds."""
        return self.at - self.event.late


class Ticks(Collected[Tick]):
    """A function of a timer that keeps its calls, and takes a while for each."""

    def __init__(self, takes: float = 0.0) -> None:
        super().__init__()
        self._takes = takes

    def __call__(self, event: Event) -> None:
        self.add(Tick(event))
        if self._takes:
            time.sleep(self._takes)

    @property
    def sequences(self) -> list[int]:
        return [tick.event.sequence for tick in self.items]

    def wait(self, count: int) -> list[Tick]:
        """The first ``count`` calls. Blocks until they were made."""
        return self.first(count, PATIENCE)


class Counting:
    """A function of a timer that takes nothing, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1

    def wait(self, more: int = 1) -> None:
        """Blocks until so many more calls were made."""
        wanted = self.calls + more
        eventually(lambda: self.calls >= wanted, PATIENCE, f"{more} more calls")


# --- when -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("takes", [0.0, 0.002], ids=["at once", "2 ms"])
def test_nothing_drifts(channel: str, takes: float) -> None:
    """Call k is due k periods after the start, however long the calls take and begin late."""
    period, count = 0.003, 200
    ticks = Ticks(takes)
    with Bus(channel) as bus:
        before = time.monotonic()
        with bus.every(period, ticks):
            after = time.monotonic()
            calls = ticks.wait(count)
    # What each call takes for the start of it all.
    starts = [tick.due - tick.event.sequence * period for tick in calls]
    assert min(starts) >= before
    assert statistics.median(starts) <= after + 0.003
    early, late = statistics.median(starts[: count // 3]), statistics.median(starts[-count // 3 :])
    # Were each call to move the next, by the time that it takes to wake a thread alone, this would
    # be many milliseconds.
    assert abs(late - early) < 0.001
    # And by the clock on the wall.
    walls = [tick.event.time_ns / 1e9 - tick.event.sequence * period for tick in calls]
    assert abs(statistics.median(walls[: count // 3]) - statistics.median(walls[-count // 3 :])) < (
        0.002
    )
    assert all(tick.event.late >= 0 for tick in calls)
    assert ticks.sequences == sorted(set(ticks.sequences))


def test_the_first_call_is_one_period_after_the_start_of_a_bus(channel: str) -> None:
    """For timers that were made before it."""
    ticks, closed = Ticks(), Counting()
    bus = Bus(channel)
    timer = bus.every(0.05, ticks)
    never = bus.every(SHORT, closed)
    assert timer.active
    assert never.active
    never.close()
    assert not never.active
    assert timer.statistics()["calls"] == 0
    # Not by waiting for nothing: long enough for a timer that runs already to be ahead.
    time.sleep(0.12)
    before = time.monotonic()
    with bus:
        after = time.monotonic()
        first, *others = ticks.wait(5)
        assert before + 0.05 <= first.due
        # By the best of them: what is between a call and its look at the clock may take a while.
        starts = [tick.due - tick.event.sequence * 0.05 for tick in (first, *others)]
        assert min(starts) <= after + 0.01
        assert 1 <= first.event.sequence <= 1 + first.event.missed
        assert timer.active
    assert closed.calls == 0
    assert never.statistics()["calls"] == 0


def test_an_event_tells_which_call_it_is_and_how_late(channel: str) -> None:
    ticks = Ticks()
    with Bus(channel) as bus:
        with bus.every(0.01, ticks) as timer:
            calls = ticks.wait(20)
        counts = timer.statistics()
        assert 1 <= calls[0].event.sequence <= 1 + calls[0].event.missed
        for tick in calls:
            event = tick.event
            assert isinstance(event, Event)
            assert (event.data, event.properties) == (b"", {})
            assert 0 <= event.late <= counts["longest_lateness"] + 1e-6
            assert event.missed >= 0
        # Of this moment, by the clock on the wall, which may be moved a little meanwhile.
        apart = time.time() - time.monotonic()
        assert abs(statistics.median(t.due + apart - t.event.time_ns / 1e9 for t in calls)) < 0.05
        assert counts["calls"] == len(ticks) >= 20
        assert counts["failed"] == 0
        assert sum(counts["lateness"].values()) == counts["calls"]
        assert max(counts["lateness"]) / 1e9 >= counts["longest_lateness"] * 0.99
        assert 0 <= counts["late"] <= counts["calls"]
        assert counts["late"] >= sum(tick.event.late > 0.0011 for tick in ticks.items)
        assert counts["late"] <= sum(tick.event.late > 0.0009 for tick in ticks.items)


def test_the_shortest_period_accounts_for_every_call(channel: str) -> None:
    """Nobody can call Python 100,000 times per second: what is left out is counted."""
    counting = Counting()
    with Bus(channel) as bus:
        before = time.monotonic()
        timer = bus.every(1e-5, counting)
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > 1.0, PATIENCE)

        def accounted() -> bool:
            """What the timers' own thread has not looked at yet may be missing."""
            passed = time.monotonic() - began
            counts = timer.statistics()
            return bool(counts["calls"] + counts["missed"] >= 0.5 * passed / 1e-5)

        # That thread may have stood still just now; were calls forgotten, it would stay behind.
        eventually(accounted, PATIENCE, "they are accounted for")
        timer.close()
        after = time.monotonic()
    counts = timer.statistics()
    assert counts["calls"] == counting.calls > 0
    due = counts["calls"] + counts["missed"]
    assert due <= (after - before) / 1e-5 + 1


def test_hundreds_of_timers_are_called_each_at_its_own_times(channel: str) -> None:
    count = 300
    periods = [0.080 + 0.001 * (number % 40) for number in range(count)]
    kept = [Ticks() for _ in range(count)]
    with Bus(channel) as bus:
        timers = [bus.every(*each) for each in zip(periods, kept, strict=True)]
        for ticks in kept:
            ticks.wait(4)
        for timer in timers:
            timer.close()
        made = [len(ticks) for ticks in kept]
        late = []
        for period, ticks, timer in zip(periods, kept, timers, strict=True):
            calls = ticks.items
            starts = [tick.due - tick.event.sequence * period for tick in calls]
            # All but a few of them agree on one grid.
            late.append(statistics.median(tick.event.late for tick in calls))
            assert abs(statistics.median(starts) - min(starts)) < 0.01
            assert timer.statistics()["calls"] == len(calls)
            assert ticks.sequences == sorted(set(ticks.sequences))
        assert statistics.median(late) < min(periods)
        witness = Counting()
        with bus.every(0.02, witness):
            witness.wait(5)
        assert [len(ticks) for ticks in kept] == made


# --- what it calls --------------------------------------------------------------------------------


def test_a_function_gets_the_event_if_it_takes_one(channel: str) -> None:
    got: dict[str, Collected[Any]] = {}

    def keep(name: str) -> Collected[Any]:
        got[name] = Collected()
        return got[name]

    with_event, bound, part, positional = map(keep, ["with", "bound", "part", "positional"])
    without, optional, whole, named = map(keep, ["without", "optional", "whole", "named"])

    class Takes:
        def method(self, event: Event) -> None:
            bound.add(event)

        def plain(self) -> None:
            whole.add(None)

    def only_by_place(event: Event, /) -> None:
        positional.add(event)

    def with_a_default(what: str = "default") -> None:
        optional.add(what)

    def add(kept: Collected[Any], event: Any) -> None:
        kept.add(event)

    appended: list[Any] = []
    functions: list[Callable[..., Any]] = [
        lambda event: with_event.add(event),
        Takes().method,
        functools.partial(add, part),
        only_by_place,
        appended.append,
        lambda: without.add(None),
        with_a_default,
        Takes().plain,
        functools.partial(add, named, "given"),
    ]
    with Bus(channel) as bus:
        for function in functions:
            bus.every(SHORT, function)
        for one in got.values():
            one.first(3, PATIENCE)
        eventually(lambda: len(appended) >= 3, PATIENCE)
    for kept in (with_event.items, bound.items, part.items, positional.items, appended):
        assert all(isinstance(event, Event) for event in kept)
        assert 1 <= kept[0].sequence <= 1 + kept[0].missed
    assert set(without.items) == set(whole.items) == {None}
    assert set(optional.items) == {"default"}
    assert set(named.items) == {"given"}


@pytest.mark.parametrize("failure", [ValueError, SystemExit])
def test_a_function_that_raises_is_logged_and_the_timer_goes_on(
    channel: str, failure: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    ticks = Ticks()

    def sometimes(event: Event) -> None:
        ticks(event)
        if len(ticks) % 2:
            raise failure("on purpose")

    with Bus(channel) as bus:
        with bus.every(SHORT, sometimes) as timer:
            ticks.wait(20)
            assert timer.active
        counts = timer.statistics()
    assert counts["calls"] == len(ticks)
    assert counts["failed"] == math.ceil(len(ticks) / 2)
    records = failures(caplog)
    assert len(records) == counts["failed"]
    assert {record.name for record in records} == {"antiphon.topics"}
    assert {record.levelno for record in records} == {logging.ERROR}
    assert "sometimes" in records[0].getMessage()
    assert records[0].exc_info is not None
    assert records[0].exc_info[0] is failure


def test_a_function_publishes(channel: str) -> None:
    events = Events()
    with Bus(channel) as here, Bus(channel) as there:
        there.subscribe("ticks", events)
        publisher = here.publisher("ticks")
        serves(publisher)
        with here.every(SHORT, lambda event: publisher.publish(b"%d" % event.sequence)):
            numbers = [int(data) for data in events.wait(50)]
    assert numbers == sorted(set(numbers))
    assert events.sequences[:50] == list(range(1, 51))


def test_a_function_makes_timers_and_ends_others(channel: str) -> None:
    first, second = Counting(), Counting()
    made: Collected[Timer] = Collected()

    def make() -> None:
        if not len(made):
            made.add(bus.every(SHORT, second))

    def end() -> None:
        if second.calls > 3:
            made.items[0].close()
            ended.set()

    ended = threading.Event()
    with Bus(channel) as bus:
        bus.every(SHORT, first)
        bus.every(SHORT, make)
        bus.every(SHORT, end)
        assert ended.wait(PATIENCE)
        calls = second.calls
        assert not made.items[0].active
        first.wait(10)
        assert second.calls == calls


def test_a_function_cannot_close_its_bus(channel: str) -> None:
    errors: Collected[BaseException] = Collected()

    def end() -> None:
        try:
            bus.close()
        except BaseException as error:
            errors.add(error)

    with Bus(channel) as bus:
        bus.every(SHORT, end)
        assert isinstance(errors.first(2, PATIENCE)[1], WouldBlock)
        assert not bus.closed


# --- what it leaves out ---------------------------------------------------------------------------


def test_after_a_long_call_nothing_is_caught_up(channel: str) -> None:
    period = 0.02
    ticks = Ticks()
    with Held() as held, Bus(channel) as bus:

        def block_once(event: Event) -> None:
            ticks(event)
            if len(ticks) == 1:
                held(event)

        with bus.every(period, block_once) as timer:
            assert held.entered.wait(PATIENCE)
            eventually(lambda: timer.statistics()["missed"] >= 40, PATIENCE, "many are missed")
            assert len(ticks) == 1
            opened = time.monotonic()
            held.open()
            first, *calls = ticks.wait(41)
    # Not one of the calls that came was due in the meantime, but perhaps the last.
    assert min(tick.due for tick in calls) >= opened - period
    assert calls[0].event.sequence > 40
    assert first.event.missed + calls[0].event.missed >= 40
    gaps = [after.at - before.at for before, after in itertools.pairwise(calls)]
    assert statistics.median(gaps) == pytest.approx(period, rel=0.3)
    assert statistics.median(tick.event.missed for tick in calls[1:]) == 0
    # Those that were made and those that were left out add up to the number of a call.
    passed = list(itertools.accumulate(tick.event.missed + 1 for tick in (first, *calls)))
    apart = [
        count - tick.event.sequence for count, tick in zip(passed, (first, *calls), strict=True)
    ]
    assert min(apart) >= 0
    assert statistics.median(apart) == 0
    assert timer.statistics()["missed"] >= sum(tick.event.missed for tick in ticks.items)


def test_a_call_that_takes_longer_than_the_period_misses_the_next_ones(channel: str) -> None:
    period = 0.04
    ticks = Ticks(takes=2.5 * period)
    ended: list[float] = []

    def slow(event: Event) -> None:
        ticks(event)
        ended.append(time.monotonic())

    with Bus(channel) as bus:
        with bus.every(period, slow) as timer:
            calls = ticks.wait(12)
        counts = timer.statistics()
    steps = [
        after.event.sequence - before.event.sequence for before, after in itertools.pairwise(calls)
    ]
    # Three, where a call takes no longer than it sleeps.
    assert min(steps) >= 3
    assert (
        statistics.median(
            step - 1 - tick.event.missed for step, tick in zip(steps, calls[1:], strict=True)
        )
        == 0
    )
    # One at a time, and each at the first moment of its own that is free.
    waited = [after.due - end for end, after in zip(ended, calls[1:], strict=False)]
    assert 0 <= statistics.median(waited) <= period
    assert min(after.at - before.at for before, after in itertools.pairwise(calls)) >= (
        2.5 * period
    )
    assert statistics.median(tick.event.late for tick in calls) < period
    assert counts["missed"] >= sum(tick.event.missed for tick in calls)
    assert counts["calls"] == len(ticks)


# --- its end --------------------------------------------------------------------------------------


def test_nothing_is_called_after_close(channel: str) -> None:
    made: list[tuple[Counting, int]] = []
    with Bus(channel) as bus:
        witness = Counting()
        bus.every(SHORT, witness)
        for round_ in range(40):
            counting = Counting()
            timer = bus.every(0.0002, counting)
            if round_ % 4:  # or at once
                counting.wait(round_ % 4)
            timer.close()
            made.append((counting, counting.calls))
            assert timer.statistics()["calls"] == counting.calls
            assert not timer.active
        witness.wait(20)
        assert [counting.calls for counting, _ in made] == [calls for _, calls in made]


def test_a_function_ends_its_own_timer(channel: str) -> None:
    calls: Collected[tuple[bool, dict[str, float]]] = Collected()

    def once() -> None:
        timer.close()
        timer.close()
        calls.add((timer.active, bus.statistics().shares))

    with Bus(channel) as bus:
        timer = bus.every(0.01, once, share=0.5)
        assert calls.first(1, PATIENCE) == [(False, {})]
        witness = Counting()
        bus.every(SHORT, witness, share=1.0)
        witness.wait(20)
        assert len(calls) == 1
        eventually(lambda: timer.statistics()["calls"] == 1, PATIENCE)
        timer.close()
        assert timer.statistics()["failed"] == 0


def test_close_waits_for_the_call_that_runs(channel: str) -> None:
    with Held() as held, Bus(channel) as bus:
        timer = bus.every(SHORT, held)
        assert held.entered.wait(PATIENCE)
        closing = Running(timer.close)
        witness = Counting()
        bus.every(SHORT, witness)  # another thread takes over
        witness.wait(10)
        assert not closing.done
        assert timer.statistics()["calls"] == 0
        held.open()
        closing.result(PATIENCE)
        assert timer.statistics()["calls"] == 1
        timer.close()
        witness.wait(10)
        assert len(held) == 1
        assert not timer.active


def test_threads_that_make_and_end_timers_do_not_disturb_each_other(channel: str) -> None:
    steady = Ticks()
    with Bus(channel) as bus:
        bus.every(0.005, steady)

        def come_and_go() -> list[tuple[Counting, int]]:
            made = []
            for _ in range(50):
                counting = Counting()
                with bus.every(0.0005, counting):
                    counting.wait()
                made.append((counting, counting.calls))
            return made

        running = [Running(come_and_go) for _ in range(4)]
        made = [one for each in running for one in each.result(PATIENCE)]
        count = len(steady)
        steady.wait(count + 5)
        assert [counting.calls for counting, _ in made] == [calls for _, calls in made]
        starts = [tick.due - tick.event.sequence * 0.005 for tick in steady.items]
        assert abs(statistics.median(starts) - min(starts)) < 0.005


def test_a_timer_belongs_to_its_with_and_tells_what_it_is(channel: str) -> None:
    def tick() -> None:
        pass

    with Bus(channel) as bus:
        with bus.every(0.25, tick) as timer:
            assert isinstance(timer, Timer)
            assert timer.active
            assert timer.period == 0.25
            assert timer.name.endswith("tick")
            assert "tick" in repr(timer)
            assert "0.25" in repr(timer)
            with pytest.raises(TypeError, match="in each process"):
                pickle.dumps(timer)
        assert not timer.active
        assert timer.period == 0.25


def test_a_timer_needs_nobody_who_holds_it(channel: str) -> None:
    counting = Counting()
    with Bus(channel) as bus:
        bus.every(SHORT, counting)
        gc.collect()
        counting.wait(10)


@pytest.mark.parametrize("started", [True, False])
def test_a_closed_bus_has_no_timers(channel: str, started: bool) -> None:
    counting = Counting()
    bus = Bus(channel)
    timer = bus.every(0.0005, counting)
    if started:
        bus.start()
        counting.wait()
    bus.close()
    calls = counting.calls
    with pytest.raises(Closed):
        bus.every(0.01, nothing)
    with Bus(channel) as other:
        witness = Counting()
        other.every(SHORT, witness)
        witness.wait(10)
    assert counting.calls == calls
    timer.close()
    assert not timer.active
    assert timer.statistics()["calls"] == calls


def test_closing_a_bus_waits_for_the_call_that_runs(channel: str) -> None:
    with Held() as held:
        bus = Bus(channel).start()
        bus.every(SHORT, held)
        assert held.entered.wait(PATIENCE)
        closing = Running(bus.close)
        eventually(lambda: bus.closed, PATIENCE)
        assert not closing.done
        held.open()
        closing.result(PATIENCE)
        calls = len(held)
        with Bus(channel) as other:
            witness = Counting()
            other.every(SHORT, witness)
            witness.wait(10)
        assert len(held) == calls


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "period",
    [0, 0.0, -1, -0.01, math.nan, math.inf, -math.inf, True, "1", b"1", None, 1j, 9e-6, 86_401],
)
def test_what_is_no_period_is_refused(channel: str, period: Any) -> None:
    with Bus(channel) as bus:
        with pytest.raises(ConfigError, match="period") as refused:
            bus.every(period, nothing, share=1.0)
        assert refused.value.setting == "period"
        assert refused.value.value is period
        assert bus.statistics().shares == {}


@pytest.mark.parametrize("period", [1e-5, 1, 86_400, 86_400.0])
def test_the_shortest_and_the_longest_period_are_allowed(channel: str, period: float) -> None:
    with Bus(channel) as bus:
        timer = bus.every(period, nothing)
        assert timer.period == period
        assert timer.active


async def coroutine() -> None:
    """No function of a timer."""


@pytest.mark.parametrize(
    "function",
    [None, 7, "nothing", [nothing], coroutine, functools.partial(coroutine)],
    ids=["None", "number", "text", "list", "async def", "partial of it"],
)
def test_what_is_no_plain_function_is_refused(channel: str, function: Any) -> None:
    with Bus(channel) as bus:
        with pytest.raises(ConfigError) as refused:
            bus.every(0.01, function, share=1.0)
        assert refused.value.setting == "function"
        assert bus.statistics().shares == {}
        with pytest.raises(TypeError):
            bus.every(0.01)  # type: ignore[call-arg]


# --- shares ---------------------------------------------------------------------------------------


def test_a_timer_holds_a_share_until_it_is_closed(channel: str) -> None:
    def tick() -> None:
        pass

    with Bus(channel) as bus:
        timer = bus.every(SHORT, tick, share=0.25)
        assert list(bus.statistics().shares.values()) == [0.25]
        assert "tick" in next(iter(bus.statistics().shares))
        bus.every(SHORT, nothing)
        other = bus.every(SHORT, nothing, share=0.75)
        assert sorted(bus.statistics().shares.values()) == [0.25, 0.75]
        timer.close()
        assert list(bus.statistics().shares.values()) == [0.75]
        other.close()
        other.close()
        assert bus.statistics().shares == {}
        for _ in range(20):
            with bus.every(SHORT, nothing, share=1.0):
                assert list(bus.statistics().shares.values()) == [1.0]
        assert bus.statistics().shares == {}


def test_more_than_is_left_is_refused_and_leaves_nothing_behind(channel: str) -> None:
    counting = Counting()

    def blink() -> None:
        pass

    with Bus(channel) as bus:
        bus.every(SHORT, blink, share=0.5)
        bus.subscribe("a", lambda event: None, share=0.3)
        with pytest.raises(ConfigError) as refused:
            bus.every(SHORT, counting, share=0.3)
        assert refused.value.setting == "share"
        assert refused.value.value == 0.3
        for fact in ("0.3", "blink: 0.5", "'a': 0.3", "the 0.2 that is left"):
            assert fact in str(refused.value)
        assert sum(bus.statistics().shares.values()) == pytest.approx(0.8)
        with pytest.raises(ConfigError, match=r"blink: 0\.5"):
            bus.subscribe("b", lambda event: None, share=0.3)
        last = Counting()
        bus.every(SHORT, last, share=0.2)
        last.wait(10)
        assert counting.calls == 0


@pytest.mark.parametrize("share", [0, -0.1, 1.1, math.nan, math.inf, True, "half"])
def test_what_is_no_share_is_refused(channel: str, share: Any) -> None:
    with Bus(channel) as bus:
        with pytest.raises(ConfigError) as refused:
            bus.every(0.01, nothing, share=share)
        assert refused.value.setting == "share"
        assert bus.statistics().shares == {}


def test_with_a_share_a_timer_keeps_its_time_in_a_flood(channel: str) -> None:
    """Six handlers that always have work, and two timers: one waits for its turn among them."""
    period, count, flooders = 0.05, 30, 6
    sharing, waiting = Ticks(), Ticks()
    full, done = threading.Event(), threading.Event()

    def work(event: Event) -> None:
        full.wait(PATIENCE)
        if not done.is_set():
            burn(0.0002)

    with Bus(channel, node_config=ONE_THREAD) as bus:
        for number in range(flooders):
            subscription = bus.subscribe(f"flood/{number}", work, capacity=20_000)
            publisher = bus.publisher(f"flood/{number}")
            serves(publisher)
            publisher.publish_many([b"x"] * 20_000)
        full.set()
        bus.every(period, sharing, share=0.2)
        bus.every(period, waiting)
        with_share = [tick.event.late for tick in sharing.wait(count)]
        without = [tick.event.late for tick in waiting.wait(count // 2)]
        assert subscription.pending > 0  # there was work all the while
        done.set()
        assert statistics.median(with_share) < period / 2
        assert statistics.median(without) > 2 * statistics.median(with_share)


# --- whose node, and whose process ----------------------------------------------------------------


def test_timers_of_a_shared_node_end_with_their_bus(channel: str) -> None:
    with Node(1) as node:
        kept = []
        for _ in range(3):
            ticks = Ticks()
            with Bus(channel, node=node) as bus:
                timer = bus.every(SHORT, ticks, share=0.6)
                assert list(bus.statistics().shares.values()) == [0.6]
                ticks.wait(5)
            assert not timer.active
            kept.append((ticks, len(ticks)))
            # What it held is free for the node's own.
            node.on(KIND, lambda source, data: None, share=1.0).close()
        assert [len(ticks) for ticks, _ in kept] == [calls for _, calls in kept]
        # Each counts from the beginning.
        first = [ticks.items[0].event for ticks, _ in kept]
        assert all(1 <= event.sequence <= 1 + event.missed for event in first)
        assert not node.closed


def test_timers_end_with_a_shared_node(channel: str) -> None:
    counting = Counting()
    with Node(1) as node, Bus(channel, node=node) as bus:
        timer = bus.every(SHORT, counting)
        counting.wait(5)
        node.close()
        calls = counting.calls
        with pytest.raises(Closed):
            bus.every(SHORT, nothing)
        with Bus(channel) as other:
            witness = Counting()
            other.every(SHORT, witness)
            witness.wait(10)
        assert counting.calls == calls
        timer.close()
        assert not timer.active


def forking(control: Control, address: str) -> None:
    import os
    import time

    from antiphon import AntiphonError
    from antiphon.topics import Bus

    with Bus(address) as bus:
        calls: list[int] = []
        timer = bus.every(0.001, lambda event: calls.append(event.sequence), share=0.5)
        while len(calls) < 10:
            time.sleep(0.001)
        pid = os.fork()
        if pid == 0:
            before = len(calls)
            tries: dict[str, Callable[[], object]] = {
                "every": lambda: bus.every(0.001, lambda: None),
                "on_conformance": lambda: bus.on_conformance(lambda conformance: None),
                "look": lambda: (timer.period, timer.name, repr(timer)),
                "close": timer.close,
            }
            for name, call in tries.items():
                try:
                    call()
                    outcome = "fine"
                except AntiphonError as error:
                    outcome = f"{type(error).__name__}: {error}"
                except BaseException as error:
                    outcome = f"wrong: {error!r}"
                control.tell("child", call=name, outcome=outcome)
            time.sleep(0.05)
            control.tell("child", call="calls", outcome=str(len(calls) - before))
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        after = len(calls)
        while len(calls) < after + 10:
            time.sleep(0.001)
        timer.close()
        control.tell("parent", calls=calls, shares=bus.statistics().shares)


def test_a_forked_child_has_no_timers_and_its_parent_goes_on(channel: str) -> None:
    with Child(forking, address=channel) as child:
        outcomes = {}
        while (told := child.hear(PATIENCE))["event"] == "child":
            outcomes[told["call"]] = told["outcome"]
        assert "fork" in outcomes["every"]
        assert "fork" in outcomes["on_conformance"]
        assert outcomes["look"] == "fine"
        assert outcomes["close"] == "fine"
        assert outcomes["calls"] == "0"
        assert told["calls"] == sorted(set(told["calls"]))
        assert told["shares"] == {}


ENDING = """
import sys, threading, time
import antiphon

began = threading.Event()

def tick():
    began.set()
    time.sleep(0.2)

bus = antiphon.Bus(sys.argv[1])
bus.every(0.001, tick)
bus.every(0.001, lambda event: None, share=0.5)
bus.start()
began.wait(20)
print("done")
"""


def test_a_program_may_end_while_timers_run(channel: str) -> None:
    """And while one of them is in the middle of a call."""
    ended = subprocess.run(
        [sys.executable, "-c", ENDING, channel],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_a_function_that_a_timer_cannot_call_is_refused(channel: str) -> None:
    calls: Collected[Any] = Collected()

    def two(first: Any, second: Any) -> None:
        calls.add((first, second))

    def named(*, first: Any) -> None:
        """Never called."""

    def any_number(*events: Any) -> None:
        calls.add(events)

    with Bus(channel) as bus:
        for function, names in ((two, "first, second"), (named, "first")):
            with pytest.raises(ConfigError, match=f"needs {names};") as refused:
                bus.every(SHORT, function)
            assert refused.value.setting == "function"
        bus.every(SHORT, any_number)
        assert calls.first(1, PATIENCE) == [()]
        with bus.every(SHORT, functools.partial(two, 1)):
            eventually(lambda: any(len(one) == 2 for one in calls.items), PATIENCE)
