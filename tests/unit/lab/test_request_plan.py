"""The plan of requests: every dimension is there, and every target finds its points."""

from __future__ import annotations

import pytest

from antiphon.lab.bench.plan import PROCESSES, Group, Point
from antiphon.lab.bench.request_plan import QUICK_PEERS, REQUEST_REACH, request_plan
from antiphon.lab.peers.requests import REQUEST_PEERS


def points_of(groups: list[Group]) -> list[Point]:
    return [point for group in groups for point in group.points]


def test_the_plan_has_every_number_of_callers_size_and_processes() -> None:
    ours = [p for p in points_of(request_plan(REQUEST_PEERS)) if p.system == "antiphon"]
    calls = [p for p in ours if p.pattern == "call"]
    assert {(p.threads, p.size) for p in calls if not p.tasks} == {
        (threads, size) for threads in (1, 16, 100) for size in (64, 4096)
    }
    assert {(p.tasks, p.size) for p in calls if p.tasks} == {
        (tasks, size) for tasks in (1, 10, 100, 1000) for size in (64, 4096)
    }
    assert {p.processes for p in ours if p.pattern == "n-n"} == set(PROCESSES)
    assert {p.variant for p in ours} == {"default", "spin", "no-spin"}
    assert {p.variant for p in ours if p.tasks} == {"default"}  # an event loop does not spin


def test_every_peer_and_variant_is_measured_and_no_point_twice() -> None:
    points = points_of(request_plan(REQUEST_PEERS))
    assert len(points) == len(set(points))
    assert {(p.system, p.variant) for p in points} == {
        (peer.name, variant) for peer in REQUEST_PEERS.values() for variant in peer.variants
    }


@pytest.mark.parametrize("quick", [True, False])
def test_every_target_finds_its_points(quick: bool) -> None:
    points = set(points_of(request_plan(QUICK_PEERS if quick else REQUEST_PEERS, quick=quick)))
    for target in REQUEST_REACH:
        assert {*target.points, target.base} <= points, target.measure


def test_a_quick_plan_shows_a_named_peer_without_a_target_once() -> None:
    points = points_of(request_plan(("antiphon", "zenoh"), quick=True))
    assert [p for p in points if p.system == "zenoh"] == [Point("zenoh", "queryable", "call")]


def test_a_size_is_the_only_one() -> None:
    points = points_of(request_plan(("antiphon", "pyzmq"), size=256, quick=True))
    assert {p.size for p in points} == {256}
    assert {p.pattern for p in points} == {"call"}
