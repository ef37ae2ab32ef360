"""The hand-shake's records: the proof of a secret, and a hello from anybody."""

from __future__ import annotations

import hashlib
import hmac
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon._core import decode_hello, hmac_sha256

MAGIC = 0x48504E41


def hello(
    *,
    magic: int = MAGIC,
    versions: tuple[int, int] = (1, 1),
    direction: int = 0,
    id: int = 7,
    incarnation: int = 2**63,
    address: bytes = b"tcp://127.0.0.1:7001",
) -> bytes:
    return (
        struct.pack("<IHHIBBHHQ", magic, *versions, 0, direction, 0, id, 0, incarnation)
        + b"n" * 16
        + struct.pack("<QIH", 2**26, 2**19, len(address))
        + address
    )


@given(key=st.binary(max_size=200), data=st.binary(max_size=500))
def test_the_proof_is_hmac_sha256(key: bytes, data: bytes) -> None:
    assert hmac_sha256(key, data) == hmac.digest(key, data, hashlib.sha256)


@pytest.mark.parametrize("size", [0, 1, 54, 55, 56, 57, 63, 64, 65, 119, 120, 128, 4096])
def test_the_proof_is_right_around_the_borders_of_a_block(size: int) -> None:
    for key in (b"", b"k", b"k" * 63, b"k" * 64, b"k" * 65):
        assert hmac_sha256(key, b"d" * size) == hmac.digest(key, b"d" * size, hashlib.sha256)


@given(
    versions=st.tuples(st.integers(0, 65535), st.integers(0, 65535)),
    id=st.integers(0, 65535),
    incarnation=st.integers(0, 2**64 - 1),
    address=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=200),
    later=st.binary(max_size=50),
)
def test_a_hello_is_read_as_it_was_written_whatever_a_newer_node_appends(
    versions: tuple[int, int], id: int, incarnation: int, address: str, later: bytes
) -> None:
    wire = hello(versions=versions, id=id, incarnation=incarnation, address=address.encode())
    assert decode_hello(wire + later) == {
        "version": versions,
        "id": id,
        "incarnation": incarnation,
        "address": address,
    }


@given(size=st.integers(0, len(hello()) - 1))
def test_a_part_of_a_hello_is_none(size: int) -> None:
    assert decode_hello(hello()[:size]) is None


def test_a_hello_of_another_protocol_or_direction_is_none() -> None:
    assert decode_hello(hello(magic=MAGIC + 1)) is None
    assert decode_hello(hello(direction=2)) is None
    assert decode_hello(hello(direction=1)) is not None


@given(noise=st.binary(max_size=200))
def test_noise_is_no_hello(noise: bytes) -> None:
    assert decode_hello(noise) is None
    # Even behind the right first word a record is read within its bytes, or not at all.
    found = decode_hello(struct.pack("<I", MAGIC) + noise)
    assert found is None or len(found["address"]) <= len(noise)
