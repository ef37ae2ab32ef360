"""Campaigns with real processes: what they record, and what they survive."""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from antiphon._version import __version__
from antiphon.cli.main import main
from antiphon.errors import ConfigError
from antiphon.lab.campaign import Campaign, CampaignError
from antiphon.lab.plan import load_plan
from antiphon.lab.protocols import PROTOCOLS, missing
from antiphon.lab.runner import run_campaign
from antiphon.lab.workloads.garbage import GarbageSettings
from antiphon.testing import eventually
from unit.lab.descendants import await_none, await_some, descendants

pytestmark = pytest.mark.timeout(180)

PLAN = """
name = "small"
title = "A small one"
repeats = {repeats}
seed = 3

[times]
load = 0
traffic = 0.2
kept_from = 0.5
kept_until = {until}

[workloads.garbage.garbage]
live_objects = 20_000
core_share = 0.3
replaced_per_second = 2_000
java_live_bytes = "16MiB"

[workloads.cpu-20]
cpu = 0.20

[[series]]
name = "throughput"
pattern = "{pattern}"
protocols = [{protocols}]
sizes = [{size}]
workloads = [{workloads}]
"""


def quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def plan_file(
    folder: Path,
    *protocols: str,
    workloads: list[str] | None = None,
    repeats: int = 1,
    until: float = 2.6,
    pattern: str = "one-way",
    size: int = 2000,
) -> Path:
    path = folder / "small.toml"
    text = PLAN.format(
        repeats=repeats,
        until=until,
        pattern=pattern,
        size=size,
        protocols=quoted(list(protocols)),
        workloads=quoted(workloads or ["none"]),
    )
    path.write_text(text, encoding="utf-8")
    return path


def carried_out(path: Path, out: Path) -> dict[str, dict[str, Any]]:
    run_campaign(Campaign.create(load_plan(path), out))
    return {facts["run"]: facts for facts in map(facts_of, sorted(out.glob("*/run.json")))}


def of_protocols(runs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Without the checks of the links."""
    return {name: facts for name, facts in runs.items() if facts["series"] != "links"}


def facts_of(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts


def test_a_run_records_what_it_promises(tmp_path: Path) -> None:
    out = tmp_path / "out"
    runs = of_protocols(carried_out(plan_file(tmp_path, "antiphon-node", "tcp-python"), out))
    assert {facts["protocol"] for facts in runs.values()} == {"antiphon-node", "tcp-python"}
    for name, facts in runs.items():
        assert (facts["outcome"], facts["reason"]) == ("complete", "")
        assert facts["schema_version"] == 3
        version = {"antiphon-node": __version__, "tcp-python": platform.python_version()}
        assert facts["versions"][facts["protocol"]] == version[facts["protocol"]]
        assert facts["lab_core_share"] > 0
        assert facts["messages_per_second"] > 100
        assert facts["kept_until_ns"] - facts["kept_from_ns"] == 2_100_000_000
        samples = pq.read_table(out / name / "samples.parquet").to_pylist()
        assert {row["role"] for row in samples} == {"reader", "writer", "machine"}
        reader = [row for row in samples if row["role"] == "reader"]
        seconds = [row["second"] for row in reader]
        assert seconds == sorted(seconds)
        assert seconds[0] == 0
        # One for each, and one more where the window ends.
        assert len(seconds) - len(set(seconds)) <= 1
        counts = [row["received_messages"] for row in reader]
        assert counts == sorted(counts)
        assert counts[-1] > 0
        assert reader[-1]["received_bytes"] == 2000 * counts[-1]
        assert reader[-1]["resident_bytes"] > 0
        assert any(row["kept"] for row in samples)
        depths = {row[name] for row in reader for name in ("ring_bytes", "queued_messages")}
        assert (None in depths) == (facts["protocol"] == "tcp-python")
        latency = pq.read_table(out / name / "latency.parquet").to_pylist()
        assert latency
        assert facts["latency_one_in"] >= 1
        assert facts["latency_left_out"] == 0
        for row in latency:
            assert facts["kept_from_ns"] <= row["intended_ns"] < facts["kept_until_ns"]
            assert row["intended_ns"] <= row["sent_ns"] <= row["received_ns"]
        took = sorted((row["received_ns"] - row["intended_ns"]) // 1000 for row in latency)
        # The smallest that so many do not exceed.
        expected = [took[-(-len(took) * part // 100) - 1] for part in (50, 99, 100)]
        assert [facts[f"latency_{name}_us"] for name in ("p50", "p99", "max")] == expected
        events = pq.read_table(out / name / "events.parquet").column("event").to_pylist()
        assert events == ["start", "traffic", "stop"]
    assert (out / "plan.toml").read_text() == (tmp_path / "small.toml").read_text()
    machine = facts_of(out / "machine.json")
    assert machine["cores"] >= 1
    assert 0 <= machine["other_load"] <= 1
    assert all(machine[name] for name in ("cpu", "kernel", "python", "antiphon", "versions"))
    assert {"governor", "load_average", "java", "libc"} <= machine.keys()


def test_load_competes_and_is_recorded(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = plan_file(tmp_path, "tcp-python", "tcp-c", workloads=["garbage", "cpu-20"])
    by_key = {
        (facts["protocol"], facts["workload"]): facts
        for facts in of_protocols(carried_out(path, out)).values()
    }
    for key, facts in by_key.items():
        if key == ("tcp-c", "garbage"):
            assert facts["outcome"] == "not_applicable"
            continue
        assert facts["outcome"] == "complete", facts["reason"]
        if key[1] == "cpu-20":
            assert facts["load"]["cpu_share"] == 0.2
            assert facts["load"]["cpu_share_measured"] > 0
        else:
            samples = pq.read_table(out / facts["run"] / "samples.parquet").to_pylist()
            assert max(row["gc_collections"] or 0 for row in samples) > 0
            garbage = facts["load"]["garbage"]
            assert (garbage["live_objects"], garbage["replaced_per_second"]) == (20_000, 2000)
            assert 0 < garbage["replaced_per_second_measured"] < 4000
            assert garbage["missed"] >= 0


def test_every_workload_with_garbage_has_its_own_numbers(tmp_path: Path) -> None:
    path = plan_file(tmp_path, "tcp-python", workloads=["garbage", "more"])
    more = "[workloads.more.garbage]\nlive_objects = 50_000\nreplaced_per_second = 9_000\n"
    path.write_text(path.read_text() + more)
    out = tmp_path / "out"
    loads = {
        facts["workload"]: facts["load"]["garbage"]
        for facts in of_protocols(carried_out(path, out)).values()
    }
    numbers = {
        name: (load["live_objects"], load["replaced_per_second"]) for name, load in loads.items()
    }
    assert numbers == {"garbage": (20_000, 2000), "more": (50_000, 9000)}
    measured = {name: load["replaced_per_second_measured"] for name, load in loads.items()}
    assert measured["more"] > measured["garbage"] > 0
    assert set(facts_of(out / "campaign.json")["garbage"]) == {"garbage", "more"}


def test_a_campaign_of_the_version_before_has_one_load_for_all(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = plan_file(tmp_path, "tcp-python", workloads=["garbage"])
    Campaign.create(load_plan(path), out)
    facts = facts_of(out / "campaign.json")
    facts |= {"schema_version": 2, "garbage": {"live_objects": 7, "replaced_per_second": 3.0}}
    (out / "campaign.json").write_text(json.dumps(facts))
    found = Campaign.open(out)
    assert found.settled
    assert found.garbage("garbage") == GarbageSettings(7, 3.0)


@pytest.mark.needs("java")
def test_what_a_java_role_replaced_is_recorded(tmp_path: Path) -> None:
    if reason := missing(PROTOCOLS["java-net"]):
        pytest.skip(reason)
    path = plan_file(tmp_path, "java-net", workloads=["garbage"])
    (facts,) = of_protocols(carried_out(path, tmp_path / "out")).values()
    assert facts["outcome"] == "complete", facts["reason"]
    garbage = facts["load"]["garbage"]
    assert (garbage["live_bytes"], garbage["replaced_per_second"]) == (16 << 20, 2000)
    assert 0 < garbage["replaced_per_second_measured"] < 4000


# Those without a collector have to stand up against one too, also when they are alone.
@pytest.mark.parametrize("protocols", [("tcp-python", "tcp-c"), ("tcp-c",)], ids=" ".join)
def test_load_on_the_processor_is_what_the_collectors_load_was_measured_to_take(
    tmp_path: Path, protocols: tuple[str, ...]
) -> None:
    path = plan_file(tmp_path, *protocols, workloads=["as-garbage"])
    later = '[[series]]\nname = "later"\nlater = ["something"]\npattern = "one-way"\n'
    later += 'protocols = ["something"]\nsizes = [64]\nworkloads = ["as-garbage"]\n'
    path.write_text(path.read_text() + "[workloads.as-garbage]\ncpu_as_garbage = true\n" + later)
    out = tmp_path / "out"
    runs = of_protocols(carried_out(path, out))
    use = facts_of(out / "campaign.json")["garbage_use"]
    assert set(use) == {"python"}
    assert use["python"] > 0
    cores = len(os.sched_getaffinity(0))
    assert {facts["protocol"] for facts in runs.values()} == set(protocols)
    for facts in runs.values():
        assert facts["outcome"] == "complete", facts["reason"]
        assert facts["load"]["cpu_share"] == pytest.approx(2 * use["python"] / cores)


@pytest.mark.parametrize("pattern", ["duplex", "n-n"])
def test_everybody_reads_and_writes(tmp_path: Path, pattern: str) -> None:
    path = plan_file(tmp_path, "antiphon-node", pattern=pattern)
    (facts,) = of_protocols(carried_out(path, tmp_path / "out")).values()
    assert facts["outcome"] == "complete", facts["reason"]
    samples = pq.read_table(tmp_path / "out" / facts["run"] / "samples.parquet").to_pylist()
    last = {row["role"]: row for row in samples}
    assert set(last) == {"node-0", "node-1", "machine"}
    for role in ("node-0", "node-1"):
        assert last[role]["received_messages"] > 0
        assert last[role]["sent_messages"] > 0


def test_what_cannot_run_is_absent_with_a_reason_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = plan_file(tmp_path, "spread", "tcp-python", until=1.6)
    by_protocol = {
        facts["protocol"]: facts for facts in carried_out(path, tmp_path / "out").values()
    }
    assert by_protocol["spread"]["outcome"] == "absent"
    assert "registry" in by_protocol["spread"]["reason"]
    assert by_protocol["spread"]["lab_core_share"] is None  # there was nothing to do
    assert by_protocol["tcp-python"]["outcome"] == "complete"


BROKEN = {
    "no endpoint": ("x = 1", "ENDPOINT"),
    "no Python": ("def (", "SyntaxError"),
    "no import": ("import nothing_of_the_kind", "nothing_of_the_kind"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_adapter_is_an_outcome_and_the_others_go_on(tmp_path: Path, what: str) -> None:
    text, word = BROKEN[what]
    (tmp_path / "mine.py").write_text(text)
    path = plan_file(tmp_path, "mine", "tcp-python", until=1.6)
    path.write_text(path.read_text() + '\n[adapters.mine]\nfile = "mine.py"\n')
    out = tmp_path / "out"
    runs = {facts["protocol"]: facts for facts in of_protocols(carried_out(path, out)).values()}
    assert runs["mine"]["outcome"] == "error"
    assert word in runs["mine"]["reason"]
    assert runs["tcp-python"]["outcome"] == "complete"
    assert (out / "adapters" / "mine.py").read_text() == text


def test_an_adapter_that_is_not_there_is_told_before_anything_is_made(tmp_path: Path) -> None:
    path = plan_file(tmp_path, "mine")
    path.write_text(path.read_text() + '\n[adapters.mine]\nfile = "mine.py"\n')
    with pytest.raises(ConfigError, match=r"mine\.py"):
        Campaign.create(load_plan(path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_process_that_dies_is_an_outcome_and_the_campaign_goes_on(tmp_path: Path) -> None:
    """The first run's processes are killed in the middle of it."""
    out = tmp_path / "out"
    campaign = Campaign.create(load_plan(plan_file(tmp_path, "tcp-python", repeats=2)), out)
    killed = False

    before = descendants(os.getpid())

    def kill() -> None:
        nonlocal killed
        eventually(lambda: bool(list(out.glob("throughput*.partial"))), 60)
        victims = await_some(os.getpid(), 2, before)
        time.sleep(1.0)  # in the middle of it, or a little before: the outcome is the same
        os.kill(min(victims), signal.SIGKILL)
        killed = True

    thread = threading.Thread(target=kill)
    thread.start()
    reports = run_campaign(campaign)
    thread.join()
    assert killed
    ours = [report for report in reports if report.run.series != "links"]
    assert [report.outcome for report in ours] == ["disconnected", "complete"]
    assert "signal 9" in ours[0].reason


STUCK = """
import ctypes

from antiphon.lab.peers.sockets_tcp import ENDPOINT as Sockets


class Stuck(Sockets):
    def __init__(self, config, on_data=None):
        came = 0

        def take(data):
            nonlocal came
            came += 1
            if came == 1000:
                ctypes.PyDLL(None).sleep(600)  # and keeps the interpreter to itself
            on_data(data)

        super().__init__(config, take if on_data else None)


ENDPOINT = Stuck
"""


def test_an_adapter_that_is_stuck_ends_its_run_as_blocked_and_the_campaign_goes_on(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(STUCK)
    path = plan_file(tmp_path, "mine", "tcp-python", until=1.6)
    path.write_text(path.read_text() + '\n[adapters.mine]\nfile = "mine.py"\n')
    before = descendants(os.getpid())
    out = tmp_path / "out"
    runs = {facts["protocol"]: facts for facts in of_protocols(carried_out(path, out)).values()}
    assert runs["mine"]["outcome"] == "blocked"
    assert "did not answer within" in runs["mine"]["reason"]
    assert runs["tcp-python"]["outcome"] == "complete"
    await_none(descendants(os.getpid()) - before)


STARTED = [sys.executable, "-m", "antiphon.cli.main", "lab"]


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_campaign_is_resumed_where_it_was_stopped(tmp_path: Path, ending: signal.Signals) -> None:
    path = plan_file(tmp_path, "tcp-python", repeats=3, until=2.0)
    out = tmp_path / "out"
    said = tmp_path / "said"
    with said.open("wb") as notes:
        running = subprocess.Popen([*STARTED, "run", str(path), "--out", str(out)], stderr=notes)
    with running:
        eventually(lambda: len(list(out.glob("throughput*/run.json"))) == 1, 60)
        eventually(lambda: bool(list(out.glob("throughput*.partial"))), 20)
        children = await_some(running.pid, 2)
        running.send_signal(ending)
        assert running.wait(20) != 0
    await_none(children)
    assert (f"antiphon lab resume {out}" in said.read_text()) == (ending != signal.SIGKILL)
    (first,) = out.glob("throughput*/run.json")
    before = first.read_bytes()
    assert main(["lab", "resume", str(out)]) == 0
    assert len(list(out.glob("throughput*/run.json"))) == 3
    assert first.read_bytes() == before
    assert not list(out.glob("*.partial"))


PHASES = {
    "before the first run": "link-tcp.loopback.partial",
    "between the links": "link-tcp.loopback/run.json",
    "while the load is measured": "link-udp.loopback/run.json",
    "processes come up": "throughput*.r1.partial",
    "after a run": "throughput*.r1/run.json",
    "in the last run": "throughput*.r2.partial/*.parquet",
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_campaign_that_is_killed_in_any_phase_is_done_in_the_end(
    tmp_path: Path, phase: str
) -> None:
    # The load is calibrated and measured before the first run: that is a phase as well.
    path = plan_file(tmp_path, "tcp-python", workloads=["garbage"], repeats=2, until=2.0)
    if phase == "while the load is measured":
        text = path.read_text().replace("20_000", '"calibrated"')
        text = text.replace('workloads = ["garbage"]', 'workloads = ["as-garbage"]')
        path.write_text(text + "\n[workloads.as-garbage]\ncpu_as_garbage = true\n")
    out = tmp_path / "out"
    running = subprocess.Popen([*STARTED, "run", str(path), "--out", str(out)], stderr=-3)
    with running:
        eventually(lambda: bool(list(out.glob(PHASES[phase]))), 60)
        children = descendants(running.pid)
        running.kill()
    await_none(children)
    done = {one: one.read_bytes() for one in out.glob("*/run.json")}
    assert main(["lab", "resume", str(out)]) == 0
    assert len(list(out.glob("throughput*/run.json"))) == 2
    assert len(list(out.glob("link-*/run.json"))) == 3
    assert all(one.read_bytes() == before for one, before in done.items())
    assert not list(out.glob("*.partial"))


def test_two_do_not_work_on_one_campaign(tmp_path: Path) -> None:
    out = tmp_path / "out"
    campaign = Campaign.create(load_plan(plan_file(tmp_path, "tcp-python")), out)
    with campaign, pytest.raises(CampaignError, match="another process works"), Campaign.open(out):
        pass


def test_a_directory_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").touch()
    path = plan_file(tmp_path, "tcp-python")
    with pytest.raises(ConfigError, match="not empty"):
        Campaign.create(load_plan(path), out)
    assert [one.name for one in out.iterdir()] == ["precious"]


def test_only_a_campaign_can_be_gone_on_with(tmp_path: Path) -> None:
    out, path = tmp_path / "out", plan_file(tmp_path, "tcp-python")
    Campaign.create(load_plan(path), out)
    with pytest.raises(ConfigError, match=f"go on with that one: antiphon lab resume {out}$"):
        Campaign.create(load_plan(path), out)
    with pytest.raises(ConfigError, match=r"it is a file; give a directory$"):
        Campaign.create(load_plan(path), path)


def test_a_directory_that_cannot_be_made_is_said_to_be_none(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = plan_file(tmp_path, "tcp-python")
    below = path / "out"
    assert main(["lab", "run", str(path), "--out", str(below)]) == 1
    said = capfd.readouterr().err
    wanted = f"no campaign can be written to {below}: Not a directory; give another directory"
    assert said == f"antiphon: {wanted}\n"


@pytest.mark.parametrize("content", [None, "{", "{}", '{"quick": false, "protocols": null}'])
def test_what_is_no_campaign_cannot_be_resumed(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "campaign.json").write_text(content)
    with pytest.raises(ConfigError, match="holds no campaign"):
        Campaign.open(tmp_path)
    assert main(["lab", "resume", str(tmp_path)]) == 2


_ON_A_FULL_DISK = """
import os, sys
from pathlib import Path
from antiphon.lab.campaign import Campaign, CampaignError
from antiphon.lab.plan import load_plan
from antiphon.lab.runner import run_campaign

out = Path(sys.argv[1], "out")
campaign = Campaign.create(load_plan(sys.argv[2]), out)
filling = Path(sys.argv[1], "filling")

def fill(*_):
    with filling.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass

if sys.argv[3] == "at once":
    fill()
try:
    run_campaign(campaign, begin=fill)
except CampaignError as error:
    print(error)
print([one.name for one in out.glob("*.partial")])
filling.unlink()
reports = run_campaign(Campaign.open(out))
print([one.outcome for one in reports if one.run.series != "links"])
"""


@pytest.mark.needs("netns")
@pytest.mark.parametrize(
    ("when", "protocol", "outcome"),
    [("at once", "spread", "absent"), ("in a run", "tcp-python", "complete")],
)
def test_a_full_disk_stops_it_and_says_how_to_go_on(
    tmp_path: Path, when: str, protocol: str, outcome: str
) -> None:
    path, disk = plan_file(tmp_path, protocol, until=1.6), tmp_path / "disk"
    disk.mkdir()
    mount = 'mount -t tmpfs -o mode=0700,size=1m none "$0" && exec "$@"'
    there = ["unshare", "-Urm", "--", "sh", "-c", mount, str(disk)]
    done = subprocess.run(
        [*there, sys.executable, "-c", _ON_A_FULL_DISK, str(disk), str(path), when],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    why, partial, outcomes = done.stdout.splitlines()
    assert "No space left on device" in why
    assert f"antiphon lab resume {disk / 'out'}" in why
    assert (partial, outcomes) == ("[]", f"['{outcome}']")


@pytest.mark.needs("java")
def test_a_program_that_cannot_be_started_is_an_outcome_and_the_campaign_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler has nowhere to put what it makes."""
    if reason := missing(PROTOCOLS["java-net"]):
        pytest.skip(reason)
    (tmp_path / "cache").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    runs = of_protocols(
        carried_out(plan_file(tmp_path, "java-net", "tcp-python"), tmp_path / "out")
    )
    by_protocol = {facts["protocol"]: facts for facts in runs.values()}
    assert by_protocol["java-net"]["outcome"] == "error"
    assert "cache" in by_protocol["java-net"]["reason"]
    assert by_protocol["tcp-python"]["outcome"] == "complete"


def test_a_load_that_cannot_be_had_is_an_outcome(tmp_path: Path) -> None:
    path = plan_file(tmp_path, "tcp-python", workloads=["memory"], until=1.6)
    path.write_text(path.read_text() + "\n[workloads.memory]\nmemory_bytes = 900_000_000_000_000\n")
    (facts,) = of_protocols(carried_out(path, tmp_path / "out")).values()
    assert facts["outcome"] == "error"
    assert "900000000000000" in facts["reason"]


def test_the_command_lists_describes_and_refuses(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "plans"]) == 0
    assert "stability" in capfd.readouterr().out
    assert main(["lab", "run", "stability", "--quick", "--dry-run", "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert len(facts["ids"]) == facts["runs"] == 15
    assert facts["seconds"] < 120
    assert main(["lab", "run", "stability", "--protocols", "carrier-pigeon"]) == 2
    assert "carrier-pigeon" in capfd.readouterr().err
    assert main(["lab", "run", "no-such-plan"]) == 2
    assert capfd.readouterr().err.count("\n") == 1
    assert main(["lab", "resume", str(tmp_path / "nowhere")]) == 2
    assert "holds no campaign" in capfd.readouterr().err


@pytest.mark.needs("java")
@pytest.mark.parametrize("workload", ["none", "garbage"])
def test_a_java_role_is_recorded_like_any_other(tmp_path: Path, workload: str) -> None:
    if reason := missing(PROTOCOLS["java-net"]):
        pytest.skip(reason)
    out = tmp_path / "out"
    path = plan_file(tmp_path, "java-net", workloads=[workload])
    (facts,) = of_protocols(carried_out(path, out)).values()
    assert facts["outcome"] == "complete", facts["reason"]
    assert facts["messages_per_second"] > 100
    samples = pq.read_table(out / facts["run"] / "samples.parquet").to_pylist()
    assert {row["role"] for row in samples} == {"reader", "writer", "machine"}
    assert re.fullmatch(r"java \d+[\w.+]*", facts["versions"]["java-net"])
    assert pq.read_table(out / facts["run"] / "latency.parquet").num_rows > 0


def test_topics_have_rows_of_their_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (facts,) = of_protocols(carried_out(plan_file(tmp_path, "antiphon-topic"), out)).values()
    assert facts["outcome"] == "complete", facts["reason"]
    rows = pq.read_table(out / facts["run"] / "topics.parquet").to_pylist()
    assert {row["topic"] for row in rows} == {"lab/0/1"}
    arrivals = [row["arrivals"] for row in rows]
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] > 0


def test_of_topics_all_is_recorded_that_their_model_needs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (facts,) = of_protocols(carried_out(plan_file(tmp_path, "antiphon-topic"), out)).values()
    assert facts["outcome"] == "complete", facts["reason"]
    table = pq.read_table(out / facts["run"] / "topics.parquet")
    last = table.to_pylist()[-1]
    assert [name for name, value in last.items() if value is None] == ["share"]
    assert 0 < last["handled"] <= last["arrivals"]
    assert 0 < last["responses"] == sum(count for _, count in last["response_classes"])
    assert last["period"] == 0.010
    # As far as they are from different moments of a running handler: two views of one thing.
    mean_slice = last["service_seconds"] / last["busy_slices"]
    assert last["service_squares"] > 0
    assert 0 < mean_slice < 1
    assert last["response_seconds"] > 0


def test_the_bare_link_is_measured_first_and_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = plan_file(tmp_path, "spread")
    runs = carried_out(path, out)
    for check in ("link-ping", "link-tcp", "link-udp"):
        facts = runs[f"{check}.loopback"]
        assert facts["limits"] == {}
        assert facts["versions"] == {"adapter": __version__, check: __version__}
        assert [sorted(host) for host in facts["hosts"]] in (
            [],
            [["clock_error_ns", "clock_offset_ns", "name", "roles"]],
        )
        assert facts["hosts"] or facts["outcome"] == "absent"
        if facts["outcome"] == "absent":
            assert check == "link-ping"  # without the right to a raw socket
            assert "root" in facts["reason"]
        elif check == "link-ping":
            assert pq.read_table(out / f"{check}.loopback" / "latency.parquet").num_rows > 10
            assert 0 < facts["latency_p50_us"] <= facts["latency_p99_us"] <= facts["latency_max_us"]
        else:
            assert facts["outcome"] == "complete", facts["reason"]
            assert facts["bytes_per_second"] > 1e6
            assert facts["messages_per_second"] * facts["size"] == pytest.approx(
                facts["bytes_per_second"]
            )
            lossy = {name: facts.get(name) for name in ("sent", "received", "lost")}
            if check == "link-tcp":
                assert set(lossy.values()) == {None}
            else:
                assert 0 < lossy["received"] <= lossy["sent"]
                assert lossy["lost"] == lossy["sent"] - lossy["received"]
    sizes = {name: facts["size"] for name, facts in runs.items() if name.startswith("link-")}
    assert list(sizes.values()) == [56, 65536, 1472]
    before = (out / "link-tcp.loopback" / "run.json").read_bytes()
    run_campaign(Campaign.open(out))
    assert (out / "link-tcp.loopback" / "run.json").read_bytes() == before


def test_paced_traffic_keeps_its_rate_and_times_every_message(tmp_path: Path) -> None:
    path = plan_file(tmp_path, "tcp-python")
    path.write_text(path.read_text().replace("sizes = ", "rates = [200]\nsizes = "))
    out = tmp_path / "out"
    (facts,) = of_protocols(carried_out(path, out)).values()
    assert facts["outcome"] == "complete", facts["reason"]
    assert facts["rate"] == 200
    assert facts["latency_one_in"] == 1.0
    assert facts["messages_per_second"] < 400  # what was overdue may come in a burst
    rows = pq.read_table(out / facts["run"] / "latency.parquet").to_pylist()
    sequences = [row["sequence"] for row in rows]
    assert sequences == list(range(sequences[0], sequences[0] + len(rows)))
    times = [row["intended_ns"] for row in rows]
    assert all(later - one >= 4_999_999 for one, later in itertools.pairwise(times))


@pytest.mark.parametrize("rate", [None, 10_000])
def test_the_lab_itself_takes_little_of_the_processor(tmp_path: Path, rate: int | None) -> None:
    """Under 2 % of what the run takes: of one that keeps two cores busy, 40 ms a second."""
    path = plan_file(tmp_path, "tcp-python", until=6.5)
    if rate is not None:
        path.write_text(path.read_text().replace("sizes = ", f"rates = [{rate}]\nsizes = "))
    out = tmp_path / "out"
    (facts,) = of_protocols(carried_out(path, out)).values()
    assert facts["outcome"] == "complete", facts["reason"]
    samples = pq.read_table(out / facts["run"] / "samples.parquet").to_pylist()
    spent = 0.0
    for role in ("reader", "writer"):
        rows = [row["cpu_seconds"] for row in samples if row["role"] == role and row["kept"]]
        spent += (rows[-1] - rows[0]) / (len(rows) - 1)
    assert facts["lab_core_share"] < 0.04
    if rate is None:
        assert facts["lab_core_share"] < 0.03 * spent
