"""Links that go silent, stall, crawl or break, with both processes in good health."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from antiphon import AntiphonError, ConnectionInfo, Node, NodeConfig
from antiphon.testing import Child, Collected, Control, Member, Network, Proxy, eventually

pytestmark = pytest.mark.timeout(600 if os.environ.get("ANTIPHON_STRESS") == "full" else 60)

KIND = 200
BEAT = 0.3
DEAD = 5 * BEAT  # after so long a silence
# Of nodes in processes of their own: one that is stopped for seconds is not to be called dead.
SLOW_BEAT = 0.8
SLOWLY_DEAD = 5 * SLOW_BEAT
LIVELY = NodeConfig(heartbeat=BEAT, connect_timeout=10.0)


# --- a network of namespaces ----------------------------------------------------------------------


def machine(
    control: Control, id: int, listen: str, beat: float = 0.8, patience: float = 20.0
) -> None:
    """A node that does what the test says and tells what happens to it."""
    import threading
    import time

    import antiphon

    config = antiphon.NodeConfig(heartbeat=beat, connect_timeout=patience, send_timeout=20.0)
    node = antiphon.Node(id, listen=listen, config=config, secret=antiphon.INSECURE)
    inbox = node.inbox(200)
    node.on_disconnected(
        lambda peer, reason: control.tell("lost", peer=peer, reason=reason, at=time.monotonic())
    )

    def flood(target: int) -> None:
        try:
            while True:
                node.send(target, bytes(1000), kind=200)
        except antiphon.AntiphonError as error:
            control.tell("failed", error=type(error).__name__, at=time.monotonic())

    with node:
        control.tell("ready", address=node.address)
        while True:
            order = control.hear()
            match order["order"]:
                case "peer":
                    node.add_peer(order["id"], order["address"])
                case "send":
                    node.send(order["to"], order["data"].encode(), kind=200)
                    control.tell("sent")
                case "receive":
                    source, data = inbox.receive(10)
                    control.tell("received", source=source, data=data.decode())
                case "flood":
                    threading.Thread(target=flood, args=[order["to"]], daemon=True).start()
                case "connections":
                    known = {c.id: [c.address, c.reconnects] for c in node.connections()}
                    control.tell("connections", known=known)


@pytest.fixture(scope="module")
def wires() -> Iterator[list[Member]]:
    with Network(2) as made:
        yield made.members


@pytest.fixture
def network(wires: list[Member]) -> Iterator[list[Member]]:
    """Two machines that are connected, whatever the test before has done."""
    yield wires
    for member in wires:
        member.reappear()
        member.plug_in()


@pytest.fixture
def machines(network: list[Member]) -> Iterator[list[Child]]:
    """A node on each, of which one knows where the other is; both listen on every interface."""
    left, right = network
    listen = "tcp://0.0.0.0:7001"
    with (
        Child(machine, prefix=left.prefix, id=1, listen=listen, beat=SLOW_BEAT) as one,
        Child(machine, prefix=right.prefix, id=2, listen=listen, beat=SLOW_BEAT) as two,
    ):
        one.expect("ready")
        two.expect("ready")
        one.tell("peer", id=2, address=f"tcp://{right.address}:7001")
        yield [one, two]


def say(source: Child, to: int, data: str, target: Child) -> dict[str, Any]:
    source.tell("send", to=to, data=data)
    source.expect("sent")
    target.tell("receive")
    return target.expect("received")


@pytest.mark.needs("netns")
def test_a_node_that_listens_everywhere_is_dialled_back_where_it_was_seen(
    network: list[Member], machines: list[Child]
) -> None:
    one, two = machines
    assert say(one, 2, "there", two)["source"] == 1
    assert say(two, 1, "and back", one)["source"] == 2
    two.tell("connections")
    assert two.expect("connections")["known"]["1"][0] == f"tcp://{network[0].address}:7001"


@pytest.mark.needs("netns")
@pytest.mark.parametrize("fault", [Member.vanish, Member.unplug])
@pytest.mark.parametrize("loaded", [False, True], ids=["idle", "under load"])
def test_a_link_cut_without_a_reset_is_found_by_both_ends_and_mended(
    network: list[Member], machines: list[Child], fault: Callable[[Member], None], loaded: bool
) -> None:
    one, two = machines
    say(one, 2, "there", two)
    say(two, 1, "and back", one)
    if loaded:
        one.tell("flood", to=2)
    fault(network[1])
    cut = time.monotonic()
    for child, other in ((one, 2), (two, 1)):
        told = [child.hear(15) for _ in range(2 if loaded and child is one else 1)]
        events = {event["event"]: event for event in told}
        assert events["lost"]["peer"] == other
        assert "no sign of life" in events["lost"]["reason"]
        # Both read one clock. A beat may have gone out just before the cut.
        assert SLOWLY_DEAD - 2 * SLOW_BEAT < events["lost"]["at"] - cut < 15
        if len(told) == 2:
            # By the loss: its own patience, and that for another attempt, are longer.
            assert events["failed"]["error"] == "PeerUnreachable"
            assert SLOWLY_DEAD - 2 * SLOW_BEAT < events["failed"]["at"] - cut < 15
    network[1].reappear() if fault is Member.vanish else network[1].plug_in()
    if not loaded:  # a flooded inbox has more to give than the next message
        assert say(one, 2, "again", two)["data"] == "again"
    assert say(two, 1, "and again", one)["data"] == "and again"
    two.tell("connections")
    assert two.expect("connections")["known"]["1"][1] == 1


@pytest.mark.needs("netns")
def test_an_address_that_swallows_everything_is_unreachable_after_the_connect_timeout(
    network: list[Member], machines: list[Child]
) -> None:
    left, right = network
    right.vanish()
    listen = "tcp://0.0.0.0:7002"
    with Child(machine, prefix=left.prefix, id=3, listen=listen, patience=1.0) as hasty:
        hasty.expect("ready")
        hasty.tell("peer", id=2, address=f"tcp://{right.address}:7001")
        began = time.monotonic()
        hasty.tell("flood", to=2)
        assert hasty.expect("failed", timeout=15)["error"] == "PeerUnreachable"
        assert time.monotonic() - began > 0.75


def look_up_names(control: Control) -> None:
    """A name server that never answers, a name that only it could know, and one in /etc/hosts."""
    import socket
    import time

    import antiphon

    name_server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    name_server.bind(("127.0.0.1", 53))
    config = antiphon.NodeConfig(connect_timeout=1.5)
    with antiphon.Node(3) as near:
        node = antiphon.Node(1, config=config, peers={2: "tcp://far.example.org:7000"}).start()
        node.add_peer(3, near.address.replace("127.0.0.1", "localhost"))
        took: dict[str, float] = {}
        errors: dict[str, str] = {}

        def measure(name: str, call: Callable[[], object]) -> None:
            began = time.monotonic()
            try:
                call()
            except antiphon.AntiphonError as error:
                errors[name] = f"{type(error).__name__}: {error}"
            took[name] = time.monotonic() - began

        measure("far", lambda: node.send(2, b"", kind=200))
        measure("near", lambda: node.send(3, b"", kind=200))
        with antiphon.Node(2) as moved:
            node.add_peer(2, moved.address)
            measure("moved", lambda: node.send(2, b"", kind=200))
        measure("close", lambda: node.close(drain=0))
        control.tell("done", took=took, errors=errors)


@pytest.fixture(scope="module")
def looked_up(
    wires: list[Member], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    settings = tmp_path_factory.mktemp("names") / "resolv.conf"
    settings.write_text("nameserver 127.0.0.1\noptions timeout:20 attempts:1\n")
    mount = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
    prefix = [*wires[0].prefix, "unshare", "-m", "--", "sh", "-c", mount, str(settings)]
    with Child(look_up_names, prefix=prefix) as child:
        yield child.expect("done", timeout=30)


@pytest.mark.needs("netns")
def test_a_name_that_nobody_resolves_is_unreachable_in_time_and_named(
    looked_up: dict[str, Any],
) -> None:
    assert 1.25 < looked_up["took"]["far"] < 15
    assert looked_up["errors"]["far"].startswith("PeerUnreachable")
    assert "far.example.org" in looked_up["errors"]["far"]


@pytest.mark.needs("netns")
def test_a_name_that_nobody_resolves_holds_up_no_other_name(looked_up: dict[str, Any]) -> None:
    assert "near" not in looked_up["errors"]


@pytest.mark.needs("netns")
def test_a_name_that_nobody_resolves_does_not_hold_up_another_address_of_the_same_peer(
    looked_up: dict[str, Any],
) -> None:
    assert "moved" not in looked_up["errors"]


@pytest.mark.needs("netns")
def test_a_name_that_nobody_resolves_does_not_hold_up_closing(looked_up: dict[str, Any]) -> None:
    assert looked_up["took"]["close"] < 10


# --- a proxy --------------------------------------------------------------------------------------


class Ends:
    """Two nodes with a proxy between them: all connections go through it, either way."""

    def __init__(self, one: Node, two: Node, ways: tuple[Proxy, Proxy]) -> None:
        self.one, self.two, self.ways = one, two, ways
        self.lost: Collected[tuple[int, int, str]] = Collected()
        one.on_disconnected(lambda peer, reason: self.lost.add((1, peer, reason)))
        two.on_disconnected(lambda peer, reason: self.lost.add((2, peer, reason)))

    def connect(self) -> None:
        """Opens both channels."""
        for node, target in ((self.one, 2), (self.two, 1)):
            node.send(target, b"", kind=KIND + 1)

    def connection(self, node: Node) -> ConnectionInfo:
        (found,) = node.connections()
        return found


@pytest.fixture
def ends() -> Iterator[Ends]:
    with (
        Node(1, config=LIVELY) as one,
        Node(2, config=LIVELY) as two,
        Proxy(two.address) as there,
        Proxy(one.address) as back,
    ):
        for node in (one, two):
            node.on(KIND + 1, lambda source, data: None)
        one.add_peer(2, there.address)
        two.add_peer(1, back.address)
        yield Ends(one, two, (there, back))


def test_a_link_that_swallows_everything_is_found_by_both_ends(ends: Ends) -> None:
    ends.connect()
    for proxy in ends.ways:
        proxy.swallow()
    began = time.monotonic()
    lost = ends.lost.first(2, timeout=15)
    assert time.monotonic() - began > DEAD - 2 * BEAT
    assert {(at, peer) for at, peer, _ in lost} == {(1, 2), (2, 1)}
    assert all("no sign of life" in reason for *_, reason in lost)


@pytest.mark.parametrize("way", [0, 1])
def test_one_of_the_two_connections_that_dies_alone_is_found_by_both_ends(
    ends: Ends, way: int
) -> None:
    """As where a firewall has forgotten one of them: the other is heard all the time."""
    inbox = ends.two.inbox(KIND)
    ends.connect()
    ends.ways[way].swallow()
    lost = ends.lost.first(2, timeout=30)
    assert {(at, peer) for at, peer, _ in lost} == {(1, 2), (2, 1)}
    assert any("one of its two connections is dead" in reason for *_, reason in lost)
    ends.ways[way].cut()
    ends.ways[way].flow()
    ends.one.send(2, b"again", kind=KIND)
    assert inbox.receive(10) == (1, b"again")


def test_a_link_that_stalls_for_less_than_the_limit_is_kept(ends: Ends) -> None:
    inbox = ends.two.inbox(KIND)
    ends.connect()
    for proxy in ends.ways:
        proxy.stall()
    assert ends.lost.none_within(DEAD / 5)  # a machine that is slow adds to it
    for proxy in ends.ways:
        proxy.flow()
    ends.one.send(2, b"still here", kind=KIND)
    assert inbox.receive(5) == (1, b"still here")
    assert not ends.lost.items


def test_a_reset_is_reported_at_once_and_the_next_message_connects_again(ends: Ends) -> None:
    inbox = ends.two.inbox(KIND)
    ends.connect()
    ends.ways[0].cut()
    lost = ends.lost.first(2)
    assert {(at, peer) for at, peer, _ in lost} == {(1, 2), (2, 1)}
    # Not by the silence that follows.
    assert not any("no sign of life" in reason for *_, reason in lost)
    ends.one.send(2, b"again", kind=KIND)
    assert inbox.receive(5) == (1, b"again")
    assert ends.connection(ends.one).reconnects == 1


def test_a_slow_link_is_not_taken_for_a_dead_one(ends: Ends) -> None:
    """A single message that takes several times as long as silence may last."""
    inbox = ends.two.inbox(KIND)
    ends.connect()
    ends.ways[0].forward.slow(300_000)
    ends.one.send(2, bytes(900_000), kind=KIND)
    source, data = inbox.receive(10)
    assert (source, len(data)) == (1, 900_000)
    assert not ends.lost.items


def test_a_send_does_not_time_out_on_a_slow_link_while_there_is_room_for_it() -> None:
    """Room for a message comes every 25th of a second, half a ring only every four seconds."""
    narrow = NodeConfig(ring_bytes=2 << 20, socket_buffer_bytes=65536, send_timeout=2.0)
    wide = NodeConfig(flow_window_bytes=16 << 20)  # so that credit plays no part
    with (
        Node(1, config=narrow) as one,
        Node(2, config=wide) as two,
        Proxy(two.address) as proxy,
    ):
        two.on(KIND, lambda source, data: None)
        one.add_peer(2, proxy.address)
        one.send(2, b"", kind=KIND)
        one.flush()
        proxy.forward.slow(250_000)
        for _ in range(330):
            one.send(2, bytes(10_000), kind=KIND)
        assert one.connections()[0].ring_waits > 0
        one.close(drain=0)


def test_a_link_that_carries_one_direction_only_is_given_up_by_both(ends: Ends) -> None:
    ends.connect()
    for proxy in ends.ways:
        # Bytes from one still reach two, whoever dialled; nothing comes back.
        (proxy.back if proxy is ends.ways[0] else proxy.forward).swallow()
    lost = ends.lost.first(2, timeout=15)
    assert {(at, peer) for at, peer, _ in lost} == {(1, 2), (2, 1)}


def test_a_link_that_breaks_again_and_again_doubles_and_reorders_nothing(
    ends: Ends, count: Callable[[int, int], int]
) -> None:
    got: Collected[int] = Collected()
    ends.two.on(KIND, lambda source, data: got.add(struct.unpack_from("<Q", data)[0]))
    stops = threading.Event()
    sent: list[int] = []  # those that were accepted
    errors: Collected[AntiphonError] = Collected()

    def send() -> None:
        number = 0
        while not stops.is_set():
            try:
                ends.one.send(2, struct.pack("<Q", number) + bytes(number % 3000), kind=KIND)
            except AntiphonError as error:
                errors.add(error)
            else:
                sent.append(number)
            number += 1

    thread = threading.Thread(target=send)
    thread.start()

    def flows() -> None:
        before = len(got)
        eventually(lambda: len(got) > before + 50, 10, "messages flow")

    try:
        for cut in range(count(15, 300)):
            flows()
            ends.ways[0].cut(reset=cut % 2 == 0)
        flows()
    finally:
        stops.set()
        thread.join()
    ends.one.flush()
    items = got.items
    assert items == sorted(set(items))
    lost = len(set(sent) - set(items))
    assert lost <= ends.connection(ends.one).unconfirmed_messages
    assert all(type(error).__name__ == "PeerUnreachable" for error in errors.items)


def test_nodes_with_different_heartbeats_do_not_take_each_other_for_dead() -> None:
    """The slower one beats once while five beats of the quicker one pass."""
    lost: Collected[str] = Collected()
    with (
        Node(1, config=NodeConfig(heartbeat=0.1)) as quick,
        Node(2, config=NodeConfig(heartbeat=1.0), peers={1: quick.address}) as slow,
    ):
        inbox = quick.inbox(KIND)
        quick.on_disconnected(lambda peer, reason: lost.add(reason))
        slow.send(1, b"", kind=KIND)
        inbox.receive(5)
        assert lost.none_within(1.6), lost.items
