"""Competing work: it takes what it was asked to take, says what it took, and never stays behind."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from antiphon.errors import Closed, ConfigError
from antiphon.lab.bench.machine import busy_seconds, process_cpu, threads_cpu
from antiphon.lab.bench.processes import Crew, WorkerFailed
from antiphon.lab.competing import Competition
from antiphon.lab.places import Place
from antiphon.lab.workloads import garbage as subject
from antiphon.lab.workloads.cpu import CpuLoad, Pace
from antiphon.lab.workloads.garbage import GarbageLoad, GarbageSettings, calibrate
from antiphon.lab.workloads.memory import MemoryPressure
from antiphon.testing.waiting import eventually, readable
from unit.lab.descendants import alive, await_none

MEGABYTE = 1 << 20
LOADS: list[Callable[[], CpuLoad | MemoryPressure]] = [
    lambda: CpuLoad(0.02),
    lambda: MemoryPressure(MEGABYTE),
]
both = pytest.mark.parametrize("make", LOADS, ids=["cpu", "memory"])

# --- the pace of a CPU load, without a clock ------------------------------------------------------


class Simulated:
    """A process that keeps the pace, on clocks of its own."""

    def __init__(self, share: float, window: float = 2.0) -> None:
        self.wall = 0.0
        self.cpu = 0.0
        self._pace = Pace(share, self.wall, self.cpu, window)

    def run(self, cycles: int, speed: float) -> None:
        """So many cycles of 20 ms, with ``speed`` of a core to be had."""
        for _ in range(cycles):
            wanted = self._pace.next(self.wall, self.cpu, 0.02)
            self.cpu += wanted
            self.wall += max(0.02, wanted / speed)


@pytest.mark.parametrize("share", [0.001, 0.2, 0.6, 1.0])
def test_with_room_the_pace_is_the_share(share: float) -> None:
    process = Simulated(share)
    process.run(500, speed=1.0)
    assert process.cpu / process.wall == pytest.approx(share, rel=0.01)


def test_the_pace_makes_up_for_what_it_did_not_get() -> None:
    process = Simulated(0.6)
    process.run(50, speed=0.5)
    assert process.cpu / process.wall < 0.51
    process.run(50, speed=1.0)
    assert process.cpu / process.wall == pytest.approx(0.6, rel=0.01)


def test_the_pace_forgives_what_is_long_ago() -> None:
    process = Simulated(0.6, window=2.0)
    process.run(1000, speed=0.2)
    wall, cpu = process.wall, process.cpu
    process.run(1000, speed=1.0)
    extra = (process.cpu - cpu) - 0.6 * (process.wall - wall)
    assert extra == pytest.approx(2.0 * 0.6, abs=0.05)


def test_the_pace_rests_after_too_much() -> None:
    pace = Pace(0.5, 0.0, 0.0)
    assert pace.next(0.02, 0.05, 0.02) == 0.0
    assert pace.next(0.12, 0.05, 0.02) == pytest.approx(0.02)


# --- the CPU load ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("share", "processes"), [(0.2, None), (0.2, 5), (0.6, None), (0.6, 5)])
def test_a_cpu_load_holds_its_share(share: float, processes: int | None) -> None:
    # Share of the load, and share of the machine that nobody used, in the same stretch of time.
    seen: list[tuple[float, float]] = []
    with CpuLoad(share, processes) as load:
        assert len(load.pids) == (processes or load.cores)
        begun, before = time.monotonic(), sum(map(total_cpu, load.pids))
        while len(seen) < 8 and not (seen and abs(seen[-1][0] - share) <= 0.03):
            busy, at = busy_seconds(), time.monotonic()
            time.sleep(1.5)
            busy, elapsed = busy_seconds() - busy, time.monotonic() - at
            seen.append((load.measured(), 1 - busy / elapsed / (os.cpu_count() or 1)))
        used = sum(map(total_cpu, load.pids)) - before
        elapsed = time.monotonic() - begun
    assert used <= (share + 0.03) * load.cores * elapsed, seen
    held = abs(seen[-1][0] - share) <= 0.03
    if not held and os.geteuid() != 0 and all(idle < 0.05 for _, idle in seen):
        pytest.skip(f"the machine is full, and only root may go before others: {seen}")
    assert held, f"measured share and idle share of the machine: {seen}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may go before others")
def test_as_root_a_cpu_load_holds_its_share_beside_those_that_want_all() -> None:
    endless = [sys.executable, "-c", "while True: pass"]
    cores = len(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        for _ in range(2 * cores):
            greedy = stack.enter_context(subprocess.Popen(endless, start_new_session=True))
            stack.callback(greedy.kill)
        load = stack.enter_context(CpuLoad(0.6))
        # Somebody's virtual machine may take the processor away from all of us, but not each time.
        seen: list[float] = []
        while len(seen) < 8 and not (seen and abs(seen[-1] - 0.6) <= 0.03):
            time.sleep(1.5)
            seen.append(load.measured())
    assert abs(seen[-1] - 0.6) <= 0.03, seen


def total_cpu(pid: int) -> float:
    return threads_cpu(pid) or process_cpu(pid)


def test_what_is_measured_is_what_the_kernel_says() -> None:
    with CpuLoad(0.1, cycle=0.005, seed=7) as load:

        def look() -> tuple[float, float]:
            return sum(map(total_cpu, load.pids)), time.monotonic()

        # Looked at before and after each call: the truth lies between.
        early = look()
        load.measured()
        begin = look()
        eventually(lambda: look()[0] > begin[0] + 0.1, 50, "CPU being used")
        end = look()
        measured = load.measured() * load.cores
        late = look()
    assert (end[0] - begin[0]) / (late[1] - early[1]) <= measured
    assert measured <= (late[0] - early[0]) / (end[1] - begin[1])


def test_its_processes_lead_sessions_of_their_own() -> None:
    with CpuLoad(0.02, processes=3) as load:
        assert [os.getsid(pid) for pid in load.pids] == list(load.pids)


def test_a_process_that_was_lost_is_noticed() -> None:
    with CpuLoad(0.02) as load:
        assert load.measured() >= 0
        os.kill(load.pids[0], signal.SIGTERM)
        await_none(load.pids[:1])
        with pytest.raises(WorkerFailed, match="CPU load 0 has ended"):
            load.measured()


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        ({"share": 0}, "share"),
        ({"share": 1.01}, "share"),
        ({"share": float("nan")}, "share"),
        ({"share": "half"}, "share"),
        ({"share": True}, "share"),
        ({"share": 0.5, "processes": 0}, "processes"),
        ({"share": 0.5, "processes": 1.5}, "processes"),
        ({"share": 0.5, "processes": True}, "processes"),
        ({"share": 0.5, "processes": 10_000}, "processes"),
        ({"share": 0.5, "cycle": 0}, "cycle"),
        ({"share": 0.5, "cycle": 2}, "cycle"),
        ({"share": 0.5, "seed": -1}, "seed"),
        ({"share": 0.5, "seed": "x"}, "seed"),
    ],
)
def test_a_cpu_load_says_what_it_cannot_be(arguments: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting} is .*; it must be") as caught:
        CpuLoad(**arguments)
    assert caught.value.setting == setting


def test_too_few_processes_for_the_share_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    with pytest.raises(ConfigError, match=r"at least 2.4: 0.6 of 4 cores"):
        CpuLoad(0.6, processes=2)
    assert CpuLoad(0.6, processes=3).processes == 3
    assert CpuLoad(1.0).processes == 4


# --- how the processes of both loads end ----------------------------------------------------------


@both
def test_closing_ends_the_processes(make: Callable[[], CpuLoad | MemoryPressure]) -> None:
    load = make()
    load.start()
    pids = load.pids
    assert pids
    assert all(alive(pid) for pid in pids)
    load.close()
    assert not any(alive(pid) for pid in pids)
    assert load.pids == ()
    load.close()
    with pytest.raises(Closed):
        load.start()


@both
def test_an_exception_ends_the_processes(make: Callable[[], CpuLoad | MemoryPressure]) -> None:
    pids: list[int] = []

    def interrupted() -> None:
        with make() as load:
            pids.extend(load.pids)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert pids
    assert not any(alive(pid) for pid in pids)


@pytest.mark.parametrize(
    "load",
    [CpuLoad(0.02, processes=1, limit=3.0), MemoryPressure(MEGABYTE, limit=3.0)],
    ids=["cpu", "memory"],
)
def test_the_time_limit_ends_the_processes(load: CpuLoad | MemoryPressure) -> None:
    try:
        load.start()
        assert load.pids
        await_none(load.pids, timeout=30)
    finally:
        load.close()


@pytest.mark.parametrize("limit", [0, -1, float("inf"), "long", None])
def test_a_bad_limit_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigError, match="limit is"):
        CpuLoad(0.02, limit=limit)
    with pytest.raises(ConfigError, match="limit is"):
        MemoryPressure(MEGABYTE, limit=limit)


def test_what_competes_with_a_run_of_hours_lasts_as_long_and_is_bounded() -> None:
    with Crew() as crew, contextlib.ExitStack() as loads:
        competition = Competition(crew, loads, seed=1, seconds=6 * 3600.0)
        competition.start(Place(), 0.02, MEGABYTE)
        started = [
            words
            for child in psutil.Process().children(recursive=True)
            if "--limit" in (words := child.cmdline())
        ]
        limits = [float(words[words.index("--limit") + 1]) for words in started]
    assert {words[2].rpartition(".")[2] for words in started} == {"cpu", "memory"}
    assert all(6 * 3600 < limit < 7 * 3600 for limit in limits)


@both
def test_the_end_of_the_thread_that_started_them_is_not_their_end(
    make: Callable[[], CpuLoad | MemoryPressure],
) -> None:
    load = make()
    try:
        thread = threading.Thread(target=load.start)
        thread.start()
        thread.join()
        assert load.pids
        # The signal of the kernel is handled before anything that is asked of them afterwards.
        spent = [total_cpu(pid) for pid in load.pids]
        eventually(
            lambda: all(total_cpu(pid) > then for pid, then in zip(load.pids, spent, strict=True)),
            30,
            "all at work",
        )
        assert all(alive(pid) for pid in load.pids)
    finally:
        load.close()


PARENT = """
import os, sys, time
from antiphon.lab.workloads.cpu import CpuLoad
from antiphon.lab.workloads.memory import MemoryPressure

with CpuLoad(0.02) as cpu, MemoryPressure(1 << 20) as memory:
    if sys.argv[1] == "forked" and os.fork() == 0:
        # Holds the pipes open, so that only the signal tells of the parent's end.
        os.close(1)
        time.sleep(60)
        os._exit(0)
    print(*cpu.pids, *memory.pids, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("how", ["alone", "forked"])
def test_a_killed_parent_takes_the_processes_with_it(how: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, how], stdout=subprocess.PIPE, start_new_session=True
    )
    assert parent.stdout is not None
    try:
        assert readable(parent.stdout, 50)
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) >= 2
        assert all(alive(pid) for pid in pids)
        parent.kill()
        parent.wait(10)
        await_none(pids)
    finally:
        # Its session, which still has the fork; the number is ours while that lives.
        if how == "forked":
            os.killpg(parent.pid, signal.SIGKILL)
        parent.kill()
        parent.wait()
        parent.stdout.close()


def test_a_parent_that_died_first_is_noticed() -> None:
    """The number of a parent that is none of ours: as if it had died before the child looked."""
    command = ["--share", "0.1", "--cycle", "0.02", "--seed", "0", "--limit", "30"]
    done = subprocess.run(
        [sys.executable, "-m", "antiphon.lab.workloads.cpu", *command, "--parent", "1"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=50,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == b""


# --- memory ---------------------------------------------------------------------------------------


def test_memory_is_held_and_touched_again() -> None:
    with MemoryPressure(64 * MEGABYTE) as load:
        assert load.held() >= 64 * MEGABYTE
        assert load.held() < 64 * MEGABYTE + 200 * MEGABYTE
        before = total_cpu(load.pids[0])
        eventually(lambda: total_cpu(load.pids[0]) > before, 30, "another sweep")
    assert load.held() == 0


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "1G", None, 1 << 60])
def test_memory_says_what_it_cannot_hold(size: Any) -> None:
    with pytest.raises(ConfigError, match=r"bytes is .*; it must be a whole number from 1 to"):
        MemoryPressure(size)


def test_memory_that_is_not_available_is_refused() -> None:
    load = MemoryPressure(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with pytest.raises(ConfigError, match="are available now"):
        load.start()
    assert load.pids == ()


# --- garbage --------------------------------------------------------------------------------------


@pytest.fixture
def _collector() -> Iterator[None]:
    """Leaves the collector as it was, and nothing of the test in it."""
    on, thresholds, callbacks = gc.isenabled(), gc.get_threshold(), list(gc.callbacks)
    gc.collect()
    yield
    gc.set_threshold(*thresholds)
    (gc.enable if on else gc.disable)()
    assert gc.callbacks == callbacks
    gc.collect()


def elements() -> list[subject.Element]:
    return [each for each in gc.get_objects() if type(each) is subject.Element]


@pytest.mark.parametrize("size", [2, 3, 5, 100, 1001])
@pytest.mark.usefixtures("_collector")
def test_a_web_keeps_its_size_and_its_shape(size: int) -> None:
    web = subject.Web(size, random.Random(3), lambda: False)
    replaced = 0
    for _ in range(2000):
        replaced += web.replace()
    assert replaced >= 4000
    gc.collect()
    found = elements()
    assert len(found) == web.size == size
    assert all(each.following.preceding is each for each in found)
    assert all(each.preceding.following is each for each in found)
    assert all(each.across.across is each for each in found)
    assert sum(each.across is each for each in found) == size % 2
    assert all(each.following is not each for each in found)


@pytest.mark.usefixtures("_collector")
def test_the_same_seed_makes_the_same_web() -> None:
    def replaced(seed: int) -> list[int]:
        web = subject.Web(500, random.Random(seed), lambda: False)
        return [web.replace() for _ in range(50)]

    assert replaced(1) == replaced(1) != replaced(2)


@pytest.mark.usefixtures("_collector")
def test_what_is_dropped_is_freed_by_the_collector_and_by_nothing_else() -> None:
    gc.disable()
    web = subject.Web(1000, random.Random(0), lambda: False)
    dropped = 0
    while dropped < 5000:
        dropped += web.replace()
    assert len(elements()) == 1000 + dropped
    assert gc.collect() >= dropped
    assert len(elements()) == 1000


@pytest.mark.usefixtures("_collector")
def test_a_garbage_load_holds_its_size_and_its_rate() -> None:
    live, rate = 20_000, 10_000.0
    with GarbageLoad(live, rate, seed=5) as load:
        facts = eventually(
            lambda: (now := load.facts())["replaced"] >= 20_000 and now, 50, "replaced elements"
        )
        gc.collect()
        # The collector lists what was made while it was at it, too: no more than one step.
        assert live <= len(elements()) <= live + rate
        assert facts["live_objects"] == live
        # By the timetable, less what a busy machine made it miss; at most a second behind.
        due = rate * facts["seconds"] - facts["missed"]
        assert -10 < due - facts["replaced"] <= rate + 1
        assert facts["fault"] == ""


@pytest.mark.usefixtures("_collector")
def test_after_close_the_collector_finds_the_web() -> None:
    load = GarbageLoad(30_000, 1000)
    load.start()
    gc.disable()
    load.close()
    assert load.facts()["live_objects"] == 0
    assert len(elements()) >= 30_000
    assert gc.collect() >= 30_000
    assert elements() == []
    assert not [one for one in threading.enumerate() if one.name == "garbage-load"]
    load.close()
    with pytest.raises(Closed):
        load.start()


@pytest.mark.usefixtures("_collector")
def test_the_facts_tell_of_collections_pauses_and_cpu() -> None:
    with GarbageLoad(1000, 50_000) as load:
        eventually(lambda: load.facts()["collections"][1] >= 1, 50, "an older generation")
        # Nothing is done while another thread collects.
        eventually(
            lambda: gc.collect() >= 0 and load.facts()["collections"][2] >= 1, 50, "all of them"
        )
    facts = load.facts()
    young, middle, full = facts["collections"]
    assert young >= middle >= 1
    assert full >= 1
    assert 0 < facts["longest_pause_ns"] <= facts["pause_ns"]
    assert facts["pause_ns"] <= (young + middle + full) * facts["longest_pause_ns"]
    assert 0 < facts["cpu_seconds"] <= facts["seconds"]
    gc.collect()
    assert load.facts() == facts


@pytest.mark.usefixtures("_collector")
def test_nothing_is_replaced_while_collection_is_off() -> None:
    with GarbageLoad(1000, 20_000) as load:
        eventually(lambda: load.facts()["replaced"] > 1000, 50, "replaced elements")
        gc.disable()
        # Twice, since the first may tell of a step that began before.
        for _ in range(2):
            missed = load.facts()["missed"]
            eventually(lambda so_far=missed: load.facts()["missed"] > so_far, 50, "missed ones")
        replaced = load.facts()["replaced"]
        missed = load.facts()["missed"]
        eventually(lambda: load.facts()["missed"] > missed + 1000, 50, "more missed elements")
        assert load.facts()["replaced"] == replaced
        gc.enable()
        eventually(lambda: load.facts()["replaced"] > replaced, 50, "replaced elements again")


@pytest.mark.usefixtures("_collector")
@pytest.mark.parametrize("off", [gc.disable, lambda: gc.set_threshold(0)])
def test_without_automatic_collection_no_load_starts(off: Callable[[], None]) -> None:
    off()
    with pytest.raises(ConfigError, match=r"gc\.enable\(\)"):
        GarbageLoad(1000, 1000).start()
    with pytest.raises(ConfigError, match="is off"):
        calibrate()


@pytest.mark.usefixtures("_collector")
def test_an_exception_ends_the_garbage_load() -> None:
    def interrupted() -> None:
        with GarbageLoad(1000, 1000):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not [one for one in threading.enumerate() if one.name == "garbage-load"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_collector")
def test_calibration_finds_a_load_of_the_wanted_share() -> None:
    wanted = 0.15
    # Others who come or go between the two, and use the caches, may double what an element costs;
    # not each time.
    shares: list[float] = []
    while len(shares) < 6 and not (shares and wanted / 1.35 < shares[-1] < wanted * 1.35):
        shares.append(calibrated_share(wanted))
    assert wanted / 1.35 < shares[-1] < wanted * 1.35, shares


def calibrated_share(wanted: float) -> float:
    """What a load takes that was calibrated just before."""
    begun = time.monotonic()
    found = calibrate(wanted, seconds=4.0)
    # It looks at the clock between two steps; a step may take long where others have the cores.
    assert time.monotonic() - begun < 40
    assert found.replaced_per_second == pytest.approx(found.live_objects * subject.TURNOVER)
    assert elements() == []
    deadline = time.monotonic() + 100
    with found.load(seed=2) as load:
        # From one full collection to another: they are most of the cost.
        while (facts := load.facts())["collections"][2] < 2:
            assert time.monotonic() < deadline, f"no two full collections: {found} {facts}"
            time.sleep(0.05)
    gc.collect()
    # What it costs per element, since a full machine may not let it keep to the timetable.
    return float(facts["cpu_seconds"] / facts["replaced"] * found.replaced_per_second)


def test_settings_make_the_load_that_they_describe() -> None:
    settings = GarbageSettings(5000, 1250.0)
    load = settings.load(seed=9)
    assert load.settings == settings
    assert load.seed == 9


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        ((1, 10), "live_objects"),
        ((1e6, 10), "live_objects"),
        ((True, 10), "live_objects"),
        ((10**9, 10), "live_objects"),
        ((1000, -1), "replaced_per_second"),
        ((1000, float("nan")), "replaced_per_second"),
        ((1000, float("inf")), "replaced_per_second"),
        ((1000, "many"), "replaced_per_second"),
        ((1000, 10, -1), "seed"),
        ((1000, 10, 0.5), "seed"),
    ],
)
def test_a_garbage_load_says_what_it_cannot_be(arguments: tuple[Any, ...], setting: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting} is .*; it must be"):
        GarbageLoad(*arguments)


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [((0,), "core_share"), ((1.5,), "core_share"), ((0.3, 0), "seconds"), ((0.3, 1e9), "seconds")],
)
def test_calibration_says_what_it_cannot_do(arguments: tuple[Any, ...], setting: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting} is .*; it must be"):
        calibrate(*arguments)
