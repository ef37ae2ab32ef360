"""A sender and its receivers over a network of datagrams that is made up, with a clock that jumps.

The windows are the core's; the network loses, doubles, delays and reorders what goes in either
direction, each copy by itself. A course is the same again from its seed.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from typing import Any

from antiphon._core import CastReceiverCore, CastSenderCore

WINDOW = 1 << 13
MESSAGES = 256
DATAGRAM = 600
STEP = 0.001
BUFFER = 4096


@dataclass
class Network:
    """What it does to datagrams, until it is changed."""

    loss: float = 0.0
    duplication: float = 0.0
    delay: tuple[float, float] = (0.0001, 0.002)
    lost_kinds: frozenset[str] = frozenset()


@dataclass
class Reader:
    """One that receives."""

    window: CastReceiverCore
    begun: int
    got: list[bytes] = field(default_factory=list)
    slow: bool = False


class Cast:
    """One course."""

    def __init__(self, seed: int, flow: str = "share", network: Network | None = None) -> None:
        self.choice = random.Random(f"cast {seed}")
        self.network = network or Network()
        self.now = 1.0
        self.sender = CastSenderCore(WINDOW, MESSAGES, DATAGRAM, 0.02, flow, 2048)
        self.readers: dict[int, Reader] = {}
        self.gone: list[Reader] = []
        self.sent: list[bytes] = []
        self.full = 0
        self.datagrams = 0
        self.kinds: dict[str, int] = {}
        self._queue: list[tuple[float, int, str, int, Any]] = []
        self._number = 0

    # --- members ----------------------------------------------------------------------------

    def add(self, member: int) -> Reader:
        self.sender.add(member, BUFFER, self.now)
        window = CastReceiverCore(
            WINDOW + 4096, MESSAGES + 64, 0.002, self.choice.getrandbits(32) | 1
        )
        self.readers[member] = Reader(window, len(self.sent))
        return self.readers[member]

    def remove(self, member: int) -> None:
        self.sender.remove(member)
        self.gone.append(self.readers.pop(member))

    def send(self, size: int | None = None) -> bool:
        size = self.choice.choice([0, 1, 10, 100, 300, 500]) if size is None else size
        message = len(self.sent).to_bytes(4, "big") + self.choice.randbytes(size)
        if not self.sender.append(message):
            self.full += 1
            return False
        self.sent.append(message)
        assert self.sender.used <= self.sender.capacity
        return True

    # --- the network ------------------------------------------------------------------------

    def _put(self, kind: str, member: int, content: Any) -> None:
        network = self.network
        copies = 2 if self.choice.random() < network.duplication else 1
        for _ in range(copies):
            if self.choice.random() < network.loss or kind in network.lost_kinds:
                continue
            self._number += 1
            when = self.now + self.choice.uniform(*network.delay)
            heapq.heappush(self._queue, (when, self._number, kind, member, content))

    def _go(self, kind: str, to: int, content: Any) -> None:
        """To a member, or to all (0)."""
        self.datagrams += 1
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        for member in [to] if to else list(self.readers):
            self._put(kind, member, content)

    def _back(self, kind: str, member: int, content: Any) -> None:
        self.datagrams += 1
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self._put(kind, member, content)

    # --- time -------------------------------------------------------------------------------

    def step(self) -> None:
        """A millisecond."""
        self.now += STEP
        now, sender = self.now, self.sender
        while self._queue and self._queue[0][0] <= now:
            _, _, kind, member, content = heapq.heappop(self._queue)
            self._arrive(kind, member, content)
        while (base := sender.base(now)) is not None:
            self._go("base", base[0], base[1])
        while (piece := sender.repair(now)) is not None:
            self._go("again", piece[0], piece[1:])
        while (piece := sender.next(now)) is not None:
            self._go("data", piece[0], piece[1:])
        if (head := sender.head(now)) is not None:
            self._go("head", 0, head)
        for member, reader in self.readers.items():
            self._turn(member, reader)

    def _turn(self, member: int, reader: Reader) -> None:
        now, window = self.now, reader.window
        assert window.held_bytes <= WINDOW + 4096
        if not reader.slow or self.choice.random() < 0.05:
            ready = window.take()
            if ready:
                reader.got += ready
                window.handled(window.received, sum(map(len, ready)), now)
        if window.ask_base(now):
            self._back("ask-base", member, None)
        if (word := window.acknowledge(now)) is not None:
            self._back("acknowledge", member, word)
        if (asked := window.ask(now)) is not None:
            ranges, attempt = asked
            others = [one for one in self.readers if one != member]
            if attempt >= 2 and attempt % 2 == 0 and others:
                self._put("relay", self.choice.choice(others), (member, ranges))
            else:
                self._back("ask", member, ranges)

    def _arrive(self, kind: str, member: int, content: Any) -> None:
        reader = self.readers.get(member)
        if reader is None:
            return
        now, window, sender = self.now, reader.window, self.sender
        if kind == "base":
            window.begin(content, now)
        elif kind in ("data", "again"):
            first, messages, stable, every, ask = content
            window.data(first, messages, stable, every, ask, now)
        elif kind == "head":
            window.head(*content, now)
        elif kind == "ask-base":
            sender.asks_base(member, now)
        elif kind == "acknowledge":
            sender.acknowledge(member, *content, now)
        elif kind == "ask":
            for first, end in content:
                sender.asked(member, first, end, now)
        elif kind == "relay":
            asker, ranges = content
            for first, end in ranges:
                for begin, messages in window.find(first, end):
                    self._go("again", asker, (begin, messages, 0, 1 << 30, False))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.step()

    def finish(self, most: float = 60.0) -> bool:
        """Until everybody has everything."""
        until = self.now + most
        while not self.sender.settled and self.now < until:
            self.step()
        return self.sender.settled

    def in_order(self, reader: Reader) -> bool:
        """A prefix without a gap of what was sent since it came."""
        return reader.got == self.sent[reader.begun : reader.begun + len(reader.got)]
