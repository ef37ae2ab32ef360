"""The runs that come before all others: what each link can do by itself.

Receives a campaign; writes one folder per link and check, as those of any run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from antiphon._version import __version__
from antiphon.lab.bench.processes import Crew, WorkerFailed
from antiphon.lab.campaign import Campaign
from antiphon.lab.links import CHUNK, GRACE
from antiphon.lab.places import Place, cannot_open, open_places
from antiphon.lab.plan import LINK_CHECKS, LINKS, Link, Run
from antiphon.lab.record import Report, RunFolder, facts_of
from antiphon.lab.remote import Clock, take_clock

__all__ = ["check_links"]

LINK_SECONDS = 3.0
END = "antiphon.lab.links"


def check_links(campaign: Campaign) -> Iterator[Report]:
    """Measure the bare links of a plan, unless that was done."""
    for name in dict.fromkeys(run.link for run in campaign.runs()):
        for check in LINK_CHECKS:
            run = Run(
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
                size=CHUNK,
                nodes=2,
                senders=1,
                threads=1,
                streams=1,
                rate=None,
                scheduling="other",
                repeat=1,
                seed=campaign.plan.seed,
            )
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
    figures: dict[str, Any] = {}
    outcome, reason = "complete", ""
    begin = time.monotonic_ns()
    try:
        if cannot := cannot_open(campaign.plan.links[run.link]):
            outcome, reason = "absent", cannot
        else:
            figures = _measure(campaign.plan.links[run.link], run.protocol, seconds)
    except (OSError, WorkerFailed) as error:
        outcome, reason = "error", f"{type(error).__name__}: {error}"
    for number, (sent, came) in enumerate(figures.pop("times", ())):
        folder.add(
            "latency",
            sequence=number,
            source=0,
            target=1,
            stage="round-trip",
            intended_ns=sent,
            sent_ns=sent,
            received_ns=came,
            weight=1.0,
        )
    if refused := figures.pop("refused", ""):
        outcome, reason = "absent", f"no raw socket: {refused}; run as root for the ping"
    window = {"kept_from_ns": begin, "kept_until_ns": time.monotonic_ns()}
    ended = {"messages_per_second": 0.0, "bytes_per_second": 0.0, "hosts": [], **figures}
    folder.finish(
        {
            "campaign": campaign.id,
            **facts_of(run),
            **window,
            "limits": {},
            "versions": {"adapter": __version__, run.protocol: __version__},
            **ended,
            "outcome": outcome,
            "reason": reason,
        }
    )
    return Report(run, outcome, reason, bytes=figures.get("bytes_per_second", 0.0))


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


def _measure(link: Link, check: str, seconds: float) -> dict[str, Any]:
    """One check, by a process at either end."""
    patience = seconds + 2 * GRACE
    with open_places(link, 2) as (here, there), Crew() as crew:
        sender = crew.start(f"{check} sender", ("-m", END), here.python, here.command)
        if check == "link-ping":
            # Its times are those of the sender's clock, and the window is one of ours.
            clock = take_clock(sender) if here.remote else Clock()
            told = sender.ask("ping", patience, host=there.address, seconds=seconds)
            clock = clock.widened(take_clock(sender)) if here.remote else clock
            return {**told, "hosts": [_host(here, [0], clock)]}
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
    figures = {"bytes_per_second": came["bytes"] / max(1e-9, came["seconds"]), "hosts": ends}
    if check == "link-udp":
        figures |= {"sent": sent["datagrams"], "received": came["datagrams"]}
    return figures
