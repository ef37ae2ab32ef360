"""``make stress`` runs whatever has full counts, wherever it is, with those counts."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

pytestmark = pytest.mark.timeout(120)


def counting_tests() -> Iterator[tuple[Path, str]]:
    """Tests that take the fixture ``count``; not those that have a parameter of that name."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                (taken,) = [one for one in node.args.args if one.arg == "count"] or [None]
                if taken is not None and ast.unparse(taken.annotation or node) != "int":
                    yield path, node.name


def test_every_test_with_full_counts_is_found_by_the_marker() -> None:
    wanted = list(counting_tests())
    names = {name for _, name in wanted}
    # What the project promises a number for.
    assert names >= {
        "test_hundreds_of_half_open_connections_hold_nobody_up",
        "test_every_message_arrives_once_and_in_its_order",
        "test_no_request_gets_an_answer_that_is_not_its_own",
        "test_two_hundred_peers_share_twenty_connections",
    }
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "stress", str(TESTS)],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert listed.returncode == 0, listed.stdout + listed.stderr
    found = {
        (Path(place).name, test.partition("[")[0])
        for place, _, test in (line.partition("::") for line in listed.stdout.splitlines())
        if test
    }
    assert {(path.name, name) for path, name in wanted} <= found


def test_every_test_with_full_counts_is_in_one_of_the_parts() -> None:
    spec = importlib.util.spec_from_file_location("in_parts", TESTS / "in_parts.py")
    assert spec is not None
    assert spec.loader is not None
    in_parts = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(in_parts)
    places = [place for part in in_parts.stress_parts() for place in part]
    for path, name in counting_tests():
        holders = [place for place in places if path == place or place in path.parents]
        assert len(holders) == 1, f"{name} of {path} is run {len(holders)} times"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is missing")
def test_the_target_runs_them_and_the_native_tests_with_full_counts() -> None:
    planned = subprocess.run(
        ["make", "--dry-run", "stress"],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.splitlines()
    full = [line for line in planned if line.startswith("ANTIPHON_STRESS=full ")]
    (python,) = [line for line in full if "/python " in line]
    assert " tests/in_parts.py --stress -m stress " in python
    (native,) = [line for line in full if "/ctest " in line]
    assert "--test-dir build/native" in native
    # Built before, from these sources.
    built = next(line for line in planned if "--build build/native" in line)
    assert planned.index(built) < planned.index(native)
