"""Carries out a campaign, run by run.

Receives a `Campaign`, hands every run's files to `RunFolder` and its outcome to whoever watches.
What a protocol does wrong is its outcome, and the campaign goes on. What is wrong with the campaign
itself, a full disk for one, ends it, and it can be resumed.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable

from antiphon.lab.campaign import Campaign, CampaignError
from antiphon.lab.competing import garbage_settings, garbage_use
from antiphon.lab.conduct import conduct
from antiphon.lab.hosts import host_facts
from antiphon.lab.link_runs import check_links
from antiphon.lab.plan import Run
from antiphon.lab.record import RecordFailed, Report

__all__ = ["run_campaign"]


def run_campaign(
    campaign: Campaign,
    begin: Callable[[Run, int, int], None] = lambda run, number, total: None,
    end: Callable[[Report], None] = lambda report: None,
) -> list[Report]:
    """Do what is not done yet. Ctrl-C ends it; the run that was under way is done again later."""
    reports: list[Report] = []

    def ended(report: Report) -> None:
        reports.append(report)
        end(report)

    try:
        with campaign:
            _carry_out(campaign, begin, ended)
    except RecordFailed as error:
        raise CampaignError(
            f"the campaign stops, since its figures cannot be written ({error}); make room and go "
            f"on with: antiphon lab resume {shlex.quote(str(campaign.directory))}"
        ) from error
    return reports


def _carry_out(
    campaign: Campaign, begin: Callable[[Run, int, int], None], end: Callable[[Report], None]
) -> None:
    for name in dict.fromkeys(run.link for run in campaign.runs()):
        link = campaign.plan.links[name]
        if link.kind == "ssh":
            for host, facts in host_facts(link, campaign.hosts()).items():
                campaign.add_host(host, facts)
    for report in check_links(campaign):
        end(report)
    if not campaign.settled and (settings := garbage_settings(campaign.plan)):
        campaign.set_garbage(settings, garbage_use(campaign.plan, settings))
    runs = campaign.runs()
    for number, run in enumerate(itertools.chain(runs, campaign.searched())):
        if not campaign.done(run):
            begin(run, number, max(len(runs), number + 1))
            end(conduct(campaign, run))
