"""Endpoints that receive on several threads: each counts for itself, and the counts are added.

One count for all would need a lock around every message, as an addition is not one step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from antiphon.lab.peers.base import Endpoint, EndpointConfig, OnData

__all__ = ["ManyReaders"]


class ManyReaders(Endpoint):
    """An endpoint with a receiving thread per sender.

    Every one of them adds to ``_readers`` a function that reads its own count. Messages are handed
    to ``on_data`` by one thread at a time.
    """

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        super().__init__(config, self._one_at_a_time(on_data) if on_data is not None else None)
        self._readers: list[Callable[[], tuple[int, int | None]]] = []

    @staticmethod
    def _one_at_a_time(on_data: OnData) -> OnData:
        lock = threading.Lock()

        def deliver(data: bytes) -> None:
            with lock:
                on_data(data)

        return deliver

    def _count(self) -> tuple[int, int | None]:
        counts = [read() for read in tuple(self._readers)]
        sizes = [size for _, size in counts if size is not None]
        wrong = [size for size in sizes if size != self.expected_size]
        return sum(count for count, _ in counts), next(iter([*wrong, *sizes]), None)
