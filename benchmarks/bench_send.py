"""What one call costs: send, try_send, send_many, send_packed, receive, handlers.

Two nodes in this process. A round sends a burst that fits into the flow's window, so that nobody
waits, then takes it out of the inbox again; sending and receiving are timed apart, the way between
them not at all. Handlers are timed by the library's own count, wall time per message.

    python benchmarks/bench_send.py [--seconds S] [--size BYTES]
"""

from __future__ import annotations

import argparse
import time
from array import array
from collections.abc import Callable

from measuring import Timing, print_head, print_timings, time_rounds
from rich.console import Console

import antiphon

RAW, CALLBACK, BATCH = 200, 201, 202
CONFIG = antiphon.NodeConfig(ring_bytes=16 << 20, flow_window_bytes=16 << 20)


class Reading(antiphon.Message, kind=203):
    sequence: int
    value: float
    body: bytes


class Bench:
    """A sender, a receiver, and the bursts between them."""

    def __init__(self, sender: antiphon.Node, receiver: antiphon.Node, size: int) -> None:
        self.sender, self.receiver = sender, receiver
        self.payload = b"x" * size
        # Well below a window of credit, counting headers and the least charge of a message.
        self.count = max(16, min(20_000, (4 << 20) // (size + 64)))
        self.block = [self.payload] * self.count
        self.data = self.payload * self.count
        self.offsets = array("i", range(0, len(self.data) + 1, size))
        self.raw = receiver.inbox(RAW)
        self.typed = receiver.inbox(Reading)

    def receiving(self, inbox: antiphon.Inbox[bytes], take: Callable[[], float]) -> float:
        """Waits until the burst is here, then times how it is taken out."""
        while inbox.pending < self.count:
            time.sleep(0.0005)
        return take()

    def drain_one_by_one(self) -> float:
        receive = self.raw.receive
        began = time.perf_counter()
        for _ in range(self.count):
            receive()
        return time.perf_counter() - began

    def drain_in_thousands(self) -> float:
        receive_many = self.raw.receive_many
        left = self.count
        began = time.perf_counter()
        while left:
            left -= len(receive_many(1000))
        return time.perf_counter() - began

    def sends(self) -> float:
        send, payload = self.sender.send, self.payload
        began = time.perf_counter()
        for _ in range(self.count):
            send(2, payload, kind=RAW)
        return time.perf_counter() - began

    def try_sends(self) -> float:
        try_send, payload = self.sender.try_send, self.payload
        began = time.perf_counter()
        for _ in range(self.count):
            try_send(2, payload, kind=RAW)
        return time.perf_counter() - began

    def typed_sends(self) -> float:
        send, body = self.sender.send, self.payload
        began = time.perf_counter()
        for number in range(self.count):
            send(2, Reading(number, 0.5, body))
        return time.perf_counter() - began

    def many(self) -> float:
        began = time.perf_counter()
        self.sender.send_many(2, self.block, kind=RAW)
        return time.perf_counter() - began

    def packed(self) -> float:
        began = time.perf_counter()
        self.sender.send_packed(2, self.data, self.offsets, kind=RAW)
        return time.perf_counter() - began

    def sending(self, burst: Callable[[], float]) -> Callable[[], tuple[float, int]]:
        """Times the burst, and empties the inbox behind it."""

        def step() -> tuple[float, int]:
            taken = burst()
            inbox = self.typed if burst == self.typed_sends else self.raw
            left = self.count
            while left:
                left -= len(inbox.receive_many(left, timeout=10.0))
            return taken, self.count

        return step

    def taking(self, take: Callable[[], float]) -> Callable[[], tuple[float, int]]:
        def step() -> tuple[float, int]:
            self.many()
            return self.receiving(self.raw, take), self.count

        return step

    def handling(self, kind: int) -> Callable[[], tuple[float, int]]:
        """The handler's own time, as the statistics count it."""

        def look() -> tuple[int, int]:
            found = next(k for k in self.receiver.statistics().kinds if k.kind == kind)
            return found.handler_ns, found.handled

        def step() -> tuple[float, int]:
            before, already = look()
            self.sender.send_many(2, self.block, kind=kind)
            self.sender.flush(timeout=10.0)
            after, now = look()
            return (after - before) / 1e9, now - already

        return step


def main() -> None:
    parser = argparse.ArgumentParser(description="What one call costs.")
    parser.add_argument("--seconds", type=float, default=0.7, help="per operation")
    parser.add_argument("--size", type=int, default=64, help="bytes per message")
    arguments = parser.parse_args()
    if not (0 < arguments.seconds <= 60 and 1 <= arguments.size <= 65536):
        parser.error("give up to 60 seconds, and 1 to 65536 bytes")

    console = Console()
    print_head(console)
    sender = antiphon.Node(1, config=CONFIG)
    receiver = antiphon.Node(2, config=CONFIG)
    bench = Bench(sender, receiver, arguments.size)
    receiver.on(CALLBACK, lambda source, data: None, capacity=65536)
    receiver.on(BATCH, lambda source, batch: None, batch=True, capacity=65536)
    steps = {
        "send, bytes": bench.sending(bench.sends),
        "try_send, bytes": bench.sending(bench.try_sends),
        "send, a new Message of 3 fields": bench.sending(bench.typed_sends),
        "send_many, per message": bench.sending(bench.many),
        "send_packed, per message": bench.sending(bench.packed),
        "receive": bench.taking(bench.drain_one_by_one),
        "receive_many(1000), per message": bench.taking(bench.drain_in_thousands),
        "handler per message, empty": bench.handling(CALLBACK),
        "batch handler, per message, empty": bench.handling(BATCH),
    }
    timings: list[Timing] = []
    with sender, receiver:
        sender.add_peer(2, receiver.address)
        for name, step in steps.items():
            timings.append(time_rounds(name, arguments.seconds, step))
    print_timings(console, f"one call, {arguments.size} bytes, {bench.count} per round", timings)


if __name__ == "__main__":
    main()
