"""Subscriptions: the other end of a topic."""

from __future__ import annotations

import asyncio
import copyreg
import functools
import logging
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

from antiphon._core import Event, EventBatch, Handle, InboxCore, on_scheduler_thread
from antiphon.errors import Closed, ConfigError, QueueFull, WouldBlock
from antiphon.node import Future, Inbox
from antiphon.node.shares import check_share
from antiphon.topics.content import Filter
from antiphon.topics.kinds import Topic, topic_of
from antiphon.topics.model import DelayModel, Meters, Plan, calibrate
from antiphon.topics.names import Pattern

if TYPE_CHECKING:
    from antiphon.topics.bus import Bus

__all__ = ["Event", "EventBatch", "Subscription"]

log = logging.getLogger("antiphon.topics")


class Subscription:
    """What `Bus.subscribe` returns: a queue of its own, and a handler or a reader.

    With a handler, ``handler(event)`` (``handler(batch)``) runs on the bus's scheduler threads, one
    call at a time, in each publisher's order. Without one, iterate (``for event in sub``,
    ``async for``) or call `receive`. All methods are thread-safe.
    """

    # A bus may have very many of them.
    __slots__ = {
        "__weakref__": None,
        "_began": None,
        "_bus": None,
        "_core": None,
        "_coroutine": None,
        "_ended": None,
        "_ends": None,
        "_failed": None,
        "_inbox": None,
        "_meters": None,
        "_named": None,
        "_pattern": None,
        "_running": None,
        "_settles": None,
        "_task": None,
        "where": "The filter, as it was given.",
    }

    def __init__(
        self, bus: Bus, core: Handle | InboxCore, pattern: Pattern, where: Filter | None
    ) -> None:
        self._bus = bus
        self._core = core
        self._pattern = pattern
        self._inbox: Inbox[Any] | None = None if isinstance(core, Handle) else Inbox(core)
        self._meters: Meters | None = None  # from the first question on
        self._began = time.monotonic()
        self._coroutine: Any = None
        self._task: asyncio.Task[None] | None = None
        self._failed = 0
        self._ends = False  # a broker may end it
        self._ended: str | None = None
        self._running = False
        self._named = False  # durable or in a group: its events are acknowledged
        self._settles = False  # its coroutine's end acknowledges
        self.where = where

    @property
    def _watched(self) -> bool:
        return self._meters is not None and self._meters.watched

    @property
    def pattern(self) -> Topic:
        """The topics it asked for: a pattern of names, a number or a tag."""
        return topic_of(self._pattern.text)

    # --- without a handler ------------------------------------------------------------------

    def receive(self, timeout: float | None = None) -> Event:
        """The next event; blocks until one is here, `ReceiveTimeout` after ``timeout`` seconds.

        Raises `Closed` when the subscription or its bus is closed, `QueueFull` when a broker has
        ended it (``when_full="disconnect"``) and nothing is left, `ConfigError` for one with a
        handler, and `WouldBlock` where it would wait on a thread with a running event loop.
        """
        if self._ended is not None and not self.pending:
            raise self._full()
        try:
            event: Any = self._reader().receive(timeout)
        except Closed:
            if self._ended is None:
                raise
            raise self._full() from None
        return event  # type: ignore[no-any-return]

    def _full(self) -> QueueFull:
        return QueueFull(
            f"the broker has ended this subscription ({self.pattern}): {self._ended}; read faster, "
            "give it more capacity, and subscribe again",
            pending=self.pending,
        )

    @property
    def ended(self) -> str | None:
        """Why a broker has ended it (``when_full="disconnect"``); None: it has not."""
        return self._ended

    def receive_async(self, timeout: float | None = None) -> Future[Event]:
        """`receive` as a `Future`, which takes an event when it is asked and one is here.

        Never blocks. A future that was cancelled, or is never asked, takes none. ``timeout`` counts
        from now. Raises `ConfigError` at once for a subscription with a handler.
        """
        event: Any = self._reader().receive_async(timeout)
        return event  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Event]:
        reader: Any = self._reader()
        return self._until_ended() if self._ends else iter(reader)

    def _until_ended(self) -> Iterator[Event]:
        """As the reader's own, but for the error behind the last event."""
        while True:
            try:
                yield self.receive()
            except Closed:
                return

    def __aiter__(self) -> Any:
        return self._all_until_ended() if self._ends else self._reader().__aiter__()

    async def _all_until_ended(self) -> AsyncIterator[Event]:
        reader: Any = self._reader()
        async for event in reader:
            yield event
            if self._ended is not None and not self.pending:
                break
        if self._ended is not None:
            raise self._full()

    def _reader(self) -> Inbox[Any]:
        if self._inbox is None:
            raise ConfigError(
                f"the events of this subscription ({self.pattern}) go to its handler; subscribe "
                "without a handler to read them yourself",
                setting="handler",
            )
        return self._inbox

    # --- a handler that is a coroutine ------------------------------------------------------

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if self._coroutine is None or loop is None or self._task is not None:
            return
        if asyncio._get_running_loop() is loop:
            self._task = loop.create_task(self._handle())
        else:
            loop.call_soon_threadsafe(self._begin, loop)

    async def _handle(self) -> None:
        """The next event is taken when the coroutine of the one before has ended.

        Only then does that one count as handled, for a flush too.
        """
        core, reader = cast("InboxCore", self._core), cast("Any", self._reader())
        async for event in reader:
            self._running = True
            try:
                await self._coroutine(event)
                if self._settles:
                    event.ack()
            except Exception:
                self._failed += 1
                log.exception("the handler of subscription %r failed", self.pattern)
                if self._settles:
                    event.nack()
            finally:
                self._running = False
                core.done()

    @property
    def _busy(self) -> bool:
        """Whether a coroutine has something to do."""
        if self._task is None or self._task.done():
            return False
        return self._running or self.pending > 0

    # --- shares and delay -------------------------------------------------------------------

    @property
    def share(self) -> float | None:
        """Its part of the schedule's period; None: it divides the rest with the others."""
        return self._bus._share_of(self)

    @share.setter
    def share(self, share: float | None) -> None:
        self._bus._give_share(self, check_share(share))

    def _handled(self) -> Meters:
        if self._meters is not None:
            return self._meters
        if not isinstance(self._core, Handle):
            runs = "is read" if self._coroutine is None else "has an 'async def' handler"
            raise ConfigError(
                f"only a subscription with a plain function as handler is scheduled; one that "
                f"{runs} has no share and no service to predict from",
                setting="handler",
            )
        self._meters = Meters(self._core, self._began, self._bus.node._schedule_usage)
        return self._meters

    def predict(self) -> DelayModel:
        """What its delay is by its rates of the last seconds: an estimate and a bound.

        With too few samples numbers are NaN, and `DelayModel.basis` says so. Never blocks.
        """
        return self._bus._predict(self, self._handled())

    def calibrate(self, mean_delay: float, timeout: float = 30.0) -> Plan:
        """Raises its share until the measured mean response is at most ``mean_delay`` seconds.

        Blocks while it measures, for at most ``timeout`` seconds. The plan says whether that could
        be had, with which share, and what was measured; if it could not, the share is as before.
        """
        if on_scheduler_thread():
            raise WouldBlock("calibrate() inside a handler measures nothing; use another thread")
        self._bus._refuse_to_block("calibrate()", "await asyncio.to_thread(sub.calibrate, ...)")
        return calibrate(self, self._handled(), mean_delay, timeout)

    # --- looking and leaving ----------------------------------------------------------------

    def statistics(self) -> dict[str, Any]:
        """Counts: events handled, waiting, dropped, missed, expired; slices and overruns."""
        counts = dict(self._core.statistics())
        counts.pop("kind", None)
        counts["failed"] += self._failed
        if isinstance(self._core, Handle):
            delays = self._core.delays()
            counts.update({name: delays[name] for name in ("expired", "malformed", "missed")})
        return counts

    @property
    def pending(self) -> int:
        """Events that wait here now."""
        return int(self._core.statistics()["pending"])

    def _unhandled(self) -> bool:
        """Whether it has got something that its reader or handler has not."""
        if not isinstance(self._core, Handle):
            return self.pending > 0
        counts, delays = self._core.statistics(), self._core.delays()
        # What came together is handed out one by one, and no longer waits when the first was taken.
        gone = counts["handled"] + counts["dropped"] + delays["expired"] + delays["malformed"]
        return bool(counts["pending"] or counts["messages"] > gone)

    @property
    def closed(self) -> bool:
        """Whether it was closed, by itself or with its bus."""
        if isinstance(self._core, Handle):
            return self._bus.closed or not self._core.active
        return self._core.closed

    def close(self) -> None:
        """No call begins after this returns; what waits is dropped. Idempotent."""
        if self._bus.node._forked:
            return
        self._bus._close_subscription(self)
        if self._inbox is not None:
            self._inbox.close()
        else:
            self._core.close()
        if self._named and self._bus._recorded is not None:
            self._bus._recorded.release(self._core)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.to_thread(self.close)  # which may wait for a handler, as the loop must not

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.pending} pending"
        return f"<Subscription {self.pattern!r} {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Subscription belongs to its bus; make one in each process instead")


def _reduce_event(event: Event) -> tuple[Any, ...]:
    """An event is plain data, unlike a batch: it may go to another process."""
    facts = ("properties", "time_ns", "source", "sequence", "missed", "late")
    known = {name: getattr(event, name) for name in facts}
    return functools.partial(Event, **known), (event.topic, event.data)


copyreg.pickle(Event, _reduce_event)
