"""Dead letters on their way back to the topics that they came from."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

import msgspec

from antiphon.broker.store import Appender, LogRecord, Store
from antiphon.errors import ConfigError
from antiphon.topics.kinds import check_text

__all__ = ["Letters"]

log = logging.getLogger("antiphon.broker")

_OURS = ("dead.topic", "dead.sequence", "dead.attempts")
_UNDER_WAY = 256  # appends that are not waited for yet
_PATIENCE = 30.0


class Letters:
    """Those of one subscription behind a sequence. ``replayed``: up to which they are back."""

    def __init__(self, store: Store, topic: str, replayed: int) -> None:
        self._store = store
        self._topic = topic
        self._appenders: dict[str, Appender] = {}
        self._under_way: deque[tuple[Appender, int, int]] = deque()
        self.replayed = replayed

    def send(self, limit: int) -> int:
        """As many as that, or all for 0; how many went. Raises as `Store.append` does."""
        done = 0
        try:
            for record in self._store.reader(self._topic, self.replayed + 1):
                if limit and done >= limit:
                    break
                found = _opened(record)
                if found is None:
                    log.warning("%s, %d: this is no dead letter", self._topic, record.sequence)
                    continue
                self._submit(record, *found)
                done += 1
        finally:
            while self._under_way:
                self._settle()
        return done

    def _submit(self, record: LogRecord, topic: str, properties: bytes) -> None:
        if len(self._under_way) >= _UNDER_WAY:
            self._settle()
        appender = self._appenders.get(topic)
        if appender is None:
            appender = self._appenders[topic] = self._store.appender(topic)
        token = appender.submit(
            record.data,
            properties=properties,
            time_ns=record.time_ns,
            source=record.source,
            timeout=_PATIENCE,
        )
        self._under_way.append((appender, token, record.sequence))

    def _settle(self) -> None:
        appender, token, sequence = self._under_way.popleft()
        try:
            appender.wait(token, _PATIENCE)
        except BaseException:
            self._under_way.clear()  # behind one that is to be sent again
            raise
        self.replayed = sequence


def _opened(record: LogRecord) -> tuple[str, bytes] | None:
    """Its topic and its own properties; None for what a client has published there itself."""
    try:
        properties = msgspec.msgpack.decode(record.properties, type=dict[str, Any])
        topic = check_text(properties["dead.topic"])
    except (msgspec.MsgspecError, KeyError, ConfigError):
        return None
    kept = {key: value for key, value in properties.items() if key not in _OURS}
    return topic, msgspec.msgpack.encode(kept) if kept else b""
