"""What every messaging system has to offer to be measured: an endpoint and its senders.

An *endpoint* is one process's share of a run. It listens if it receives, is told the addresses of
those it sends to, and counts what arrives. A *sender* belongs to one thread: it is made, used and
closed there, because sockets and event loops of many systems may not change threads.

The hot loops live in the adapters, not here: a call through this interface happens once per
``burst`` of messages, so its cost does not show. Every adapter counts in the same way, one
addition and one assignment per message, and hands the message over in the form in which a user
would get it (``bytes``, or a decoded object when typed).
"""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "LOOPBACK",
    "Endpoint",
    "EndpointConfig",
    "OnData",
    "PullEndpoint",
    "Receipts",
    "Sender",
    "StreamEndpoint",
    "free_port",
    "payload_of",
    "typed_body",
]

OnData = Callable[[bytes], None]
LOOPBACK = "127.0.0.1"

# Between two looks at the stop flag: enough messages to hide the look, few enough to stop soon.
BURST_MESSAGES = 1000
BURST_BYTES = 4 * 1024 * 1024
# A given number of messages goes in so many bursts or more.
BURSTS = 20
# One list or packed buffer of the batch variants.
BATCH_BYTES = 256 * 1024
# MessagePack of (int, float, bytes) around its body: array, int, float, bin headers.
TYPED_OVERHEAD = 15


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """One endpoint's part in a run.

    ``targets`` are the indexes of the endpoints it sends to, round robin; ``service`` is what the
    adapter's :meth:`Endpoint.serve` returned, for systems that need a server beside them.
    ``consume=False`` makes a receiver that takes nothing, to see what a sender does then.
    ``threads`` and ``tasks`` say how many call at a time where requests are measured. ``tls`` are
    the paths of certificate, key and authority, for a variant that is encrypted with them.
    ``pattern`` is that of the point; ``folder`` is one that its processes share, where there is
    need of it; ``host`` the address at which this one is reached. ``sources`` are the indexes of
    the endpoints that send to it, if that is known; ``messages`` is how many it sends, if not until
    it is stopped. ``slow`` is how many messages a second it takes at the most, 0 for all; its
    ``on_data`` sees to that, and no adapter needs to. ``handlers`` is how many threads of a node
    call handlers, if the plan says so. ``timed`` is how many messages a second keep their times.
    ``stack`` is that of a group, if the plan names one.
    """

    index: int = 0
    variant: str = ""
    size: int = 64
    targets: tuple[int, ...] = ()
    receives: bool = False
    consume: bool = True
    capacity: int | None = None
    service: str = ""
    threads: int = 1
    tasks: int = 0
    tls: tuple[str, ...] = ()
    pattern: str = "one-way"
    folder: str = ""
    host: str = LOOPBACK
    sources: tuple[int, ...] = ()
    messages: int | None = None
    slow: float = 0.0
    handlers: int | None = None
    timed: int = 10_000
    stack: str = ""

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> EndpointConfig:
        """From plain values as JSON has them: its lists become tuples."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in facts.items()
        }
        return cls(**values)

    @property
    def burst(self) -> int:
        """Messages that a sender hands over between two looks at the stop flag."""
        most = BURST_MESSAGES if self.messages is None else self.messages // BURSTS
        return max(1, min(BURST_MESSAGES, BURST_BYTES // max(1, self.size), most))

    @property
    def batch(self) -> int:
        """Messages in one list or packed buffer."""
        return max(1, min(self.burst, BATCH_BYTES // max(1, self.size)))


@dataclass(frozen=True, slots=True)
class Receipts:
    """What an endpoint has counted. ``wrong`` are messages seen with another size than sent."""

    messages: int
    wrong: int


def payload_of(size: int) -> bytes:
    """The same bytes at both ends, and no run of zeros that something might compress."""
    pattern = bytes(range(1, 252))
    return (pattern * (size // len(pattern) + 1))[:size]


def typed_body(size: int) -> bytes:
    """The body that makes an encoded message of three fields about ``size`` bytes long."""
    return payload_of(max(1, size - TYPED_OVERHEAD))


def free_port(host: str = LOOPBACK) -> int:
    """A port that was free a moment ago, for systems that cannot tell which one they were given.

    Another process may take it first; the caller tries again with a new one.
    """
    with socket.create_server((host, 0)) as server:
        port: int = server.getsockname()[1]
        return port


class Sender(ABC):
    """One thread's way of sending. Every method is called by the thread that made it."""

    @abstractmethod
    def burst(self) -> int:
        """Send about ``config.burst`` messages of ``config.size`` bytes; return how many.

        At the most so many to each target, where a number of messages is given.
        Waits when the system makes its senders wait. All of them are sent, or it raises.
        """

    @abstractmethod
    def send(self, target: int, data: bytes) -> None:
        """Send one message. The slow and convenient way, for checks and paced traffic."""

    def flush(self, timeout: float) -> None:
        """Hand everything to the system, as far as it can tell. Nothing to do by default."""

    def close(self) -> None:
        """Release what the sender holds, once, after :meth:`flush`."""


class Endpoint(ABC):
    """One process's share of a run of one messaging system.

    The calls come in this order, from one thread: ``listen`` (only if it receives), ``connect``
    (only if it sends), then any number of ``received``, then ``close``. ``sender`` is called by
    each sending thread. With ``on_data`` every message goes to that function, on the thread that
    received it, in place of the counting loop.
    """

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        self.config = config
        self.on_data = on_data
        self._wrong = 0

    @classmethod
    def serve(cls, host: str = LOOPBACK) -> tuple[str, list[int], Callable[[], None]]:
        """Start the server that this system needs: its address, its processes, how to stop it.

        It is reached at ``host``, which is an address of this machine.
        """
        raise NotImplementedError(f"{cls.__name__} needs no server")

    @abstractmethod
    def listen(self) -> str:
        """Begin to receive; return the address to which others connect."""

    @abstractmethod
    def connect(self, addresses: Mapping[int, str]) -> None:
        """Learn where the targets are. After this, ``sender`` works and nothing is lost."""

    @abstractmethod
    def sender(self) -> Sender:
        """A new sender for the calling thread."""

    @abstractmethod
    def close(self) -> None:
        """Stop receiving and release everything. Called once, after the senders' ``close``."""

    @abstractmethod
    def _count(self) -> tuple[int, int | None]:
        """Messages so far, and the size of a recent one (None before the first)."""

    @property
    def expected_size(self) -> int:
        """The size that ``_count`` should report."""
        return self.config.size

    def received(self) -> Receipts:
        """What has arrived so far. Cheap; may be called while messages arrive."""
        messages, size = self._count()
        if size is not None and size != self.expected_size:
            self._wrong += 1
        return Receipts(messages, self._wrong)

    def catch_up(self) -> None:
        """Hand to ``on_data`` what was counted elsewhere. Called before its counts are read."""

    def fault(self) -> str:
        """What broke behind the caller's back, or the empty string."""
        return ""

    def topic_facts(self) -> list[dict[str, Any]]:
        """Of each topic that is received here, by columns of the table: what was counted so far."""
        return []

    def depths(self) -> dict[str, int]:
        """How full its own rings and queues are, by columns of the samples; empty if unknown."""
        return {}

    def happenings(self) -> list[tuple[int, str, str]]:
        """Since the last call: when, which event and a text, such as the views of a group."""
        return []

    def acknowledged(self) -> tuple[int, int]:
        """How many others have said that they have all of this one's messages, and when the last of
        them did, by the monotonic clock. Of a group whose members send a given number each."""
        return 0, 0

    def topic_of(self, source: int) -> str | None:
        """The topic on which that one's messages come here, where there are topics."""
        return None


class PullEndpoint(Endpoint):
    """An endpoint whose own thread receives: subclasses write the loop, this runs and stops it."""

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        super().__init__(config, on_data)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._fault = ""
        self._reader: Callable[[], tuple[int, int | None]] = lambda: (0, None)

    @abstractmethod
    def _receive(self) -> None:
        """Receive until ``_stop`` is set, and set ``_reader`` to a function that reads the count.

        Looks at ``_stop`` at least every half second, also when nothing arrives.
        """

    def _start_receiving(self) -> None:
        if self.config.consume:
            self._thread = threading.Thread(target=self._run, name="receive", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            self._receive()
        except Exception as error:
            if not self._stop.is_set():
                self._fault = f"{type(error).__name__}: {error}"

    def _stop_receiving(self, timeout: float = 5.0) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def _count(self) -> tuple[int, int | None]:
        return self._reader()

    def fault(self) -> str:
        return self._fault


class StreamEndpoint(ABC):
    """A plain stream without messages, which times itself: the machine's own limit.

    ``transfer`` is called at both ends at once, and may be called again for another transfer.
    """

    def __init__(self, config: EndpointConfig) -> None:
        self.config = config

    @abstractmethod
    def listen(self) -> str:
        """Begin to listen; return the address."""

    @abstractmethod
    def connect(self, addresses: Mapping[int, str]) -> None:
        """Learn where the receiver is."""

    @abstractmethod
    def transfer(self, seconds: float) -> tuple[int, float]:
        """Send for ``seconds``, or receive one such stream: bytes, and how long they took."""

    @abstractmethod
    def close(self) -> None:
        """Release everything."""
