"""The broker itself: who publishes what, who wants it, and the routes between them.

A topic that somebody publishes and somebody else wants gets a subscription of the broker, with a
queue of its own; every publisher of it gets a route, which sends its events to all that want them
and is not it. Events pass through the core (``native/bindings/relay.cpp``); what is done here
is done once per publisher and subscription.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import secrets
import threading
import time
from collections import Counter, deque
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from antiphon import settings
from antiphon._core import Handle, PublisherCore, RecorderCore
from antiphon.broker.answers import Answers
from antiphon.broker.config import BrokerConfig
from antiphon.broker.durable import Deliveries
from antiphon.broker.entrance import Entrance
from antiphon.broker.figures import BrokerStatistics, Figures
from antiphon.broker.opening import Opening
from antiphon.broker.permissions import Gate
from antiphon.broker.questions import answer_questions
from antiphon.broker.recording import Recording, open_store
from antiphon.broker.remembering import Remembering
from antiphon.broker.routes import COUNTS, Route, Topic, missed_by
from antiphon.broker.shares import TopicShares
from antiphon.broker.system_topics import SystemTopics
from antiphon.errors import AntiphonError, Closed, ConfigError
from antiphon.node import TLS, Node, NodeConfig
from antiphon.node.config import Insecure, check_type
from antiphon.node.life import Owner, begin, end
from antiphon.node.secret import read_secret
from antiphon.topics.announcements import Subscribed, Table, Update, encode
from antiphon.topics.kinds import check_text
from antiphon.topics.names import TopicIndex
from antiphon.topics.neighbours import HOUSEKEEPING, Interest, Interests, Neighbours
from antiphon.topics.publisher import encode_properties
from antiphon.topics.rights import Ask, Ended, Refused, Stopped, Word

__all__ = ["Broker"]

log = logging.getLogger("antiphon.broker")

_IDS = range(32768, 36864)  # nodes draw theirs from those above
_GATHER = 0.002
_SOON = 0.01
_LINGER = 1.0  # of a way through the broker that nobody needs any more
_IDLE = 5.0  # of a route whose publisher has gone
_NUMBER_RESTS = 60.0  # before it is used again: events of the one before may wait somewhere
_TIDY_EVERY = 0.25
_POSITIONS = -1  # among what the node's helpers do


class Broker(Remembering, Owner):
    """Passes events on between the buses whose address it is.

    ``Broker("tcp://127.0.0.1:7000")`` is the broker of every ``Bus("tcp://127.0.0.1:7000")``.
    ``secret`` and ``tls`` are as for a `Node`: off loopback one of them is needed. ``store`` is the
    directory of what it records. What is not given here is taken from ``config``: settings, or the
    path of a file with them, instead of ``antiphon.toml``, which `reload` reads again. ``with
    broker:`` starts it and closes it. All methods are thread-safe.
    """

    _name = "broker"

    def __init__(
        self,
        listen: str | None = None,
        *,
        id: int | None = None,
        secret: str | bytes | Insecure | None = None,
        tls: TLS | None = None,
        store: str | os.PathLike[str] | None = None,
        fsync: str | None = None,
        config: BrokerConfig | str | os.PathLike[str] | None = None,
        node_config: NodeConfig | None = None,
    ) -> None:
        super().__init__()
        # Of settings, instead of antiphon.toml.
        self._file: str | None = None
        if isinstance(config, str | os.PathLike):
            self._file, config = _check_file(config), None
        given = {"store": None if store is None else os.fspath(store), "fsync": fsync}
        self._given: dict[str, Any] = {key: one for key, one in given.items() if one is not None}
        self.config = self._configured(config)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # Never one that a client draws: neither could give it up when the broker is back.
        number = secrets.choice(_IDS) if id is None else id
        if secret is None and self.config.secret_file is not None:
            secret = read_secret(self.config.secret_file)
        self.node = Node(
            number,
            listen=self.config.listen if listen is None else listen,
            secret=secret,
            tls=tls or self.config.tls,
            config=self._node_config(node_config),
        )
        self._neighbours = Neighbours(self.node, self, self._changed, owns_node=True, dials=False)
        self._ledger = self._neighbours.ledger
        self._gate = Gate(self.config)
        self._entrance = Entrance(self.node, self._neighbours, self._gate, self._changed)
        self._ledger.version = 1  # clients expect a word even when there is nothing yet
        self._neighbours.listen()
        self._answers = Answers(self)
        answer_questions(self.node, self._answers)
        self._recording: Recording | None = None
        self._opening: Opening | None = None
        self._unopened = {}
        self._deliveries: Deliveries | None = None
        self.node.on_connected(self._connected)
        self.node.on_disconnected(self._disconnected)
        self._numbers = itertools.count(1)
        self._free_numbers: deque[tuple[float, int]] = deque()
        self._interests = Interests()
        self._topics: dict[str, Topic] = {}
        self._shares = TopicShares(self.node._shares, self.config.shares)
        self._figures = Figures(self)
        self._system = SystemTopics(
            self._own_publisher,
            self._interests,
            self.config.system_interval,
            {
                "broker": self._figures.broker,
                "clients": self._figures.clients,
                "topics": self._figures.topics,
            },
        )
        self._numbered: dict[int, Topic] = {}
        self._index: TopicIndex[int] = TopicIndex()
        self._unneeded: dict[Topic, float] = {}
        self._stale: dict[Route, tuple[float, int]] = {}
        self._owing: set[Route] = set()
        self._subscriptions_ended = 0
        self._reloaded = False
        self._past = dict.fromkeys((*COUNTS, "denied"), 0)
        self._missed: dict[int, Counter[str]] = {}  # by clients, of routes that have gone
        self._told = -1
        self._tidy_due = 0.0
        self._thread: threading.Thread | None = None

    def _configured(self, config: BrokerConfig | None) -> BrokerConfig:
        """With what was given beside the settings."""
        check_type("config", config, BrokerConfig, "an antiphon.BrokerConfig, the path of a file")
        return settings.complete(
            BrokerConfig, "broker", config, self._given, environ=self._environ()
        )

    def _environ(self) -> dict[str, str]:
        """Where settings come from that nobody has given."""
        named = {} if self._file is None else {"ANTIPHON_CONFIG": self._file}
        return {**os.environ, **named}

    def _node_config(self, given: NodeConfig | None) -> NodeConfig:
        """With the limit of the broker's own, if there is one."""
        own = settings.complete(NodeConfig, "node", given, environ=self._environ())
        most = self.config.limits.max_message_bytes
        return own if most is None else replace(own, max_message_bytes=most)

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
                kept = None if recording is None else recording.store
                self._deliveries = Deliveries(self.node, self.config, kept, self._is_ready)
                known = [] if recording is None else recording.known()
                for name in known:
                    self._topic(name)
                if kept is not None:
                    self._opening = Opening(kept, self._logs_opened, self._log_failed)
                self._neighbours.begin()
                self.node.start()
            except BaseException:
                if self._recording is not None:
                    self._recording.close()
                raise
            self._state = "running"
            if self._opening is not None:
                forgets = self.config.keep_age or self.config.keep_bytes
                self._opening.start(known if forgets else [])
        self._thread = threading.Thread(target=self._run, name="ap-broker", daemon=True)
        self._thread.start()
        begin(self)
        return self

    def _close_now(self, drain: float) -> None:
        with self._lock:
            before, self._state = self._state, "closed"
            self._changed.notify_all()
            clients = [peer for peer, one in self._neighbours.all.items() if not one.itself]
            farewells = self._neighbours.end()
        if before == "closed":
            return
        end(self)
        with contextlib.ExitStack() as stack:  # backwards; Ctrl-C ends the patience, not the rest
            stack.callback(self._end_waits)
            if self._recording is not None:
                stack.callback(self._recording.close)
            if self._deliveries is not None:
                stack.callback(self._write_last, self._deliveries)
            stack.callback(self._interests.judge.close)
            stack.callback(self._close_routes)

            def close_node(kind: type[BaseException] | None, *facts: object) -> None:
                self.node._close_now(drain if kind is None else 0.0)

            stack.push(close_node)
            stack.callback(self._hand_out_no_more)
            if self._opening is not None:
                stack.callback(self._opening.close)
            # First publishers send no more, then what is here goes on its way.
            telling = self._neighbours.tell([(peer, encode(Stopped())) for peer in clients])
            telling += self._neighbours.tell(farewells)
            # What had to wait is said before the node closes; one that hangs has half of the time.
            until = time.monotonic() + drain / 2
            for job in telling:
                with contextlib.suppress(AntiphonError, TimeoutError):
                    job.result(max(0.0, until - time.monotonic()))
            if self._thread is not None and self._thread is not threading.current_thread():
                self._thread.join(5.0)

    def _hand_out_no_more(self) -> None:
        with self._lock:
            if self._recording is not None:
                self._recording.end()
            if self._deliveries is not None:
                self._deliveries.end()

    def _close_routes(self) -> None:
        with self._lock:
            routes = self._routes()
            self._system.close()
        for route in routes:
            route.core.close()

    def _write_last(self, deliveries: Deliveries) -> None:
        """What was acknowledged while the node closed is in it."""
        deliveries.write(deliveries.moved(last=True))

    @property
    def address(self) -> str:
        """Where it listens; a port 0 has become a real one once it is started."""
        return self.node.address

    def __repr__(self) -> str:
        return f"<Broker {self.address} of node {self.node.id} {self._state}>"

    # --- clients ----------------------------------------------------------------------------

    def _connected(self, peer: int, how: str) -> None:
        with self._lock:
            self._entrance.connected(peer)

    def _disconnected(self, peer: int, reason: str) -> None:
        with self._lock:
            self._entrance.disconnected(peer, reason)
            if self._state == "running":
                self._entrance.forget(peer)
                self._missed.pop(peer, None)
                self._changed.notify_all()

    # --- what they may do -------------------------------------------------------------------

    def _admits(self, peer: int, update: Update) -> bool:
        if peer in self._entrance.dismissed:
            return False
        if self._gate.is_another(peer, update):  # all that it has is judged anew
            self._neighbours.forget(peer)
            table = Table(update.incarnation)
        else:
            table = self._neighbours.all[peer].table
        known = self._gate.get(peer)
        refused = self._gate.admit(peer, update, len(table.topics), len(table.subscriptions))
        if refused is not None:
            self._entrance.dismiss(peer, refused)
            return False
        client = self._gate.get(peer)
        if self._reloaded and client is not None and client is not known:
            # It may have asked before the settings changed: only who is known is told of that.
            self._entrance.letters.append((peer, encode(self._gate.welcome(client))))
        return True

    def _shown(self, peer: int, update: Update) -> Update:
        return self._gate.shown(peer, update)

    def _word(self, peer: int, word: Word) -> bytes | None:
        if not isinstance(word, Ask):
            return None
        if self._state != "running":
            return encode(Stopped())
        # That it has connected may be told later than what it says. Whoever is welcome now must not
        # be turned away then.
        if self.node._is_connected(peer):
            self._entrance.connected(peer)
        full = self._recording is not None and self._recording.full
        return encode(self._gate.answer(word.token, peer in self._entrance.dismissed, full))

    def reload(self, config: BrokerConfig | None = None) -> tuple[list[str], list[str]]:
        """Takes over tokens, permissions, limits, shares and the log level of new settings.

        None: those that `BrokerConfig.load` finds now, or those of the file that was given. Clients
        whose token is gone are turned away, and what others may do no more ends. Returns the names
        of what has changed, and of what would have but needs a restart. Raises `ConfigError` and
        changes nothing for settings that make no sense. Never blocks for long.
        """
        self.node._check_process()
        new = self._configured(config)
        with self._lock:
            self.config, changed, kept = self.config.reloaded(new)
            self._gate.configure(self.config)
            self._shares.change(self.config.shares, self._topics.values())
            self._reloaded = True
            for peer, client in self._gate.again():
                if isinstance(client, Refused):
                    self._entrance.dismiss(peer, client)
                    continue
                self._entrance.letters.append((peer, encode(self._gate.welcome(client))))
                self._judge_again(peer)
            for route in self._routes():
                if self._allows(route) != route.allowed:
                    self._close_route(route)  # the next event begins another
                else:
                    self._set_way(route)
            self._changed.notify_all()
        return changed, kept

    def _judge_again(self, peer: int) -> None:
        """What it has announced, by rules that have changed. With the lock."""
        one = self._neighbours.all.get(peer)
        client = self._gate.get(peer)
        if one is None or client is None:
            return
        one.sent, one.greeted = 0, False  # it may see more than before, or less
        for number, name in one.table.topics.items():
            if client.allows("publish", name) == (number in client.refused_topics):
                self._topic_went(peer, number, name)
                self._topic_came(peer, number, name)
        for flow, subscribed in one.table.subscriptions.items():
            if client.allows("subscribe", subscribed.pattern) == (flow in client.refused_flows):
                self._went(peer, subscribed)
                self._came(peer, one.table.incarnation, subscribed)

    # --- what they publish ------------------------------------------------------------------

    def _topic_came(self, peer: int, number: int, name: str) -> None:
        known = len(self._neighbours.all[peer].table.topics)
        why = self._gate.publishes(peer, number, name, known)
        if why is not None:
            self._entrance.refuse(peer, "publish", name, why)
            return
        try:
            check_text(name)
            recording = self._recording
            if recording is not None and name not in self._topics and recording.wants(name):
                why = self._gate.may_begin(peer)
                if why is not None:
                    self._gate.refuse_topic(peer, number)
                    self._entrance.refuse(peer, "publish", name, why)
                    return
            topic = self._topic(name)
        except (AntiphonError, OSError) as error:
            if self._entrance.may_log():
                log.warning("client %d cannot publish %r: %s", peer, name, error)
            return
        if not topic.publishers:
            self._ledger.publish(topic.number, name)
        topic.publishers[peer] += 1
        route = topic.routes.get((peer, number))
        if route is not None:
            self._stale.pop(route, None)
            life = self._life(peer)
            # Of the one that had this id before, or of one who had not said yet who it is.
            if route.life not in (0, life) or not route.allowed:
                self._close_route(route)
            route.life = life
        self._review(topic)

    def _topic(self, name: str) -> Topic:
        """With the lock."""
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
        refused = self._gate.unpublishes(peer, number)
        if refused or topic is None or not topic.publishers[peer]:
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
        known = len(self._neighbours.all[peer].table.subscriptions)
        why = self._gate.subscribes(peer, subscribed, known)
        if why is not None:
            self._entrance.refuse(peer, "subscribe", subscribed.pattern, why)
            return
        interest = self._interests.add(peer, incarnation, subscribed)
        if interest is None:
            return
        if interest.named:
            self._member_came(interest)
            return
        self._system.came(subscribed.flow, interest)
        for number in self._index.matching(interest.pattern):
            topic = self._numbered[number]
            if topic.recorded:
                if topic.opened:
                    self._replay(topic, interest)
                else:
                    self._ready(topic)  # it is served with all others
                continue
            for route in topic.routes.values():
                self._serve(route, interest)
            if not topic.subscribed:
                self._review(topic)

    def _went(self, peer: int, subscribed: Subscribed) -> None:
        self._gate.unsubscribes(peer, subscribed.flow)
        interest = self._interests.remove(peer, subscribed.flow)
        if interest is None:
            return
        if interest.named:
            if self._deliveries is not None:
                self._deliveries.went(peer, subscribed.flow, self._recorded)
            self._not_waiting(interest)
            self._route_groups(interest.pattern)
            return
        self._system.went(peer, subscribed.flow)
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
        if interest.peer == route.source or not route.allowed:
            return  # its own subscriptions got it already
        if not isinstance(route.core, PublisherCore):
            return  # the log serves it
        interest.serve(route.core)
        if route.retains and not route.core.settle():
            self._owing.add(route)

    # --- the way through --------------------------------------------------------------------

    def _review(self, topic: Topic) -> None:
        """Whether somebody publishes what somebody else wants. With the lock."""
        if topic.recorded:
            needed = bool(topic.publishers) and self._ready(topic)
        else:
            interests = self._interests.matching(topic.name)
            wanting = {one.peer for one in interests if not one.named}
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
                self._end,
                self.config.capacity,
                self.config.max_block,
            )
            self._shares.begin(topic)
        self._announce(topic, topic.handle)

    def _announce(self, topic: Topic, handle: Handle) -> None:
        self._ledger.subscribe(
            Subscribed(handle.flow, topic.name, handle.least_charge, recorded=topic.recorded)
        )

    def _allows(self, route: Route) -> bool:
        """Whether what comes this way may: to record needs a right of its own."""
        actions = ("publish", "record") if route.records else ("publish",)
        return all(self._gate.may(route.source, action, route.topic.name) for action in actions)

    def _route(
        self, topic: Topic, source: int, number: int, name: str, retains: bool, producer: int
    ) -> None:
        """The first event of a publisher is here. On a scheduler thread."""
        recording = self._recording
        if recording is not None and (producer or topic.recorded) and not topic.opened:
            with contextlib.suppress(AntiphonError, OSError):  # it is tried again below
                recording.open(name)
        with self._lock:
            if name != topic.name or topic.handle is None:
                return  # it says another name than the one that it was asked for, or comes too late
            if not self._entrance.may_route(source):
                return  # it has begun far too many
            allowed = self._gate.may(source, "publish", name)
            if producer:
                # It asked before, perhaps the broker that was here before this one.
                why = self._gate.records(source, name, producer)
                if why is None and not topic.recorded:
                    why = self._gate.may_begin(source)
                allowed = why is None
                if why is None:
                    self._start_recording(topic)
                else:
                    self._entrance.refuse(source, "record", name, why)
            if topic.recorded and not self._ready(topic):
                return  # its publisher is asked for it again when there is a log
            before = topic.routes.get((source, number))
            if before is not None:  # of the one that had this id before
                self._stale.pop(before, None)
                self._close_route(before)
            own = self._number()
            core: PublisherCore | RecorderCore
            if topic.recorded and allowed:
                retains = False
                core = self._recording_of(topic).route(name, source, number, producer)
            else:
                core = self.node._publisher(
                    own, name, "drop_newest", retains, 0, encode_properties, source
                )
            route = Route(core, topic, source, number, own, retains, self._life(source))
            route.allowed, route.records = allowed, bool(producer)
            topic.routes[source, number] = route
            self._set_way(route)
            if not topic.recorded:
                for interest in self._interests.matching(name):
                    if not interest.named:
                        self._serve(route, interest)
            known = self._neighbours.all.get(source)
            if known is None or known.table.topics.get(number) != name:
                self._stale[route] = time.monotonic(), 0  # it is announced soon, or has gone

    def _end(self, peer: int, flow: int) -> None:
        """A subscription that has had no room for too long. On a scheduler thread."""
        with self._lock:
            one = self._neighbours.all.get(peer)
            subscribed = None if one is None else one.table.subscriptions.get(flow)
            if subscribed is None or not self._interests.has(peer, flow):
                return
            self._went(peer, subscribed)
            self._subscriptions_ended += 1
            reason = f"it held up its topic for {self.config.max_block:g} s"
            log.warning(
                "subscription %r of client %d is ended: %s",
                subscribed.pattern,
                peer,
                reason,
                extra={"client": peer, "topic": subscribed.pattern},
            )
            self._entrance.letters.append((peer, encode(Ended(flow, reason))))
            self._changed.notify_all()

    def _close_route(self, route: Route) -> None:
        """With the lock."""
        topic, key = route.topic, (route.source, route.publisher)
        self._entrance.routes[route.source] -= 1
        self._stale.pop(route, None)
        if topic.routes.get(key) is route:
            del topic.routes[key]
            if topic.handle is not None:
                topic.handle.route(*key, None)
        self._owing.discard(route)
        route.core.close()
        counts = route.core.statistics()
        if not route.allowed:
            self._past["denied"] += counts["published"]
        else:
            for name in COUNTS:
                self._past[name] += counts[name]
        missed_by(route, self._missed)
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
                soon = self._owing or self._entrance.letters
                self._changed.wait(_SOON if soon else HOUSEKEEPING)
        time.sleep(_GATHER)  # changes come in swarms
        now = time.monotonic()
        unneeded: list[Handle] = []
        moved: list[Any] = []
        with self._lock:
            if self._state != "running":
                return
            self._settle()
            letters = self._entrance.look(now) + self._neighbours.letters()
            self._told = self._ledger.version
            if now >= self._tidy_due:
                self._tidy_due = now + _TIDY_EVERY
                self._entrance.ghosts(now)
                self._entrance.warn()
                self._system.look(now)
                unneeded = self._tidy(now)
                self._shares.look(self._topics)
                if self._recording is not None:
                    self._recording.look()
                if self._deliveries is not None:
                    self._deliveries.tend(now)
                    self._deliveries.urgent = True
            moved = self._moved()
        self._neighbours.tell(letters)
        if self._deliveries is not None and moved:
            # Not on this thread: clients wait for what it tells, and the disk may take its time.
            with contextlib.suppress(AntiphonError):  # it ends, or comes with the next
                self.node._later.add(_POSITIONS, functools.partial(self._deliveries.write, moved))
        for handle in unneeded:  # without the lock: its last slice may ask for a route
            handle.close()

    def _moved(self) -> list[Any]:
        """Positions to be written, unless some are being written. With the lock."""
        deliveries = self._deliveries
        if deliveries is None or not deliveries.urgent or self.node._later.busy(_POSITIONS):
            return []
        return deliveries.moved()

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
                self._shares.end(topic)
                handles.append(topic.handle)
                topic.handle = None
            if not topic.publishers and not topic.recorded:
                del self._topics[topic.name], self._numbered[topic.number]
                self._index.remove(topic.name, topic.number)
                self._free_numbers.append((now, topic.number))
        return handles

    # --- what it says of itself -------------------------------------------------------------

    def _own_publisher(self, name: str) -> PublisherCore:
        return self.node._publisher(
            self._number(), name, "drop_newest", False, 0, encode_properties
        )

    # --- looking ----------------------------------------------------------------------------

    def statistics(self) -> BrokerStatistics:
        """Counts of this moment."""
        self.node._check_process()
        with self._lock:
            return self._figures.statistics()


def _check_file(path: str | os.PathLike[str]) -> str:
    """Of settings; raises `ConfigError`. Absolute: it may be read again from elsewhere."""
    file = Path(path)
    if not file.is_file():
        fault = "is a directory" if file.is_dir() else "does not exist"
        raise ConfigError(
            f"config {str(path)!r} {fault}; give a file with settings, such as broker.toml",
            setting="config",
            value=str(path),
        )
    return str(file.absolute())


def _has_events(handle: Handle) -> bool:
    counts = handle.statistics()
    return bool(counts["handled"] + counts["dropped"] < counts["messages"])


def _log_failure(kind: int, source: int, error: BaseException) -> None:
    log.error("events of client %d could not be passed on", source, exc_info=error)
