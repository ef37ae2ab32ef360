"""Roles on other machines: here, two names of this one, behind a real server of SSH."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from antiphon.cli.main import main
from antiphon.lab import remote
from antiphon.lab.bench.processes import Child
from antiphon.lab.peers.base import free_port
from antiphon.lab.remote import take_clock
from antiphon.testing import eventually

pytestmark = [pytest.mark.timeout(180), pytest.mark.needs("ssh", "sshd")]

PLAN = """
name = "far"
title = "Elsewhere"

[times]
traffic = 0.5
kept_from = 1
kept_until = {until}

[workloads.busy]
cpu = 0.10

[links.far]
kind = "ssh"
hosts = [{hosts}]
python = "{python}"

[[series]]
name = "throughput"
pattern = "one-way"
protocols = [{protocols}]
sizes = [2000]
workloads = ["{workload}"]
links = ["far"]

{more}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A server that knows one key, and the configuration of a client that has it."""
    folder = tmp_path_factory.mktemp("ssh")
    for key in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(command, check=True, timeout=30)
    public = (folder / "user.pub").read_text()
    (folder / "authorized").write_text(public)
    port = free_port()
    (folder / "sshd").write_text(
        f"Port {port}\nListenAddress 0.0.0.0\nHostKey {folder}/host\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nPermitRootLogin prohibit-password\nMaxStartups 50\n"
    )
    key = " ".join((folder / "host.pub").read_text().split()[:2])
    (folder / "known").write_text(f"[127.0.0.1]:{port} {key}\n[127.0.0.2]:{port} {key}\n")
    common = (
        f"Port {port}\nIdentityFile {folder}/user\nIdentitiesOnly yes\n"
        f"UserKnownHostsFile {folder}/known\n"
    )
    (folder / "config").write_text(
        f"Host east\nHostName 127.0.0.1\n{common}Host west\nHostName 127.0.0.2\n{common}"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    program = "/usr/sbin/sshd"
    running = subprocess.Popen(
        [program, "-D", "-e", "-f", str(folder / "sshd")], stderr=subprocess.DEVNULL
    )
    with running:
        eventually(lambda: _listens(port), 20)
        yield folder
        running.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(autouse=True)
def by_this_server(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(remote.SSH, f"ssh -F {server / 'config'}")
    remote.cannot_reach.cache_clear()
    remote.address_of.cache_clear()


def plan_text(
    *protocols: str,
    hosts: tuple[str, ...] = ("east", "west"),
    python: str = sys.executable,
    workload: str = "none",
    until: float = 3.2,
    more: str = "",
) -> str:
    return PLAN.format(
        hosts=json.dumps(list(hosts))[1:-1],
        protocols=json.dumps(list(protocols))[1:-1],
        python=python,
        workload=workload,
        until=until,
        more=more,
    )


def carried_out(folder: Path, *protocols: str, **keys: Any) -> dict[str, dict[str, Any]]:
    path, out = folder / "far.toml", folder / "out"
    path.write_text(plan_text(*protocols, **keys))
    assert main(["lab", "run", str(path), "--out", str(out)]) == 0
    runs = [json.loads(one.read_text()) for one in out.glob("throughput*/run.json")]
    return {facts["protocol"]: facts for facts in runs}


def test_roles_run_on_other_hosts_and_everything_is_recorded(tmp_path: Path) -> None:
    runs = carried_out(tmp_path, "tcp-python", "pyzmq")
    for facts in runs.values():
        assert (facts["outcome"], facts["reason"]) == ("complete", "")
        hosts = {host["name"]: host for host in facts["hosts"]}
        assert (hosts["east"]["roles"], hosts["west"]["roles"]) == ([0], [1])
        for host in hosts.values():
            # It is the same machine, so the true offset is nought.
            assert abs(host["clock_offset_ns"]) <= host["clock_error_ns"]
            assert 0 < host["clock_error_ns"] < 1_000_000_000
        samples = pq.read_table(tmp_path / "out" / facts["run"] / "samples.parquet").to_pylist()
        seen = {(row["host"], row["role"]) for row in samples}
        assert {("east", "reader"), ("west", "writer")} <= seen
        assert {("east", "machine"), ("west", "machine"), ("local", "machine")} <= seen
        reader = [row for row in samples if row["role"] == "reader"]
        assert reader[-1]["received_messages"] > 0
        assert reader[-1]["resident_bytes"] > 1 << 20
        latency = pq.read_table(tmp_path / "out" / facts["run"] / "latency.parquet")
        assert latency.num_rows > 0


AHEAD = 3600 * 1_000_000_000
ANOTHER_CLOCK = f"""
import time
true_ns, true = time.monotonic_ns, time.monotonic
time.monotonic_ns = lambda: true_ns() + {AHEAD}
time.monotonic = lambda: true() + {AHEAD} / 1e9
"""


def test_the_ping_between_hosts_lies_in_its_window(tmp_path: Path) -> None:
    # There, an hour has gone by: as on any machine that was started at another time.
    (tmp_path / "sitecustomize.py").write_text(ANOTHER_CLOCK)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    carried_out(tmp_path, "tcp-python", python=str(python))
    folder = tmp_path / "out" / "link-ping.far"
    facts = json.loads((folder / "run.json").read_text())
    assert facts["outcome"] == "complete", facts["reason"]
    (host,) = facts["hosts"]
    assert (host["name"], host["roles"]) == ("east", [0])
    assert abs(host["clock_offset_ns"] - AHEAD) <= host["clock_error_ns"]
    rows = pq.read_table(folder / "latency.parquet").to_pylist()
    assert rows
    for row in rows:
        assert row["source"] == 0
        due = row["intended_ns"] - host["clock_offset_ns"]
        assert facts["kept_from_ns"] <= due < facts["kept_until_ns"]


def test_every_host_that_takes_part_is_described(tmp_path: Path) -> None:
    carried_out(tmp_path, "tcp-python")
    machine = json.loads((tmp_path / "out" / "machine.json").read_text())
    assert set(machine["hosts"]) == {"east", "west"}
    for host in machine["hosts"].values():
        # It is the same machine, under other names.
        for name in ("cpu", "cores", "kernel", "python", "antiphon", "host"):
            assert host[name] == machine[name]
        assert {"governor", "load_average", "other_load", "java", "libc"} <= host.keys()


@pytest.mark.parametrize("protocol", ["java-net", "mine"])
def test_what_runs_on_this_machine_only_says_so(tmp_path: Path, protocol: str) -> None:
    (tmp_path / "mine.py").write_text("from antiphon.lab.peers.sockets_tcp import ENDPOINT\n")
    more = '[adapters.mine]\nfile = "mine.py"\n'
    (facts,) = carried_out(tmp_path, protocol, more=more).values()
    assert facts["outcome"] == "absent"
    assert "this machine only" in facts["reason"]


def test_ctrl_c_takes_down_what_runs_on_other_hosts(tmp_path: Path) -> None:
    path, out = tmp_path / "far.toml", tmp_path / "out"
    path.write_text(plan_text("tcp-python", until=120))
    before = _workers()
    command = [sys.executable, "-m", "antiphon.cli.main", "lab", "run", str(path)]
    with subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.PIPE) as running:
        try:
            # Both roles send and receive: the run has samples, and its workers are there.
            eventually(lambda: bool(list(out.glob("throughput*.partial"))), 90)
            started = eventually(lambda: len(_workers() - before) >= 2 and _workers() - before, 60)
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=60)
        finally:
            running.kill()
    assert running.returncode != 0
    assert f"antiphon lab resume {out}" in said.decode()
    eventually(lambda: not (started & _workers()), 30)
    assert not list(out.glob("throughput*"))


def test_the_load_competes_where_the_roles_are(tmp_path: Path) -> None:
    (facts,) = carried_out(tmp_path, "tcp-python", workload="busy").values()
    assert facts["outcome"] == "complete", facts["reason"]
    assert facts["load"]["cpu_share"] == 0.1
    assert facts["load"]["cpu_share_measured"] > 0


@pytest.mark.parametrize(
    ("hosts", "python", "reason"),
    [
        (("nowhere.invalid",), sys.executable, "nowhere.invalid"),
        (("east",), "/no/such/python", "antiphon[lab]"),
        (("east",), "/usr/bin/env", "antiphon[lab]"),
    ],
)
def test_a_host_that_cannot_take_part_is_a_row_with_a_reason(
    tmp_path: Path, hosts: tuple[str, ...], python: str, reason: str
) -> None:
    (facts,) = carried_out(tmp_path, "tcp-python", hosts=hosts, python=python).values()
    assert facts["outcome"] == "absent"
    assert reason in facts["reason"]
    assert "\n" not in facts["reason"]


def test_nothing_is_left_there_when_the_line_is_cut() -> None:
    before = _workers()
    command = (*remote.ssh_command("east"), "exec")
    child = Child("far away", ("-m", "antiphon.lab.worker"), sys.executable, command)
    try:
        clock = take_clock(child)
        assert abs(clock.offset_ns) <= clock.error_ns
        started = _workers() - before
        assert started
    finally:
        child.kill()
    eventually(lambda: not (started & _workers()), 20)


def _workers() -> set[int]:
    """Processes of this interpreter that are workers of the lab; not the ssh that asks for one."""
    found = set()
    for process in psutil.process_iter(["cmdline", "exe"]):
        line, program = process.info["cmdline"] or [], process.info["exe"] or ""
        if "antiphon.lab.worker" in line and not program.endswith(("ssh", "sshd")):
            found.add(process.pid)
    return found
