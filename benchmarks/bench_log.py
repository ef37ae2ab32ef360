"""The log of recorded topics beside a bare C loop that writes and syncs, on the same disk.

- Appends of 1 KiB, synced every 10 ms, against ``write`` and ``fdatasync`` at the same interval.
  Both are told to go on for so many seconds, in turn, and end with a sync that counts.
- A sync for every append: one thread, and 64 that share syncs.
- Reading what is in the page cache, in pieces of about a megabyte, beside ``read`` of the files.

The first and the second depend on the disk; ratios within one run are what to look at.

    python benchmarks/bench_log.py [--seconds S] [--rounds N] [--directory DIR]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path

from measuring import print_head
from rich.console import Console
from rich.table import Table

from antiphon._core import raw_log_read, raw_log_write
from antiphon.broker.store import Store
from antiphon.errors import QueueFull

SIZE = 1024
INTERVAL = 0.01
READ_BYTES = 512 << 20


def raw(directory: Path, seconds: float) -> float:
    written, taken = raw_log_write(str(directory / "raw"), SIZE, seconds, INTERVAL)
    return written / taken


def appended(directory: Path, seconds: float, block: int) -> float:
    """Bytes per second of data, from the first append to the last acknowledgement."""
    path = directory / "store"
    data = b"x" * SIZE
    what = data if block == 1 else [data] * block
    count = 0
    with Store(path, interval=INTERVAL) as store:
        appender = store.appender("t", capacity=1 << 20)
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(max(1, 256 // block)):
                try:
                    appender.submit(what, time_ns=0, timeout=1.0)
                except QueueFull:
                    break
                count += 1
            appender.take()
        appender.flush()
        taken = time.perf_counter() - began
        assert store.statistics()["appended"] == count * block
    shutil.rmtree(path)
    return count * block * SIZE / taken


def always(directory: Path, seconds: float, threads: int) -> float:
    """Appends per second of 1 KiB, each acknowledged before its thread makes the next."""
    path = directory / "store"
    counts = [0] * threads
    with Store(path, fsync="always") as store:
        appenders = [store.appender("t") for _ in range(threads)]
        until = time.perf_counter() + seconds

        def run(number: int) -> None:
            appender, data = appenders[number], b"x" * SIZE
            while time.perf_counter() < until:
                appender.wait(appender.submit(data, timeout=10.0))
                counts[number] += 1

        began = time.perf_counter()
        workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        taken = time.perf_counter() - began
    shutil.rmtree(path)
    return sum(counts) / taken


def read(directory: Path) -> tuple[float, float]:
    """Bytes per second: ours and bare, of the same files, once they are in memory."""
    path = directory / "store"
    with Store(path, fsync="none") as store:
        appender = store.appender("t", capacity=1 << 20)
        for _ in range(READ_BYTES // SIZE // 64):
            appender.submit([b"x" * SIZE] * 64, time_ns=0, timeout=60.0)
        appender.flush(300)
        best = 0.0
        for _ in range(3):
            reader, got = store.reader("t"), 0
            began = time.perf_counter()
            while (found := reader.read_packed(1 << 20)) is not None:
                got += len(found[2])
            best = max(best, got / (time.perf_counter() - began))
            assert got == READ_BYTES
        bare = 0.0
        files = sorted(map(str, path.rglob("*.log")))
        for _ in range(3):
            size, seconds = map(sum, zip(*map(raw_log_read, files), strict=True))
            bare = max(bare, size / seconds)
    shutil.rmtree(path)
    return best, bare


def main() -> None:
    parser = argparse.ArgumentParser(description="The log beside a bare C loop.")
    parser.add_argument("--seconds", type=float, default=3.0, help="per measurement")
    parser.add_argument("--rounds", type=int, default=5, help="of raw and ours, in turn")
    parser.add_argument("--directory", type=Path, help="on the disk to measure")
    arguments = parser.parse_args()
    if not 0 < arguments.seconds <= 60 or not 1 <= arguments.rounds <= 100:
        parser.error("give up to 60 seconds and 100 rounds")
    console = Console()
    print_head(console)
    directory = Path(tempfile.mkdtemp(prefix="bench-log-", dir=arguments.directory))
    table = Table(box=None, pad_edge=False)
    for name in ("measure", "ours", "against", "ratio"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    try:
        ways: dict[str, list[float]] = {"raw": [], "1": [], "64": []}
        for _ in range(arguments.rounds):
            ways["raw"].append(raw(directory, arguments.seconds))
            ways["1"].append(appended(directory, arguments.seconds, 1))
            ways["64"].append(appended(directory, arguments.seconds, 64))
        bare = statistics.median(ways["raw"])
        for block in ("1", "64"):
            ours = statistics.median(ways[block])
            table.add_row(
                f"append 1 KiB, {block} at a time, sync every 10 ms",
                f"{ours / 1e6:,.0f} MB/s",
                f"raw C writer {bare / 1e6:,.0f} MB/s",
                f"{ours / bare:.2f}",
            )
        one = statistics.median(
            always(directory, arguments.seconds, 1) for _ in range(arguments.rounds)
        )
        many = statistics.median(
            always(directory, arguments.seconds, 64) for _ in range(arguments.rounds)
        )
        table.add_row(
            "append 1 KiB, sync always, 64 threads",
            f"{many:,.0f}/s",
            f"one thread {one:,.0f}/s",
            f"{many / one:.1f}",
        )
        ours, bare = read(directory)
        table.add_row(
            "read from page cache",
            f"{ours / 1e6:,.0f} MB/s",
            f"bare read {bare / 1e6:,.0f} MB/s",
            f"{ours / bare:.2f}",
        )
    finally:
        shutil.rmtree(directory)
    console.print()
    console.print(table)


if __name__ == "__main__":
    main()
