"""Every shipped plan in its quick form, as it is: what can run here runs to its end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from antiphon.lab.places import cannot_open
from antiphon.lab.plan import load_plan, runs_of, shipped_plans
from antiphon.lab.protocols import missing, protocol_of, unsuited

pytestmark = pytest.mark.timeout(900)


def carried_out(name: str, out: Path) -> dict[str, Any]:
    command = ["lab", "run", name, "--quick", "--out", str(out), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "antiphon.cli.main", *command],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


# The first of them all is followed by the pipeline, in test_pipeline.py.
@pytest.mark.parametrize("name", [name for name in shipped_plans() if name != "stability"])
def test_a_quick_plan_is_carried_out(tmp_path: Path, name: str) -> None:
    told = carried_out(name, tmp_path / "out")
    ended = {run["run"]: run for run in told["runs"]}
    plan = load_plan(name).quick()
    assert set(ended) == {run.id for run in runs_of(plan)}
    for run in runs_of(plan):
        facts, protocol = ended[run.id], protocol_of(plan, run.protocol)
        here = (run.variant or protocol.variants[0], run.stack or "")
        if unsuited(protocol, run, plan.workloads[run.workload]):
            assert facts["outcome"] == "not_applicable", run.id
        elif cannot_open(plan.links[run.link]) or missing(protocol, *here):
            assert facts["outcome"] == "absent", run.id
            assert facts["reason"], run.id
        else:
            assert (facts["outcome"], facts["reason"]) == ("complete", ""), run.id
            assert facts["messages_per_second"] > 0, run.id
            assert facts["latency_one_in"] is not None or run.size < 24, run.id
    links = {run.link for run in runs_of(plan)}
    checks = [one.name for one in (tmp_path / "out").glob("link-*")]
    assert len(checks) == 3 * len(links)
