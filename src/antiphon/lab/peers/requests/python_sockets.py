"""Plain blocking sockets: a thread per connection, a connection per calling thread and target.

A frame is a four-byte length and the payload, sent with one call and received with as few as it
takes. Nothing in Python answers sooner.
"""

from __future__ import annotations

import socket
import struct
from functools import partial

from antiphon.lab.peers.requests.base import Caller, SocketEndpoint

__all__ = ["ENDPOINT", "PythonSockets"]

LENGTH = struct.Struct("<I")
READ_BYTES = 64 * 1024


class Frames:
    """One connection, cut into frames. Used by one thread."""

    def __init__(self, stream: socket.socket) -> None:
        self._send = stream.sendall
        self._receive = stream.recv
        self._rest = b""

    def send(self, data: bytes) -> None:
        self._send(LENGTH.pack(len(data)) + data)

    def receive(self) -> bytes | None:
        """The next frame, or None at the end of the stream."""
        buffer = self._rest or self._receive(READ_BYTES)
        while len(buffer) < 4 or len(buffer) < (end := 4 + LENGTH.unpack_from(buffer)[0]):
            if not (more := self._receive(READ_BYTES)):
                return None
            buffer += more
        self._rest = buffer[end:]
        return buffer[4:end]

    def call(self, data: bytes) -> bytes:
        self.send(data)
        answer = self.receive()
        if answer is None:
            raise ConnectionResetError("the other end has closed")
        return answer


def _close(streams: list[socket.socket]) -> None:
    for stream in streams:
        stream.close()


class PythonSockets(SocketEndpoint):
    """An echo in every connection's own thread."""

    def _echo(self, stream: socket.socket) -> None:
        frames = Frames(stream)
        while (data := frames.receive()) is not None:
            frames.send(data)

    def caller(self) -> Caller:
        streams = self._dial()
        return Caller([Frames(stream).call for stream in streams], partial(_close, streams))


ENDPOINT = PythonSockets
