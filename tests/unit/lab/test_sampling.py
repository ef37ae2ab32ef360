"""What a process has used, as the kernel has it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from antiphon.lab import sampling
from antiphon.lab.sampling import machine_usage, process_usage
from antiphon.testing import eventually


def test_switches_of_all_threads_count() -> None:
    own = psutil.Process()
    stop = threading.Event()

    def wait_often() -> None:
        while not stop.wait(0.001):
            pass

    before = process_usage(own)
    thread = threading.Thread(target=wait_often)
    thread.start()
    try:
        deadline = time.monotonic() + 10
        first = own.num_ctx_switches().voluntary
        while process_usage(own)["voluntary_switches"] < before["voluntary_switches"] + 50:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        # They were not those of the main thread, which alone psutil knows.
        assert own.num_ctx_switches().voluntary - first < 50
        assert process_usage(own)["threads"] > 1
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("told", [True, False], ids=["kernel tells", "by everybody's parent"])
def test_what_a_process_has_started_counts_with_it(
    told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "_TOLD", told and sampling._TOLD)
    script = "import subprocess, sys; subprocess.run(['sh', '-c', 'echo; sleep 60 & wait'])"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"\n"
            process = psutil.Process(child.pid)
            own = process.memory_info().rss
            eventually(lambda: process_usage(process)["threads"] == 3, 10)
            assert process_usage(process)["resident_bytes"] > own
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def test_a_process_that_is_gone_has_used_nothing_that_is_known() -> None:
    child = psutil.Popen(["true"])
    child.wait()
    assert process_usage(psutil.Process()) != {}
    assert process_usage(child) == {}
    assert machine_usage()["cpu_seconds"] > 0
