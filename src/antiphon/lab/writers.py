"""The threads of a run that send: as fast as they can, by a timetable, or a given number.

Receives an endpoint from `antiphon.lab.worker`, which reads their counts while they send.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from antiphon.lab.bench.orders import WorkingThread
from antiphon.lab.peers.base import Endpoint, Sender, payload_of
from antiphon.lab.stamps import Stamper

__all__ = ["PacedWriter", "Writer", "parts_of"]

NANOS = 1_000_000_000
STAMP_EVERY = NANOS // 100
# What was due longer ago is not sent any more, and counted as skipped: a sender that is too slow
# would fall further behind for ever.
LATEST = NANOS
FLUSH = 5.0
# Until a given number is out, which may take as long as the run; that ends with the process.
FLUSH_ALL = 600.0


def parts_of(messages: int | None, threads: int) -> Iterator[int | None]:
    """A number of messages, divided among threads; None stays None."""
    for number in range(threads):
        if messages is None:
            yield None
        else:
            yield messages // threads + (number < messages % threads)


class Writer(WorkingThread):
    """Sends as many as go, with a stamped one every hundredth of a second among them.

    With ``messages`` it sends so many, the stamped ones included, and has then finished.
    ``skipped`` are those with times that were due and are never sent.
    """

    def __init__(self, endpoint: Endpoint, number: int, messages: int | None = None) -> None:
        super().__init__(f"write-{number}")
        self.sent = 0
        self.skipped = 0
        self.begun_ns = 0
        self._endpoint = endpoint
        self._targets = endpoint.config.targets
        self._payload = payload_of(endpoint.config.size)
        self._stamp = Stamper(endpoint.config.index, endpoint.config.size)
        self._messages = messages
        self._sender: Sender

    def _open(self) -> None:
        self._sender = self._endpoint.sender()

    def _end(self) -> None:
        self._sender.close()

    def _work(self) -> None:
        self.begun_ns = time.monotonic_ns()
        if self._messages is None:
            self._send_on()
            self._sender.flush(timeout=FLUSH)
        else:
            self._send_number(self._messages)
            self._sender.flush(timeout=FLUSH_ALL)

    def _send_on(self) -> None:
        stopped, burst, clock = self._stop.is_set, self._sender.burst, time.monotonic_ns
        due = clock()
        while not stopped():
            self.sent += burst()
            # All that were due meanwhile. With one after each burst they would soon be a second
            # late where a burst takes longer than from one to the next, however fast they arrive.
            until = clock() if self._stamp.fits else due - 1
            while due <= until and not stopped():
                self._send(due)
                due = self._next(due, clock())

    def _send_number(self, messages: int) -> None:
        stopped, burst, clock = self._stop.is_set, self._sender.burst, time.monotonic_ns
        config, payload = self._endpoint.config, self._payload
        # No burst sends more; the last messages go one by one, so that not one is too many.
        most = config.burst * len(self._targets)
        due = clock()
        while self.sent < messages and not stopped():
            now = clock()
            if self._stamp.fits and now >= due:
                self._send(due)
                # However long they take, all messages of the number are sent: none is skipped.
                due = max(due + STAMP_EVERY, now - LATEST)
            elif messages - self.sent >= most:
                self.sent += burst()
            else:
                self._sender.send(self._targets[self.sent % len(self._targets)], payload)
                self.sent += 1

    def _next(self, due: int, now: int) -> int:
        """When the next stamped one is due, of those that are not skipped."""
        due += STAMP_EVERY
        skipped = max(0, now - LATEST - due) // STAMP_EVERY
        self.skipped += skipped
        return due + skipped * STAMP_EVERY

    def _send(self, due: int) -> None:
        target = self._targets[self.sent % len(self._targets)]
        self._sender.send(target, self._stamp(due) if self._stamp.fits else self._payload)
        self.sent += 1


class PacedWriter(Writer):
    """Sends by a timetable, every message with its times."""

    def __init__(
        self, endpoint: Endpoint, number: int, messages: int | None = None, *, rate: float
    ) -> None:
        super().__init__(endpoint, number, messages)
        self._gap = NANOS / rate

    def _send_on(self) -> None:
        self._send_number(None)

    def _send_number(self, messages: int | None) -> None:
        stopped, clock = self._stop.is_set, time.monotonic_ns
        begin, number = clock(), 0
        while not stopped() and (messages is None or self.sent < messages):
            due, now = begin + int(number * self._gap), clock()
            if due > now:
                time.sleep(min(due - now, NANOS // 10) / NANOS)
            elif now - due > LATEST:
                following = int((now - LATEST - begin) / self._gap) + 1
                self.skipped += following - number
                number = following
            else:
                self._send(due)
                number += 1
