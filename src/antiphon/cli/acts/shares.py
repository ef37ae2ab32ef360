"""Second act: two topics between two processes, one of which floods; shares off, then on.

The paced topic carries the time at which each of its events was due, so that a late publisher
counts as well. The predicted delay is printed before the measured one. Short windows make it a
demonstration; the measurement to quote is ``antiphon bench topic``. There a flood is as many events
as the machine can carry. Here each of them takes a handler's time, as real ones do: otherwise four
busy threads would compete for two cores, and the publisher's waits would be all one could see.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from antiphon.cli.acts.stage import Act, ActFailed, Scene, Stage
from antiphon.lab.bench.processes import deferred_interrupt
from antiphon.topics import Bus, Subscription
from antiphon.topics.model import quantile

__all__ = ["ACT"]

CODE = """
# subscribing, to two topics of another process
bus = antiphon.Bus("local://demo")
bus.subscribe("flood", work)               # it floods; 0.1 ms each
sub = bus.subscribe("paced", on_time)      # 1,000 times per second

# a fifth of the time for the second one
sub.share = 0.2
sub.predict().mean_response                # before it is measured
"""

RATE = 1000
WORK_NS = 100_000
SHARE = 0.2
WARM = 1.5
SECONDS = 4.0
PATIENCE = 20.0
FEWEST = 10

WORKER = """
import signal, sys, threading, time
signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the one who began it
from antiphon.topics import Bus
channel, rate = sys.argv[1], float(sys.argv[2])
with Bus(channel) as bus:
    flood, paced = bus.publisher("flood"), bus.publisher("paced")
    ended = threading.Event()
    def run():
        many = [b"x" * 128] * 500
        while not ended.is_set():
            flood.publish_many(many)
    if flood.wait_for_subscribers(1, 20) and paced.wait_for_subscribers(1, 20):
        thread = threading.Thread(target=run)
        thread.start()
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
        due = time.monotonic_ns()
        while not ended.is_set():
            due += int(1e9 / rate)
            left = due - time.monotonic_ns()
            if left > 0:
                time.sleep(left / 1e9)
            paced.publish(due.to_bytes(8, "little"))
        thread.join(10)
"""


def perform(stage: Stage) -> dict[str, object]:
    """Both ways, one after the other, with the same traffic."""
    channel = "local://demo"
    with _own_place(), Bus(channel) as bus:
        flooded = 0
        delays: list[int] = []

        def work(event: Any) -> None:
            nonlocal flooded
            flooded += 1
            until = time.perf_counter_ns() + WORK_NS
            while time.perf_counter_ns() < until:
                pass

        def on_time(event: Any) -> None:
            delays.append(time.monotonic_ns() - int.from_bytes(event.data, "little"))

        bus.subscribe("flood", work)
        sub = bus.subscribe("paced", on_time)
        with _publishing(channel) as worker:
            with stage.now("the other process starts"):
                _await_first(delays, worker)
            rows = []
            for name, share in (("shares off", None), (f"a share of {SHARE:g}", SHARE)):
                sub.share = share
                rows.append(_measure(stage, name, sub, delays, lambda: flooded))
    _show(stage, rows)
    return {"shares": rows}


@contextlib.contextmanager
def _publishing(channel: str) -> Iterator[subprocess.Popen[bytes]]:
    """The other process, which ends with us; also if Ctrl-C comes while it is being started."""
    worker = None
    try:
        with deferred_interrupt():
            worker = subprocess.Popen(
                [sys.executable, "-c", WORKER, channel, str(RATE)],
                stdin=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for us: it might meet a beginning interpreter
            )
        yield worker
    finally:
        if worker is not None:
            worker.kill()
            worker.wait()


@contextlib.contextmanager
def _own_place() -> Iterator[None]:
    """A channel of nobody else, which leaves nothing behind."""
    before = os.environ.get("XDG_RUNTIME_DIR")
    with tempfile.TemporaryDirectory(prefix="ap-") as directory:
        os.environ["XDG_RUNTIME_DIR"] = directory
        try:
            yield
        finally:
            if before is None:
                del os.environ["XDG_RUNTIME_DIR"]
            else:
                os.environ["XDG_RUNTIME_DIR"] = before


def _await_first(delays: list[int], worker: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE
    while not delays:
        if worker.poll() is not None or time.monotonic() > until:
            raise ActFailed("the publishing process does not get going")
        time.sleep(0.02)


def _measure(
    stage: Stage, name: str, sub: Subscription, delays: list[int], flooded: Any
) -> dict[str, Any]:
    with stage.now(f"{name}: getting going"):
        sub._handled().look()
        time.sleep(WARM)
    model = sub._bus._predict(sub, sub._handled(), WARM * 0.9)
    stage.say(f"  {name}: predicted mean response {model.mean_response * 1e3:.2f} ms", style="dim")
    del delays[:]
    before = flooded()
    began = time.monotonic()
    with stage.now(f"{name}: measuring for {SECONDS:g} s"):
        time.sleep(SECONDS)
        while len(delays) < FEWEST and time.monotonic() - began < PATIENCE:
            time.sleep(0.02)  # the machine has other things to do
    elapsed = time.monotonic() - began
    seen = list(delays)
    if len(seen) < FEWEST:
        raise ActFailed("too few events came to say anything")
    classes: dict[int, int] = {}
    for one in seen:
        classes[one] = classes.get(one, 0) + 1
    measured = sub._bus._predict(sub, sub._handled(), SECONDS * 0.9)
    return {
        "name": name,
        "predicted_response": model.mean_response,
        "measured_response": measured.measured_response,
        "bound": model.bound,
        "p50": quantile(classes, 0.5),
        "p99": quantile(classes, 0.99),
        "max": max(seen) / 1e9,
        "events": len(seen),
        "flood_rate": (flooded() - before) / elapsed,
    }


def _show(stage: Stage, rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("the paced topic, ms", no_wrap=True)
    for column in ("predicted mean", "measured mean", "p50", "p99", "max", "beside it/s"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['predicted_response'] * 1e3:.2f}",
            f"{row['measured_response'] * 1e3:.2f}",
            *(f"{row[name] * 1e3:.2f}" for name in ("p50", "p99", "max")),
            f"{row['flood_rate']:,.0f}",
        )
    stage.show(table)
    stage.say("mean: from arrival here to the handler's end; p50 to max: from when it was due\n")


ACT = Act(
    name="shares",
    title="A topic that is on time while another floods",
    seconds=16.0,
    scenes=(Scene(CODE, perform),),
)
