"""kill -9 of a process that records, at random moments: nothing that was acknowledged is gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from integration.recording import PRODUCERS, kill_again_and_again, record_and_kill, verify

pytestmark = pytest.mark.timeout(1500)


@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_acknowledged_outlives_kills_of_its_process(
    tmp_path: Path, seed: int, count: Callable[[int, int], int]
) -> None:
    kill_again_and_again(tmp_path / "store", count(5, 100), seed)


def test_what_was_acknowledged_is_not_taken_twice_after_a_kill(tmp_path: Path) -> None:
    """The second life was told less than the first had heard: the log knows better."""
    path = tmp_path / "store"
    upto = record_and_kill(path, "interval", [0] * PRODUCERS, 6)
    record_and_kill(path, "interval", [number // 2 for number in upto], 6)
    verify(path, upto)
