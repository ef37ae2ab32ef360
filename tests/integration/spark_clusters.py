"""A standalone Spark of one master and some workers on the loopback address."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from antiphon.pipeline.java import find_java, java_home

PATIENCE = 300.0


@contextlib.contextmanager
def standalone(scratch: Path, workers: int = 2) -> Iterator[str]:
    """Gives the master's URL, once it answers; each worker has one core and 1 GiB."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    scratch.mkdir()
    url = f"spark://127.0.0.1:{port}"
    home = java_home(find_java(), scratch)
    environ = {**os.environ, "JAVA_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    environ |= {"SPARK_LOCAL_DIRS": str(scratch / "local"), "SPARK_HOME": _find_spark_home()}
    where = ("--host", "127.0.0.1", "--webui-port", "0")
    master = ("org.apache.spark.deploy.master.Master", *where, "--port", str(port))
    worker = ("org.apache.spark.deploy.worker.Worker", *where, "-c", "1", "-m", "1g")
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(_started(master, environ, scratch / "master.log"))
        _wait_for(port, one)
        for number in range(workers):
            place = ("--work-dir", str(scratch / f"work-{number}"), url)
            log = scratch / f"worker-{number}.log"
            stack.enter_context(_started((*worker, *place), environ, log))
        _wait_for_words(scratch / "master.log", "Registering worker", workers)
        yield url


@contextlib.contextmanager
def _started(
    arguments: tuple[str, ...], environ: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    program = Path(_find_spark_home()) / "bin" / "spark-class"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, *arguments],
            env=environ,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        assert process.poll() is None, "the master has ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert time.monotonic() < deadline, "the master does not answer"
        time.sleep(0.1)


def _wait_for_words(log: Path, words: str, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while log.read_text(errors="replace").count(words) < count:
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.1)
