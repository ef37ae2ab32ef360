"""A TCP proxy with a switch on each direction.

One thread moves bytes between clients and the target. A `Lane` is one direction of all its
connections: it passes bytes on, stalls (nothing is read, so that the sender's buffers fill up),
swallows (everything is read and lost, as behind a broken router), or passes them on slowly.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from types import TracebackType
from typing import Self

from antiphon.node.address import parse_address

__all__ = ["Lane", "Proxy"]

_BUFFER = 256 * 1024
_CHUNK = 64 * 1024
_TICK = 0.01  # how long a switch may take to be noticed
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, for zero seconds: closing resets


class Lane:
    """One direction. Calls return at once; each holds until the next one."""

    def __init__(self) -> None:
        self._mode = "pass"
        self._rate: float | None = None
        self._allowed = 0.0
        self._refilled = time.monotonic()
        self.passed = 0
        """Bytes handed on since the proxy was made."""
        self.swallowed = 0
        """Bytes lost in here."""

    def _set(self, mode: str, rate: float | None = None) -> None:
        self._rate, self._allowed, self._refilled = rate, 0.0, time.monotonic()
        self._mode = mode

    def flow(self) -> None:
        """Pass everything on, as at the beginning."""
        self._set("pass")

    def stall(self) -> None:
        """Read nothing and hand on nothing."""
        self._set("stall")

    def swallow(self) -> None:
        """Read everything and hand on nothing."""
        self._set("swallow")

    def slow(self, bytes_per_second: float) -> None:
        """Pass on so many bytes a second."""
        self._set("pass", bytes_per_second)

    @property
    def _stalled(self) -> bool:
        return self._mode == "stall"

    @property
    def _allowance(self) -> int:
        """Bytes that may go on now."""
        if self._rate is None:
            return _CHUNK
        now = time.monotonic()
        # No more than a second's worth is saved up.
        earned = self._allowed + (now - self._refilled) * self._rate
        self._allowed, self._refilled = min(earned, max(1.0, self._rate)), now
        return min(_CHUNK, int(self._allowed))

    def _spend(self, count: int) -> None:
        self.passed += count
        if self._rate is not None:
            self._allowed -= count


class _Pipe:
    """One direction of one connection."""

    def __init__(self, source: socket.socket, sink: socket.socket, lane: Lane) -> None:
        self.source, self.sink, self.lane = source, sink, lane
        self.held = bytearray()
        self.ended = self.closed = False

    @property
    def wants_input(self) -> bool:
        return not self.ended and not self.lane._stalled and len(self.held) < _BUFFER

    @property
    def wants_output(self) -> bool:
        return bool(self.held) and not self.lane._stalled and self.lane._allowance > 0

    def take(self) -> None:
        data = self.source.recv(_CHUNK)
        if not data:
            self.ended = True
        elif self.lane._mode == "swallow":
            self.lane.swallowed += len(data)
        else:
            self.held += data

    def give(self) -> None:
        if self.lane._mode == "swallow":
            self.lane.swallowed += len(self.held)
            self.held.clear()
            return
        sent = self.sink.send(self.held[: self.lane._allowance])
        self.lane._spend(sent)
        del self.held[:sent]

    def finish(self) -> None:
        """Hands an end of input on, behind everything that came before it."""
        if self.ended and not self.held and not self.closed and not self.lane._stalled:
            self.closed = True
            if self.lane._mode != "swallow":
                self.sink.shutdown(socket.SHUT_WR)


class Proxy:
    """Stands in front of ``target`` (``tcp://host:port``) at ``address``; a context manager.

    ``forward`` is the lane from clients to the target, ``back`` the other one. ``target`` may be
    changed; connections made afterwards go there.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self._door = socket.create_server(("127.0.0.1", 0))
        # Inherited by what it accepts: a lane that is shut must be felt soon, not after megabytes.
        self._door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _CHUNK)
        self._door.setblocking(False)
        self.address = f"tcp://127.0.0.1:{self._door.getsockname()[1]}"
        self.forward = Lane()
        self.back = Lane()
        self._links: list[tuple[_Pipe, _Pipe]] = []
        self._cut: bool | None = None
        self._cut_done = threading.Event()
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._links)

    def stall(self) -> None:
        """Both lanes stall: to either side the other seems to be frozen."""
        self.forward.stall()
        self.back.stall()

    def swallow(self) -> None:
        """Both lanes swallow: a link that was cut without anybody being told."""
        self.forward.swallow()
        self.back.swallow()

    def flow(self) -> None:
        """Both lanes pass everything on again; what was swallowed is gone."""
        self.forward.flow()
        self.back.flow()

    def cut(self, reset: bool = True) -> None:
        """Ends every connection on both sides, with a reset or politely. Blocks until done."""
        self._cut_done.clear()
        self._cut = reset
        if not self._cut_done.wait(5):
            raise TimeoutError("the proxy did not cut its connections")

    def close(self) -> None:
        """Ends everything. Idempotent; blocks until the thread has ended."""
        self._ends = True
        self._thread.join()

    # --- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ends:
                if self._cut is not None:
                    reset, self._cut = self._cut, None
                    self._drop_all(reset)
                    self._cut_done.set()
                self._turn()
        finally:
            self._drop_all(False)
            self._door.close()

    def _turn(self) -> None:
        pipes = [pipe for link in self._links for pipe in link]
        wanted = {self._door.fileno(): select.POLLIN}
        for pipe in pipes:
            for end, wants, what in (
                (pipe.source, pipe.wants_input, select.POLLIN),
                (pipe.sink, pipe.wants_output, select.POLLOUT),
            ):
                if wants:
                    wanted[end.fileno()] = wanted.get(end.fileno(), 0) | what
        poll = select.poll()
        for descriptor, what in wanted.items():
            poll.register(descriptor, what)
        ready = dict(poll.poll(_TICK * 1000))
        readable = {fd for fd, what in ready.items() if what & ~select.POLLOUT}
        writable = {fd for fd, what in ready.items() if what & ~select.POLLIN}
        if self._door.fileno() in readable:
            self._accept()
        for link in list(self._links):
            try:
                for pipe in link:
                    if pipe.sink.fileno() in writable and pipe.wants_output:
                        pipe.give()
                    if pipe.source.fileno() in readable and pipe.wants_input:
                        pipe.take()
                    pipe.finish()
            except BlockingIOError:
                continue
            except OSError:
                # One side reset: so does the other.
                self._drop(link, reset=True)
                continue
            if all(pipe.closed for pipe in link):
                self._drop(link, reset=False)

    def _accept(self) -> None:
        try:
            client, _ = self._door.accept()
        except OSError:
            return
        target = parse_address(self.target)
        server = socket.socket(socket.AF_INET6 if ":" in target.host else socket.AF_INET)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _CHUNK)
        server.settimeout(5)
        try:
            server.connect((target.host, target.port))
        except OSError:
            client.close()
            server.close()
            return
        for side in (client, server):
            side.setblocking(False)
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        forward = _Pipe(client, server, self.forward)
        self._links.append((forward, _Pipe(server, client, self.back)))

    def _drop(self, link: tuple[_Pipe, _Pipe], reset: bool) -> None:
        self._links.remove(link)
        for pipe in link:
            if reset:
                with contextlib.suppress(OSError):
                    pipe.source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            pipe.source.close()

    def _drop_all(self, reset: bool) -> None:
        for link in list(self._links):
            self._drop(link, reset)
