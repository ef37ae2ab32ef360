"""Writers: what they send, when it was due, and what they count as never sent."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Mapping

import pytest

from antiphon.lab.peers.base import Endpoint, EndpointConfig, Sender
from antiphon.lab.stamps import MARK
from antiphon.lab.writers import LATEST, NANOS, STAMP_EVERY, PacedWriter, Writer
from antiphon.testing import eventually


class Kept(Sender):
    """Keeps what it is given; the first message takes as long as it is told."""

    def __init__(self, endpoint: Held) -> None:
        self._endpoint = endpoint

    def burst(self) -> int:
        time.sleep(self._endpoint.burst_seconds)
        return 1

    def send(self, target: int, data: bytes) -> None:
        self._endpoint.sent.append((target, data))
        self._endpoint.let.wait()


class Held(Endpoint):
    """Holds its senders until it is told to let them go."""

    burst_seconds = 0.001

    def __init__(self, config: EndpointConfig) -> None:
        super().__init__(config)
        self.sent: list[tuple[int, bytes]] = []
        self.let = threading.Event()

    def listen(self) -> str:
        return ""

    def connect(self, addresses: Mapping[int, str]) -> None:
        pass

    def sender(self) -> Sender:
        return Kept(self)

    def close(self) -> None:
        pass

    def _count(self) -> tuple[int, int | None]:
        return 0, None

    def due(self) -> list[int]:
        """When the stamped ones were due."""
        return [struct.unpack_from("<q", data, 8)[0] for _, data in self.sent if data[0] == MARK]


def held_up(endpoint: Held, writer: Writer, seconds: float, until: int) -> None:
    """Its first message takes so long; then so many more are sent."""
    writer.start()
    try:
        eventually(lambda: len(endpoint.sent) >= 1, 20)
        time.sleep(seconds)  # it is behind by this, or more on a busy machine
        endpoint.let.set()
        eventually(lambda: len(endpoint.sent) >= until, 20)
    finally:
        endpoint.let.set()
        writer.close(20)
    assert writer.fault == ""


def test_what_was_due_too_long_ago_is_counted_and_the_timetable_stays() -> None:
    endpoint = Held(EndpointConfig(size=100, targets=(1,)))
    writer = PacedWriter(endpoint, 0, rate=1000)
    held_up(endpoint, writer, 1.5, until=200)
    due = endpoint.due()
    assert writer.skipped >= 400
    # Every one has its place in the timetable, and each is either sent or counted.
    steps = [round((one - due[0]) / (NANOS / 1000)) for one in due]
    assert all(abs(one - due[0] - step * 1e6) < 1000 for one, step in zip(due, steps, strict=True))
    assert steps[-1] + 1 == len(due) + writer.skipped
    # The stop shows in the delays: those within the last second were sent, late.
    sent = struct.unpack_from("<q", endpoint.sent[1][1], 16)[0]
    assert LATEST / 2 < sent - due[1] <= LATEST * 1.5


def test_a_writer_that_is_a_little_late_skips_nothing() -> None:
    endpoint = Held(EndpointConfig(size=100, targets=(1,)))
    writer = PacedWriter(endpoint, 0, rate=100)
    held_up(endpoint, writer, 0.2, until=50)
    if max(late for late in lateness(endpoint)) < LATEST / 2:  # the machine had time for it
        assert writer.skipped == 0
        steps = [one - endpoint.due()[0] for one in endpoint.due()]
        assert steps == [number * STAMP_EVERY for number in range(len(steps))]


def lateness(endpoint: Held) -> list[int]:
    return [
        struct.unpack_from("<q", data, 16)[0] - struct.unpack_from("<q", data, 8)[0]
        for _, data in endpoint.sent
    ]


def test_stamps_between_other_messages_are_sent_late_or_counted_too() -> None:
    endpoint = Held(EndpointConfig(size=100, targets=(1,)))
    writer = Writer(endpoint, 0)
    held_up(endpoint, writer, 1.5, until=30)
    due = endpoint.due()
    assert writer.skipped >= 40
    steps = [(one - due[0]) / STAMP_EVERY for one in due]
    assert all(step == int(step) for step in steps)
    assert steps[-1] + 1 == len(due) + writer.skipped


def test_bursts_that_take_long_do_not_make_stamps_later_and_later() -> None:
    endpoint = Held(EndpointConfig(size=100, targets=(1,)))
    endpoint.burst_seconds = 5 * STAMP_EVERY / NANOS
    endpoint.let.set()
    writer = Writer(endpoint, 0)
    held_up(endpoint, writer, 0.0, until=200)
    # A fifth of them at a time: with one after each burst the last would be eight seconds late.
    assert sorted(lateness(endpoint))[100] < LATEST / 4
    assert writer.skipped == 0 or max(lateness(endpoint)) > LATEST


def test_of_a_given_number_none_is_skipped_however_long_they_take() -> None:
    endpoint = Held(EndpointConfig(size=100, targets=(1,), messages=300))
    writer = Writer(endpoint, 0, messages=300)
    held_up(endpoint, writer, 1.5, until=5)
    assert writer.skipped == 0


@pytest.mark.parametrize("size", [1, 23])
def test_what_is_too_short_for_a_stamp_has_its_size_by_a_timetable(size: int) -> None:
    endpoint = Held(EndpointConfig(size=size, targets=(1, 2)))
    endpoint.let.set()
    writer = PacedWriter(endpoint, 0, 10, rate=10_000)
    writer.start()
    assert writer.finished.wait(20)
    writer.close(20)
    assert [len(data) for _, data in endpoint.sent] == [size] * 10
    assert {target for target, _ in endpoint.sent} == {1, 2}
