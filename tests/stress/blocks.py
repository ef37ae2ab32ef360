"""Messages of 64 bytes that can be checked by the million.

A stream is what one sender thread sends: its messages repeat after `CYCLE`, so that a whole batch
is compared with a piece of a block that was made beforehand, every byte of it, at the speed of
memcmp. Whoever loses a whole cycle is found by the count.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon import Batch

SIZE = 64
CYCLE = 1 << 14
SPREAD = 0x9E3779B97F4A7C15


class Stream:
    """The messages of one sender thread, by its number."""

    def __init__(self, number: int) -> None:
        self.number = number
        salt = hashlib.sha256(b"%d" % number).digest()[:24]
        self.messages = [
            struct.pack(
                "<IIQ24s24s", number, place, place * 0x9E3779B97F4A7C15 & (2**64 - 1), salt, salt
            )
            for place in range(CYCLE)
        ]
        once = b"".join(self.messages)
        self.block = once + once  # a piece of up to one cycle is contiguous, wherever it begins

    def piece(self, begin: int, count: int) -> bytes:
        """``count`` messages from the one numbered ``begin``, without a gap."""
        at = begin % CYCLE * SIZE
        return self.block[at : at + count * SIZE]


def offsets(count: int) -> array[int]:
    """Where ``count`` messages begin, and their end, as `send_packed` wants it."""
    return array("i", range(0, (count + 1) * SIZE, SIZE))


class Tally:
    """Checks each message against those before it of the same thread, and counts.

    With ``gaps`` messages may be missing, as when connections die, but none may come twice or
    before an earlier one: a place is taken for the next one that bears it.
    """

    def __init__(self, numbers: list[int], *, gaps: bool = False) -> None:
        self.streams = {number: Stream(number) for number in numbers}
        self.counts = dict.fromkeys(numbers, 0)
        self.next = dict.fromkeys(numbers, 0)
        self.gaps = gaps
        self.wrong: list[str] = []

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def one(self, data: bytes) -> None:
        number = data[0] | data[1] << 8
        place = self.next[number]
        stream = self.streams[number]
        if data != stream.messages[place % CYCLE]:
            place = self._elsewhere(stream, place, data)
        self.next[number] = place + 1
        self.counts[number] += 1

    def _elsewhere(self, stream: Stream, place: int, data: bytes) -> int:
        found = struct.unpack_from("<I", data, 4)[0]
        known = found < CYCLE and data == stream.messages[found]
        if not (self.gaps and known):
            what = f"place {found}" if known else f"bytes {data[:16].hex()}..."
            self.wrong.append(f"stream {stream.number}: {what} came, {place % CYCLE} was next")
        ahead = (found - place) % CYCLE if known else 0
        # Half a cycle ahead at the most, or it is one that was here before.
        if self.gaps and ahead > CYCLE // 2:
            self.wrong.append(f"stream {stream.number}: place {found} came again")
        return place + ahead

    def batch(self, batch: Batch) -> None:
        count = len(batch)
        data = batch.data.tobytes()
        number = data[0] | data[1] << 8
        place = self.next[number]
        if count <= CYCLE and data == self.streams[number].piece(place, count):
            self.next[number] = place + count
            self.counts[number] += count
            return
        for message in batch:
            self.one(message)
