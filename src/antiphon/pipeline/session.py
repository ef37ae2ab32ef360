"""Spark, started and ended: one builder for a laptop and for a cluster.

Everything that a session leaves on the disk lies in a directory of its own, which goes with it. The
Java process writes to a file there and not to the user's terminal; when it fails, the cause is read
from that file. Receives a master and settings from `antiphon.pipeline.job`, hands it a session.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.errors import AntiphonError, ConfigError
from antiphon.lab.bench.processes import deferred_interrupt
from antiphon.pipeline.java import find_java, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkFailed", "explain", "settings", "spark_session", "words_of"]

_NAME = "antiphon-spark-"
_GIB = 1 << 30
_LEAST = 512 << 20  # below, Spark refuses to start
_USUAL = 3 * _GIB
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Of a container: by control groups of version 2, and of version 1, where none is a huge number."""

_JVM_END_SECONDS = 20
_LOG_FILE = "spark.log"
_CONNECTION = "connection"
_WHERE = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""By which Java is told where to write port and secret: what PySpark itself uses."""

_ENDING = frozenset({signal.SIGINT, signal.SIGTERM})
_SOON = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_LOG = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n%ex{short.message}%n
"""


_SMALL = {
    # To compile an expression takes longer than to evaluate it for a few thousand rows as it is.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


class SparkFailed(AntiphonError):
    """Spark did not start, or gave up."""


@contextlib.contextmanager
def spark_session(
    master: str | None = None, conf: Mapping[str, str] | None = None, *, small: bool = False
) -> Iterator[SparkSession]:
    """A session on ``master``, by default all cores of this machine; ``conf`` wins over ours.

    One for a ``small`` job on this machine is there to be done soon: it takes half the processor
    time until a few million rows, and longer for many.

    Ends with its block, the Java process included. Raises `SparkFailed`, `JavaMissing`, or
    `ConfigError` for a setting that is none.
    """
    pyspark = _pyspark()
    if pyspark.SparkContext._active_spark_context is not None:
        raise SparkFailed("this process has a Spark session already; pass it on, or stop it first")
    java = find_java()
    with _scratch() as scratch:
        chosen = settings(master or "local[*]", scratch, conf, small=small)
        changed = {"JAVA_HOME": str(java_home(java, scratch))}
        if _is_here(chosen["spark.master"]):
            changed["SPARK_LOCAL_IP"] = "127.0.0.1"
        if chosen["spark.master"].startswith("local-cluster"):
            changed["SPARK_HOME"] = str(_own_home(scratch))
        with _quiet_py4j(), _java_process(chosen, changed, scratch) as process:
            try:
                gateway = _gateway(process, scratch)
                session = _connect(gateway, chosen, scratch / _LOG_FILE)
                yield session
                with contextlib.suppress(Exception):  # Java may be dead already
                    session.sparkContext.stop()
                    gateway.shutdown()
            finally:
                _forget()


def settings(
    master: str, scratch: Path, conf: Mapping[str, str] | None = None, *, small: bool = False
) -> dict[str, str]:
    """All that Spark is told at its start."""
    given = dict(conf or {})
    for name in given:
        if not re.fullmatch(r"spark\.[\w.-]+", name):
            raise ConfigError(
                f"{name!r} is no setting of Spark; write for example spark.driver.memory=4g",
                setting="conf",
                value=name,
            )
    words = scratch / "log4j2.properties"
    words.write_text(_LOG, encoding="utf-8")
    for name in ("tmp", "local", "warehouse"):
        (scratch / name).mkdir(exist_ok=True)
    options = f"-Djava.io.tmpdir={scratch / 'tmp'} -Dlog4j2.configurationFile={words.as_uri()}"
    ours = {
        "spark.master": master,
        "spark.app.name": "antiphon pipeline",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.parquet.compression.codec": "zstd",
        # For every step of an expression PySpark would look through its own callers and tell Java
        # of them, for errors that are never shown: most of the time that a plan takes in Python.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.dataFrameQueryContext.enabled": "false",
        # A small campaign must not pay for hundreds of empty tasks: partitions are merged until
        # they are worth a task.
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    }
    if _is_here(master):
        ours["spark.driver.host"] = ours["spark.driver.bindAddress"] = "127.0.0.1"
    if master.startswith("local"):
        ours["spark.sql.shuffle.partitions"] = "4" if small else "32"
        ours["spark.local.dir"] = str(scratch / "local")
        ours["spark.driver.memory"] = f"{_memory() >> 20}m"
        if small:
            # Nearly all time goes into plans and compilers, which these keep from working hard.
            ours |= _SMALL
            options += " -XX:TieredStopAtLevel=1"
    chosen = ours | given
    # A short job is over before the better of Java's compilers has earned what it costs.
    usual = _SOON if small and master.startswith("local") else ""
    extra = given.get("spark.driver.extraJavaOptions", usual)
    chosen["spark.driver.extraJavaOptions"] = f"{options} {extra}".strip()
    return chosen


def explain(error: BaseException, log: str = "") -> str:
    """What Spark's failure means, in one line, with what to do about it."""
    text = f"{words_of(error)}\n{log}"
    if re.search(
        r"OutOfMemoryError|Could not reserve enough space|System memory \d+ must be at least"
        r"|Cannot allocate memory|insufficient memory",
        text,
    ):
        return (
            "Spark has too little memory: give it more, for example --conf spark.driver.memory=4g "
            "(on a cluster also spark.executor.memory), or free some on this machine"
        )
    if "No space left on device" in text:
        return "the disk is full: free some space, or give --conf spark.local.dir=DIR on another"
    if re.search(r"All masters are unresponsive|Failed to connect to master", text):
        return "Spark's master does not answer: check its URL, and that it runs"
    if found := re.search(r"(?:Could not parse Master URL|Master must)[^\n]*", text):
        return f"{found[0].strip()}; give for example --master 'local[2]' or spark://HOST:7077"
    if found := re.search(r"(?:Caused by|Exception in thread \"main\"):? ?([^\n]+)", text):
        return f"Spark failed: {found[1].strip()}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"Spark failed: {lines[0] if lines else type(error).__name__}"


def words_of(error: BaseException) -> str:
    """Its text. That of an error in Java is asked for there, and Java may be dead."""
    try:
        return str(error)
    except Exception:
        return "Java has ended; it may have been killed for the memory that it took"


def _pyspark() -> Any:
    try:
        import pyspark
    except ImportError as error:
        raise SparkFailed(
            f"the pipeline needs PySpark ({error}); install it with: pip install 'antiphon[spark]'"
        ) from None
    return pyspark


def _is_here(master: str) -> bool:
    return bool(re.match(r"local\b|spark://(127\.[\d.]+|localhost|\[::1\])[:,]", master))


def _memory() -> int:
    """What the process gets that does all the work: half of what is free, at most the usual."""
    free = _available()
    if free is None:
        return _USUAL
    if free < _LEAST:
        raise SparkFailed(
            f"Spark needs {_LEAST >> 20} MB of memory and {free >> 20} MB are free: "
            "end other programs, or run on a larger machine"
        )
    return max(_LEAST, min(_USUAL, free // 2))


def _available() -> int | None:
    """Bytes that can still be had, on this machine or in this container; None: not known."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        found.append(int(text.split("MemAvailable:")[1].split()[0]) << 10)
    for limit in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            found.append(int(limit.read_text(encoding="ascii")))
    return min(found, default=None)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A directory that is gone afterwards; also those that killed sessions have left behind."""
    parent = Path(tempfile.gettempdir())
    for old in parent.glob(_NAME + "*"):
        with contextlib.suppress(OSError), (old / "lock").open("r+b") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old, ignore_errors=True)
    try:
        scratch = Path(tempfile.mkdtemp(prefix=_NAME))
    except OSError as error:
        raise SparkFailed(
            f"no directory can be made in {parent} ({error.strerror}); name another in TMPDIR"
        ) from error
    try:
        with (scratch / "lock").open("w+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _own_home(scratch: Path) -> Path:
    """Workers write beside Spark's own files: here these are links, in a directory of ours."""
    from pyspark.find_spark_home import _find_spark_home

    home = scratch / "home"
    home.mkdir()
    for entry in Path(_find_spark_home()).iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    return home


@contextlib.contextmanager
def _java_process(
    chosen: Mapping[str, str], changed: Mapping[str, str], scratch: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Spark's Java, which is gone afterwards: by itself when all went well, else by a signal.

    PySpark would start one too. But when Ctrl-C comes while it does, it gives no handle to what it
    has started, and what it has in the directory for temporary files may stay there.
    """
    from pyspark.find_spark_home import _find_spark_home

    home = changed.get("SPARK_HOME") or _find_spark_home()
    command = [f"{home}/bin/spark-submit"]
    for name, value in chosen.items():
        command += ["--conf", f"{name}={value}"]
    environ = {**os.environ, **changed, "SPARK_CONNECT_MODE": "0"}
    environ[_WHERE] = str(scratch / _CONNECTION)
    environ.pop("PYSPARK_SUBMIT_ARGS", None)
    process: subprocess.Popen[bytes] | None = None
    well = False
    try:
        with deferred_interrupt(_ENDING):
            process = _started([*command, "pyspark-shell"], environ, scratch / _LOG_FILE)
        yield process
        well = True
    finally:
        if process is not None:
            with deferred_interrupt(_ENDING):
                _end(process, well)


def _started(
    command: Sequence[str], environ: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    try:
        with log.open("wb") as output:
            return subprocess.Popen(
                command,
                env=environ,
                stdin=subprocess.PIPE,  # it ends when this does, also when we are killed
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C of the terminal is for us
            )
    except OSError as error:
        raise SparkFailed(explain(error)) from error


def _end(process: subprocess.Popen[bytes], well: bool) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    if not well:
        process.terminate()
    try:
        process.wait(_JVM_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _gateway(process: subprocess.Popen[bytes], scratch: Path) -> Any:
    """A connection to it, once it has said where it listens."""
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    told, log = scratch / _CONNECTION, scratch / _LOG_FILE
    while not told.exists():
        if process.poll() is not None:
            raise SparkFailed(explain(SparkFailed("Java ended while it started"), _text(log)))
        time.sleep(0.02)
    port, length = struct.unpack(">ii", (content := told.read_bytes())[:8])
    secret = content[8 : 8 + length].decode()
    start: Any = launch_gateway  # it has no types
    with _environment({"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}):
        try:
            return start()
        except (PySparkException, OSError) as error:
            raise SparkFailed(explain(error, _text(log))) from error


@contextlib.contextmanager
def _environment(changed: Mapping[str, str]) -> Iterator[None]:
    """With these variables; afterwards all is as before."""
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _quiet_py4j() -> Iterator[None]:
    """A call of Java that is interrupted, or whose Java has ended, raises. Py4J also writes a
    traceback to the log, as if it were the program's own, and so to the user's terminal."""

    def wanted(record: logging.LogRecord) -> bool:
        return Path(record.pathname).parent.name != "py4j"

    own = logging.getLogger("py4j")
    level = own.level
    own.setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(wanted)
    try:
        yield
    finally:
        logging.getLogger().removeFilter(wanted)
        own.setLevel(level)


def _connect(gateway: Any, chosen: Mapping[str, str], log: Path) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    conf = SparkConf(loadDefaults=False, _jvm=gateway.jvm)
    for name, value in chosen.items():
        conf.set(name, value)
    before = signal.getsignal(signal.SIGINT)
    try:
        context = SparkContext(conf=conf, gateway=gateway)
        if before is not None and threading.current_thread() is threading.main_thread():
            # Spark has put its own in its place, which cancels all jobs in the middle of whatever
            # is just being said to Java; some then wait for ever for one that is gone.
            signal.signal(signal.SIGINT, before)
        return SparkSession(context)
    except (Py4JError, PySparkException, OSError) as error:
        raise SparkFailed(explain(error, _text(log))) from error


def _forget() -> None:
    """PySpark keeps what it has last used. Java is not asked any more: it may be dead."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkSession._instantiatedSession = None
    context: Any = SparkContext._active_spark_context
    if context is not None:
        context._jsc = None
        context.stop()
    with SparkContext._lock:
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None


def _text(log: Path) -> str:
    with contextlib.suppress(OSError):
        return log.read_text(encoding="utf-8", errors="replace")
    return ""
