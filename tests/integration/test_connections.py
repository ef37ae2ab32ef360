"""How nodes find, refuse and lose each other, over every transport."""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from antiphon import (
    AntiphonError,
    AuthenticationFailed,
    DuplicateNode,
    Node,
    NodeConfig,
    PeerUnreachable,
    ProtocolError,
    UnknownPeer,
)
from antiphon.testing import Child, Collected, Control, Host, Stranger, eventually, strangers
from unit.node.pairs import free_address, has_ipv6

pytestmark = pytest.mark.timeout(600 if os.environ.get("ANTIPHON_STRESS") == "full" else 60)

KIND = 200
QUICK = NodeConfig(connect_timeout=1.5)
PATIENT = NodeConfig(connect_timeout=40.0)
"""For what must be known at once: who waits for the end of this is found out."""
# Around every size at which something changes: nothing, a header, a page, the small buffers, the
# largest frame, the window, the ring; and far above all of them.
EDGES = (0, 64, 4096, 16384, 65536, 262144, 524288, 1 << 20, 2 << 20, 4 << 20)
SIZES = [
    *sorted({max(0, edge + step) for edge in EDGES for step in (-12, -1, 0, 1)}),
    10_000_000,
]

_names = itertools.count(1)


def message(size: int, seed: int) -> bytes:
    block = struct.pack("<I", seed) * 1024
    return (block * (size // len(block) + 1))[:size]


@pytest.fixture(params=["tcp", "localhost", "ipv6", "unix", "inproc"])
def listen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Makes an address to listen on, of each transport in turn."""
    if request.param == "ipv6" and not has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")

    def make() -> str:
        number = next(_names)
        return {
            "tcp": "tcp://127.0.0.1:0",
            "localhost": "tcp://localhost:0",
            "ipv6": "tcp://[::1]:0",
            "unix": f"unix://{tmp_path}/{number}.sock",
            "inproc": f"inproc://connections-{number}",
        }[request.param]

    return make


@contextlib.contextmanager
def refused_port() -> Iterator[str]:
    """The address of a port that is taken and where nobody listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{holder.getsockname()[1]}"


# --- every transport ------------------------------------------------------------------------------


def test_messages_of_every_size_arrive_in_order_both_ways(listen: Callable[[], str]) -> None:
    with Node(1, listen=listen()) as one, Node(2, listen=listen()) as two:
        one.add_peer(2, two.address)
        two.add_peer(1, one.address)
        problems: Collected[str] = Collected()

        def send(node: Node, target: int) -> None:
            for number, size in enumerate(SIZES):
                node.send(target, message(size, number), kind=KIND)

        def receive(inbox: Iterator[tuple[int, bytes]], source: int) -> None:
            for number, size in enumerate(SIZES):
                came_from, data = next(inbox)
                if came_from != source or data != message(size, number):
                    problems.add(f"{len(data)} bytes from {came_from}, not {size} from {source}")

        inboxes = one.inbox(KIND), two.inbox(KIND)
        threads = [
            threading.Thread(target=send, args=(one, 2)),
            threading.Thread(target=send, args=(two, 1)),
            threading.Thread(target=receive, args=(inboxes[0], 2)),
            threading.Thread(target=receive, args=(inboxes[1], 1)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
        assert not problems.items


def test_the_address_of_a_node_is_one_that_can_be_dialled(listen: Callable[[], str]) -> None:
    with Node(1, listen=listen()) as one, Node(2, listen=listen()) as two:
        inbox = one.inbox(KIND)
        two.add_peer(1, one.address)
        two.send(1, b"hello", kind=KIND)
        assert inbox.receive(5) == (2, b"hello")
        one.send(2, b"back", kind=KIND)  # to an address that it has only been told
        (connection,) = one.connections()
        assert connection.address == two.address


def test_a_clean_close_is_reported_at_once(listen: Callable[[], str]) -> None:
    gone: Collected[tuple[int, str]] = Collected()
    with Node(1, listen=listen()) as one:
        inbox = one.inbox(KIND)
        one.on_disconnected(lambda peer, reason: gone.add((peer, reason)))
        with Node(2, listen=listen(), peers={1: one.address}) as two:
            two.send(1, b"", kind=KIND)
            inbox.receive(5)
        ((peer, reason),) = gone.first(1)
        assert peer == 2
        assert "closed" in reason


@pytest.mark.parametrize("duplex", [False, True], ids=["one way", "both ways"])
def test_what_was_sent_before_a_clean_close_arrives(
    listen: Callable[[], str], duplex: bool, count: Callable[[int, int], int]
) -> None:
    """With both channels up, the farewell on one must not overtake the data on the other."""
    for _ in range(count(3, 50)):
        with Node(1, listen=listen()) as one:
            inbox = one.inbox(KIND)
            with Node(2, listen=listen(), peers={1: one.address}) as two:
                two.on(KIND, lambda source, data: None)
                two.send(1, b"first", kind=KIND)
                assert inbox.receive(5) == (2, b"first")
                if duplex:
                    one.send(2, b"", kind=KIND)
                    one.flush()
                for number in range(200):
                    two.send(1, message(5000, number), kind=KIND)
            for number in range(200):
                assert inbox.receive(5) == (2, message(5000, number))


def test_a_peer_that_closed_and_came_back_is_found_again(listen: Callable[[], str]) -> None:
    gone: Collected[int] = Collected()
    with Node(1, listen=listen()) as one:
        one.on_disconnected(lambda peer, reason: gone.add(peer))
        address = listen()
        if address.endswith(":0"):  # one that nobody else is given between two of its lives
            address = address.removesuffix("0") + free_address().rpartition(":")[2]
        for round_ in range(1, 4):
            with Node(2, listen=address) as two:
                address = two.address
                inbox = two.inbox(KIND)
                one.add_peer(2, address)
                one.send(2, b"%d" % round_, kind=KIND)
                assert inbox.receive(5) == (1, b"%d" % round_)
            gone.first(round_)
        (connection,) = one.connections()
        assert connection.reconnects == 2
        assert connection.losses == 3


def test_a_second_listener_at_an_address_is_refused_and_the_first_goes_on(
    listen: Callable[[], str],
) -> None:
    with Node(1, listen=listen()) as first:
        inbox = first.inbox(KIND)
        second = Node(2, listen=first.address)
        with pytest.raises(OSError, match="listen on") as refused:
            second.start()
        assert refused.value.errno == errno.EADDRINUSE
        second.close()
        with Node(3, listen=None, peers={1: first.address}) as other:
            other.send(1, b"still here", kind=KIND)
            assert inbox.receive(5) == (3, b"still here")


# --- opening --------------------------------------------------------------------------------------


def test_both_sides_connecting_at_once_lose_nothing(
    listen: Callable[[], str], count: Callable[[int, int], int]
) -> None:
    for _ in range(count(10, 200)):  # of five transports each
        with Node(1, listen=listen()) as one, Node(2, listen=listen()) as two:
            one.add_peer(2, two.address)
            two.add_peer(1, one.address)
            inboxes = one.inbox(KIND), two.inbox(KIND)
            lost: Collected[str] = Collected()
            errors: Collected[AntiphonError] = Collected()
            at_once = threading.Barrier(2)

            def talk(
                node: Node,
                target: int,
                at_once: threading.Barrier = at_once,
                errors: Collected[AntiphonError] = errors,
            ) -> None:
                at_once.wait()
                try:
                    for number in range(20):
                        node.send(target, b"%d" % number, kind=KIND)
                except AntiphonError as error:
                    errors.add(error)

            for node in (one, two):
                node.on_disconnected(lambda peer, reason, lost=lost: lost.add(reason))
            threads = [threading.Thread(target=talk, args=pair) for pair in ((one, 2), (two, 1))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(15)
            assert not errors.items
            for inbox, source in zip(inboxes, (2, 1), strict=True):
                for number in range(20):
                    assert inbox.receive(5) == (source, b"%d" % number)
            for node, peer in ((one, 2), (two, 1)):
                (connection,) = node.connections()
                assert connection.id == peer
                assert connection.sending
                assert connection.receiving
                assert (connection.connects, connection.losses) == (1, 0)
            assert not lost.items


def test_a_node_without_a_listener_sends_and_receives() -> None:
    with Node(1) as server, Node(2, listen=None, peers={1: server.address}) as client:
        assert client.address == ""
        at_server, at_client = server.inbox(KIND), client.inbox(KIND)
        client.send(1, b"question", kind=KIND)
        assert at_server.receive(5) == (2, b"question")
        server.send(2, b"answer", kind=KIND)
        assert at_client.receive(5) == (1, b"answer")


def test_a_node_without_a_listener_is_reached_again_after_a_cut() -> None:
    with Node(1) as server, Node(2, listen=None, peers={1: server.address}) as client:
        at_server, at_client = server.inbox(KIND), client.inbox(KIND)
        gone: Collected[int] = Collected()
        server.on_disconnected(lambda peer, reason: gone.add(peer))
        client.send(1, b"", kind=KIND)
        at_server.receive(5)
        client.remove_peer(1)
        gone.first(1)
        client.add_peer(1, server.address)
        client.send(1, b"again", kind=KIND)
        assert at_server.receive(5) == (2, b"again")
        server.send(2, b"answer", kind=KIND)
        assert at_client.receive(5) == (1, b"answer")


def test_a_node_that_cannot_be_dialled_back_opens_the_second_channel_itself() -> None:
    with (
        refused_port() as nowhere,
        Node(1) as server,
        Node(2, advertise=nowhere, peers={1: server.address}) as contained,
    ):
        at_server, at_contained = server.inbox(KIND), contained.inbox(KIND)
        contained.send(1, b"question", kind=KIND)
        assert at_server.receive(5) == (2, b"question")
        for number in range(100):
            server.send(2, b"%d" % number, kind=KIND)
        for number in range(100):
            assert at_contained.receive(5) == (1, b"%d" % number)


def test_a_dial_back_that_nobody_answers_does_not_use_up_the_time_to_connect() -> None:
    """As from a container behind a firewall that drops: no refusal, only silence."""
    with (
        Host() as silent,
        Node(1, config=NodeConfig(connect_timeout=4.0)) as server,
        Node(2, advertise=silent.address, peers={1: server.address}) as contained,
    ):
        at_server, at_contained = server.inbox(KIND), contained.inbox(KIND)
        contained.send(1, b"question", kind=KIND)
        assert at_server.receive(5) == (2, b"question")
        server.send(2, b"answer", kind=KIND)
        assert at_contained.receive(10) == (1, b"answer")


def test_try_send_to_a_peer_that_is_not_connected_starts_the_connection() -> None:
    with Node(1) as one, Node(2) as two:
        inbox = two.inbox(KIND)
        connected: Collected[int] = Collected()
        one.on_connected(lambda peer, reason: connected.add(peer))
        one.add_peer(2, two.address)
        assert one.try_send(2, b"too early", kind=KIND) is False
        assert connected.first(1) == [2]
        eventually(lambda: one.try_send(2, b"now", kind=KIND), 5, "try_send takes it")
        assert inbox.receive(5) == (1, b"now")


def test_try_send_never_blocks_on_an_address_where_nobody_answers() -> None:
    with Host() as silent, Node(1, peers={2: silent.address}, config=PATIENT) as node:
        began = time.monotonic()
        for _ in range(100):
            assert node.try_send(2, b"", kind=KIND) is False
        assert time.monotonic() - began < 10


def test_on_connected_says_who_dialled_and_may_send() -> None:
    said: Collected[tuple[str, int, str]] = Collected()
    with Node(1) as one, Node(2, peers={1: one.address}) as two:
        inbox = two.inbox(KIND)

        @one.on_connected
        def greet(peer: int, reason: str) -> None:
            said.add(("one", peer, reason))
            one.send(peer, b"welcome", kind=KIND)

        two.on_connected(lambda peer, reason: said.add(("two", peer, reason)))
        two.send(1, b"", kind=KIND)
        assert inbox.receive(5) == (1, b"welcome")
        assert sorted(said.first(2)) == [("one", 2, "accepted"), ("two", 1, "dialled")]


# --- not getting through --------------------------------------------------------------------------


def test_an_unknown_peer_is_named() -> None:
    with Node(1) as node:
        for call in (
            lambda: node.send(77, b"", kind=KIND),
            lambda: node.try_send(77, b"", kind=KIND),
            lambda: node.send_many(77, [b""], kind=KIND),
            lambda: node.remove_peer(77),
        ):
            with pytest.raises(UnknownPeer, match="77") as unknown:
                call()
            assert unknown.value.peer == 77


def test_a_removed_peer_is_unknown_again() -> None:
    with Node(1) as one, Node(2) as two:
        one.add_peer(2, two.address)
        one.send(2, b"", kind=KIND)
        one.remove_peer(2)
        eventually(lambda: not two.connections()[0].receiving, 5, "the connection closes")
        with pytest.raises(UnknownPeer):
            one.send(2, b"", kind=KIND)


def test_a_port_where_nobody_listens_is_unreachable_after_the_connect_timeout() -> None:
    with refused_port() as nowhere, Node(1, peers={2: nowhere}, config=QUICK) as node:
        began = time.monotonic()
        with pytest.raises(PeerUnreachable, match=nowhere) as failed:
            node.send(2, b"", kind=KIND)
        assert 1.2 < time.monotonic() - began < 15
        assert (failed.value.peer, failed.value.address) == (2, nowhere)
        assert "refused" in (failed.value.reason or "")


def test_a_host_that_keeps_silent_is_unreachable_after_the_connect_timeout() -> None:
    with Host() as silent, Node(1, peers={2: silent.address}, config=QUICK) as node:
        began = time.monotonic()
        with pytest.raises(PeerUnreachable):
            node.send(2, b"", kind=KIND)
        assert 1.2 < time.monotonic() - began < 15


def test_a_name_that_does_not_exist_is_unreachable_and_named() -> None:
    with (
        Node(1, peers={2: "tcp://no-such-host.invalid:7000"}, config=QUICK) as node,
        pytest.raises(PeerUnreachable, match=r"no-such-host\.invalid"),
    ):
        node.send(2, b"", kind=KIND)


def test_a_peer_that_starts_late_is_reached_by_a_send_that_waits() -> None:
    with Node(1) as one, refused_port() as nowhere:
        one.add_peer(2, nowhere)
        problems: Collected[AntiphonError | None] = Collected()

        def send() -> None:
            try:
                one.send(2, b"patience", kind=KIND)
            except AntiphonError as error:
                problems.add(error)
            else:
                problems.add(None)

        sender = threading.Thread(target=send)
        sender.start()
        # Another address, not a late listener: that nobody else takes the port cannot be ensured.
        with Node(2) as two:
            inbox = two.inbox(KIND)
            one.add_peer(2, two.address)
            assert inbox.receive(5) == (1, b"patience")
            assert problems.first(1) == [None]
        sender.join()


def test_another_node_at_the_address_is_unreachable_and_both_are_named() -> None:
    with Node(1, config=PATIENT) as one, Node(2) as two:
        one.add_peer(9, two.address)
        began = time.monotonic()
        with pytest.raises(PeerUnreachable, match=r"node 9\b.*node 2\b"):
            one.send(9, b"", kind=KIND)
        assert time.monotonic() - began < 15


def test_sending_to_several_tries_all_and_names_those_that_failed() -> None:
    config = NodeConfig(connect_timeout=0.5)
    with refused_port() as nowhere, Node(1, config=config) as one, Node(2) as two:
        inbox = two.inbox(KIND)
        one.add_peer(2, two.address)
        one.add_peer(3, nowhere)
        eventually(lambda: one.try_send(2, b"before", kind=KIND), 10, "node 2 is connected")
        assert inbox.receive(5) == (1, b"before")
        with pytest.raises(PeerUnreachable) as failed:
            one.send([3, 2, 4], b"all", kind=KIND)
        assert inbox.receive(5) == (1, b"all")
        assert {peer: type(error) for peer, error in failed.value.failed.items()} == {
            3: PeerUnreachable,
            4: UnknownPeer,
        }


# --- identity -------------------------------------------------------------------------------------


def test_a_duplicate_id_is_refused_naming_both_and_the_first_goes_on_undisturbed() -> None:
    gone: Collected[str] = Collected()
    with Node(1) as hub, Node(5) as first, Node(5) as second:
        inbox = hub.inbox(KIND)
        hub.on_disconnected(lambda peer, reason: gone.add(reason))
        first.on_disconnected(lambda peer, reason: gone.add(reason))
        for node in (first, second):
            node.add_peer(1, hub.address)
        for number in range(50):
            first.send(1, b"%d" % number, kind=KIND)
        with pytest.raises(DuplicateNode) as refused:
            second.send(1, b"intruder", kind=KIND)
        error = refused.value
        assert first.address in str(error)
        assert second.address in str(error)
        for number in range(50, 100):
            first.send(1, b"%d" % number, kind=KIND)
        for number in range(100):
            assert inbox.receive(5) == (5, b"%d" % number)
        assert not gone.items


def test_the_error_for_a_duplicate_id_carries_the_id_and_the_addresses_as_facts() -> None:
    with Node(1) as hub, Node(5) as first, Node(5) as second:
        for node in (first, second):
            node.add_peer(1, hub.address)
        first.send(1, b"", kind=KIND)
        with pytest.raises(DuplicateNode) as refused:
            second.send(1, b"", kind=KIND)
        error = refused.value
        assert error.id == 5
        assert (error.address, error.other) == (second.address, first.address)


def test_a_dead_node_does_not_hold_its_id() -> None:
    """Connected still, as far as the hub knows, but it does not answer: its id is free."""
    with Node(1) as hub, Stranger.dial(hub.address) as dead:
        inbox = hub.inbox(KIND)
        dead.hand_shake(5)
        eventually(lambda: hub.connections()[0].receiving, 5)
        with Node(5, peers={1: hub.address}) as living:
            living.send(1, b"mine now", kind=KIND)
            assert inbox.receive(5) == (5, b"mine now")
        assert dead.dropped_within(10)


def test_an_id_that_was_drawn_comes_from_the_upper_half() -> None:
    ids = {Node().id for _ in range(20)}
    assert all(36864 <= drawn <= 65535 for drawn in ids)
    assert len(ids) > 1


@pytest.mark.parametrize(
    ("id", "incarnations", "answers"),
    [
        (40000, (1, 2), (strangers.REPLY, strangers.REFUSE)),
        (40000, (1, 1), (strangers.REPLY, strangers.REPLY)),
        (5, (1, 2), (strangers.REPLY, strangers.REPLY)),
    ],
    ids=["drawn by two", "asked twice", "given"],
)
def test_of_two_who_ask_with_the_same_drawn_id_one_draws_another(
    id: int, incarnations: tuple[int, int], answers: tuple[int, int]
) -> None:
    """As clients of a broker do before they connect: both would come with it otherwise."""
    flags = strangers.NO_LISTENER | strangers.ASKS_WHO
    with Node(1) as hub:
        for incarnation, answer in zip(incarnations, answers, strict=True):
            with Stranger.dial(hub.address) as asking:
                record = strangers.hello(id, flags=flags, incarnation=incarnation)
                asking.say(strangers.frame(strangers.HELLO, record))
                assert asking.read().kind == answer


def test_an_id_is_free_again_when_whoever_asked_with_it_has_connected_and_died() -> None:
    flags = strangers.NO_LISTENER | strangers.ASKS_WHO

    def ask(incarnation: int) -> int:
        with Stranger.dial(hub.address) as asking:
            record = strangers.hello(40000, flags=flags, incarnation=incarnation)
            asking.say(strangers.frame(strangers.HELLO, record))
            return asking.read().kind

    with Node(1) as hub:
        assert ask(1) == strangers.REPLY
        with Stranger.dial(hub.address) as first:
            first.hand_shake(40000, incarnation=1)
            eventually(lambda: [one.id for one in hub.connections()] == [40000], 5)
        assert ask(2) == strangers.REPLY


def test_an_id_that_was_drawn_and_is_taken_is_drawn_again_silently() -> None:
    with Node(1) as hub, Node() as drawn:
        inbox = hub.inbox(KIND)
        taken = drawn.id
        with Node(taken, peers={1: hub.address}) as twin:
            twin.send(1, b"first", kind=KIND)
            assert inbox.receive(5) == (taken, b"first")
            drawn.add_peer(1, hub.address)
            drawn.send(1, b"second", kind=KIND)
            source, data = inbox.receive(5)
            assert data == b"second"
            assert source == drawn.id != taken
            twin.send(1, b"third", kind=KIND)
            assert inbox.receive(5) == (taken, b"third")


def test_a_node_can_send_to_itself() -> None:
    with Node(1) as node:
        inbox = node.inbox(KIND)
        for number, size in enumerate((0, 64, 10_000_000)):
            node.send(1, message(size, number), kind=KIND)
            assert inbox.receive(5) == (1, message(size, number))


# --- secrets and versions -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [("right", "wrong"), ("right", None), (None, "right")],
    ids=["another secret", "none there", "none here"],
)
def test_without_the_same_secret_nothing_goes_either_way(
    mine: str | None, theirs: str | None
) -> None:
    with (
        Node(1, secret=mine, config=PATIENT) as one,
        Node(2, secret=theirs, config=PATIENT) as two,
    ):
        seen = one.inbox(KIND), two.inbox(KIND)
        one.add_peer(2, two.address)
        two.add_peer(1, one.address)
        for node, target in ((one, 2), (two, 1)):
            began = time.monotonic()
            with pytest.raises(AuthenticationFailed) as refused:
                node.send(target, b"let me in", kind=KIND)
            assert time.monotonic() - began < 15
            assert refused.value.peer == target
            assert "right" not in str(refused.value)
            assert "wrong" not in str(refused.value)
        assert [inbox.pending for inbox in seen] == [0, 0]


@pytest.mark.parametrize("secret", ["open sesame", bytes(range(256))], ids=["text", "bytes"])
def test_with_the_same_secret_messages_go_both_ways(secret: str | bytes) -> None:
    with Node(1, secret=secret) as one, Node(2, secret=secret, peers={1: one.address}) as two:
        inboxes = one.inbox(KIND), two.inbox(KIND)
        two.send(1, b"ping", kind=KIND)
        assert inboxes[0].receive(5) == (2, b"ping")
        one.send(2, b"pong", kind=KIND)
        assert inboxes[1].receive(5) == (1, b"pong")


def test_a_proof_cannot_be_left_out() -> None:
    with Node(1, secret="open sesame") as node, Stranger.dial(node.address) as stranger:
        record = strangers.hello(7, flags=strangers.HAS_SECRET)
        stranger.say(strangers.frame(strangers.HELLO, record))
        assert stranger.read().kind == strangers.REPLY
        stranger.say(strangers.frame(strangers.CONFIRM))
        assert stranger.read().kind == strangers.REFUSE
        assert stranger.dropped_within(10)
        assert node.connections() == []


def test_a_dialler_of_a_later_version_only_is_refused_with_both_versions_named() -> None:
    with Node(1) as node, Stranger.dial(node.address) as stranger:
        stranger.say(strangers.frame(strangers.HELLO, strangers.hello(7, versions=(2, 3))))
        refusal = stranger.read()
        assert refusal.kind == strangers.REFUSE
        assert b"2 to 3" in refusal.payload
        assert b"1 to 1" in refusal.payload
        assert stranger.dropped_within(10)
        assert node.statistics().refused_connections == 1


def test_a_dialler_of_a_range_of_versions_is_answered_with_the_common_one() -> None:
    with Node(1) as node, Stranger.dial(node.address) as stranger:
        reply = stranger.hand_shake(7, versions=(1, 9), features=0xFFFF)
        low, high = struct.unpack_from("<HH", reply.payload, 2 + 4)
        assert (low, high) == (1, 1)


def test_an_acceptor_that_refuses_our_version_is_a_protocol_error() -> None:
    with Host() as host, Node(1, peers={2: host.address}, config=PATIENT) as node:
        answered = threading.Thread(target=refuse, args=(host,))
        answered.start()
        began = time.monotonic()
        with pytest.raises(ProtocolError, match="no common version"):
            node.send(2, b"", kind=KIND)
        assert time.monotonic() - began < 15
        answered.join()


def refuse(host: Host) -> None:
    with host.accept() as stranger:
        stranger.read_until(strangers.HELLO)
        why = strangers.text("no common version") + strangers.text("")
        stranger.say(strangers.frame(strangers.REFUSE, b"\x04" + why))
        stranger.dropped_within(5)


def test_an_acceptor_that_replies_in_another_version_is_a_protocol_error() -> None:
    ended = threading.Event()

    def answer(host: Host) -> None:
        while not ended.is_set():
            with contextlib.suppress(TimeoutError, EOFError), host.accept(0.2) as stranger:
                stranger.read_until(strangers.HELLO)
                record = strangers.hello(2, versions=(9, 9))
                stranger.say(
                    strangers.frame(strangers.REPLY, struct.pack("<H", len(record)) + record)
                )
                stranger.dropped_within(2)

    with Host() as host, Node(1, peers={2: host.address}, config=QUICK) as node:
        answers = threading.Thread(target=answer, args=(host,))
        answers.start()
        try:
            with pytest.raises(ProtocolError):
                node.send(2, b"", kind=KIND)
        finally:
            ended.set()
            answers.join()


# --- sockets in the file system -------------------------------------------------------------------


def leave_a_socket(control: Control, address: str) -> None:
    import time

    import antiphon

    with antiphon.Node(9, listen=address):
        control.tell("listening")
        time.sleep(60)


def test_the_socket_of_a_killed_node_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    with Child(leave_a_socket, address=f"unix://{path}") as child:
        child.expect("listening")
        child.kill()
        assert path.is_socket()
        with (
            Node(1, listen=f"unix://{path}") as node,
            Node(2, listen=None, peers={1: node.address}) as client,
        ):
            inbox = node.inbox(KIND)
            client.send(1, b"hello", kind=KIND)
            assert inbox.receive(5) == (2, b"hello")
    assert not path.exists()


def test_a_file_that_is_no_socket_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "precious.txt"
    path.write_text("keep me")
    with (
        contextlib.closing(Node(1, listen=f"unix://{path}")) as node,
        pytest.raises(OSError, match=path.name),
    ):
        node.start()
    assert path.read_text() == "keep me"


def test_closing_does_not_remove_the_socket_that_another_node_has_put_there(
    tmp_path: Path,
) -> None:
    path = tmp_path / "node.sock"
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(Node(1, listen=f"unix://{path}"))
        path.unlink()
        new = stack.enter_context(Node(2, listen=f"unix://{path}"))
        old.close()
        assert path.is_socket()
        with Node(3, listen=None, peers={2: new.address}) as client:
            inbox = new.inbox(KIND)
            client.send(2, b"hello", kind=KIND)
            assert inbox.receive(5) == (3, b"hello")


def test_a_node_that_could_not_listen_leaves_no_descriptors_behind() -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with Node(1) as first, contextlib.closing(Node(2, listen=first.address)) as node:
        gc.collect()  # what earlier tests left is not to go meanwhile
        before = descriptors()
        for _ in range(10):
            with pytest.raises(OSError, match="listen on"):
                node.start()
        assert descriptors() <= before


def test_connections_that_nobody_is_told_of_are_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened = threading.Event()
    told: list[int] = []

    def slow(peer: int, reason: str) -> None:
        opened.wait(50)
        told.append(peer)

    with contextlib.ExitStack() as stack:
        stack.callback(opened.set)
        there = stack.enter_context(Node(1, listen=f"inproc://told-{next(_names)}"))
        there.on_connected(slow)
        there.on_disconnected(slow)
        assert there.statistics().lost_events == 0
        others = [stack.enter_context(Node(10 + i, listen=None)) for i in range(8)]
        until = time.monotonic() + 45
        while there.statistics().lost_events < 10 and time.monotonic() < until:
            for node in others:
                node.add_peer(1, there.address)
                with contextlib.suppress(PeerUnreachable):  # the last one ends still
                    node.send(1, b"", kind=KIND)
                node.remove_peer(1)
        assert there.statistics().lost_events >= 10
        opened.set()
        eventually(lambda: len(told) >= 4000, 20)

        def logged() -> int:
            """What warnings say."""
            lines = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
            return sum(int(one.split()[0]) for one in lines if "were dropped: on_conn" in one)

        eventually(lambda: logged() == there.statistics().lost_events)
