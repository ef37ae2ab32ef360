"""Folders of processes that were killed: found by their names, and removed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.cli.main import main
from antiphon.lab.bench.processes import Crew
from antiphon.lab.leftovers import PREFIX, owned_folder, remove_folders

KILLED = """
import os, signal
from antiphon.lab.bench.processes import Crew
crew = Crew()
folder = crew.folder()
(folder / "socket").touch()
print(folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def left(folder: Path) -> Path:
    """What a process that was killed has left in a folder for temporary files."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    path = Path(done.stdout.strip())
    assert (path / "socket").exists()
    return path


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_is_not(
    tmp_path: Path,
) -> None:
    gone = left(tmp_path)
    others = tmp_path / f"{PREFIX}-mine"
    others.mkdir()
    with owned_folder(tmp_path) as living:
        (found,) = remove_folders(tmp_path)
        assert (found.what, found.name, found.reason) == ("folder", str(gone), "")
        assert sorted(tmp_path.iterdir()) == sorted([others, Path(living)])
    assert remove_folders(tmp_path) == []


def test_doctor_removes_it_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    gone = left(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["doctor", "--json"]) == 0
    found = [one["name"] for one in json.loads(capfd.readouterr().out)["leftovers"]]
    assert str(gone) in found
    assert not gone.exists()


def test_a_link_to_elsewhere_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    (tmp_path / f"{PREFIX}-1-1-x").symlink_to(precious)
    (found,) = remove_folders(tmp_path)
    assert found.reason
    assert (precious / "file").exists()


def test_the_folders_of_a_crew_go_with_it() -> None:
    with Crew() as crew:
        folder = crew.folder()
        assert folder.is_dir()
    assert not folder.exists()
