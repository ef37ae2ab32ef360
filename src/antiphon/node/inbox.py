"""Pulling messages instead of being called: `Inbox` and `Batch`.

Receives parked messages from the core, hands them to whichever thread asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from antiphon._core import Batch, InboxCore

__all__ = ["Batch", "Inbox"]

T = TypeVar("T")


class Inbox(Generic[T]):
    """Messages of one kind, pulled by the caller's own thread: the fastest way to receive.

    Made by `Node.inbox`. ``receive`` gives ``(source, data)``: bytes for a raw kind, the message
    for a typed one. A message counts as handled when ``receive`` returns it. Several threads may
    pull; each message goes to one of them. Iteration waits for the next message and ends when the
    inbox or its node is closed.

    ``receive(timeout=None)`` blocks until a message comes; `ReceiveTimeout` after ``timeout``
    seconds, `Closed` when the inbox or its node is closed. ``receive(0)`` never blocks.
    """

    __slots__ = ("__weakref__", "_core", "receive", "receive_many")

    if TYPE_CHECKING:

        def receive(self, timeout: float | None = None) -> tuple[int, T]: ...
        def receive_many(self, most: int, timeout: float | None = None) -> list[tuple[int, T]]:
            """At least one and at most ``most`` messages; waits for the first as `receive`."""

    def __init__(self, core: InboxCore) -> None:
        self._core = core
        # The core's own methods: a wrapper would cost as much as receiving.
        self.receive = core.receive  # type: ignore[method-assign]
        self.receive_many = core.receive_many  # type: ignore[method-assign]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[int, T]:
        item: tuple[int, Any] = next(self._core)
        return item

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the kind free; what waits in the inbox is dropped. Idempotent, never blocks."""
        self._core.close()

    @property
    def kind(self) -> int:
        """The kind that this inbox receives."""
        return self._core.kind

    @property
    def pending(self) -> int:
        """Messages that wait here now."""
        return self._core.pending

    @property
    def dropped(self) -> int:
        """Messages lost to a ``drop_*`` policy."""
        return self._core.dropped

    @property
    def closed(self) -> bool:
        """Whether it was closed, by itself or with its node."""
        return self._core.closed

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.pending} pending"
        return f"<Inbox kind={self.kind} {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Inbox belongs to its node and process; make it where it is read")
