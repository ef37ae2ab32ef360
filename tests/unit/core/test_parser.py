"""The parser of the data direction, fed any split of any stream."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon._core import ParserProbe
from unit.core.frames import (
    FRAGMENT,
    HEADER,
    LAST,
    MAX_FRAME,
    PACKED,
    Found,
    Frame,
    cut_streams,
    frame,
    packed,
    single,
    streams,
)


def meaning(stream: list[Frame]) -> list[Found]:
    return [found for one in stream for found in one.found]


@given(cut=cut_streams(), least=st.sampled_from([0, 1, 100, 5000]))
def test_any_split_of_any_stream_gives_its_frames(
    cut: tuple[list[Frame], list[bytes]], least: int
) -> None:
    stream, pieces = cut
    parser = ParserProbe(MAX_FRAME, least)
    for piece in pieces:
        assert parser.feed(piece)
    assert parser.found == meaning(stream)
    assert parser.charge == sum(one.charge(least) for one in stream)
    assert not parser.mid_frame
    assert parser.error == ""


@given(
    stream=st.lists(st.builds(single, st.just(100), st.just(1), st.binary(max_size=30)), max_size=6)
)
def test_a_stream_may_come_byte_by_byte(stream: list[Frame]) -> None:
    parser = ParserProbe(MAX_FRAME)
    for byte in b"".join(one.wire for one in stream):
        assert parser.feed(bytes([byte]))
    assert parser.found == meaning(stream)


@given(stream=streams, data=st.data())
def test_half_a_frame_is_kept_and_not_handed_out(stream: list[Frame], data: st.DataObject) -> None:
    last = single(100, 1, b"the end of it")
    wire = b"".join(one.wire for one in stream) + last.wire
    missing = data.draw(st.integers(1, len(last.wire) - 1))
    parser = ParserProbe(MAX_FRAME)
    assert parser.feed(wire[:-missing])
    assert parser.found == meaning(stream)
    assert parser.mid_frame
    assert parser.feed(wire[-missing:])
    assert parser.found == meaning([*stream, last])
    assert not parser.mid_frame


@given(
    stream=streams.filter(bool),
    hits=st.lists(st.tuples(st.integers(0), st.integers(1, 255)), min_size=1, max_size=5),
    step=st.integers(1, 5000),
)
@example(stream=[single(100, 1, b"x")], hits=[(3, 0xFF)], step=1)
def test_a_damaged_stream_gives_frames_or_an_error_and_never_more_bytes_than_it_had(
    stream: list[Frame], hits: list[tuple[int, int]], step: int
) -> None:
    wire = bytearray(b"".join(one.wire for one in stream))
    for place, change in hits:
        wire[place % len(wire)] ^= change
    parser = ParserProbe(MAX_FRAME)
    fine = True
    for at in range(0, len(wire), step):
        fine = parser.feed(bytes(wire[at : at + step]))
        if not fine:
            break
    assert fine == (parser.error == "")
    # Frames in front of the first damaged byte are not touched by it.
    first, whole, at = min(place % len(wire) for place, _ in hits), [], 0
    for one in stream:
        at += len(one.wire)
        if at > first:
            break
        whole.append(one)
    found = parser.found
    assert found[: len(meaning(whole))] == meaning(whole)
    assert sum(len(payload) for *_, payload in found) <= len(wire)


@given(noise=st.binary(max_size=3000), step=st.integers(1, 3000))
def test_noise_never_gives_more_than_was_fed(noise: bytes, step: int) -> None:
    parser = ParserProbe(MAX_FRAME)
    for at in range(0, len(noise), step):
        if not parser.feed(noise[at : at + step]):
            break
    assert sum(len(payload) + HEADER.size for *_, payload in parser.found if payload) <= len(noise)


BAD = {
    "a length of four gigabytes": HEADER.pack(2**32 - 1, 100, 0, 1),
    "a length above the limit": HEADER.pack(MAX_FRAME + 1, 100, 0, 1),
    "a control frame above the limit": HEADER.pack(MAX_FRAME + 1, 5, 0, 0),
    "unknown flags": frame(100, 8, 1, b"x"),
    "packed without a count": frame(100, PACKED, 1, b"abc"),
    "packed with nothing in it": frame(100, PACKED, 1, packed([])),
    "packed with bytes left over": frame(100, PACKED, 1, packed([b"a"]) + b"!"),
    "packed with bytes missing": frame(100, PACKED, 1, packed([b"abc"])[:-1]),
    "packed with a count beyond the frame": frame(100, PACKED, 1, struct.pack("<I", 2**30)),
    "packed with lengths that wrap around": frame(
        100, PACKED, 1, struct.pack("<III", 2, 2**32 - 1, 1)
    ),
    "packed as a fragment's last": frame(100, PACKED | LAST, 1, packed([b"a"])),
    "a fragment without an id": frame(100, FRAGMENT, 1, b"1234567"),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_a_bad_frame_ends_the_stream_behind_the_good_ones(bad: bytes, step: int) -> None:
    good = [single(100, 1, b"before"), single(100, 1, b"it")]
    wire = b"".join(one.wire for one in good) + bad + frame(100, 0, 1, b"after")
    parser = ParserProbe(MAX_FRAME)
    fine = True
    for at in range(0, len(wire), step):
        fine = parser.feed(wire[at : at + step])
        if not fine:
            break
    assert not fine
    assert parser.error != ""
    assert parser.found == meaning(good)
    assert not parser.feed(b"and more") or parser.found == meaning(good)


def test_a_frame_of_exactly_the_limit_is_taken() -> None:
    for size in (MAX_FRAME - 1, MAX_FRAME):
        parser = ParserProbe(MAX_FRAME)
        assert parser.feed(frame(100, 0, 1, b"x" * size))
        assert parser.found == [("data", 100, 1, b"x" * size)]
