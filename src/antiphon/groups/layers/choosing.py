"""Which of two views goes on: by majority where one must stop, by rank where they meet."""

from __future__ import annotations

import random

from antiphon.groups.messages import Found
from antiphon.groups.view import Member, Record

__all__ = ["found_of", "founded_at", "majority", "rank"]

_LATEST = (1 << 43) - 1  # milliseconds since 1970; with 20 bits more it is a whole number of 63


def founded_at(date: float, rng: random.Random) -> int:
    """Its order is age, also between machines; its last digits tell apart what began at one
    moment. Whatever a clock says, it is a number that can be sent."""
    milliseconds = min(max(0, int(date * 1000)), _LATEST)
    return (milliseconds << 20) | rng.getrandbits(20)


def majority(voters: tuple[int, ...], members: tuple[Member, ...]) -> bool:
    """More than half of them, or half with the most senior one."""
    lives = {member.life for member in members}
    alive = [life for life in voters if life in lives]
    if not voters or len(alive) * 2 > len(voters):
        return True
    return len(alive) * 2 == len(voters) and voters[0] in lives


def rank(found: Found) -> tuple[bool, int, int, int]:
    """Which of two views is joined: one that may go on, the larger, the older."""
    life = found.coordinator.life if found.coordinator is not None else 0
    return found.primary, found.size, -found.founded, -life


def found_of(member: Member, record: Record, coordinator: Member) -> Found:
    """What a member says of its view to whoever asks."""
    return Found(
        member, coordinator, record.id, len(record.members), record.founded, record.primary
    )
