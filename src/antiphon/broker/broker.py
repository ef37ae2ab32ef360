"""The broker itself: who publishes what, who wants it, and the routes between them.

A topic that somebody publishes and somebody else wants gets a subscription of the broker, with a
queue of its own; every publisher of it gets a route, which sends its events to all that want them
and is not it. Events pass through the core (``native/bindings/relay.cpp``); what is done here
is done once per publisher and subscription.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import os
import secrets
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Self

from antiphon._core import Handle, PublisherCore, RecorderCore
from antiphon.broker.config import BrokerConfig
from antiphon.broker.durable import Deliveries
from antiphon.broker.questions import answer_questions
from antiphon.broker.recording import Recording, open_store
from antiphon.broker.remembering import Remembering
from antiphon.broker.routes import Route, Topic, meant, named
from antiphon.errors import AntiphonError, Closed, ConfigError
from antiphon.node import TLS, Node, NodeConfig
from antiphon.node.config import Insecure
from antiphon.node.life import Owner, begin, end
from antiphon.topics.announcements import Subscribed, Want, encode
from antiphon.topics.names import TopicIndex, check_topic
from antiphon.topics.neighbours import HOUSEKEEPING, Interest, Interests, Neighbours
from antiphon.topics.publisher import encode_properties

__all__ = ["Broker", "BrokerStatistics"]

log = logging.getLogger("antiphon.broker")

_IDS = range(32768, 36864)  # nodes draw theirs from those above
_GATHER = 0.002
_SOON = 0.01
_LINGER = 1.0  # of a way through the broker that nobody needs any more
_IDLE = 5.0  # of a route whose publisher has gone
_NUMBER_RESTS = 60.0  # before it is used again: events of the one before may wait somewhere
_TIDY_EVERY = 0.25
_GHOST = 2.0  # of a client without a connection
_SILENCE = 0.5  # of a client that has connected, until it is asked
_MOST_QUESTIONS = 3
_COUNTS = ("published", "dropped", "lost")


@dataclass(frozen=True)
class BrokerStatistics:
    """Counts of this moment."""

    clients: int
    """Buses that are connected."""
    topics: int
    """Topics that clients publish."""
    subscriptions: int
    """Subscriptions of all clients."""
    routes: int
    """Publishers whose events pass through here."""
    relayed: int
    """Events that came, whoever wanted them."""
    dropped: int
    """Events that a subscription missed because it had no room for too long."""
    lost: int
    """Events for subscriptions that could not be reached."""
    recorded: int = 0
    """Events that were written to logs."""


class Broker(Remembering, Owner):
    """Passes events on between the buses whose address it is.

    ``Broker("tcp://127.0.0.1:7000")`` is the broker of every ``Bus("tcp://127.0.0.1:7000")``.
    ``secret`` and ``tls`` are as for a `Node`: off loopback one of them is needed. ``store`` is the
    directory of what it records; with ``fsync`` it overrides the settings. ``with broker:`` starts
    it and closes it. All methods are thread-safe.
    """

    _name = "broker"

    def __init__(
        self,
        listen: str = "tcp://127.0.0.1:7000",
        *,
        id: int | None = None,
        secret: str | bytes | Insecure | None = None,
        tls: TLS | None = None,
        store: str | os.PathLike[str] | None = None,
        fsync: str | None = None,
        config: BrokerConfig | None = None,
        node_config: NodeConfig | None = None,
    ) -> None:
        super().__init__()
        given = {"store": None if store is None else os.fspath(store), "fsync": fsync}
        told: dict[str, Any] = {name: one for name, one in given.items() if one is not None}
        if config is None:
            self.config = BrokerConfig.load(**told)
        else:
            self.config = dataclasses.replace(config, **told) if told else config
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # Never one that a client draws: neither could give it up when the broker is back.
        number = secrets.choice(_IDS) if id is None else id
        self.node = Node(number, listen=listen, secret=secret, tls=tls, config=node_config)
        self._neighbours = Neighbours(self.node, self, self._changed, owns_node=True, dials=False)
        self._ledger = self._neighbours.ledger
        self._ledger.version = 1  # clients expect a word even when there is nothing yet
        self._neighbours.listen()
        answer_questions(self.node, self)
        self._recording: Recording | None = None
        self._deliveries: Deliveries | None = None
        self.node.on_connected(self._connected)
        self.node.on_disconnected(self._disconnected)
        self._numbers = itertools.count(1)
        self._free_numbers: deque[tuple[float, int]] = deque()
        self._interests = Interests()
        self._topics: dict[str, Topic] = {}
        self._numbered: dict[int, Topic] = {}
        self._index: TopicIndex[int] = TopicIndex()
        self._unneeded: dict[Topic, float] = {}
        self._stale: dict[Route, tuple[float, int]] = {}
        self._owing: set[Route] = set()
        self._silent: dict[int, tuple[float, int]] = {}
        self._absent: dict[int, float] = {}
        self._past = dict.fromkeys(_COUNTS, 0)
        self._told = -1
        self._tidy_due = 0.0
        self._thread: threading.Thread | None = None

    # --- life -------------------------------------------------------------------------------

    def start(self) -> Self:
        """Listens from now on. ``with broker:`` does it."""
        self.node._check_process()
        with self._lock:
            if self._state == "running":
                return self
            if self._state == "closed":
                raise Closed("this broker was closed; make a new one", what="broker")
            if self.config.store is not None:
                store = open_store(
                    self.config.store, self.config, self.node.config.max_message_bytes
                )
                self._recording = Recording(self.node, store, self.config)
            try:
                recording = self._recording
                self._deliveries = Deliveries(
                    self.node, self.config, None if recording is None else recording.store
                )
                for name in [] if recording is None else recording.known():
                    self._topic(name)
                self._neighbours.begin()
                self.node.start()
            except BaseException:
                if self._recording is not None:
                    self._recording.close()
                raise
            self._state = "running"
        self._thread = threading.Thread(target=self._run, name="ap-broker", daemon=True)
        self._thread.start()
        begin(self)
        return self

    def _close_now(self, drain: float) -> None:
        with self._lock:
            before, self._state = self._state, "closed"
            self._changed.notify_all()
            farewells = self._neighbours.end()
        if before == "closed":
            return
        end(self)
        # First publishers send no more, then what is here goes on its way.
        self._neighbours.tell(farewells)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)
        with self._lock:
            if self._recording is not None:
                self._recording.end()
            if self._deliveries is not None:
                self._deliveries.end()
        try:
            self.node._close_now(drain)
        finally:
            with self._lock:
                routes = self._routes()
            for route in routes:
                route.core.close()
            if self._deliveries is not None:
                self._deliveries.write(self._deliveries.moved())
            if self._recording is not None:
                self._recording.close()

    @property
    def address(self) -> str:
        """Where it listens; a port 0 has become a real one once it is started."""
        return self.node.address

    def __repr__(self) -> str:
        return f"<Broker {self.address} of node {self.node.id} {self._state}>"

    # --- clients ----------------------------------------------------------------------------

    def _connected(self, peer: int, how: str) -> None:
        with self._lock:
            if peer not in self._neighbours.all:
                self._silent[peer] = time.monotonic() + _SILENCE, 0

    def _disconnected(self, peer: int, reason: str) -> None:
        with self._lock:
            self._silent.pop(peer, None)
            if self._state == "running":
                self._neighbours.forget(peer)
                self._changed.notify_all()

    def _questions(self, now: float) -> list[tuple[int, bytes]]:
        """To clients that have connected and said nothing. With the lock.

        What one said may have been forgotten again, when its connection ended and began anew at
        that moment.
        """
        letters = []
        for peer, (due, asked) in list(self._silent.items()):
            if peer in self._neighbours.all or asked == _MOST_QUESTIONS:
                del self._silent[peer]
            elif now >= due:
                self._silent[peer] = now + _SILENCE, asked + 1
                letters.append((peer, encode(Want(0, 0))))
        return letters

    def _ghosts(self, now: float) -> None:
        """Forgets clients that have no connection. With the lock.

        As a rule the end of a connection does it, but what a client said last may be read later.
        """
        connected = self.node._is_connected
        self._absent = {
            peer: self._absent.get(peer, now)
            for peer, one in self._neighbours.all.items()
            if not one.itself and not connected(peer)
        }
        for peer, since in list(self._absent.items()):
            if now - since > _GHOST:
                del self._absent[peer]
                self._neighbours.forget(peer)

    # --- what they publish ------------------------------------------------------------------

    def _topic_came(self, peer: int, number: int, name: str) -> None:
        try:
            topic = self._topic(check_topic(name))
        except ConfigError as error:
            log.warning("client %d publishes something that is no topic: %s", peer, error)
            return
        if not topic.publishers:
            self._ledger.publish(topic.number, name)
        topic.publishers[peer] += 1
        route = topic.routes.get((peer, number))
        if route is not None:
            self._stale.pop(route, None)
            life = self._life(peer)
            if route.life not in (0, life):  # of the one that had this id before
                self._close_route(route)
            route.life = life
        self._review(topic)

    def _topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = Topic(name, self._number())
            self._numbered[topic.number] = topic
            self._index.add(name, topic.number)
            recording = self._recording
            if recording is not None and (self._state == "new" or recording.wants(name)):
                self._start_recording(topic)
        return topic

    def _life(self, peer: int) -> int:
        one = self._neighbours.all.get(peer)
        return 0 if one is None else one.table.incarnation

    def _topic_went(self, peer: int, number: int, name: str) -> None:
        topic = self._topics.get(name)
        if topic is None or not topic.publishers[peer]:
            return
        topic.publishers[peer] -= 1
        if not topic.publishers[peer]:
            del topic.publishers[peer]
        if not topic.publishers:
            self._ledger.unpublish(topic.number)
            self._unneeded[topic] = time.monotonic()
        route = topic.routes.get((peer, number))
        if route is not None:  # what it has sent may wait in the queue
            self._stale[route] = time.monotonic(), route.core.sequence
        self._review(topic)

    # --- what they want ---------------------------------------------------------------------

    def _came(self, peer: int, incarnation: int, subscribed: Subscribed) -> None:
        interest = self._interests.add(peer, incarnation, subscribed)
        if interest is None:
            return
        if named(interest):
            self._member_came(interest)
            return
        for number in self._index.matching(interest.pattern):
            topic = self._numbered[number]
            if topic.recorded:
                if meant(interest.pattern, topic):
                    self._recording_of(topic).serve(topic.name, interest)
                continue
            for route in topic.routes.values():
                self._serve(route, interest)
            if not topic.subscribed:
                self._review(topic)

    def _went(self, peer: int, subscribed: Subscribed) -> None:
        interest = self._interests.remove(peer, subscribed.flow)
        if interest is None:
            return
        if named(interest):
            if self._deliveries is not None:
                self._deliveries.went(peer, subscribed.flow, self._recorded)
            self._route_groups(interest.pattern)
            return
        for number in self._index.matching(interest.pattern):
            topic = self._numbered[number]
            if topic.recorded:
                self._recording_of(topic).leave(topic.name, peer, subscribed.flow)
                continue
            for route in topic.routes.values():
                if isinstance(route.core, PublisherCore):
                    route.core.leave(peer, subscribed.flow)
            if topic.subscribed:
                self._review(topic)

    def _serve(self, route: Route, interest: Interest) -> None:
        if interest.peer == route.source:
            return  # its own subscriptions got it already
        if not isinstance(route.core, PublisherCore):
            return
        interest.serve(route.core)
        if route.retains and not route.core.settle():
            self._owing.add(route)

    # --- the way through --------------------------------------------------------------------

    def _review(self, topic: Topic) -> None:
        """Whether somebody publishes what somebody else wants. With the lock."""
        if topic.recorded:
            needed = bool(topic.publishers)
        else:
            interests = self._interests.matching(topic.name)
            wanting = {one.peer for one in interests if not named(one)}
            needed = any(wanting - {publisher} for publisher in topic.publishers)
            shared = any(one.wish is not None and one.wish.group for one in interests)
            needed = needed or (shared and bool(topic.publishers))
        if needed == topic.subscribed:
            return
        topic.subscribed = needed
        if not needed:
            if topic.handle is not None:
                self._ledger.unsubscribe(topic.handle.flow)
            self._unneeded[topic] = time.monotonic()
            return
        self._unneeded.pop(topic, None)
        if topic.handle is None:
            topic.handle = self.node._relay(
                functools.partial(self._route, topic),
                _log_failure,
                self.config.capacity,
                self.config.max_block,
            )
        self._announce(topic, topic.handle)

    def _announce(self, topic: Topic, handle: Handle) -> None:
        self._ledger.subscribe(
            Subscribed(handle.flow, topic.name, handle.least_charge, recorded=topic.recorded)
        )

    def _route(
        self, topic: Topic, source: int, number: int, name: str, retains: bool, producer: int
    ) -> None:
        """The first event of a publisher is here. On a scheduler thread."""
        with self._lock:
            if name != topic.name or topic.handle is None:
                return  # it says another name than the one that it was asked for, or comes too late
            if producer:  # it asked before, perhaps the broker that was here before this one
                self._start_recording(topic)
            before = topic.routes.get((source, number))
            if before is not None:  # of the one that had this id before
                self._stale.pop(before, None)
                self._close_route(before)
            own = self._number()
            core: PublisherCore | RecorderCore
            if topic.recorded:
                retains = False
                core = self._recording_of(topic).route(name, source, number, producer)
            else:
                core = self.node._publisher(
                    own, name, "drop_newest", retains, 0, encode_properties, source
                )
            route = Route(core, topic, source, number, own, retains, self._life(source))
            topic.routes[source, number] = route
            self._set_way(route)
            for interest in self._interests.matching(name):
                if not named(interest):
                    self._serve(route, interest)
            client = self._neighbours.all.get(source)
            if client is None or client.table.topics.get(number) != name:
                self._stale[route] = time.monotonic(), 0  # it is announced soon, or has gone

    def _close_route(self, route: Route) -> None:
        """With the lock."""
        topic, key = route.topic, (route.source, route.publisher)
        if topic.routes.get(key) is route:
            del topic.routes[key]
            if topic.handle is not None:
                topic.handle.route(*key, None)
        self._owing.discard(route)
        route.core.close()
        counts = route.core.statistics()
        for name in _COUNTS:
            self._past[name] += counts[name]
        self._free_numbers.append((time.monotonic(), route.number))

    def _routes(self) -> list[Route]:
        return [route for topic in self._topics.values() for route in topic.routes.values()]

    def _number(self) -> int:
        """Of a topic or a route. One that was used is used again, but not soon."""
        if self._free_numbers and time.monotonic() - self._free_numbers[0][0] > _NUMBER_RESTS:
            return self._free_numbers.popleft()[1]
        return next(self._numbers)

    # --- the thread -------------------------------------------------------------------------

    def _turn(self) -> None:
        with self._lock:
            if self._state == "running" and self._ledger.version == self._told:
                self._changed.wait(_SOON if self._owing else HOUSEKEEPING)
        time.sleep(_GATHER)  # changes come in swarms
        now = time.monotonic()
        unneeded: list[Handle] = []
        moved: list[Any] = []
        with self._lock:
            if self._state != "running":
                return
            self._settle()
            letters = self._neighbours.letters() + self._questions(now)
            self._told = self._ledger.version
            if now >= self._tidy_due:
                self._tidy_due = now + _TIDY_EVERY
                self._ghosts(now)
                unneeded = self._tidy(now)
                if self._deliveries is not None:
                    self._deliveries.tend(now)
                    moved = self._deliveries.moved()
        self._neighbours.tell(letters)
        if self._deliveries is not None and moved:
            self._deliveries.write(moved)
        for handle in unneeded:  # without the lock: its last slice may ask for a route
            handle.close()

    def _settle(self) -> None:
        self._owing = {route for route in self._owing if not route.settled()}
        for route in self._owing:
            key = -(1 << 32) - route.number
            core = route.core
            if not isinstance(core, PublisherCore) or self.node._later.busy(key):
                continue
            if core.owes_large:
                with contextlib.suppress(AntiphonError):
                    self.node._later.add(key, core.settle_waiting)

    def _tidy(self, now: float) -> list[Handle]:
        """Ends what nobody has needed for a while. With the lock; the rest is for outside it."""
        for route, (since, seen) in list(self._stale.items()):
            if route.core.sequence != seen:
                self._stale[route] = now, route.core.sequence
            elif now - since > max(_IDLE, 2 * self.config.max_block):
                del self._stale[route]
                self._close_route(route)
        handles = []
        for topic, since in list(self._unneeded.items()):
            if now - since < _LINGER or topic.subscribed:
                continue
            if topic.handle is not None and _has_events(topic.handle):
                continue
            del self._unneeded[topic]
            for route in list(topic.routes.values()):
                self._stale.pop(route, None)
                self._close_route(route)
            if topic.handle is not None:
                handles.append(topic.handle)
                topic.handle = None
            if not topic.publishers and not topic.recorded:
                del self._topics[topic.name], self._numbered[topic.number]
                self._index.remove(topic.name, topic.number)
                self._free_numbers.append((now, topic.number))
        return handles

    # --- looking ----------------------------------------------------------------------------

    def statistics(self) -> BrokerStatistics:
        """Counts of this moment."""
        self.node._check_process()
        with self._lock:
            routes = self._routes()
            counts = [self._past, *(route.core.statistics() for route in routes)]
            return BrokerStatistics(
                clients=self._neighbours.others,
                topics=sum(bool(topic.publishers) for topic in self._topics.values()),
                subscriptions=len(self._interests),
                routes=len(routes),
                relayed=sum(one["published"] for one in counts),
                dropped=sum(one["dropped"] for one in counts),
                lost=sum(one["lost"] for one in counts),
                recorded=(
                    0 if self._recording is None else self._recording.store.statistics()["appended"]
                ),
            )


def _has_events(handle: Handle) -> bool:
    counts = handle.statistics()
    return bool(counts["handled"] + counts["dropped"] < counts["messages"])


def _log_failure(kind: int, source: int, error: BaseException) -> None:
    log.error("events of client %d could not be passed on", source, exc_info=error)
