"""The proof of the secret and the record that opens a channel."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import struct

from hypothesis import example, given, settings
from hypothesis import strategies as st

from antiphon._core import decode_hello, hmac_sha256

MAGIC = b"ANPH"
BLOCK = 64
# Around the hash's block, where padding and the hashing of long keys begin.
edges = st.sampled_from([0, 1, 31, 32, 54, 55, 56, 57, 63, 64, 65, 119, 120, 127, 128, 129])
texts = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda size, byte: bytes([byte]) * size, edges, st.integers(0, 255)),
)


@given(key=texts, data=texts)
@example(key=b"", data=b"")
@example(key=b"k" * BLOCK, data=b"")
@example(key=b"k" * (BLOCK + 1), data=b"d" * 100_000)
@settings(max_examples=500, deadline=None)
def test_the_proof_is_hmac_sha256(key: bytes, data: bytes) -> None:
    assert hmac_sha256(key, data) == hmac.new(key, data, hashlib.sha256).digest()


def test_the_proof_agrees_with_python_at_every_length_around_the_blocks() -> None:
    for size in range(4 * BLOCK + 2):
        data = bytes(range(256)) * 2
        key, text = data[:size], data[size : 2 * size]
        assert hmac_sha256(key, text) == hmac.new(key, text, hashlib.sha256).digest()


u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
FIXED = struct.Struct("<4sHHIBBHHQ16sQI")


@st.composite
def hellos(draw: st.DrawFn) -> tuple[bytes, dict[str, object]]:
    low, high, node, incarnation = draw(u16), draw(u16), draw(u16), draw(u64)
    address = draw(st.text(max_size=50))
    text = address.encode()
    wire = FIXED.pack(
        MAGIC,
        low,
        high,
        draw(u32),  # features
        draw(st.integers(0, 1)),  # direction
        draw(st.integers(0, 255)),  # flags
        node,
        draw(u16),  # expected
        incarnation,
        draw(st.binary(min_size=16, max_size=16)),  # nonce
        draw(u64),  # the largest message
        draw(u32),  # the largest frame
    )
    wire += struct.pack("<H", len(text)) + text
    facts = {"version": (low, high), "id": node, "incarnation": incarnation, "address": address}
    return wire, facts


@given(hellos(), st.binary(max_size=40))
@settings(max_examples=200, deadline=None)
def test_a_hello_is_read_and_what_a_newer_node_appends_is_ignored(
    hello: tuple[bytes, dict[str, object]], appended: bytes
) -> None:
    wire, facts = hello
    assert decode_hello(wire + appended) == facts


@given(hellos(), st.integers(0, 2**16))
@settings(max_examples=200, deadline=None)
def test_a_hello_that_is_cut_off_is_refused(
    hello: tuple[bytes, dict[str, object]], end: int
) -> None:
    wire, _ = hello
    assert decode_hello(wire[: end % len(wire)]) is None


@given(hellos(), st.integers(2, 255))
@settings(max_examples=50, deadline=None)
def test_a_hello_with_an_unknown_direction_is_refused(
    hello: tuple[bytes, dict[str, object]], direction: int
) -> None:
    wire = bytearray(hello[0])
    wire[12] = direction
    assert decode_hello(bytes(wire)) is None


@given(st.one_of(st.binary(max_size=200), st.builds(MAGIC.__add__, st.binary(max_size=200))))
@settings(max_examples=1000, deadline=None)
def test_any_bytes_are_a_hello_or_refused(garbage: bytes) -> None:
    # An address that is no text is read all the same; only the probe cannot hand it out.
    with contextlib.suppress(UnicodeDecodeError):
        found = decode_hello(garbage)
        assert found is None or garbage.startswith(MAGIC)


@given(
    hellos(),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=6),
)
@settings(max_examples=500, deadline=None)
def test_a_corrupt_hello_is_read_or_refused(
    hello: tuple[bytes, dict[str, object]], changes: list[tuple[int, int]]
) -> None:
    wire = bytearray(hello[0])
    for place, value in changes:
        wire[place % len(wire)] = value
    with contextlib.suppress(UnicodeDecodeError):
        found = decode_hello(bytes(wire))
        assert found is None or set(found) == {"version", "id", "incarnation", "address"}
