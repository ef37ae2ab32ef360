"""The channel of a bus behind a broker: its one neighbour is whoever listens at the address.

A broker is known by its address alone. `BrokerFinder` asks for its id, says that it is there, and
says that it has gone when the connection ends; then it asks again, for as long as it takes, since
the next one at that address may be another.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable

import msgspec

from antiphon.errors import (
    AntiphonError,
    AuthenticationFailed,
    Closed,
    ConfigError,
    DuplicateNode,
    PeerUnreachable,
    PermissionDenied,
    ProtocolError,
)
from antiphon.node import Node
from antiphon.topics.announcements import decode, encode
from antiphon.topics.finder import Finder, Member, OnChange
from antiphon.topics.rights import Ask, Refused, Stopped, Welcome, denied

__all__ = ["BrokerFinder"]

log = logging.getLogger("antiphon.topics")

_PATIENCE = 3.0  # with one question; that an id is taken is known after one second
_CONNECTS = 2.0  # seconds until it is connected, when it has answered
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_LOOK_EVERY = 0.25
_CLOSE_PATIENCE = 5.0
_KIND = 33
_SOMETHING = 1  # as a version: a broker always has something to tell


class _CutOff(PeerUnreachable):
    """A broker has answered, and was lost before it said what we may do there."""


class BrokerFinder(Finder):
    """Finds one broker, again and again."""

    asks = True

    def __init__(self, address: str, token: str | None = None) -> None:
        self.address = self._address = address
        self.token = token
        """Shown to the broker."""
        self.on_welcome: Callable[[Welcome], None] | None = None
        """Told what may be done there, without a lock."""
        self.broker = 0
        """The id of the one that answered last, also when it has gone: what it said last is read
        after its connection has ended, as often as not."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._state = "new"
        self._wake = threading.Event()
        self._known: Member | None = None
        self._found: Member | None = None
        self._complained = False
        self._node: Node | None = None
        self._on_change: OnChange | None = None
        self._thread: threading.Thread | None = None

    def use(self, node: Node) -> None:
        """The node that asks; before `start`."""
        self._node = node
        own = weakref.ref(self)

        def lost(peer: int, reason: str) -> None:
            finder = own()
            if finder is not None:
                finder._lost(peer)

        node.on_disconnected(lost)

    def start(self, me: Member, on_change: OnChange) -> None:
        with self._lock:
            if self._state != "new":
                raise Closed(f"this finder is {self._state} already; make another", what="finder")
            self._state = "running"
        self._on_change = on_change
        self._thread = threading.Thread(target=self._run, name="ap-finder", daemon=True)
        self._thread.start()

    def prepare(self) -> None:
        """Asks once, before `start`: a wrong secret or token, an id that is taken or our own
        address raise.

        That nobody listens is none: brokers may come later than their clients. Waits for three
        seconds at most, and for as long again when the connection ends before the answer: one that
        is turned away at the door is told why, and may be late to ask. Only now may the node draw
        another id, if somebody has its own.
        """
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                self._found = self._ask()
                return
            except (
                AuthenticationFailed,
                ConfigError,
                DuplicateNode,
                PermissionDenied,
                ProtocolError,
            ):
                self.close()
                raise
            except AntiphonError as error:
                if not isinstance(error, _CutOff) or time.monotonic() > until:
                    self._complain(error)
                    return
            time.sleep(_FIRST_PAUSE)

    def announce(self, version: int) -> None:
        """The broker hears of changes by messages."""
        if self._state != "running":
            raise Closed("this finder is not running; nothing can be announced", what="finder")

    def members(self) -> list[Member]:
        known = self._known
        return [] if known is None else [known]

    def close(self) -> None:
        if self._process != os.getpid():
            return
        with self._lock:
            self._state = "closed"
            self._known = None
        self._wake.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(_CLOSE_PATIENCE)
        if thread.is_alive():
            log.warning("a finder was closed while its callback was running; its thread is left")

    # --- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        found, self._found = self._found, None
        pause, told = _FIRST_PAUSE, self._complained
        while self._state == "running":
            if found is None:
                try:
                    found = self._ask()
                except Closed:
                    return
                except AntiphonError as error:
                    if not told and pause > _FIRST_PAUSE:  # not at the first time: it may be back
                        self._complain(error)
                        told = True
                    self._wake.wait(pause)
                    self._wake.clear()
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    continue
            pause, told = _FIRST_PAUSE, False
            member, found = found, None
            self._wake.clear()
            self._known = member
            self._call([member], [])
            self._while_there(member)
            self._known = None
            self._call([], [member])

    def _ask(self) -> Member:
        assert self._node is not None
        node, incarnation = self._node._identify(self._address, _PATIENCE)
        if incarnation == self._node._incarnation:
            raise ConfigError(
                f"{self._address} is the address of this bus's own node; give a broker's",
                setting="address",
                value=self._address,
            )
        self._node._set_broker(node)
        self.broker = node
        self._introduce(node)
        return Member(node, incarnation, self._address, _SOMETHING)

    def _introduce(self, broker: int) -> None:
        """Asks what we may do there, so that what is refused raises where it is called."""
        assert self._node is not None
        self._node.add_peer(broker, self._address)
        try:
            _, answer = self._node._request(broker, encode(Ask(self.token)), _KIND, _PATIENCE)
        except PeerUnreachable as error:
            raise _CutOff(
                str(error), peer=error.peer, address=error.address, reason=error.reason
            ) from None
        try:
            word = decode(answer)
        except (msgspec.DecodeError, msgspec.ValidationError):
            word = None
        if isinstance(word, Refused):
            raise denied(word, self._address)
        if isinstance(word, Stopped):
            raise PeerUnreachable(
                f"the broker at {self._address} is stopping; try again later",
                peer=broker,
                address=self._address,
                reason="it is stopping",
            )
        if not isinstance(word, Welcome):
            raise ProtocolError(
                f"node {broker} at {self._address} is no broker; give the address of one",
                peer=broker,
            )
        if self.on_welcome is not None:
            self.on_welcome(word)

    def _while_there(self, member: Member) -> None:
        """Returns when the connection has ended, or none comes about."""
        assert self._node is not None
        until = time.monotonic() + _CONNECTS
        while self._state == "running":
            lost = self._wake.wait(_LOOK_EVERY)
            self._wake.clear()
            # Perhaps it is back already: then the broker knows, and asks for what we have.
            if self._node._is_connected(member.id):
                until = time.monotonic() + _CONNECTS
            elif lost or time.monotonic() > until:
                return

    def _lost(self, peer: int) -> None:
        known = self._known
        if known is not None and known.id == peer:
            self._wake.set()

    def _call(self, present: list[Member], gone: list[Member]) -> None:
        if self._state != "running" or self._on_change is None:
            return
        try:
            self._on_change(present, gone)
        except BaseException:  # SystemExit too: the bus relies on this thread
            log.exception("the callback of a finder failed")

    def _complain(self, error: AntiphonError) -> None:
        self._complained = True
        what = "nobody answers" if isinstance(error, PeerUnreachable) else "it cannot be used"
        log.warning("no broker at %s yet (%s): %s; it is tried again", self._address, what, error)
