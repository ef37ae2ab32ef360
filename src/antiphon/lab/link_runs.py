"""The runs that come before all others: what each link can do by itself.

Receives a campaign; writes one folder per link and check, as those of any run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from antiphon.lab import links
from antiphon.lab.campaign import Campaign
from antiphon.lab.links import CHUNK, LINK_CHECKS
from antiphon.lab.plan import Run
from antiphon.lab.record import Report, RunFolder

__all__ = ["check_links"]

LOOPBACK = "127.0.0.1"
LINK_SECONDS = 3.0


def check_links(campaign: Campaign) -> Iterator[Report]:
    """Measure the bare links of a plan, unless that was done."""
    for name in dict.fromkeys(run.link or "loopback" for run in campaign.runs()):
        for check in LINK_CHECKS:
            run = Run(
                id=f"{check}.{name}",
                plan=campaign.plan.name,
                series="links",
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
        if campaign.plan.links[run.link].kind != "loopback":
            outcome, reason = "absent", "only loopback is there yet"
        elif run.protocol == "link-ping":
            for number, (sent, came) in enumerate(links.ping(LOOPBACK, seconds)):
                folder.add(
                    "latency",
                    sequence=number,
                    stage="round-trip",
                    intended_ns=sent,
                    sent_ns=sent,
                    received_ns=came,
                    weight=1.0,
                )
        elif run.protocol == "link-tcp":
            figures["bytes_per_second"] = links.tcp_bandwidth(LOOPBACK, seconds)
        else:
            rate, sent, came = links.udp_bandwidth(LOOPBACK, seconds)
            figures |= {"bytes_per_second": rate, "sent": sent, "received": came}
    except PermissionError as error:
        outcome, reason = "absent", f"no raw socket: {error}; run as root for the ping"
    facts = asdict(run)
    facts["run"] = facts.pop("id")
    window = {"kept_from_ns": begin, "kept_until_ns": time.monotonic_ns()}
    ended = {"messages_per_second": 0.0, "bytes_per_second": 0.0, **figures}
    folder.finish(
        {"campaign": campaign.id, **facts, **window, **ended, "outcome": outcome, "reason": reason}
    )
    return Report(run, outcome, reason, bytes=figures.get("bytes_per_second", 0.0))
