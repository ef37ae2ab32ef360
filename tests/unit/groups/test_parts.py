"""Messages in parts over datagrams, to all and to one, in simulated courses.

Several threads send at once, so parts of their messages lie between each other; a thread that is
out of patience gives a message up half way. Whoever reads puts together what is whole.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from antiphon._core import ReceiveCore
from unit.groups.casts import Cast, Network, Reader

pytestmark = pytest.mark.timeout(120)

PART = 256
LARGEST = 1 << 14
WHOLE, MIDDLE, LAST, ABORT = range(4)


def part(tag: int, stream: int, total: int, data: bytes) -> bytes:
    if tag == WHOLE:
        return bytes([tag]) + data
    return bytes([tag]) + stream.to_bytes(4, "little") + total.to_bytes(8, "little") + data


@dataclass
class Thread:
    """What one sends: parts of its message that have not gone yet."""

    message: bytes = b""
    stream: int = 0
    begun: int = -1  # number of its first part, among all that were sent; -1: it has not gone
    left: list[bytes] = field(default_factory=list)


class Parts:
    """One course: a cast whose messages are parts, and what is to come out of it."""

    def __init__(self, seed: int, members: int) -> None:
        self.choice = random.Random(f"parts {seed}")
        self.cast = Cast(seed, self.choice.choice(["share", "reactive", "credit"]))
        self.threads = [Thread() for _ in range(self.choice.choice([1, 2, 5]))]
        self.whole: list[tuple[int, bytes]] = []  # in the order of their ends
        self.aborted = 0
        self._streams = 0
        self._members = 0
        self.windows: dict[int, tuple[Reader, ReceiveCore, list[bytes]]] = {}
        self.gone: list[tuple[Reader, ReceiveCore, list[bytes]]] = []
        for _ in range(members):
            self.join()

    def join(self) -> None:
        self._members += 1
        reader = self.cast.add(self._members)
        self.windows[self._members] = reader, ReceiveCore(LARGEST), []

    def leave(self) -> None:
        member = self.choice.choice(list(self.windows))
        self.cast.remove(member)
        self.gone.append(self.windows.pop(member))

    def put(self, raw: bytes) -> bool:
        if not self.cast.sender.append(raw):
            self.cast.full += 1
            return False
        self.cast.sent.append(raw)
        return True

    def send(self) -> None:
        """One thread goes on with what it has, or begins something."""
        thread = self.choice.choice(self.threads)
        if not thread.left:
            size = self.choice.choice([0, 1, 100, 255, 256, 257, 1000, 3000, LARGEST])
            thread.message = self.choice.randbytes(size)
            self._streams += 1
            thread.stream, thread.begun = self._streams, -1
            pieces = [thread.message[at : at + PART] for at in range(0, size, PART)] or [b""]
            thread.left = [
                part(
                    WHOLE if len(pieces) == 1 else LAST if piece is pieces[-1] else MIDDLE,
                    thread.stream,
                    size,
                    piece,
                )
                for piece in pieces
            ]
        if thread.begun >= 0 and self.choice.random() < 0.02:
            self.abort(thread)
        else:
            self.go_on(thread)

    def go_on(self, thread: Thread) -> None:
        if not self.put(thread.left[0]):
            return
        del thread.left[0]
        if thread.begun < 0:
            thread.begun = len(self.cast.sent) - 1
        if not thread.left:
            self.whole.append((thread.begun, thread.message))

    def abort(self, thread: Thread) -> None:
        """As one does whose time is up: those who have the beginning are told."""
        if self.put(part(ABORT, thread.stream, len(thread.message), b"")):
            thread.left = []
            self.aborted += 1

    def step(self) -> None:
        self.cast.step()
        for reader, window, got in [*self.windows.values(), *self.gone]:
            known = max(window.expected, 1) - 1
            delivered, gap = window.receive(1, known + 1, reader.got[known:])
            assert not gap
            got += delivered

    def expected(self, reader: Reader) -> list[bytes]:
        """What whoever came then is to get: all that began after it came."""
        return [message for begun, message in self.whole if begun >= reader.begun]

    def finish(self) -> bool:
        for thread in self.threads:
            while thread.left:
                self.go_on(thread)
                self.step()
        settled = self.cast.finish()
        self.step()
        return settled


def course(seed: int, alone: bool) -> Parts:
    choice = random.Random(f"course of parts {seed}")
    parts = Parts(seed, 1 if alone else choice.choice([1, 2, 3]))
    for _ in range(choice.choice([60, 120, 250])):
        act = choice.random()
        if act < 0.7:
            for _ in range(choice.choice([1, 3, 12])):
                parts.send()
        elif act < 0.73:
            # The one it is for begins again, and is another one by that; or others come and go.
            if alone or len(parts.windows) > 2:
                parts.leave()
            parts.join()
        elif act < 0.76:
            for reader, _, _ in parts.windows.values():
                reader.slow = choice.random() < 0.2
        elif act < 0.8:
            parts.cast.network = Network(
                choice.choice([0.0, 0.1, 0.3, 0.5]),
                choice.choice([0.0, 0.1, 0.5]),
                (0.0001, choice.choice([0.001, 0.005, 0.03])),
            )
        parts.step()
    for reader, _, _ in parts.windows.values():
        reader.slow = False
    return parts


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("alone", [False, True], ids=["to all", "to one"])
def test_what_was_sent_in_parts_comes_whole_once_and_in_order(
    count: Callable[[int, int], int], alone: bool
) -> None:
    aborted = again = left = 0
    for seed in range(count(300, 10_000)):
        parts = course(seed, alone)
        assert parts.finish(), f"seed {seed}"
        for reader, window, got in parts.windows.values():
            assert got == parts.expected(reader), f"seed {seed}"
            assert parts.cast.in_order(reader), f"seed {seed}"
            assert window.duplicates == 0, f"seed {seed}"
        for reader, _, got in parts.gone:
            assert got == parts.expected(reader)[: len(got)], f"seed {seed}"
        aborted += parts.aborted
        again += parts.cast.kinds.get("again", 0)
        left += len(parts.gone)
    assert aborted > 0
    assert again > 0
    assert left > 0


def test_a_part_of_what_began_before_one_came_is_not_for_it() -> None:
    parts = Parts(1, 1)
    thread = parts.threads[0]
    assert parts.put(part(MIDDLE, 1, 300, bytes(256)))
    parts.join()
    assert parts.put(part(LAST, 1, 300, bytes(44)))
    assert parts.put(part(WHOLE, 0, 0, b"after"))
    assert not thread.left
    assert parts.finish()
    (first, _, had), (second, window, has) = parts.windows.values()
    assert (first.begun, second.begun) == (0, 1)
    assert had == [bytes(300), b"after"]
    assert has == [b"after"]
    assert window.malformed == 1
