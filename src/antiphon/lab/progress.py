"""How long a campaign still takes: from what is left, and from how long its runs took so far.

Receives a campaign; hands seconds to whoever watches it. What cannot run takes no time: a machine
that has five of twenty protocols is not promised the time of twenty.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

from antiphon.lab.campaign import Campaign
from antiphon.lab.places import cannot_open
from antiphon.lab.plan import Plan, Run, run_seconds, searched
from antiphon.lab.protocols import PROTOCOLS, missing, protocol_of, unsuited

__all__ = ["Progress"]

# Runs that were faster or slower than planned say how the next ones will be, within these bounds.
_LEAST, _MOST = 0.02, 5.0


class Progress:
    """Follows a campaign: tell it of the begin and the end of each run, and ask what is left."""

    def __init__(self, campaign: Campaign, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        each = self._each = run_seconds(campaign.plan)
        takes_time = _judge(campaign.plan)
        runs = campaign.runs()
        self._known = {run.id for run in runs}
        self._left = {run.id: each for run in runs if not campaign.done(run) and takes_time(run)}
        # Runs of a search, at the most: which they are is known when each begins.
        self._more = sum(more for run, more in searched(campaign.plan) if takes_time(run))
        self._begun: tuple[str, float] | None = None
        self._planned = 0.0
        self._took = 0.0

    def begin(self, run: Run) -> None:
        if run.id not in self._known:
            self._left[run.id] = self._each
            self._more = max(0, self._more - 1)
        self._begun = (run.id, self._clock())

    def end(self, run: Run) -> None:
        planned = self._left.pop(run.id, 0.0)
        if self._begun is not None and self._begun[0] == run.id and planned:
            self._planned += planned
            self._took += self._clock() - self._begun[1]

    def left(self) -> float:
        """Seconds, the run that was begun last included."""
        pace = self._took / self._planned if self._planned else 1.0
        return (sum(self._left.values()) + self._more * self._each) * min(_MOST, max(_LEAST, pace))


def _judge(plan: Plan) -> Callable[[Run], bool]:
    """Whether a run is carried out here, or only written down as absent or not applicable."""

    # To look for a program takes longer than all the rest, and a plan may have thousands of runs.
    @functools.cache
    def absent(protocol: str, variant: str, stack: str) -> bool:
        return protocol in PROTOCOLS and bool(missing(PROTOCOLS[protocol], variant, stack))

    @functools.cache
    def unreachable(link: str) -> bool:
        return bool(cannot_open(plan.links[link]))

    def takes_time(run: Run) -> bool:
        workload = plan.workloads[run.workload]
        return not (
            unsuited(protocol_of(plan, run.protocol), run, workload)
            or absent(run.protocol, run.variant or "", run.stack or "")
            or unreachable(run.link)
        )

    return takes_time
