"""Processes that may have so much memory and no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from antiphon.cli.main import main
from antiphon.lab import limits
from antiphon.lab.bench.processes import Crew
from antiphon.lab.leftovers import PREFIX
from antiphon.lab.limits import MemoryLimit, remove_leftovers

pytestmark = pytest.mark.timeout(120)

PLAN = """
name = "limited"
memory_limit = "{limit}"

[times]
traffic = 0.2
kept_from = 0.4
kept_until = 2.5

# Not to look at the heap while it is built.
[gc]
thresholds = [1_000_000]

[workloads.heap.garbage]
live_objects = 4_000_000
replaced_per_second = 10

[[series]]
name = "small"
pattern = "one-way"
protocols = ["tcp-python"]
sizes = [2000]
workloads = ["none", "heap"]
"""
GROUPS = "cgroup v2", "cgroup v1"


def plan_file(folder: Path, limit: str, protocol: str = "tcp-python") -> Path:
    path = folder / "limited.toml"
    plan = PLAN.format(limit=limit).replace("tcp-python", protocol)
    path.write_text(plan if protocol == "tcp-python" else plan.replace(', "heap"]', "]"))
    return path


def outcomes(out: Path) -> dict[str, dict[str, Any]]:
    runs = [json.loads(one.read_text()) for one in out.glob("small*/run.json")]
    return {facts["workload"]: facts for facts in runs}


def kind_here() -> str:
    with MemoryLimit(1 << 30) as limit:
        return limit.kind


def test_a_run_that_wants_more_is_out_of_memory_and_the_others_are_not(tmp_path: Path) -> None:
    if kind_here() not in GROUPS:
        pytest.skip("no control groups for memory, or not ours to make: run as root")
    out = tmp_path / "out"
    assert main(["lab", "run", str(plan_file(tmp_path, "150MiB")), "--out", str(out)]) == 0
    found = outcomes(out)
    assert found["none"]["outcome"] == "complete", found["none"]["reason"]
    assert found["none"]["limits"] == {"memory_bytes": 150 << 20, "by": kind_here()}
    assert found["heap"]["outcome"] == "out_of_memory", found["heap"]["reason"]
    assert "signal 9" in found["heap"]["reason"]
    assert groups(os.getpid()) == []


@pytest.mark.needs("netns")
def test_without_control_groups_processes_limit_themselves(tmp_path: Path) -> None:
    out = tmp_path / "out"
    hidden = 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"'
    run = [sys.executable, "-m", "antiphon.cli.main", "lab", "run"]
    run += [str(plan_file(tmp_path, "400MiB")), "--out", str(out)]
    done = subprocess.run(
        ["unshare", "-Urm", "--", "sh", "-c", hidden, "sh", *run],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = outcomes(out)
    assert found["none"]["outcome"] == "complete", found["none"]["reason"]
    assert found["none"]["limits"]["by"] == "RLIMIT_AS"
    assert found["heap"]["outcome"] == "out_of_memory", found["heap"]["reason"]


def test_a_server_and_what_it_starts_have_the_limit_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind_here() not in GROUPS:
        pytest.skip("no control groups for memory, or not ours to make: run as root")
    limited: list[set[int]] = []
    ended = Crew.close

    def look(crew: Crew, timeout: float = 10.0) -> None:
        limited.extend(
            {int(pid) for pid in (group / "cgroup.procs").read_text().split()}
            for group in groups(os.getpid())
        )
        ended(crew, timeout)

    monkeypatch.setattr(Crew, "close", look)
    # As if the kernel had ended one of them, and nobody had noticed.
    monkeypatch.setattr(limits, "_killed", lambda hierarchy, group: True)
    out = tmp_path / "out"
    plan = plan_file(tmp_path, "500MiB", "antiphon-broker")
    assert main(["lab", "run", str(plan), "--out", str(out)]) == 0
    # Its worker and the broker in one group, the reader and the writer in another each.
    assert sorted(len(group) for group in limited) == [1, 1, 2]
    facts = outcomes(out)["none"]
    assert facts["outcome"] == "out_of_memory"
    assert facts["reason"] == "a process wanted more memory than its limit"


_KILLED = """
import os, signal
from antiphon.lab.limits import MemoryLimit
with MemoryLimit(1 << 30) as limit:
    limit.add(os.getpid())
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def groups(process: int) -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"**/{PREFIX}-{process}-*"))


def test_what_a_killed_campaign_leaves_is_found_and_removed() -> None:
    if kind_here() not in GROUPS:
        pytest.skip("no control groups for memory, or not ours to make: run as root")
    done = subprocess.run(
        [sys.executable, "-c", _KILLED], capture_output=True, text=True, timeout=60, check=False
    )
    process = int(done.stdout)
    (left,) = groups(process)
    with subprocess.Popen(["sleep", "60"]) as other, MemoryLimit(1 << 30) as limit:
        # The next campaign has removed it, and has groups of its own that stay.
        assert not left.exists()
        limit.add(other.pid)
        (own,) = groups(os.getpid())
        assert remove_leftovers() == []
        assert own.is_dir()
        other.kill()
        other.wait()
    assert not own.exists()
