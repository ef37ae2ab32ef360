"""Every program in examples/, run as a user would run it, with warnings as errors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)

EXAMPLES = Path(__file__).parents[2] / "examples"

# What each of them prints, among other things.
PRINTS = {
    "all_to_all": [rf"node {own} received 60000 messages" for own in range(2, 6)],
    "arrow_pipeline": [r"sent 200000, kept 100000"],
    "back_pressure": [
        r"send waits: 300 messages took \d",
        r"try_send never waits: \d+ of 300 went",
        r"\d+ of them were handled, the last is 2999",
        r"counted as dropped: [1-9]\d*",
    ],
    "content": [
        r"from Europe: orders \[1, 2, 4\]",
        r"above 100: orders \[1, 3\]",
        r"furniture to sit on: orders \[3, 4\]",
        r"above 100 from Europe: orders \[1\]",
        r"1 of them was no XML",
        r"4711 has ordered",
        r"Tag\(name='room', value='blue'\) is free",
    ],
    "coordinator": [
        r"\w+ coordinates, and is at \d+",
        r"(\w+) was killed; (?!\1)\w+ goes on with \d+",
        r"nobody coordinated for [\d.]+ s",
    ],
    "hello": [r"node 1 says hello", r"and the answer is: hello yourself"],
    "shares": [
        r"shares: \{\"subscription 'alarm'\": 0\.5\}",
        r"120 alarms without a share: median [\d.]+ ms, worst [\d.]+ ms",
        r"120 alarms with a share: median [\d.]+ ms, worst [\d.]+ ms",
        r"predicted [\d.]+ ms on average, measured [\d.]+ ms; bound [\d.]+ ms",
        r"from \d+ events in [\d.]+ s",
    ],
    "topics": [
        r"300 events of \['plant/1/temp', 'plant/2/temp', 'plant/3/temp'\]",
        r"the last is number 100 of plant/3/temp: Reading\(celsius=44\.9\)",
        r"5 were hot, from 44\.5 to 44\.9",
        r"the screen showed \d+ and missed [1-9]\d*",
    ],
    "typed_ping": [r"500 round trips, median \d+ us"],
}
NEEDS = {"arrow_pipeline": ["pyarrow"]}


def programs() -> list[Path]:
    return sorted(EXAMPLES.glob("*.py"))


def test_every_example_says_what_it_prints() -> None:
    assert {path.stem for path in programs()} == set(PRINTS)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=pytest.mark.needs(*NEEDS.get(path.stem, [])))
        for path in programs()
    ],
)
def test_the_example_runs_and_prints_what_it_promises(path: Path, channel: str) -> None:
    # The fixture: whoever runs the examples besides us is on other channels of the same names.
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for pattern in PRINTS[path.stem]:
        assert re.search(pattern, done.stdout), done.stdout


@pytest.mark.parametrize("path", programs(), ids=lambda path: path.stem)
def test_the_example_is_short_and_says_what_it_shows(path: Path) -> None:
    text = path.read_text()
    assert text.startswith('"""')
    assert 20 <= len(text.splitlines()) <= 120
