"""The mechanism of tests/conftest.py, run on a suite of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

SUITE = """
import pytest
from antiphon.cli import components

gone = components.Component("gone", "nothing", "fetch it from the cellar", lambda: None)
here = components.Component("here", "nothing", "", lambda: "1.0")
components.COMPONENTS.update(gone=gone, here=here)

@pytest.mark.needs("gone")
def test_marked(): raise AssertionError("must not run")

def test_asks_late(need):
    need("here")
    need("gone")
    raise AssertionError("must not run")

@pytest.mark.needs("here")
def test_present(): pass
"""

MANY = """
def test_of_many_files(need_descriptors):
    need_descriptors(100)
    need_descriptors(10**9)
    raise AssertionError("must not run")

def test_of_a_few(need_descriptors):
    need_descriptors(100)
"""


def run(folder: Path, require: str, suite: str = SUITE) -> subprocess.CompletedProcess[str]:
    shutil.copy(CONFTEST, folder / "conftest.py")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = needs(component): x\n")
    (folder / "test_suite.py").write_text(suite)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        cwd=folder,
        # Plugins have no part in it, and take longer to load than all the rest.
        env={**os.environ, "ANTIPHON_REQUIRE": require, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=50,
    )


def test_a_missing_component_skips_and_is_listed_once_at_the_end(tmp_path: Path) -> None:
    done = run(tmp_path, require="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 2 skipped" in done.stdout
    assert "2 tests: gone is missing: fetch it from the cellar" in done.stdout


@pytest.mark.parametrize("require", ["gone", "here, gone"])
def test_a_required_component_that_is_missing_fails(tmp_path: Path, require: str) -> None:
    done = run(tmp_path, require)
    assert done.returncode == 1
    # The marker fails before the test begins, which pytest calls an error.
    assert "1 failed, 1 passed, 1 error" in done.stdout
    assert "ANTIPHON_REQUIRE asks for it" in done.stdout


def test_a_low_limit_of_open_files_skips_and_is_listed_at_the_end(tmp_path: Path) -> None:
    done = run(tmp_path, "gone", MANY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 1 skipped" in done.stdout
    assert "1 test: descriptors is missing: let processes open 1000000000 files" in done.stdout


def test_a_low_limit_of_open_files_fails_where_descriptors_are_required(tmp_path: Path) -> None:
    done = run(tmp_path, "descriptors", MANY)
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert "ANTIPHON_REQUIRE asks for it" in done.stdout


def test_no_test_looks_for_descriptors_in_a_way_of_its_own() -> None:
    tests = CONFTEST.parent
    places = [path for path in tests.rglob("test_*.py") if path != Path(__file__)]
    assert not [path for path in places if re.search(r"skip\(.*descriptors", path.read_text())]
