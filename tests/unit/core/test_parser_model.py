"""The frame parser, fed any split of any stream, against the list of frames that went in."""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from antiphon._core import ParserProbe

PACKED, FRAGMENT, LAST = 1, 2, 4
MAX_FRAME = 64 * 1024
HEADER = struct.Struct("<IHHI")

Found = tuple[str, int, int, bytes]


@dataclass(frozen=True)
class Frame:
    """One frame: its bytes, what the parser should make of it, and what it should charge."""

    wire: bytes
    found: tuple[Found, ...]
    messages: int

    def charge(self, least: int) -> int:
        if not self.messages:
            return 0
        return max(len(self.wire), least * self.messages)


def header(length: int, kind: int, flags: int, flow: int) -> bytes:
    return HEADER.pack(length, kind, flags, flow)


def single(kind: int, flow: int, payload: bytes) -> Frame:
    wire = header(len(payload), kind, 0, flow) + payload
    return Frame(wire, (("data", kind, flow, payload),), 1)


def packed(kind: int, flow: int, payloads: list[bytes]) -> Frame:
    count = len(payloads)
    body = struct.pack(f"<I{count}I", count, *map(len, payloads)) + b"".join(payloads)
    found = tuple(("data", kind, flow, payload) for payload in payloads)
    return Frame(header(len(body), kind, PACKED, flow) + body, found, count)


def fragment(kind: int, flow: int, id: int, part: bytes, last: bool) -> Frame:
    body = struct.pack("<Q", id) + part
    flags = FRAGMENT | (LAST if last else 0)
    wire = header(len(body), kind, flags, flow) + body
    return Frame(wire, (("fragment", kind, flow, part),), 0)


def control(kind: int, flow: int, payload: bytes) -> Frame:
    wire = header(len(payload), kind, 0, flow) + payload
    return Frame(wire, (("control", kind, flow, payload),), 0)


# Few kinds and flows, so that neighbours often belong to the same run.
kinds = st.sampled_from([64, 65, 200, 65535])
flows = st.sampled_from([0, 1, 7, 2**32 - 1])
large = st.builds(
    lambda size, seed: bytes(itertools.islice(itertools.cycle(range(seed, 251)), size)),
    st.sampled_from([4083, 4084, 4085, 16372, 16384, 20_000, MAX_FRAME - 100]),
    st.integers(0, 250),
)
small = st.binary(max_size=40)
payloads = st.one_of(small, small, small, large)
frames = st.one_of(
    st.builds(single, kinds, flows, payloads),
    st.builds(single, st.just(64), st.just(1), small),
    st.builds(packed, kinds, flows, st.lists(small, min_size=1, max_size=20)),
    st.builds(packed, kinds, flows, st.lists(payloads, min_size=1, max_size=1)),
    st.builds(fragment, kinds, flows, st.integers(0, 2**64 - 1), payloads, st.booleans()),
    st.builds(control, st.integers(0, 63), flows, st.one_of(small, st.binary(max_size=4096))),
)
streams = st.lists(frames, max_size=25)
cuts = st.lists(st.integers(0, 2**20), max_size=12)
least_charges = st.sampled_from([0, 1, 12, 64, 100, 5000])


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return [stream[begin:end] for begin, end in itertools.pairwise(places)]


def expected(frames: list[Frame]) -> list[Found]:
    return [found for frame in frames for found in frame.found]


@given(streams, cuts, least_charges)
@settings(max_examples=300, deadline=None)
def test_any_split_of_any_stream_gives_its_frames_in_order_with_their_charge(
    frames: list[Frame], cuts: list[int], least: int
) -> None:
    parser = ParserProbe(MAX_FRAME, least)
    stream = b"".join(frame.wire for frame in frames)
    for piece in pieces(stream, cuts):
        assert parser.feed(piece)
    assert parser.found == expected(frames)
    assert parser.charge == sum(frame.charge(least) for frame in frames)
    assert not parser.mid_frame
    assert parser.error == ""


@given(st.lists(frames, max_size=6), st.sampled_from([1, 3, 11, 12, 13]))
@settings(max_examples=60, deadline=None)
def test_a_stream_that_drips_in_gives_the_same_frames(frames: list[Frame], step: int) -> None:
    stream = b"".join(frame.wire for frame in frames)[:20_000]
    whole, dripping = ParserProbe(MAX_FRAME), ParserProbe(MAX_FRAME)
    assert whole.feed(stream)
    for at in range(0, len(stream), step):
        assert dripping.feed(stream[at : at + step])
    assert dripping.found == whole.found
    assert dripping.charge == whole.charge
    assert dripping.mid_frame == whole.mid_frame


@given(streams, cuts, st.integers(0, 2**20))
@settings(max_examples=200, deadline=None)
def test_a_stream_that_is_cut_off_gives_exactly_the_frames_that_are_whole(
    frames: list[Frame], cuts: list[int], end: int
) -> None:
    stream = b"".join(frame.wire for frame in frames)
    stream = stream[: end % (len(stream) + 1)]
    whole: list[Frame] = []
    at = 0
    for frame in frames:
        if at + len(frame.wire) > len(stream):
            break
        at += len(frame.wire)
        whole.append(frame)
    parser = ParserProbe(MAX_FRAME)
    for piece in pieces(stream, cuts):
        assert parser.feed(piece)
    assert parser.found == expected(whole)
    assert parser.charge == sum(frame.charge(0) for frame in whole)
    assert parser.mid_frame == (at != len(stream))


@given(
    st.lists(frames, min_size=1, max_size=10),
    cuts,
    st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=8),
)
@settings(max_examples=300, deadline=None)
def test_corrupt_bytes_end_in_an_error_or_in_frames_and_never_harm_what_came_before(
    frames: list[Frame], cuts: list[int], changes: list[tuple[int, int]]
) -> None:
    stream = bytearray(b"".join(frame.wire for frame in frames))
    for place, value in changes:
        stream[place % len(stream)] = value
    first = min(place % len(stream) for place, _ in changes)
    intact: list[Frame] = []
    at = 0
    for frame in frames:
        at += len(frame.wire)
        if at > first:
            break
        intact.append(frame)
    parser = ParserProbe(MAX_FRAME)
    well_formed = all(parser.feed(piece) for piece in pieces(bytes(stream), cuts))
    found = parser.found
    assert well_formed == (parser.error == "")
    assert found[: len(expected(intact))] == expected(intact)
    assert sum(len(payload) for *_, payload in found) <= len(stream)


@given(st.binary(max_size=2000), cuts)
@settings(max_examples=300, deadline=None)
def test_garbage_ends_in_an_error_or_in_frames(garbage: bytes, cuts: list[int]) -> None:
    parser = ParserProbe(MAX_FRAME)
    well_formed = all(parser.feed(piece) for piece in pieces(garbage, cuts))
    assert well_formed == (parser.error == "")
    assert sum(len(payload) for *_, payload in parser.found) <= len(garbage)


@given(st.lists(frames, max_size=5), st.integers(MAX_FRAME + 1, 2**32 - 1), kinds)
@example([], 2**32 - 1, 64)
@settings(max_examples=50, deadline=None)
def test_a_length_above_the_limit_is_refused_from_the_header_alone(
    frames: list[Frame], length: int, kind: int
) -> None:
    parser = ParserProbe(MAX_FRAME)
    stream = b"".join(frame.wire for frame in frames)
    assert parser.feed(stream)
    assert not parser.feed(header(length, kind, 0, 0))
    assert parser.found == expected(frames)
    assert str(length) in parser.error


BODY = struct.pack("<I2I", 2, 3, 4) + b"onethre"
MALFORMED = {
    "an unknown flag": header(0, 64, 8, 0),
    "all flags": header(0, 64, 65535, 0),
    "an unknown flag on a control frame": header(0, 6, 16, 0),
    "last without fragment": header(8, 64, LAST, 0) + bytes(8),
    "packed and last": header(len(BODY), 64, PACKED | LAST, 0) + BODY,
    "a fragment without an id": header(7, 64, FRAGMENT, 0) + bytes(7),
    "packed without a count": header(3, 64, PACKED, 0) + bytes(3),
    "packed with no message": header(4, 64, PACKED, 0) + struct.pack("<I", 0),
    "packed with a count beyond the frame": header(8, 64, PACKED, 0) + struct.pack("<2I", 2, 0),
    "packed with the largest count": header(8, 64, PACKED, 0) + struct.pack("<2I", 2**32 - 1, 0),
    "packed with bytes left over": header(len(BODY) + 1, 64, PACKED, 0) + BODY + b"x",
    "packed with bytes missing": header(len(BODY) - 1, 64, PACKED, 0) + BODY[:-1],
    "packed with lengths that wrap around": (
        header(12, 64, PACKED, 0) + struct.pack("<3I", 2, 2**31, 2**31)
    ),
}


@pytest.mark.parametrize("wire", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_frame_is_an_error_and_the_frames_before_it_are_kept(wire: bytes) -> None:
    before = single(64, 0, b"before")
    parser = ParserProbe(MAX_FRAME)
    assert not parser.feed(before.wire + wire)
    assert parser.found == expected([before])
    assert parser.error
