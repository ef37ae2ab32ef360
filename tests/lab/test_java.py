"""The lab's Java programs in real JVMs: data arrives whole, stamps are plausible, all ends."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.lab.bench.processes import Child, Crew, WorkerFailed
from antiphon.lab.java import programs
from antiphon.lab.java.programs import JavaChild, JavaMissing, latencies
from antiphon.testing.waiting import eventually
from unit.lab.descendants import await_none, await_some

pytestmark = pytest.mark.timeout(120)

MIB = 1024 * 1024
HEAP = 32 * MIB
# JGroups keeps what may have to be sent again.
GROUP_HEAP = 128 * MIB
SECOND = 1_000_000_000
# What starts soonest: nothing is measured here.
OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# Patient, because other tests may have the processors.
PATIENCE = 60.0

needs_java = pytest.mark.needs("java")
jgroups = pytest.mark.needs("java", "jgroups")
STREAMS = [
    pytest.param("TcpNet", {}, marks=needs_java, id="java.net"),
    pytest.param("TcpNio", {}, marks=needs_java, id="java.nio"),
    pytest.param("Groups", {"stack": "tcp"}, marks=jgroups, id="jgroups-tcp"),
    pytest.param("Groups", {"stack": "udp"}, marks=jgroups, id="jgroups-udp"),
]


@pytest.fixture(scope="module", autouse=True)
def _classes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled once, and not into the cache of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew() as made:
        yield made


@pytest.fixture(autouse=True)
def _jdk(request: pytest.FixtureRequest) -> None:
    """The component promises a runtime only."""
    if request.node.get_closest_marker("needs") and not programs.has_jdk():
        pytest.skip("needs a JDK")


def start(crew: Crew, program: str, role: str, heap: int = HEAP) -> JavaChild:
    child = JavaChild(f"{program} {role}", program, role, heap, OPTIONS)
    crew.children.append(child)
    return child


def pair(crew: Crew, program: str, **options: Any) -> tuple[JavaChild, JavaChild]:
    """A writer that is connected to a reader."""
    heap = GROUP_HEAP if program == "Groups" else HEAP
    reader, writer = (start(crew, program, role, heap) for role in ("reader", "writer"))
    address = reader.ask("open", PATIENCE, **options)["address"]
    writer.ask("open", PATIENCE, **options)
    writer.ask("connect", PATIENCE, address=address)
    reader.ask("connect", PATIENCE, address="")
    return writer, reader


def finished(writer: Child) -> dict[str, Any]:
    stopped = writer.ask("stop", PATIENCE, limit=50, finish=True)
    assert stopped["blocked"] == 0
    return stopped


def await_messages(reader: Child, messages: int) -> None:
    eventually(lambda: reader.ask("sample")["messages"] >= messages, 30, f"{messages} messages")


@pytest.mark.parametrize(
    ("program", "options", "size"),
    [
        pytest.param(*stream.values, size, marks=stream.marks, id=f"{stream.id}-{size}")
        for stream in STREAMS
        for size in (1, 2000, 70_000)
        # What JGroups cuts into pieces, and what it gathers; each takes seconds to join.
        if size != 1 or stream.values[0] != "Groups"
    ],
)
def test_every_message_arrives_whole_and_in_order(
    crew: Crew, program: str, options: dict[str, Any], size: int
) -> None:
    messages = 200 if size > 4096 else 2000
    writer, reader = pair(crew, program, size=size, check=True, **options)
    writer.ask("send", messages=messages)
    stopped = finished(writer)
    # The stamped ones are a part of the number.
    assert stopped["sent"] == messages
    assert 0 < stopped["stamped"] < messages
    await_messages(reader, stopped["sent"])
    check = reader.ask("check")
    assert check == {
        "sources": 1,
        "messages": stopped["sent"],
        "stamped": stopped["stamped"],
        "wrong": 0,
        "lost": 0,
        "disordered": 0,
        "problems": [],
    }
    sample = reader.ask("sample")
    plain = messages - stopped["stamped"]
    assert sample["bytes"] == plain * max(size, 8) + stopped["stamped"] * max(size, 24)
    crew.close(PATIENCE)  # JGroups takes its time to say farewell


@needs_java
def test_datagrams_arrive_whole_and_the_lost_ones_are_known(crew: Crew) -> None:
    writer, reader = pair(crew, "Udp", size=2000, check=True)
    writer.ask("send", messages=1000, rate=2000)
    finished(writer)
    check = eventually(lambda: all_known(writer, reader), 30, "the last datagram")
    assert (check["wrong"], check["disordered"], check["sources"]) == (0, 0, 1)
    assert check["messages"] >= 10
    crew.close(PATIENCE)  # JGroups takes its time to say farewell


def all_known(writer: Child, reader: Child) -> dict[str, Any] | None:
    """What is lost shows by what comes after it, so more is sent until the last one has come."""
    writer.ask("send", messages=1)
    sent = finished(writer)["sent"]
    check = reader.ask("check")
    return check if check["messages"] + check["lost"] == sent else None


@needs_java
def test_a_datagram_that_is_too_large_is_refused(crew: Crew) -> None:
    with pytest.raises(WorkerFailed, match="at most 65507 bytes"):
        start(crew, "Udp", "writer").ask("open", PATIENCE, size=65508)


@pytest.mark.parametrize(
    ("program", "options"),
    [*STREAMS, pytest.param("Udp", {}, marks=needs_java, id="udp")],
)
def test_stamps_tell_when_a_message_was_due_sent_and_received(
    crew: Crew, program: str, options: dict[str, Any]
) -> None:
    writer, reader = pair(crew, program, size=64, **options)
    begin = time.monotonic_ns()
    # Slow enough for the buffer of a datagram socket while its reader waits for a processor.
    writer.ask("start", rate=50)
    await_messages(reader, 100)
    stopped = writer.ask("stop")
    await_messages(reader, stopped["sent"])
    end = time.monotonic_ns()
    found = list(latencies(reader, chunk=7))
    assert [row[0] for row in found] == list(range(stopped["stamped"]))
    steps = [later[2] - earlier[2] for earlier, later in itertools.pairwise(found)]
    assert min(steps) == 10_000_000
    assert not any(step % 10_000_000 for step in steps)
    for _, _, intended, sent, received in found:
        assert begin <= intended <= sent <= received <= end
        assert received - sent < 10 * SECOND
    assert list(latencies(reader)) == []


@pytest.mark.parametrize("program", ["TcpNet", "TcpNio", "Udp"])
@needs_java
def test_a_single_message_is_a_single_message(crew: Crew, program: str) -> None:
    writer, reader = pair(crew, program, size=1000, clocked=True)
    before = time.monotonic_ns()
    assert reader.ask("sample")["last_ns"] == 0
    writer.ask("send", messages=1)
    assert finished(writer) == {"sent": 1, "stamped": 1, "blocked": 0}
    await_messages(reader, 1)
    sample = reader.ask("sample")
    assert (sample["messages"], sample["bytes"]) == (1, 1000)
    begun = writer.ask("sample")["begun_ns"]
    assert before <= begun <= sample["last_ns"] <= time.monotonic_ns()


@pytest.mark.parametrize("program", ["TcpNet", "TcpNio", "Udp"])
@needs_java
def test_two_may_write_to_each_other(crew: Crew, program: str) -> None:
    members = [start(crew, program, "member") for _ in range(2)]
    addresses = [
        member.ask("open", PATIENCE, index=index, check=True)["address"]
        for index, member in enumerate(members)
    ]
    for member, other in zip(members, reversed(addresses), strict=True):
        member.ask("connect", address=other)
    for member in members:
        member.ask("send", messages=50, rate=500)
    for member in members:
        assert finished(member)["sent"] == 50
        await_messages(member, 50)
        check = member.ask("check")
        assert (check["sources"], check["messages"], check["wrong"]) == (1, 50, 0)


@needs_java
def test_of_many_latencies_those_are_kept_that_are_spread_over_all(crew: Crew) -> None:
    writer, reader = pair(crew, "TcpNet", size=64, timed=100)
    writer.ask("send", messages=20_000, rate=10_000, stamp_all=True)
    stopped = finished(writer)
    assert (stopped["sent"], stopped["stamped"]) == (20_000, 20_000)
    await_messages(reader, 20_000)
    found = list(latencies(reader))
    dropped = reader.ask("latencies")["dropped"]
    assert len(found) + dropped == 20_000
    per_second = Counter(row[4] // SECOND for row in found)
    assert max(per_second.values()) <= 100
    # By the rule that Python has, and so not one piece of each second.
    hashes = [row[0] * 0x9E3779B1 % 2**32 for row in found]
    assert max(hashes) < 2**32 // 8
    sequences = sorted(row[0] for row in found)
    widest = max(later - one for one, later in itertools.pairwise(sequences))
    assert widest < 20 * 20_000 / len(found)


@needs_java
def test_what_was_due_long_ago_is_counted_and_not_sent(crew: Crew) -> None:
    writer, reader = pair(crew, "TcpNio", size=60_000)
    writer.ask("start", rate=2000, stamp_all=True)
    await_messages(reader, 100)
    os.kill(reader.pid, signal.SIGSTOP)
    try:
        eventually(lambda: unmoved(writer), 30, "a writer that waits")
        time.sleep(1.5)  # behind by more than a second
    finally:
        os.kill(reader.pid, signal.SIGCONT)
    eventually(lambda: writer.ask("sample")["skipped"] > 0, 30, "skipped ones")
    writer.ask("stop")
    sample = writer.ask("sample")
    await_messages(reader, sample["sent"])
    rows = list(latencies(reader))
    # Each has its place in the timetable: it was sent, or is counted.
    first, last = rows[0], rows[-1]
    assert (last[2] - first[2]) / (SECOND / 2000) == pytest.approx(
        last[0] - first[0] + sample["skipped"], abs=2
    )


@needs_java
def test_latencies_that_do_not_fit_are_counted(crew: Crew) -> None:
    writer, reader = pair(crew, "TcpNet", latencies=10)
    writer.ask("start", rate=100, stamp_ms=1)
    await_messages(reader, 50)
    writer.ask("stop")
    facts = reader.ask("latencies", end=True)
    assert facts["sequence"] == list(range(10))
    assert facts["left"] == 0
    assert facts["dropped"] > 0


@needs_java
def test_a_writer_that_was_held_up_sends_the_stamps_that_it_missed(crew: Crew) -> None:
    writer, reader = pair(crew, "TcpNio", size=2000)
    writer.ask("start")
    await_messages(reader, 100)
    os.kill(reader.pid, signal.SIGSTOP)
    try:
        full = eventually(lambda: unmoved(writer), 30, "a writer that waits")
        time.sleep(0.2)
        assert writer.ask("sample")["sent"] == full
    finally:
        os.kill(reader.pid, signal.SIGCONT)
    await_messages(reader, full + 1000)
    writer.ask("stop")
    delays = [sent - intended for _, _, intended, sent, _ in latencies(reader)]
    assert sum(delay > 100_000_000 for delay in delays) >= 5


def unmoved(writer: Child) -> int:
    """How many it has sent, if it did not send another one in a while; else 0."""
    before = writer.ask("sample")["sent"]
    time.sleep(0.1)
    return int(before) if writer.ask("sample")["sent"] == before else 0


@needs_java
def test_the_clock_is_that_of_python(crew: Crew) -> None:
    child = start(crew, "Udp", "reader")
    child.ask("open", PATIENCE)
    before = time.monotonic_ns()
    sampled = child.ask("sample")["time_ns"]
    assert before <= sampled <= time.monotonic_ns()


@needs_java
def test_several_writers_are_counted_apart(crew: Crew) -> None:
    """And both programs of TCP speak the same frames."""
    reader = start(crew, "TcpNio", "reader")
    writers = [start(crew, program, "writer") for program in ("TcpNio", "TcpNet")]
    address = reader.ask("open", PATIENCE, check=True)["address"]
    for index, writer in enumerate(writers):
        writer.ask("open", PATIENCE, check=True, index=index)
        writer.ask("connect", address=address)
        writer.ask("send", messages=500)
    sent = sum(finished(writer)["sent"] for writer in writers)
    await_messages(reader, sent)
    check = reader.ask("check")
    assert (check["sources"], check["messages"], check["wrong"], check["lost"]) == (2, sent, 0, 0)
    assert {row[1] for row in latencies(reader)} == {0, 1}


@needs_java
def test_a_garbage_load_holds_its_size_and_rate(crew: Crew) -> None:
    child = start(crew, "TcpNet", "reader", heap=48 * MIB)
    child.ask("open", PATIENCE)
    idle = child.ask("collect", PATIENCE)["heap_used"]
    live, rate = 16 * MIB, 100_000
    built = child.ask("garbage", PATIENCE, live_bytes=live, replaced_per_second=rate)
    assert live * 0.9 < built["live_bytes"] < live * 1.1
    assert built["elements"] == live // 128
    first = child.ask("sample")
    # Each element is replaced about once and a half, and what is replaced fills the heap.
    last = eventually(
        lambda: later(child, first["garbage_replaced"] + 200_000, first["collections"]), 40
    )
    seconds = (last["time_ns"] - first["time_ns"]) / SECOND
    done = last["garbage_replaced"] - first["garbage_replaced"]
    kept = done + last["garbage_missed"] - first["garbage_missed"]
    assert rate * 0.7 < kept / seconds < rate * 1.3
    assert last["pause_ms"] >= first["pause_ms"]
    assert last["cpu_ns"] > first["cpu_ns"]
    held = child.ask("collect", PATIENCE)["heap_used"] - idle
    assert live * 0.8 < held < live * 1.3
    assert child.ask("garbage", live_bytes=0)["elements"] == 0
    assert child.ask("collect", PATIENCE)["heap_used"] < idle + live / 4


def later(child: Child, replaced: int, collections: int) -> dict[str, Any] | None:
    sample = child.ask("sample")
    enough = sample["garbage_replaced"] >= replaced and sample["collections"] > collections
    return sample if enough else None


@needs_java
def test_a_garbage_load_that_cannot_fit_is_refused(crew: Crew) -> None:
    child = start(crew, "TcpNet", "reader")
    with pytest.raises(WorkerFailed, match="90 % of the heap"):
        child.ask("garbage", PATIENCE, live_bytes=HEAP)
    child.ask("open")


@pytest.mark.parametrize(
    ("stack", "layers"),
    [
        ("paper-udp", {"FD": "timeout=5000", "pbcast.GMS": "join_timeout=5000", "PING": "3000"}),
        ("paper-udp-fc", {"FD": "timeout=5000", "FC": "min_credits=5200", "PING": "3000"}),
        ("paper-tcp", {"FD": "timeout=5000", "pbcast.GMS": "join_timeout=3000"}),
    ],
)
@jgroups
def test_a_stack_of_the_paper_has_its_layers_and_times(
    crew: Crew, stack: str, layers: dict[str, str]
) -> None:
    child = start(crew, "Groups", "member", GROUP_HEAP)
    child.ask("open", PATIENCE, stack=stack)
    spec = child.ask("connect", PATIENCE, members=1, layers=True)["layers"]
    found = dict(re.findall(r"([A-Z][\w.]*|pbcast\.\w+)\(([^)]*)\)", spec))
    for layer, setting in layers.items():
        assert setting in found[layer], spec
    assert not {"FD_ALL", "MFC", "UFC"} & set(found), spec
    assert "timeout=1500" in found["VERIFY_SUSPECT"], spec
    assert "gc_lag=10" in found["pbcast.NAKACK"], spec


@needs_java
def test_orders_that_are_none_are_answered(crew: Crew) -> None:
    child = start(crew, "TcpNet", "reader")
    for order, arguments, line in (
        ("dance", {}, "no such order: dance"),
        ("open", {"size": [1]}, "orders are flat"),
        ("open", {"size": "x\n"}, "size is not a number"),
        ("latencies", {}, "open comes before latencies"),
        ("open", {"size": 0}, "size is 0"),
    ):
        with pytest.raises(WorkerFailed, match=line):
            child.ask(order, PATIENCE, **arguments)
    child.ask("open")
    with pytest.raises(WorkerFailed, match="a reader does not send"):
        child.ask("start")


@needs_java
def test_a_reader_that_is_gone_is_told_by_the_writer(crew: Crew) -> None:
    writer, reader = pair(crew, "TcpNet")
    writer.ask("start")
    reader.kill()
    with pytest.raises(WorkerFailed, match="SocketException"):
        eventually(lambda: writer.ask("sample") is None, 20)


PARENT = """
import sys, time
from antiphon.lab.java.programs import JavaChild
children = [JavaChild(role, "TcpNet", role, 16 << 20) for role in ("reader", "writer")]
address = children[0].ask("open", 60)["address"]
children[1].ask("open", 60)
children[1].ask("connect", 60, address=address)
children[1].ask("start", 60)
print("started", flush=True)
time.sleep(100)
"""


@needs_java
def test_jvms_end_with_their_parent() -> None:
    programs.compiled("TcpNet")
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"started\n"
        jvms = await_some(parent.pid, 2)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(10)
        await_none(jvms)
    finally:
        parent.kill()
        parent.wait()
        if parent.stdout is not None:
            parent.stdout.close()


def bare_java(folder: Path) -> Path:
    """A runtime without a compiler, as far as one can see."""
    (folder / "bin").mkdir()
    java = folder / "bin" / "java"
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    return folder


def test_without_a_compiler_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(bare_java(tmp_path)))
    assert not programs.has_jdk()
    line = programs.missing("TcpNet")
    assert line.startswith("TcpNet: needs a JDK: no javac beside")
    assert "\n" not in line
    with pytest.raises(JavaMissing, match="needs a JDK"):
        JavaChild("reader", "TcpNet", "reader")


def test_without_java_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not programs.has_jdk()
    assert programs.missing("Udp").startswith("Udp: needs a JDK: no java on the PATH; install")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="needs a JDK: no java in JAVA_HOME"):
        programs.find_java()


@needs_java
def test_without_the_jar_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_JGROUPS_JAR", str(tmp_path / "gone.jar"))
    assert programs.jgroups_jar() is None
    with pytest.raises(JavaMissing) as caught:
        JavaChild("reader", "Groups", "reader")
    line = str(caught.value)
    assert line.startswith("Groups: ANTIPHON_JGROUPS_JAR names no file")
    assert line.endswith("install libjgroups-java or set ANTIPHON_JGROUPS_JAR")
    assert programs.missing("TcpNet") == ""


@needs_java
def test_programs_are_compiled_once() -> None:
    (folder,) = programs.compiled("Udp")
    made = Path(folder).stat().st_mtime_ns
    assert programs.compiled("Udp") == (folder,)
    assert Path(folder).stat().st_mtime_ns == made
    assert [path.name for path in Path(folder).parent.glob("javac-*")] == []


def test_an_unknown_program_or_role_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="no such program: Nope"):
        JavaChild("x", "Nope", "reader")
    with pytest.raises(ValueError, match="no such role: nope"):
        JavaChild("x", "Udp", "nope")
