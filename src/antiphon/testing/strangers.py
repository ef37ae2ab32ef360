"""Clients and servers that do not keep to the protocol.

A `Stranger` is a raw socket to a node: it says whatever bytes a test wants, and also knows how to
say the right ones, so that it can misbehave at any later point. A `Host` is a raw listener that a
node dials. The layout of frames and of the handshake is written out here a second time, from its
description and not from the core's code, so that the two check each other.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

from antiphon.node.address import parse_address
from antiphon.testing.waiting import readable, writable

__all__ = [
    "Frame",
    "Host",
    "Stranger",
    "frame",
    "hello",
    "proof",
    "reply",
    "reply_parts",
    "response",
    "response_body",
    "text",
]

MAGIC = 0x48504E41
VERSION = 1
HEADER = struct.Struct("<IHHI")
"""length, kind, flags, flow"""
_HELLO = struct.Struct("<IHHIBBHHQ16sQI")

HELLO, REPLY, CONFIRM, REFUSE, READY, LIVENESS, PROBE, BYE = range(1, 9)
ANNOUNCE, WITHDRAW, OPEN, SHUT, WINDOW, CREDIT, FLUSH, FLUSHED = range(9, 17)
RESERVE, RESERVED, CANCEL, PAD, DIAL_ME = range(17, 22)

PACKED, FRAGMENT, LAST, REQUEST, RESPONSE = 1, 2, 4, 8, 16
ANSWER, ERROR, UNKNOWN_KIND, CANNOT = range(4)
"""How a response says that it went."""
MINE, YOURS = 0, 1
"""Whose data the channel carries, seen from the dialler."""
HAS_SECRET, NO_LISTENER, ASKS_WHO = 1, 2, 4


class Frame(NamedTuple):
    """One frame as it came."""

    kind: int
    flags: int
    flow: int
    payload: bytes


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, flow: int = 0) -> bytes:
    """A frame whose length is right."""
    return HEADER.pack(len(payload), kind, flags, flow) + payload


def text(value: str) -> bytes:
    """A string behind its length, as records hold them."""
    data = value.encode()
    return struct.pack("<H", len(data)) + data


def hello(
    node: int,
    *,
    expected: int = 0,
    magic: int = MAGIC,
    versions: tuple[int, int] = (VERSION, VERSION),
    features: int = 0,
    direction: int = MINE,
    flags: int = NO_LISTENER,
    incarnation: int | None = None,
    max_message: int = 64 << 20,
    max_frame: int = 256 << 10,
    address: str = "",
) -> bytes:
    """The record of a hello or of a reply: who one is, and what one wants."""
    drawn = secrets.randbits(64) if incarnation is None else incarnation
    nonce = secrets.token_bytes(16)
    return _HELLO.pack(
        magic,
        *versions,
        features,
        direction,
        flags,
        node,
        expected,
        drawn,
        nonce,
        max_message,
        max_frame,
    ) + text(address)


def response_body(id: int, answer: bytes = b"", *, status: int = ANSWER, of: int = 0) -> bytes:
    """What a response holds: which request it answers, how it went, what the answer is `of`."""
    return struct.pack("<QBBH", id, status, 0, of) + answer


def response(kind: int, id: int, answer: bytes = b"", **facts: int) -> bytes:
    """A response to request ``id`` that was of ``kind``."""
    return frame(kind, response_body(id, answer, **facts), flags=RESPONSE)


def proof(secret: bytes, role: str, hello: bytes, reply: bytes) -> bytes:
    """What the ``dialler`` or the ``acceptor`` shows to have the secret, over both records."""
    return hmac.new(secret, f"antiphon 1 {role} ".encode() + hello + reply, hashlib.sha256).digest()


def reply(record: bytes, shown: bytes = b"") -> bytes:
    """The bytes of a reply: its record, and the proof that it shows."""
    return struct.pack("<H", len(record)) + record + shown


def reply_parts(payload: bytes) -> tuple[bytes, bytes]:
    """The record in a reply, and the proof behind it, which is empty without a secret."""
    (length,) = struct.unpack_from("<H", payload)
    return payload[2 : 2 + length], payload[2 + length :]


class Stranger:
    """One raw connection, either way. Not thread-safe, but for `read_slowly` and `keep_alive`."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._pending = b""
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    @classmethod
    def dial(cls, address: str, receive_buffer: int | None = None) -> Self:
        """Connects to a node; a small ``receive_buffer`` makes it feel the slow reader soon."""
        target = parse_address(address)
        if target.scheme == "unix":
            connection = socket.socket(socket.AF_UNIX)
            place: tuple[str, int] | str = target.path
        else:
            connection = socket.socket(socket.AF_INET6 if ":" in target.host else socket.AF_INET)
            place = (target.host, target.port)
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(10)
        try:
            connection.connect(place)
        except BaseException:
            connection.close()
            raise
        return cls(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection and the threads of this stranger. Idempotent."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self.socket.close()

    # --- saying -----------------------------------------------------------------------------

    def say(self, data: bytes, timeout: float = 10.0) -> int:
        """Sends, for as long as the node takes it; returns the number of bytes that went.

        Fewer than given when the node drops the connection, or takes no more until ``timeout``.
        """
        view = memoryview(data)
        deadline = time.monotonic() + timeout
        sent = 0
        with self._lock:
            while sent < len(view):
                left = deadline - time.monotonic()
                if left <= 0 or not writable(self.socket, left):
                    break
                try:
                    sent += self.socket.send(view[sent : sent + 65536], socket.MSG_DONTWAIT)
                except BlockingIOError:
                    continue
                except OSError:
                    break
        return sent

    def hand_shake(
        self, node: int, *, direction: int = MINE, secret: bytes = b"", **facts: Any
    ) -> Frame:
        """As a dialler, up to where data may go. Returns the node's reply.

        With ``direction=MINE`` it has read up to the node's ready. With ``YOURS`` it owes a
        `be_ready`.
        """
        if secret:
            facts["flags"] = facts.get("flags", NO_LISTENER) | HAS_SECRET
        mine = hello(node, direction=direction, **facts)
        self.say(frame(HELLO, mine))
        answer = self.read()
        if answer.kind != REPLY:
            raise AssertionError(f"the node answered {answer}, not with a reply")
        theirs, shown = reply_parts(answer.payload)
        if shown != (proof(secret, "acceptor", mine, theirs) if secret else b""):
            raise AssertionError("the node has shown another proof")
        self.say(frame(CONFIRM, proof(secret, "dialler", mine, theirs) if secret else b""))
        if direction == MINE:
            self.read_until(READY)
        return answer

    def be_ready(self, kind: int, window: int = 0) -> None:
        """As a receiver of data: announce ``kind`` as flow 1, and be ready.

        With a ``window`` the sender may begin at once.
        """
        announced = frame(ANNOUNCE, struct.pack("<HI", kind, 1), flow=1)
        granted = frame(WINDOW, struct.pack("<II", window, window // 2), flow=1) if window else b""
        self.say(announced + frame(READY) + granted)

    def keep_alive(self, every: float = 0.2) -> None:
        """Says liveness from now on, on a thread of its own."""

        def speak() -> None:
            while not self._ended.wait(every):
                self.say(frame(LIVENESS, struct.pack("<I", 0)), timeout=0.1)

        self._start(speak)

    # --- hearing ----------------------------------------------------------------------------

    def read(self, timeout: float = 10.0) -> Frame:
        """The next frame. EOFError when the node has closed; TimeoutError."""
        deadline = time.monotonic() + timeout
        length, kind, flags, flow = HEADER.unpack(self._take(HEADER.size, deadline))
        return Frame(kind, flags, flow, self._take(length, deadline))

    def read_until(self, kind: int, timeout: float = 10.0) -> Frame:
        """The next frame of that kind; the ones before it are passed over."""
        for found in self.frames(timeout):
            if found.kind == kind:
                return found
        raise EOFError(f"the node closed before a frame of kind {kind}")

    def frames(self, timeout: float = 10.0) -> Iterator[Frame]:
        """Frames until the node closes; TimeoutError when it has not by then."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                yield self.read(deadline - time.monotonic())
            except EOFError:
                return

    def _take(self, count: int, deadline: float) -> bytes:
        while len(self._pending) < count:
            left = deadline - time.monotonic()
            if left <= 0 or not readable(self.socket, left):
                raise TimeoutError(f"{len(self._pending)} of {count} bytes came in time")
            try:
                data = self.socket.recv(65536)
            except ConnectionError:
                data = b""
            if not data:
                raise EOFError("the node closed the connection")
            self._pending += data
        taken, self._pending = self._pending[:count], self._pending[count:]
        return taken

    def dropped_within(self, timeout: float) -> bool:
        """Whether the node ends the connection in that time. Reads whatever comes until then."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            if not readable(self.socket, left):
                return False
            try:
                if not self.socket.recv(65536):
                    return True
            except ConnectionError:
                return True
        return False

    def read_slowly(self, every: float = 1.0) -> None:
        """Reads one byte at a time, so often, on a thread of its own."""

        def crawl() -> None:
            while not self._ended.wait(every):
                try:
                    if not self.socket.recv(1):
                        return
                except OSError:
                    return

        self._start(crawl)

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, daemon=True)
        self._threads.append(thread)
        thread.start()


class Host:
    """A listener that is no node: silent, until a test takes a connection and speaks for it."""

    def __init__(self, receive_buffer: int | None = None) -> None:
        self._door = socket.socket()
        if receive_buffer is not None:
            # Set on the listener: what it accepts inherits it, window scale included.
            self._door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._door.bind(("127.0.0.1", 0))
        self._door.listen(64)
        self.address = f"tcp://127.0.0.1:{self._door.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def accept(self, timeout: float = 10.0) -> Stranger:
        """The next connection of a node. TimeoutError when none comes."""
        self._door.settimeout(timeout)
        connection, _ = self._door.accept()
        connection.settimeout(10)
        return Stranger(connection)

    def accept_node(self, node: int, timeout: float = 10.0, **facts: Any) -> Stranger:
        """The next connection, with the handshake done in the name of ``node``, no secret."""
        stranger = self.accept(timeout)
        try:
            stranger.read_until(HELLO)
            stranger.say(frame(REPLY, reply(hello(node, **facts))))
            stranger.read_until(CONFIRM)
        except BaseException:
            stranger.close()
            raise
        return stranger

    def close(self) -> None:
        """Stops listening. Idempotent."""
        self._door.close()
