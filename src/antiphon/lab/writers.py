"""The threads of a run that send: as fast as they can, by a timetable, or a given number.

Receives an endpoint from `antiphon.lab.worker`, which reads their counts while they send.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from antiphon.lab.bench.orders import WorkingThread
from antiphon.lab.peers.base import Endpoint, Sender, StreamEndpoint, payload_of
from antiphon.lab.stamps import Stamper

__all__ = ["PacedWriter", "Streaming", "Writer", "parts_of"]

NANOS = 1_000_000_000
STAMP_EVERY = NANOS // 100
# Behind by more than this a timetable begins anew: what was due is not sent any more.
LATEST = NANOS
FLUSH = 5.0
# Until a given number is out, which may take as long as the run; that ends with the process.
FLUSH_ALL = 600.0
# Of a stream, which is counted when it has ended: short against the window.
STREAM_SECONDS = 0.25


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
    """

    def __init__(self, endpoint: Endpoint, number: int, messages: int | None = None) -> None:
        super().__init__(f"write-{number}")
        self.sent = 0
        self.begun_ns = 0
        self._endpoint = endpoint
        self._targets = endpoint.config.targets
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
            now = clock()
            if now < due or not self._stamp.fits:
                continue
            if now - due > LATEST:
                due = now
            self._send(due)
            due += STAMP_EVERY

    def _send_number(self, messages: int) -> None:
        stopped, burst, clock = self._stop.is_set, self._sender.burst, time.monotonic_ns
        config = self._endpoint.config
        payload = payload_of(config.size)
        # No burst sends more; the last messages go one by one, so that not one is too many.
        most = config.burst * len(self._targets)
        due = clock()
        while self.sent < messages and not stopped():
            now = clock()
            if self._stamp.fits and now >= due:
                due = max(due, now - LATEST)
                self._send(due)
                due += STAMP_EVERY
            elif messages - self.sent >= most:
                self.sent += burst()
            else:
                self._sender.send(self._targets[self.sent % len(self._targets)], payload)
                self.sent += 1

    def _send(self, due: int) -> None:
        target = self._targets[self._stamp.sequence % len(self._targets)]
        self._sender.send(target, self._stamp(due))
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
            due = begin + int(number * self._gap)
            wait = due - clock()
            if wait > 0:
                time.sleep(min(wait, NANOS // 10) / NANOS)
                continue
            if -wait > LATEST:
                begin, number = clock(), 0
                continue
            self._send(due)
            number += 1


class Streaming(WorkingThread):
    """A bare stream, one short one after the other, at either end."""

    def __init__(self, stream: StreamEndpoint) -> None:
        super().__init__("stream")
        self.bytes = 0
        self._endpoint = stream

    def _open(self) -> None:
        """Nothing: every transfer makes its own connection."""

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                self.bytes += self._endpoint.transfer(STREAM_SECONDS)[0]
            except OSError:
                if not self._stop.is_set():
                    raise

    def stop(self) -> None:
        super().stop()
        self._endpoint.wake()

    def close(self, timeout: float) -> None:
        self.stop()
        super().close(timeout)

    def _end(self) -> None:
        """Nothing is left of a transfer."""
