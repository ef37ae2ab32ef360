"""The side of a bus behind a broker that records: publishers whose events must not be lost.

A publisher with ``record=True`` keeps its events until the broker has said that they are in its
log, and sends them again when the broker was gone meanwhile (``native/bindings/outbox.cpp``). Here
the broker is asked to record the topic, again after each of its restarts, and receipts are handed
to the publishers.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import secrets
import struct
import time
import weakref
from typing import TYPE_CHECKING, Any

import msgspec

from antiphon._core import Handle, InboxCore, OutboxCore, make_outbox
from antiphon.errors import (
    AntiphonError,
    Closed,
    ConfigError,
    PeerUnreachable,
    PermissionDenied,
    RequestTimeout,
    UnknownPeer,
)
from antiphon.node.loops import refuse_to_block
from antiphon.topics.announcements import Wish
from antiphon.topics.asking import (
    Claim,
    Forget,
    Heard,
    Held,
    NotAdmitted,
    Question,
    Record,
    Release,
    ask,
)
from antiphon.topics.brokered import BrokerFinder
from antiphon.topics.publisher import Publisher, encode_properties

if TYPE_CHECKING:
    from antiphon.topics.bus import Bus

__all__ = ["Recorded"]

log = logging.getLogger("antiphon.topics")

_RECEIPTS = 35
_RECEIPT = struct.Struct("<QQIIiI")
_PATIENCE = 5.0  # with a broker that is asked something
_SOON = 0.002
_LOOK = 0.02
_MOMENT = 1.0
_MOST_EVENTS, _MOST_BYTES = 65536, 32 << 20  # of one publisher that wait for their receipts
_RETRY = 0.25
_LONGEST_PAUSE = 8.0  # before a broker is asked again whose disk has failed
_KEY = 1 << 34  # of calls that wait, beside those of nodes and publishers


class Recorded:
    """What a bus has to do with its broker's log. None of it exists where there is no broker."""

    def __init__(self, bus: Bus, finder: BrokerFinder) -> None:
        self._bus = bus
        self._finder = finder
        self._receipts: Handle | None = None
        self._publishers: dict[int, Publisher] = {}
        self._told: dict[int, int] = {}  # publisher: the life of the broker that was asked
        self._pauses: dict[int, tuple[float, float]] = {}  # publisher: how long, and until when
        self._retry_due = 0.0
        self.life = 0
        """Of the broker, as it was heard of; 0: it is not there."""
        self.topics: set[str] = set()
        """Those that it records: it alone serves their subscriptions. They stay while it lives,
        also when it asks for none of them, as it does until it has heard of a publisher here."""

    def start(self) -> None:
        """With its bus. The node may live longer, and calls back for as long."""
        own = weakref.ref(self)

        def lost(peer: int, reason: str) -> None:
            recorded = own()
            if recorded is not None:
                recorded.remember()

        self._bus.node.on_disconnected(lost)

    # --- asking -----------------------------------------------------------------------------

    def patience(self) -> float:
        """Until when one call may wait for the broker, whatever it asks."""
        return time.monotonic() + _PATIENCE

    def ask(self, question: Question, call: str, until: float | None = None) -> Any:
        """What the broker answers. Blocks for a round trip; waits for a broker for 5 seconds.

        Raises `ConfigError` before the bus is started, `PeerUnreachable` without a broker, and
        what the broker refuses with.
        """
        refuse_to_block(call, f"{call.partition('(')[0]}_async")
        if self._bus.closed:
            raise Closed("this bus was closed", what="bus")
        if self._bus._state != "running":
            raise ConfigError(f"{call} asks the broker; start the bus first", setting="bus")
        until = self.patience() if until is None else until
        while True:
            known = self._finder.members()
            if known:
                try:
                    left = max(until - time.monotonic(), _LOOK)
                    return ask(self._bus.node, known[0].id, question, left)
                # Found, and not introduced yet; or what it was told of us is on its way.
                except (PeerUnreachable, UnknownPeer, NotAdmitted):
                    if time.monotonic() > until:
                        raise
            elif time.monotonic() > until:
                raise PeerUnreachable(
                    f"no broker answers at {self._bus.address}; start one there",
                    address=self._bus.address,
                )
            if self._bus.closed:
                raise Closed("this bus was closed", what="bus")
            time.sleep(_LOOK)

    def claim(self, claim: Claim, call: str, until: float) -> None:
        """Whether a subscription may be so. One who has just died may still hold its name."""
        self._ask_for_name(claim, call, until)

    def forget_name(self, name: str) -> None:
        """That of a durable subscription; the end of one that was closed here may be on its way."""
        call, until = "forget()", self.patience()
        self._wait_until_heard(None, call, until)
        self._ask_for_name(Forget(name), call, until)

    def _ask_for_name(self, question: Claim | Forget, call: str, until: float) -> None:
        """Whoever holds the name has a moment to leave."""
        moment = min(until, time.monotonic() + _MOMENT)
        while True:
            try:
                self.ask(question, call, until)
                return
            except Held:
                if time.monotonic() > moment:
                    raise
            time.sleep(_LOOK)

    def settle(self, flow: int, call: str, until: float) -> None:
        """Returns when the broker has that subscription: what comes from now on is for it.

        A new name is then also in a file, unless the disk takes more than a moment. Raises what the
        broker refuses with, and as `ask`.
        """
        self._wait_until_heard(flow, call, until)

    def _wait_until_heard(self, flow: int | None, call: str, until: float) -> None:
        bus = self._bus
        question = Heard(bus._ledger.incarnation, bus._ledger.version, flow)
        moment, held, pause = 0.0, 0.0, _SOON
        while True:
            with bus._lock:
                letters = bus._neighbours.letters() if bus._state == "running" else []
            # The bus's thread would do it a moment later; but this may be that thread.
            bus._neighbours.tell(letters)
            try:
                begun, written = self.ask(question, call, until)
            except Held:  # by one whose end is on its way, such as a call that was cancelled
                held = held or time.monotonic() + _MOMENT
                if time.monotonic() > held:
                    raise
                time.sleep(_LOOK)
                continue
            except RequestTimeout:
                if moment:
                    return  # it has begun, and the disk takes its time
                raise
            now = time.monotonic()
            moment = moment or (now + _MOMENT if begun else 0.0)
            if written or (begun and now > moment):
                return
            if not begun and now > until:
                raise RequestTimeout(
                    f"{call}: the broker at {bus.address} has not taken it up within "
                    f"{_PATIENCE:g} s; try again",
                    peer=self._finder.broker,
                    waited=_PATIENCE,
                )
            time.sleep(pause)
            pause = min(2 * pause, _LOOK)

    # --- subscriptions ----------------------------------------------------------------------

    def remember(self) -> None:
        """The connection is lost: the next broker is told where its replays go on."""
        bus = self._bus
        with bus._lock:
            for flow, subscription in bus._subscriptions.items():
                said = bus._ledger.subscriptions.get(flow)
                places = subscription._core.positions()
                if said is None or not places:
                    continue
                wish = said.wish or Wish()
                wish = msgspec.structs.replace(
                    wish,
                    after=wish.after | {topic: at - 1 for topic, at, _ in places},
                    stores=wish.stores | {topic: store for topic, _, store in places},
                )
                bus._ledger.subscribe(msgspec.structs.replace(said, wish=wish))

    def release(self, core: Handle | InboxCore) -> None:
        """A subscription with a name was closed: what it has not handled is for the next one.

        Behind what it has acknowledged, also where that had to wait for room. Never blocks.
        """
        known = self._finder.members()
        if not known or self._bus.node._closed:
            return
        broker = known[0].id

        def work() -> None:
            core.wait_acknowledged(_PATIENCE)
            with contextlib.suppress(AntiphonError):
                self._bus.node._flush(broker, _PATIENCE)
                ask(self._bus.node, broker, Release(core.flow), _PATIENCE)

        with contextlib.suppress(AntiphonError):
            self._bus.node._later.add(-2 * _KEY - core.flow, work)

    def hear(self, peer: int, life: int) -> None:
        """Somebody tells what it has. With the bus's lock."""
        if peer == self._finder.broker:
            self.begin(life)

    def begin(self, life: int) -> None:
        """Another life of the broker, or none (0). With the bus's lock.

        What it records it will say. Until then our own subscriptions get it straight from here.
        """
        if life == self.life:
            return
        ended, self.life, self.topics = self.topics, life, set()
        bus = self._bus
        for publisher in bus._publishers.values():
            if publisher._text not in ended:
                continue
            for own in bus._interests.matching(publisher._text):
                if own.peer == bus.node.id:
                    bus._serve(publisher, own)

    # --- publishers -------------------------------------------------------------------------

    def publisher(self, name: str, number: int) -> Publisher:
        """One whose events are recorded. Asks the broker first; raises what `ask` raises."""
        self.ask(Record(name), "publisher(record=True)")
        with self._bus._lock:
            if self._receipts is None:
                self._receipts = self._bus.node._on(
                    _RECEIPTS, self._receipt, None, _log_failure, True, 1, 4096, "block"
                )
            producer = secrets.randbits(63) | 1
            core = make_outbox(
                self._bus.node,
                number,
                name,
                producer,
                _MOST_EVENTS,
                _MOST_BYTES,
                encode_properties,
            )
            publisher = Publisher(self._bus, core, name, number, False)
            self._publishers[number] = publisher
            self._told[number] = self._life()
        return publisher

    def forget(self, number: int) -> None:
        """A publisher was closed; any number."""
        publisher = self._publishers.pop(number, None)
        self._told.pop(number, None)
        self._pauses.pop(number, None)
        if publisher is not None:
            _report_lost(publisher)

    def drain(self, timeout: float) -> None:
        """What is not recorded yet is waited for, before the bus says farewell."""
        until = time.monotonic() + timeout
        for publisher in list(self._publishers.values()):
            publisher._core.close(max(0.0, until - time.monotonic()))
            _report_lost(publisher)

    def _receipt(self, source: int, batch: Any) -> None:
        for data in batch:
            if len(data) == _RECEIPT.size:
                producer, upto, number, status, error, _ = _RECEIPT.unpack(data)
                publisher = self._publishers.get(number)
                if publisher is not None and isinstance(publisher._core, OutboxCore):
                    publisher._core.acknowledge(producer, upto, status, error)

    def _life(self) -> int:
        known = self._finder.members()
        return known[0].incarnation if known else 0

    # --- now and then, on the bus's thread --------------------------------------------------

    def turn(self) -> None:
        """Asks a new broker to record what the one before did, and tries again what was full."""
        life = self._life()
        for number, publisher in list(self._publishers.items()):
            if time.monotonic() < self._pauses.get(number, (0.0, 0.0))[1]:
                continue
            if life and self._told.get(number) not in (life, None):
                self._told[number] = life
                try:
                    self._bus.node._later.add(
                        -_KEY - number, functools.partial(self._ask_again, publisher, number)
                    )
                except AntiphonError:
                    self._told[number] = 0
        if time.monotonic() >= self._retry_due:
            self._retry_due = time.monotonic() + _RETRY
            for publisher in list(self._publishers.values()):
                if isinstance(publisher._core, OutboxCore):
                    publisher._core.retry()

    def _ask_again(self, publisher: Publisher, number: int) -> None:
        core = publisher._core
        assert isinstance(core, OutboxCore)
        try:
            known = self._finder.members()
            if not known:
                raise PeerUnreachable("the broker has gone again")
            ask(self._bus.node, known[0].id, Record(publisher._text), _PATIENCE)
            core.refuse("", "")
            self._pauses.pop(number, None)
        except NotAdmitted:
            self._told[number] = 0
        except (ConfigError, PermissionDenied) as error:
            core.refuse(type(error).__name__, str(error))
        except AntiphonError as error:
            log.info("the broker was not asked to record %r: %s", publisher.topic, error)
            if number in self._told:
                self._told[number] = 0
                pause = min(
                    max(2 * self._pauses.get(number, (0.0, 0.0))[0], _RETRY), _LONGEST_PAUSE
                )
                self._pauses[number] = pause, time.monotonic() + pause


def _report_lost(publisher: Publisher) -> None:
    """Of one that is closed: nobody sends again what it has."""
    left = publisher.statistics()["pending"]
    if left:
        log.warning(
            "a publisher of %r was closed with %d events that the broker had not acknowledged; "
            "they may be lost. flush() before close() says so in time",
            publisher.topic,
            left,
        )


def _log_failure(kind: int, source: int, error: BaseException) -> None:
    log.error("a receipt of node %d failed", source, exc_info=error)
