"""Fixtures that several modules of integration tests take."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from itertools import count as numbers
from pathlib import Path
from typing import Any, TypeVar

import pytest

from integration.loops import LOOPS, Run, run_on
from integration.parties import Party
from integration.tls_tools import Authority

T = TypeVar("T")

_names = numbers(1)


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine function, on each kind of loop in turn."""

    def run(main: Callable[[], Coroutine[Any, Any, T]], debug: bool = False) -> T:
        return run_on(LOOPS[request.param], main, debug)

    return run


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that our nodes trust."""
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another authority of the same name."""
    return Authority(tmp_path_factory.mktemp("theirs"))


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a bus that nobody else is on. Children inherit where it is."""
    # Not tmp_path: a socket's path has 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ap-") as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield "local://plant"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True
    )
    if done.returncode != 0:
        pytest.skip("no right to mount a small file system")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def party() -> Iterator[Party]:
    """Members of a group that nobody else is in."""
    with ExitStack() as stack:
        yield Party(stack, f"test-{next(_names)}-{time.monotonic_ns()}")
