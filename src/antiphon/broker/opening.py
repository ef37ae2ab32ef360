"""Opens the logs of a broker, on a thread of its own.

To open a log may take as long as reading a segment of it, and may fail for a while. So nobody waits
for it: whoever needs one says so, and hears when it is open. One that cannot be opened is tried
again, less and less often, and holds up no other. When nobody needs any, those of earlier lives are
opened one by one where something is to be dropped after a while: only an open log forgets.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from antiphon.broker.store import Store
from antiphon.errors import AntiphonError, Closed, ConfigError

__all__ = ["Opening"]

log = logging.getLogger("antiphon.broker")

_PAUSE, _LONGEST_PAUSE = 0.25, 8.0  # before one is tried again
_AT_ONCE = 64  # that are told of together
_UNHURRIED = 0.02  # between two that nobody has asked for
_CLOSE_PATIENCE = 5.0


class Opening:
    """Those of one store. ``opened`` and ``failed`` are called on its thread, without a lock.

    ``failed`` is told the topic and why; ``final``: it is not tried again, since no log can have
    such a name.
    """

    def __init__(
        self,
        store: Store,
        opened: Callable[[list[str]], None],
        failed: Callable[[str, str, bool], None],
    ) -> None:
        self._store = store
        self._opened = opened
        self._failed = failed
        self._changed = threading.Condition()
        self._wanted: dict[str, float] = {}  # and when
        self._pauses: dict[str, float] = {}
        self._later: deque[str] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="ap-opening", daemon=True)

    def start(self, later: list[str]) -> None:
        """From now on. ``later``: topics that are opened when nobody needs another."""
        self._later.extend(later)
        self._thread.start()

    def want(self, topic: str) -> None:
        """Any number of times. Never blocks; with the broker's lock or without."""
        with self._changed:
            if topic not in self._wanted:
                self._wanted[topic] = 0.0
                self._changed.notify()

    def close(self) -> None:
        """Without the broker's lock."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_PATIENCE)

    # --- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while (due := self._due()) is not None:
            opened = []
            for topic in due:
                try:
                    self._store.log(topic)
                except Closed:
                    return
                except (OSError, AntiphonError) as error:
                    self._not_opened(topic, error)
                else:
                    opened.append(topic)
            with self._changed:
                for topic in opened:
                    self._wanted.pop(topic, None)
                    self._pauses.pop(topic, None)
            if opened:
                self._opened(opened)

    def _due(self) -> list[str] | None:
        """What is to be opened now; None: it is closed."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                due = [topic for topic, at in self._wanted.items() if at <= now]
                if due:
                    return due[:_AT_ONCE]
                first = min(self._wanted.values(), default=None)
                wait = None if first is None else first - now
                if self._later:
                    if not self._changed.wait(_UNHURRIED):
                        return [self._later.popleft()]
                else:
                    self._changed.wait(wait)
        return None

    def _not_opened(self, topic: str, error: OSError | AntiphonError) -> None:
        final = isinstance(error, ConfigError)
        with self._changed:
            asked = topic in self._wanted
            if final:
                self._wanted.pop(topic, None)
            elif asked:
                before = self._pauses.get(topic, 0.0)
                self._pauses[topic] = min(max(2 * before, _PAUSE), _LONGEST_PAUSE)
                self._wanted[topic] = time.monotonic() + self._pauses[topic]
            pause = self._pauses.get(topic, 0.0)
        again = f", which is tried again in {pause:g} s" if asked and not final else ""
        log.error("the log of %r cannot be opened%s: %s", topic, again, error)
        if asked:
            self._failed(topic, str(error), final)
