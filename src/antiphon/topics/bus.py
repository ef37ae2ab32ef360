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
from collections import deque
from collections.abc import Callable
from typing import Any, Self, TypeVar

import msgspec

from antiphon import settings
from antiphon._core import Handle, InboxCore, OutboxCore, PublisherCore, set_event_hooks
from antiphon.errors import (
    AntiphonError,
    Closed,
    ConfigError,
    ProtocolError,
)
from antiphon.node import TLS, Future, Node, NodeConfig
from antiphon.node.config import Insecure, check_flag, check_type
from antiphon.node.coroutines import is_coroutine, no_loop
from antiphon.node.later import Later
from antiphon.node.life import Owner, begin, end
from antiphon.node.loops import refuse_to_block
from antiphon.node.shares import check_share
from antiphon.topics.announcements import Subscribed, Update
from antiphon.topics.asking import Claim
from antiphon.topics.brokered import BrokerFinder
from antiphon.topics.channels import open_channel
from antiphon.topics.client import Client
from antiphon.topics.config import BusConfig
from antiphon.topics.conformance import Conduct, Conformance
from antiphon.topics.content import Filter, read_where
from antiphon.topics.finder import Member
from antiphon.topics.kinds import Topic, pattern_of, text_of, topic_of
from antiphon.topics.model import WINDOW, DelayModel, Meters, Threads, predict
from antiphon.topics.names import Pattern, TopicIndex
from antiphon.topics.neighbours import HOUSEKEEPING, Interest, Interests, Neighbours
from antiphon.topics.publisher import Publisher, encode_properties
from antiphon.topics.recorded import Recorded
from antiphon.topics.rights import Word
from antiphon.topics.statistics import BusStatistics, TopicInfo
from antiphon.topics.subscription import Subscription
from antiphon.topics.timer import Timer, make_timer
from antiphon.topics.twins import as_future, close_later
from antiphon.topics.wishes import Start, check_name, make_wish
from antiphon.wire.message import Message, decoder_for

__all__ = ["Bus"]

log = logging.getLogger("antiphon.topics")

_CAPACITY, _BATCH_CAPACITY = 4096, 65536
_SOON = 0.01
_GATHER = 0.002
_LOOK_EVERY = 1.0
_COUNTS = ("published", "dropped", "lost")
_DRAIN = 5.0
_WHEN_FULL = ("block", "drop_oldest", "drop_newest")

Handler = Callable[[Any], Any]
ConformanceCallback = TypeVar("ConformanceCallback", bound=Callable[[Conformance], Any])


class Bus(Owner):
    """Publish and subscribe by topic, on a channel that all parties name alike.

    ``local://name`` is this machine (and this user), with nothing to configure;
    ``mcast://239.77.0.1:7777`` a multicast group, peer-to-peer; ``tcp://host:7000`` a broker, to
    which ``token`` says who this is. The bus owns a node, or shares ``node``. ``secret`` and
    ``tls`` are the node's; see `Node`. ``with bus:`` starts it and closes it. All methods are
    thread-safe; handlers run on the node's scheduler threads.
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
        check_type("node", node, Node)
        check_type("config", config, BusConfig)
        check_type("node_config", node_config, NodeConfig)
        self.config = settings.complete(BusConfig, "bus", config)
        self.address = address
        """The channel, as it was given."""
        super().__init__()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._served = threading.Condition()  # for those who wait for subscribers
        self._owns_node = node is None
        # First: a second bus on a node is to hear of that, and not that its id is taken.
        handle = None if node is None else self._listen(node)
        try:
            self._channel = open_channel(
                address, self.config, node, secret, tls, node_config, token
            )
        except BaseException:
            if handle is not None:
                handle.close()
            raise
        self._finder = self._channel.finder
        self._recorded = (
            Recorded(self, self._finder) if isinstance(self._finder, BrokerFinder) else None
        )
        self._asks = self._finder.asks
        self._client = Client(self._finder, address)
        try:
            self.node = self._channel.make_node() if node is None else node
            self._control = handle or self._listen(self.node)
        except BaseException:
            self._finder.close()
            raise
        self._ledger.token = token
        self._numbers = itertools.count(1)
        self._publishers: dict[int, Publisher] = {}
        self._topics: TopicIndex[int] = TopicIndex()
        self._subscriptions: dict[int, Subscription] = {}
        self._interests = Interests()
        self._timers: list[Timer] = []
        self._owing: set[Publisher] = set()
        self._ending: list[Subscription] = []
        self._unwanted: deque[Callable[[], object]] = deque()  # to be closed, when there is room
        self._past: list[dict[str, int]] = []
        self._told = -1
        self._look_due = 0.0
        self._conduct = Conduct()
        self._asking = Later()  # not the node's: what asks a broker that is away takes long
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def _listen(self, node: Node) -> Handle:
        self._neighbours = Neighbours(node, self, self._changed, owns_node=self._owns_node)
        self._ledger = self._neighbours.ledger
        return self._neighbours.listen()

    # --- life -------------------------------------------------------------------------------

    def start(self) -> Self:
        """Joins the channel. ``with bus:`` does it."""
        self.node._check_process()
        loop = asyncio._get_running_loop()
        with self._lock:
            coroutines = any(one._coroutine for one in self._subscriptions.values())
            if coroutines and loop is None and self._state == "new":
                raise no_loop("bus")
        if self._asks and loop is None:
            self._prepare()
        with self._lock:
            if self._state == "running":
                return self
            if self._state == "closed":
                raise Closed("this bus was closed; make a new one", what="bus")
            self._loop = loop
            self.node.start()
            self.node._settle_id()
            self._neighbours.begin()
            if self._recorded is not None:
                self._recorded.start()
            for subscribed in self._ledger.subscriptions.values():
                self._came(self.node.id, self.node._incarnation, subscribed)
            self._state = "running"
            for publisher in self._publishers.values():
                if isinstance(publisher._core, PublisherCore):
                    publisher._core.set_started(True)
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
        begin(self)
        return self

    def _prepare(self) -> None:
        self.node._check_process()
        if self._state != "new":
            return
        self.node.start()
        try:
            self._finder.prepare()
            with self._lock:
                self._client.check(self._ledger)
        except BaseException:
            self._close_now(0.0)
            raise

    def _close_now(self, drain: float) -> None:
        if self._recorded is not None and self._state == "running":
            self._recorded.drain(max(0.0, drain))
        with self._lock:
            before, self._state = self._state, "closed"
            self._changed.notify_all()
            publishers = list(self._publishers.values())
            subscriptions = list(self._subscriptions.values())
            timers = list(self._timers)
            farewells = self._neighbours.end()
        if before == "closed":
            return
        end(self)
        until = time.monotonic() + drain
        with contextlib.ExitStack() as stack:  # backwards; Ctrl-C ends the patience, not the rest
            stack.callback(self._end_waits)
            stack.callback(self._asking.close)
            stack.callback(self._wake)
            stack.callback(self._interests.judge.close)
            for publisher in publishers:
                stack.callback(publisher._core.close)
            stack.callback(self._finder.close)
            if not self._owns_node:
                stack.callback(self._control.close)
                for subscription in subscriptions:
                    stack.callback(subscription.close)
                for timer in timers:
                    stack.callback(timer.close)
            # First nobody sends to us any more, then what is here is handled, and only then is our
            # id free for another.
            try:
                self._neighbours.tell(farewells)
                if self._thread is not None and self._thread is not threading.current_thread():
                    self._thread.join(5.0)
                until = time.monotonic() + drain
                for publisher in publishers if drain > 0 and before == "running" else ():
                    if isinstance(publisher._core, PublisherCore):
                        with contextlib.suppress(AntiphonError):
                            publisher._core.flush_queue(max(0.0, until - time.monotonic()))
                while time.monotonic() < until and any(one._busy for one in subscriptions):
                    time.sleep(0.002)  # coroutines run on their own loop
            except BaseException:
                until = 0.0
                raise
            finally:
                if self._owns_node:
                    self.node._close_now(max(0.0, until - time.monotonic()) if drain > 0 else 0.0)

    _name = "bus"

    def __repr__(self) -> str:
        state = "closed" if self.closed else self._state
        return f"<Bus {self.address} of node {self.node.id} {state}>"

    # --- publishing -------------------------------------------------------------------------

    def publisher(
        self,
        topic: Topic,
        *,
        share: float | None = None,
        capacity: int = _CAPACITY,
        when_full: str = "block",
        retain: bool = False,
        record: bool = False,
    ) -> Publisher:
        """A `Publisher` of one topic. Never blocks.

        A topic is a name of levels joined by ``/``, without wildcards, a number of 64 bits, or a
        `Tag` with a value.
        ``when_full``: what happens when a subscription has no room; ``block``: `publish` waits,
        ``drop_newest``: that subscription misses the event. With a ``share`` the publisher is a
        task with a queue of ``capacity`` events, which scheduler threads send; `publish` returns
        when the event is in the queue, and ``when_full`` is about that one. So it is, also without
        a share, for ``drop_oldest``. ``retain``: the last event is kept, and whoever subscribes
        later gets it first.

        ``record``: a broker records the topic in its store, all of it, and every event is sent
        until it is in the log: `Publisher.flush` waits for that. Asks the broker, so it may block
        for 5 seconds; raises `ConfigError` without a broker, or if that has no store, and
        `PeerUnreachable` when it is not there. What is not recorded yet is kept here, up to 65,536
        events or 32 MiB; then `Publisher.publish` waits. A ``share`` and another ``when_full``
        than ``block`` do not go with it.
        """
        self._check_open()
        check_flag("retain", retain)
        if when_full not in _WHEN_FULL:
            raise _bad_policy(when_full)
        part, room = check_share(share), _check_capacity(capacity)
        # Without a share an event goes straight into the rings. To lose the oldest there must be
        # a queue in which it waits.
        own_queue = room if part or when_full == "drop_oldest" else 0
        name = text_of(topic)
        with self._lock:
            self._client.may_publish(name, record, len(self._publishers))
            number = next(self._numbers)
        recording: Publisher | None = None
        if record:
            if part or retain or when_full != "block":
                raise ConfigError(
                    "share=, retain= and when_full= do not go with record=True: every event waits "
                    "until it is recorded, and a subscription begins where start= says",
                    setting="record",
                )
            recording = self._behind("record").publisher(name, number)
        with self._lock:
            if recording is None:
                core = self.node._publisher(
                    number, name, when_full, retain, own_queue, encode_properties
                )
                self.node._share(core, part, f"publisher {topic!r}")
                core.set_started(self._state != "new")
                publisher = Publisher(self, core, name, number, retain)
            else:
                publisher = recording
            self._publishers[number] = publisher
            self._topics.add(name, number)
            for interest in self._interests.matching(name):
                self._serve(publisher, interest)
            self._ledger.publish(number, name)
            self._changed.notify_all()
        return publisher

    publisher_async = as_future(publisher)

    def _close_publisher(self, publisher: Publisher) -> None:
        if self.node._forked:
            return
        try:
            publisher._core.close(_DRAIN if self._state == "running" else 0.0)
        finally:  # closed all the same, if Ctrl-C ended the patience
            with self._lock:
                self._owing.discard(publisher)
                if self._recorded is not None:
                    self._recorded.forget(publisher._number)
                if self._publishers.pop(publisher._number, None) is not None:
                    self._past.append(publisher.statistics())
                    self._past = [{name: sum(one[name] for one in self._past) for name in _COUNTS}]
                    self._topics.remove(publisher._text, publisher._number)
                    self._ledger.unpublish(publisher._number)
                    self._changed.notify_all()
            self._wake()

    def _serve(self, publisher: Publisher, interest: Interest) -> None:
        core = publisher._core
        if interest.peer == self.node.id and self._recorded is not None:
            # What a broker records comes from its log, for everybody.
            recorded = isinstance(core, OutboxCore) or publisher._text in self._recorded.topics
            shared = interest.wish is not None and (interest.wish.durable or interest.wish.group)
            if recorded or shared:
                return
        interest.serve(core)
        if publisher._retain and isinstance(core, PublisherCore) and not core.settle():
            self._owing.add(publisher)
        self._wake()

    # --- subscribing ------------------------------------------------------------------------

    def subscribe(
        self,
        pattern: Topic,
        handler: Handler | None = None,
        *,
        share: float | None = None,
        capacity: int | None = None,
        when_full: str = "block",
        where: Filter | None = None,
        batch: bool = False,
        durable: str | None = None,
        start: Start = None,
        speed: float | None = None,
        group: str | None = None,
        ack: str = "auto",
    ) -> Subscription:
        """Asks for the events of all topics that match. Never blocks.

        In ``pattern`` ``*`` stands for one level of a name, ``**`` for any number; it can also be a
        number, or a `Tag` with one value or without, for all. ``handler(event)`` (with
        ``batch=True`` ``handler(batch)``, an `EventBatch` of one topic) runs on scheduler threads,
        one call at a time; an ``async def`` runs on the event loop that was running when the bus
        started, one at a time as well; one that raises is logged and counted. Without a handler the
        subscription is iterated. ``share``: the fraction of the schedule's period that it can count
        on. ``capacity`` events may wait; then publishers wait (``block``) or events are lost here
        (``drop_oldest``, ``drop_newest``), which the next event's ``missed`` tells; with
        ``disconnect`` a broker ends one that has held up its topic for ``max_block``
        seconds, and whoever reads it finds `QueueFull` behind the last event. ``where`` is a
        filter, applied by the publishers: on properties a condition of SQL-92, such as
        ``price > 100 AND region IN ('EU', 'UK')``; on the data a `Regex` or an `XPath`; `AllOf`
        joins them.

        The rest needs a broker, is asked of it, so that the call may block for 5 seconds, and
        raises `ConfigError` without one. It returns when the broker has the subscription: whatever
        is recorded from then on is delivered; the handler may be called before. ``start``: what the
        broker has recorded comes first, from ``earliest``, ``latest``, a sequence (of one topic) or
        an aware datetime on, ``speed`` times as fast as it was published, or as fast as it goes.
        ``durable``: the broker keeps the position of that name, and hands out again what was not
        acknowledged. ``group``: each event goes to one of those who give that name. An event of
        those two is acknowledged when its handler returns, or the next one is read, and comes again
        when the handler raises; with ``ack="manual"`` by `Event.ack` and `Event.nack`.
        """
        self._check_open()
        wanted = pattern_of(pattern)
        self._client.may_subscribe(wanted.text, len(self._subscriptions))
        part = check_share(share)
        check_flag("batch", batch)
        selector, content = read_where(where)
        ends = when_full == "disconnect"
        if ends and not self._client.brokered:
            raise ConfigError(
                "when_full='disconnect' is done by a broker; this channel has none",
                setting="when_full",
                value=when_full,
            )
        policy = "block" if ends else when_full
        if policy not in _WHEN_FULL:
            raise _bad_policy(when_full, "disconnect")
        if capacity is None:
            capacity = _BATCH_CAPACITY if batch or handler is None else _CAPACITY
        room = _check_capacity(capacity)
        wish = make_wish(
            wanted,
            durable=durable,
            start=start,
            speed=speed,
            group=group,
            ack=ack,
            capacity=room,
        )
        if wish is not None:
            given = {"durable": durable, "start": start, "speed": speed, "group": group}
            setting = next(name for name, value in given.items() if value is not None)
            replays = start is not None or speed is not None
            claim = Claim(wanted.text, durable, group, replays)
            call, remembering = f"subscribe({setting}=...)", self._behind(setting)
            until = remembering.patience()
            remembering.claim(claim, call, until)
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
                raise no_loop("bus")
            core = self.node._subscribe_inbox(room, policy)
            if coroutine:
                core.hold()
        else:
            if not callable(handler):
                raise ConfigError(
                    f"handler {handler!r} cannot be called; give a function of one event",
                    setting="handler",
                )
            report = functools.partial(_log_event_failure, pattern)
            core = self.node._subscribe(handler, report, batch, room, policy)
            if part:
                self._conduct.patterns[core] = str(pattern)
            self.node._share(core, part, f"subscription {pattern!r}")
        subscription = Subscription(self, core, wanted, where)
        subscription._ends = ends
        if coroutine:
            subscription._coroutine = handler
        if part:
            subscription._handled().watched = True
        if durable is not None or group is not None:
            core.acknowledge(ack == "manual" or coroutine)
            subscription._named = True
            subscription._settles = coroutine and ack == "auto"
        subscribed = Subscribed(
            core.flow, wanted.text, core.least_charge, selector, content, ends, wish
        )
        with self._lock:
            self._subscriptions[core.flow] = subscription
            self._ledger.subscribe(subscribed)
            me = self._neighbours.all.get(self.node.id)
            if me is not None:
                me.table.subscriptions[core.flow] = subscribed
                self._came(self.node.id, self.node._incarnation, subscribed, wanted)
            self._changed.notify_all()
            if self._state == "running":
                subscription._begin(self._loop)
        if wish is not None:
            try:
                remembering.settle(core.flow, call, until)
            except BaseException:
                subscription.close()
                raise
        return subscription

    subscribe_async = as_future(subscribe)

    def _close_subscription(self, subscription: Subscription) -> None:
        flow = subscription._core.flow
        with self._lock:
            if self._subscriptions.pop(flow, None) is None:
                return
            self._ledger.unsubscribe(flow)
            me = self._neighbours.all.get(self.node.id)
            if me is not None:
                gone = me.table.subscriptions.pop(flow, None)
                if gone is not None:
                    self._went(self.node.id, gone)
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
        self,
        peer: int,
        incarnation: int,
        subscribed: Subscribed,
        pattern: Pattern | None = None,
    ) -> None:
        """A subscription that our publishers may have to serve. With the lock."""
        interest = self._interests.add(peer, incarnation, subscribed, pattern)
        if interest is not None:
            for number in self._topics.matching(interest.pattern):
                self._serve(self._publishers[number], interest)

            if subscribed.recorded and self._recorded is not None:
                self._recorded.topics.add(subscribed.pattern)
                for number in self._topics.matching(interest.pattern):
                    for own in self._interests.matching(self._publishers[number]._text):
                        if own.peer == self.node.id:
                            self._publishers[number]._core.leave(own.peer, own.flow)

    def _went(self, peer: int, subscribed: Subscribed) -> None:
        interest = self._interests.remove(peer, subscribed.flow)
        if interest is None:
            return
        for number in self._topics.matching(interest.pattern):
            self._publishers[number]._core.leave(peer, subscribed.flow)
        if subscribed.recorded and self._recorded is not None and self._client.stopping:
            self._recorded.begin(0)

    def _topic_came(self, peer: int, number: int, name: str) -> None:
        """Nothing to do: whoever wants it has said so."""

    def _topic_went(self, peer: int, number: int, name: str) -> None:
        """As above."""

    def _admits(self, peer: int, update: Update) -> bool:
        if self._recorded is not None:
            self._recorded.hear(peer, update.incarnation)
        return True

    def _shown(self, peer: int, update: Update) -> Update:
        return update

    def _word(self, peer: int, word: Word) -> bytes | None:
        """Of the broker. With the lock."""
        flow, reason = self._client.hear(peer, word)
        subscription = self._subscriptions.get(flow)
        if subscription is not None and subscription._ended is None:
            subscription._ended = reason
            self._ledger.unsubscribe(flow)
            self._ending.append(subscription)
            log.warning("the broker has ended subscription %r: %s", subscription.pattern, reason)
        return None

    def _end(self, subscription: Subscription) -> bool:
        """Whether it could be closed: what it got before is still for its reader. With the lock."""
        if not subscription.closed and subscription._unhandled():
            return False
        with contextlib.suppress(AntiphonError):
            self._later(subscription._core.flow, subscription.close)
        return True

    # --- the thread -------------------------------------------------------------------------

    def _turn(self) -> None:
        with self._lock:
            if self._state == "running" and self._ledger.version == self._told:
                self._changed.wait(_SOON if self._owing else HOUSEKEEPING)
        # Changes come in swarms: they are told together.
        time.sleep(_GATHER)
        watched: list[Subscription] | None = None
        with self._lock:
            if self._state != "running":
                return
            self._owing = {one for one in self._owing if not _core(one).settle()}
            for one in self._owing:
                if _core(one).owes_large and not self.node._later.busy(_key(one._number)):
                    with contextlib.suppress(AntiphonError):
                        self._later(one._number, _core(one).settle_waiting)
            self._ending = [one for one in self._ending if not self._end(one)]
            letters = self._neighbours.letters()
            self._told = told = self._ledger.version
            if time.monotonic() >= self._look_due:
                self._look_due = time.monotonic() + _LOOK_EVERY
                watched = [one for one in self._subscriptions.values() if one._watched]
        for _ in range(len(self._unwanted)):
            close_later(self, self._unwanted.popleft())
        with contextlib.suppress(Closed):
            self._finder.announce(told)
        self._neighbours.tell(letters)
        if self._recorded is not None:
            self._recorded.turn()
        if watched is not None:
            self._look(watched)

    # --- shares and delay -------------------------------------------------------------------

    def _share_of(self, subscription: Subscription) -> float | None:
        self.node._check_process()
        core = subscription._core
        if not isinstance(core, Handle) or not core.active:
            return None
        return self.node._shares.share_of(core)

    def _shares_of_others(self, subscription: Subscription) -> float:
        return sum(self.node._shares.held().values()) - (self._share_of(subscription) or 0.0)

    def _give_share(self, subscription: Subscription, share: float) -> None:
        self.node._check_process()
        core = subscription._core
        if subscription.closed:
            raise Closed("this subscription is closed; it has no share", what="subscription")
        if not isinstance(core, Handle):
            raise ConfigError(
                "a subscription that is iterated, or whose handler is a coroutine, has no share",
                setting="share",
            )
        self._conduct.patterns[core] = str(subscription.pattern)
        self.node._shares.give(core, share, f"subscription {subscription.pattern!r}")
        subscription._handled().watched = True

    def _predict(
        self, subscription: Subscription, meters: Meters, seconds: float = WINDOW
    ) -> DelayModel:
        self.node._check_process()
        return predict(
            meters.since(seconds), self._share_of(subscription), self.node.config.schedule.period
        )

    def on_conformance(self, callback: ConformanceCallback) -> ConformanceCallback:
        """``callback(conformance)`` when somebody has overrun a share or was often full.

        Told are subscriptions, timers and publishers with a share, and handlers of the node. A
        `Conformance` tells of about one second. It runs on a thread of the bus that also makes
        the announcements: keep it short. Also a decorator. Never blocks.
        """
        self._check_open()
        if not callable(callback):
            raise ConfigError(f"callback {callback!r} cannot be called", setting="callback")
        self._conduct.callbacks.append(callback)
        return callback

    def _look(self, watched: list[Subscription]) -> None:
        """Once a second, at what predictions will need, and at who keeps to their shares."""
        for subscription in watched:
            subscription._handled().look()
        for holder, name in self.node._shares.holders():
            # A callback may close what comes later, or the bus, or take a share away.
            if self._state != "running":
                return
            if holder.active and self.node._shares.share_of(holder) is not None:
                self._conduct.look(holder, name)

    # --- looking ----------------------------------------------------------------------------

    def topics(self) -> list[TopicInfo]:
        """The topics that somebody publishes on this channel, as far as this bus knows."""
        self._check_open()
        with self._lock:
            publishers: dict[str, set[int]] = {}
            for peer, state in self._neighbours.all.items():
                names = self._ledger.topics if state.itself else state.table.topics
                for name in names.values():
                    publishers.setdefault(name, set()).add(peer)
            return [
                TopicInfo(
                    topic_of(name),
                    tuple(sorted(ids)),
                    tuple(sorted({one.peer for one in self._interests.matching(name)})),
                )
                for name, ids in sorted(publishers.items())
            ]

    def statistics(self) -> BusStatistics:
        """Counts of this moment."""
        self.node._check_process()
        with self._lock:
            counts = [publisher.statistics() for publisher in self._publishers.values()]
            counts += self._past
            others = self._neighbours.all.values()
            names = {name for one in others for name in one.table.topics.values()}
            names.update(self._ledger.topics.values())
            usage = self.node._schedule_usage()
            threads = Threads.of(usage)
            return BusStatistics(
                publishers=len(self._publishers),
                subscriptions=len(self._subscriptions),
                peers=self._neighbours.others,
                topics=len(names),
                published=sum(one["published"] for one in counts),
                dropped=sum(one["dropped"] for one in counts),
                lost=sum(one["lost"] for one in counts),
                content=self._interests.judge.statistics(),
                shares=self.node._shares.held(),
                threads=int(usage["threads"]),
                at_once=threads.at_once,
                running=threads.running,
                largest_share=threads.largest_share,
            )

    # --- what only a broker can do ----------------------------------------------------------

    def forget(self, durable: str) -> None:
        """The broker forgets that durable subscription and its position. Blocks for a round trip.

        Whoever holds it has a second to leave, as one that was just closed does. Raises
        `ConfigError` when there is none, when somebody holds it, or without a broker.
        """
        self._check_open()
        name = check_name("durable", durable)
        self._behind("durable").forget_name(name)

    forget_async = as_future(forget)

    def _members_changed(self, present: list[Member], gone: list[Member]) -> None:
        if self._recorded is None:
            self._neighbours.changed(present, gone)
            return
        if gone:
            self._recorded.remember()
        with self._lock:
            self._neighbours.changed(present, gone)
            if self._recorded.life in (one.incarnation for one in gone):
                self._recorded.begin(0)

    def _behind(self, setting: str) -> Recorded:
        if self._recorded is None:
            raise ConfigError(
                f"{setting}= needs a broker, and {self.address} has none; give a bus the address "
                "of one, such as tcp://host:7000",
                setting=setting,
            )
        return self._recorded

    # --- for the parts ----------------------------------------------------------------------

    def _wake(self) -> None:
        with self._served:
            self._served.notify_all()

    def _refuse_to_block(self, call: str, instead: str) -> None:
        refuse_to_block(call, instead)

    def _later(self, number: int, work: Callable[[], None]) -> Future[None]:
        self._check_open()
        return self.node._later.add(_key(number), work)


def _key(number: int) -> int:
    """Of the queue of calls that wait for a publisher, beside those of nodes."""
    return -(1 << 32) - number


def _core(publisher: Publisher) -> PublisherCore:
    """Of one that keeps its last event."""
    assert isinstance(publisher._core, PublisherCore)
    return publisher._core


def _check_capacity(capacity: object) -> int:
    whole = isinstance(capacity, int) and not isinstance(capacity, bool)
    if not whole or not 1 <= capacity <= 2**24:  # type: ignore[operator]
        raise ConfigError(
            f"capacity {capacity!r}: give a whole number from 1 to {2**24}",
            setting="capacity",
            value=capacity,
        )
    return capacity  # type: ignore[return-value]


def _bad_policy(when_full: object, *more: str) -> ConfigError:
    return ConfigError(
        f"when_full {when_full!r}: one of {', '.join((*_WHEN_FULL, *more))}",
        setting="when_full",
        value=when_full,
    )


def _log_event_failure(pattern: Topic, kind: int, source: int, error: BaseException) -> None:
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


set_event_hooks(_properties, _message, topic_of)
