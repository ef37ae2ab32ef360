"""The bus: topics of many publishers and subscribers, found by name.

Receives publishers, subscriptions and timers from programs, and from a `Finder` the other buses on
the same channel; tells them what it has (`antiphon.topics.announcements`) and hands every publisher
the subscriptions that match. What happens once per event is done by the core.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

import msgspec

from antiphon._core import Handle, InboxCore, on_scheduler_thread, set_event_hooks
from antiphon.errors import (
    AntiphonError,
    Closed,
    ConfigError,
    FilterError,
    ProtocolError,
    WouldBlock,
)
from antiphon.node import TLS, Future, Node, NodeConfig
from antiphon.node.config import Insecure
from antiphon.node.coroutines import is_coroutine, no_loop
from antiphon.node.loops import refuse_to_block
from antiphon.node.shares import check_share
from antiphon.topics.announcements import Ledger, Subscribed, Table, Want, decode, encode
from antiphon.topics.channels import open_channel
from antiphon.topics.config import BusConfig
from antiphon.topics.finder import Member
from antiphon.topics.model import WINDOW, Conformance, DelayModel, Meters, judge, predict
from antiphon.topics.names import Pattern, PatternIndex, TopicIndex, check_topic
from antiphon.topics.publisher import Publisher, encode_properties
from antiphon.topics.subscription import Subscription
from antiphon.topics.timer import Timer, make_timer
from antiphon.topics.where import Where
from antiphon.wire.message import Message, decoder_for

__all__ = ["Bus", "BusStatistics", "TopicInfo"]

log = logging.getLogger("antiphon.topics")

_BUS_KIND = 33
_CAPACITY, _BATCH_CAPACITY = 4096, 65536
_HOUSEKEEPING = 0.25
_SOON = 0.01
_GATHER = 0.002
_LOOK_EVERY = 1.0
_COUNTS = ("published", "dropped", "lost")
_DRAIN = 5.0
_WHEN_FULL = ("block", "drop_oldest", "drop_newest")

Handler = Callable[[Any], Any]
ConformanceCallback = TypeVar("ConformanceCallback", bound=Callable[[Conformance], Any])


@dataclass(frozen=True)
class TopicInfo:
    """One topic, as far as this bus knows."""

    name: str
    publishers: tuple[int, ...]
    """The nodes that publish it."""
    subscribers: tuple[int, ...]
    """The nodes with a subscription that matches."""


@dataclass(frozen=True)
class BusStatistics:
    """Counts of this moment."""

    publishers: int
    subscriptions: int
    peers: int
    """Other buses on the channel."""
    topics: int
    """Topics known, of all buses."""
    published: int
    dropped: int
    """Events that publishers here left out because a subscription had no room."""
    lost: int
    """Events for subscriptions that could not be reached."""
    shares: dict[str, float]
    """Who holds which part of this node's time."""


class Bus:
    """Publish and subscribe by topic, on a channel that all parties name alike.

    ``local://name`` is this machine (and this user), with nothing to configure;
    ``mcast://239.77.0.1:7777`` a multicast group, peer-to-peer. The bus owns a node, or shares
    ``node``. ``secret`` and ``tls`` are the node's; see `Node`. ``with bus:`` starts it and closes
    it. All methods are thread-safe; handlers run on the node's scheduler threads.
    """

    def __init__(
        self,
        address: str,
        *,
        node: Node | None = None,
        secret: str | bytes | Insecure | None = None,
        tls: TLS | None = None,
        token: str | None = None,
        config: BusConfig | None = None,
        node_config: NodeConfig | None = None,
    ) -> None:
        self.config = BusConfig.load() if config is None else config
        self.address = address
        """The channel, as it was given."""
        if token is not None:
            raise ConfigError("token= is for a broker's address", setting="token")
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._state = "new"
        self._owns_node = node is None
        # First: a second bus on a node is to hear of that, and not that its id is taken.
        handle = None if node is None else self._listen(node)
        try:
            self._channel = open_channel(address, self.config, node, secret, tls, node_config)
        except BaseException:
            if handle is not None:
                handle.close()
            raise
        self._finder = self._channel.finder
        try:
            self.node: Node = self._channel.make_node() if node is None else node
            """The node that everything runs over."""
            self._control = handle or self._listen(self.node)
        except BaseException:
            self._finder.close()
            raise
        self._numbers = itertools.count(1)
        self._ledger = Ledger(self.node._incarnation)
        self._publishers: dict[int, Publisher] = {}
        self._topics: TopicIndex[int] = TopicIndex()
        self._subscriptions: dict[int, Subscription] = {}
        self._peers: dict[int, _Peer] = {}
        self._left: dict[int, int] = {}  # of buses that have gone: their last incarnation
        self._interest: PatternIndex[tuple[int, int]] = PatternIndex()
        self._timers: list[Timer] = []
        self._owing: set[Publisher] = set()
        self._last_heard = 0.0
        self._past: list[dict[str, int]] = []
        self._judges: list[Callable[[Conformance], Any]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def _listen(self, node: Node) -> Handle:
        handle = node._on(_BUS_KIND, self._heard, None, _log_failure, False, 1, _CAPACITY, "block")
        if handle is None:
            raise ConfigError("this node has a bus already; share that one", setting="node")
        return handle

    # --- life -------------------------------------------------------------------------------

    def start(self) -> Self:
        """Joins the channel. ``with bus:`` does it."""
        self.node._check_process()
        with self._lock:
            if self._state == "running":
                return self
            if self._state == "closed":
                raise Closed("this bus was closed; make a new one", what="bus")
            self._loop = asyncio._get_running_loop()
            coroutines = any(one._coroutine for one in self._subscriptions.values())
            if coroutines and self._loop is None:
                raise no_loop()
            self.node.start()
            me = self._peers[self.node.id] = _Peer(Table(self.node._incarnation), itself=True)
            me.table.subscriptions = dict(self._ledger.subscriptions)
            for subscribed in self._ledger.subscriptions.values():
                self._came(self.node.id, me, subscribed)
            self._state = "running"
            version = self._ledger.version
            for timer in self._timers:
                timer._start()
            for subscription in self._subscriptions.values():
                subscription._begin(self._loop)
        try:
            self._finder.start(
                Member(
                    self.node.id, self.node._incarnation, self._channel.address(self.node), version
                ),
                self._members_changed,
            )
        except BaseException:
            self._close_now(0.0)
            raise
        self._thread = threading.Thread(target=self._run, name="ap-bus", daemon=True)
        self._thread.start()
        _running.add(self)
        return self

    def close(self, drain: float = 5.0) -> None:
        """Leaves the channel; ends publishers, subscriptions and, if it is its own, the node.

        What was published is delivered and what came is handled, for at most ``drain`` seconds. A
        second call does nothing; inside a handler it raises `WouldBlock`.
        """
        if on_scheduler_thread():
            raise WouldBlock(
                "close() inside a handler would wait for that handler; close from another thread"
            )
        if self.node._forked:
            return
        if self._state == "running":
            refuse_to_block("close()", "close_async() or 'async with'")
        self._close_now(drain)

    def _close_now(self, drain: float) -> None:
        with self._lock:
            before, self._state = self._state, "closed"
            self._changed.notify_all()
            publishers = list(self._publishers.values())
            subscriptions = list(self._subscriptions.values())
            timers = list(self._timers)
            farewells = self._farewells() if before == "running" else []
        if before == "closed":
            return
        _running.discard(self)
        # First nobody sends to us any more, then what is here is handled, and only then is our id
        # free for another.
        for peer, letter in farewells:
            self._tell(peer, letter)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)
        until = time.monotonic() + drain
        while time.monotonic() < until and any(one._busy for one in subscriptions):
            time.sleep(0.002)  # coroutines run on their own loop
        try:
            if self._owns_node:
                self.node._close_now(max(0.0, until - time.monotonic()) if drain > 0 else 0.0)
            else:
                for timer in timers:
                    timer.close()
                for subscription in subscriptions:
                    subscription.close()
                self._control.close()
        finally:
            self._finder.close()
            for publisher in publishers:
                publisher._core.close()
                publisher._wake()

    def close_async(self, drain: float = 5.0) -> Future[None]:
        """`close` for a coroutine; the work is done by a thread of its own."""
        from antiphon.node.future import Job

        job: Job[None] = Job()
        work = functools.partial(self._close_now, drain)
        threading.Thread(target=job.run, args=(work,), name="ap-close").start()
        return job

    @property
    def closed(self) -> bool:
        """Whether it was closed, or is closing."""
        return self._state == "closed"

    def wait(self) -> None:
        """Blocks until the bus's node is closed, or SIGINT or SIGTERM arrives."""
        self.node.wait()

    def wait_async(self) -> Future[None]:
        """Done when the bus's node is closed. Signals are the event loop's to handle."""
        return self.node.wait_async()

    def __enter__(self) -> Self:
        refuse_to_block("'with bus:'", "'async with bus:'")
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(drain=5.0 if kind is None else 0.0)

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close_async(drain=5.0 if kind is None else 0.0)

    def __repr__(self) -> str:
        return f"<Bus {self.address} of node {self.node.id} {self._state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Bus holds sockets and threads; make one in each process instead")

    # --- publishing -------------------------------------------------------------------------

    def publisher(
        self,
        topic: str,
        *,
        share: float | None = None,
        capacity: int = _CAPACITY,
        when_full: str = "block",
        retain: bool = False,
        record: bool = False,
    ) -> Publisher:
        """A `Publisher` of one topic: levels joined by ``/``, no wildcards. Never blocks.

        ``when_full``: what happens when a subscription has no room; ``block``: `publish` waits,
        ``drop_newest``: that subscription misses the event. With a ``share`` the publisher is a
        task with a queue of ``capacity`` events, which scheduler threads send; `publish` returns
        when the event is in the queue, and ``when_full`` is about that one. So it is, also without
        a share, for ``drop_oldest``. ``retain``: the last event is kept, and whoever subscribes
        later gets it first.
        """
        self._check_open()
        _refuse_broker(record=record)
        if when_full not in _WHEN_FULL:
            raise _bad_policy(when_full)
        part, room = check_share(share), _check_capacity(capacity)
        # Without a share an event goes straight into the rings. To lose the oldest there must be
        # a queue in which it waits.
        own_queue = room if part or when_full == "drop_oldest" else 0
        name = check_topic(topic)
        with self._lock:
            number = next(self._numbers)
            core = self.node._publisher(
                number, name, when_full, retain, own_queue, encode_properties
            )
            self.node._share(core, part, f"publisher {name!r}")
            publisher = Publisher(self, core, name, number, retain)
            self._publishers[number] = publisher
            self._topics.add(name, number)
            for key in self._interest.matching(name):
                self._serve(publisher, *key)
            self._ledger.publish(number, name)
            self._changed.notify_all()
        return publisher

    def _close_publisher(self, publisher: Publisher) -> None:
        publisher._core.close(_DRAIN if self._state == "running" else 0.0)
        with self._lock:
            self._owing.discard(publisher)
            if self._publishers.pop(publisher._number, None) is not None:
                self._past.append(publisher.statistics())
                self._past = [{name: sum(one[name] for one in self._past) for name in _COUNTS}]
                self._topics.remove(publisher.topic, publisher._number)
                self._ledger.unpublish(publisher._number)
                self._changed.notify_all()
        publisher._wake()

    def _serve(self, publisher: Publisher, peer: int, flow: int) -> None:
        state = self._peers[peer]
        subscribed = state.table.subscriptions[flow]
        where = state.filters.get(flow)
        publisher._core.serve(
            peer,
            state.table.incarnation,
            flow,
            subscribed.least_charge,
            where.matches if where else None,
        )
        if publisher._retain and not publisher._core.settle():
            self._owing.add(publisher)
        publisher._wake()

    # --- subscribing ------------------------------------------------------------------------

    def subscribe(
        self,
        pattern: str,
        handler: Handler | None = None,
        *,
        share: float | None = None,
        capacity: int | None = None,
        when_full: str = "block",
        where: str | None = None,
        batch: bool = False,
        durable: str | None = None,
        start: Any = None,
        group: str | None = None,
    ) -> Subscription:
        """Asks for the events of all topics that match. Never blocks.

        In ``pattern`` ``*`` stands for one level, ``**`` for any number. ``handler(event)`` (with
        ``batch=True`` ``handler(batch)``, an `EventBatch` of one topic) runs on scheduler threads,
        one call at a time; an ``async def`` runs on the event loop that was running when the bus
        started, one at a time as well; one that raises is logged and counted. Without a handler the
        subscription is iterated. ``share``: the fraction of the schedule's period that it can count
        on. ``capacity`` events may wait; then publishers wait (``block``) or events are lost here
        (``drop_oldest``, ``drop_newest``), which the next event's ``missed`` tells. ``where`` is a
        filter on properties, applied by the publishers: comparisons joined by AND.
        """
        self._check_open()
        _refuse_broker(durable=durable, start=start, group=group)
        wanted = Pattern(pattern)
        part = check_share(share)
        if where is not None:
            Where(where)
        if when_full not in _WHEN_FULL:
            raise _bad_policy(when_full)
        if capacity is None:
            capacity = _BATCH_CAPACITY if batch or handler is None else _CAPACITY
        room = _check_capacity(capacity)
        core: Handle | InboxCore
        coroutine = handler is not None and is_coroutine(handler)
        if handler is None or coroutine:
            if part or batch:
                raise ConfigError(
                    "share= and batch= need a handler that is a plain function: a subscription "
                    "that is iterated, or whose handler is a coroutine, runs on a thread of yours",
                    setting="share" if part else "batch",
                )
            if coroutine and self._state == "running" and self._loop is None:
                raise no_loop()
            core = self.node._subscribe_inbox(room, when_full)
        else:
            if not callable(handler):
                raise ConfigError(f"handler {handler!r} cannot be called", setting="handler")
            report = functools.partial(_log_event_failure, wanted.text)
            core = self.node._subscribe(handler, report, batch, room, when_full)
            self.node._share(core, part, f"subscription {wanted.text!r}")
        subscription = Subscription(self, core, wanted, where)
        if coroutine:
            subscription._coroutine = handler
        if part:
            subscription._handled().watched = True
        subscribed = Subscribed(core.flow, wanted.text, core.least_charge, where)
        with self._lock:
            self._subscriptions[core.flow] = subscription
            self._ledger.subscribe(subscribed)
            me = self._peers.get(self.node.id)
            if me is not None:
                me.table.subscriptions[core.flow] = subscribed
                self._came(self.node.id, me, subscribed, wanted)
            self._changed.notify_all()
            if self._state == "running":
                subscription._begin(self._loop)
        return subscription

    def _close_subscription(self, subscription: Subscription) -> None:
        flow = subscription._core.flow
        with self._lock:
            if self._subscriptions.pop(flow, None) is None:
                return
            self._ledger.unsubscribe(flow)
            me = self._peers.get(self.node.id)
            if me is not None:
                gone = me.table.subscriptions.pop(flow, None)
                if gone is not None:
                    self._went(self.node.id, me, gone)
            self._changed.notify_all()

    # --- timers -----------------------------------------------------------------------------

    def every(
        self, period: float, function: Callable[..., Any], *, share: float | None = None
    ) -> Timer:
        """Calls ``function`` every ``period`` seconds, on a scheduler thread. Never blocks.

        The times are those of the first call and of the period, whatever happens between: nothing
        drifts. A function that takes an argument gets an `Event` with ``sequence``, ``late`` (in
        seconds) and ``missed``; a call that is due while the one before has not ended is missed.
        """
        self._check_open()
        part = check_share(share)
        timer = make_timer(self.node, period, function)
        self.node._share(timer._core, part, f"timer {timer.name}")
        with self._lock:
            self._timers = [one for one in self._timers if one.active]
            self._timers.append(timer)
            if self._state == "running":
                timer._start()
        return timer

    # --- what the others have ---------------------------------------------------------------

    def _came(
        self, peer: int, state: _Peer, subscribed: Subscribed, pattern: Pattern | None = None
    ) -> None:
        """A subscription that our publishers may have to serve. With the lock."""
        try:
            pattern = pattern or Pattern(subscribed.pattern)
            if subscribed.where is not None:
                state.filters[subscribed.flow] = Where(subscribed.where)
        except (ConfigError, FilterError) as error:
            log.warning("node %d subscribes to something we cannot serve: %s", peer, error)
            return
        state.patterns[subscribed.flow] = pattern
        self._interest.add(pattern, (peer, subscribed.flow))
        for number in self._topics.matching(pattern):
            self._serve(self._publishers[number], peer, subscribed.flow)

    def _went(self, peer: int, state: _Peer, subscribed: Subscribed) -> None:
        pattern = state.patterns.pop(subscribed.flow, None)
        state.filters.pop(subscribed.flow, None)
        if pattern is None:
            return
        self._interest.remove(pattern, (peer, subscribed.flow))
        for number in self._topics.matching(pattern):
            self._publishers[number]._core.leave(peer, subscribed.flow)

    def _members_changed(self, present: list[Member], gone: list[Member]) -> None:
        """Called by the finder, on its thread."""
        with self._lock:
            if self._state != "running":
                return
            for member in gone:
                self._forget(member.id, member.incarnation)
                self._left[member.id] = member.incarnation
            for member in present:
                self._left.pop(member.id, None)
                state = self._peer(member.id, member.incarnation)
                state.announced = member.version
                if state.address != member.address:
                    state.address = member.address
                    self.node.add_peer(member.id, member.address)
            self._changed.notify_all()

    def _peer(self, id: int, incarnation: int) -> _Peer:
        """What is known of a bus in this life of it. With the lock."""
        state = self._peers.get(id)
        if state is not None and state.table.incarnation != incarnation:
            self._forget(id, state.table.incarnation)
            state = None
        if state is None:
            state = self._peers[id] = _Peer(Table(incarnation))
        return state

    def _forget(self, id: int, incarnation: int) -> None:
        state = self._peers.get(id)
        if state is None or state.itself or state.table.incarnation != incarnation:
            return
        for subscribed in list(state.table.subscriptions.values()):
            self._went(id, state, subscribed)
        del self._peers[id]
        # A shared node's peers are its owner's, who may have given us this one.
        if state.address and self._owns_node:
            with contextlib.suppress(AntiphonError):  # it was never known by its address
                self.node.remove_peer(id)

    def _heard(self, source: int, data: bytes) -> None:
        """A message of another bus, on a scheduler thread."""
        try:
            message = decode(data)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            log.warning("node %d sent an announcement that is none: %s", source, error)
            return
        with self._lock:
            if self._state != "running":
                return
            if isinstance(message, Want):
                state = self._peers.get(source)
                if state is not None:
                    known = message.incarnation == self._ledger.incarnation
                    state.sent = message.have if known else 0
                    state.greeted = False
            elif self._left.get(source) == message.incarnation:
                return  # it came late, and nobody would ever say again that its bus has gone
            else:
                self._last_heard = time.monotonic()
                state = self._peer(source, message.incarnation)
                changed = state.table.apply(message)
                if changed is None:
                    state.behind = True
                else:
                    came, went = changed
                    for subscribed in went:
                        self._went(source, state, subscribed)
                    for subscribed in came:
                        self._came(source, state, subscribed)
            self._changed.notify_all()

    # --- telling them -----------------------------------------------------------------------

    def _run(self) -> None:
        look_due = time.monotonic() + _LOOK_EVERY
        told = -1
        while True:
            with self._lock:
                if self._state == "running" and self._ledger.version == told:
                    self._changed.wait(_SOON if self._owing else _HOUSEKEEPING)
            # Changes come in swarms: they are told together.
            time.sleep(_GATHER)
            watched: list[Subscription] = []
            with self._lock:
                if self._state != "running":
                    return
                self._owing = {one for one in self._owing if not one._core.settle()}
                for one in self._owing:
                    if one._core.owes_large and not self.node._later.busy(_key(one._number)):
                        with contextlib.suppress(AntiphonError):
                            self._later(one._number, one._core.settle_waiting)
                late = time.monotonic() - self._last_heard > _HOUSEKEEPING
                letters = self._letters(late)
                told = self._ledger.version
                if time.monotonic() >= look_due:
                    look_due = time.monotonic() + _LOOK_EVERY
                    watched = [one for one in self._subscriptions.values() if one._watched]
            with contextlib.suppress(Closed):
                self._finder.announce(told)
            for peer, letter in letters:
                self._tell(peer, letter)
            for subscription in watched:
                self._judge(subscription, subscription._handled())

    def _letters(self, late: bool) -> list[tuple[int, bytes]]:
        """What has to be said to whom. With the lock."""
        letters = []
        for peer, state in self._peers.items():
            if state.itself:
                continue
            if not state.greeted or state.sent != self._ledger.version:
                letters.append((peer, encode(self._ledger.since(state.sent))))
                state.sent = self._ledger.version
                state.greeted = True
            # What it announces and we do not know is on its way as a rule: ask when it is late.
            if state.behind or (late and state.announced > state.table.version):
                state.behind = False
                letters.append((peer, encode(Want(state.table.incarnation, state.table.version))))
        return letters

    def _farewells(self) -> list[tuple[int, bytes]]:
        """To everybody: we publish nothing and want nothing any more. With the lock."""
        for number in list(self._ledger.topics):
            self._ledger.unpublish(number)
        for flow in list(self._ledger.subscriptions):
            self._ledger.unsubscribe(flow)
        return self._letters(late=False)

    def _tell(self, peer: int, letter: bytes) -> None:
        later = self.node._later
        try:
            if not later.busy(peer) and self.node._tell(peer, letter, False):
                return
        except AntiphonError:
            pass  # too large for one frame, or not known yet: below it waits, or fails for good
        try:
            later.add(peer, functools.partial(self._tell_now, peer, letter))
        except AntiphonError as error:
            log.info("cannot tell node %d what there is: %s", peer, error)

    def _tell_now(self, peer: int, letter: bytes) -> None:
        try:
            self.node._tell(peer, letter, True)
        except AntiphonError as error:
            log.info("cannot tell node %d what there is: %s", peer, error)
            with self._lock:
                state = self._peers.get(peer)
                if state is not None:
                    state.sent = 0  # it is told everything when it can be reached

    # --- shares and delay -------------------------------------------------------------------

    def _share_of(self, subscription: Subscription) -> float | None:
        core = subscription._core
        if not isinstance(core, Handle) or not core.active:
            return None
        return self.node._shares.share_of(core)

    def _shares_of_others(self, subscription: Subscription) -> float:
        return sum(self.node._shares.held().values()) - (self._share_of(subscription) or 0.0)

    def _give_share(self, subscription: Subscription, share: float) -> None:
        core = subscription._core
        if subscription.closed:
            raise Closed("this subscription is closed; it has no share", what="subscription")
        if not isinstance(core, Handle):
            raise ConfigError("a subscription that is iterated has no share", setting="share")
        self.node._shares.give(core, share, f"subscription {subscription.pattern!r}")
        subscription._handled().watched = True

    def _predict(
        self, subscription: Subscription, meters: Meters, seconds: float = WINDOW
    ) -> DelayModel:
        return predict(
            meters.since(seconds), self._share_of(subscription), self.node.config.schedule.period
        )

    def on_conformance(self, callback: ConformanceCallback) -> ConformanceCallback:
        """``callback(conformance)`` when a subscription has overrun its share or was often full.

        A `Conformance` tells of about one second. It runs on a thread of the bus that also makes
        the announcements: keep it short. Also a decorator. Never blocks.
        """
        self._check_open()
        self._judges.append(callback)
        return callback

    def _judge(self, subscription: Subscription, meters: Meters) -> None:
        """A look at the sums, and what it tells of the time since the last one."""
        sums = meters.step()
        if sums is None or not self._judges or self._share_of(subscription) is None:
            return
        verdict = judge(subscription.pattern, sums)
        if verdict.conformant and verdict.stable:
            return
        for callback in tuple(self._judges):
            try:
                callback(verdict)
            except Exception:
                log.exception("a callback of on_conformance failed")

    # --- looking ----------------------------------------------------------------------------

    def topics(self) -> list[TopicInfo]:
        """The topics that somebody publishes on this channel, as far as this bus knows."""
        self._check_open()
        with self._lock:
            publishers: dict[str, set[int]] = {}
            for peer, state in self._peers.items():
                names = self._ledger.topics if state.itself else state.table.topics
                for name in names.values():
                    publishers.setdefault(name, set()).add(peer)
            return [
                TopicInfo(
                    name,
                    tuple(sorted(ids)),
                    tuple(sorted({who for who, _ in self._interest.matching(name)})),
                )
                for name, ids in sorted(publishers.items())
            ]

    def statistics(self) -> BusStatistics:
        """Counts of this moment."""
        self.node._check_process()
        with self._lock:
            counts = [publisher.statistics() for publisher in self._publishers.values()]
            counts += self._past
            names = {name for state in self._peers.values() for name in state.table.topics.values()}
            names.update(self._ledger.topics.values())
            return BusStatistics(
                publishers=len(self._publishers),
                subscriptions=len(self._subscriptions),
                peers=sum(not state.itself for state in self._peers.values()),
                topics=len(names),
                published=sum(one["published"] for one in counts),
                dropped=sum(one["dropped"] for one in counts),
                lost=sum(one["lost"] for one in counts),
                shares=self.node._shares.held(),
            )

    # --- for the parts ----------------------------------------------------------------------

    def _check_open(self) -> None:
        self.node._check_process()
        if self._state == "closed":
            raise Closed("this bus is closed; make a new one", what="bus")

    def _refuse_to_block(self, call: str, instead: str) -> None:
        refuse_to_block(call, instead)

    def _later(self, number: int, work: Callable[[], None]) -> Future[None]:
        self._check_open()
        return self.node._later.add(_key(number), work)


def _key(number: int) -> int:
    """Of the queue of calls that wait for a publisher, beside those of nodes."""
    return -(1 << 32) - number


class _Peer:
    """Another bus on the channel, or this one. All fields with the bus's lock."""

    def __init__(self, table: Table, itself: bool = False) -> None:
        self.table = table
        self.itself = itself
        self.address = ""
        self.announced = 0
        self.sent = 0
        self.greeted = False
        self.behind = False
        self.patterns: dict[int, Pattern] = {}
        self.filters: dict[int, Where] = {}


def _refuse_broker(**settings: object) -> None:
    for name, value in settings.items():
        if value is not None and value is not False:
            raise ConfigError(
                f"{name}= needs a broker; this bus has none (its address would be tcp://...)",
                setting=name,
                value=value,
            )


def _check_capacity(capacity: object) -> int:
    whole = isinstance(capacity, int) and not isinstance(capacity, bool)
    if not whole or not 1 <= capacity <= 2**24:  # type: ignore[operator]
        raise ConfigError(
            f"capacity {capacity!r}: give a whole number from 1 to {2**24}",
            setting="capacity",
            value=capacity,
        )
    return capacity  # type: ignore[return-value]


def _bad_policy(when_full: object) -> ConfigError:
    return ConfigError(
        f"when_full {when_full!r}: one of {', '.join(_WHEN_FULL)}",
        setting="when_full",
        value=when_full,
    )


def _log_failure(kind: int, source: int, error: BaseException) -> None:
    log.error("an announcement of node %d failed", source, exc_info=error)


def _log_event_failure(pattern: str, kind: int, source: int, error: BaseException) -> None:
    log.error(
        "the handler of subscription %r failed on an event of node %d",
        pattern,
        source,
        exc_info=error,
    )


_decode_properties = msgspec.msgpack.Decoder(dict[str, str | int | float | bool]).decode


def _properties(data: bytes) -> dict[str, str | int | float | bool]:
    try:
        return _decode_properties(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ProtocolError(f"the properties of this event are none: {error}") from None


def _message(type: type[Message], data: bytes) -> Message:
    try:
        return decoder_for(type)(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ProtocolError(f"this event is no {type.__name__}: {error}") from None


set_event_hooks(_properties, _message)

_running: set[Bus] = set()


def _close_running() -> None:
    for bus in list(_running):
        bus.close(drain=1.0)


# As with nodes: before `threading` joins its own threads.
threading._register_atexit(_close_running)  # type: ignore[attr-defined]
