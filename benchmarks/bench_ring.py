"""What the core's structures cost, one step at a time: the outgoing ring, the parser of frames.

They are driven through the probes that the tests use. So a step of the ring holds two calls from
Python, and a parsed message holds the tuple that the probe records; the real path has neither. The
first line says how much an empty call is. For comparing two builds, not for adding up.

    python benchmarks/bench_ring.py [--seconds S]
"""

from __future__ import annotations

import argparse
import struct
import time
from collections.abc import Callable

from measuring import print_head, print_timings, time_rounds
from rich.console import Console

from antiphon._core import ParserProbe, RingProbe

RING = 4 << 20
FRAMES = 1000
MAX_FRAME = 1 << 20
KIND, PACKED = 200, 1

Step = Callable[[], tuple[float, int]]


def empty_call(ring: RingProbe) -> Step:
    def step() -> tuple[float, int]:
        began = time.perf_counter()
        for _ in range(FRAMES):
            ring.free_bytes  # noqa: B018
        return time.perf_counter() - began, FRAMES

    return step


def write_ring(ring: RingProbe, size: int) -> Step:
    """Claim and commit until the ring is half full, then empty it untimed."""
    payload = b"x" * size
    count = min(FRAMES, RING // 2 // size)

    def step() -> tuple[float, int]:
        claim, commit = ring.claim, ring.commit
        began = time.perf_counter()
        for _ in range(count):
            position = claim(size)
            assert position is not None
            commit(position, payload)
        taken = time.perf_counter() - began
        while ring.read(RING):
            pass
        return taken, count

    return step


def parse(stream: bytes, messages: int) -> Step:
    """A new parser per round, fed the whole stream at once."""

    def step() -> tuple[float, int]:
        parser = ParserProbe(MAX_FRAME)
        began = time.perf_counter()
        fine = parser.feed(stream)
        taken = time.perf_counter() - began
        assert fine, parser.error
        return taken, messages

    return step


def frames(size: int) -> bytes:
    return (struct.pack("<IHHI", size, KIND, 0, 1) + b"x" * size) * FRAMES


def packed_frame(size: int) -> bytes:
    body = struct.pack(f"<I{FRAMES}I", FRAMES, *[size] * FRAMES) + b"x" * size * FRAMES
    return struct.pack("<IHHI", len(body), KIND, PACKED, 1) + body


def main() -> None:
    parser = argparse.ArgumentParser(description="What the core's structures cost.")
    parser.add_argument("--seconds", type=float, default=0.5, help="per operation")
    arguments = parser.parse_args()
    if not 0 < arguments.seconds <= 60:
        parser.error("give up to 60 seconds")
    console = Console()
    print_head(console)
    ring = RingProbe(RING)
    steps = {
        "an empty call into the core": empty_call(ring),
        "claim and commit, 64 B": write_ring(ring, 64),
        "claim and commit, 1 KiB": write_ring(ring, 1024),
        "claim and commit, 16 KiB": write_ring(ring, 16384),
        "parse, per frame of 64 B": parse(frames(64), FRAMES),
        "parse, per message of 64 B in a packed frame": parse(packed_frame(64), FRAMES),
        "parse, per frame of 1 KiB": parse(frames(1024), FRAMES),
    }
    timings = [time_rounds(name, arguments.seconds, step) for name, step in steps.items()]
    print_timings(console, "ring and parser", timings)


if __name__ == "__main__":
    main()
