"""Members of a group in one process, each with what came to it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from antiphon import Group
from antiphon.testing import Collected, eventually


class Party:
    """Members of one group, each with what came to it."""

    def __init__(self, stack: ExitStack, name: str) -> None:
        self._stack = stack
        self.name = name
        self.groups: list[Group] = []
        self.came: list[Collected[tuple[str, bytes]]] = []

    def join(self, handler: Any = None, **options: Any) -> Group:
        group = Group(self.name, member_name=f"m{len(self.groups)}", **options)
        came: Collected[tuple[str, bytes]] = Collected()
        group.on_message(handler or (lambda source, data: came.add((source.name, data))))
        self._stack.enter_context(group)
        self.groups.append(group)
        self.came.append(came)
        return group

    def all_see(self, size: int) -> None:
        eventually(lambda: all(len(group.members) == size for group in self.groups), 20)


HELPERS = 8 + 1 + 3
"""Threads that a node may have for a while on a busy machine, whatever is on it: for calls that
wait, the one that watches them, and the scheduler's spares."""


def threads() -> int:
    """Of this process, those of the core included."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Threads"))
