"""Groups over UDP whose members are in one process: what they promise, refuse and count."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import antiphon
from antiphon import ConfigError, Group, GroupConfig, Member, MessageTooLarge, QueueFull, View
from antiphon.groups import layers
from antiphon.groups.config import STACKS
from antiphon.groups.protocol import Layer
from antiphon.testing import Collected, eventually
from integration.parties import HELPERS, threads

pytestmark = pytest.mark.timeout(60)

# A slow machine may stop a process for long; nobody is to be put out for that.
PATIENT = GroupConfig(failure_timeout=20.0)


class Party:
    """Members of one group, each with what came to it."""

    def __init__(self, stack: ExitStack, name: str) -> None:
        self._stack = stack
        self.name = name
        self.groups: list[Group] = []
        self.got: list[Collected[tuple[str, bytes]]] = []

    def join(
        self,
        stack: str | list[Layer] = "udp",
        handler: Callable[[Member, bytes], Any] | None = None,
        **options: Any,
    ) -> Group:
        number = len(self.groups)
        if isinstance(stack, str):
            options.setdefault("config", PATIENT)
        group = Group(self.name, stack=stack, member_name=f"m{number}", **options)
        got: Collected[tuple[str, bytes]] = Collected()
        group.on_message(handler or (lambda source, data: got.add((source.name, data))))
        self._stack.enter_context(group)
        self.groups.append(group)
        self.got.append(got)
        eventually(lambda: all(len(one.members) == len(self.groups) for one in self.groups), 20)
        return group


@pytest.fixture
def party(channel: str) -> Iterator[Party]:
    with ExitStack() as stack:
        yield Party(stack, f"api-{time.monotonic_ns()}")


def udp_layers(config: GroupConfig = PATIENT) -> list[Layer]:
    return STACKS["udp"](config)


def test_to_all_to_one_and_to_oneself(party: Party) -> None:
    one, other = party.join(), party.join()
    one.send(b"all")
    one.send(b"you", to=other.me)
    one.send(b"me", to=one.me)
    other.send_async(b"later").result(20)
    party.got[0].first(3)
    party.got[1].first(3)
    assert sorted(party.got[0].items) == [("m0", b"all"), ("m0", b"me"), ("m1", b"later")]
    assert sorted(party.got[1].items) == [("m0", b"all"), ("m0", b"you"), ("m1", b"later")]


def test_views_and_messages_are_in_one_order(party: Party) -> None:
    """A message never comes from one that no view has named."""
    first = party.join()
    seen: set[int] = set()
    strange: list[str] = []

    @first.on_view
    def view(view: View) -> None:
        seen.update(member.life for member in view.members)

    group = Group(party.name, stack="udp", member_name="watcher", config=PATIENT)
    named: set[int] = set()
    group.on_view(lambda view: named.update(member.life for member in view.members))

    def take(source: Member, data: bytes) -> None:
        if source.life not in named:
            strange.append(source.name)

    group.on_message(take)
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            first.send(b"x" * 100, timeout=30)
            time.sleep(0)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        with group:
            eventually(lambda: group.statistics().delivered > 100, 30)
    finally:
        stop.set()
        thread.join()
    assert strange == []


def test_a_full_window_refuses_or_waits_and_closing_wakes(party: Party) -> None:
    config = GroupConfig(window_bytes=1 << 16, failure_timeout=20.0)
    held = threading.Event()
    one = party.join(config=config)
    party.join(config=config, handler=lambda source, data: held.wait(30))

    def fill() -> None:
        for _ in range(1000):
            one.send(bytes(1000), timeout=0)

    try:
        with pytest.raises(QueueFull):
            fill()
        with pytest.raises(antiphon.SendTimeout):
            one.send(bytes(1000), timeout=0.1)
        failed: list[BaseException] = []

        def wait() -> None:
            try:
                one.send(bytes(1000), timeout=30)
            except BaseException as error:
                failed.append(error)

        waits = one.statistics().waits
        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: one.statistics().waits > waits, 10)
        one.close(drain=0.0)
        thread.join(10)
        assert [type(error) for error in failed] == [antiphon.Closed]
    finally:
        held.set()


def test_a_stack_without_parts_or_unicast_says_so(party: Party) -> None:
    config = GroupConfig(mtu=1400, failure_timeout=20.0)
    whole = [one for one in udp_layers(config) if one.name not in ("fragmentation", "unicast")]
    group = party.join(whole)
    group.send(bytes(1000))
    with pytest.raises(MessageTooLarge):
        group.send(bytes(2000))
    with pytest.raises(ConfigError, match="add Unicast"):
        group.send(b"x", to=group.me)
    with pytest.raises(ConfigError, match="add Unicast"):
        group.send_async(b"x", to=group.me)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Group("x", stack=udp_layers()[:-4]), "'nak' is not in it"),
        (lambda: Group("x", stack="udp", config=GroupConfig(interface="nowhere0")), "nowhere0"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(
    channel: str, make: Callable[[], Group], said: str
) -> None:
    with pytest.raises(ConfigError, match=said), make():
        pass


def test_another_transport_is_another_group_and_it_says_so(
    party: Party, caplog: pytest.LogCaptureFixture
) -> None:
    party.join()
    with (
        caplog.at_level(logging.WARNING, "antiphon.groups"),
        Group(party.name, stack="tcp") as other,
    ):
        assert len(other.members) == 1
        eventually(lambda: "with another transport" in caplog.text, 10)


class Looked(frozenset[int]):
    """Keeps how often it was looked at as a whole, which is done twenty times a second."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        self.looks += 1
        return super().__iter__()


def test_a_partition_cuts_datagrams_too(party: Party) -> None:
    cut = layers.Partition()
    stack = udp_layers()
    stack.insert(1, cut)
    one, other = party.join(), party.join(stack)
    cut.nodes = nodes = Looked([one.node.id])
    eventually(lambda: nodes.looks >= 2, 20, "it is in force since the first look")
    one.send(b"lost, for now")
    party.got[0].first(1)
    assert party.got[1].items == []
    cut.nodes = frozenset()
    party.got[1].first(1)
    assert other.statistics().layers["udp"]["mtu"] > 1000


def test_a_sender_sends_once_however_many_there_are(party: Party) -> None:
    """Bytes on the wire for the same messages, with one other member and with three."""
    one = party.join()
    spent = []
    for members in (2, 4):
        while len(party.groups) < members:
            party.join()
        before = one.statistics().layers["udp"]["sent_bytes"]
        for _ in range(300):
            one.send(bytes(1000))
        for got in party.got[-2:]:
            got.first(300)
        spent.append(one.statistics().layers["udp"]["sent_bytes"] - before)
    assert spent[0] >= 300_000
    assert spent[1] < spent[0] * 1.2


def test_sockets_go_with_the_group(party: Party) -> None:
    config = GroupConfig(multicast="239.255.3.4:45991", failure_timeout=20.0)
    with Group(party.name, stack="udp", config=config) as group:
        host, port = group.me.datagrams.rsplit(":", 1)
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe,
            pytest.raises(OSError, match="in use"),
        ):
            probe.bind((host, int(port)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((host, int(port)))


def test_threads_do_not_grow_with_groups(channel: str) -> None:
    with antiphon.Node() as node, ExitStack() as stack:
        stack.enter_context(Group("one-of-many-0", stack="udp", node=node))
        before = threads()
        for number in range(1, 20):
            stack.enter_context(Group(f"one-of-many-{number}", stack="udp", node=node))
        eventually(lambda: threads() <= before + HELPERS, 30)  # nothing is per group
