"""A broker at half of what it can do, for long: whether memory stays flat, and nothing is lost.

Four processes: a broker with a store, a publisher, a subscriber, and this one, which watches. The
publisher has a plain topic and a recorded one. The subscriber has a subscription of each, and a
durable one of the recorded topic. First they go as fast as they can for some seconds, which is
measured, and come to rest; then at half of that, to the end. Every event has a number. At the end
the numbers of what was published and of what came are the same, by count and by sum, or something
was lost.

The memory of all processes is read every 10 seconds. It is flat when the median of the last third
is not above that of the second third by more than 5 % or 8 MiB, whichever is more: in the first one
caches fill. The store keeps 256 MiB of a topic, so that the disk is bounded too.

Exit code 0: flat, and nothing lost. 1: not so. 2: it could not be carried out.

    python benchmarks/soak_broker.py [--minutes 60] [--every 10] [--directory DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from measuring import print_head
from rich.console import Console
from rich.table import Table

from antiphon import Bus, Publisher
from antiphon.lab.peers.brokers.antiphon_broker import serve_broker
from antiphon.lab.peers.servers import tied

SIZE = 256
KINDS = ("plain", "recorded")
SETTINGS = "[broker]\nkeep_bytes = 268435456\nsegment_bytes = 16777216\n"
CALIBRATED = 5.0  # seconds as fast as it goes
SETTLED = 60.0  # seconds for the last event to be recorded
QUIET = 15.0  # seconds without an event: no more comes
ANSWERED = 30.0
GROWTH, MIB = 0.05, 1 << 20
LEAST = 8 * MIB


# --- the processes --------------------------------------------------------------------------------


class Stream:
    """Numbered events of one publisher, at a rate or as fast as they go."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._rate: float | None = None  # 0: nothing
        self._rest = bytes(SIZE - 8)
        self._number = 0
        self.count = self.sum = 0
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.fault = ""

    def start(self) -> None:
        self._thread.start()

    def pace(self, rate: float) -> None:
        self._rate = rate

    def reset(self) -> None:
        """Counts anew. While nothing is published."""
        self.count = self.sum = 0

    def stop(self) -> None:
        self._stops.set()
        self._thread.join(ANSWERED)

    def _run(self) -> None:
        began, base = time.monotonic(), 0
        rate = self._rate
        try:
            while not self._stops.is_set():
                if rate != self._rate:
                    began, base, rate = time.monotonic(), self._number, self._rate
                some = 64
                if rate is not None:
                    due = int((time.monotonic() - began) * rate) - (self._number - base)
                    if due <= 0:
                        time.sleep(0.002)
                        continue
                    some = min(due, 256)
                numbers = range(self._number + 1, self._number + 1 + some)
                self._number += some
                self._publisher.publish_many(
                    [number.to_bytes(8, "little") + self._rest for number in numbers]
                )
                self.count += some
                self.sum += sum(numbers)
        except Exception as error:
            self.fault = f"{type(error).__name__}: {error}"


def publish(address: str, tell: Callable[..., None]) -> None:
    with Bus(address) as bus:
        publishers = {kind: bus.publisher(kind, record=kind == "recorded") for kind in KINDS}
        for one in publishers.values():
            if not one.wait_for_subscribers(1, ANSWERED):
                raise TimeoutError(f"nobody has subscribed to {one.topic}")
        streams = {kind: Stream(one) for kind, one in publishers.items()}
        tell(ready=True)
        for line in sys.stdin:
            order = json.loads(line)
            for kind, stream in streams.items():
                match order["order"]:
                    case "start":
                        stream.start()
                    case "pace":
                        stream.pace(order["rates"][kind])
                    case "reset":
                        stream.reset()
                    case "stop":
                        stream.stop()
            if order["order"] == "stop":
                publishers["recorded"].flush(SETTLED)
            faults = [stream.fault for stream in streams.values() if stream.fault]
            counts = {kind: (stream.count, stream.sum) for kind, stream in streams.items()}
            tell(counts=counts, faults=faults)
            if order["order"] == "end":
                return


class Counted:
    """A handler: how many came first, the sum of their numbers, how many again, how many not."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Counts anew. While nothing comes."""
        self.count = self.sum = self.again = self.missed = 0

    def __call__(self, event: Any) -> None:
        self.missed += event.missed
        if event.attempt > 1:
            self.again += 1
            return
        self.count += 1
        self.sum += int.from_bytes(event.data[:8], "little")


def subscribe(address: str, tell: Callable[..., None]) -> None:
    with Bus(address) as bus:
        handlers = {name: Counted() for name in ("plain", "recorded", "durable")}
        bus.subscribe("plain", handlers["plain"])
        bus.subscribe("recorded", handlers["recorded"], start="earliest")
        bus.subscribe("recorded", handlers["durable"], durable="soak", start="earliest")
        tell(ready=True)
        for line in sys.stdin:
            order = json.loads(line)["order"]
            if order == "reset":
                for one in handlers.values():
                    one.reset()
            tell(
                counts={name: (one.count, one.sum) for name, one in handlers.items()},
                missed=sum(one.missed for one in handlers.values()),
                again=handlers["durable"].again,
            )
            if order == "end":
                return


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


class Role:
    """One of them, spoken to in lines of JSON. It ends with this process."""

    def __init__(self, name: str, address: str) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), "--role", name, address]
        self._process = subprocess.Popen(
            tied(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.name, self.pid = name, self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self._process.kill()
        self._process.wait()

    def hear(self, timeout: float) -> dict[str, Any]:
        """One line. Raises `TimeoutError` and ends the process when none comes."""
        assert self._process.stdout is not None
        late = threading.Timer(timeout, self._process.kill)
        late.start()
        try:
            line = self._process.stdout.readline()
        finally:
            late.cancel()
        if not line:
            raise TimeoutError(f"the {self.name} has ended, or says nothing for {timeout:g} s")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, order: str, timeout: float = ANSWERED, **facts: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"order": order, **facts}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise TimeoutError(f"the {self.name} has ended") from error
        return self.hear(timeout)


# --- the watch ------------------------------------------------------------------------------------


def memory(pid: int) -> int:
    """Bytes that a process has in memory; 0: it has ended."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def is_flat(samples: list[int]) -> tuple[bool, float, float]:
    """Whether, and the medians of the second and the last third."""
    third = max(1, len(samples) // 3)
    before = statistics.median(samples[third : 2 * third] or samples[:1])
    after = statistics.median(samples[-third:])
    return after - before <= max(GROWTH * before, LEAST), before, after


def soak(address: str, broker: int, seconds: float, every: float, console: Console) -> bool:
    with Role("subscriber", address) as subscriber:
        subscriber.hear(ANSWERED)
        with Role("publisher", address) as publisher:
            publisher.hear(2 * ANSWERED)
            rates = calibrate(publisher, subscriber)
            publisher.ask("pace", rates=rates)
            said = ", ".join(f"{kind} {rate:,.0f}/s" for kind, rate in rates.items())
            console.print(f"half load: {said}; {SIZE} bytes each", highlight=False)
            pids = {"broker": broker, "publisher": publisher.pid, "subscriber": subscriber.pid}
            samples: dict[str, list[int]] = {name: [] for name in pids}
            until = time.monotonic() + seconds
            while (left := until - time.monotonic()) > 0:
                time.sleep(min(every, left))
                for name, pid in pids.items():
                    samples[name].append(memory(pid))
                    if not samples[name][-1]:
                        raise RuntimeError(f"the {name} has ended")
                sent, came = publisher.ask("count"), subscriber.ask("count")
                if sent["faults"]:
                    raise RuntimeError(f"the publisher: {sent['faults'][0]}")
                progress(console, seconds - max(0.0, left - every), samples, sent, came)
            publisher.ask("stop", 2 * SETTLED)
            sent, came = settle(subscriber, publisher)
            for role in (publisher, subscriber):
                role.ask("end")
    return report(console, samples, sent, came)


def calibrate(publisher: Role, subscriber: Role) -> dict[str, float]:
    """Half of what comes, of each kind, when nothing holds the publisher back but the others."""
    publisher.ask("start")
    time.sleep(1.0)
    before, began = subscriber.ask("count")["counts"], time.monotonic()
    time.sleep(CALIBRATED)
    after, ended = subscriber.ask("count")["counts"], time.monotonic()
    # All comes to rest, and from there on it counts: at full load plain events may be dropped.
    publisher.ask("pace", rates=dict.fromkeys(KINDS, 0.0))
    settle(subscriber, publisher)
    for role in (publisher, subscriber):
        role.ask("reset")
    # What the slower one of the two that read the log gets.
    came = {name: (after[name][0] - before[name][0]) / (ended - began) for name in after}
    return {"plain": came["plain"] / 2, "recorded": min(came["recorded"], came["durable"]) / 2}


def settle(subscriber: Role, publisher: Role) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was published, and what has come when all of it could, or when nothing more comes."""
    last = time.monotonic()
    sent, before = publisher.ask("count"), subscriber.ask("count")
    while differing(sent, before) and time.monotonic() - last < QUIET:
        time.sleep(0.2)
        sent, came = publisher.ask("count"), subscriber.ask("count")
        if came != before:
            last, before = time.monotonic(), came
    return sent, before


def differing(sent: dict[str, Any], came: dict[str, Any]) -> list[str]:
    published = {**sent["counts"], "durable": sent["counts"]["recorded"]}
    return [
        f"{name}: {count:,} came of {published[name][0]:,}"
        + ("" if count != published[name][0] else ", with other numbers")
        for name, (count, total) in came["counts"].items()
        if [count, total] != published[name]
    ]


def progress(
    console: Console,
    passed: float,
    samples: dict[str, list[int]],
    sent: dict[str, Any],
    came: dict[str, Any],
) -> None:
    sizes = ", ".join(f"{name} {values[-1] / MIB:.1f}" for name, values in samples.items())
    behind = sent["counts"]["recorded"][0] - came["counts"]["durable"][0]
    console.print(
        f"{passed:6.0f} s  MiB: {sizes}; published {sum(c for c, _ in sent['counts'].values()):,}, "
        f"durable behind by {max(0, behind):,}, missed {came['missed']:,}",
        highlight=False,
    )


def report(
    console: Console, samples: dict[str, list[int]], sent: dict[str, Any], came: dict[str, Any]
) -> bool:
    table = Table(box=None, pad_edge=False)
    for name in ("process", "second third", "last third", "highest", ""):
        table.add_column(name, justify="left" if name in ("process", "") else "right")
    flat = True
    for name, values in samples.items():
        good, before, after = is_flat(values)
        flat = flat and good
        numbers = [f"{one / MIB:.1f} MiB" for one in (before, after, max(values))]
        table.add_row(name, *numbers, "flat" if good else "NOT FLAT")
    console.print(table)
    lost = differing(sent, came)
    for kind, (count, _) in sent["counts"].items():
        console.print(f"{kind}: {count:,} published", highlight=False)
    console.print(f"durable: {came['again']:,} came more than once", highlight=False)
    if came["missed"]:
        lost.append(f"{came['missed']:,} missed, as subscriptions were told")
    console.print("memory: " + ("flat" if flat else "NOT FLAT"))
    console.print("events: " + ("LOST; " + "; ".join(lost) if lost else "none lost"))
    return flat and not lost


def main() -> int:
    parser = argparse.ArgumentParser(description="A broker at half load, for long.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two samples")
    parser.add_argument("--directory", type=Path, help="where the store is, for as long")
    parser.add_argument("--role", nargs=2, metavar=("NAME", "ADDRESS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role is not None:
        name, address = arguments.role
        {"publisher": publish, "subscriber": subscribe}[name](address, tell)
        return 0
    if not 0.1 <= arguments.minutes <= 10_080 or not 0.5 <= arguments.every <= 600:
        parser.error("give a tenth of a minute to a week, and 0.5 to 600 seconds")
    console = Console(width=None if sys.stdout.isatty() else 120)
    print_head(console)
    if arguments.directory is not None:
        arguments.directory.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="soak-broker-", dir=arguments.directory))
    try:
        settings = directory / "broker.toml"
        settings.write_text(SETTINGS)
        options = ["--config", str(settings), "--store", str(directory / "store")]
        address, (broker,), stop = serve_broker(options=options)
        with contextlib.ExitStack() as stack:
            stack.callback(stop)
            good = soak(address, broker, 60 * arguments.minutes, arguments.every, console)
    except (OSError, RuntimeError, TimeoutError) as error:
        console.print(f"not carried out: {error}", highlight=False)
        return 2
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
