"""How a run ended, in one word and a reason.

Receives what the runner saw, the samples among it; the word goes into ``run.json``. The questions
are asked in the order of `OUTCOMES`: the first that is answered with yes gives the word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["OUTCOMES", "Seen", "judge"]

OUTCOMES = (
    "out_of_memory",
    "disconnected",
    "blocked",
    "unbounded_growth",
    "error",
    "complete",
    "absent",
    "not_applicable",
    "interrupted",
)
"""All there are. The last three are given without asking, and `interrupted` never by the lab, which
leaves nothing of a run that it could not end: readers say so of a run that has no folder."""

STILL_SECONDS = 10.0
STILL_PART = 1 / 3
# The rise that counts as one: noise of an allocator is none.
RISE_BYTES = 16 << 20
_MEMORY = ("MemoryError", "Cannot allocate memory", "OutOfMemoryError", "std::bad_alloc")
_LOST = ("ConnectionResetError", "BrokenPipeError", "PeerLost", "PeerUnreachable", "disconnected")


@dataclass(slots=True)
class Seen:
    """What a run has shown. ``error`` is what a process reported, or how it ended;
    ``out_of_memory`` that the kernel has ended one because of its limit, and ``stuck`` that one has
    not answered for longer than anything may take.

    ``delivered`` are the seconds of the kept window and the messages that had come by then, all
    readers together; ``resident`` the memory of each process, sample by sample. ``missing`` is of a
    run of a given number of messages, and says what had not come at its end; None: of any other.
    """

    window: float
    error: str = ""
    died: bool = False
    out_of_memory: bool = False
    stuck: bool = False
    delivered: list[tuple[float, int]] = field(default_factory=list)
    resident: dict[str, list[int]] = field(default_factory=dict)
    wrong: int = 0
    missing: str | None = None


def judge(seen: Seen) -> tuple[str, str]:
    """The outcome and its reason; that of a complete run is empty."""
    if seen.out_of_memory or any(word in seen.error for word in _MEMORY):
        return "out_of_memory", seen.error or "a process wanted more memory than its limit"
    if seen.died or any(word in seen.error for word in _LOST):
        return "disconnected", seen.error or "a process ended"
    if seen.stuck:
        return "blocked", seen.error
    if still := _longest_still(seen.delivered):
        limit = min(STILL_SECONDS, seen.window * STILL_PART)
        if still >= limit:
            return "blocked", f"nothing was delivered for {still:.1f} s"
    for name, resident in seen.resident.items():
        # A given number that has all come is a bound: large messages fill the buffers for them.
        if seen.missing != "" and (reason := _grows(resident)):
            return "unbounded_growth", f"{name}: {reason}"
    if seen.error:
        return "error", seen.error
    if seen.missing:
        return "error", seen.missing
    if seen.missing is None and len(seen.delivered) < 2:
        return "error", "the window has fewer than two samples; the machine was too busy"
    if seen.wrong:
        return "error", f"{seen.wrong} messages came otherwise than they were sent"
    return "complete", ""


def _longest_still(delivered: Sequence[tuple[float, int]]) -> float:
    """The longest time between two samples over which nothing came."""
    longest = 0.0
    since, last = delivered[0] if delivered else (0.0, 0)
    for when, count in delivered:
        if count != last:
            since, last = when, count
        longest = max(longest, when - since)
    return longest


def _grows(resident: Sequence[int]) -> str:
    """Memory that has doubled within the window and still rises at its end."""
    if len(resident) < 3:
        return ""
    first, last = resident[0], resident[-1]
    if last < 2 * first or last - first < RISE_BYTES:
        return ""
    # Of the last third: what has reached its size does not rise any more.
    tail = resident[-max(2, len(resident) // 3) :]
    if tail[-1] - tail[0] < RISE_BYTES // 4:
        return ""
    return f"its memory rose from {first >> 20} to {last >> 20} MiB, and still did at the end"
