"""What a node costs when nothing happens, and when its receiver stands still."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

from antiphon.lab.bench.machine import resident_bytes, threads_cpu
from antiphon.lab.bench.processes import Crew, WorkerFailed
from antiphon.lab.peers import PEERS

__all__ = ["Idle", "Stalled", "probe_idle", "probe_stalled"]

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
            before = threads_cpu(node.pid)
            began = time.monotonic()
            time.sleep(seconds)
            elapsed = time.monotonic() - began
            share = (threads_cpu(node.pid) - before) / elapsed
            return Idle(share, resident_bytes(node.pid) - resident_bytes(bare.pid), elapsed)
    except WorkerFailed as error:
        return str(error)


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
