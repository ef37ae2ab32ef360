"""What a broker's store and its many topics cost, each beside what the machine can do without it.

- Recorded publishing of 1 KiB through a broker, synced every 10 ms, against a bare C loop that
  writes and syncs at the same interval, in turn.
- A sync for every event: 64 publishers on one topic, each of which waits for its own, against one.
- A replay from the page cache to a subscriber that takes batches, against a bare TCP stream.
- Plain topics: events in turn on 1,000 of them, beside as many as `--topics` says, against 1,000.

The broker is ``antiphon broker``, a process of its own; publishers and subscribers are in this one.
The first two depend on the disk: ratios within one run are what to look at. In full it takes some
minutes, and the million topics some gigabytes of memory; ``--quick`` takes less than a minute.

    python benchmarks/bench_broker.py [--quick] [--only MEASURE,...] [--directory DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import print_head
from rich.console import Console
from rich.table import Table

from antiphon import Bus
from antiphon._core import raw_log_write, raw_stream_receive, raw_stream_send
from antiphon.lab.peers.brokers.antiphon_broker import serve_broker

SIZE = 1024
INTERVAL = 0.01
PATIENCE = 120.0
FEW = 1000
MEASURES = ("record", "always", "replay", "topics")


@dataclass(frozen=True)
class Scale:
    """How long and how much."""

    seconds: float
    rounds: int
    replayed: int
    topics: int


FULL = Scale(3.0, 5, 512 << 20, 1_000_000)
QUICK = Scale(1.0, 2, 64 << 20, 20_000)


@dataclass(frozen=True)
class Figure:
    """One row; the target is of the ratio."""

    measure: str
    ours: str
    against: str
    ratio: float
    target: str


@contextlib.contextmanager
def serving(store: Path | None = None, fsync: str = "interval") -> Iterator[str]:
    """A broker, with a new store there, and its address."""
    options = [] if store is None else ["--store", str(store), "--fsync", fsync]
    address, _, stop = serve_broker(options=options)
    try:
        yield address
    finally:
        stop()
        if store is not None:
            shutil.rmtree(store, ignore_errors=True)


# --- recording ------------------------------------------------------------------------------------


def recorded(directory: Path, seconds: float, at_once: int) -> float:
    """Bytes per second of data, from the first publish to the last receipt."""
    data = b"x" * SIZE
    some = [data] * at_once
    count = 0
    with serving(directory / "store") as address, Bus(address) as bus:
        publisher = bus.publisher("t", record=True)
        publisher.publish(data)
        publisher.flush(PATIENCE)
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(max(1, 256 // at_once)):
                if at_once == 1:
                    publisher.publish(data)
                else:
                    publisher.publish_many(some)
                count += at_once
        publisher.flush(PATIENCE)
        return count * SIZE / (time.perf_counter() - began)


def record(directory: Path, scale: Scale) -> list[Figure]:
    raw, single, many = [], [], []
    for _ in range(scale.rounds):
        written, taken = raw_log_write(str(directory / "raw"), SIZE, scale.seconds, INTERVAL)
        (directory / "raw").unlink(missing_ok=True)
        raw.append(written / taken)
        single.append(recorded(directory, scale.seconds, 1))
        many.append(recorded(directory, scale.seconds, 64))
    bare = statistics.median(raw)
    return [
        Figure(
            f"record 1 KiB, {name}, sync every 10 ms",
            f"{ours / 1e6:,.0f} MB/s",
            f"raw C writer {bare / 1e6:,.0f} MB/s",
            ours / bare,
            "0.5",
        )
        for name, ours in (
            ("publish", statistics.median(single)),
            ("publish_many of 64", statistics.median(many)),
        )
    ]


def synced(directory: Path, seconds: float, publishers: int) -> float:
    """Events per second, each in the log before its publisher makes the next."""
    counts = [0] * publishers
    with serving(directory / "store", "always") as address, Bus(address) as bus:
        those = [bus.publisher("t", record=True) for _ in range(publishers)]
        for one in those:
            one.publish(b"")
            one.flush(PATIENCE)
        until = time.perf_counter() + seconds

        def run(number: int) -> None:
            publisher, data = those[number], b"x" * SIZE
            while time.perf_counter() < until:
                publisher.publish(data)
                publisher.flush(PATIENCE)
                counts[number] += 1

        threads = [threading.Thread(target=run, args=(number,)) for number in range(publishers)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) / (time.perf_counter() - began)


def always(directory: Path, scale: Scale) -> list[Figure]:
    one, many = [], []
    for _ in range(scale.rounds):
        one.append(synced(directory, scale.seconds, 1))
        many.append(synced(directory, scale.seconds, 64))
    alone, together = statistics.median(one), statistics.median(many)
    return [
        Figure(
            "record 1 KiB, sync always, 64 publishers of a topic",
            f"{together:,.0f}/s",
            f"one publisher {alone:,.0f}/s",
            together / alone,
            "10",
        )
    ]


# --- reading --------------------------------------------------------------------------------------


class Counted:
    """A handler of batches that can be waited for."""

    def __init__(self) -> None:
        self._reached = threading.Condition()
        self._count = 0

    def __call__(self, batch: Any) -> None:
        with self._reached:
            self._count += len(batch)
            self._reached.notify_all()

    def wait(self, count: int) -> None:
        with self._reached:
            if not self._reached.wait_for(lambda: self._count >= count, PATIENCE):
                raise TimeoutError(f"{self._count} of {count} events came")

    @property
    def count(self) -> int:
        with self._reached:
            return self._count


def stream(seconds: float) -> float:
    """Bytes per second of a bare TCP connection, in writes of 256 KiB."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        arguments = ("127.0.0.1", server.getsockname()[1], 256 << 10, seconds)
        sending = threading.Thread(target=raw_stream_send, args=arguments)
        sending.start()
        received, taken = raw_stream_receive(server.fileno(), seconds + 10.0)
        sending.join()
    return received / taken


def replay(directory: Path, scale: Scale) -> list[Figure]:
    count = scale.replayed // SIZE
    rates, streams = [], []
    with serving(directory / "store", "none") as address:
        with Bus(address) as bus:
            publisher = bus.publisher("t", record=True)
            for _ in range(count // 64):
                publisher.publish_many([b"x" * SIZE] * 64)
            publisher.flush(PATIENCE)
        for _ in range(scale.rounds + 1):
            counted = Counted()
            with Bus(address) as bus:
                began = time.perf_counter()
                bus.subscribe("t", counted, batch=True, start="earliest")
                counted.wait(count // 64 * 64)
                rates.append(count * SIZE / (time.perf_counter() - began))
            streams.append(stream(min(1.0, scale.seconds)))
    ours, bare = statistics.median(rates[1:]), statistics.median(streams[1:])
    return [
        Figure(
            "replay 1 KiB from page cache, to batches",
            f"{ours / 1e6:,.0f} MB/s",
            f"bare TCP stream {bare / 1e6:,.0f} MB/s",
            ours / bare,
            "500 MB/s, or 0.5",
        )
    ]


# --- topics ---------------------------------------------------------------------------------------


def dispatched(topics: int, seconds: float, rounds: int, console: Console) -> float:
    """Events per second on 1,000 of so many plain topics."""
    counted = Counted()
    with serving() as address, Bus(address) as here, Bus(address) as there:
        there.subscribe("t/**", counted, batch=True)
        began = time.perf_counter()
        publishers = [here.publisher(f"t/{number % 997}/{number}") for number in range(topics)]
        hot = publishers[:: max(1, topics // FEW)][:FEW]
        for one in hot:
            one.wait_for_subscribers(1, 10 * PATIENCE)
        console.print(
            f"{topics:,} topics: {(time.perf_counter() - began) / topics * 1e6:.0f} us each",
            highlight=False,
        )
        calls = [one.publish for one in hot]
        body = bytes(64)
        sent = 0

        def publish(times: int) -> None:
            nonlocal sent
            for _ in range(times):
                for call in calls:
                    call(body)
            sent += times * len(calls)
            counted.wait(sent)

        publish(5)  # names are said, and ways made
        rates = []
        for _ in range(rounds):
            began, before = time.perf_counter(), sent
            while time.perf_counter() - began < seconds:
                publish(20)
            rates.append((sent - before) / (time.perf_counter() - began))
        return statistics.median(rates)


def topics(directory: Path, scale: Scale) -> list[Figure]:
    console = Console()
    few = dispatched(FEW, scale.seconds, scale.rounds, console)
    many = dispatched(scale.topics, scale.seconds, scale.rounds, console)
    again = dispatched(FEW, scale.seconds, scale.rounds, console)
    base = statistics.mean((few, again))
    return [
        Figure(
            f"events on {FEW:,} of {scale.topics:,} topics",
            f"{many:,.0f}/s",
            f"of {FEW:,} {few:,.0f}/s, {again:,.0f}/s",
            many / base,
            "0.9",
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="What a broker's store and many topics cost.")
    parser.add_argument("--quick", action="store_true", help="less than a minute")
    parser.add_argument("--only", default=",".join(MEASURES), help="some of " + ", ".join(MEASURES))
    parser.add_argument("--topics", type=int, help="how many beside the 1,000")
    parser.add_argument("--directory", type=Path, help="on the disk to measure")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    if unknown := set(chosen) - set(MEASURES):
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(MEASURES)}")
    scale = QUICK if arguments.quick else FULL
    if arguments.topics is not None:
        if not FEW <= arguments.topics <= 1_000_000:
            parser.error("give 1,000 to 1,000,000 topics")
        scale = Scale(scale.seconds, scale.rounds, scale.replayed, arguments.topics)
    console = Console(width=None if sys.stdout.isatty() else 120)
    print_head(console)
    directory = Path(tempfile.mkdtemp(prefix="bench-broker-", dir=arguments.directory))
    table = Table(box=None, pad_edge=False)
    for name in ("measure", "ours", "against", "ratio", "target"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    known = {"record": record, "always": always, "replay": replay, "topics": topics}
    try:
        for name in chosen:
            for one in known[name](directory, scale):
                table.add_row(one.measure, one.ours, one.against, f"{one.ratio:.2f}", one.target)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    console.print()
    console.print(table)


if __name__ == "__main__":
    main()
