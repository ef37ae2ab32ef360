"""What the bare link can do, before any protocol runs over it: ping, TCP, UDP.

Each has two halves, for processes at the two ends of the link. Run as ``python -m
antiphon.lab.links`` it is such a process; ``bench.orders`` says how it is spoken to, and
``link_runs`` does so. TCP and UDP go by loops in the core, as those of ``tcp-c`` and ``udp-c`` do:
what Python can do would be no measure of a link that others use better. Its orders are

====================  ===========================================================================
``clock``             this machine's clock
``ping``              echoes from another host; answers with times in nanoseconds
``listen``            for ``link-tcp`` or ``link-udp``; answers with a port
``receive``           what one sender sends there; answers with bytes, seconds and datagrams
``send``              to such a port; answers with the number of datagrams
====================  ===========================================================================
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from typing import Any

from antiphon._core import (
    raw_datagrams_receive,
    raw_datagrams_send,
    raw_stream_receive,
    raw_stream_send,
)
from antiphon.lab.bench.orders import Connectable, Orders, carry_out
from antiphon.lab.peers.base import payload_of
from antiphon.lab.peers.udp_python import BUFFER_BYTES
from antiphon.lab.stamps import MARK, STAMP_BYTES

__all__ = ["SIZES", "LinkEnd", "ping", "receive_datagrams", "send_datagrams"]

_ECHO, _REPLY = 8, 0
_HEADER = struct.Struct("!BBHHH")
_PACE = 0.002
ECHO = 56
CHUNK = 65536
DATAGRAM = 1472
SIZES = {"link-ping": ECHO, "link-tcp": CHUNK, "link-udp": DATAGRAM}
"""Bytes of what each check sends, without headers: an echo, one write, a datagram."""

# Datagrams between two looks at the clock, and seconds between two at what has come.
BURST = 256
SLICE = 0.02
# Beyond the time for which is sent: to connect, and for what is under way.
GRACE = 10.0
# A sender that is silent for so long has nothing more.
SILENCE = 2.0
# By then a queue on the way is empty, and what says that it was all gets through.
PAUSE = 0.1


def _checksum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def ping(host: str, seconds: float) -> list[tuple[int, int]]:
    """Echoes by a raw ICMP socket: when each was sent, and when it came back, in nanoseconds.

    Needs the right to open such a socket; raises `PermissionError` without.
    """
    number = os.getpid() & 0xFFFF
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        raw.settimeout(0.5)
        until = time.monotonic() + seconds
        sequence = 0
        while time.monotonic() < until:
            sequence = (sequence + 1) & 0xFFFF
            empty = _HEADER.pack(_ECHO, 0, 0, number, sequence) + bytes(ECHO)
            message = _HEADER.pack(_ECHO, 0, _checksum(empty), number, sequence) + bytes(ECHO)
            sent = time.monotonic_ns()
            raw.sendto(message, (host, 0))
            came = _await_reply(raw, number, sequence)
            if came is not None:
                found.append((sent, came))
            time.sleep(_PACE)
    return found


def _await_reply(raw: socket.socket, number: int, sequence: int) -> int | None:
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        try:
            packet = raw.recv(2048)
        except TimeoutError:
            return None
        came = time.monotonic_ns()
        start = (packet[0] & 0x0F) * 4
        kind, _, _, theirs, which = _HEADER.unpack_from(packet, start)
        if (kind, theirs, which) == (_REPLY, number, sequence):
            return came
    return None


def send_datagrams(address: tuple[str, int], seconds: float) -> int:
    """As many as go, then some empty ones, which say that it was all. How many there were."""
    data, sent = payload_of(DATAGRAM), 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as writer:
        writer.connect(address)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            raw_datagrams_send(writer.fileno(), data, BURST)
            sent += BURST
        for _ in range(5):
            time.sleep(PAUSE)
            with contextlib.suppress(ConnectionRefusedError):  # one got there, and that was enough
                writer.send(b"")
    return sent


def receive_datagrams(reader: socket.socket, seconds: float) -> tuple[int, float]:
    """Until the sender says that it was all: how many came, and how long that took."""
    received, first, last = 0, 0, 0
    deadline = time.monotonic() + seconds + GRACE
    if not select.select([reader], [], [], seconds + GRACE)[0]:
        return 0, 0.0
    first = last = time.monotonic_ns()
    while time.monotonic() < deadline and time.monotonic_ns() - last < SILENCE * 1e9:
        # An empty one is of another size than those that count. None of these is marked.
        count, _, others, when, _ = raw_datagrams_receive(
            reader.fileno(), DATAGRAM, SLICE, MARK, STAMP_BYTES
        )
        if count > others:
            received += count - others
            last = when
        if others:
            break
    return received, (last - first) / 1e9


class LinkEnd(Orders):
    """One end of a link."""

    def __init__(self) -> None:
        super().__init__()
        self._socket: socket.socket | None = None

    def _parts(self) -> list[Connectable]:
        return []

    def do_clock(self) -> dict[str, Any]:
        return {"time_ns": time.monotonic_ns()}

    def do_ping(self, host: str, seconds: float) -> dict[str, Any]:
        try:
            return {"times": ping(host, seconds)}
        except PermissionError as error:
            return {"times": [], "refused": str(error)}

    def do_listen(self, check: str, host: str) -> dict[str, Any]:
        if check == "link-tcp":
            self._socket = socket.create_server((host, 0), backlog=1)
        else:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            self._socket.bind((host, 0))
        return {"port": self._socket.getsockname()[1]}

    def do_receive(self, seconds: float) -> dict[str, Any]:
        assert self._socket is not None
        with self._socket as link:
            if link.type == socket.SOCK_STREAM:
                count, elapsed = raw_stream_receive(link.fileno(), seconds + GRACE)
                return {"bytes": count, "seconds": elapsed}
            received, elapsed = receive_datagrams(link, seconds)
        return {"bytes": received * DATAGRAM, "seconds": elapsed, "datagrams": received}

    def do_send(self, check: str, host: str, port: int, seconds: float) -> dict[str, Any]:
        if check == "link-tcp":
            raw_stream_send(host, port, CHUNK, seconds)
            return {}
        return {"datagrams": send_datagrams((host, port), seconds)}


if __name__ == "__main__":
    carry_out(LinkEnd())
