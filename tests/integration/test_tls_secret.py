"""TLS by the secret, which is used off loopback.

The nodes are on two machines of a network of namespaces, since on loopback a secret only proves
itself.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon import AuthenticationFailed, Node
from antiphon.testing import Child, Control, Member, Network, eventually, strangers
from integration.tls_tools import KIND, TLS_TESTS, tapped

pytestmark = TLS_TESTS


def machine(control: Control, id: int, secret: str | None) -> None:
    """A node on a machine of its own that does what the test says."""
    import hashlib
    import logging

    import antiphon

    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("antiphon.node").addHandler(handler)

    def digest(source: int, data: bytes) -> bytes:
        return hashlib.sha256(data).digest()

    batched: list[bytes] = []

    def count(source: int, batch: antiphon.Batch) -> None:
        batched.extend(bytes(message) for message in batch)

    # A process that is stopped for seconds is not to be called dead.
    config = antiphon.NodeConfig(heartbeat=0.8, connect_timeout=5.0)
    node = antiphon.Node(
        id,
        listen="tcp://0.0.0.0:7001",
        config=config,
        secret=antiphon.INSECURE if secret is None else secret,
    )
    node.on(200, digest)
    node.on(201, count, batch=True)
    node.on_disconnected(lambda peer, reason: control.tell("lost", peer=peer, reason=reason))
    with node:
        control.tell("ready", address=node.address)
        while True:
            order = control.hear()
            try:
                match order["order"]:
                    case "peer":
                        node.add_peer(order["id"], order["address"])
                        control.tell("known")
                    case "ask":
                        data = order["data"].encode() * order.get("times", 1)
                        answer = node.request(order["to"], data, kind=200)
                        assert answer == hashlib.sha256(data).digest()
                        control.tell("answered", digest=answer.hex())
                    case "many":
                        many = [b"%d" % number for number in range(order["count"])]
                        node.send_many(order["to"], many, kind=201)
                        node.flush()
                        control.tell("sent")
                    case "batched":
                        right = batched == [b"%d" % number for number in range(len(batched))]
                        control.tell("batched", count=len(batched), right=right)
                    case "facts":
                        refused = node.statistics().refused_connections
                        connected = [
                            info.id for info in node.connections() if info.sending or info.receiving
                        ]
                        control.tell("facts", refused=refused, logged=logged, connected=connected)
            except antiphon.AntiphonError as error:
                control.tell("failed", error=type(error).__name__, text=str(error))


def sniffer(control: Control) -> None:
    """Hears every packet on the machine's interface."""
    import contextlib
    import socket
    import threading

    heard = bytearray()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3)) as ear:
        ear.bind(("eth0", 0))
        ear.settimeout(0.05)
        ends = threading.Event()

        def listen() -> None:
            while not ends.is_set():
                with contextlib.suppress(TimeoutError):
                    heard.extend(ear.recv(65536))

        thread = threading.Thread(target=listen)
        thread.start()
        control.tell("listening")
        try:
            while True:
                words = control.hear()["words"]
                found = {word: word.encode() in heard for word in words}
                control.tell("heard", bytes=len(heard), found=found)
        finally:
            ends.set()
            thread.join()


@pytest.fixture(scope="module")
def members() -> Iterator[list[Member]]:
    with Network(2, subnet=5) as network:
        yield network.members


@contextlib.contextmanager
def machines(members: list[Member], *secrets: str | None) -> Iterator[list[Child]]:
    """A node on each machine, with these secrets; the second one knows the first."""
    with contextlib.ExitStack() as stack:
        made = [
            stack.enter_context(Child(machine, prefix=member.prefix, id=number, secret=secret))
            for number, (member, secret) in enumerate(zip(members, secrets, strict=True), start=1)
        ]
        for child in made:
            child.expect("ready")
        made[1].tell("peer", id=1, address=f"tcp://{members[0].address}:7001")
        made[1].expect("known")
        yield made


def ask(child: Child, to: int, data: str = "hello", times: int = 1) -> dict[str, Any]:
    child.tell("ask", to=to, data=data, times=times)
    return child.hear()


def counted(child: Child) -> dict[str, Any]:
    child.tell("facts")
    return child.expect("facts")


@pytest.mark.needs("netns")
def test_a_secret_off_loopback_carries_everything_both_ways(members: list[Member]) -> None:
    with machines(members, "ours", "ours") as (one, two):
        for times in (1, 1000, 20_000, 4_000_000):
            assert ask(two, 1, "abcd", times)["event"] == "answered"
            assert ask(one, 2, "efgh", times)["event"] == "answered"
        for source, to, sink in ((two, 1, one), (one, 2, two)):
            source.tell("many", to=to, count=30_000)
            source.expect("sent")
            sink.tell("batched")
            assert sink.expect("batched") == {"event": "batched", "count": 30_000, "right": True}


@pytest.mark.needs("netns")
@pytest.mark.parametrize("secret", ["ours", None], ids=["secret", "insecure"])
def test_who_listens_on_the_line_learns_nothing_with_a_secret(
    members: list[Member], secret: str | None
) -> None:
    """Without one everything: the ear is good."""
    with Child(sniffer, prefix=members[0].prefix) as ear:
        ear.expect("listening")
        with machines(members, secret, secret) as (one, two):
            there, back = os.urandom(16).hex(), os.urandom(16).hex()
            assert ask(two, 1, there, 100)["event"] == "answered"
            assert ask(one, 2, back, 100)["event"] == "answered"

            def heard() -> dict[str, Any]:
                ear.tell("words", words=[there, back, "ANPH"])
                return ear.expect("heard")

            def whole() -> dict[str, Any] | None:
                told = heard()
                # What is found may come later than as many bytes of something else.
                found = secret is not None or all(told["found"].values())
                return told if told["bytes"] > 100 * 64 and found else None

            told = eventually(whole, 10, "it is heard")
            assert told
            assert told["found"] == dict.fromkeys([there, back, "ANPH"], secret is None)


@pytest.mark.needs("netns")
@pytest.mark.parametrize(
    ("server", "client"),
    [("ours", "theirs"), ("ours", None), (None, "ours")],
    ids=["another secret", "a client without", "a server without"],
)
def test_without_the_same_secret_there_is_no_connection(
    members: list[Member], server: str | None, client: str | None
) -> None:
    with machines(members, server, client) as (one, two):
        told = ask(two, 1)
        assert told["event"] == "failed"
        assert told["error"] == "AuthenticationFailed"
        assert ("TLS" if server is None else "secret") in told["text"]
        facts = eventually(
            lambda: (f := counted(one))["refused"] and f["logged"] and f,
            5,
            "it is counted and logged",
        )
        assert facts
        assert "secret" in facts["logged"][0]
        assert members[1].address in facts["logged"][0]
        assert "ours" not in " ".join(facts["logged"])


@pytest.mark.needs("netns")
def test_a_wrong_secret_is_told_every_time(members: list[Member]) -> None:
    with machines(members, "ours", "theirs") as (one, two):
        for _ in range(15):
            assert ask(two, 1)["error"] == "AuthenticationFailed"
        eventually(lambda: counted(one)["refused"] == 15, 10, "each is counted once")


@pytest.mark.needs("netns")
def test_with_a_secret_a_lost_connection_is_made_again(members: list[Member]) -> None:
    with machines(members, "ours", "ours") as (one, two):
        assert ask(two, 1)["event"] == "answered"
        members[0].vanish()
        try:
            assert two.expect("lost", timeout=15)["peer"] == 1
            assert one.expect("lost", timeout=15)["peer"] == 2
        finally:
            members[0].reappear()
        assert ask(two, 1)["event"] == "answered"
        assert ask(one, 2)["event"] == "answered"


def openssl_client(control: Control, address: str, key: str) -> None:
    """OpenSSL's own client, with a key that it was given."""
    import subprocess

    done = subprocess.run(
        ["openssl", "s_client", "-connect", address, "-tls1_3"]
        + (["-psk_identity", "antiphon", "-psk", key] if key else []),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
    )
    control.tell("done", said=done.stdout + done.stderr)


@pytest.mark.needs("netns", "openssl")
@pytest.mark.parametrize("right", [True, False])
def test_the_key_is_derived_from_the_secret_as_documented_and_no_other_fits(
    members: list[Member], right: bool
) -> None:
    import hashlib
    import hmac

    words = b"antiphon 1 tls pre-shared key"
    key = hmac.new(b"ours" if right else b"theirs", words, hashlib.sha256).hexdigest()
    with machines(members, "ours", "ours") as (_, two):
        address = f"{members[0].address}:7001"
        with Child(openssl_client, prefix=members[1].prefix, address=address, key=key) as client:
            said = client.expect("done", timeout=25)["said"]
        assert ("Reused, TLSv1.3" in said) is right, said
        with Child(openssl_client, prefix=members[1].prefix, address=address, key="") as client:
            said = client.expect("done", timeout=25)["said"]
        assert "alert handshake failure" in said, said
        assert ask(two, 1)["event"] == "answered"


def recorder(control: Control, here: str, target: str) -> None:
    """Stands before the node at ``target``, keeps what a client says to it, and says it again.

    Not on loopback, where a secret is proven without TLS.
    """
    import contextlib
    import socket
    import threading

    said: list[list[bytes]] = []
    door = socket.create_server((here, 0))
    control.tell("ready", address=f"tcp://{here}:{door.getsockname()[1]}")

    def pass_on(source: socket.socket, sink: socket.socket, kept: list[bytes]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                kept.append(data)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        while True:
            client, _ = door.accept()
            server = socket.create_connection((target, 7001), 20)
            said.append([])
            for ends in ((client, server, said[-1]), (server, client, [])):
                threading.Thread(target=pass_on, args=ends, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    while True:
        order = control.hear()
        ended, answered = True, 0
        chunks = said[0][: order["most"]]
        with socket.create_connection((target, 7001), 20) as again:
            again.settimeout(order["seconds"])
            try:
                for number, chunk in enumerate(chunks):
                    again.sendall(chunk)
                    if number == 0:  # what follows may meet a reset, which takes the answer along
                        answered += len(again.recv(65536))
                while data := again.recv(65536):
                    answered += len(data)
            except TimeoutError:
                ended = False
            except OSError:
                pass
        control.tell("replayed", ended=ended, answered=answered, chunks=len(chunks))


@pytest.mark.needs("netns")
def test_a_recorded_hand_shake_with_the_key_is_worth_nothing_the_second_time(
    members: list[Member],
) -> None:
    """Its first words bear the mark of the key and are answered; the rest fits no fresh key."""
    with (
        machines(members, "ours", "ours") as (one, two),
        Child(
            recorder, prefix=members[1].prefix, here=members[1].address, target=members[0].address
        ) as tap,
    ):
        # Node 2 knows node 1 as somebody who listens at the recorder's.
        two.tell("peer", id=1, address=tap.expect("ready")["address"])
        two.expect("known")
        assert ask(two, 1, "record this", 100)["event"] == "answered"
        before = counted(one)["refused"]
        for _ in range(3):
            tap.tell("replay", most=1 << 20, seconds=20)
            told = tap.expect("replayed", timeout=30)
            assert told["chunks"] > 1
            assert told["ended"], "it was taken for the client, and waited for"
            assert told["answered"] > 0  # the hand-shake began: the words were good ones
        eventually(lambda: counted(one)["refused"] >= before + 3, 10, "each is counted")
        # The first words alone are not enough either: it waits for the rest, and gives up.
        tap.tell("replay", most=1, seconds=30)
        told = tap.expect("replayed", timeout=40)
        assert told["ended"]
        assert ask(two, 1)["event"] == "answered"


def plain_client(control: Control, address: str, secret: str) -> None:
    """Has the secret, and proves it by HMAC without TLS, as on loopback."""
    from antiphon.testing import Stranger, strangers

    flags = strangers.HAS_SECRET | strangers.NO_LISTENER
    with Stranger.dial(address) as stranger:
        mine = strangers.hello(7, flags=flags)
        stranger.say(strangers.frame(strangers.HELLO, mine))
        found = list(stranger.frames(15))
        control.tell("heard", frames=[[one.kind, one.payload.hex()] for one in found])
    with Stranger.dial(address) as stranger:
        # All at once, not knowing what the node would have said: it might have looked at nothing.
        confirm = strangers.frame(strangers.CONFIRM, bytes(32))
        words = strangers.frame(200, b"let in")
        stranger.say(strangers.frame(strangers.HELLO, mine) + confirm + words)
        control.tell("heard", frames=[[one.kind, ""] for one in stranger.frames(15)])


@pytest.mark.needs("netns")
def test_off_loopback_the_right_secret_without_tls_is_refused(members: list[Member]) -> None:
    """Or whoever is on the line could talk the two ends out of TLS, and then hear everything."""
    with machines(members, "ours", "ours") as (one, two):
        before = counted(one)["refused"]
        address = f"tcp://{members[0].address}:7001"
        with Child(
            plain_client, prefix=members[1].prefix, address=address, secret="ours"
        ) as client:
            for _ in range(2):
                frames = client.expect("heard", timeout=40)["frames"]
                # Refused before any proof of the node's own was shown.
                assert [kind for kind, _ in frames] == [strangers.REFUSE], frames
            client.wait()
        facts = counted(one)
        assert facts["refused"] == before + 2
        assert facts["connected"] == []
        assert any("TLS" in text for text in facts["logged"]), facts["logged"]
        assert ask(two, 1)["event"] == "answered"


def plain_host(control: Control, here: str) -> None:
    """Answers a node that dials it as one without TLS would; tells what it has heard."""
    import socket

    with socket.create_server((here, 0)) as door:
        control.tell("ready", address=f"tcp://{here}:{door.getsockname()[1]}")
        connection, _ = door.accept()
        with connection:
            connection.settimeout(20)
            first = connection.recv(65536)
            # The first words of one that speaks plainly: a refusal is none, nor is a hello.
            connection.sendall(bytes.fromhex(control.hear()["words"]))
            rest = b""
            while data := connection.recv(65536):
                rest += data
            control.tell("heard", first=first.hex(), rest=rest.hex())


@pytest.mark.needs("netns")
def test_off_loopback_a_node_with_a_secret_says_nothing_to_a_server_without_tls(
    members: list[Member],
) -> None:
    with (
        machines(members, "ours", "ours") as (_, two),
        Child(plain_host, prefix=members[0].prefix, here=members[0].address) as host,
    ):
        two.tell("peer", id=9, address=host.expect("ready")["address"])
        two.expect("known")
        reply = strangers.reply(strangers.hello(9, expected=2, flags=0))
        host.tell("answer", words=strangers.frame(strangers.REPLY, reply).hex())
        told = ask(two, 9)
        assert (told["event"], told["error"]) == ("failed", "AuthenticationFailed"), told
        heard = host.expect("heard")
        first, rest = bytes.fromhex(heard["first"]), bytes.fromhex(heard["rest"])
        assert first[:2] == b"\x16\x03"
        assert b"ANPH" not in first + rest
        assert len(rest) < 64  # an alert at the most


@pytest.mark.needs("netns")
def test_a_node_that_is_led_back_to_itself_takes_itself_for_nobody_else(
    members: list[Member],
) -> None:
    """Both ends have the key, so TLS alone would be content: whom one dialled is asked inside."""
    with (
        machines(members, "ours", "ours") as (one, two),
        Child(
            recorder, prefix=members[1].prefix, here=members[1].address, target=members[0].address
        ) as mirror,
    ):
        one.tell("peer", id=9, address=mirror.expect("ready")["address"])
        one.expect("known")
        told = ask(one, 9)
        assert told["event"] == "failed", told
        facts = counted(one)
        assert facts["connected"] == []
        assert facts["refused"] >= 1
        assert ask(two, 1)["event"] == "answered"
        assert counted(one)["connected"] == [2]


def test_on_loopback_a_secret_is_proven_without_tls() -> None:
    """As documented: it would not leave the machine."""
    word = os.urandom(24)
    with (
        Node(1, secret="ours") as one,
        Node(2, listen=None, secret="ours") as two,
        tapped(one.address) as tap,
    ):
        one.on(KIND, lambda source, data: data)
        two.add_peer(1, tap.address)
        assert two.request(1, word, kind=KIND) == word
        assert word in tap.heard
        assert b"ours" not in tap.heard
        stranger = Node(3, listen=None, peers={1: tap.address})
        with stranger, pytest.raises(AuthenticationFailed):
            stranger.request(1, b"", kind=KIND)
