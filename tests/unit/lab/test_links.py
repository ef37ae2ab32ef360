"""The two ends of a bare link, on the loopback."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from antiphon.lab import links
from antiphon.lab.links import DATAGRAM, LinkEnd, receive_datagrams, send_datagrams
from antiphon.lab.peers.base import EndpointConfig
from antiphon.lab.peers.udp_c import CoreDatagrams

HOST = "127.0.0.1"


def buffer_of(link: socket.socket | None) -> int:
    assert link is not None
    return link.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


def test_datagrams_have_the_room_that_those_of_a_protocol_have() -> None:
    end = LinkEnd()
    end.do_listen("link-udp", HOST)
    protocol = CoreDatagrams(EndpointConfig(receives=True, size=DATAGRAM))
    protocol.listen()
    try:
        assert buffer_of(end._socket) == buffer_of(protocol._socket)
    finally:
        protocol.close()
        assert end._socket is not None
        end._socket.close()


def test_no_datagram_passes_through_python(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = links.raw_datagrams_send

    def send(fd: int, data: bytes, count: int) -> None:
        calls.append(count)
        real(fd, data, count)

    monkeypatch.setattr(links, "raw_datagrams_send", send)
    end, found = LinkEnd(), []
    port = end.do_listen("link-udp", HOST)["port"]
    thread = threading.Thread(target=lambda: found.append(end.do_receive(0.3)))
    thread.start()
    sent = end.do_send("link-udp", HOST, port, 0.3)["datagrams"]
    thread.join(30)
    assert sent == sum(calls) > 0
    assert 0 < found[0]["datagrams"] <= sent
    assert found[0]["bytes"] == found[0]["datagrams"] * DATAGRAM
    # From the first to the last, without the pause before the end is told.
    assert 0 < found[0]["seconds"] < 20


def test_only_what_was_sent_before_the_end_counts() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as reader,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as writer,
    ):
        reader.bind((HOST, 0))
        writer.connect(reader.getsockname())
        for _ in range(7):
            writer.send(bytes(DATAGRAM))
        writer.send(b"")
        writer.send(b"")
        assert receive_datagrams(reader, 5.0)[0] == 7


def test_a_sender_that_falls_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "SILENCE", 0.2)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as reader,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as writer,
    ):
        reader.bind((HOST, 0))
        writer.connect(reader.getsockname())
        writer.send(bytes(DATAGRAM))
        began = time.monotonic()
        received, seconds = receive_datagrams(reader, 20.0)
        assert (received, time.monotonic() - began < 10) == (1, True)
        assert seconds < 5


def test_nobody_who_sends_is_nothing_received(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "GRACE", 0.1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as reader:
        reader.bind((HOST, 0))
        assert receive_datagrams(reader, 0.1) == (0, 0.0)


def test_nobody_who_receives_is_no_error() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
        gone.bind((HOST, 0))
        address = gone.getsockname()
    assert send_datagrams(address, 0.05) > 0
