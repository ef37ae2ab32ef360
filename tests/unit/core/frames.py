"""Frames as a sender writes them, for the tests of the parser: bytes, and what they mean."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from hypothesis import strategies as st

HEADER = struct.Struct("<IHHI")
PACKED, FRAGMENT, LAST = 1, 2, 4
FIRST_DATA_KIND = 32
MAX_FRAME = 8192

Found = tuple[str, int, int, bytes]


def frame(kind: int, flags: int, flow: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload), kind, flags, flow) + payload


def packed(messages: list[bytes]) -> bytes:
    lengths = struct.pack(f"<I{len(messages)}I", len(messages), *map(len, messages))
    return lengths + b"".join(messages)


@dataclass(frozen=True)
class Frame:
    """One frame, and what the parser is to make of it."""

    wire: bytes
    found: tuple[Found, ...]
    messages: int  # that are charged; 0 for fragments and control

    def charge(self, least: int) -> int:
        return max(len(self.wire), least * self.messages) if self.messages else 0


def single(kind: int, flow: int, payload: bytes) -> Frame:
    return Frame(frame(kind, 0, flow, payload), (("data", kind, flow, payload),), 1)


def several(kind: int, flow: int, messages: list[bytes]) -> Frame:
    found = tuple(("data", kind, flow, message) for message in messages)
    return Frame(frame(kind, PACKED, flow, packed(messages)), found, len(messages))


def fragment(kind: int, flow: int, id: int, part: bytes, last: bool) -> Frame:
    flags = FRAGMENT | (LAST if last else 0)
    wire = frame(kind, flags, flow, struct.pack("<Q", id) + part)
    return Frame(wire, (("fragment", kind, flow, part),), 0)


def control(kind: int, flow: int, payload: bytes) -> Frame:
    return Frame(frame(kind, 0, flow, payload), (("control", kind, flow, payload),), 0)


# Few kinds and flows, so that frames of one run often follow each other; sizes around the least
# pooled buffer as well as small ones.
user_kinds = st.sampled_from([FIRST_DATA_KIND, 100, 65535])
flows = st.sampled_from([0, 1, 2**32 - 1])
payloads = st.one_of(
    st.binary(max_size=40),
    st.integers(0, MAX_FRAME).map(lambda size: bytes(at * 31 & 0xFF for at in range(size))),
)
parts = st.binary(max_size=200)

frames = st.one_of(
    st.builds(single, user_kinds, flows, payloads),
    st.builds(several, user_kinds, flows, st.lists(st.binary(max_size=60), min_size=1, max_size=8)),
    st.builds(fragment, user_kinds, flows, st.integers(0, 2**64 - 1), parts, st.booleans()),
    st.builds(control, st.integers(0, FIRST_DATA_KIND - 1), flows, parts),
)
streams = st.lists(frames, max_size=25)


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[list[Frame], list[bytes]]:
    """Frames, and their bytes in pieces that have nothing to do with them."""
    stream = draw(streams)
    wire = b"".join(frame.wire for frame in stream)
    cuts = sorted(draw(st.lists(st.integers(0, len(wire)), max_size=30)))
    return stream, [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
