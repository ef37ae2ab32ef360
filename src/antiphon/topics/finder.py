"""Who else is on the channel: what a bus asks of a way to find out, and what all ways share.

A finder says which nodes are there, where they listen, and a number that changes when what they
publish or subscribe changes. It carries no topics and no messages: whoever sees an unknown number
asks that node itself. `Finder` is the interface; `ThreadedFinder` is the thread, the table and the
care for forks that ``antiphon.topics.local`` and ``antiphon.topics.multicast`` build upon.

Receives its own `Member` from the bus; hands it the others, on the finder's thread.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self

from antiphon.errors import Closed, ConfigError

__all__ = ["Finder", "OnChange", "ThreadedFinder"]

log = logging.getLogger("antiphon.topics")

MAX_ADDRESS_BYTES = 512
_U64 = 2**64
_CLOSE_PATIENCE = 5.0


@dataclass(frozen=True)
class Member:
    """A node on the channel, as it describes itself."""

    id: int
    incarnation: int
    """Drawn at each start: a node that came back is another one."""
    address: str
    version: int = 0
    """64 bits that change with what the node publishes and subscribes; compared, never read."""


OnChange = Callable[[list[Member], list[Member]], None]
"""``on_change(present_or_changed, gone)``. A node that came back is in both: gone comes first."""


class Finder(ABC):
    """Finds the other nodes of one channel. Methods may be called by any thread.

    A finder is started once. It belongs to the process that made it: in a forked child `close`
    does nothing and the rest raises `Closed`, and the parent's goes on undisturbed.
    """

    asks = False
    """Whether `prepare` is to be called."""

    def prepare(self) -> None:
        """Finds out what has to be known before `start`, where ``asks`` is true; may wait."""

    @abstractmethod
    def start(self, me: Member, on_change: OnChange) -> None:
        """Shows ``me`` to the others and begins to look for them. Never waits for them.

        ``on_change`` runs on the finder's own thread, one call at a time: for members that came,
        that moved or whose version changed, and for those that went; never for ``me``. It should
        return soon, since nothing is told or noticed meanwhile. What it raises is logged.

        Raises `ConfigError` where the channel cannot be used, `Closed` on a second start. A finder
        whose start failed is closed.
        """

    @abstractmethod
    def announce(self, version: int) -> None:
        """Our version is another one now: the others are told soon, several calls at once.

        Never blocks. Raises `Closed` before start and after close.
        """

    @abstractmethod
    def members(self) -> list[Member]:
        """The others that are known now, by id. Never blocks. Empty before start, after close."""

    @abstractmethod
    def close(self) -> None:
        """Takes leave of the others, who notice at once, and ends the thread. Idempotent.

        Blocks until a running callback has returned, for 5 s at most; when called by the callback
        it does not wait. Afterwards there are no more callbacks.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


# --- forks ----------------------------------------------------------------------------------------

# A descriptor that a child inherits keeps a lock held, and so a dead parent alive in the eyes of
# the others. So children close what finders have open, and no fork comes between an open and the
# note that it was made. Reentrant, since a signal handler may fork on the thread that is opening.
_forking = threading.RLock()


class _Handle(Protocol):
    def fileno(self) -> int: ...

    def close(self) -> None: ...


class Descriptor:
    """A file descriptor that is closed once."""

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number

    def close(self) -> None:
        number, self._number = self._number, -1
        if number >= 0:
            os.close(number)


@contextlib.contextmanager
def not_forking() -> Iterator[None]:
    """No thread forks inside; for a few system calls that do not wait, and nothing else."""
    with _forking:
        yield


def _forked() -> None:
    for finder in list(_finders):
        finder._drop()
    _forking.release()


# --- one thread -----------------------------------------------------------------------------------


class ThreadedFinder(Finder):
    """A finder with a thread of its own; what it does in a turn is the subclass's.

    Turns come when something can be read, when a time has come or when somebody pokes. The lock
    guards the state, ``_me`` and the descriptors; it is never held while the callback runs.
    """

    def __init__(self, interval: float, gap: float) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._state = "new"
        self._interval = interval
        self._gap = gap  # between two tellings, so that many changes cost one
        self._told = self._tell_at = -math.inf
        self._me: Member | None = None
        self._on_change: OnChange | None = None
        self._known: dict[int, Member] = {}
        self._handles: dict[str, _Handle] = {}
        self._thread: threading.Thread | None = None
        with not_forking():
            _finders.add(self)

    # --- what a subclass does ---------------------------------------------------------------

    @abstractmethod
    def _open(self, me: Member) -> None:
        """Opens what it takes; with the lock. What it raises, `start` raises."""

    @abstractmethod
    def _tell(self, me: Member) -> float:
        """Shows the others what we are; with the lock. Returns when to do it again."""

    @abstractmethod
    def _turn(self, now: float) -> float:
        """Reads what there is to read and calls `_settle`; without the lock. Never waits.

        Returns the time of the next turn, should nothing happen before.
        """

    @abstractmethod
    def _leave(self) -> None:
        """Tells the others that we go; with the lock, once, also when nothing was opened."""

    # --- Finder -----------------------------------------------------------------------------

    def start(self, me: Member, on_change: OnChange) -> None:
        self._begin(me, on_change, threaded=True)

    def start_polled(self, me: Member, on_change: OnChange) -> None:
        """As `start`, without a thread: whoever calls `poll`, often, is it. It calls back then."""
        self._begin(me, on_change, threaded=False)

    def poll(self) -> None:
        """One turn. Never waits. Nothing after close."""
        if self._state == "running" and self._process == os.getpid():
            self._tell_when_due()
            self._turn(time.monotonic())

    def _begin(self, me: Member, on_change: OnChange, threaded: bool) -> None:
        self._check_process()
        _check_member(me)
        with self._lock:
            if self._state != "new":
                raise Closed(
                    f"this finder is {self._state} already; make another one", what="finder"
                )
            try:
                self._keep("wake", lambda: Descriptor(os.eventfd(0, _EVENTFD)))
                self._open(me)
                self._me, self._on_change = me, on_change
                self._tell_at = self._tell(me)
                self._told = time.monotonic()
                self._state = "running"
                if threaded:
                    self._thread = threading.Thread(target=self._run, name="ap-finder", daemon=True)
                    self._thread.start()
            except BaseException:
                self._state = "closed"
                self._thread = None
                self._leave()
                self._drop()
                raise

    def announce(self, version: int) -> None:
        self._check_process()
        _check_u64("version", version)
        with self._lock:
            if self._state != "running" or self._me is None:
                why = "has not been started" if self._state == "new" else "is closed"
                raise Closed(f"this finder {why}; nothing can be announced", what="finder")
            if self._me.version == version:
                return
            self._me = replace(self._me, version=version)
            self._tell_within(0.0)
            self._poke()

    def members(self) -> list[Member]:
        self._check_process()
        with self._lock:
            return sorted(self._known.values(), key=lambda member: member.id)

    def close(self) -> None:
        # Before the lock, which another thread may have held when the process was forked.
        if self._process != os.getpid():
            return
        with self._lock:
            before, self._state = self._state, "closed"
            thread = self._thread
            if before != "closed":
                self._known = {}
                try:
                    self._leave()
                finally:
                    if before == "running" and thread is not None:
                        self._poke()
                    else:
                        self._drop()
        if thread is None or thread is threading.current_thread():
            return
        thread.join(_CLOSE_PATIENCE)
        if thread.is_alive():
            log.warning("a finder was closed while its callback was running; its thread is left")

    # --- for subclasses ---------------------------------------------------------------------

    def _keep(self, name: str, make: Callable[[], _Handle]) -> None:
        """Opens something that is ours until the end and that no child is to have."""
        with not_forking():
            self._handles[name] = make()

    def _tell_within(self, delay: float) -> None:
        """Tells in ``delay`` seconds at the latest, but not more often than is decent."""
        with self._lock:
            at = max(time.monotonic() + delay, self._told + self._gap)
            self._tell_at = min(self._tell_at, at)

    def _settle(self, table: dict[int, Member]) -> None:
        """Who is there now: what differs from before is reported. On the thread, without the lock.

        A difference of two states, not a list of events: one who came and went between two turns
        is nobody's business, and an order among events cannot be got wrong.
        """
        with self._lock:
            if self._state != "running":
                return
            before, self._known = self._known, dict(table)
        present = [member for member in table.values() if before.get(member.id) != member]
        gone = [
            member
            for member in before.values()
            if member.id not in table or table[member.id].incarnation != member.incarnation
        ]
        if present or gone:
            self._call(present, gone)

    def _call(self, present: list[Member], gone: list[Member]) -> None:
        if self._state != "running" or self._on_change is None:
            return
        try:
            self._on_change(present, gone)
        except BaseException:  # SystemExit too: others rely on this thread
            log.exception("the callback of a finder failed")

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise Closed(
                "this finder belongs to the process that this one was forked from; make one of "
                "your own after the fork",
                what="finder",
            )

    # --- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        well = True
        while self._state == "running":
            try:
                self._tell_when_due()
                until = self._turn(time.monotonic())
                well = True
            except Exception:
                if self._state != "running":
                    break  # it was closed meanwhile, and its descriptors with it
                # Again after a pause, with what could be read unread; but told only once.
                if well:
                    log.exception("a finder could not look around; it goes on trying")
                well = False
                until = time.monotonic() + self._interval
            self._sleep(until, well)
        with self._lock:
            self._drop()

    def _tell_when_due(self) -> None:
        with self._lock:
            if self._state == "running" and self._me and self._tell_at <= time.monotonic():
                self._told = time.monotonic()
                self._tell_at = self._tell(self._me)

    def _sleep(self, until: float, well: bool) -> None:
        poll = select.poll()
        with self._lock:
            if self._state != "running":
                return  # a `start` that was interrupted has closed all there is
            wake = self._handles["wake"].fileno()
            poll.register(wake, select.POLLIN)
            if well:
                until = min(until, self._tell_at)
                for name in ("inotify", "socket"):
                    if name in self._handles:
                        poll.register(self._handles[name].fileno(), select.POLLIN)
        poll.poll(max(0, math.ceil((until - time.monotonic()) * 1000)))
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(wake)

    def _poke(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it has been poked often enough
            os.eventfd_write(self._handles["wake"].fileno(), 1)

    def _drop(self) -> None:
        """Closes all descriptors; also in a forked child, where it says nothing to anybody."""
        with not_forking():
            handles, self._handles = self._handles, {}
            for handle in handles.values():
                with contextlib.suppress(OSError):
                    handle.close()


_EVENTFD = os.EFD_CLOEXEC | os.EFD_NONBLOCK
_finders: weakref.WeakSet[ThreadedFinder] = weakref.WeakSet()

os.register_at_fork(
    before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_forked
)


# --- checks ---------------------------------------------------------------------------------------


def refuse(setting: str, value: object, wanted: str) -> ConfigError:
    """The error for a setting that is not what it must be."""
    return ConfigError(f"{setting} is {value!r}; it must be {wanted}", setting=setting, value=value)


def check_whole(setting: str, value: object, low: int, high: int) -> int:
    """The value, if it is a whole number in bounds; otherwise `ConfigError`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise refuse(setting, value, f"a whole number from {low} to {high}")
    return value


def check_seconds(setting: str, value: object) -> float:
    """The value, if it is a number of seconds up to an hour; otherwise `ConfigError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 3600:
        raise refuse(setting, value, "a number of seconds above 0 and at most 3600")
    return float(value)


def _check_u64(setting: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _U64:
        raise refuse(setting, value, "a whole number of 64 bits, not negative")


def _check_member(me: Member) -> None:
    check_whole("id", me.id, 1, 65535)
    _check_u64("incarnation", me.incarnation)
    _check_u64("version", me.version)
    if not acceptable_address(me.address):
        wanted = f"a text of 1 to {MAX_ADDRESS_BYTES} bytes that can be printed"
        raise refuse("address", me.address, wanted)


def acceptable_address(address: object) -> bool:
    """Whether others may be told this address, or we be told it by them."""
    if not isinstance(address, str) or not address or not address.isprintable():
        return False
    return len(address.encode("utf-8", "surrogatepass")) <= MAX_ADDRESS_BYTES
