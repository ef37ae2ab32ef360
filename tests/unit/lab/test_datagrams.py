"""The core's loops for datagrams, on real sockets."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from antiphon import _core
from antiphon.lab.peers.base import payload_of
from antiphon.lab.peers.udp_python import LARGEST

MARK = 0xFF
HEAD = 24

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """One that sends to the other."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as reader,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as writer,
    ):
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        reader.bind(("127.0.0.1", 0))
        writer.connect(reader.getsockname())
        yield writer, reader


def receive(reader: socket.socket, size: int, seconds: float = 0.05) -> tuple[int, int, int]:
    return _core.raw_datagrams_receive(reader.fileno(), size, seconds, MARK, HEAD)[:3]


@pytest.mark.parametrize(("size", "count"), [(1, 100), (64, 150), (2000, 65), (LARGEST, 2)])
def test_what_is_sent_arrives_and_is_counted(pair: Pair, size: int, count: int) -> None:
    writer, reader = pair
    _core.raw_datagrams_send(writer.fileno(), payload_of(size), count)
    assert receive(reader, size) == (count, count * size, 0)


def test_marked_ones_are_kept_with_the_time_at_which_they_came(pair: Pair) -> None:
    writer, reader = pair
    before = time.monotonic_ns()
    for number in range(3):
        writer.send(payload_of(64))
        writer.send(bytes([MARK, number]) + payload_of(62))
    count, size, wrong, last, kept = _core.raw_datagrams_receive(
        reader.fileno(), 64, 0.05, MARK, HEAD
    )
    assert (count, size, wrong) == (6, 6 * 64, 0)
    assert len(kept) == 3 * (HEAD + 8)
    for number in range(3):
        row = kept[number * (HEAD + 8) :][: HEAD + 8]
        assert row[:HEAD] == (bytes([MARK, number]) + payload_of(62))[:HEAD]
        assert before <= int.from_bytes(row[HEAD:], "little") <= last <= time.monotonic_ns()


def test_no_message_is_marked_that_is_shorter_than_its_head(pair: Pair) -> None:
    writer, reader = pair
    writer.send(bytes([MARK]) * 8)
    assert _core.raw_datagrams_receive(reader.fileno(), 8, 0.05, MARK, HEAD)[4] == b""


@pytest.mark.parametrize("size", [0, 10, 65, 1000])
def test_another_size_is_wrong_and_counted_whole(pair: Pair, size: int) -> None:
    writer, reader = pair
    writer.send(bytes([MARK]) * size)
    writer.send(payload_of(64))
    count, total, wrong, _, kept = _core.raw_datagrams_receive(
        reader.fileno(), 64, 0.05, MARK, HEAD
    )
    assert (count, total, wrong, kept) == (2, size + 64, 1, b"")


def test_many_marked_ones_end_it_before_its_time(pair: Pair) -> None:
    writer, reader = pair
    stop = threading.Event()

    def send() -> None:
        while not stop.is_set():
            _core.raw_datagrams_send(writer.fileno(), bytes([MARK]) * 64, 100)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        kept = _core.raw_datagrams_receive(reader.fileno(), 64, 60.0, MARK, HEAD)[4]
    finally:
        stop.set()
        thread.join(20)
    assert 4096 <= len(kept) // (HEAD + 8) < 4096 + 64


def test_silence_ends_it_in_time_and_other_threads_go_on(pair: Pair) -> None:
    went_on = []
    thread = threading.Thread(target=lambda: went_on.append(time.monotonic()))
    began = time.monotonic()
    threading.Timer(0.05, thread.start).start()
    found = _core.raw_datagrams_receive(pair[1].fileno(), 64, 2.0, MARK, HEAD)
    took = time.monotonic() - began
    thread.join(10)
    assert found == (0, 0, 0, 0, b"")
    assert 1.6 < took < 20
    assert went_on[0] < began + took


def test_nobody_there_is_loss_and_no_error() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as writer,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone,
    ):
        gone.bind(("127.0.0.1", 0))
        writer.connect(gone.getsockname())
        gone.close()
        for _ in range(5):
            _core.raw_datagrams_send(writer.fileno(), b"to nobody", 100)


def test_a_socket_that_is_none_is_an_error() -> None:
    unused = os.dup(0)
    os.close(unused)
    for fd in (-1, unused):
        with pytest.raises(OSError, match="descriptor"):
            _core.raw_datagrams_send(fd, b"x", 1)
        with pytest.raises(OSError, match="descriptor"):
            _core.raw_datagrams_receive(fd, 64, 0.0, MARK, HEAD)


def test_what_no_datagram_can_hold_is_an_error(pair: Pair) -> None:
    with pytest.raises(OSError, match="too long"):
        _core.raw_datagrams_send(pair[0].fileno(), bytes(LARGEST + 1), 1)


@pytest.mark.parametrize(
    ("size", "seconds", "head"), [(0, 1.0, 24), (64, -1.0, 24), (64, float("nan"), 24), (64, 1, 0)]
)
def test_bad_arguments_are_refused(pair: Pair, size: int, seconds: float, head: int) -> None:
    with pytest.raises(ValueError, match=r"size|seconds|head"):
        _core.raw_datagrams_receive(pair[1].fileno(), size, seconds, MARK, head)
    with pytest.raises(ValueError, match="nothing to send"):
        _core.raw_datagrams_send(pair[0].fileno(), b"", 1)
