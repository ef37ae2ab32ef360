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
        if self._state != "new":  # of very many in the store none is opened before it is needed
            self._recording.info(topic.name)  # raises before anything has changed
        topic.recorded = True
        self._recording.add(topic.name, topic.number)
        for route in list(topic.routes.values()):
            self._stale.pop(route, None)
            self._close_route(route)
        for interest in self._interests.matching(topic.name):
            if not interest.named:
                self._recording.serve(topic.name, interest)
        if self._deliveries is not None:
            self._deliveries.topic_came(topic.name, topic.number)
        if topic.subscribed and topic.handle is not None:
            self._announce(topic, topic.handle)
        self._review(topic)

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
            why = self._deliveries.keeps_from(client, interest.wish.durable)
            if why is not None:
                self._gate.refused += 1
                self._entrance.refuse(interest.peer, "subscribe", interest.pattern.text, why)
                return
            if self._recording is None:
                log.warning("client %d wants a durable subscription: no store", interest.peer)
                return
        try:
            for name in (interest.wish.durable, interest.wish.group):
                if name is not None:
                    check_name("durable", name)
            if interest.wish.durable is not None:
                self._start_recording(self._topic(dead_topic(interest.wish.durable)))
            self._deliveries.came(interest, client, self._recorded(interest.pattern))
        except (OSError, AntiphonError) as error:
            log.error("client %d has no durable subscription: %s", interest.peer, error)
        self._route_groups(interest.pattern)

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
