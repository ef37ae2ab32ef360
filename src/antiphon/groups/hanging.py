"""Members that live and do nothing, as far as they have told: for `Group.stuck` and the log."""

from __future__ import annotations

import logging
from collections.abc import Collection

from antiphon.groups.protocol import Stuck
from antiphon.groups.view import Member

__all__ = ["Hanging"]

log = logging.getLogger("antiphon.groups")


class Hanging:
    """No lock: whoever uses it has one."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._members: dict[int, Member] = {}

    def note(self, said: Stuck) -> None:
        """One hangs, or goes on."""
        if said.seconds:
            self._members[said.member.life] = said.member
            log.warning(
                "group %s: member %s lives, but its application has been at one message for %.1f s",
                self._group,
                said.member.name,
                said.seconds,
            )
        else:
            self._members.pop(said.member.life, None)
            log.info("group %s: member %s goes on", self._group, said.member.name)

    def keep(self, lives: Collection[int]) -> None:
        """A view: the others are none of ours any more."""
        self._members = {life: one for life, one in self._members.items() if life in lives}

    @property
    def members(self) -> tuple[Member, ...]:
        """Those that hang."""
        return tuple(self._members.values())
