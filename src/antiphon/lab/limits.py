"""A limit of memory for the processes of a run: one control group for each of them.

Where the machine has no control groups for memory, or does not let us make one, the processes limit
themselves (`RLIMIT_AS`), which counts addresses and not memory, and is no use for a JVM.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from antiphon.lab.leftovers import PREFIX, Leftover, is_left, owned_name

__all__ = ["MemoryLimit", "remove_leftovers"]

ROOT = Path("/sys/fs/cgroup")
# A group can be removed when the kernel has let go of its last process.
_GONE_SECONDS = 5.0
_OOM = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where control groups for memory are, and what their files are called."""

    version: int
    folder: Path
    limit: str
    swap: str
    events: str


_VERSIONS = (
    Hierarchy(2, ROOT, "memory.max", "memory.swap.max", "memory.events"),
    Hierarchy(
        1,
        ROOT / "memory",
        "memory.limit_in_bytes",
        "memory.memsw.limit_in_bytes",
        "memory.oom_control",
    ),
)


class MemoryLimit:
    """So many bytes for each process that is added, as a context: the groups go on the way out.

    ``kind`` says how the limit is held: ``cgroup v2``, ``cgroup v1``, or ``RLIMIT_AS``, and then
    processes have to limit themselves. Afterwards ``exceeded`` says whether the kernel has ended
    one of them for it.
    """

    def __init__(self, bytes: int) -> None:
        self.bytes = bytes
        self.kind = "RLIMIT_AS"
        self.exceeded = False
        self._groups: list[tuple[Hierarchy, Path]] = []

    def __enter__(self) -> Self:
        remove_leftovers()
        if hierarchy := self._usable():
            self.kind = f"cgroup v{hierarchy.version}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        while self._groups:
            hierarchy, group = self._groups.pop()
            self.exceeded = self.exceeded or _killed(hierarchy, group)
            _remove(group)

    def _usable(self) -> Hierarchy | None:
        """The first hierarchy in which a group can be made and limited."""
        for hierarchy in _VERSIONS:
            with contextlib.suppress(OSError):
                group = self._make(hierarchy)
                self._groups.pop()
                _remove(group)
                return hierarchy
        return None

    def _make(self, hierarchy: Hierarchy) -> Path:
        if not (hierarchy.folder / "cgroup.procs").is_file():
            raise FileNotFoundError(f"no control groups in {hierarchy.folder}")
        group = hierarchy.folder / owned_name(str(len(self._groups)))
        group.mkdir()
        self._groups.append((hierarchy, group))
        try:
            (group / hierarchy.limit).write_text(str(self.bytes))
        except OSError:
            self._groups.pop()
            _remove(group)
            raise
        with contextlib.suppress(OSError):  # kernels that do not count swap
            (group / hierarchy.swap).write_text("0" if hierarchy.version == 2 else str(self.bytes))
        return group

    def add(self, pid: int) -> int | None:
        """Limit a process and what it starts. Returns the limit that it has to set itself."""
        for hierarchy in _VERSIONS:
            if self.kind == f"cgroup v{hierarchy.version}":
                (self._make(hierarchy) / "cgroup.procs").write_text(str(pid))
                return None
        return self.bytes


def _killed(hierarchy: Hierarchy, group: Path) -> bool:
    try:
        found = _OOM.search((group / hierarchy.events).read_text())
    except OSError:
        return False
    return found is not None and int(found[1]) > 0


def remove_leftovers() -> list[Leftover]:
    """Remove the groups of campaigns that were killed."""
    found = []
    for hierarchy in _VERSIONS:
        for group in sorted(hierarchy.folder.glob(f"{PREFIX}-*")):
            if is_left(group.name):
                reason = "" if _remove(group) else "it is in use, or not yours"
                found.append(Leftover("control group", group.name, 0, reason))
    return found


def _remove(group: Path) -> bool:
    deadline = time.monotonic() + _GONE_SECONDS
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        else:
            return True
