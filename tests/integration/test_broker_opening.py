"""Logs that cannot be opened, or take long to open: it is said, tried again, and nobody else's."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon import AntiphonError, Bus, ConfigError
from antiphon.broker.store import Store
from antiphon.testing import eventually
from integration.buses import PATIENCE, Events
from integration.durables import in_log, record, recording, standing, take
from unit.node.pairs import free_address

pytestmark = pytest.mark.timeout(120)

_LAST = f"{10**10:020d}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store in which two topics are recorded."""
    store = tmp_path / "store"
    with Store(store) as logs:
        logs.append("bad", b"bad")
        logs.append("good", b"good")
    return store


def another(path: Path, topic: str) -> Path:
    """What the last segment of a topic would be called."""
    for segment in sorted(path.glob("topics/*/*.log")):
        if topic.encode() in segment.read_bytes()[:256]:
            return segment.with_name(_LAST + segment.suffix)
    raise AssertionError(f"{topic} has no segment")


@contextlib.contextmanager
def broken(path: Path, topic: str = "bad") -> Iterator[Path]:
    """Its log cannot be opened: one of its segments is a directory."""
    segment = another(path, topic)
    segment.mkdir()
    yield segment
    if segment.exists():
        segment.rmdir()


@pytest.mark.parametrize("durable", [None, "d"])
def test_a_log_that_cannot_be_opened_stops_no_other_and_is_tried_again(
    path: Path, durable: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with broken(path) as segment, recording(path) as broker, Bus(broker.address) as bus:
        events, later = Events(), Events()
        bus.subscribe("*", events, start="earliest", durable=durable)
        assert events.wait(1) == [b"good"]
        bus.subscribe("good", later, start="earliest")
        assert later.wait(1) == [b"good"]
        eventually(lambda: "its log cannot be opened" in caplog.text, PATIENCE, "it is told")
        assert "'bad' cannot be opened, which is tried again" in caplog.text
        record(bus, "good", b"more")
        assert events.wait(2) == [b"good", b"more"]
        segment.rmdir()
        assert events.wait(3)[2] == b"bad"
        record(bus, "bad", b"mended")
        assert events.wait(4)[3] == b"mended"


def test_a_name_whose_dead_letters_cannot_be_opened_is_served_when_they_can(path: Path) -> None:
    with Store(path) as logs:
        logs.append("$dead/d", b"letter")
    with broken(path, "$dead/d") as segment, recording(path) as broker, Bus(broker.address) as bus:
        with pytest.raises(AntiphonError, match="the broker's disk failed") as caught:
            bus.subscribe("good", durable="d", start="earliest")
        assert not isinstance(caught.value, ConfigError)
        segment.rmdir()
        sub = bus.subscribe("good", durable="d", start="earliest")
        assert take(sub, 1)[0].data == b"good"


def test_a_publisher_is_told_and_may_try_again(path: Path) -> None:
    with broken(path) as segment, recording(path) as broker, Bus(broker.address) as bus:
        with pytest.raises(AntiphonError, match="the broker's disk failed"):
            bus.publisher("bad", record=True)
        record(bus, "good", b"more")
        segment.rmdir()
        record(bus, "bad", b"more")
    assert in_log(path, "bad") == [b"bad", b"more"]


def test_a_publisher_goes_on_when_the_log_of_a_new_broker_can_be_opened(path: Path) -> None:
    address = free_address()
    with Bus(address) as bus:
        with standing(address, path) as child:
            publisher = bus.publisher("bad", record=True)
            publisher.publish(b"one")
            publisher.flush(PATIENCE)
            child.kill()
        with broken(path) as segment, standing(address, path):
            publisher.publish(b"two")
            with pytest.raises(AntiphonError, match="acknowledged"):
                publisher.flush(1.5)
            segment.rmdir()
            publisher.flush(2 * PATIENCE)  # pauses grow to 8 s
    assert in_log(path, "bad") == [b"bad", b"one", b"two"]


def test_while_a_log_is_opened_everything_else_goes_on(path: Path) -> None:
    """The disk is a pipe that nobody has opened at its other end: it takes as long as it likes."""
    segment = another(path, "bad")
    os.mkfifo(segment)
    with recording(path) as broker, Bus(broker.address) as bus, Bus(broker.address) as other:
        stuck, live = Events(), Events()
        try:
            bus.subscribe("bad", stuck, start="earliest")
            assert broker._opening is not None
            wanted = broker._opening._wanted
            eventually(lambda: "bad" in wanted, PATIENCE, "it is being opened")
            other.subscribe("live", live)
            publisher = bus.publisher("live")
            eventually(lambda: publisher.publish(b"x") or len(live) > 0, PATIENCE)
            assert broker.statistics().clients == 2
            assert "bad" in wanted
        finally:
            end = os.open(segment, os.O_RDWR | os.O_NONBLOCK)
            segment.unlink()
            os.close(end)
        assert stuck.wait(1) == [b"bad"]


def test_while_a_position_is_written_everything_else_goes_on(path: Path) -> None:
    """As above, with the file of a durable subscription."""
    draft = path / "subscriptions" / "d.new"
    draft.parent.mkdir()
    os.mkfifo(draft)
    with recording(path) as broker, Bus(broker.address) as bus, Bus(broker.address) as other:
        named, live = Events(), Events()
        try:
            bus.subscribe("good", named, durable="d", start="earliest")
            assert named.wait(1) == [b"good"]
            other.subscribe("live", live)
            publisher = bus.publisher("live")
            eventually(lambda: publisher.publish(b"x") or len(live) > 0, PATIENCE)
            assert broker.statistics().clients == 2
        finally:
            end = os.open(draft, os.O_RDWR | os.O_NONBLOCK)
            draft.unlink(missing_ok=True)  # or the broker has, since no pipe can be synced
            os.close(end)
        eventually(draft.with_suffix(".json").exists, PATIENCE, "it is written in the end")


def test_logs_of_an_earlier_life_forget_what_is_too_much(path: Path) -> None:
    with Store(path, segment_bytes=4096) as logs:
        for _ in range(20):
            logs.append("good", bytes(2000))
    before = size(path)
    with recording(path, keep_bytes=8192):  # nobody asks for it
        eventually(lambda: size(path) < before / 2, PATIENCE, "it keeps less")


def size(path: Path) -> int:
    """Of all logs; files may go while it looks."""
    total = 0
    for file in path.glob("topics/*/*"):
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


def test_damage_is_said_and_counted_when_it_is_passed(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    with Store(path) as logs:
        for data in (b"first", b"second", b"third"):
            logs.append("hurt", data)
    for segment in path.glob("topics/*/*.log"):
        content = segment.read_bytes()
        if b"second" in content:
            segment.write_bytes(content.replace(b"second", b"SECOND"))
    with recording(path) as broker, Bus(broker.address) as bus:
        events, again = Events(), Events()
        bus.subscribe("hurt", events, start="earliest")
        assert events.wait(2) == [b"first", b"third"]
        bus.subscribe("hurt", again, start="earliest", durable="d")
        assert again.wait(2) == [b"first", b"third"]
        eventually(lambda: broker.statistics().damaged == 1, PATIENCE)
        eventually(lambda: "the log of 'hurt' is damaged" in caplog.text, PATIENCE)
        assert caplog.text.count("the log of 'hurt' is damaged") == 1
