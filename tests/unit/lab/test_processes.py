"""Children that answer, fail, keep silent or die, and never outlive their crew."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from antiphon.lab.bench.machine import (
    busy_seconds,
    describe_machine,
    process_cpu,
    resident_bytes,
    share_of_others,
    threads_cpu,
)
from antiphon.lab.bench.processes import (
    Crew,
    WorkerFailed,
    WorkerTimeout,
    ask_all,
    deferred_interrupt,
)
from unit.lab.descendants import alive, await_none

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
SILENT = "import sys; sys.stdin.read()"
BROKEN = "import sys; sys.exit('it broke')"
ERROR = """
import sys
for line in sys.stdin: print('{"error": "no room"}', flush=True)
"""
PARENT = """
import json, subprocess, sys
command = [sys.executable, '-c', 'import time; time.sleep(60)']
child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
print(json.dumps({'child': child.pid}), flush=True)
sys.stdin.read()
"""


def test_an_order_is_answered() -> None:
    with Crew() as crew:
        child = crew.start("echo", ("-c", ECHO))
        assert child.ask("sample", number=3) == {"order": "sample", "number": 3}


def test_all_are_asked_at_once_and_answer_in_order() -> None:
    with Crew() as crew:
        for name in "ab":
            crew.start(name, ("-c", ECHO))
        assert ask_all(crew.children, "x") == [{"order": "x"}, {"order": "x"}]


def test_an_error_of_a_worker_is_raised_with_its_name() -> None:
    with Crew() as crew:
        child = crew.start("receiver", ("-c", ERROR))
        with pytest.raises(WorkerFailed, match="receiver: no room"):
            child.ask("open")


def test_a_worker_that_ends_says_why() -> None:
    with Crew() as crew:
        child = crew.start("sender", ("-c", BROKEN))
        with pytest.raises(WorkerFailed, match=r"sender ended .*status 1.*it broke"):
            child.answer(10.0)


def test_a_killed_worker_shows_the_signal() -> None:
    with Crew() as crew:
        child = crew.start("sender", ("-c", SILENT))
        os.kill(child.pid, 9)
        with pytest.raises(WorkerFailed, match="signal 9"):
            child.answer(10.0)


def test_a_silent_worker_times_out() -> None:
    with Crew() as crew:
        child = crew.start("sender", ("-c", SILENT))
        with pytest.raises(WorkerTimeout, match=r"sender did not answer within 0.2 s"):
            child.ask("stop", timeout=0.2)


def test_a_crew_takes_its_children_and_theirs_with_it() -> None:
    pids: list[int] = []

    def interrupted() -> None:
        with Crew() as crew:
            child = crew.start("parent", ("-c", PARENT))
            pids.extend([child.pid, int(child.answer(20.0)["child"])])
            assert all(alive(pid) for pid in pids)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    await_none(pids)


def test_a_child_of_a_worker_that_died_is_ended_too() -> None:
    with Crew() as crew:
        child = crew.start("parent", ("-c", PARENT))
        grandchild = int(child.answer(20.0)["child"])
        os.kill(child.pid, 9)
        with pytest.raises(WorkerFailed):
            child.answer(10.0)
        assert alive(grandchild)
    await_none([grandchild])


def test_a_folder_of_a_crew_is_gone_with_it() -> None:
    folders: list[Path] = []

    def interrupted() -> None:
        with Crew() as crew:
            folders.extend([crew.folder(), crew.folder()])
            for folder in folders:
                assert folder.stat().st_mode & 0o777 == 0o700
                (folder / "file").write_text("something")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(set(folders)) == 2
    assert not any(folder.exists() for folder in folders)


def test_killing_twice_is_harmless() -> None:
    with Crew() as crew:
        child = crew.start("echo", ("-c", ECHO))
        child.kill()
        child.kill()


def test_an_interrupt_that_another_thread_takes_waits_for_the_end_too() -> None:
    reached = []
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    taken, told = socket.socketpair()
    told.setblocking(False)
    before = signal.set_wakeup_fd(told.fileno())
    try:
        with pytest.raises(KeyboardInterrupt), deferred_interrupt():  # noqa: PT012
            with deferred_interrupt():
                signal.pthread_kill(other.ident or 0, signal.SIGINT)
                assert taken.recv(1) == bytes([signal.SIGINT])
                reached.append("inside")
            reached.append("outside")
    finally:
        signal.set_wakeup_fd(before)
        over.set()
        other.join()
        taken.close()
        told.close()
    assert reached == ["inside", "outside"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_process_begun_while_interrupts_wait_can_be_interrupted() -> None:
    code = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []), flush=True)"
    with deferred_interrupt({signal.SIGINT, signal.SIGTERM}):
        held = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert held.stdout == b"set()\n"


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with deferred_interrupt({signal.SIGUSR1}):
            assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_machine_describes_itself() -> None:
    machine = describe_machine()
    assert machine.cores >= 1
    assert machine.memory_gb > 0
    assert machine.kernel.startswith("Linux")
    assert f"{machine.cores} cores" in machine.line()


def test_cpu_and_memory_are_read_from_the_kernel() -> None:
    own = os.getpid()
    before = threads_cpu(own)
    assert sum(number * number for number in range(200_000)) > 0
    assert threads_cpu(own) > before
    assert process_cpu(own) > 0
    assert resident_bytes(own) > 1_000_000
    assert busy_seconds() > 0


def test_a_process_that_is_gone_has_used_nothing() -> None:
    assert process_cpu(2**30) == 0.0
    assert threads_cpu(2**30) == 0.0
    assert resident_bytes(2**30) == 0


@pytest.mark.parametrize(
    ("busy", "own", "elapsed", "cores", "share"),
    [
        (3.0, 2.0, 2.0, 2, 0.25),
        (2.0, 2.1, 2.0, 2, 0.0),
        (9.0, 0.0, 2.0, 2, 1.0),
        (1.0, 0.0, 0.0, 2, 0.0),
    ],
)
def test_the_share_of_others(
    busy: float, own: float, elapsed: float, cores: int, share: float
) -> None:
    assert share_of_others(busy, own, elapsed, cores) == pytest.approx(share)
