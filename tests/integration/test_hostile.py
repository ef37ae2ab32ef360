"""Strangers that speak garbage, lie, or keep silent: the node lives on, and its peers with it.

The node under attack runs in a process of its own, so that its memory can be watched. Beside every
attack a client exchanges messages with it, and none of them may be late or missing.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from antiphon import Node, NodeConfig, PeerUnreachable, SendTimeout
from antiphon._core import build_info
from antiphon.testing import Child, Control, Host, eventually, strangers
from antiphon.testing.strangers import Stranger, frame, hello
from integration.attacks import UnderAttack

pytestmark = pytest.mark.timeout(600 if os.environ.get("ANTIPHON_STRESS") == "full" else 60)

KIND, ECHO = 200, 201
MIB = 1 << 20
FOUR_GIB = struct.pack("<I", 2**32 - 1)


def target(control: Control, timeout: float) -> None:
    """A node with an inbox that nobody reads and a handler that echoes."""
    import antiphon

    config = antiphon.NodeConfig(connect_timeout=timeout, heartbeat=0.4)
    with antiphon.Node(1, config=config) as node:
        node.inbox(200)
        node.on(201, lambda source, data: node.send(source, data, kind=201))
        control.tell("ready", address=node.address)
        while True:
            order = control.hear()
            if order["order"] == "dial":
                node.add_peer(7, order["address"])
                node.try_send(7, b"", kind=200)
                continue
            counters = node.statistics()
            control.tell(
                "statistics",
                refused=counters.refused_connections,
                errors=counters.protocol_errors,
                buffers=counters.buffer_bytes,
                large=counters.large_bytes_in_use,
                unknown=counters.drops["unknown_kind"],
                peers=[info.id for info in counters.connections if info.receiving or info.sending],
            )


class Attacked(UnderAttack):
    """The node under attack, and the client whose messages go on."""

    def __init__(self, child: Child, client: Node) -> None:
        super().__init__(child, client)
        self._echoes = client.inbox(ECHO)
        self.echo()

    def statistics(self) -> dict[str, Any]:
        self.child.tell("statistics")
        return self.child.expect("statistics")

    def echo(self, timeout: float = 10.0) -> None:
        """One message there and back."""
        question = os.urandom(16)
        self._client.send(1, question, kind=ECHO)
        assert self._echoes.receive(timeout) == (1, question)

    @contextlib.contextmanager
    def undisturbed(self, growth: int = 8 * MIB) -> Iterator[None]:
        """Messages go on, the memory does not grow, and only the client stays connected."""
        before = peak = self.child.resident_bytes

        def watch() -> None:
            nonlocal peak
            self.echo()
            peak = max(peak, self.child.resident_bytes)

        with self.meanwhile(watch, every=0.01):
            yield
        self.echo()
        if build_info()["sanitizers"]:
            return  # they keep what was freed
        assert peak - before < growth, f"grew by {(peak - before) / MIB:.0f} MiB"


@pytest.fixture
def attacked() -> Iterator[Attacked]:
    with Child(target, timeout=1.0) as child, Node(2) as client:
        yield Attacked(child, client)


@pytest.fixture(scope="module")
def pelted() -> Iterator[Attacked]:
    """One node for all the noises: it has to bear them all.

    Whoever is dropped within ten seconds was not merely too slow to shake hands.
    """
    with Child(target, timeout=20.0) as child, Node(2) as client:
        yield Attacked(child, client)


# --- before the hand-shake is done ----------------------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
        bytes(100_000),
        b"\xff" * 100_000,
        frame(KIND, b"data without a word of greeting"),
        frame(strangers.CONFIRM, bytes(32)),
        frame(strangers.HELLO),
        frame(strangers.HELLO, hello(7, magic=0x21212121)),
        frame(strangers.HELLO, hello(7)[:-3]),
        frame(strangers.HELLO, hello(7, direction=2)),
        frame(strangers.HELLO, hello(0)),
        frame(strangers.HELLO, hello(7, expected=9)),
        frame(strangers.HELLO, hello(7, versions=(2, 2))),
        frame(strangers.HELLO, hello(7)) + frame(strangers.HELLO, hello(7)),
        FOUR_GIB + bytes(8),
        struct.pack("<IHHI", 2**32 - 1, strangers.HELLO, 0, 0) + hello(7),
        struct.pack("<IHHI", 4097, strangers.HELLO, 0, 0) + bytes(4097),
    ],
    ids=[
        "http",
        "zeros",
        "ones",
        "data first",
        "confirm first",
        "an empty hello",
        "wrong magic",
        "half a hello",
        "no such direction",
        "id zero",
        "another node wanted",
        "another version",
        "two hellos",
        "a length of 4 GiB",
        "a hello of 4 GiB",
        "a hello beyond the limit",
    ],
)
def test_a_stranger_that_does_not_speak_the_protocol_is_dropped_at_once(
    pelted: Attacked, noise: bytes
) -> None:
    refused = pelted.statistics()["refused"]
    with pelted.undisturbed():
        for _ in range(5):
            with pelted.dial() as stranger:
                stranger.say(noise)
                assert stranger.dropped_within(10), "it waits for the connect timeout"
    assert pelted.statistics()["refused"] >= refused + 5


def test_random_bytes_do_no_harm(pelted: Attacked, count: Callable[[int, int], int]) -> None:
    with pelted.undisturbed():
        for _ in range(count(50, 5000)):
            with pelted.dial() as stranger:
                stranger.say(os.urandom(1 + os.urandom(1)[0] * 16))


def test_half_a_hand_shake_is_given_up_after_the_connect_timeout(attacked: Attacked) -> None:
    with contextlib.ExitStack() as stack, attacked.undisturbed():
        began = time.monotonic()
        halves = [stack.enter_context(attacked.dial()) for _ in range(3)]
        greeting = frame(strangers.HELLO, hello(7))
        halves[0].say(greeting[:20])
        halves[1].say(greeting)  # and never a confirm
        # halves[2] says nothing at all
        for half in halves:
            assert half.dropped_within(10)
            assert time.monotonic() - began > 0.8


def test_a_hello_of_one_byte_at_a_time_is_given_up_after_the_connect_timeout(
    attacked: Attacked,
) -> None:
    began = time.monotonic()
    with attacked.dial() as stranger, attacked.undisturbed():
        for byte in frame(strangers.HELLO, hello(7)):
            stranger.say(bytes([byte]))
            if stranger.dropped_within(0.1):
                break
        else:
            raise AssertionError("it was never given up")
        assert time.monotonic() - began > 0.8


def test_six_hundred_silent_connections_hold_nobody_up(
    attacked: Attacked, need_descriptors: Callable[[int], None]
) -> None:
    need_descriptors(2000)
    with contextlib.ExitStack() as stack, attacked.undisturbed():
        silent = [stack.enter_context(attacked.dial()) for _ in range(600)]
        # A newcomer finds no room at first and gets in when the silent ones have timed out.
        config = NodeConfig(connect_timeout=20.0)
        with Node(3, listen=None, peers={1: attacked.address}, config=config) as newcomer:
            inbox = newcomer.inbox(ECHO)
            newcomer.send(1, b"let me in", kind=ECHO)
            assert inbox.receive(10) == (1, b"let me in")
        assert all(stranger.dropped_within(10) for stranger in silent)


def poor(control: Control, limit: int) -> None:
    """A node that may open only so many descriptors more than it has."""
    import resource
    from pathlib import Path

    import antiphon

    with antiphon.Node(1, config=antiphon.NodeConfig(connect_timeout=20.0)) as node:
        node.on(201, lambda source, data: node.send(source, data, kind=201))
        control.tell("ready", address=node.address)
        control.hear()
        used = len(list(Path("/proc/self/fd").iterdir()))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + limit, used + limit))
        control.tell("limited")
        control.hear()


def test_a_node_that_runs_out_of_descriptors_goes_on_and_recovers() -> None:
    with Child(poor, limit=10) as child, Node(2) as client:
        attacked = Attacked(child, client)
        child.tell("limit")
        child.expect("limited")
        with contextlib.ExitStack() as strangers_:
            for _ in range(40):
                strangers_.enter_context(attacked.dial())
            for _ in range(20):
                attacked.echo()
            assert attacked.rests(0.5, most=0.2)  # there is nothing to do
        with Node(3, listen=None, peers={1: attacked.address}) as newcomer:
            inbox = newcomer.inbox(ECHO)
            newcomer.send(1, b"let me in", kind=ECHO)
            assert inbox.receive(5) == (1, b"let me in")


def test_a_stranger_cannot_make_a_node_dial_itself_mad_with_a_false_address(
    attacked: Attacked,
) -> None:
    """It advertises an address that leads back to the node."""

    def is_kept() -> bool:
        with attacked.dial() as stranger:
            stranger.hand_shake(7, address=attacked.address, flags=0)
            stranger.keep_alive()
            stranger.say(frame(ECHO, b"answer me", flow=0))
            return not stranger.dropped_within(2.5)  # longer than silence may last

    with attacked.undisturbed():
        # One of three: it is this process that says that it lives, and it may be stopped for long.
        assert any(is_kept() for _ in range(3))


# --- after the hand-shake -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    [
        struct.pack("<IHHI", 2**32 - 1, KIND, 0, 0) + bytes(100_000),
        struct.pack("<IHHI", 2**32 - 1, strangers.LIVENESS, 0, 0) + bytes(100_000),
        struct.pack("<IHHI", MIB + 1, KIND, 0, 0) + bytes(100_000),
        frame(KIND, b"", flags=0x8000),
        frame(KIND, struct.pack("<I", 2**32 - 1), flags=strangers.PACKED),
        frame(KIND, struct.pack("<III", 2, 2**32 - 1, 5), flags=strangers.PACKED),
        frame(KIND, struct.pack("<I", 0), flags=strangers.PACKED),
        frame(KIND, b"1234567", flags=strangers.FRAGMENT),
        frame(strangers.HELLO, hello(7)),
        frame(strangers.CREDIT, struct.pack("<II", 2**32 - 1, 2**32 - 1)),
        frame(31, b"of the library, but unheard of"),
        frame(strangers.FLUSH, b"123"),
        frame(strangers.RESERVE, b"123"),
        os.urandom(100_000),
    ],
    ids=[
        "a message of 4 GiB",
        "a sign of life of 4 GiB",
        "a frame beyond the limit",
        "unknown flags",
        "too many in a pack",
        "lengths that overflow",
        "nothing in a pack",
        "a fragment of nothing",
        "a second hello",
        "credit the wrong way",
        "no such control frame",
        "half a flush",
        "half a reservation",
        "random bytes",
    ],
)
def test_a_peer_that_breaks_the_protocol_is_disconnected_at_once(
    pelted: Attacked, noise: bytes
) -> None:
    errors = pelted.statistics()["errors"]
    with pelted.undisturbed():
        for _ in range(3):
            with pelted.dial() as stranger:
                stranger.hand_shake(7)
                stranger.say(noise)
                assert stranger.dropped_within(10)
    assert pelted.statistics()["errors"] >= errors + 3
    eventually(lambda: pelted.statistics()["peers"] == [2], 10, "only the client is connected")


def test_a_kind_that_a_newer_library_may_use_is_skipped_and_counted(attacked: Attacked) -> None:
    facts = attacked.statistics()
    with attacked.dial() as stranger, attacked.undisturbed():
        stranger.hand_shake(7)
        stranger.keep_alive()
        for kind in (34, 63):
            stranger.say(frame(kind, b"of the library, but unheard of"))
        eventually(lambda: attacked.statistics()["unknown"] == facts["unknown"] + 2)
        assert not stranger.dropped_within(0.5)
        assert 7 in attacked.statistics()["peers"]
    assert attacked.statistics()["errors"] == facts["errors"]


def test_a_fragment_that_was_never_reserved_is_skipped(attacked: Attacked) -> None:
    with attacked.dial() as stranger, attacked.undisturbed():
        stranger.hand_shake(7)
        for number in range(100):
            stranger.say(
                frame(KIND, struct.pack("<Q", number) + bytes(50_000), flags=strangers.FRAGMENT)
            )
    assert attacked.statistics()["large"] == 0


def test_reservations_without_end_hold_no_memory(attacked: Attacked) -> None:
    with attacked.dial() as stranger, attacked.undisturbed():
        stranger.hand_shake(7)
        for number in range(5000):
            record = struct.pack("<QQH", number, 60 * MIB, KIND)
            stranger.say(frame(strangers.RESERVE, record))
        assert attacked.statistics()["large"] <= 128 * MIB
    eventually(lambda: attacked.statistics()["large"] == 0, 10, "the reservations are gone")


def test_a_peer_that_sends_more_than_it_has_credit_for_is_bounded(attacked: Attacked) -> None:
    """Nobody reads the inbox, and no window was ever granted: 200 MB must not pile up."""
    with attacked.undisturbed(growth=64 * MIB), attacked.dial() as stranger:
        stranger.hand_shake(7)
        block = frame(KIND, bytes(60_000)) * 16
        for _ in range(200):
            if stranger.say(block, timeout=1.0) < len(block):
                break


def test_charges_that_add_up_beyond_four_gib_are_not_taken_for_none() -> None:
    """An inbox for one message charges a whole window for each: 4,096 of them are 2**32 bytes."""
    with Node(1) as node:
        inbox = node.inbox(KIND, capacity=1)
        with Stranger.dial(node.address) as stranger:
            stranger.hand_shake(7)
            stranger.say(
                frame(KIND + 1, bytes(15_000)) * 12
            )  # what fills its buffers gets larger ones
            stranger.say(frame(KIND, flow=1) * 4096)
            assert stranger.dropped_within(10)
        assert inbox.pending == 0


@pytest.mark.parametrize(
    "noise",
    [
        frame(KIND, bytes(1001)),
        frame(KIND, bytes(200_000)),
        frame(KIND, struct.pack("<III", 2, 10, 1001) + bytes(1011), flags=strangers.PACKED),
        frame(KIND, bytes(8) + bytes(1001), flags=strangers.REQUEST),
    ],
    ids=["one byte over", "far over", "in a pack", "a request"],
)
def test_a_message_over_the_receivers_own_limit_is_refused_whoever_sends_it(noise: bytes) -> None:
    with Node(1, config=NodeConfig(max_message_bytes=1000)) as node:
        inbox = node.inbox(KIND)
        with Stranger.dial(node.address) as stranger:
            stranger.hand_shake(7)
            stranger.say(frame(KIND, bytes(1000)))
            stranger.say(
                frame(KIND, struct.pack("<II", 1, 1000) + bytes(1000), flags=strangers.PACKED)
            )
            assert [len(inbox.receive(10)[1]) for _ in range(2)] == [1000, 1000]
            stranger.say(noise)
            assert stranger.dropped_within(10)
        assert inbox.pending == 0
        assert node.statistics().protocol_errors == 1


@pytest.mark.parametrize(
    "question",
    [
        frame(strangers.PROBE),
        frame(strangers.FLUSH, bytes(8)),
        frame(strangers.RESERVE, struct.pack("<QQH", 1, 2**40, KIND)),
    ],
    ids=["probe", "flush", "reserve"],
)
def test_a_peer_that_asks_and_never_reads_the_answers_is_bounded(
    attacked: Attacked, question: bytes
) -> None:
    with attacked.undisturbed(growth=16 * MIB), attacked.dial() as stranger:
        stranger.hand_shake(7)
        # First as many as make the answers stop in the socket; the selector has dealt with them
        # once it has answered us.
        stranger.say(question * 20_000)
        attacked.statistics()
        attacked.statistics()
        block = question * 5000
        for _ in range(600):
            if stranger.say(block, timeout=1.0) < len(block):
                break


def test_a_receiver_that_asks_and_never_reads_the_answers_is_bounded(attacked: Attacked) -> None:
    """The same the other way: the node has dialled, and its answers go where its data goes."""
    with Host(receive_buffer=4096) as host, attacked.undisturbed(growth=16 * MIB):
        attacked.child.tell("dial", address=host.address)
        with host.accept_node(7) as stranger:
            stranger.be_ready(KIND)
            block = frame(strangers.PROBE) * 5000
            for _ in range(600):
                if stranger.say(block, timeout=1.0) < len(block):
                    break


def test_answers_to_a_slow_reader_do_not_hold_up_the_others(attacked: Attacked) -> None:
    with attacked.dial() as stranger, attacked.undisturbed():
        stranger.hand_shake(7)
        stranger.read_slowly(every=0.01)
        for _ in range(20):
            stranger.say(frame(strangers.PROBE) * 100)


# --- as a server ----------------------------------------------------------------------------------


def test_a_peer_that_reads_one_byte_a_second_fills_only_its_own_ring() -> None:
    config = NodeConfig(
        heartbeat=0.4, send_timeout=2.0, ring_bytes=1 << 20, socket_buffer_bytes=65536
    )
    with Host(receive_buffer=4096) as host, Node(1, config=config) as node, Node(2) as other:
        inbox = other.inbox(KIND)
        node.add_peer(2, other.address)
        node.add_peer(7, host.address)
        connected = threading.Thread(target=lambda: node.send(7, b"", kind=KIND))
        connected.start()
        with host.accept_node(7) as stranger:
            stranger.be_ready(KIND, window=1 << 30)
            connected.join()
            stranger.keep_alive()
            stranger.read_slowly()

            def send_without_end() -> None:
                for _ in range(5000):
                    node.send(7, bytes(1000), kind=KIND)

            with pytest.raises(SendTimeout) as full:
                send_without_end()
            assert full.value.peer == 7
            assert full.value.waited >= 2.0
            for number in range(1000):
                node.send(2, b"%d" % number, kind=KIND)
            for number in range(1000):
                assert inbox.receive(10) == (1, b"%d" % number)
            # It says that it lives, and so it is kept.
            assert {info.id for info in node.connections() if info.sending} == {2, 7}


def test_a_server_that_speaks_another_protocol_is_named_in_the_error() -> None:
    ended = threading.Event()

    def serve(host: Host) -> None:
        while not ended.is_set():
            with contextlib.suppress(TimeoutError), host.accept(0.1) as stranger:
                stranger.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                stranger.dropped_within(2)

    with Host() as host, Node(1, config=NodeConfig(connect_timeout=2.0)) as node:
        node.add_peer(2, host.address)
        serving = threading.Thread(target=serve, args=(host,))
        serving.start()
        try:
            with pytest.raises(PeerUnreachable, match="protocol") as failed:
                node.send(2, b"", kind=KIND)
        finally:
            ended.set()
            serving.join()
        assert failed.value.address == host.address


def test_a_receiver_that_lies_about_credit_harms_only_itself() -> None:
    """Credit for what was never sent, a window of nothing, one beyond the limit."""
    with Host() as host, Node(1) as node, Node(2) as other:
        inbox = other.inbox(KIND)
        node.add_peer(2, other.address)
        node.add_peer(7, host.address)
        connected = threading.Thread(target=lambda: node.send(7, b"", kind=KIND))
        connected.start()
        with host.accept_node(7) as stranger:
            stranger.be_ready(KIND, window=1 << 20)
            connected.join()
            for _ in range(100):
                lie = struct.pack("<II", 2**32 - 1, 2**32 - 1)
                stranger.say(frame(strangers.CREDIT, lie, flow=1))
                stranger.say(frame(strangers.WINDOW, bytes(8), flow=1))
            stranger.say(frame(strangers.CREDIT, struct.pack("<II", 1, 1), flow=999))
            stranger.say(frame(strangers.WINDOW, struct.pack("<II", 2**31, 1), flow=1))
            assert stranger.dropped_within(10)
        node.send(2, b"fine", kind=KIND)
        assert inbox.receive(5) == (1, b"fine")
        assert node.statistics().protocol_errors == 1


def test_a_server_that_replies_with_another_id_than_it_was_dialled_for_is_refused() -> None:
    with Host() as host, Node(1, peers={2: host.address}) as node:
        answered = threading.Thread(target=answer_as, args=(host, 9))
        answered.start()
        with pytest.raises(PeerUnreachable, match=r"node 2\b.*node 9\b"):
            node.send(2, b"", kind=KIND)
        answered.join()


def answer_as(host: Host, id: int) -> None:
    with host.accept() as stranger:
        stranger.read_until(strangers.HELLO)
        record = hello(id)
        stranger.say(frame(strangers.REPLY, struct.pack("<H", len(record)) + record))
        stranger.dropped_within(5)
