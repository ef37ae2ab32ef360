"""A load for the garbage collector of the process that is measured.

A thread keeps a random web of elements and replaces some of them all the time. They stand in rings,
each linked to its neighbours and to one random element elsewhere, so that what is dropped still
holds itself and only the collector can free it. Objects made in a loop and forgotten would not do:
reference counting frees them at once, and a young generation the rest.

How much work that is: CPython looks at everything as soon as a quarter as many objects are new as
there were at the last full look. One element replaced therefore costs nearly the same whatever the
live size, which decides how long and how frequent the pauses are. That is why `calibrate` fixes the
part of the elements that is replaced in a second, and looks for the number of elements.
"""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from antiphon.errors import AntiphonError, Closed, ConfigError
from antiphon.lab.workloads.cpu import MOST_SEED, check_number, check_whole
from antiphon.lab.workloads.load import Load

__all__ = ["MOST_LIVE", "TURNOVER", "GarbageLoad", "GarbageSettings", "calibrate"]

MOST_LIVE = 10_000_000
"""Elements in a load at the most, each about 70 bytes."""

TURNOVER = 0.25
"""The part of the elements that a calibrated load replaces in a second.

It makes about one full collection a second, by the rule of the quarter.
"""

# The timetable: how often it is looked at, how much is made up for at once, and what is forgiven.
_TICK = 0.01
_TICKS_AT_ONCE = 4
_FORGIVEN_AFTER = 1.0
_CLOSE_PATIENCE = 30.0
# Calibration ends when the next size is this near to the last.
_NEAR = 0.05
_TRIES = 4
_FIRST_SIZE = 100_000
_LEAST_SIZE = 1_000
# Replaced in one try besides twice the size: full collections come no more often than every
# 700 x 10 x 10 objects, and three are to be seen.
_ENOUGH = 250_000
_RING = (2, 6)


@dataclass(frozen=True, slots=True)
class GarbageSettings:
    """The two numbers of a `GarbageLoad`, found once and then the same in every run."""

    live_objects: int
    replaced_per_second: float

    def load(self, seed: int = 0) -> GarbageLoad:
        """A load with these settings, not started."""
        return GarbageLoad(self.live_objects, self.replaced_per_second, seed)


class Element:
    """One object of the web. Slots keep it one object to the collector; a ``__dict__`` is two."""

    __slots__ = ("across", "following", "preceding")

    across: Element
    following: Element
    preceding: Element


class Web:
    """Rings of elements; every element is also paired with a random one. Not thread-safe."""

    def __init__(self, size: int, chance: random.Random, give_up: Callable[[], bool]) -> None:
        self._chance = chance
        self._rings: list[Element] = []
        every: list[Element] = []
        while (left := size - len(every)) > 0 and not give_up():
            count = min(left, chance.randint(*_RING))
            # A ring of one would be no ring.
            ring = _ring(left if left - count == 1 else count)
            every += ring
            self._rings.append(ring[0])
        self.size = len(every)
        chance.shuffle(every)
        for one, other in zip(every[::2], every[1::2], strict=False):
            one.across, other.across = other, one

    def replace(self) -> int:
        """Drop one ring, put a new one in its place, and say how many elements that was."""
        chance, rings = self._chance, self._rings
        place = int(chance.random() * len(rings))
        old = [rings[place]]
        while (following := old[-1].following) is not old[0]:
            old.append(following)
        new = _ring(len(old))
        # The old ones keep their references to the web, and nothing in the web keeps one to them:
        # had it any, they would live on, and their partners, and theirs.
        heirs = dict(zip(old, new, strict=True))
        for gone, heir in heirs.items():
            partner = heirs.get(gone.across, gone.across)
            heir.across = partner
            partner.across = heir
        rings[place] = new[0]
        _pair(new[0], rings[int(chance.random() * len(rings))])
        return len(new)


def _ring(count: int) -> list[Element]:
    """New elements in a ring, each paired with itself."""
    ring = [Element() for _ in range(count)]
    before = ring[-1]
    for element in ring:
        element.preceding = before
        before.following = element
        element.across = element
        before = element
    return ring


def _pair(one: Element, other: Element) -> None:
    """Make them partners, and those that they leave as well."""
    left, right = one.across, other.across
    if one is other or left is other or left is one or right is other:
        return
    one.across, other.across = other, one
    left.across, right.across = right, left


class GarbageLoad(Load):
    """Keeps ``live_objects`` elements and replaces ``replaced_per_second`` of them, by a timetable.

    A thread of this process does it, so collections stop the world that is to be measured. What the
    thread could not do in time it makes up for; after a second it is forgiven and counted as
    missed. Automatic collection has to be on, and while somebody turns it off nothing is replaced:
    what is dropped would never be freed.

    Start it by hand or as a context. `facts` may be called from any thread. Raises `ConfigError`
    for a bad argument.
    """

    def __init__(self, live_objects: int, replaced_per_second: float, seed: int = 0) -> None:
        check_whole("live_objects", live_objects, 2, MOST_LIVE)
        check_number("replaced_per_second", replaced_per_second, 0, MOST_LIVE)
        self.settings = GarbageSettings(live_objects, float(replaced_per_second))
        self.seed = check_whole("seed", seed, 0, MOST_SEED)
        self._web: Web | None = None
        self._thread: threading.Thread | None = None
        self._built = threading.Event()
        self._stop = threading.Event()
        self._fault = ""
        # Written by the thread of the load, all at once, so that they fit each other: replaced,
        # missed, seconds, CPU seconds.
        self._progress = (0, 0.0, 0.0, 0.0)
        # Written by whichever thread collects, one at a time.
        self._collections = [0, 0, 0]
        self._pause_began = 0
        self._pauses = 0
        self._longest_pause = 0

    def start(self) -> None:
        """Build the web and begin to replace. Blocks until the web stands.

        Raises `ConfigError` when automatic collection is off, `Closed` on a second start.
        """
        if self._thread is not None:
            raise Closed("a garbage load starts only once; make another one", what="GarbageLoad")
        if not _collecting():
            raise ConfigError(
                "automatic garbage collection is off; call gc.enable() before the load starts",
                setting="gc",
                value=gc.get_threshold(),
            )
        self._thread = threading.Thread(target=self._run, name="garbage-load", daemon=True)
        self._thread.start()
        try:
            self._built.wait()
        except BaseException:
            self.close()
            raise
        if self._fault:
            self.close()
            raise AntiphonError(f"the garbage load could not be built: {self._fault}")

    def _run(self) -> None:
        try:
            # Not a local of this frame too: close() is to drop the last reference.
            self._web = Web(self.settings.live_objects, random.Random(self.seed), self._stop.is_set)
            gc.callbacks.append(self._on_collection)
            self._built.set()
            self._keep_to_the_timetable()
        except Exception as error:
            self._fault = f"{type(error).__name__}: {error}"
        finally:
            self._built.set()

    def _keep_to_the_timetable(self) -> None:
        assert self._web is not None
        replace = self._web.replace
        rate = self.settings.replaced_per_second
        at_once = max(1.0, rate * _TICK * _TICKS_AT_ONCE)
        begun, cpu_begun = time.monotonic(), time.thread_time()
        replaced, missed = 0, 0.0
        while True:
            seconds = time.monotonic() - begun
            due = rate * seconds - replaced - missed
            forgiven = due - rate * _FORGIVEN_AFTER if _collecting() else due
            if forgiven > 0:
                missed += forgiven
                due -= forgiven
            self._progress = (replaced, missed, seconds, time.thread_time() - cpu_begun)
            if self._stop.is_set():
                return
            target = replaced + min(due, at_once)
            while replaced < target:
                replaced += replace()
            # A wait of zero still lets others have the interpreter.
            self._stop.wait(0.0 if due > at_once else _TICK)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        # No lock: a collection may begin anywhere, also where one is held.
        now = time.perf_counter_ns()
        if phase == "start":
            self._pause_began = now
        elif self._pause_began:
            pause = now - self._pause_began
            self._pause_began = 0
            self._collections[info["generation"]] += 1
            self._pauses += pause
            self._longest_pause = max(self._longest_pause, pause)

    def facts(self) -> dict[str, Any]:
        """What the load is and has done since its web stood. Never blocks.

        Collections and pauses are those of the whole process, whoever caused them; the CPU time is
        that of the thread, with the collections that it caused. ``fault`` is empty while all is
        well.
        """
        web = self._web
        replaced, missed, seconds, cpu = self._progress
        return {
            "live_objects": web.size if web is not None else 0,
            "replaced": replaced,
            "missed": round(missed),
            "seconds": seconds,
            "cpu_seconds": cpu,
            "collections": tuple(self._collections),
            "pause_ns": self._pauses,
            "longest_pause_ns": self._longest_pause,
            "fault": self._fault,
        }

    def close(self) -> None:
        """End the thread and drop the web, which the next full collection frees.

        Blocks until the thread has ended. Safe to call again; the facts stay.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_PATIENCE)
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)
        self._web = None


# --- calibration ----------------------------------------------------------------------------------


def calibrate(core_share: float = 0.3, seconds: float = 6.0, seed: int = 0) -> GarbageSettings:
    """How many elements take that share of a core, when a quarter of them is replaced in a second.

    Blocks for about ``seconds`` at the most, at full speed on this thread, and leaves nothing
    behind. Call it in a process like the one to be measured, since every full collection looks at
    whatever else lives there, and on a quiet machine: others' use of the caches can double what an
    element costs. Raises `ConfigError`.
    """
    check_number("core_share", core_share, 0.001, 1)
    check_number("seconds", seconds, 0.5, 60)
    if not _collecting():
        raise ConfigError("automatic garbage collection is off", setting="gc", value=False)
    deadline = time.monotonic() + seconds
    size = _FIRST_SIZE
    for _ in range(_TRIES):
        begun = time.monotonic()
        cost = _cost_of_one(size, random.Random(seed), deadline)
        took = (time.monotonic() - begun) / size
        wanted = round(core_share / (TURNOVER * cost))
        wanted = min(MOST_LIVE, max(_LEAST_SIZE, wanted))
        if abs(wanted / size - 1) <= _NEAR or time.monotonic() + wanted * took > deadline:
            break
        size = wanted
    return GarbageSettings(wanted, wanted * TURNOVER)


def _cost_of_one(size: int, chance: random.Random, deadline: float) -> float:
    """CPU seconds that one replaced element costs in a web of this size, collections included.

    Counted from one full collection to another where that can be seen, since most of the cost falls
    into them.
    """
    web: Web | None = Web(size, chance, lambda: time.monotonic() > deadline)
    assert web is not None
    here = threading.get_ident()
    replaced = 0
    begun = time.thread_time()
    marks: list[tuple[float, int]] = []

    def mark(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2 and threading.get_ident() == here:
            marks.append((time.thread_time(), replaced))

    gc.callbacks.append(mark)
    try:
        while len(marks) < 3 and replaced < 2 * size + _ENOUGH:
            replaced += web.replace()
            if replaced % 64 < 6 and time.monotonic() > deadline:
                break
    finally:
        gc.callbacks.remove(mark)
        web = None
        ended = time.thread_time()
        # The next try must not pay for this one.
        gc.collect()
    if len(marks) > 1:
        (begun, before), (ended, replaced) = marks[0], marks[-1]
        replaced -= before
    return max(ended - begun, 1e-9) / max(replaced, 1)


def _collecting() -> bool:
    return gc.isenabled() and gc.get_threshold()[0] > 0
