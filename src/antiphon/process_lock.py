"""A lock that belongs to the process and not to an object of it: a forked child finds it free."""

from __future__ import annotations

import os
import threading
from types import TracebackType


class ProcessLock:
    """A `threading.Lock` for ``with``, made anew in a forked child.

    Whoever held it in the parent at that moment is a thread that the child does not have, and would
    be waited for for ever. What it guards is then as that thread left it: only for what is whole
    after every single step. For modules, since it stays for as long as the process.
    """

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lock.locked():  # not in a child that was forked inside
            self._lock.release()
