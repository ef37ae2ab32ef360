"""What is said about membership, for nodes that cannot take it at once.

Receives encoded messages from a group; hands them to its node, each time it may take some. What
is too old to mean anything is lost, and so is the oldest of too much: all of it is said again
while it is true. A node that is gone for good leaves nothing behind.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

from antiphon.errors import AntiphonError

__all__ = ["Outbox"]

_MOST = 64
_STALE = 20.0


class Outbox:
    """``tell(node, message)`` says whether it was taken; it never waits. Not thread-safe."""

    def __init__(self, tell: Callable[[int, bytes], bool | None]) -> None:
        self._tell = tell
        self._waiting: dict[int, deque[tuple[float, bytes]]] = {}

    def __len__(self) -> int:
        """Nodes for which something waits."""
        return len(self._waiting)

    def put(self, node: int, message: bytes, now: float) -> None:
        """Behind what waits already; goes at once if the node takes it."""
        self._waiting.setdefault(node, deque(maxlen=_MOST)).append((now, message))
        self._flush(node, now)

    def flush(self, now: float) -> None:
        """What they take by now."""
        for node in list(self._waiting):
            self._flush(node, now)

    def _flush(self, node: int, now: float) -> None:
        waiting = self._waiting[node]
        while waiting and now - waiting[0][0] > _STALE:
            waiting.popleft()
        with contextlib.suppress(AntiphonError):
            while waiting and self._tell(node, waiting[0][1]):
                waiting.popleft()
        if not waiting:
            del self._waiting[node]
