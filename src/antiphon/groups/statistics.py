"""What a group counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["GroupStatistics"]


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Counts and depths of one moment."""

    members: int
    view: int
    sent: int
    """Messages to all."""
    sent_to_one: int
    delivered: int
    """Messages that came to the handler, own ones included."""
    delivered_bytes: int
    failed: int
    """Calls of handlers that raised."""
    unread: int
    """Messages that nobody read: there was neither a handler nor an iteration."""
    window_used: int
    """Bytes that some member does not have yet, of ``window_bytes``."""
    window_bytes: int
    waits: int
    """How often a send had to wait for the window."""
    repeated: int
    """Messages that were sent again: after a connection was lost, over UDP when asked for."""
    duplicates: int
    """Messages that came again and were dropped."""
    strangers: int
    """Messages of those that no view names, or for a life of this member that is over; over UDP
    also their datagrams."""
    pending: int
    """Messages that have come and wait for the handler."""
    unfinished: int
    """Large messages of others of which only some parts have come."""
    layers: Mapping[str, Mapping[str, float]]
    """What the layers count."""


def make_statistics(
    core: dict[str, Any],
    members: int,
    view: int,
    unread: int,
    layers: Mapping[str, Mapping[str, float]],
) -> GroupStatistics:
    """From what the core counts."""
    lanes = [core["all"], *core["one"].values()]
    datagrams = core["datagrams"] or {"duplicates": 0, "strangers": 0}
    return GroupStatistics(
        members=members,
        view=view,
        sent=core["all"]["sent"],
        sent_to_one=sum(one["sent"] for one in core["one"].values()),
        delivered=core["delivered"],
        delivered_bytes=core["delivered_bytes"],
        failed=core["failed"],
        unread=unread,
        window_used=core["all"]["window_used"],
        window_bytes=core["all"]["window_bytes"],
        waits=sum(one["waits"] for one in lanes),
        repeated=sum(one["repeated"] for one in lanes),
        duplicates=core["duplicates"] + datagrams["duplicates"],
        strangers=core["strangers"] + datagrams["strangers"],
        pending=core["pending"],
        unfinished=core["unfinished"],
        layers=layers,
    )
