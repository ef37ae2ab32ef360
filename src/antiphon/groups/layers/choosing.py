"""Which of two views goes on: by majority where one must stop, by rank where they meet."""

from __future__ import annotations

from antiphon.groups.messages import Found
from antiphon.groups.view import Member, Record

__all__ = ["found_of", "majority", "rank"]


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
