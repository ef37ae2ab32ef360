"""The plan of topics: every load is there, and every target finds its points and states them."""

from __future__ import annotations

import pytest

from antiphon.lab.bench.latency import Latency
from antiphon.lab.bench.plan import Group, Point
from antiphon.lab.bench.point import Measurement
from antiphon.lab.bench.summary import Reach, Row, summarise
from antiphon.lab.bench.topic_plan import TOPIC_REACH, topic_plan, topic_reach
from antiphon.lab.peers.topics import TOPIC_PEERS

SHARES = Point("antiphon", "shares", "isolation", 128)


def points_of(groups: list[Group]) -> list[Point]:
    return [point for group in groups for point in group.points]


def test_every_system_has_every_load_and_no_point_comes_twice() -> None:
    points = points_of(topic_plan(TOPIC_PEERS))
    assert len(points) == len(set(points))
    for system in TOPIC_PEERS:
        patterns = {p.pattern for p in points if p.system == system}
        assert patterns == {"one-way", "paced", "half", "isolation"}
    assert {(p.system, p.variant) for p in points} == {
        (peer.name, variant) for peer in TOPIC_PEERS.values() for variant in peer.variants
    }


def test_what_is_half_of_something_comes_after_it() -> None:
    points = points_of(topic_plan(TOPIC_PEERS))
    for half in (p for p in points if p.pattern == "half"):
        most = Point(half.system, half.variant, "one-way", half.size)
        assert points.index(most) < points.index(half)


@pytest.mark.parametrize("quick", [True, False])
def test_every_target_finds_its_points(quick: bool) -> None:
    points = set(points_of(topic_plan(TOPIC_PEERS, quick=quick)))
    for target in TOPIC_REACH:
        assert {*target.points, *target.bases} <= points, target.measure
    assert SHARES in points


def test_a_size_is_the_only_one_and_wins_over_quick() -> None:
    points = points_of(topic_plan(("antiphon", "zenoh"), size=1024, quick=True))
    assert {p.size for p in points} == {1024}
    assert Point("zenoh", "pub-sub", "isolation", 1024) in points


def rows_of(*measurements: Measurement) -> list[Row]:
    points = tuple(dict.fromkeys(item.point for item in measurements))
    return summarise([Group("a group", points)], measurements)


def reach_of(*measurements: Measurement) -> dict[str, Reach]:
    return {item.measure: item for item in topic_reach(rows_of(*measurements))}


def delayed(system: str, pattern: str, p99: float) -> Measurement:
    variant = "event" if system == "antiphon" else "pub-sub"
    latency = Latency(1.0, 2.0, p99, 2 * p99, 3 * p99)
    return Measurement(
        Point(system, variant, pattern, 128), 0, "ok", rate=10_000.0, latency=latency
    )


def test_rates_are_held_against_the_fastest_peer_and_delays_against_the_soonest() -> None:
    rates = [
        Measurement(Point("antiphon", "event", "one-way", 128), 0, "ok", rate=600.0),
        Measurement(Point("pyzmq", "pub-sub", "one-way", 128), 0, "ok", rate=100.0),
        Measurement(Point("zenoh", "pub-sub", "one-way", 128), 0, "ok", rate=150.0),
    ]
    delays = [
        delayed("antiphon", "paced", 90.0),
        delayed("pyzmq", "paced", 200.0),
        delayed("zenoh", "paced", 100.0),
    ]
    reach = reach_of(*rates, *delays)
    rate = reach["128 B, publish one by one to a handler"]
    assert (rate.target, rate.measured) == ("at least 4 x the best peer", 4.0)
    assert rate.note == "best: zenoh"
    delay = reach["128 B, p99 at 10,000/s"]
    assert (delay.target, delay.measured) == ("at most 1 x the best peer", 0.9)
    assert delay.note == "best: zenoh"


def test_a_peer_that_lost_messages_is_named_with_its_losses() -> None:
    lossy = Measurement(
        Point("nats", "pub-sub", "one-way", 128), 0, "lost", "lost 3 of 10", rate=100.0
    )
    ours = Measurement(Point("antiphon", "batch", "one-way", 128), 0, "ok", rate=1000.0)
    batch = reach_of(ours, lossy)["128 B, publish_many to a batch handler"]
    assert batch.measured == 10.0
    assert batch.note == "best: nats; nats lost 3 of 10"


def isolated(p999: float, longest: float, received: int = 1000) -> Measurement:
    return Measurement(
        SHARES,
        0,
        "ok",
        rate=1000.0,
        sent=1000,
        received=received,
        latency=Latency(10.0, 20.0, 30.0, p999, p999),
        figures={"period_us": 10_000.0, "longest_call_us": longest, "scheduled": 1000},
    )


def test_isolation_is_held_against_the_period_and_the_longest_call() -> None:
    reach = reach_of(isolated(5500.0, 1000.0), isolated(6000.0, 2000.0), isolated(22_000.0, 1000.0))
    bound = reach["p99.9 beside a flood, with a share"]
    assert bound.measured == pytest.approx(0.5)
    assert bound.note == "p99.9 6.00 ms; T 10 ms, longest call 1.00 ms"


def test_isolation_counts_what_arrived_of_what_was_due() -> None:
    item = reach_of(isolated(1.0, 1.0), isolated(1.0, 1.0, 900))[
        "arrived beside a flood, with a share"
    ]
    assert (item.target, item.measured, item.note) == ("all", 0.95, "1,900 of 2,000")


def test_without_its_points_nothing_was_reached() -> None:
    assert {item.measured for item in topic_reach([])} == {None}
    assert {item.note for item in topic_reach([])} == {"not part of this run"}


def test_isolation_that_failed_says_why() -> None:
    failed = Measurement(SHARES, 0, "failed", "it ended")
    notes = {item.measured: item.note for item in topic_reach(rows_of(failed))[-2:]}
    assert notes == {None: "it ended"}
