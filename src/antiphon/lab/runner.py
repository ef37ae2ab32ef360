"""Carries out a campaign, run by run.

Receives a `Campaign`, hands every run's files to `RunFolder` and its outcome to whoever watches.
What a protocol does wrong is its outcome, and the campaign goes on. What is wrong with the campaign
itself, a full disk for one, ends it, and it can be resumed.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil

from antiphon.lab.bench.processes import Child, Crew, WorkerFailed, ask_all
from antiphon.lab.campaign import Campaign, CampaignError
from antiphon.lab.java.role import JavaRole
from antiphon.lab.link_runs import check_links
from antiphon.lab.outcome import Seen, judge
from antiphon.lab.plan import Plan, Run, Workload
from antiphon.lab.protocols import PROTOCOLS, Protocol, missing
from antiphon.lab.record import Report, RunFolder
from antiphon.lab.sampling import machine_usage, process_usage
from antiphon.lab.stamps import COLUMNS
from antiphon.lab.workloads.cpu import CpuLoad
from antiphon.lab.workloads.garbage import GarbageSettings, calibrate
from antiphon.lab.workloads.memory import MemoryPressure

__all__ = ["run_campaign"]

WORKER = "antiphon.lab.worker"
NANOS = 1_000_000_000
HOST = "local"
PATTERNS = ("one-way", "duplex", "n-n")
# A process that does not answer for so long is stuck.
ANSWER = 15.0
STOP = 5.0
CLOSE = 10.0


@dataclass(slots=True)
class Party:
    """A process of a run, with its part in it."""

    role: str
    child: Child
    process: psutil.Process
    writes: bool = False
    reads: bool = False
    last: dict[str, Any] = field(default_factory=dict)


def run_campaign(
    campaign: Campaign,
    begin: Callable[[Run, int, int], None] = lambda run, number, total: None,
    end: Callable[[Report], None] = lambda report: None,
) -> list[Report]:
    """Do what is not done yet. Ctrl-C ends it; the run that was under way is done again later."""
    reports = []
    runs = campaign.runs()
    with campaign:
        with _recording(campaign, "what the links can do"):
            for report in check_links(campaign):
                reports.append(report)
                end(report)
        if campaign.garbage is None and (wanted := _garbage_of(campaign.plan)):
            campaign.garbage = wanted
        for number, run in enumerate(runs):
            if campaign.done(run):
                continue
            begin(run, number, len(runs))
            with _recording(campaign, run.id):
                report = _do(campaign, run)
            reports.append(report)
            end(report)
    return reports


@contextlib.contextmanager
def _recording(campaign: Campaign, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CampaignError(
            f"the campaign stops, {what} could not be recorded ({error}); make room and go on "
            f"with: antiphon lab resume {campaign.directory}"
        ) from error


def _garbage_of(plan: Plan) -> GarbageSettings | None:
    """The load on the collector that all runs of a plan have, calibrated where it says so."""
    for workload in plan.workloads.values():
        wanted = workload.garbage
        if wanted is None:
            continue
        if wanted.live_objects is None:
            return calibrate(wanted.core_share)
        return GarbageSettings(wanted.live_objects, wanted.replaced_per_second)
    return None


def _do(campaign: Campaign, run: Run) -> Report:
    folder = RunFolder(campaign.directory, run.id)
    try:
        return Conducted(campaign, run, folder).conduct()
    except BaseException:
        folder.discard()
        raise


class Conducted:
    """One run, from its first process to its last file."""

    def __init__(self, campaign: Campaign, run: Run, folder: RunFolder) -> None:
        self._campaign = campaign
        self._plan = campaign.plan
        self._run = run
        self._folder = folder
        self._protocol: Protocol = PROTOCOLS[run.protocol]
        usual = self._protocol.variants[0] if self._protocol.variants else None
        self._variant: str | None = run.variant or usual
        self._workload: Workload = self._plan.workloads[run.workload or "none"]
        self._parties: list[Party] = []
        times = self._plan.times
        self._seen = Seen(window=times.kept_until - times.kept_from, lossy=self._protocol.lossy)
        self._start = 0
        self._window = (0, 0)
        self._kept: list[tuple[int, int, int]] = []  # time, messages, bytes
        self._timed = 0
        self._load: dict[str, float | None] = {"cpu_share": None}
        self._cpu_load: CpuLoad | None = None

    def conduct(self) -> Report:
        """Do it, write its files, and say how it went."""
        began = resource.getrusage(resource.RUSAGE_SELF)
        since = time.monotonic()
        if reason := self._cannot():
            outcome = "absent"
            if self._workload.garbage is not None and not self._protocol.managed:
                outcome = "not_applicable"
        else:
            self._event("start", "")
            try:
                with Crew() as crew, contextlib.ExitStack() as loads:
                    self._traffic(crew, loads)
            except WorkerFailed as error:
                self._seen.error = str(error)
                self._seen.died = "ended unexpectedly" in str(error)
                self._event("error", str(error))
            outcome, reason = judge(self._seen)
            self._event("stop", outcome)
        used = resource.getrusage(resource.RUSAGE_SELF)
        own = used.ru_utime + used.ru_stime - began.ru_utime - began.ru_stime
        report = self._report(outcome, reason)
        self._folder.finish(self._facts(report, own / max(1e-9, time.monotonic() - since)))
        return report

    def _cannot(self) -> str:
        if self._workload.garbage is not None and not self._protocol.managed:
            return f"{self._run.protocol} has no garbage collector"
        link = self._plan.links[self._run.link or "loopback"]
        if link.kind != "loopback":
            return f"links of kind {link.kind} are not there yet; only loopback is"
        if self._run.pattern not in PATTERNS:
            there = ", ".join(PATTERNS)
            return f"the pattern {self._run.pattern} comes with groups; there are {there}"
        if self._variant and self._variant not in self._protocol.variants:
            ways = ", ".join(self._protocol.variants)
            return f"{self._run.protocol} has no variant {self._variant}; there are {ways}"
        if self._protocol.program and self._run.pattern != "one-way":
            return "Java roles do one-way traffic only, so far"
        return missing(self._protocol, self._variant or "")

    # --- traffic ----------------------------------------------------------------------------

    def _traffic(self, crew: Crew, loads: contextlib.ExitStack) -> None:
        times = self._plan.times
        self._assemble(crew)
        measured = [party.child for party in self._parties if party.reads or party.writes]
        self._start = time.monotonic_ns()
        actions: list[tuple[float, Callable[[], None]]] = [
            (times.load, lambda: self._compete(measured, loads)),
            (times.traffic, self._begin),
        ]
        second = 0
        while True:
            while actions and actions[0][0] <= self._elapsed():
                # What takes long to set up, such as a large heap, is not to use up the window: the
                # clock of the run stands still meanwhile.
                began = time.monotonic_ns()
                actions.pop(0)[1]()
                self._start += time.monotonic_ns() - began
                begin, end = (int(when * NANOS) for when in (times.kept_from, times.kept_until))
                self._window = (self._start + begin, self._start + end)
            elapsed = self._elapsed()
            if second <= elapsed or elapsed >= times.kept_until:
                second = int(elapsed)
                self._sample(second)
                second += 1
            if elapsed >= times.kept_until:
                break
            next_one = min([second, times.kept_until, *(when for when, _ in actions)])
            time.sleep(max(0.0, next_one - self._elapsed()))
        self._end(crew)

    def _elapsed(self) -> float:
        return (time.monotonic_ns() - self._start) / NANOS

    def _assemble(self, crew: Crew) -> None:
        run, peer = self._run, self._protocol.peer
        service = ""
        if peer is not None and peer.served:
            server = crew.start(f"{run.protocol} server", ("-m", WORKER))
            service = server.ask("serve", system=run.protocol)["address"]
            self._join("server", server)
        folder = str(crew.folder()) if peer is not None and peer.folder else ""
        for index, (role, reads, targets) in enumerate(roles(run)):
            child = self._start_role(crew, role, reads)
            party = self._join(role, child)
            party.reads, party.writes = reads, bool(targets)
            config = {
                "index": index,
                "variant": self._variant,
                "size": run.size,
                "targets": targets,
                "receives": reads,
                "service": service,
                "threads": run.threads or 1,
                "pattern": run.pattern,
                "folder": folder,
            }
            child.tell(
                "prepare",
                scheduling=run.scheduling or "other",
                cores=_cores(index) if self._plan.pinned else None,
                collector=dict(self._plan.gc),
            )
            child.answer(ANSWER)
            child.tell("open", system=run.protocol, config=config)
        those = [party.child for party in self._parties if party.role != "server"]
        addresses = [child.answer(30.0)["address"] for child in those]
        writers = [party.child for party in self._parties if party.writes]
        ask_all(writers, "connect", addresses=dict(enumerate(addresses)))

    def _start_role(self, crew: Crew, role: str, reads: bool) -> Child:
        label = f"{self._run.protocol} {role}"
        program = self._protocol.program
        if not program:
            return crew.start(label, ("-m", WORKER))
        stack = self._run.protocol.removeprefix("jgroups-")
        return crew.adopt(lambda: JavaRole(label, program, reads, stack))

    def _join(self, role: str, child: Child) -> Party:
        party = Party(role, child, psutil.Process(child.pid))
        self._parties.append(party)
        return party

    def _compete(self, measured: list[Child], loads: contextlib.ExitStack) -> None:
        """Start what the run has to stand up against."""
        workload, seed = self._workload, self._run.seed
        settings = self._campaign.garbage
        if workload.garbage is not None and settings is not None:
            facts = asdict(settings)
            if self._protocol.program:
                facts = {
                    "live_bytes": workload.garbage.java_live_bytes,
                    "replaced_per_second": workload.garbage.replaced_per_second,
                }
            ask_all(measured, "garbage", timeout=60.0, seed=seed, **facts)
            self._event("load", f"garbage {facts}")
        share = workload.cpu
        if workload.cpu_as_garbage and workload.garbage is None:
            share = _share_of_garbage(self._plan, len(measured))
        if share is not None:
            self._cpu_load = loads.enter_context(CpuLoad(share, seed=seed))
            self._load["cpu_share"] = share
            self._event("load", f"cpu {share:.2f} of all cores")
        if workload.memory_bytes:
            loads.enter_context(MemoryPressure(workload.memory_bytes))
            self._event("load", f"memory {workload.memory_bytes}")

    def _begin(self) -> None:
        stream = self._protocol.peer is not None and self._protocol.peer.stream
        active = [one.child for one in self._parties if one.writes or (stream and one.reads)]
        ask_all(active, "begin", timeout=30.0, threads=self._run.threads or 1, rate=self._run.rate)
        self._event("traffic", "")
        if self._cpu_load is not None:
            self._cpu_load.measured()  # from here on

    def _end(self, crew: Crew) -> None:
        if self._cpu_load is not None:
            self._load["cpu_share_measured"] = self._cpu_load.measured()
        writers = [party.child for party in self._parties if party.writes]
        ask_all(writers, "stop", timeout=STOP + ANSWER, limit=STOP)
        with contextlib.suppress(WorkerFailed):  # what counts is over
            crew.close(CLOSE)

    # --- recording --------------------------------------------------------------------------

    def _event(self, event: str, text: str, role: str = "") -> None:
        now = time.monotonic_ns()
        self._folder.add("events", time_ns=now, host=HOST, role=role, event=event, text=text)

    def _sample(self, second: int) -> None:
        now = time.monotonic_ns()
        kept = self._window[0] <= now <= self._window[1] + NANOS // 2
        common = {"time_ns": now, "second": second, "kept": kept, "host": HOST}
        asked = [party for party in self._parties if party.role != "server"]
        answers = dict(
            zip(
                (party.child.pid for party in asked),
                ask_all([party.child for party in asked], "sample", timeout=ANSWER),
                strict=True,
            )
        )
        messages = received = wrong = 0
        memory: dict[str, list[int]] = dict(self._seen.resident)  # type: ignore[arg-type]
        for party in self._parties:
            usage = process_usage(party.process)
            answer = answers.get(party.child.pid, {})
            self._folder.add(
                "samples",
                **common,
                process=party.child.pid,
                role=party.role,
                **usage,
                **_counts(answer),
            )
            for topic in answer.get("topics", ()):
                overruns = topic.pop("overruns")
                conformant = overruns == party.last.get("overruns", overruns)
                party.last["overruns"] = overruns
                row = {"time_ns": now, "second": second, "conformant": conformant, **topic}
                self._folder.add("topics", **row)
            messages += int(answer.get("received", 0))
            received += int(answer.get("received_bytes", 0))
            wrong += int(answer.get("wrong", 0))
            if kept and usage:
                memory.setdefault(party.role, []).append(usage["resident_bytes"])
        self._folder.add("samples", **common, role="machine", **machine_usage())
        self._seen.resident, self._seen.wrong = memory, wrong
        if kept:
            self._seen.delivered.append(((now - self._start) / NANOS, messages))
            self._kept.append((now, messages, received))
        self._take_times()

    def _take_times(self) -> None:
        readers = [(at, one) for at, one in enumerate(self._parties) if one.reads]
        begin, end = self._window
        for target, reader in readers:
            answer = reader.child.ask("times", ANSWER)
            reader.last["left_out"] = answer["left_out"]
            for sequence, source, intended, sent, came in _rows(answer["times"]):
                if begin <= intended < end:
                    self._timed += 1
                    self._folder.add(
                        "latency",
                        sequence=sequence,
                        source=source,
                        target=target,
                        stage="delivery",
                        intended_ns=intended,
                        sent_ns=sent,
                        received_ns=came,
                        weight=1.0,
                    )

    def _report(self, outcome: str, reason: str) -> Report:
        if len(self._kept) < 2:
            return Report(self._run, outcome, reason)
        (first, before, some), (last, after, more) = self._kept[0], self._kept[-1]
        seconds = max(1, last - first) / NANOS
        rate, volume = (after - before) / seconds, (more - some) / seconds
        return Report(self._run, outcome, reason, rate, volume)

    def _one_in(self) -> float | None:
        """How many messages of the window each row of the latencies stands for."""
        if len(self._kept) < 2 or not self._timed:
            return None
        return max(1.0, (self._kept[-1][1] - self._kept[0][1]) / self._timed)

    def _facts(self, report: Report, own_share: float) -> dict[str, Any]:
        run, peer = self._run, self._protocol.peer
        facts = asdict(run)
        facts["run"] = facts.pop("id")
        facts["variant"] = self._variant
        return {
            "campaign": self._campaign.id,
            **facts,
            "kept_from_ns": self._window[0],
            "kept_until_ns": self._window[1],
            "hosts": [{"name": HOST, "clock_offset_ns": 0, "clock_error_ns": 0}],
            "limits": {},
            "versions": {"adapter": _version(), run.protocol: peer.version() if peer else ""},
            "load": self._load,
            "latency_one_in": self._one_in(),
            "latency_left_out": sum(one.last.get("left_out", 0) for one in self._parties),
            "messages_per_second": report.rate,
            "bytes_per_second": report.bytes,
            "lab_core_share": own_share,
            "outcome": report.outcome,
            "reason": report.reason,
        }


def roles(run: Run) -> list[tuple[str, bool, list[int]]]:
    """For every process of a run: its role, whether it reads, and to whom it writes."""
    if run.pattern in ("duplex", "n-n"):
        count = 2 if run.pattern == "duplex" else run.nodes or 2
        return [
            (f"node-{own}", True, [other for other in range(count) if other != own])
            for own in range(count)
        ]
    writers = run.senders or 1
    names = ["writer"] if writers == 1 else [f"writer-{number}" for number in range(writers)]
    return [("reader", True, []), *((name, False, [0]) for name in names)]


def _rows(times: list[int]) -> Iterator[tuple[int, ...]]:
    for at in range(0, len(times), COLUMNS):
        yield tuple(times[at : at + COLUMNS])


def _counts(answer: dict[str, Any]) -> dict[str, Any]:
    if not answer:
        return {}
    return {
        "gc_collections": answer.get("gc_collections"),
        "gc_pause_ns": answer.get("gc_pause_ns"),
        "sent_messages": answer["sent"],
        "sent_bytes": answer["sent_bytes"],
        "received_messages": answer["received"],
        "received_bytes": answer["received_bytes"],
    }


def _share_of_garbage(plan: Plan, processes: int) -> float:
    """Of all cores, what the load on the collector takes in as many processes."""
    share = max(
        (one.garbage.core_share for one in plan.workloads.values() if one.garbage), default=0
    )
    return min(0.95, share * processes / len(os.sched_getaffinity(0)))


def _cores(index: int) -> list[int]:
    cores = sorted(os.sched_getaffinity(0))
    return [cores[index % len(cores)]]


def _version() -> str:
    from antiphon._version import __version__

    return __version__
