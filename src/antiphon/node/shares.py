"""Shares of a node's time: who holds how much of it.

Receives shares from `Node.on` and from the layers above; hands them to the core's scheduler, which
keeps them, and keeps the names, which the core does not need and people do.
"""

from __future__ import annotations

import threading
from typing import Protocol

from antiphon.errors import ConfigError

__all__ = ["Shared", "Shares", "check_share"]


class Shared(Protocol):
    """Something of the core that can have a share."""

    @property
    def active(self) -> bool: ...
    def set_share(self, share: float) -> bool: ...
    def meter(self) -> dict[str, float]: ...
    def close(self) -> None: ...


def check_share(share: object) -> float:
    """A share as a float; 0 for None. Raises `ConfigError`."""
    if share is None:
        return 0.0
    number = isinstance(share, int | float) and not isinstance(share, bool)
    if not number or not 0 < share <= 1:  # type: ignore[operator]
        raise ConfigError(
            f"share is {share!r}; it must be a fraction of the period, above 0 and at most 1",
            setting="share",
            value=share,
        )
    return float(share)  # type: ignore[arg-type]


class Shares:
    """The shares that were given on one node. All methods are thread-safe and never block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Kept until they are closed: who registers a handler need not keep what it gets for it.
        self._held: dict[Shared, tuple[str, float]] = {}

    def give(self, handle: Shared, share: float, name: str) -> None:
        """Gives, changes or (0) takes away. Raises `ConfigError`, which lists who holds what."""
        with self._lock:
            if not handle.set_share(share):
                others = [entry for h, entry in self._held.items() if h is not handle and h.active]
                listed = ", ".join(f"{n}: {s:g}" for n, s in sorted(others))
                left = 1 - sum(s for _, s in others)
                raise ConfigError(
                    f"share {share:g} for {name} is more than the {max(0.0, left):g} that is left "
                    f"of this node's time ({listed}); give less, or close one of them",
                    setting="share",
                    value=share,
                )
            self._held = {h: entry for h, entry in self._held.items() if h.active}
            if share > 0:
                self._held[handle] = (name, share)
            else:
                self._held.pop(handle, None)

    def share_of(self, handle: Shared) -> float | None:
        """What this one holds; None: nothing."""
        with self._lock:
            entry = self._held.get(handle)
        return entry[1] if entry else None

    def holders(self) -> list[tuple[Shared, str]]:
        """Those that are in use, with their names."""
        with self._lock:
            return [(handle, name) for handle, (name, _) in self._held.items() if handle.active]

    def held(self) -> dict[str, float]:
        """Name to share, of those that are in use; of several with one name, together."""
        held: dict[str, float] = {}
        with self._lock:
            for handle, (name, share) in self._held.items():
                if handle.active:
                    held[name] = held.get(name, 0.0) + share
        return held
