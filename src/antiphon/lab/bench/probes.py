"""What a node costs when nothing happens, alone and with many peers, and a stalled receiver."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

from antiphon.lab.bench.machine import resident_bytes, threads_cpu
from antiphon.lab.bench.processes import Child, Crew, WorkerFailed, ask_all
from antiphon.lab.peers import PEERS

__all__ = [
    "CONNECTIONS",
    "Connections",
    "Idle",
    "Stalled",
    "probe_connections",
    "probe_idle",
    "probe_stalled",
]

CONNECTIONS = 1000
IDLE_WORKER = "antiphon.lab.bench.idle_worker"
# The nodes at the other ends are spread over so many processes.
CALLERS = 4
# Five heartbeats after the last message a sender gives its window back: then nothing is left but
# signs of life.
SETTLE_SECONDS = 6.0
# To start, and to make all the connections, messages included. With the rest this stays below a
# minute, whatever the machine does meanwhile.
START_TIMEOUT = 10.0
CONNECT_TIMEOUT = 30.0

# Both print one answer when they are ready, then wait for the end of their input.
BARE = "import sys; print('{}', flush=True); sys.stdin.read()"
NODE = """
import sys, antiphon
with antiphon.Node():
    print('{}', flush=True)
    sys.stdin.read()
"""
FILL_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Idle:
    """A node without peers: its part of one core, and its memory above a bare interpreter's."""

    core_share: float
    resident_bytes: int
    seconds: float

    def facts(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Stalled:
    """A sender whose receiver takes nothing: memory to fill the buffers, and growth after that."""

    filled_bytes: int
    growth_bytes: int
    seconds: float
    accepted: int

    def facts(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Connections:
    """A node with many peers which only live: memory of each above the node alone, part of a core.

    ``connections`` were asked for, of which ``alive`` stood in both directions to the end.
    """

    connections: int
    alive: int
    bytes_each: float
    core_share: float
    seconds: float

    def facts(self) -> dict[str, object]:
        return asdict(self)


def probe_idle(seconds: float = 3.0) -> Idle | str:
    """Measure an idle node, or say in one line why not."""
    if missing := PEERS["antiphon"].missing():
        return missing
    try:
        with Crew() as crew:
            bare = crew.start("interpreter", ("-c", BARE))
            node = crew.start("idle node", ("-c", NODE))
            bare.answer(20.0)
            node.answer(20.0)
            time.sleep(0.5)
            share, elapsed = _core_share(node, seconds)
            return Idle(share, resident_bytes(node.pid) - resident_bytes(bare.pid), elapsed)
    except WorkerFailed as error:
        return str(error)


def probe_connections(
    seconds: float = 5.0, connections: int = CONNECTIONS, settle: float = SETTLE_SECONDS
) -> Connections | str:
    """Measure a node with many idle connections, or say in one line why not.

    Every peer sends it one message and gets one back, so each connection has both its channels.
    """
    if missing := PEERS["antiphon"].missing():
        return missing
    try:
        with Crew() as crew:
            module = ("-m", IDLE_WORKER)
            node = crew.start("node with connections", module)
            callers = [crew.start(f"peers {i}", module) for i in range(CALLERS)]
            address = node.ask("open", START_TIMEOUT, connections=connections)["address"]
            time.sleep(0.5)
            before = resident_bytes(node.pid)
            _connect(node, callers, connections, address)
            time.sleep(settle)
            share, elapsed = _core_share(node, seconds)
            each = (resident_bytes(node.pid) - before) / connections
            alive = int(node.ask("alive", START_TIMEOUT)["alive"])
            return Connections(connections, alive, each, share, elapsed)
    except WorkerFailed as error:
        return str(error)


def _connect(node: Child, callers: list[Child], connections: int, address: str) -> None:
    """Have every peer send the node a message, and the node one to every peer."""
    deadline = time.monotonic() + CONNECT_TIMEOUT
    # Node 1 is the one that is measured.
    bounds = [2 + connections * i // len(callers) for i in range(len(callers) + 1)]
    for child, first, end in zip(callers, bounds, bounds[1:], strict=False):
        child.tell("call", first=first, count=end - first, address=address)
    # At the same time: who called first is answered while others still call.
    node.tell("greet", connections=connections, limit=CONNECT_TIMEOUT)
    for child in (*callers, node):
        child.answer(max(0.0, deadline - time.monotonic()))
    left = max(0.0, deadline - time.monotonic())
    ask_all(callers, "greeted", timeout=left, limit=left)


def _core_share(child: Child, seconds: float) -> tuple[float, float]:
    """The part of one core that a process uses for so long, and how long that was."""
    before = threads_cpu(child.pid)
    began = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - began
    return (threads_cpu(child.pid) - before) / elapsed, elapsed


def probe_stalled(seconds: float = 3.0, size: int = 64) -> Stalled | str:
    """Measure a blocked sender, or say in one line why not."""
    if missing := PEERS["antiphon"].missing():
        return missing
    config = {"variant": "inbox", "size": size}
    try:
        with Crew() as crew:
            receiver = crew.start("stalled receiver")
            sender = crew.start("sender")
            address = receiver.ask(
                "open",
                system="antiphon",
                config={**config, "index": 0, "receives": True, "consume": False},
            )["address"]
            sender.ask("open", system="antiphon", config={**config, "index": 1, "targets": [0]})
            sender.ask("connect", addresses={0: address})
            before = int(sender.ask("sample")["resident"])
            sender.ask("start", threads=1)
            filled = _until_blocked(crew)
            time.sleep(seconds)
            after = sender.ask("sample")
            return Stalled(
                filled - before, int(after["resident"]) - filled, seconds, int(after["sent"])
            )
    except WorkerFailed as error:
        return str(error)


def _until_blocked(crew: Crew) -> int:
    """Wait until the sender makes no more progress; its resident memory then."""
    sender = crew.children[-1]
    sample = sender.ask("sample")
    still_since = time.monotonic()
    deadline = still_since + FILL_TIMEOUT
    while time.monotonic() - still_since < 0.5:
        if time.monotonic() > deadline:
            raise WorkerFailed(f"the sender was not held back within {FILL_TIMEOUT:g} s")
        time.sleep(0.05)
        now = sender.ask("sample")
        if now["sent"] != sample["sent"] or not now["sent"]:
            still_since = time.monotonic()
        sample = now
    return int(sample["resident"])
