"""The orders of the probe of idle connections, in this process, and its file descriptors."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from antiphon.lab.bench import idle_worker as subject

Limits = tuple[int, int]


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[Limits]:
    """The limit that is in force, the last of them; every change is one more."""
    seen: list[Limits] = [(256, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: seen[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: seen.append(limits))
    return seen


def test_the_soft_limit_is_raised_to_the_hard_one(limits: list[Limits]) -> None:
    assert subject.too_few_descriptors(4096) == ""
    assert limits == [(256, 4096), (4096, 4096)]
    assert subject.too_few_descriptors(4096) == ""
    assert len(limits) == 2


def test_a_hard_limit_that_is_too_low_is_one_line_that_says_so(limits: list[Limits]) -> None:
    line = subject.too_few_descriptors(4097)
    assert "4,097 file descriptors are needed and RLIMIT_NOFILE allows 4,096" in line
    assert "ulimit -Hn 4097" in line
    assert "\n" not in line
    assert limits == [(256, 4096)]


def test_without_a_hard_limit_there_is_room_for_all(limits: list[Limits]) -> None:
    limits.append((256, resource.RLIM_INFINITY))
    assert subject.too_few_descriptors(1 << 40) == ""


def test_a_thousand_connections_need_no_more_than_many_machines_allow() -> None:
    assert subject.descriptors_for(1, 1000) < 4096
    assert subject.descriptors_for(250, 250) < 4096


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize(
    "order",
    [
        {"order": "open", "connections": 10_000},
        {"order": "call", "first": 2, "count": 10_000, "address": "tcp://127.0.0.1:1"},
    ],
)
def test_both_sides_look_at_the_limit_first(order: dict[str, object]) -> None:
    assert "RLIMIT_NOFILE" in subject.IdleWorker().handle(order)["error"]


@pytest.fixture
def workers() -> Iterator[tuple[subject.IdleWorker, subject.IdleWorker]]:
    measured, callers = subject.IdleWorker(), subject.IdleWorker()
    yield measured, callers
    callers.handle({"order": "close"})
    measured.handle({"order": "close"})


@pytest.mark.usefixtures("limits")
def test_every_connection_carries_a_message_each_way(
    workers: tuple[subject.IdleWorker, subject.IdleWorker],
) -> None:
    measured, callers = workers
    address = measured.handle({"order": "open", "connections": 3})["address"]
    assert callers.handle({"order": "call", "first": 2, "count": 3, "address": address}) == {}
    assert measured.handle({"order": "greet", "connections": 3, "limit": 10.0}) == {}
    assert callers.handle({"order": "greeted", "limit": 10.0}) == {}
    assert measured.handle({"order": "alive"}) == {"alive": 3}
