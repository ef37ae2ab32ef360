"""Members and views: who is in a group, agreed by all of them."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["Member", "View"]


class Member(msgspec.Struct, frozen=True, array_like=True, eq=False):
    """One process in a group. Two are the same when they are the same life of a member."""

    id: int
    """The number of its node."""
    name: str
    """For people; its host and process, unless it was given one."""
    address: str
    """Where its node listens."""
    life: int
    """Drawn whenever it joins: one that comes back is another member."""
    node_life: int = 0
    flow: int = 0
    charge: int = 0
    acknowledgement_flow: int = 0
    acknowledgement_charge: int = 0
    datagrams: str = ""
    """Where it hears datagrams for it alone; empty where data goes over nodes."""
    datagram_buffer: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Member) and other.life == self.life

    def __hash__(self) -> int:
        return hash(self.life)

    def __repr__(self) -> str:
        return f"<Member {self.name} node {self.id}>"

    def __str__(self) -> str:
        return self.name


class View(msgspec.Struct, frozen=True):
    """Who is in the group, from one change to the next. Ids increase in what a member sees."""

    id: int
    members: tuple[Member, ...]
    """By seniority: the first one coordinates."""
    joined: tuple[Member, ...] = ()
    """Those that were not in the view before this one, as this member saw it."""
    left: tuple[Member, ...] = ()
    """Those that went by themselves."""
    crashed: tuple[Member, ...] = ()
    """Those that were not heard any more, or went without a word."""
    primary: bool = True
    """False where a minority knows itself to be one; see `GroupConfig.primary`."""

    @property
    def coordinator(self) -> Member:
        """The member that makes the next view."""
        return self.members[0]

    @property
    def reason(self) -> str:
        """Why it is another view, in words."""
        parts = []
        for word, who in (("joined", self.joined), ("left", self.left), ("crashed", self.crashed)):
            if who:
                parts.append(f"{', '.join(member.name for member in who)} {word}")
        return "; ".join(parts) or "nothing changed"

    def __contains__(self, member: object) -> bool:
        return member in self.members

    def __len__(self) -> int:
        return len(self.members)

    def __str__(self) -> str:
        names = ", ".join(member.name for member in self.members)
        primary = "" if self.primary else ", not primary"
        return f"view {self.id}: {names} ({self.reason}{primary})"


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A view as its coordinator sends it."""

    id: int
    founded: int
    """When the first view of this line was made, and by whom: the same for all that follow it."""
    members: tuple[Member, ...]
    primary: bool = True
    departed: tuple[int, ...] = ()
    """Lives of those that left lately, so that one that missed a view knows them from the dead."""
    voters: tuple[int, ...] = ()
    """Lives in the last view that everybody is known to have had: a majority of them goes on."""

    @property
    def coordinator(self) -> Member:
        """As in `View`."""
        return self.members[0]

    def has(self, life: int) -> bool:
        """Whether this life of a member is in it."""
        return any(member.life == life for member in self.members)

    def by_life(self) -> dict[int, Member]:
        """Its members."""
        return {member.life: member for member in self.members}


DEPARTED_KEPT: Final = 64
