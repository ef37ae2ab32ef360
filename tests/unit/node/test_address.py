from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ConfigError
from antiphon.node.address import Address, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://127.0.0.1:7001", Address("tcp", "127.0.0.1", 7001)),
        ("tcp://db-1.example.:7001", Address("tcp", "db-1.example.", 7001)),
        ("tcp://[fe80::1%eth0]:1", Address("tcp", "fe80::1%eth0", 1)),
        ("unix:///run/a b.sock", Address("unix", path="/run/a b.sock")),
        ("inproc://any/name", Address("inproc", path="any/name")),
    ],
)
def test_an_address_is_parsed_and_written_back(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("127.0.0.1:7001", "tcp://host:port"),
        ("http://a:1", "tcp://host:port"),
        ("tcp://", "needs a port"),
        ("tcp://host", "needs a port"),
        ("tcp://host:", "needs a port"),
        ("tcp://host:x", "needs a port"),
        ("tcp://host:70000", "65535"),
        ("tcp://host:0", "cannot be dialled"),
        ("tcp://:7001", "not a host name"),
        ("tcp://a b:7001", "not a host name"),
        ("tcp://127.0.0.256:7001", "not a host name"),
        ("tcp://::1:7001", "in brackets"),
        ("tcp://[::1]", "needs a port"),
        ("tcp://[::1:7001", "brackets"),
        ("tcp://[host]:7001", "not an IPv6"),
        ("tcp://*:7001", r"0\.0\.0\.0"),
        ("tcp://host:٣", "needs a port"),
        ("unix://relative", "absolute path"),
        ("unix:///" + "x" * 107, "108 bytes"),
        ("unix:///a\0b", "zero byte"),
        ("inproc://", "needs a name"),
        (7001, "not a text"),
    ],
)
def test_a_bad_address_is_refused_with_what_to_write(text: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint) as caught:
        parse_address(text, setting="peers[2]")
    assert caught.value.setting == "peers[2]"


def test_port_zero_is_for_listeners() -> None:
    assert parse_address("tcp://127.0.0.1:0", listening=True).port == 0


def test_wildcards_are_known() -> None:
    assert Address("tcp", "0.0.0.0", 1).wildcard
    assert Address("tcp", "::", 1).wildcard
    assert not Address("tcp", "127.0.0.1", 1).wildcard
    assert not Address("inproc", path="0.0.0.0").wildcard


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_a_config_error(text: str) -> None:
    for candidate in (text, "tcp://" + text, "unix:///" + text, "inproc://" + text):
        try:
            address = parse_address(candidate)
        except ConfigError:
            continue
        assert parse_address(str(address)) == address
