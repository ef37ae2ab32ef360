"""The part of a broker that remembers: recorded topics, durable subscriptions, work groups.

Receives from the broker what clients publish and want; hands on to `Recording` and `Deliveries`.
What clients ask about it is answered by `antiphon.broker.answers`.
"""

from __future__ import annotations

import logging
import threading

from antiphon._core import Handle, RouteCore, fork_route, make_group_route
from antiphon.broker.durable import Deliveries, dead_topic
from antiphon.broker.entrance import Entrance
from antiphon.broker.opening import Opening
from antiphon.broker.permissions import Gate
from antiphon.broker.recording import Recording
from antiphon.broker.routes import Route, Topic
from antiphon.errors import AntiphonError
from antiphon.topics.names import Pattern, TopicIndex
from antiphon.topics.neighbours import Interest, Interests
from antiphon.topics.wishes import check_name

__all__ = ["Remembering"]

log = logging.getLogger("antiphon.broker")


class Remembering:
    """What `Broker` is beside a relay. Everything with its lock."""

    _lock: threading.RLock
    _changed: threading.Condition
    _state: str
    _gate: Gate
    _entrance: Entrance
    _recording: Recording | None
    _opening: Opening | None
    _unopened: dict[str, dict[tuple[int, int], Interest]]
    _topics: dict[str, Topic]
    _deliveries: Deliveries | None
    _interests: Interests
    _numbered: dict[int, Topic]
    _index: TopicIndex[int]
    _stale: dict[Route, tuple[float, int]]

    def _topic(self, name: str) -> Topic:
        raise NotImplementedError

    def _review(self, topic: Topic) -> None:
        raise NotImplementedError

    def _announce(self, topic: Topic, handle: Handle) -> None:
        raise NotImplementedError

    def _close_route(self, route: Route) -> None:
        raise NotImplementedError

    # --- what is recorded -------------------------------------------------------------------

    def _recording_of(self, topic: Topic) -> Recording:
        assert self._recording is not None
        assert topic.recorded
        return self._recording

    def _start_recording(self, topic: Topic) -> None:
        """From now on its subscriptions get what is in the log. With the lock."""
        if topic.recorded or self._recording is None:
            return
        topic.recorded = True
        self._recording.add(topic.name, topic.number)
        for route in list(topic.routes.values()):
            self._stale.pop(route, None)
            self._close_route(route)
        if topic.subscribed and topic.handle is not None:
            self._announce(topic, topic.handle)
        if self._state != "new":  # of very many in the store none is opened before it is needed
            self._ready(topic)
        self._review(topic)

    def _ready(self, topic: Topic) -> bool:
        """Whether its log is open; otherwise it is opened, and all are served then. With the lock.

        Everybody who wants it has to be known before this is called.
        """
        if not topic.opened and self._recording is not None:
            if self._recording.is_open(topic.name):
                self._log_opened(topic)
            elif self._opening is not None:
                self._opening.want(topic.name)
        return topic.opened

    def _is_ready(self, name: str) -> bool:
        topic = self._topics.get(name)
        return topic is not None and self._ready(topic)

    def _logs_opened(self, names: list[str]) -> None:
        """On the thread that opens them."""
        with self._lock:
            for name in names if self._state == "running" else ():
                topic = self._topics.get(name)
                if topic is not None and topic.recorded and not topic.opened:
                    self._log_opened(topic)
            self._changed.notify_all()

    def _log_opened(self, topic: Topic) -> None:
        topic.opened, topic.complained = True, False
        for interest in self._interests.matching(topic.name):
            if not interest.named:
                self._replay(topic, interest)
        if self._deliveries is not None:
            self._deliveries.topic_came(topic.name, topic.number)
        for interest in self._unopened.pop(topic.name, {}).values():
            self._member_came(interest)
        self._review(topic)

    def _log_failed(self, name: str, why: str, final: bool) -> None:
        """On the thread that opens them. Whoever wants it is told once; others are not touched."""
        with self._lock:
            topic = self._topics.get(name)
            if topic is None or topic.opened or topic.complained:
                return
            topic.complained = True
            why = f"its log cannot be opened ({why})" + ("" if final else "; it is tried again")
            for peer in list(topic.publishers):
                self._entrance.refuse(peer, "publish", name, why)
            waiting = [one.peer for one in self._interests.matching(name)]
            for peer in {*waiting, *(peer for peer, _ in self._unopened.get(name, ()))}:
                self._entrance.refuse(peer, "subscribe", name, why)

    def _replay(self, topic: Topic, interest: Interest) -> None:
        """To one subscription. What fails is its own: nobody else's is touched."""
        try:
            self._recording_of(topic).serve(topic.name, interest)
        except (OSError, AntiphonError) as error:
            log.error("client %d gets no replay of %r: %s", interest.peer, topic.name, error)
            why = f"its log cannot be read ({error})"
            self._entrance.refuse(interest.peer, "subscribe", topic.name, why)

    # --- durable subscriptions and groups ---------------------------------------------------

    def _recorded(self, pattern: Pattern) -> dict[str, int]:
        """The recorded topics that match, and their numbers."""
        topics = (self._numbered[number] for number in self._index.matching(pattern))
        return {one.name: one.number for one in topics if one.recorded}

    def _member_came(self, interest: Interest) -> None:
        assert interest.wish is not None
        assert self._deliveries is not None
        client = self._gate.get(interest.peer)
        if interest.wish.durable is not None:
            durable, most = interest.wish.durable, self._gate.limits.max_durables
            why = self._deliveries.keeps_from(client, durable)
            why = why or self._deliveries.too_many(interest.peer, client, durable, most)
            if why is not None:
                self._gate.refused += 1
                self._refuse_member(interest, why)
                return
            if self._recording is None:
                log.warning("client %d wants a durable subscription: no store", interest.peer)
                self._gate.refuse_flow(interest.peer, interest.flow, "the broker has no store")
                return
        try:
            for name in (interest.wish.durable, interest.wish.group):
                if name is not None:
                    check_name("durable", name)
            if interest.wish.durable is not None and not self._letters_open(interest):
                return
            self._deliveries.came(interest, client, self._recorded(interest.pattern))
        except (OSError, AntiphonError) as error:
            log.error("client %d has no durable subscription: %s", interest.peer, error)
            self._refuse_member(interest, str(error))
        self._route_groups(interest.pattern)

    def _refuse_member(self, interest: Interest, why: str) -> None:
        """It is told, also if it asks."""
        self._gate.refuse_flow(interest.peer, interest.flow, why)
        self._entrance.refuse(interest.peer, "subscribe", interest.pattern.text, why)

    def _letters_open(self, interest: Interest) -> bool:
        """Whether there is a log for what it cannot handle; otherwise it comes when there is."""
        assert interest.wish is not None
        assert interest.wish.durable is not None
        topic = self._topic(dead_topic(interest.wish.durable))
        self._start_recording(topic)
        if not self._ready(topic):
            waiting = self._unopened.setdefault(topic.name, {})
            waiting[interest.peer, interest.flow] = interest
        return topic.opened

    def _letters_wanted(self, place: tuple[int, int]) -> str | None:
        """The topic whose log a durable subscription waits for; None: it does not wait."""
        return next((name for name, those in self._unopened.items() if place in those), None)

    def _not_waiting(self, interest: Interest) -> None:
        """One that has gone."""
        assert interest.wish is not None
        if interest.wish.durable is None:
            return
        name = dead_topic(interest.wish.durable)
        waiting = self._unopened.get(name, {})
        waiting.pop((interest.peer, interest.flow), None)
        if not waiting:
            self._unopened.pop(name, None)

    def _route_groups(self, pattern: Pattern) -> None:
        """Those who share a topic that is not recorded may be others now."""
        for number in self._index.matching(pattern):
            topic = self._numbered[number]
            if topic.recorded:
                continue
            for route in topic.routes.values():
                self._set_way(route)
            self._review(topic)

    def _set_way(self, route: Route) -> None:
        """To those who want all of it, and to groups, which share it. With the lock."""
        topic = route.topic
        known = self._gate.get(route.source)
        quota = None if known is None else known.quota
        groups = [] if self._deliveries is None else self._deliveries.pushed(topic.name)
        way: RouteCore = route.core
        if groups and not topic.recorded and route.allowed:
            shared = [make_group_route(group, topic.name, route.source) for group in groups]
            way = fork_route([way, *shared], quota)
            quota = None
        route.core.limit(quota)
        if topic.handle is not None:
            topic.handle.route(route.source, route.publisher, way)
