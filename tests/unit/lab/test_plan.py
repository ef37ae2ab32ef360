"""Plans: what varies, what does not, and what the command line may ask for."""

from __future__ import annotations

from collections import Counter

import pytest

from antiphon.lab.bench.plan import (
    PROCESSES,
    SIZES,
    YARDSTICKS,
    Group,
    Point,
    full_plan,
    left_out,
    parse_peers,
    plan_for,
    quick_plan,
    size_plan,
)
from antiphon.lab.bench.point import Options
from antiphon.lab.bench.run import count_runs, estimate_seconds, order
from antiphon.lab.bench.summary import REACH
from antiphon.lab.peers import PEERS, Requirement


def points_of(groups: list[Group]) -> list[Point]:
    return [point for group in groups for point in group.points]


def test_the_full_plan_varies_one_dimension_at_a_time() -> None:
    for point in points_of(full_plan(PEERS)):
        changed = [
            point.size != 64,
            point.encoding != "raw",
            point.pattern != "one-way",
            point.threads != 1,
        ]
        assert sum(changed) <= 1, point.name


def test_the_full_plan_has_every_size_thread_and_process_count() -> None:
    points = points_of(full_plan(PEERS))
    for system in YARDSTICKS:
        assert {p.size for p in points if p.system == system and p.pattern == "one-way"} == set(
            SIZES
        )
    assert {p.threads for p in points if p.system == "antiphon"} == {1, 2, 4}
    for system in ("antiphon", "pyzmq"):
        many = {p.processes for p in points if p.system == system and p.pattern == "n-n"}
        assert many == set(PROCESSES)


def test_the_full_plan_measures_every_peer_and_every_variant() -> None:
    points = points_of(full_plan(PEERS))
    assert {(p.system, p.variant) for p in points} == {
        (peer.name, variant) for peer in PEERS.values() for variant in peer.variants
    }


def test_what_the_full_plan_leaves_out_is_told() -> None:
    """Every system that can do a group's pattern is in it, or is named beside its title."""
    told = {
        (title, system)
        for line in left_out(PEERS)
        for title in line.partition(": ")[0].split(" and ")
        for system in line.partition(": ")[2].split(", ")
    }
    assert told  # there is something
    for group in full_plan(PEERS):
        measured = {point.system for point in group.points}
        pattern = group.points[0].pattern
        for peer in PEERS.values():
            if group.points[0].variant == "typed":
                continue
            can = pattern in peer.patterns and not (peer.stream and group.points[0].threads > 1)
            named = (group.title, peer.name) in told
            assert (peer.name in measured) + named == can, (group.title, peer.name)
    assert left_out(["antiphon", "pyzmq"]) == []
    (line,) = left_out(["antiphon", "pyzmq", "pynng"])
    assert line.startswith("256 B, one way and 16384 B, one way and full duplex and 2 sending")
    assert line.endswith("threads: pynng")


def test_ours_is_encrypted_at_two_sizes_right_behind_the_same_in_plain() -> None:
    found = {}
    for group in full_plan(PEERS):
        for plain, point in zip(group.points, group.points[1:], strict=False):
            if point.encrypted:
                found[point.size] = plain
    assert found == {size: Point("antiphon", "callback", size=size) for size in (64, 4096)}


def test_a_quick_run_encrypts_nothing_and_a_given_size_is_shown_both_ways() -> None:
    assert not any(point.encrypted for point in points_of(quick_plan(PEERS)))
    ours = [point for point in points_of(size_plan(PEERS, 777)) if point.system == "antiphon"]
    assert [point.variant for point in ours][:2] == ["callback", "tls"]


def test_no_point_is_planned_twice() -> None:
    counts = Counter(points_of(full_plan(PEERS)))
    assert counts.most_common(1)[0][1] == 1


def test_every_point_asks_only_for_what_its_peer_can_do() -> None:
    for point in points_of(full_plan(PEERS)):
        peer = PEERS[point.system]
        assert point.pattern in peer.patterns
        assert point.variant in peer.variants


def test_the_full_plan_has_every_point_that_a_target_needs() -> None:
    points = set(points_of(full_plan(PEERS)))
    for target in REACH:
        assert {*target.points, target.base} <= points, target.measure


def test_the_whole_table_fits_into_twelve_minutes() -> None:
    groups = full_plan(PEERS)
    # As if everything were installed here.
    per_run = estimate_seconds([Group("one", (Point("asyncio", "streams"),))], 1, Options())
    assert count_runs(groups, 3) * per_run < 12 * 60


def test_a_variant_that_lacks_something_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Requirement, "present", lambda self: self.name != "cryptography")
    groups = [Group("one", (Point("antiphon", "callback"), Point("antiphon", "tls")))]
    alone = [Group("one", (Point("antiphon", "callback"),))]
    assert estimate_seconds(groups, 3, Options()) == estimate_seconds(alone, 3, Options()) > 0


def test_the_quick_plan_is_small() -> None:
    groups = quick_plan(YARDSTICKS)
    assert [(p.system, p.variant, p.size) for p in points_of(groups)] == [
        ("antiphon", "callback", 64),
        ("antiphon", "inbox", 64),
        ("antiphon", "batch", 64),
        ("antiphon", "packed", 64),
        ("pyzmq", "push-pull", 64),
        ("antiphon", "callback", 4096),
        ("raw-tcp", "stream", 4096),
    ]


def test_the_quick_plan_without_the_stream_has_no_second_group() -> None:
    assert [group.title for group in quick_plan(("antiphon", "pyzmq"))] == ["64 B, one way"]


def test_a_given_size_is_the_only_size() -> None:
    points = points_of(plan_for(PEERS, size=777, quick=True))
    assert {p.size for p in points} == {777}
    assert {p.pattern for p in points} == {"one-way"}
    assert {p.system for p in points} == set(PEERS)


@pytest.mark.parametrize("size", [0, -1, 1 << 40])
def test_a_size_out_of_range_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        size_plan(PEERS, size)


def test_named_peers_come_beside_ours() -> None:
    assert parse_peers("pyzmq, nats") == ("antiphon", "pyzmq", "nats")
    assert parse_peers("") == tuple(PEERS)
    assert parse_peers("", YARDSTICKS) == YARDSTICKS


def test_an_unknown_peer_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match=r"unknown peer kafka: choose from antiphon, raw-tcp"):
        parse_peers("kafka,pyzmq")


def test_rounds_alternate_and_every_second_one_runs_backwards() -> None:
    (group,) = size_plan(("antiphon", "pyzmq"), 64)
    assert order(group, 0) == group.points
    assert order(group, 1) == group.points[::-1]
    assert order(group, 2) == group.points


def test_a_point_names_what_differs() -> None:
    assert Point("pyzmq", "push-pull").name == "pyzmq push-pull, one-way, 64 B"
    assert Point("antiphon", "callback", "n-n", processes=8).name.endswith("n-n, 64 B, 8 processes")
    assert Point("antiphon", "callback", threads=4).name.endswith("64 B, 4 threads")
