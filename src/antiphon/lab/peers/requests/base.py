"""What a system has to offer for its round trips to be measured: an endpoint and its callers.

An *endpoint* is one process's share of a run: it echoes what others ask, if it is one that answers,
and makes callers, if it is one that asks. A *caller* belongs to one thread, a *task caller* to one
event loop; both hold one function per target, which sends bytes and returns the answer. The clock
is read here, around that function alone, alike for every system.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence

from antiphon.lab.peers.base import LOOPBACK, EndpointConfig

__all__ = [
    "STUCK",
    "Caller",
    "RequestEndpoint",
    "SocketEndpoint",
    "TaskCaller",
    "host_and_port",
]

# A call without an answer for so long raises: the other end is gone.
STUCK = 20.0

Call = Callable[[bytes], bytes]
AsyncCall = Callable[[bytes], Awaitable[bytes]]


class Caller:
    """One thread's way of asking. Every method is called by the thread that made it.

    ``calls`` are one function per target, in the order of the configuration.
    """

    def __init__(self, calls: Sequence[Call], close: Callable[[], None] = lambda: None) -> None:
        self.calls = calls
        self._close = close

    def round(self, data: bytes, times: array[int]) -> int:
        """Ask every target once, one after the other; how many answers were not ``data``.

        The nanoseconds of every round trip are added to ``times``. Raises when a call fails.
        """
        wrong = 0
        clock = time.perf_counter_ns
        for call in self.calls:
            begin = clock()
            answer = call(data)
            times.append(clock() - begin)
            wrong += answer != data
        return wrong

    def close(self) -> None:
        """Release what the caller holds, once."""
        self._close()


class TaskCaller:
    """One event loop's way of asking, shared by its tasks. Used on that loop only.

    ``calls`` are as those of a :class:`Caller`.
    """

    def __init__(
        self,
        calls: Sequence[AsyncCall],
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.calls = calls
        self._close = close

    async def round(self, data: bytes, times: array[int]) -> int:
        """As :meth:`Caller.round`, for one task."""
        wrong = 0
        clock = time.perf_counter_ns
        for call in self.calls:
            begin = clock()
            answer = await call(data)
            times.append(clock() - begin)
            wrong += answer != data
        return wrong

    async def close(self) -> None:
        """Release what the caller holds, once."""
        if self._close is not None:
            await self._close()


class RequestEndpoint(ABC):
    """One process's share of a run.

    The calls come in this order, from one thread: ``listen`` (only if it answers), ``connect``
    (only if it asks), ``close``. Between the last two, each calling thread makes a ``caller``, or
    an event loop a ``task_caller``; an adapter offers what its :class:`Peer` says.
    """

    def __init__(self, config: EndpointConfig) -> None:
        self.config = config
        self.addresses: Mapping[int, str] = {}

    @classmethod
    def serve(cls, host: str = LOOPBACK) -> tuple[str, list[int], Callable[[], None]]:
        """Start the server that this system needs: its address, its processes, how to stop it."""
        raise NotImplementedError(f"{cls.__name__} needs no server")

    @abstractmethod
    def listen(self) -> str:
        """Begin to echo; return the address to which others connect."""

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Learn where the targets are."""
        self.addresses = addresses

    def caller(self) -> Caller:
        """A new caller for the calling thread."""
        raise NotImplementedError(f"{type(self).__name__} is not called from threads")

    async def task_caller(self) -> TaskCaller:
        """A new caller for the running event loop."""
        raise NotImplementedError(f"{type(self).__name__} is not called from tasks")

    @abstractmethod
    def close(self) -> None:
        """Stop answering and release everything. Called once, after the callers' ``close``."""

    def fault(self) -> str:
        """What broke behind the caller's back, or the empty string."""
        return ""


class SocketEndpoint(RequestEndpoint):
    """Blocking sockets and a thread per connection: subclasses write what happens on one."""

    def __init__(self, config: EndpointConfig) -> None:
        super().__init__(config)
        self._listener: socket.socket | None = None
        self._streams: list[socket.socket] = []
        self._fault = ""

    @abstractmethod
    def _echo(self, stream: socket.socket) -> None:
        """Answer what comes until the other end closes."""

    def listen(self) -> str:
        self._listener = socket.create_server((self.config.host, 0), backlog=1024)
        threading.Thread(
            target=self._accept, args=(self._listener,), name="accept", daemon=True
        ).start()
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def _accept(self, listener: socket.socket) -> None:
        # Closing the listener ends it.
        with contextlib.suppress(OSError):
            while True:
                stream = listener.accept()[0]
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._streams.append(stream)
                threading.Thread(
                    target=self._answer, args=(stream,), name="answer", daemon=True
                ).start()

    def _answer(self, stream: socket.socket) -> None:
        try:
            self._echo(stream)
        except ConnectionError:
            # A caller that leaves in the middle of a call says what was wrong itself.
            pass
        except Exception as error:
            self._fault = f"{type(error).__name__}: {error}"
        finally:
            stream.close()

    def _dial(self) -> list[socket.socket]:
        """A connection to every target."""
        streams = []
        for target in self.config.targets:
            stream = socket.create_connection(host_and_port(self.addresses[target]), timeout=STUCK)
            stream.settimeout(None)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            streams.append(stream)
        return streams

    def close(self) -> None:
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for stream in self._streams:
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)

    def fault(self) -> str:
        return self._fault


def host_and_port(address: str) -> tuple[str, int]:
    """``127.0.0.1:7001`` in two parts."""
    host, _, port = address.rpartition(":")
    return host, int(port)
