"""A recording process, killed two hundred times over one store."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.recording import kill_again_and_again
from stress.counting import Count

pytestmark = [pytest.mark.stress, pytest.mark.timeout(3000)]


def test_two_hundred_kills_lose_nothing_that_was_acknowledged(tmp_path: Path, count: Count) -> None:
    kill_again_and_again(tmp_path / "store", count(10, 200), 7)
