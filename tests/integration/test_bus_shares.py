"""Shares of a node's time: who may have one, what it brings, and what is predicted from it."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from typing import Any, Self

import pytest

from antiphon import Closed, ConfigError, Node, NodeConfig, Schedule, queueing
from antiphon.testing import eventually
from antiphon.topics import Bus, DelayModel, Event, Plan, Subscription
from integration.buses import PATIENCE, Events, burn, serves
from unit.node.pairs import KIND, Running

pytestmark = pytest.mark.timeout(60)

ONE_THREAD = NodeConfig(schedule=Schedule(threads=1))


def nothing(event: Any) -> None:
    """A handler."""


# --- who may have one -----------------------------------------------------------------------------


def test_shares_sum_to_one_and_the_refusal_lists_who_holds_what(channel: str) -> None:
    with Bus(channel) as bus:
        first = bus.subscribe("a", nothing, share=0.5)
        second = bus.subscribe("b/*", nothing, share=0.5)
        with pytest.raises(ConfigError) as refused:
            bus.subscribe("c", nothing, share=0.2)
        assert refused.value.setting == "share"
        assert refused.value.value == 0.2
        for fact in ("0.2", "'c'", "'a': 0.5", "'b/*': 0.5"):
            assert fact in str(refused.value)
        # Nothing is left of the one that was refused.
        assert bus.statistics().subscriptions == 2
        assert bus.publisher("c").subscribers == 0
        assert bus.statistics().shares == {"subscription 'a'": 0.5, "subscription 'b/*'": 0.5}
        assert (first.share, second.share) == (0.5, 0.5)
        bus.subscribe("c", nothing)  # without one there is always room


def test_two_subscriptions_of_one_pattern_hold_each_their_own(channel: str) -> None:
    with Bus(channel) as bus:
        bus.subscribe("a", nothing, share=0.5)
        bus.subscribe("a", nothing, share=0.4)
        with pytest.raises(ConfigError) as refused:
            bus.subscribe("a", nothing, share=0.2)
        assert "0.5" in str(refused.value)
        assert "0.4" in str(refused.value)
        assert "the 0.1 that is left" in str(refused.value)
        assert sum(bus.statistics().shares.values()) == pytest.approx(0.9)


def test_a_share_is_free_again_when_its_subscription_is_closed(channel: str) -> None:
    with Bus(channel) as bus:
        for _ in range(5):
            whole = bus.subscribe("a", nothing, share=1.0)
            with pytest.raises(ConfigError):
                bus.subscribe("b", nothing, share=0.01)
            whole.close()
            assert bus.statistics().shares == {}
        ended = threading.Event()

        def once(event: Event) -> None:
            own.close()
            ended.set()

        own = bus.subscribe("a", once, share=1.0)
        bus.publisher("a").publish(b"x")
        assert ended.wait(PATIENCE)
        bus.subscribe("b", nothing, share=1.0)


def test_a_share_can_be_changed_and_a_change_that_is_refused_leaves_it(channel: str) -> None:
    with Bus(channel) as bus:
        one, other = bus.subscribe("a", nothing), bus.subscribe("b", nothing, share=0.6)
        assert one.share is None
        one.share = 0.3
        assert one.share == 0.3
        one.share = 0.4
        with pytest.raises(ConfigError, match=r"'b': 0\.6"):
            one.share = 0.5
        assert one.share == 0.4
        other.share = None
        assert other.share is None
        one.share = 1
        assert one.share == 1.0
        with pytest.raises(ConfigError, match="'a': 1"):
            other.share = 0.1
        one.share = None
        assert bus.statistics().shares == {}


@pytest.mark.parametrize("share", [0, -0.1, 1.1, math.nan, math.inf, True, "half", b"1"])
def test_what_is_no_share_is_refused(channel: str, share: Any) -> None:
    with Bus(channel) as bus:
        with pytest.raises(ConfigError) as refused:
            bus.subscribe("a", nothing, share=share)
        assert refused.value.setting == "share"
        subscription = bus.subscribe("a", nothing, share=0.5)
        with pytest.raises(ConfigError):
            subscription.share = share
        assert subscription.share == 0.5


def test_a_subscription_that_is_iterated_has_no_share(channel: str) -> None:
    with Bus(channel) as bus:
        with pytest.raises(ConfigError) as refused:
            bus.subscribe("a", share=0.5)
        assert refused.value.setting == "share"
        with pytest.raises(ConfigError) as refused:
            bus.subscribe("a", batch=True)
        assert refused.value.setting == "batch"
        subscription = bus.subscribe("a")
        assert subscription.share is None
        with pytest.raises(ConfigError):
            subscription.share = 0.5
        with pytest.raises(ConfigError):
            subscription.predict()
        with pytest.raises(ConfigError):
            subscription.calibrate(0.1, 1.0)


def test_all_tasks_of_a_node_share_one_sum(channel: str) -> None:
    with Node(1) as node, Bus(channel, node=node) as bus:
        messages = node.on(KIND, lambda source, data: None, share=0.5)
        timer = bus.every(1.0, lambda: None, share=0.2)
        with pytest.raises(ConfigError) as refused:
            bus.subscribe("a", nothing, share=0.4)
        assert f"kind {KIND}: 0.5" in str(refused.value)
        assert "0.2" in str(refused.value)
        bus.subscribe("a", nothing, share=0.3)
        with pytest.raises(ConfigError, match=r"'a': 0\.3"):
            node.on(KIND + 1, lambda source, data: None, share=0.1)
        messages.close()
        timer.close()
        bus.subscribe("b", nothing, share=0.7)


def test_another_bus_has_time_of_its_own(channel: str) -> None:
    with Bus(channel) as one, Bus(channel) as other:
        one.subscribe("a", nothing, share=1.0)
        other.subscribe("a", nothing, share=1.0)


# --- what it brings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shares",
    [
        [0.7, 0.3],
        [0.5, 0.3, 0.2],
        [0.1, 0.2, 0.3, 0.4],
        [0.4, 0.3, 0.1, 0.1, 0.1],
        [0.5, None, None],
        [0.6, 0.2, None],
    ],
    ids=str,
)
def test_busy_handlers_get_the_processor_by_their_shares(
    channel: str, shares: list[float | None]
) -> None:
    """Those without a share divide what is left."""
    rest = 1 - sum(share or 0 for share in shares)
    wanted = [share or rest / shares.count(None) for share in shares]
    events = 4500
    enough = 1.2  # seconds of processor time for all of them together
    # Nobody runs out of work meanwhile.
    assert max(wanted) * enough < events * 0.0002
    started, done = threading.Event(), threading.Event()
    used: list[float] = []

    def work(event: Event) -> None:
        started.wait(PATIENCE)
        burn(0.0002)
        # On the one thread that runs them all: nobody moves while it looks.
        if not used and sum(times := [time_of(one) for one in subscriptions]) >= enough:
            used.extend(times)
            done.set()

    with Bus(channel, node_config=ONE_THREAD) as bus:
        subscriptions = [
            bus.subscribe(f"topic/{number}", work, share=share, capacity=2 * events)
            for number, share in enumerate(shares)
        ]
        for number in range(len(shares)):
            publisher = bus.publisher(f"topic/{number}")
            serves(publisher)
            publisher.publish_many([b"x"] * events)
        started.set()
        assert done.wait(50)
        for subscription in subscriptions:
            subscription.close()
    parts = [one / sum(used) for one in used]
    assert parts == [pytest.approx(want, abs=0.05) for want in wanted]


def time_of(subscription: Subscription) -> float:
    """Seconds of a processor that its handler has had."""
    return float(subscription._core.meter()["used"])  # type: ignore[union-attr]


def test_what_an_idle_share_leaves_goes_to_whoever_has_work(channel: str) -> None:
    def has_all() -> bool:
        done = threading.Event()
        count = 0

        def work(event: Event) -> None:
            nonlocal count
            burn(0.0002)
            count += 1
            if count == 1500:
                done.set()

        with Bus(channel, node_config=ONE_THREAD) as bus:
            bus.subscribe("idle", nothing, share=0.9)
            busy = bus.subscribe("busy", work, share=0.1)
            publisher = bus.publisher("busy")
            serves(publisher)
            publisher.publish_many([b"x"] * 1500)
            assert done.wait(50)
            meter = busy._core.meter()  # type: ignore[union-attr]
            assert meter["used"] >= 0.28
            # Held to its tenth it would have waited nine times as long as it ran.
            return bool(meter["resumed"] + meter["waited"] < meter["lasted"])

    # One of three: the machine may do something else just between two of its turns.
    assert any(has_all() for _ in range(3))


# --- how the threads run --------------------------------------------------------------------------


def compute(event: Event) -> None:
    """Lets the interpreter's lock go, for longer than a slice by the clock: on a machine with much
    else to do that takes little of a processor, and an event is done soon all the same."""
    until = time.monotonic() + 0.02
    while time.monotonic() < until:
        hashlib.pbkdf2_hmac("sha256", b"x", b"y", 5_000)


def keep_busy(bus: Bus, *topics: str) -> None:
    """With more than will be done: each has work all the while, however they are served."""
    for topic in topics:
        bus.publisher(topic).publish_many([b"x"] * 3000)


def work(events: int, *subscriptions: Subscription) -> None:
    """Returns when each of them has handled so many more."""
    wanted = [one.statistics()["handled"] + events for one in subscriptions]
    eventually(
        lambda: all(
            one.statistics()["handled"] >= count
            for one, count in zip(subscriptions, wanted, strict=True)
        ),
        2 * PATIENCE,
        f"{events} events of each are handled",
    )


def test_how_many_threads_run_at_once_is_measured_from_the_first_share_on(channel: str) -> None:
    """Handlers that let the interpreter's lock go, each for longer than a slice."""

    def sleep(event: Event) -> None:
        time.sleep(0.02)

    config = NodeConfig(schedule=Schedule(threads=2))
    with Bus(channel, node_config=config) as bus:
        first, second = bus.subscribe("a", sleep), bus.subscribe("b", sleep)
        assert bus.statistics().threads == 0
        keep_busy(bus, "a", "b")
        work(5, first, second)
        before = bus.statistics()
        assert before.threads == 2
        assert all(map(math.isnan, (before.at_once, before.running, before.largest_share)))
        first.share = 0.3
        work(20, first, second)
        slept = bus.statistics()
        # The second enters when the first has overrun two slices.
        assert 1.3 < slept.at_once <= 2.0
        assert 0 <= slept.running < 0.3
        first.close()
        second.close()
        both = [bus.subscribe(topic, compute, share=0.3) for topic in ("a", "b")]
        keep_busy(bus, "a", "b")
        work(20, *both)
        after = bus.statistics()
        assert slept.running < after.running <= 1.0
        assert 1.3 < after.at_once <= 2.0
        limit = queueing.largest_share(2, after.running)
        assert limit - 1e-9 <= after.largest_share < queueing.largest_share(1, after.running)
        for one in both:
            one.close()


def test_a_share_that_the_threads_cannot_give_is_told_by_the_prediction(channel: str) -> None:
    config = NodeConfig(schedule=Schedule(threads=2))
    with Bus(channel, node_config=config) as bus:
        subscription = bus.subscribe("a", compute, share=0.99)
        rival = bus.subscribe("b", compute)
        keep_busy(bus, "a", "b")
        work(30, subscription, rival)
        # A prediction is of the last ten seconds, and may have to wait for enough of those.
        eventually(lambda: "too few" not in subscription.predict().basis, 2 * PATIENCE)
        model = subscription.predict()
        assert "a share of 0.99 is above 0." in model.basis
        assert "threads at once" in model.basis
        for one in (subscription, rival):
            one.close()


def test_one_handler_of_python_at_a_time_can_have_all_of_the_time(channel: str) -> None:
    with Bus(channel, node_config=NodeConfig(schedule=Schedule(threads=2))) as bus:
        # More than half of two threads, were both to run.
        subscription = bus.subscribe("a", nothing, share=0.6)
        bus.publisher("a").publish_many([b"x"] * 1000)
        eventually(lambda: subscription.statistics()["handled"] == 1000, PATIENCE)
        assert 0 < bus.statistics().running <= 1.0
        assert bus.statistics().largest_share > 0.6
        assert "is above" not in known(subscription).basis


# --- what is predicted ----------------------------------------------------------------------------


def test_a_prediction_from_nothing_says_so(channel: str) -> None:
    config = NodeConfig(schedule=Schedule(period=0.02))
    with Bus(channel, node_config=config) as bus:
        subscription = bus.subscribe("a", nothing, share=0.3)
        publisher = bus.publisher("a")
        publisher.publish_many([b"x"] * 5)
        eventually(lambda: subscription.statistics()["handled"] == 5, PATIENCE)
        model = subscription.predict()
        assert isinstance(model, DelayModel)
        numbers = (
            model.arrival_rate,
            model.service_rate,
            model.utilisation,
            model.mean_wait,
            model.mean_response,
            model.p99_response,
            model.bound,
            model.worst_wait,
            model.queue_length,
            model.little_wait,
            model.full_probability,
        )
        assert all(math.isnan(number) for number in numbers)
        assert "too few" in model.basis
        assert model.period == 0.02
        assert isinstance(model.stable, bool)
        assert isinstance(model.conformant, bool)
        assert "too few" in str(model)


class Steady:
    """A publisher that goes on in a thread of its own."""

    def __init__(self, bus: Bus, topic: str, distance: float) -> None:
        self._publisher = bus.publisher(topic)
        self._distance = distance
        self._stop = threading.Event()
        self._running = Running(self._publish)

    def _publish(self) -> None:
        while not self._stop.wait(self._distance):
            self._publisher.publish(b"x")

    def stop(self) -> None:
        self._stop.set()
        self._running.result(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def known(subscription: Subscription) -> DelayModel:
    """The first prediction that is one."""

    def look() -> DelayModel | None:
        model = subscription.predict()
        return None if math.isnan(model.mean_response) else model

    return eventually(look, PATIENCE, "enough is known")  # type: ignore[return-value]


def test_a_prediction_from_traffic_agrees_with_itself(channel: str) -> None:
    def work(event: Event) -> None:
        burn(0.0003)

    with Bus(channel) as bus:
        subscription = bus.subscribe("a", work, share=0.5, capacity=100)
        with Steady(bus, "a", 0.002):
            model = known(subscription)
        assert 0 < model.arrival_rate < 600
        assert 0 < model.service_rate <= 1 / 0.0003
        assert model.utilisation == pytest.approx(model.arrival_rate / (0.5 * model.service_rate))
        assert 0 <= model.mean_wait <= model.mean_response <= model.p99_response
        assert model.mean_response >= 1 / model.service_rate * 0.99
        assert model.queue_length >= 0
        assert model.little_wait == pytest.approx(model.queue_length / model.arrival_rate)
        assert 0 <= model.full_probability <= 1
        assert model.bound > 0
        assert 0 < model.measured_response <= model.measured_max * 1.01
        assert 0 < model.measured_p99 <= model.measured_max * 1.1
        if model.stable and model.conformant:
            assert model.worst_wait == model.period == 0.01
        assert "events in" in model.basis


def test_without_a_share_there_is_no_bound(channel: str) -> None:
    with Bus(channel) as bus:
        subscription = bus.subscribe("a", nothing)
        with Steady(bus, "a", 0.002):
            model = known(subscription)
        assert math.isnan(model.bound)
        assert model.worst_wait == math.inf
        assert "no share" in model.basis
        assert model.utilisation == pytest.approx(model.arrival_rate / model.service_rate)


def test_more_than_a_share_guarantees_is_not_stable(channel: str) -> None:
    """It gets it done nevertheless, as nobody else wants the time; nobody promises that."""

    def work(event: Event) -> None:
        burn(0.001)

    with Bus(channel) as bus:
        subscription = bus.subscribe("a", work, share=0.05)
        with Steady(bus, "a", 0.0):
            model = eventually(
                lambda: (now := known(subscription)).utilisation > 1 and now, PATIENCE
            )
            subscription.close()
        assert isinstance(model, DelayModel)
        assert not model.stable
        assert model.worst_wait == math.inf
        assert "more comes than is guaranteed" in model.basis


# --- calibration ----------------------------------------------------------------------------------


def test_calibration_finds_that_a_modest_wish_is_met(channel: str) -> None:
    with Bus(channel) as bus:
        subscription = bus.subscribe("a", nothing, share=0.2)
        with Steady(bus, "a", 0.002):
            plan = subscription.calibrate(mean_delay=5.0, timeout=6.0)
        assert isinstance(plan, Plan)
        assert plan.feasible
        assert plan.share == subscription.share
        assert subscription.share is not None
        assert subscription.share >= 0.2
        assert 0 < plan.measured <= 5.0


def test_calibration_has_the_patience_that_a_slow_topic_takes(channel: str) -> None:
    with Bus(channel) as bus:
        subscription = bus.subscribe("a", nothing, share=0.2)
        with Steady(bus, "a", 0.05):  # a first look of half a second would see ten
            plan = subscription.calibrate(mean_delay=5.0, timeout=20.0)
        assert plan.feasible, plan
        assert subscription.predict().measured_p99 <= subscription.predict().measured_max


def test_calibration_says_what_cannot_be_had_and_leaves_the_share(channel: str) -> None:
    seen: list[float | None] = []

    def work(event: Event) -> None:
        burn(0.0005)
        seen.append(subscription.share)

    with Bus(channel) as bus:
        bus.subscribe("b", nothing, share=0.7)
        subscription = bus.subscribe("a", work, share=0.1)
        with Steady(bus, "a", 0.001):
            plan = subscription.calibrate(mean_delay=1e-7, timeout=4.0)
        assert not plan.feasible
        assert plan.share == subscription.share == 0.1
        assert plan.measured > 1e-7
        assert plan.basis
        # It tried, within what was left.
        assert max(share or 0 for share in seen) > 0.1
        assert max(share or 0 for share in seen) <= 0.3 + 1e-9


def test_calibration_without_traffic_measures_nothing(channel: str) -> None:
    with Bus(channel) as bus:
        subscription = bus.subscribe("a", nothing)
        began = time.monotonic()
        plan = subscription.calibrate(mean_delay=0.1, timeout=1.0)
        assert time.monotonic() - began < 10
        assert not plan.feasible
        assert math.isnan(plan.measured)
        assert plan.share is None is subscription.share
        for delay in (0, -1.0, math.nan):
            with pytest.raises(ConfigError):
                subscription.calibrate(mean_delay=delay, timeout=1.0)


@pytest.mark.parametrize("what", ["bus", "subscription"])
def test_calibration_ends_when_its_owner_is_closed(channel: str, what: str) -> None:
    events = Events()
    with Bus(channel) as bus:
        subscription = bus.subscribe("a", events)
        with Steady(bus, "a", 0.002) as steady:
            events.wait(3)
            calibrating = Running(lambda: subscription.calibrate(mean_delay=1e-9, timeout=600.0))
            time.sleep(0.1)
            assert not calibrating.done
            steady.stop()
            if what == "bus":
                bus.close()
            else:
                subscription.close()
            assert isinstance(calibrating.error(PATIENCE), Closed)
