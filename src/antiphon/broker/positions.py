"""Where durable subscriptions stand, in the directory of a broker's store: one file for each.

``DIR/subscriptions/billing.json`` is replaced as a whole, and synced, so it is the old one or the
new one after any crash. What was acknowledged since it was last written comes again then.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from urllib.parse import quote

import msgspec

from antiphon.errors import ConfigError
from antiphon.topics.content import Condition

__all__ = ["Place", "Positions", "Saved"]

_FORMAT = 1


class Place(msgspec.Struct):
    """In one topic: all below ``next`` is acknowledged, but what lies in the ranges."""

    next: int
    pending: list[tuple[int, int]] = []

    @property
    def unacknowledged(self) -> int:
        """How many sequences below ``next`` are not."""
        return sum(last - first + 1 for first, last in self.pending)


class Saved(msgspec.Struct):
    """A durable subscription as it is written down."""

    name: str
    pattern: str
    where: str | None = None
    group: str | None = None
    places: dict[str, Place] = {}
    dead_replayed: int = 0
    owner: str = ""
    content: tuple[Condition, ...] = ()
    store: int = 0
    """Whose sequences these are; 0: not known."""
    format: int = _FORMAT


class Positions:
    """The files. Raises `OSError` when the disk fails."""

    def __init__(self, store: str | os.PathLike[str]) -> None:
        self._directory = Path(store) / "subscriptions"

    def load(self) -> list[Saved]:
        """All of them; raises `ConfigError` for a file that is none."""
        if not self._directory.is_dir():
            return []
        found = []
        for path in sorted(self._directory.glob("*.json")):
            try:
                saved = msgspec.json.decode(path.read_bytes(), type=Saved)
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                raise ConfigError(
                    f"{path} is not the position of a subscription ({error}); move it away",
                    setting="store",
                ) from None
            if saved.format != _FORMAT:
                raise ConfigError(
                    f"{path} has format {saved.format}; this version knows {_FORMAT}",
                    setting="store",
                )
            found.append(saved)
        return found

    def save(self, saved: Saved) -> None:
        """On the disk when this returns."""
        self._directory.mkdir(exist_ok=True)
        path = self._path(saved.name)
        draft = path.with_suffix(".new")
        try:
            with draft.open("wb") as file:
                file.write(msgspec.json.encode(saved))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError:  # on a full disk what is half written takes space that others need
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        self._sync()

    def remove(self, name: str) -> None:
        """It is forgotten for good."""
        with contextlib.suppress(FileNotFoundError):
            self._path(name).unlink()
            self._sync()

    def _sync(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _path(self, name: str) -> Path:
        return self._directory / f"{quote(name, safe='')}.json"
