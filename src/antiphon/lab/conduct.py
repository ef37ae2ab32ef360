"""One run, from its first process to its last file.

Receives a campaign and one of its runs; hands rows to `RunFolder`, and says how the run ended.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import psutil

from antiphon._version import __version__
from antiphon.lab.bench.processes import Child, Crew, WorkerFailed, WorkerTimeout, ask_all
from antiphon.lab.campaign import Campaign
from antiphon.lab.competing import Competition, garbage_order, share_as_garbage
from antiphon.lab.counted import Count, receivers
from antiphon.lab.delays import Delays
from antiphon.lab.java.role import JavaRole, prepared
from antiphon.lab.latencies import latency_table
from antiphon.lab.limits import MemoryLimit
from antiphon.lab.outcome import Seen, judge
from antiphon.lab.parties import Party, counts_of, roles
from antiphon.lab.places import Place, cannot_open, open_places
from antiphon.lab.plan import Run, Workload
from antiphon.lab.protocols import (
    REQUEST,
    Protocol,
    missing,
    protocol_of,
    unsuited,
    version_of,
)
from antiphon.lab.record import RecordFailed, Report, RunFolder, facts_of
from antiphon.lab.remarks import all_timed, loss, one_in, remarks
from antiphon.lab.remote import Clock, take_clock
from antiphon.lab.sampling import machine_usage, process_usage
from antiphon.lab.stamps import MOST_PER_SECOND

__all__ = ["conduct"]

WORKER = "antiphon.lab.worker"
NANOS = 1_000_000_000
HERE = Place()
# In a sample, the times that are a process's own.
CLOCKED = ("begun_ns", "last_ns", "acked_ns")
# In a sample, counts of which a run keeps what they grew by in its window.
GROWING = ("sent", "received", "skipped", "garbage_replaced", "garbage_missed")
# A process that does not answer for so long is stuck.
ANSWER = 15.0
JOIN = 60.0
STOP = 5.0
CLOSE = 10.0


def conduct(campaign: Campaign, run: Run) -> Report:
    """Carry out one run. What goes wrong in it is its outcome; raises `RecordFailed` alone."""
    folder = RunFolder(campaign.directory, run.id)
    try:
        return Conducted(campaign, run, folder).conduct()
    except BaseException:
        folder.discard()
        raise


class Conducted:
    """A run while it goes on."""

    def __init__(self, campaign: Campaign, run: Run, folder: RunFolder) -> None:
        self._campaign = campaign
        self._plan = campaign.plan
        self._run = run
        self._folder = folder
        self._protocol: Protocol = protocol_of(self._plan, run.protocol)
        usual = self._protocol.variants[0] if self._protocol.variants else None
        self._variant: str | None = run.variant or usual
        self._workload: Workload = self._plan.workloads[run.workload]
        self._link = self._plan.links[run.link]
        self._parties: list[Party] = []
        times = self._plan.times
        # Of a given number of messages all count, from the first one on.
        begin = times.kept_from if run.messages is None else times.traffic
        self._seen = Seen(window=times.kept_until - begin)
        self._count: Count | None = None
        self._settled = False
        self._start = 0
        self._window = (0, 0)
        self._kept: list[tuple[int, int, int]] = []  # time, messages, bytes
        self._timed = 0
        self._delays = Delays()
        self._flowing = False
        self._load: dict[str, Any] = {"cpu_share": None}
        self._competition: Competition | None = None
        self._limit: MemoryLimit | None = None
        self._clocks: dict[str, Clock] = {}

    def conduct(self) -> Report:
        """Do it, write its files, and say how it went."""
        began = resource.getrusage(resource.RUSAGE_SELF)
        since = time.monotonic()
        if reason := unsuited(self._protocol, self._run, self._workload):
            outcome = "not_applicable"
        elif reason := self._cannot():
            outcome = "absent"
        else:
            self._event("start", "")
            try:
                with (
                    open_places(self._link, self._processes()) as places,
                    contextlib.ExitStack() as limits,
                    Crew() as crew,
                    contextlib.ExitStack() as loads,
                ):
                    if (limit := self._plan.limit_of(self._run)) is not None:
                        self._limit = limits.enter_context(MemoryLimit(limit))
                    self._traffic(crew, places, loads)
            except RecordFailed:
                raise
            except WorkerFailed as error:
                self._went_wrong(str(error))
                self._seen.died = "ended unexpectedly" in str(error)
                self._seen.stuck = self._flowing and isinstance(error, WorkerTimeout)
            except Exception as error:
                self._went_wrong(f"{type(error).__name__}: {error}")
            # Nobody may have noticed: those who talk to a server that was ended just wait for it.
            self._seen.out_of_memory = self._limit is not None and self._limit.exceeded
            outcome, reason = judge(self._seen)
            self._event("stop", outcome)
        used = resource.getrusage(resource.RUSAGE_SELF)
        own = used.ru_utime + used.ru_stime - began.ru_utime - began.ru_stime
        report = self._report(outcome, reason)
        self._folder.finish(self._facts(report, own / max(1e-9, time.monotonic() - since)))
        return report

    def _cannot(self) -> str:
        if reason := cannot_open(self._link):
            return reason
        own = self._campaign.adapter(self._run.protocol)
        if own and self._link.kind == "ssh":
            return "a file with an adapter is read on this machine only"
        if self._variant and self._variant not in self._protocol.variants and not own:
            ways = ", ".join(self._protocol.variants)
            return f"{self._run.protocol} has no variant {self._variant}; there are {ways}"
        if self._protocol.program and self._link.kind == "ssh":
            return "Java roles run on this machine only"
        if own:
            return ""
        return missing(self._protocol, self._variant or "", self._run.stack or "")

    def _went_wrong(self, reason: str) -> None:
        self._seen.error = reason
        self._event("error", reason)

    def _processes(self) -> int:
        """How many there are, a server included."""
        peer = self._protocol.peer
        return len(roles(self._run)) + (peer is not None and peer.served)

    # --- traffic ----------------------------------------------------------------------------

    def _traffic(self, crew: Crew, places: list[Place], loads: contextlib.ExitStack) -> None:
        times = self._plan.times
        self._assemble(crew, places)
        measured = [party for party in self._parties if party.reads or party.writes]
        self._start = time.monotonic_ns()
        actions: list[tuple[float, Callable[[], None]]] = [
            (times.load, lambda: self._compete(crew, measured, loads)),
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
                first = self._start + begin if self._count is None else self._count.window[0]
                self._window = (first, self._start + end)
            over = self._all_there() or self._elapsed() >= times.kept_until
            elapsed = self._elapsed()
            if second <= elapsed or over or self._settles():
                second = int(elapsed)
                self._sample(second, over)
                second += 1
            if over:
                break
            next_one = min([second, times.kept_until, *(when for when, _ in actions)])
            if self._count is not None:
                next_one = min(next_one, elapsed + self._count.pause())
            time.sleep(max(0.0, next_one - self._elapsed()))
        if self._count is not None:
            self._end_count(self._count)
        self._end(crew)

    def _all_there(self) -> bool:
        if self._count is None:
            return False
        those = [party for party in self._parties if party.role != "server"]
        answers = ask_all([party.child for party in those], "sample", timeout=ANSWER)
        for party, answer in zip(those, answers, strict=True):
            offset = self._clocks[party.place.host].offset_ns
            answer |= {key: answer[key] - offset for key in CLOCKED if answer.get(key)}
            self._happened(party, answer.get("events", ()))
        return self._count.see(answers)

    def _settles(self) -> bool:
        """Once, when no more seems to come: what is lost is waited for after this sample, so that
        the waiting has rows of its own."""
        if self._settled or self._count is None or not self._count.still:
            return False
        self._settled = True
        return True

    def _end_count(self, count: Count) -> None:
        """Its window is known only now. To wait for what was lost is no part of it."""
        self._window = count.window
        self._seen.missing = count.missing
        if not count.missing:
            came = (count.window[1] - self._start) / NANOS
            before = [one for one in self._seen.delivered if one[0] < came]
            self._seen.delivered = [*before, (came, count.received)]

    def _elapsed(self) -> float:
        return (time.monotonic_ns() - self._start) / NANOS

    def _assemble(self, crew: Crew, places: list[Place]) -> None:
        run, peer = self._run, self._protocol.peer
        service = ""
        if peer is not None and peer.served:
            place = places[-1]
            server = self._start_worker(crew, f"{run.protocol} server", place)
            at = len(roles(run))
            server.ask(
                "prepare",
                ANSWER,
                scheduling=run.scheduling,
                cores=self._cores(at),
                # Before it starts the server, which then has the same.
                memory_limit=self._own_limit(server, place),
            )
            service = server.ask("serve", system=run.protocol, host=place.address)["address"]
            self._join("server", server, place)
        folder = str(crew.folder()) if peer is not None and peer.folder else ""
        timed = sum(self._times(bool(targets), reads) for _, reads, targets in roles(run))
        for index, (role, reads, targets) in enumerate(roles(run)):
            place = places[index]
            child = self._start_role(crew, role, reads, place, self._cores(index))
            party = self._join(role, child, place)
            party.reads, party.writes = reads, bool(targets)
            config = {
                "index": index,
                "variant": self._variant or "",
                "size": run.size,
                "targets": targets,
                "receives": reads,
                "service": service,
                "threads": run.threads,
                "pattern": run.pattern,
                "folder": folder,
                "host": place.address,
                "sources": [at for at, one in enumerate(roles(run)) if index in one[2]],
                "messages": run.messages,
                "handlers": self._plan.handlers,
                "stack": run.stack or "",
                "timed": max(1, MOST_PER_SECOND // max(1, timed)),
                "slow": (self._workload.slow_receiver or 0.0) if index == run.nodes - 1 else 0.0,
            }
            child.tell(
                "prepare",
                scheduling=run.scheduling,
                cores=self._cores(index),
                collector=dict(self._plan.gc),
                memory_limit=self._own_limit(child, place),
            )
            child.answer(ANSWER)
            adapter = self._campaign.adapter(run.protocol)
            child.tell("open", system=run.protocol, config=config, adapter=adapter)
        those = [party.child for party in self._parties if party.role != "server"]
        addresses = [child.answer(30.0)["address"] for child in those]
        # Of a group all join, and wait for each other.
        joins = self._protocol.group and run.pattern != "one-way"
        connecting = [party.child for party in self._parties if party.writes or joins]
        ask_all(connecting, "connect", JOIN, addresses=dict(enumerate(addresses)))

    def _own_limit(self, child: Child, place: Place) -> int | None:
        """The limit that a process has to set itself, because nobody else can."""
        if self._limit is None or place.remote:
            return self._plan.limit_of(self._run)
        return self._limit.add(child.pid)

    def _start_worker(self, crew: Crew, label: str, place: Place) -> Child:
        return crew.start(label, ("-m", WORKER), place.python, place.command)

    def _cores(self, index: int) -> list[int] | None:
        """To which a process is pinned; None: to none."""
        if not self._plan.pinned:
            return None
        cores = sorted(os.sched_getaffinity(0))
        return [cores[index % len(cores)]]

    def _start_role(
        self, crew: Crew, role: str, reads: bool, place: Place, cores: list[int] | None
    ) -> Child:
        label = f"{self._run.protocol} {role}"
        program = self._protocol.program
        if not program:
            return self._start_worker(crew, label, place)
        stack = self._run.stack or self._run.protocol.removeprefix("jgroups-")
        way = "reader" if reads else "writer"
        if self._run.pattern != "one-way":
            way = "member"
        before = (*place.command, *prepared(self._run.scheduling, cores))
        return crew.adopt(lambda: JavaRole(label, program, way, stack, before))

    def _join(self, role: str, child: Child, place: Place) -> Party:
        party = Party(role, child, psutil.Process(child.pid), place)
        if place.host not in self._clocks:
            self._clocks[place.host] = take_clock(child) if place.remote else Clock()
        self._parties.append(party)
        return party

    def _compete(self, crew: Crew, measured: list[Party], loads: contextlib.ExitStack) -> None:
        """Start what the run has to stand up against."""
        workload, seed = self._workload, self._run.seed
        settings = self._campaign.garbage(self._run.workload)
        if workload.garbage is not None and settings is not None:
            facts = garbage_order(self._protocol, workload.garbage, settings)
            ask_all(
                [party.child for party in measured], "garbage", timeout=60.0, seed=seed, **facts
            )
            self._load["garbage"] = facts
            self._event("load", f"garbage {facts}")
        times = self._plan.times
        self._competition = Competition(crew, loads, seed, times.kept_until - times.load)
        machines = {party.place.host if party.place.remote else "": party for party in measured}
        for machine, party in machines.items():
            share = workload.cpu
            if workload.cpu_as_garbage:
                those = [one for one in measured if not machine or one.place.host == machine]
                share = self._share_as_garbage(party, len(those))
            self._competition.start(party.place, share, workload.memory_bytes)
            where = party.place if party.place.remote else HERE
            if share is not None:
                self._load["cpu_share"] = share
                self._event("load", f"cpu {share:.2f} of all cores", where)
            if workload.memory_bytes:
                self._event("load", f"memory {workload.memory_bytes}", where)

    def _share_as_garbage(self, party: Party, processes: int) -> float:
        cores = len(os.sched_getaffinity(0))
        if party.place.remote:
            cores = int(party.child.ask("clock")["cores"])
        return share_as_garbage(self._protocol, self._campaign.garbage_use, processes, cores)

    def _begin(self) -> None:
        active = [one.child for one in self._parties if one.writes]
        if self._run.messages is not None:
            # All of them count, and differences need a row from before the first.
            self._sample(int(self._elapsed()), last=False, before=True)
            self._count = Count(self._run, self._protocol)
        paced = len(active) if self._run.paced is None else self._run.paced
        for number, child in enumerate(active):
            rate = self._run.rate if number < paced else None
            child.tell("begin", threads=self._run.threads, rate=rate)
        for child in active:
            child.answer(30.0)
        self._event("traffic", "")
        self._flowing = True
        if self._competition is not None:
            self._competition.measured()  # from here on

    def _end(self, crew: Crew) -> None:
        self._flowing = False
        if self._competition is not None:
            self._load["cpu_share_measured"] = self._competition.measured()
        for party in self._parties:
            if party.place.remote:
                clock = self._clocks[party.place.host]
                self._clocks[party.place.host] = clock.widened(take_clock(party.child))
        writers = [party.child for party in self._parties if party.writes]
        ask_all(writers, "stop", timeout=STOP + ANSWER, limit=STOP)
        with contextlib.suppress(WorkerFailed):  # what counts is over
            crew.close(CLOSE)

    # --- recording --------------------------------------------------------------------------

    def _event(self, event: str, text: str, place: Place = HERE) -> None:
        now = time.monotonic_ns()
        self._folder.add("events", time_ns=now, host=place.host, role="", event=event, text=text)

    def _happened(self, party: Party, happenings: Sequence[tuple[int, str, str]]) -> None:
        """What a process tells of itself, at the times of its own clock."""
        host, offset = party.place.host, self._clocks[party.place.host].offset_ns
        for when, event, text in happenings:
            row = {"time_ns": when - offset, "event": event, "text": text}
            self._folder.add("events", host=host, role=party.role, **row)

    def _sample(self, second: int, last: bool, before: bool = False) -> None:
        """``before``: before the window, wherever that begins."""
        now = time.monotonic_ns()
        kept = not before and self._window[0] <= now <= self._window[1] + NANOS // 2
        common = {"time_ns": now, "second": second, "kept": kept}
        asked = [party for party in self._parties if party.role != "server"]
        answers = dict(
            zip(
                (party.child.pid for party in asked),
                ask_all([party.child for party in asked], "sample", timeout=ANSWER),
                strict=True,
            )
        )
        messages = received = wrong = 0
        machines = {HERE.host: machine_usage()}
        for party in self._parties:
            usage, machine = self._usage(party)
            machines.setdefault(party.place.host if party.place.remote else HERE.host, machine)
            answer = answers.get(party.child.pid, {})
            self._folder.add(
                "samples",
                **common,
                host=party.place.host,
                process=party.child.pid,
                role=party.role,
                **usage,
                **counts_of(answer),
            )
            for topic in answer.get("topics", ()):
                overruns, key = topic["overruns"], f"overruns of {topic['topic']}"
                conformant = overruns == party.last.get(key, overruns)
                party.last[key] = overruns
                row = {"time_ns": now, "second": second, "conformant": conformant, **topic}
                if classes := topic.get("response_classes"):
                    # Pairs have become lists on their way here, and a map is made of pairs.
                    row["response_classes"] = [tuple(one) for one in classes]
                self._folder.add("topics", **row)
            self._happened(party, answer.get("events", ()))
            messages += int(answer.get("received", 0))
            received += int(answer.get("received_bytes", 0))
            wrong += int(answer.get("wrong", 0))
            if kept and answer:
                seen = {name: answer.get(name, 0) for name in GROWING} | {"time_ns": now}
                party.last.setdefault("kept first", seen)
                party.last["kept last"] = seen
            if kept and usage:
                self._seen.resident.setdefault(party.role, []).append(usage["resident_bytes"])
        for host, machine in machines.items():
            self._folder.add("samples", **common, host=host, role="machine", **machine)
        self._seen.wrong = wrong
        if kept:
            self._begin_window()
            self._seen.delivered.append(((now - self._start) / NANOS, messages))
            self._kept.append((now, messages, received))
        self._take_times(last)

    def _begin_window(self) -> None:
        """With its first sample: what the load took until then is not its own."""
        if not self._kept and self._count is None and self._competition is not None:
            self._competition.measured()

    def _usage(self, party: Party) -> tuple[dict[str, Any], dict[str, Any]]:
        """Of a party and of its machine; the latter empty where that is this one."""
        if not party.place.remote:
            return process_usage(party.process, party.place.interface), {}
        answer = party.child.ask("usage", ANSWER)
        return answer["process"], answer["machine"]

    def _take_times(self, last: bool) -> None:
        members = [party for party in self._parties if party.role != "server"]
        clocks = [self._clocks[party.place.host] for party in members]
        offsets = {at: clock.offset_ns for at, clock in enumerate(clocks)}
        for index, party in enumerate(members):
            if not self._times(party.writes, party.reads):
                continue
            while True:
                answer = party.child.ask("times", ANSWER, end=last)
                party.last["left_out"] = answer["left_out"]
                if self._count is None and len(self._kept) < 2:
                    party.last["left out before"] = answer["left_out"]
                found = latency_table(answer, index, self._window, offsets)
                self._timed += found.num_rows
                self._delays.add(found, offsets)
                self._folder.add_table("latency", found)
                # What did not fit the answer is in the next one, and after the last there is none.
                if not (last and answer["left"]):
                    break

    def _times(self, writes: bool, reads: bool) -> bool:
        """Whether it has times: of round trips those that ask, elsewhere those that receive."""
        return writes if self._variant == REQUEST else reads

    def _report(self, outcome: str, reason: str) -> Report:
        self._note_load()
        report = Report(self._run, outcome, reason, delays=self._delays.facts())
        if self._count is not None:
            rate, volume = self._count.rates()
        elif len(self._kept) >= 2:
            (first, before, some), (last, after, more) = self._kept[0], self._kept[-1]
            seconds = max(1, last - first) / NANOS
            rate, volume = (after - before) / seconds, (more - some) / seconds
        else:
            return report
        notes = remarks(self._run, self._load, self._skipped())
        return replace(report, rate=rate, bytes=volume, notes=notes, loss=self._loss(outcome))

    def _loss(self, outcome: str) -> dict[str, int | None]:
        if not self._protocol.lossy or self._variant == REQUEST:
            return {}
        each = receivers(self._run, self._protocol)
        if self._count is not None:
            return loss(self._count.sent, self._count.received, outcome, each)
        return loss(self._grown("sent"), self._grown("received"), outcome, each)

    def _grown(self, name: str) -> int:
        """What a count grew by in the window, all processes together."""
        seen = [one.last for one in self._parties if "kept first" in one.last]
        return sum(int(one["kept last"][name]) - int(one["kept first"][name]) for one in seen)

    def _skipped(self) -> int:
        if self._count is None:
            return self._grown("skipped")
        # All of it counts, and much may have been before the first sample.
        return sum(int(one.last.get("kept last", {}).get("skipped", 0)) for one in self._parties)

    def _left_out(self) -> int:
        """Times that were too many to be kept, since the first sample of the window."""
        last = [one.last for one in self._parties if "left_out" in one.last]
        return sum(int(one["left_out"]) - int(one.get("left out before", 0)) for one in last)

    def _note_load(self) -> None:
        """What the load on the collectors came to, in the mean of the processes that had it."""
        measured = [one for one in self._parties if one.reads or one.writes]
        if "garbage" not in self._load or not measured:
            return
        nanos = max(self._grown("time_ns"), 1)
        self._load["garbage"] |= {
            "replaced_per_second_measured": self._grown("garbage_replaced") * NANOS / nanos,
            "missed": self._grown("garbage_missed"),
        }

    def _one_in(self) -> float | None:
        """How many messages of the window each row of the latencies stands for."""
        if not self._timed:
            return None
        if self._count is not None:
            return max(1.0, self._count.received / self._timed)
        if len(self._kept) < 2:
            return None
        found = (self._kept[-1][1] - self._kept[0][1]) / self._timed
        return one_in(found, all_timed(self._run, self._variant) and not self._left_out())

    def _hosts(self) -> list[dict[str, Any]]:
        roles = [one for one in self._parties if one.role != "server"]
        return [
            {
                "name": host,
                "clock_offset_ns": clock.offset_ns,
                "clock_error_ns": clock.error_ns,
                "roles": [at for at, one in enumerate(roles) if one.place.host == host],
            }
            for host, clock in (self._clocks or {HERE.host: Clock()}).items()
        ]

    def _limits(self) -> dict[str, Any]:
        if self._limit is None:
            return {}
        kind = "RLIMIT_AS" if self._link.kind == "ssh" else self._limit.kind
        return {"memory_bytes": self._limit.bytes, "by": kind}

    def _facts(self, report: Report, own_share: float) -> dict[str, Any]:
        run = self._run
        version = version_of(self._protocol, bool(self._campaign.adapter(run.protocol)))
        ran = report.outcome not in ("absent", "not_applicable")
        return {
            "campaign": self._campaign.id,
            **facts_of(run),
            "variant": self._variant,
            "receivers": receivers(run, self._protocol),
            "lossy": self._protocol.lossy,
            "kept_from_ns": self._window[0],
            "kept_until_ns": self._window[1],
            "hosts": self._hosts(),
            "limits": self._limits(),
            "versions": {"adapter": __version__, run.protocol: version},
            "load": self._load,
            "latency_one_in": self._one_in(),
            "latency_left_out": self._left_out(),
            "latency_skipped": self._skipped(),
            **report.delays,
            "slowest_sender_ns": self._count.slowest if self._count is not None else None,
            "messages_per_second": report.rate,
            "bytes_per_second": report.bytes,
            **report.loss,
            "lab_core_share": own_share if ran else None,
            "outcome": report.outcome,
            "reason": report.reason,
        }
