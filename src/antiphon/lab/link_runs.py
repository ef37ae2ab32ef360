"""The runs that come before all others: what each link can do by itself.

Receives a campaign; writes one folder per link and check, as those of any run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from antiphon._version import __version__
from antiphon.lab.bench.processes import Crew, WorkerFailed
from antiphon.lab.campaign import Campaign
from antiphon.lab.delays import Delays
from antiphon.lab.links import GRACE, SIZES
from antiphon.lab.places import Place, cannot_open, open_places
from antiphon.lab.plan import LINK_CHECKS, LINKS, Link, Run
from antiphon.lab.record import SCHEMAS, Report, RunFolder, facts_of
from antiphon.lab.remote import Clock, take_clock

__all__ = ["check_links", "link_runs"]

LINK_SECONDS = 3.0
END = "antiphon.lab.links"


def link_runs(campaign: Campaign) -> tuple[Run, ...]:
    """The checks of all links of a plan."""
    return tuple(
        Run(
            id=f"{check}.{name}",
            plan=campaign.plan.name,
            series=LINKS,
            protocol=check,
            variant=None,
            stack=None,
            pattern="one-way",
            workload="none",
            link=name,
            placement=None,
            size=SIZES[check],
            nodes=2,
            senders=1,
            threads=1,
            streams=1,
            rate=None,
            scheduling="other",
            repeat=1,
            seed=campaign.plan.seed,
        )
        for name in dict.fromkeys(run.link for run in campaign.runs())
        for check in LINK_CHECKS
    )


def check_links(campaign: Campaign) -> Iterator[Report]:
    """Measure the bare links of a plan, unless that was done."""
    for run in link_runs(campaign):
        if not campaign.done(run):
            yield _check_link(campaign, run)


def _check_link(campaign: Campaign, run: Run) -> Report:
    folder = RunFolder(campaign.directory, run.id)
    try:
        return _look_at_link(campaign, run, folder)
    except BaseException:
        folder.discard()
        raise


def _look_at_link(campaign: Campaign, run: Run, folder: RunFolder) -> Report:
    times = campaign.plan.times
    seconds = min(LINK_SECONDS, times.kept_until - times.kept_from)
    found = _Found()
    outcome, reason = "complete", ""
    begin = time.monotonic_ns()
    try:
        if cannot := cannot_open(campaign.plan.links[run.link]):
            outcome, reason = "absent", cannot
        else:
            found = _measure(campaign.plan.links[run.link], run.protocol, seconds)
    except (OSError, WorkerFailed) as error:
        outcome, reason = "error", f"{type(error).__name__}: {error}"
    if found.refused:
        outcome, reason = "absent", f"no raw socket: {found.refused}; run as root for the ping"
    until = time.monotonic_ns()
    delays = Delays()
    if found.times:
        echoes = _echoes(found.times)
        folder.add_table("latency", echoes)
        delays.add(echoes)
    rate = found.count / max(1e-9, found.seconds)
    report = Report(
        run, outcome, reason, rate, rate * run.size, delays=delays.facts(), loss=found.loss()
    )
    folder.finish(
        {
            "campaign": campaign.id,
            **facts_of(run),
            "kept_from_ns": begin,
            "kept_until_ns": until,
            "limits": {},
            "versions": {"adapter": __version__, run.protocol: __version__},
            "hosts": found.hosts,
            **report.delays,
            "messages_per_second": report.rate,
            "bytes_per_second": report.bytes,
            **report.loss,
            "outcome": outcome,
            "reason": reason,
        }
    )
    return report


@dataclass(slots=True)
class _Found:
    """What a check has shown: how many of its messages came, in how many seconds. ``sent`` is how
    many there were of those that may get lost."""

    count: float = 0.0
    seconds: float = 0.0
    sent: int | None = None
    times: list[tuple[int, int]] = field(default_factory=list)
    refused: str = ""
    hosts: list[dict[str, Any]] = field(default_factory=list)

    def loss(self) -> dict[str, int | None]:
        if self.sent is None:
            return {}
        received = int(self.count)
        return {"sent": self.sent, "received": received, "lost": max(0, self.sent - received)}


def _echoes(times: list[tuple[int, int]]) -> pa.Table:
    """As rows of the latencies."""
    rows = [
        {
            "sequence": number,
            "source": 0,
            "target": 1,
            "stage": "round-trip",
            "intended_ns": sent,
            "sent_ns": sent,
            "received_ns": came,
            "weight": 1.0,
        }
        for number, (sent, came) in enumerate(times)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMAS["latency"])


def _host(place: Place, roles: list[int], clock: Clock | None = None) -> dict[str, Any]:
    """As ``run.json`` has it; no clock is looked at where no times are compared."""
    if clock is None and not place.remote:
        clock = Clock()
    return {
        "name": place.host,
        "clock_offset_ns": None if clock is None else clock.offset_ns,
        "clock_error_ns": None if clock is None else clock.error_ns,
        "roles": roles,
    }


def _measure(link: Link, check: str, seconds: float) -> _Found:
    """One check, by a process at either end."""
    patience = seconds + 2 * GRACE
    with open_places(link, 2) as (here, there), Crew() as crew:
        sender = crew.start(f"{check} sender", ("-m", END), here.python, here.command)
        if check == "link-ping":
            # Its times are those of the sender's clock, and the window is one of ours.
            clock = take_clock(sender) if here.remote else Clock()
            told = sender.ask("ping", patience, host=there.address, seconds=seconds)
            clock = clock.widened(take_clock(sender)) if here.remote else clock
            times = [(sent, came) for sent, came in told["times"]]
            took = (times[-1][1] - times[0][0]) / 1e9 if times else 0.0
            hosts = [_host(here, [0], clock)]
            return _Found(len(times), took, None, times, told.get("refused", ""), hosts)
        receiver = crew.start(f"{check} receiver", ("-m", END), there.python, there.command)
        port = receiver.ask("listen", check=check, host=there.address)["port"]
        receiver.tell("receive", seconds=seconds)
        sent = sender.ask(
            "send", patience, check=check, host=there.address, port=port, seconds=seconds
        )
        came = receiver.answer(patience)
    ends = [_host(here, [0]), _host(there, [1])]
    if here.host == there.host:
        ends = [_host(here, [0, 1])]
    return _Found(came["bytes"] / SIZES[check], came["seconds"], sent.get("datagrams"), hosts=ends)
