"""What a run says of itself, from made-up counts: no process is started."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from antiphon._version import __version__
from antiphon.lab.campaign import Campaign
from antiphon.lab.conduct import Conducted
from antiphon.lab.plan import load_plan
from antiphon.lab.protocols import PROTOCOLS, version_of
from antiphon.lab.record import RunFolder

PLAN = """
[times]
kept_until = 3

[[series]]
name = "one"
pattern = "one-way"
protocols = ["tcp-python"]
sizes = [{size}]
{keys}
"""


def conducted(folder: Path, keys: str, size: int) -> Conducted:
    path = folder / "mine.toml"
    path.write_text(PLAN.format(keys=keys, size=size))
    campaign = Campaign.create(load_plan(path), folder / "out")
    (run,) = campaign.runs()
    return Conducted(campaign, run, RunFolder(campaign.directory, run.id))


REQUESTS = 'variants = { tcp-python = ["request"] }'


@pytest.mark.parametrize(
    ("keys", "size", "came", "expected"),
    [
        ("rates = [1000]", 100, 3001, 1.0),
        ("rates = [1000]", 100, 2990, 1.0),
        (REQUESTS, 100, 3001, 1.0),
        # Half of them, or one in many: those are samples.
        ("rates = [1000]", 100, 6000, 2.0),
        ("", 100, 3001, 3001 / 3000),
        ("rates = [1000]\nsenders = [2]\npaced = 1", 100, 3001, 3001 / 3000),
    ],
)
def test_where_every_message_is_timed_a_row_stands_for_one(
    tmp_path: Path, keys: str, size: int, came: int, expected: float
) -> None:
    one = conducted(tmp_path, keys, size)
    one._timed = 3000
    one._kept = [(0, 10, 0), (3_000_000_000, 10 + came, 0)]
    assert one._one_in() == expected


@pytest.mark.parametrize(
    ("protocol", "version"),
    [
        ("udp-python", platform.python_version()),
        ("asyncio", platform.python_version()),
        ("udp-c", __version__),
        ("antiphon-node", __version__),
        ("spread", ""),
    ],
)
def test_what_has_no_package_has_the_version_of_what_it_comes_with(
    protocol: str, version: str
) -> None:
    assert version_of(PROTOCOLS[protocol]) == version
