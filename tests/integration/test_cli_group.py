"""``antiphon group`` and ``antiphon bench group``, as a user runs them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from antiphon import Group
from antiphon.testing import Collected, eventually

pytestmark = pytest.mark.timeout(120)

COMMAND = [sys.executable, "-m", "antiphon.cli.main"]


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:  # closes the pipes, and waits
        try:
            yield process
        finally:
            process.kill()


def run(*arguments: str, lines: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=lines,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_lines_go_to_all_and_what_comes_is_printed(channel: str) -> None:
    came: Collected[tuple[str, bytes]] = Collected()
    group = Group("lounge", member_name="here")
    group.on_message(lambda source, data: came.add((source.name, data)))
    with group, running("group", "lounge", "--as", "shell") as shell:
        eventually(lambda: len(group.members) == 2, 40)
        group.send(b"hello, shell")
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write("hello, you\n")
        shell.stdin.flush()
        assert ("shell", b"hello, you") in came.first(2, timeout=30)
        printed = [shell.stdout.readline() for _ in range(3)]
        assert any("here, shell" in line for line in printed)
        assert "here: hello, shell\n" in printed
        shell.stdin.close()
        assert shell.wait(30) == 0
        eventually(lambda: len(group.members) == 1, 20)
        assert group.view.left


def test_views_as_json(channel: str) -> None:
    done = run("group", "lounge", "--as", "alone", "--views", "--json", "--seconds", "0.5")
    assert done.returncode == 0, done.stderr
    (view,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert view["members"] == ["alone"]
    assert view["coordinator"] == "alone"
    assert view["reason"] == "alone joined"


def test_what_the_layers_count_is_shown_when_asked_for_and_at_the_end(channel: str) -> None:
    arguments = ["group", "lounge", "--as", "alone", "--statistics"]
    done = run(*arguments, lines="hello\n/stats\n")
    assert done.returncode == 0, done.stderr
    assert "alone: hello\n" in done.stdout
    assert "alone: /stats" not in done.stdout
    shown = [line.split() for line in done.stdout.splitlines()]
    for layer, count in (("group", "sent"), ("membership", "views"), ("discovery", "contacts")):
        lines = [line for line in shown if line[:2] == ["--", layer]]
        assert len(lines) == 2, done.stdout  # asked for, and at the end
        assert all(count in line for line in lines)
    done = run(*arguments, "--json", lines="hello\n/stats\n")
    facts = [json.loads(line) for line in done.stdout.splitlines()]
    first, last = [fact["statistics"] for fact in facts if "statistics" in fact]
    assert (first["sent"], last["sent"]) == (1, 1)
    assert last["layers"]["membership"]["views"] == 1
    done = run(*arguments, "--views", "--json", "--seconds", "0.2")
    assert [list(json.loads(line)) for line in done.stdout.splitlines()][1:] == [["statistics"]]


def test_a_member_listens_where_it_is_told(channel: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    with running("group", "lounge", "--as", "shell", "--listen", address, "--views") as shell:
        assert shell.stdout is not None
        assert "shell" in shell.stdout.readline()
        with Group("lounge", discover=address, member_name="here") as group:
            eventually(lambda: len(group.members) == 2, 40)
            assert {one.name: one.address for one in group.members}["shell"] == address


def test_the_stack_is_drawn_without_joining(channel: str) -> None:
    done = run("group", "lounge", "--draw")
    assert done.returncode == 0
    assert "membership" in done.stdout
    assert "view" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lounge", "--stack", "sctp"], "one of paper-tcp"),
        (["lounge", "--discover", "ftp://x"], "discover 'ftp://x'"),
        (["lounge", "--listen", "tcp://0.0.0.0:0"], "neither a secret nor tls"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_with_2(
    channel: str, arguments: list[str], said: str
) -> None:
    done = run("group", *arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_the_benchmark_counts_what_all_members_deliver(channel: str) -> None:
    began = time.monotonic()
    done = run(
        "bench", "group", "--members", "2", "--size", "100", "--seconds", "0.5",
        "--repeats", "1", "--peers", "", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["runs"]
    assert (found["system"], found["members"]) == ("antiphon", 2)
    # Everybody gets everything, the sender too: two for each, give or take what is under way.
    assert found["deliveries"] / found["sends"] == pytest.approx(2.0, rel=0.5)
    assert time.monotonic() - began < 90


def test_the_benchmark_refuses_what_it_does_not_know() -> None:
    for arguments in (["--members", "no"], ["--peers", "spread"]):
        done = run("bench", "group", *arguments)
        assert done.returncode == 2
