"""What the bare link can do, before any protocol runs over it: ping, TCP, UDP.

Hands to the runner what it writes down as runs of ``link-ping``, ``link-tcp`` and ``link-udp``.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time

from antiphon._core import raw_stream_receive, raw_stream_send

__all__ = ["LINK_CHECKS", "ping", "tcp_bandwidth", "udp_bandwidth"]

LINK_CHECKS = ("link-ping", "link-tcp", "link-udp")
_ECHO, _REPLY = 8, 0
_HEADER = struct.Struct("!BBHHH")
_PACE = 0.002
CHUNK = 65536
DATAGRAM = 1472


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
            empty = _HEADER.pack(_ECHO, 0, 0, number, sequence) + bytes(56)
            message = _HEADER.pack(_ECHO, 0, _checksum(empty), number, sequence) + bytes(56)
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


def tcp_bandwidth(host: str, seconds: float) -> float:
    """Bytes per second of one stream from two C loops."""
    with socket.create_server((host, 0), backlog=1) as listener:
        port: int = listener.getsockname()[1]
        received: list[tuple[int, float]] = []

        def receive() -> None:
            received.append(raw_stream_receive(listener.fileno(), seconds + 10.0))

        thread = threading.Thread(target=receive)
        thread.start()
        try:
            raw_stream_send(host, port, CHUNK, seconds)
        finally:
            thread.join()
    count, elapsed = received[0]
    return count / max(1e-9, elapsed)


def udp_bandwidth(host: str, seconds: float) -> tuple[float, int, int]:
    """Bytes per second that arrive, and how many datagrams were sent and received."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as reader,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as writer,
    ):
        reader.bind((host, 0))
        reader.settimeout(0.2)
        writer.connect(reader.getsockname())
        received = 0

        def receive() -> None:
            nonlocal received
            buffer = bytearray(DATAGRAM)
            while True:
                try:
                    received += bool(reader.recv_into(buffer))
                except TimeoutError:
                    if done.is_set():
                        return

        done = threading.Event()
        thread = threading.Thread(target=receive)
        thread.start()
        data, sent = bytes(DATAGRAM), 0
        began = time.monotonic()
        try:
            while time.monotonic() - began < seconds:
                for _ in range(64):
                    writer.send(data)
                sent += 64
        finally:
            elapsed = time.monotonic() - began
            done.set()
            thread.join()
    return received * DATAGRAM / elapsed, sent, received
