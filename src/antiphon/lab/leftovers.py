"""What outlives a campaign that was killed, and whose it was.

Network namespaces, control groups and folders have names, which stay when the process that gave
them is gone. A name says who that was, by its number and the time of its start, so that what
nobody uses any more is told from what another campaign does.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PREFIX", "Leftover", "is_left", "owned_folder", "owned_name", "remove_folders"]

PREFIX = "antiphon-lab"
_OWNED = re.compile(rf"{PREFIX}-(\d+)-(\d+)-[\w-]+")


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something whose owner is gone, how many processes were in it, and why it is still there.

    ``reason`` is empty when it has been removed.
    """

    what: str
    name: str
    processes: int
    reason: str


def owned_name(rest: str) -> str:
    """A name for something of this process."""
    return f"{PREFIX}-{os.getpid()}-{_begun(os.getpid())}-{rest}"


def owned_folder(where: Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """A new folder of this process, for temporary files unless ``where`` says another place."""
    return tempfile.TemporaryDirectory(prefix=owned_name(""), dir=where)


def remove_folders(where: Path | None = None) -> list[Leftover]:
    """Remove the folders of processes that are gone."""
    found = []
    for path in sorted(Path(where or tempfile.gettempdir()).glob(f"{PREFIX}-*")):
        if not is_left(path.name):
            continue
        reason = ""
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue  # another one was faster
        except OSError as error:
            reason = str(error)
        found.append(Leftover("folder", str(path), 0, reason))
    return found


def is_left(name: str) -> bool:
    """Whether it is such a name, and its owner is gone."""
    owner = _OWNED.fullmatch(name)
    return owner is not None and _begun(int(owner[1])) != int(owner[2])


def _begun(process: int) -> int:
    """When a process was started, in the kernel's ticks; 0 when it is gone, or as good as gone."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    # Its own name stands in brackets, and may have anything in it.
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])
