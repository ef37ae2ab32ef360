"""``make stress`` runs whatever has full counts, wherever it is, with those counts."""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

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


def dry_run(target: str) -> list[str]:
    """The commands that make would run, where nobody has set what it is to run."""
    return subprocess.run(
        ["make", "--dry-run", target],
        cwd=TESTS.parent,
        env={name: value for name, value in os.environ.items() if name != "TESTS"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.splitlines()


def in_parts() -> ModuleType:
    spec = importlib.util.spec_from_file_location("in_parts", TESTS / "in_parts.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def times_run(parts: list[list[Path]], path: Path) -> int:
    return sum(path == place or place in path.parents for part in parts for place in part)


def test_every_test_with_full_counts_is_in_one_of_the_parts() -> None:
    parts = in_parts().stress_parts()
    for path, name in counting_tests():
        assert times_run(parts, path) == 1, f"{name} of {path}"


@pytest.mark.parametrize("with_spark", [True, False])
def test_with_small_counts_they_are_among_all_tests_but_for_those_of_spark(
    with_spark: bool,
) -> None:
    """``make test``, ``.ci/run`` and ``make asan`` run these parts."""
    parts = in_parts().parts(with_spark)
    spark = TESTS / "stress" / "test_pipeline.py"
    for path, name in counting_tests():
        if TESTS / "lab" in path.parents:
            continue
        needs_spark = path == spark or path.name.startswith(("test_pipeline_", "test_report_"))
        wanted = path != spark if with_spark else not needs_spark
        assert times_run(parts, path) == wanted, f"{name} of {path}"


@pytest.mark.parametrize(("target", "arguments"), [("python-test", ""), ("asan", " --no-spark")])
@pytest.mark.skipif(shutil.which("make") is None, reason="make is missing")
def test_targets_of_all_tests_run_all_parts_with_small_counts(target: str, arguments: str) -> None:
    lines = dry_run(target)
    assert any(f"/python tests/in_parts.py{arguments}" in line for line in lines)
    assert not any("ANTIPHON_STRESS" in line or "-m stress" in line for line in lines)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is missing")
def test_the_target_runs_them_and_the_native_tests_with_full_counts() -> None:
    planned = dry_run("stress")
    full = [line for line in planned if line.startswith("ANTIPHON_STRESS=full ")]
    (python,) = [line for line in full if "/python " in line]
    assert " tests/in_parts.py --stress -m stress " in python
    (native,) = [line for line in full if "/ctest " in line]
    assert "--test-dir build/native" in native
    # Built before, from these sources.
    built = next(line for line in planned if "--build build/native" in line)
    assert planned.index(built) < planned.index(native)
