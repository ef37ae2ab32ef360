"""What a node does with what the machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from antiphon import NodeConfig, Schedule
from antiphon.node.kernel import cores, useful_spin


@pytest.fixture
def one_core() -> Iterator[None]:
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    yield
    os.sched_setaffinity(0, mine)


def test_nobody_looks_for_what_cannot_come_meanwhile_on_a_single_core(one_core: None) -> None:
    assert cores() == 1
    assert useful_spin(NodeConfig(spin_us=50)) == 0


def test_threads_before_all_others_sleep_at_once() -> None:
    assert useful_spin(NodeConfig(spin_us=50, schedule=Schedule(fifo_priority=1))) == 0


def test_otherwise_it_is_as_configured() -> None:
    several = cores() > 1
    assert useful_spin(NodeConfig(spin_us=50)) == (50 if several else 0)
    assert useful_spin(NodeConfig()) == (25 if several else 0)
