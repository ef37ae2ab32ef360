"""The core's streams of chunks: every byte as it was sent, and counted while they go on."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from antiphon import _core
from antiphon.lab.peers.base import EndpointConfig, payload_of
from antiphon.lab.peers.tcp_c import CoreStreams
from antiphon.lab.stamps import COLUMNS, MARK, STAMP_BYTES, Reader, Stamper
from antiphon.testing import eventually

FIRST = 1


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sending = socket.create_connection(server.getsockname())
        receiving, _ = server.accept()
    with sending, receiving:
        receiving.settimeout(20)
        yield sending, receiving


def received(link: socket.socket, size: int) -> bytes:
    parts = []
    while size > 0:
        parts.append(link.recv(min(size, 65_536)))
        assert parts[-1], "the stream has ended"
        size -= len(parts[-1])
    return b"".join(parts)


class Reading:
    """A reader in the core, with the thread that reads one connection."""

    def __init__(self, link: socket.socket, size: int) -> None:
        self._link = link
        self.core = _core.StreamReader(size, FIRST, MARK, STAMP_BYTES)
        self.thread = threading.Thread(target=self.core.read, args=(link.fileno(),), daemon=True)
        self.thread.start()

    def messages(self) -> int:
        return self.core.take()[0]

    def end(self) -> None:
        self._link.shutdown(socket.SHUT_RDWR)
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.mark.parametrize("size", [1, 23, 64, 2000, 300_001])
def test_every_byte_arrives_as_it_was_sent(
    pair: tuple[socket.socket, socket.socket], size: int
) -> None:
    sending, receiving = pair
    count = max(3, 500_000 // size)
    writing = threading.Thread(
        target=_core.raw_stream_write, args=(sending.fileno(), payload_of(size), count)
    )
    writing.start()
    found = received(receiving, size * count)
    writing.join()
    assert found == payload_of(size) * count


@pytest.mark.parametrize("piece", [1, 7, 100, 1000])
def test_chunks_are_counted_and_marked_ones_kept_however_they_are_cut(
    pair: tuple[socket.socket, socket.socket], piece: int
) -> None:
    sending, receiving = pair
    size, stamp = 40, Stamper(7, 40)
    before = time.monotonic_ns()
    messages = [stamp(number) if number % 3 == 1 else payload_of(size) for number in range(50)]
    reading = Reading(receiving, size)
    data = b"".join(messages)
    for at in range(0, len(data), piece):
        sending.sendall(data[at : at + piece])
    sending.shutdown(socket.SHUT_WR)
    reading.thread.join(20)
    assert not reading.thread.is_alive()
    count, total, wrong, last_ns, dropped, marked = reading.core.take()
    assert (count, total, wrong, dropped) == (50, 2000, 0, 0)
    assert before <= last_ns <= time.monotonic_ns()
    rows = list(struct.iter_unpack("<BxHIqqq", marked))
    assert [row[2] for row in rows] == list(range(17))
    assert [row[3] for row in rows] == [number for number in range(50) if number % 3 == 1]
    assert all(row[1] == 7 and before <= row[4] <= row[5] <= last_ns for row in rows)
    assert reading.core.take()[5] == b""


def test_counts_are_read_while_the_stream_goes_on(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sending, receiving = pair
    reading = Reading(receiving, 100)
    for number in range(1, 4):
        _core.raw_stream_write(sending.fileno(), payload_of(100), 10)
        eventually(lambda want=10 * number: reading.messages() == want, 20)
        assert reading.thread.is_alive()
    reading.end()


def test_what_begins_with_another_byte_is_wrong(pair: tuple[socket.socket, socket.socket]) -> None:
    sending, receiving = pair
    reading = Reading(receiving, 100)
    sending.sendall(payload_of(100) + b"x" * 100 + payload_of(100))
    eventually(lambda: reading.messages() == 3, 20)
    assert reading.core.take()[2] == 1
    reading.end()


def test_what_cannot_be_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(ValueError, match="nothing to send"):
        _core.raw_stream_write(pair[0].fileno(), b"", 1)
    with pytest.raises(ValueError, match="size"):
        _core.StreamReader(0, FIRST, MARK, STAMP_BYTES)
    with pytest.raises(OSError, match="recv"):
        _core.StreamReader(1, FIRST, MARK, STAMP_BYTES).read(-1)


def test_an_endpoint_tells_its_reader_before_it_is_asked() -> None:
    reader = Reader(200)
    there = CoreStreams(EndpointConfig(size=200, receives=True), reader)
    here = CoreStreams(EndpointConfig(index=1, size=200, targets=(0,)))
    try:
        here.connect({0: there.listen()})
        sender, stamp = here.sender(), Stamper(1, 200)
        sent = sender.burst()
        for number in range(5):
            sender.send(0, stamp(number))
        sent += 5 + sender.burst()

        def all_there() -> bool:
            there.catch_up()
            return reader.messages == sent

        eventually(all_there, 20)
        assert (reader.wrong, reader.received_bytes) == (0, 200 * sent)
        assert reader.last_ns > 0
        assert reader.times.take(end=True)[::COLUMNS].tolist() == list(range(5))
        assert there.received().messages == sent
        sender.close()
    finally:
        here.close()
        there.close()
    assert there.fault() == ""


def test_whoever_wants_to_see_every_message_gets_it() -> None:
    seen: list[bytes] = []
    there = CoreStreams(EndpointConfig(size=100, receives=True), seen.append)
    here = CoreStreams(EndpointConfig(index=1, size=100, targets=(0,)))
    try:
        here.connect({0: there.listen()})
        sender = here.sender()
        messages = [bytes([number]) * 100 for number in range(50)]
        for message in messages:
            sender.send(0, message)
        eventually(lambda: len(seen) == 50, 20)
        assert seen == messages
        sender.close()
    finally:
        here.close()
        there.close()
