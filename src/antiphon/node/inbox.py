"""Pulling messages instead of being called: `Inbox` and `Batch`.

Receives parked messages from the core, hands them to whichever thread asks.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from antiphon._core import Batch, InboxCore
from antiphon.errors import Closed
from antiphon.node.coroutines import numbers
from antiphon.node.future import Future, wake
from antiphon.node.loops import close_door, door_of
from antiphon.node.receiving import ReceiveFuture
from antiphon.wire.message import FIRST_KIND

__all__ = ["Batch", "Inbox"]

T = TypeVar("T")


class Inbox(Generic[T]):
    """Messages of one kind, pulled by the caller's own thread: the fastest way to receive.

    Made by `Node.inbox`. ``receive`` gives ``(source, data)``: bytes for a raw kind, the message
    for a typed one. A message counts as handled when ``receive`` returns it. Several threads may
    pull; each message goes to one of them. Iteration waits for the next message and ends when the
    inbox or its node is closed; ``async for`` does the same for a coroutine.

    ``receive(timeout=None)`` blocks until a message comes; `ReceiveTimeout` after ``timeout``
    seconds, `Closed` when the inbox or its node is closed. ``receive(0)`` never blocks. Where it
    would have to wait on a thread with a running event loop it raises `WouldBlock`.
    """

    # Those with a text are the core's own methods: a wrapper would cost as much as receiving.
    __slots__ = {
        "__weakref__": None,
        "_core": None,
        "_loop": None,
        "_number": None,
        "_waiting": None,
        "receive": InboxCore.receive.__doc__,
        "receive_many": InboxCore.receive_many.__doc__,
    }

    if TYPE_CHECKING:

        def receive(self, timeout: float | None = None) -> tuple[int, T]:
            """The next message; blocks until one comes, `ReceiveTimeout` after ``timeout`` s."""

        def receive_many(self, most: int, timeout: float | None = None) -> list[tuple[int, T]]:
            """At least one and at most ``most`` messages; waits for the first as `receive`."""

    def __init__(self, core: InboxCore) -> None:
        self._core = core
        self._number = next(numbers)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self.receive = core.receive  # type: ignore[method-assign]
        self.receive_many = core.receive_many  # type: ignore[method-assign]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[int, T]:
        item: tuple[int, Any] = next(self._core)
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, T]:
        try:
            item: tuple[int, T] | None = self._core.try_receive()
            return await self.receive_async() if item is None else item
        except Closed:
            raise StopAsyncIteration from None

    def receive_async(self, timeout: float | None = None) -> Future[tuple[int, T]]:
        """`receive` as a `Future`: await it, or ask for its ``result()``. Never blocks.

        It takes a message when it is asked and one is here, not before: a future that was
        cancelled, or is never asked, leaves all messages to the others. ``timeout`` counts from
        now, and then it is asked in vain: `ReceiveTimeout`. `Closed` when the inbox or its node is
        closed. Several may wait; coroutines on one event loop at a time.
        """
        return ReceiveFuture(self, self._core, timeout)

    def _expect(self, loop: asyncio.AbstractEventLoop, came: asyncio.Future[None]) -> None:
        """Wakes ``came`` when there may be something to take. On the loop's thread."""
        if self._loop is not loop:
            self._leave()
            self._waiting.clear()  # they belong to a loop that is not used any more
            self._loop = loop
            door = door_of(loop)
            door.calls[self._number] = self._wake
            self._core.tell(door.core, self._number)
        self._waiting.add(came)
        if self._loop is not loop:  # closed by another thread meanwhile, which did not see this one
            wake(came)

    def _wake(self) -> None:
        for came in self._waiting:
            wake(came)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the kind free; what waits in the inbox is dropped. Idempotent, never blocks.

        What was dropped counts as handled: a sender's ``flush`` does not wait for it.
        """
        self._core.close()
        self._leave()

    def _leave(self) -> None:
        """Those who wait on an event loop wake, and the loop forgets this inbox. Any thread."""
        loop, self._loop = self._loop, None
        if loop is not None:
            waiting = set(self._waiting)
            close_door(loop, self._number, lambda: self._gone(loop, waiting))

    def _gone(self, loop: asyncio.AbstractEventLoop, waiting: set[asyncio.Future[None]]) -> None:
        if self._loop is not loop:
            door_of(loop).calls.pop(self._number, None)
        for came in waiting:
            wake(came)

    @property
    def _what(self) -> str:
        return f"kind {self.kind}" if self.kind >= FIRST_KIND else "this subscription"

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
        """Messages lost to a ``drop_*`` policy, or that waited when it was closed."""
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
