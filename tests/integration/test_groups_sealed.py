"""Groups over UDP with a secret, of real processes, and a stranger at the multicast address."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import antiphon
from antiphon import ConfigError
from antiphon._core import build_info
from antiphon.groups import layers
from antiphon.groups.config import STACKS
from antiphon.groups.layers.udp import default_address, split_address
from antiphon.testing import Network, eventually

from .group_members import Crowd, ask, until

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not build_info()["openssl"], reason="there is no OpenSSL 3 here"),
]

SECRET = "between us all"
PLAIN = bytes(64)  # messages of the members are zeros, mostly
HEAD = 32
# Slow machines may stop a process for long; nobody is to be put out for that here.
# A message to a datagram, so that there are many.
PATIENT = {"failure_timeout": 20.0, "mtu": 1400}


class Stranger:
    """Somebody on the same network, without the secret: it hears and sends as it likes."""

    def __init__(self, group: str) -> None:
        self.host, self.port = split_address(default_address(group))
        self.hears = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.hears.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.hears.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.hears.bind((self.host, self.port))
        interface = socket.inet_aton("127.0.0.1")
        self.hears.setsockopt(
            socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(self.host) + interface
        )
        self.hears.settimeout(10)
        self.sends = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sends.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)

    def close(self) -> None:
        self.hears.close()
        self.sends.close()

    def hear(self, count: int) -> list[bytes]:
        """So many datagrams with data in them."""
        heard: list[bytes] = []
        end = time.monotonic() + 40
        while len(heard) < count and time.monotonic() < end:
            data = self.hears.recv(65536)
            if len(data) > 500:
                heard.append(data)
        assert len(heard) == count
        return heard

    def say(self, data: bytes) -> None:
        self.sends.sendto(data, (self.host, self.port))


@pytest.fixture
def crowd(channel: str) -> Iterator[Crowd]:
    with ExitStack() as stack:
        yield Crowd(stack, f"sealed-{time.monotonic_ns()}", config=PATIENT)


@pytest.fixture
def stranger(crowd: Crowd) -> Iterator[Stranger]:
    made = Stranger(crowd.name)
    yield made
    made.close()


def three(crowd: Crowd, secret: str | None = SECRET, **options: Any) -> None:
    crowd.start_in_turn(3, options={"stack": "udp", "secret": secret}, **options)


def all_have(crowd: Crowd, wanted: dict[str, int]) -> None:
    for child in crowd.members:
        counted = ask(child, "count", "counted", wanted=wanted)
        assert counted["wrong"] == []
        assert counted["got"] == wanted


def refused(crowd: Crowd, number: int) -> dict[str, float]:
    figures = ask(crowd.members[number], "statistics", "statistics")
    counts: dict[str, float] = figures["layers"]["encryption"]
    return counts


@pytest.mark.parametrize("secret", [SECRET, None], ids=["with a secret", "without"])
def test_a_stranger_reads_nothing_where_there_is_a_secret(
    crowd: Crowd, stranger: Stranger, secret: str | None
) -> None:
    three(crowd, secret)
    crowd.members[0].tell("send", count=50, size=1000)
    heard = stranger.hear(20)
    until(crowd.members[0], "sent")
    # What it looks for is there to be seen where nothing is sealed.
    assert any(PLAIN in data[HEAD:] for data in heard) == (secret is None)
    all_have(crowd, {"m0": 50})


def test_what_a_stranger_injects_replays_or_changes_is_counted_and_does_nothing(
    crowd: Crowd, stranger: Stranger
) -> None:
    three(crowd)
    crowd.members[0].tell("send", count=50, size=1000)
    heard = stranger.hear(10)
    until(crowd.members[0], "sent")
    all_have(crowd, {"m0": 50})
    before = refused(crowd, 1)
    chance = random.Random(7)
    sender = struct.unpack_from("<Q", heard[0], 16)[0]
    for data in heard:
        stranger.say(data)
        changed = bytearray(data)
        at = chance.choice([6, *range(HEAD + 16, len(data))])  # flags, body or tag
        changed[at] ^= 1 << chance.randrange(8)
        changed[HEAD + 15] ^= 64  # a counter that was never used
        stranger.say(bytes(changed))
        stranger.say(data[:HEAD] + chance.randbytes(200))
        assert struct.unpack_from("<Q", data, 16)[0] == sender

    def counted() -> bool:
        now = refused(crowd, 1)
        return (
            now["replayed"] - before["replayed"] >= len(heard)
            and now["forged"] - before["forged"] >= len(heard)
            and now["unknown_key"] - before["unknown_key"] >= len(heard)
        )

    eventually(counted, 20)
    # Nothing came of it, and everything goes on.
    ask(crowd.members[0], "send", "sent", count=50, size=1000)
    ask(crowd.members[2], "send", "sent", count=50, size=1000)
    all_have(crowd, {"m0": 100, "m2": 50})
    assert ask(crowd.members[0], "statistics", "statistics")["view"] == 3


@pytest.mark.parametrize("secret", ["another one", None], ids=["another secret", "none"])
def test_a_stranger_does_not_join(crowd: Crowd, secret: str | None) -> None:
    three(crowd)
    came: list[bytes] = []
    alone = antiphon.Group(crowd.name, stack="udp", secret=secret)
    alone.on_message(lambda source, data: came.append(data))
    with alone:
        assert len(alone.members) == 1
        ask(crowd.members[0], "send", "sent", count=50, size=1000)
        all_have(crowd, {"m0": 50})
        alone.send(bytes(100))
        eventually(lambda: len(came) == 1, 20)  # its own
        assert ask(crowd.members[0], "statistics", "statistics")["view"] == 3
        assert len(alone.members) == 1
        assert came == [bytes(100)]


def test_messages_of_100_kb_go_in_sealed_parts_over_a_network_that_loses(
    crowd: Crowd, count: Callable[[int, int], int]
) -> None:
    many = count(10, 200)
    three(crowd, faults={"DropDatagrams": {"fraction": 0.1}})
    for child in crowd.members:
        child.tell("send", count=many, size=100_000)
    for child in crowd.members:
        until(child, "sent")
    all_have(crowd, {"m0": many, "m1": many, "m2": many})
    assert refused(crowd, 1)["sealed"] > 0


def test_keys_change_under_traffic_and_nothing_is_lost(crowd: Crowd) -> None:
    three(crowd)
    crowd.members[0].tell("send", count=4000, size=500)
    newcomer = crowd.start(options={"stack": "udp", "secret": SECRET})
    crowd.wait_for(newcomer, lambda view: len(view["members"]) == 4)
    newcomer.tell("leave")
    until(newcomer, "left")
    until(crowd.members[0], "sent")
    crowd.members.remove(newcomer)
    all_have(crowd, {"m0": 4000})
    assert refused(crowd, 0)["drawn"] >= 5


@pytest.mark.needs("netns")
def test_sealed_datagrams_and_tls_over_a_network(crowd: Crowd) -> None:
    with Network(3) as network:
        addresses = [f"tcp://{one.address}:7800" for one in network.members]
        for one, address in zip(network.members, addresses, strict=True):
            crowd.start(
                prefix=one.prefix,
                listen=address,
                discover=addresses,
                secret=SECRET,
                options={"stack": "udp"},
            )
        crowd.all_see(3)
        for child in crowd.members:
            child.tell("send", count=500, size=1000)
        for child in crowd.members:
            until(child, "sent")
        all_have(crowd, {"m0": 500, "m1": 500, "m2": 500})
        assert refused(crowd, 1)["opened"] > 0


def test_layers_of_ones_own_are_sealed_exactly_where_the_node_is_protected() -> None:
    plain = STACKS["udp"](antiphon.GroupConfig())
    at = [layer.name for layer in plain].index("membership")
    with pytest.raises(ConfigError, match=r"put Encryption\(\) below 'membership'"):
        antiphon.Group("wrong", stack=plain, secret=SECRET)
    sealed = [*plain[:at], layers.Encryption(), *plain[at:]]
    with pytest.raises(ConfigError, match="give the node a secret or tls"):
        antiphon.Group("wrong", stack=sealed)
    with antiphon.Group("right", stack=sealed, secret=SECRET) as group:
        assert "encryption" in group.drawing
    with antiphon.Group("named", stack="udp", secret=SECRET) as group:
        assert "encryption" in group.drawing
    with antiphon.Group("open", stack="udp") as group:
        assert "encryption" not in group.drawing
