"""Find Java, compile the lab's programs once, and start them.

A JVM that compiles its own source file would begin the run with the compiler in its heap, so the
programs are compiled by ``javac`` into the user's cache, under a name made of their content.

The orders of a child, with what they take beside their defaults, and what they answer:

====================  ===========================================================================
``open``              ``size=64, check=false, index=0`` (the source in its stamps), ``host=
                      "127.0.0.1", port=0, buffer=0`` (bytes of the socket's buffer),
                      ``clocked=false`` (whether to know when the last message came),
                      ``latencies=65536`` (how many are kept), ``timed=10000`` (of how many a
                      second, at the most); for ``Groups``
                      ``stack="udp"|"tcp"`` or one of the paper's, ``channel="antiphon-lab",
                      address=""`` (of other members, with commas), ``slow=0`` (messages a
                      second that it takes at the most, 0 for all), ``expected=0`` (messages of
                      each sender; it is told by an empty one when all have come, 0: by none).
                      Answers ``address`` (empty for a writer, and for a member of a group but
                      the first), ``pid``
``connect``           ``address``; for ``Groups`` also ``members=2`` to wait for, and answers
                      ``members``, and with ``layers=true`` its stack in words. A reader of the
                      others has nothing to do
``start``             ``rate=0`` (messages per second, 0 for all that go), ``stamp_ms=10`` (0 for
                      none), ``stamp_all=false`` (with a rate, every message is stamped, and
                      none comes beside). Again after ``stop``, the counts and numbers go on
``send``              as ``start``, and ``messages``: so many, the stamped ones included
``sample``            ``time_ns, messages, bytes, wrong, sent, sent_bytes, stamped, skipped``
                      (stamped ones that were due and not sent), ``begun_ns, last_ns`` (0 unless
                      clocked), ``acks, acked_ns`` (members that have all, and when the last
                      of them said so), ``cpu_ns, cpu, resident, threads, heap_used, heap_committed,
                      collections, pause_ms, garbage_live, garbage_replaced, garbage_missed``;
                      ``views_ns, views`` of a group since the last time
``latencies``         ``limit=1000, end=false``: the oldest, which are then forgotten; those of
                      the second that goes on only at the end. Lists ``sequence, source,
                      intended_ns, sent_ns, received_ns``, and ``left, dropped``
``check``             ``sources, messages, stamped, wrong, lost, disordered, problems``
``garbage``           ``live_bytes`` (0 ends it), ``replaced_per_second, element_bytes=128,
                      seed=1``; answers ``elements, live_bytes`` when all is built
``collect``           a full collection; answers ``heap_used``
``stop``              ``limit=5, finish=false``; answers ``sent, stamped, blocked``
``close``             closes everything and exits
====================  ===========================================================================

Counts of messages include the stamped ones. Any answer may have ``error`` instead.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from antiphon.lab.bench.processes import Child
from antiphon.lab.leftovers import Leftover, owned_folder, remove_folders

__all__ = [
    "COLUMNS",
    "PROGRAMS",
    "JavaChild",
    "JavaMissing",
    "compiled",
    "find_java",
    "has_jdk",
    "java_version",
    "jgroups_jar",
    "latencies",
    "missing",
    "remove_leftovers",
    "version",
]

PROGRAMS = ("TcpNet", "TcpNio", "Udp", "Groups")
ROLES = ("writer", "reader", "member")
HEAP_BYTES = 512 * 1024 * 1024
JGROUPS = Path("/usr/share/java/jgroups.jar")
# Of one stamp, as `antiphon.lab.stamps` orders them.
COLUMNS = ("sequence", "source", "intended_ns", "sent_ns", "received_ns")
COMPILE_TIMEOUT = 120.0
# The compiler runs beside other things; its default is a quarter of the machine's memory.
COMPILER_HEAP = "-J-Xmx128m"
JVM_OPTIONS = (
    # The answers are alone on standard output.
    "-XX:+DisplayVMOutputToStderr",
    # Half alive is worse than gone: the runner sees the end and says why.
    "-XX:+ExitOnOutOfMemoryError",
    # Otherwise it writes a file in /tmp the whole time.
    "-XX:-UsePerfData",
    # A heap that is touched for the first time during the run would look like one that grows.
    "-XX:+AlwaysPreTouch",
    "-Djava.net.preferIPv4Stack=true",
)

_SOURCES = Path(__file__).parent
_VERSION = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)


class JavaMissing(Exception):
    """Something to install first; the message is one line that says what."""


def find_java() -> str:
    """The program ``java``, of JAVA_HOME or else of the PATH. JavaMissing when there is none."""
    if home := os.environ.get("JAVA_HOME"):
        java = shutil.which("java", path=str(Path(home) / "bin"))
    else:
        java = shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME {home}" if home else "on the PATH"
        raise JavaMissing(
            f"needs a JDK: no java {where}; install openjdk-17-jdk-headless or set JAVA_HOME"
        )
    return java


def has_jdk() -> bool:
    """Whether the Java that is found comes with its compiler."""
    try:
        return _compiler(find_java()) is not None
    except JavaMissing:
        return False


def jgroups_jar() -> Path | None:
    """The jar of JGroups: what ANTIPHON_JGROUPS_JAR names, or Debian's; None when not there."""
    named = os.environ.get("ANTIPHON_JGROUPS_JAR")
    jar = Path(named) if named else JGROUPS
    return jar if jar.is_file() else None


def missing(program: str) -> str:
    """One line that names what to install before ``program`` runs; empty when all is there."""
    try:
        java = find_java()
    except JavaMissing as error:
        return f"{program}: {error}"
    if _compiler(java) is None:
        return (
            f"{program}: needs a JDK: no javac beside {java}; "
            "install openjdk-17-jdk-headless or set JAVA_HOME"
        )
    if program == "Groups" and jgroups_jar() is None:
        named = os.environ.get("ANTIPHON_JGROUPS_JAR")
        where = f"ANTIPHON_JGROUPS_JAR names no file: {named}" if named else f"no {JGROUPS}"
        return f"{program}: {where}; install libjgroups-java or set ANTIPHON_JGROUPS_JAR"
    return ""


def compiled(program: str) -> tuple[str, ...]:
    """The class path of a program, which is compiled if it has changed. Blocks for that.

    Safe to call from several processes at a time: a folder appears when it is complete.
    """
    if line := missing(program):
        raise JavaMissing(line)
    sources = sorted(_SOURCES.glob("*.java"))
    common = _classes("common", [path for path in sources if path.stem != "Groups"], ())
    jar = jgroups_jar()
    if program != "Groups" or jar is None:
        return (common,)
    below = (common, str(jar))
    return (_classes("groups", [path for path in sources if path.stem == "Groups"], below), *below)


def _classes(name: str, sources: Sequence[Path], below: Sequence[str]) -> str:
    """The folder with the classes of ``sources``, which use those of ``below``."""
    java = find_java()
    digest = hashlib.sha256("\n".join([_release(java), *below]).encode())
    for path in sources:
        digest.update(f"\n{path.name}\n".encode() + path.read_bytes())
    cache = _cache()
    folder = cache / f"{name}-{digest.hexdigest()[:16]}"
    if not folder.is_dir():
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with owned_folder(cache) as made:
            target = Path(made) / "classes"
            _compile(java, sources, target, below)
            try:
                target.rename(folder)
            except OSError:
                # Another process was first, with the same content.
                if not folder.is_dir():
                    raise
    return str(folder)


def _compile(java: str, sources: Sequence[Path], target: Path, below: Sequence[str]) -> None:
    compiler = _compiler(java)
    assert compiler is not None
    # Never an empty class path: that would be the current folder.
    path = os.pathsep.join(below) or str(target)
    done = subprocess.run(
        [compiler, COMPILER_HEAP, "-nowarn", "-cp", path, "-d", str(target), *map(str, sources)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=COMPILE_TIMEOUT,
        check=False,
    )
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        raise JavaMissing(f"{compiler} failed: {lines[0]}")


def _compiler(java: str) -> str | None:
    """The ``javac`` of the same installation: another one may make classes that it cannot run."""
    return shutil.which("javac", path=str(Path(java).resolve().parent))


def java_version() -> str:
    """Of the Java that is found; empty when there is none, or it does not say."""
    try:
        found = _VERSION.search(_release(find_java()))
    except (JavaMissing, OSError):
        return ""
    return found[1] if found else ""


def version(program: str) -> str:
    """Of what a program runs on: Java, and the jar of JGroups by its name."""
    jar = jgroups_jar() if program == "Groups" else None
    java = f"java {java_version()}".strip()
    return java if jar is None else f"{jar.resolve().stem}, {java}"


@functools.cache
def _release(java: str) -> str:
    """What tells one Java from another: a newer one in the same place compiles anew."""
    home = Path(java).resolve()
    release = home.parent.parent / "release"
    try:
        return f"{home}\n{release.read_text()}"
    except OSError:
        return f"{home}\n{home.stat().st_mtime_ns}"


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "antiphon" / "java"


def remove_leftovers() -> list[Leftover]:
    """Remove what a compiler was about to write when its process was killed."""
    return remove_folders(_cache())


class JavaChild(Child):
    """A writer, a reader or a member in a JVM of its own, which answers in lines of JSON.

    A member is both a writer and a reader. ``heap_bytes`` is both its first and its
    largest heap, so that a run does not measure a heap that grows. ``options`` go to the JVM after
    ours. JavaMissing when something has to be installed.
    """

    def __init__(
        self,
        label: str,
        program: str,
        role: str,
        heap_bytes: int = HEAP_BYTES,
        options: Sequence[str] = (),
        before: Sequence[str] = (),
    ) -> None:
        if program not in PROGRAMS:
            raise ValueError(f"no such program: {program}; there are {', '.join(PROGRAMS)}")
        if role not in ROLES:
            raise ValueError(f"no such role: {role}; there are {', '.join(ROLES)}")
        arguments = [
            f"-Xms{heap_bytes}",
            f"-Xmx{heap_bytes}",
            *JVM_OPTIONS,
            *options,
            "-cp",
            os.pathsep.join(compiled(program)),
            program,
            role,
        ]
        super().__init__(label, arguments, find_java(), before)


def latencies(child: Child, chunk: int = 1000) -> Iterator[tuple[int, ...]]:
    """Take what a reader has kept: the columns of ``COLUMNS``, times in ns of CLOCK_MONOTONIC."""
    while True:
        facts: dict[str, Any] = child.ask("latencies", limit=chunk, end=True)
        yield from zip(*(facts[name] for name in COLUMNS), strict=True)
        if not facts["left"]:
            return
