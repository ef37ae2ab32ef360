"""TLS between nodes: by certificates everywhere, by the secret off loopback.

Nodes with certificates meet on 127.0.0.1; those with a secret on two machines of a network of
namespaces, since on loopback a secret only proves itself. The node that strangers attack runs in a
process of its own, whose descriptors, processor time and memory can be watched.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import logging
import os
import resource
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon import (
    TLS,
    AntiphonError,
    AuthenticationFailed,
    ConfigError,
    Node,
    NodeConfig,
    PeerUnreachable,
)
from antiphon._core import build_info
from antiphon.testing import (
    Child,
    Collected,
    Control,
    Member,
    Network,
    Proxy,
    Stranger,
    eventually,
    strangers,
)
from antiphon.testing.strangers import frame, hello
from integration.tls_tools import DAY, Authority, TlsClient, client_context, make_tls, tapped

pytestmark = [
    pytest.mark.timeout(600 if os.environ.get("ANTIPHON_STRESS") == "full" else 40),
    pytest.mark.skipif(not build_info()["openssl"], reason="there is no OpenSSL 3 here"),
]

KIND = 200
MIB = 1 << 20
BEAT = 0.2
QUICK = NodeConfig(connect_timeout=1.0, heartbeat=BEAT)
WRONG_URIS = ["antiphon:node:12", "antiphon:node:01", "antiphon:node:", "antiphon:node:1*", "*"]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another authority of the same name."""
    return Authority(tmp_path_factory.mktemp("theirs"))


@pytest.fixture
def pair(ours: Authority) -> Iterator[tuple[Node, Node]]:
    with (
        Node(1, tls=ours.node(1), config=QUICK) as one,
        Node(2, tls=ours.node(2), config=QUICK) as two,
    ):
        two.add_peer(1, one.address)
        yield one, two


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == "antiphon.node"]
    return [text for text in found if "refused" in text or "dropped" in text]


# --- what nodes say to each other -----------------------------------------------------------------


def test_messages_of_every_size_arrive_in_order_both_ways(pair: tuple[Node, Node]) -> None:
    """Around every size at which something changes: a record of TLS, a frame, the ring."""
    one, two = pair
    edges = (0, 16384, 65536, 131072, 524288, MIB, 4 * MIB)
    sizes = [*sorted({max(0, edge + step) for edge in edges for step in (-30, -1, 0, 1)}), 9 * MIB]
    messages = [struct.pack("<I", size) * (size // 4) + bytes(size % 4) for size in sizes]
    inboxes = {2: one.inbox(KIND), 1: two.inbox(KIND)}
    problems: Collected[str] = Collected()

    def send(node: Node, target: int) -> None:
        for message in messages:
            node.send(target, message, kind=KIND)

    def receive(source: int) -> None:
        for message in messages:
            if inboxes[source].receive(10) != (source, message):
                problems.add(f"{len(message)} bytes from {source} came as something else")

    two.send(1, b"first", kind=KIND)
    assert inboxes[2].receive(5) == (2, b"first")
    jobs: list[Callable[[], None]] = [
        functools.partial(send, one, 2),
        functools.partial(send, two, 1),
        functools.partial(receive, 1),
        functools.partial(receive, 2),
    ]
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert not problems.items


def test_requests_of_both_sides_at_once_get_their_own_answers(pair: tuple[Node, Node]) -> None:
    for node in pair:
        node.on(KIND, lambda source, data: bytes(reversed(data)))
    one, two = pair
    assert two.request(1, b"abc", kind=KIND) == b"cba"
    asked = [os.urandom(100 + 700 * number) for number in range(100)]
    futures = [
        (data, node.request_async(other, data, kind=KIND))
        for data in asked
        for node, other in ((one, 2), (two, 1))
    ]
    for data, future in futures:
        assert future.result() == bytes(reversed(data))


def test_batches_arrive_whole_and_in_order(pair: tuple[Node, Node]) -> None:
    one, two = pair
    got: Collected[bytes] = Collected()

    def take(source: int, batch: Any) -> None:
        for message in batch:
            got.add(bytes(message))

    one.on(KIND, take, batch=True)
    sent = [struct.pack("<I", number) * (1 + number % 50) for number in range(20_000)]
    for at in range(0, len(sent), 1000):
        two.send_many(1, sent[at : at + 1000], kind=KIND)
    two.flush()
    assert got.first(len(sent)) == sent


def test_a_receiver_with_few_buffers_gets_everything(ours: Authority) -> None:
    """Out of buffers it stops reading, with bytes in TLS's own buffer of which epoll is silent."""
    poor = NodeConfig(
        buffer_pool={16 << 10: 2, 256 << 10: 1}, flow_window_bytes=256 << 10, heartbeat=BEAT
    )
    with (
        Node(1, tls=ours.node(1), config=poor) as one,
        Node(2, tls=ours.node(2)) as two,
    ):
        two.add_peer(1, one.address)
        inbox = one.inbox(KIND)
        sent = [os.urandom(4) * 1000 for _ in range(1500)]
        sender = threading.Thread(target=lambda: [two.send(1, data, kind=KIND) for data in sent])
        sender.start()
        held = []  # the buffers are ours as long as the messages are
        for data in sent:
            held.append(inbox.receive(5))
            assert held[-1] == (2, data)
            del held[:-8]
        sender.join()


def test_nothing_is_mixed_up_on_a_line_that_stalls_again_and_again(ours: Authority) -> None:
    """Senders write data, the selector control, and the socket takes neither all the time.

    A record that TLS has begun must be continued with the bytes that it was begun with.
    """
    small = NodeConfig(socket_buffer_bytes=64 << 10, ring_bytes=MIB, heartbeat=2.0)
    # Control all the time. The slower of the two hearts says when a peer is dead.
    chatty = NodeConfig(socket_buffer_bytes=64 << 10, ring_bytes=MIB, heartbeat=0.0005)
    lost: Collected[str] = Collected()
    wrong: Collected[bytes] = Collected()
    with (
        Node(1, tls=ours.node(1), config=small) as one,
        Node(2, listen=None, tls=ours.node(2), config=chatty) as two,
        Proxy(one.address) as proxy,
    ):
        for node in (one, two):
            node.on_disconnected(lambda peer, reason: lost.add(reason))
        handled: Collected[int] = Collected()

        def check(source: int, data: bytes) -> bytes:
            if data[:4] * (len(data) // 4) != data:
                wrong.add(data)
            handled.add(1)
            return b""

        one.on(KIND, check)
        two.add_peer(1, proxy.address)
        two.request(1, b"abcd", kind=KIND)
        end = time.monotonic() + 1.5

        def repeat(step: Callable[[], object]) -> None:
            with contextlib.suppress(AntiphonError):  # what is lost says more
                while time.monotonic() < end and not len(lost):
                    step()

        def ask() -> None:
            two.request_async(1, os.urandom(4) * 3000, kind=KIND)
            time.sleep(0.0005)  # a quiet sender writes inline

        def interrupt() -> None:
            proxy.forward.stall()
            time.sleep(0.05)
            proxy.forward.flow()
            time.sleep(0.05)

        steps = [ask, ask, interrupt, *[two.flush] * 6]
        threads = [threading.Thread(target=repeat, args=(step,)) for step in steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not lost.items
        two.flush()
        assert len(handled) > 100
        assert not wrong.items


def test_any_node_may_have_a_wildcard_and_one_certificate_may_name_several(
    ours: Authority,
) -> None:
    several = make_tls(*ours.issue("several", "antiphon:node:8", "antiphon:node:9"), ours.path)
    with Node(1, tls=ours.node("*")) as one:
        inbox = one.inbox(KIND)
        for number in (7, 8, 9):
            tls = ours.node("*") if number == 7 else several
            with Node(number, tls=tls) as other:
                other.add_peer(1, one.address)
                other.send(1, b"here", kind=KIND)
                assert inbox.receive(5) == (number, b"here")


def test_a_node_without_a_listener_is_answered(ours: Authority) -> None:
    with Node(1, tls=ours.node(1)) as one, Node(2, listen=None, tls=ours.node(2)) as two:
        one.on(KIND, lambda source, data: one.send(source, data, kind=KIND))
        inbox = two.inbox(KIND)
        two.add_peer(1, one.address)
        two.send(1, b"there and back", kind=KIND)
        assert inbox.receive(5) == (1, b"there and back")


def test_with_certificates_a_secret_is_still_proven(ours: Authority) -> None:
    with Node(1, tls=ours.node(1), secret="ours") as one:
        inbox = one.inbox(KIND)
        with Node(2, tls=ours.node(2), secret="ours") as two:
            two.add_peer(1, one.address)
            two.send(1, b"both", kind=KIND)
            assert inbox.receive(5) == (2, b"both")
        with Node(3, tls=ours.node(3), secret="theirs") as three:
            three.add_peer(1, one.address)
            with pytest.raises(AuthenticationFailed, match="secret"):
                three.send(1, b"", kind=KIND)


# --- files ----------------------------------------------------------------------------------------


def test_files_that_do_not_fit_together_are_a_config_error(ours: Authority, tmp_path: Path) -> None:
    certificate, key = ours.issue("good", "antiphon:node:1")
    _, other_key = ours.issue("other", "antiphon:node:1")
    missing, garbage, empty = tmp_path / "no", tmp_path / "garbage", tmp_path / "empty"
    garbage.write_bytes(os.urandom(1000))
    empty.write_bytes(b"")
    make_tls(certificate, key, ours.path)
    for name, files in {
        "private key": (certificate, other_key, ours.path),
        f"certificate {missing}": (missing, key, ours.path),
        f"private key {missing}": (certificate, missing, ours.path),
        f"authority {missing}": (certificate, key, missing),
        f"certificate {garbage}": (garbage, key, ours.path),
        f"private key {garbage}": (certificate, garbage, ours.path),
        f"authority {garbage}": (certificate, key, garbage),
        f"certificate {empty}": (empty, key, ours.path),
        f"authority {empty}": (certificate, key, empty),
        f"certificate {tmp_path}": (tmp_path, key, ours.path),
    }.items():
        with pytest.raises(ConfigError) as refused:
            make_tls(*files)
        assert name in str(refused.value)
        assert refused.value.setting == "tls"
        assert "unknown error" not in str(refused.value)
        if str(missing) in name:
            assert "No such file" in str(refused.value)


def test_a_key_with_a_pass_phrase_is_a_config_error_and_nobody_is_asked_for_it(
    ours: Authority,
) -> None:
    """OpenSSL would ask on the terminal; on the selector thread that would be the node's end."""
    certificate, key = ours.issue("locked", "antiphon:node:1", password=b"open sesame")
    script = (
        f"import antiphon; antiphon.TLS({str(certificate)!r}, {str(key)!r}, {str(ours.path)!r})"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,  # open, and silent
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            eventually(lambda: process.poll() is not None, 5, "an error instead of a question")
        finally:
            process.kill()
        assert process.stdout is not None
        said = process.stdout.read().decode()
    assert "ConfigError" in said
    assert "pass phrase" not in said.partition("Traceback")[0]


def test_off_loopback_certificates_are_enough_to_listen(ours: Authority) -> None:
    with pytest.raises(ConfigError, match="tls"):
        Node(1, listen="tcp://0.0.0.0:0")
    with Node(1, listen="tcp://0.0.0.0:0", tls=ours.node(1)) as node:
        assert node.address


# --- who is refused -------------------------------------------------------------------------------


@pytest.fixture
def guarded(ours: Authority, caplog: pytest.LogCaptureFixture) -> Iterator[Node]:
    """A node with a certificate, which lives on whatever comes."""
    caplog.set_level(logging.WARNING, "antiphon.node")
    with Node(1, tls=ours.node(1), config=QUICK) as node:
        node.on(KIND, lambda source, data: data)
        yield node
        with Node(99, tls=ours.node(99), config=QUICK, peers={1: node.address}) as friend:
            assert friend.request(1, b"unharmed", kind=KIND) == b"unharmed"


def refused_by(node: Node, tls: TLS | None, **options: Any) -> AntiphonError:
    """What a node with these certificates gets when it sends to ``node``, and how soon."""
    began = time.monotonic()
    with Node(2, tls=tls, config=QUICK, peers={node.id: node.address}, **options) as stranger:
        with pytest.raises(AntiphonError) as failed:
            stranger.send(node.id, b"let me in", kind=KIND)
        assert time.monotonic() - began < 3.0
        assert not any(c.sending or c.receiving for c in stranger.connections())
    return failed.value


def bad_certificate(ours: Authority, theirs: Authority, id: int, bad: str) -> tuple[TLS, str]:
    """One that nobody should take for that of node ``id``, and what is to be said about it."""
    hour = datetime.timedelta(hours=1)
    match bad:
        case "another authority":
            return theirs.node(id, trusts=ours), ""
        case "expired":
            return ours.node(id, begins=-2 * DAY, ends=-hour), "expired"
        case "not yet valid":
            return ours.node(id, begins=hour, ends=2 * DAY), "not yet valid"
        case "no name":
            return make_tls(*ours.issue("nameless"), ours.path), "no node"
        case "another's":
            return ours.node(17), "antiphon:node:17"
    return make_tls(*ours.issue("wrong", bad), ours.path), "certificate is for"


BAD = ["another authority", "expired", "not yet valid", "no name", "another's", *WRONG_URIS]


@pytest.mark.parametrize("bad", BAD)
def test_a_client_is_refused_for_its_certificate(
    guarded: Node, ours: Authority, theirs: Authority, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    tls, reason = bad_certificate(ours, theirs, 2, bad)
    before = guarded.statistics().refused_connections
    error = refused_by(guarded, tls)
    assert isinstance(error, AuthenticationFailed)
    eventually(lambda: guarded.statistics().refused_connections == before + 1, 2, "counted once")
    (text,) = eventually(lambda: refusals(caplog), 2, "it is logged")
    assert "127.0.0.1" in text or "tcp://" in text
    assert "certificate" in text
    assert reason in text
    if bad not in ("another authority", "expired", "not yet valid"):
        assert reason in str(error)


@pytest.mark.parametrize("bad", BAD)
def test_a_server_is_refused_for_its_certificate(
    ours: Authority, theirs: Authority, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "antiphon.node")
    tls, reason = bad_certificate(ours, theirs, 1, bad)
    with Node(1, tls=tls, config=QUICK) as server:
        inbox = server.inbox(KIND)
        error = refused_by(server, ours.node(2))
        assert isinstance(error, AuthenticationFailed)
        assert "certificate" in str(error)
        assert reason in str(error)
        assert server.address in str(error)
        assert inbox.pending == 0
        assert not any(c.receiving for c in server.connections())


def test_a_refusal_for_a_certificate_is_never_lost_on_the_way(
    guarded: Node, theirs: Authority, ours: Authority
) -> None:
    """In TLS 1.3 the client is done before the server has looked at it: the alert comes later."""
    tls = theirs.node(2, trusts=ours)
    before = guarded.statistics().refused_connections
    for _ in range(20):
        assert isinstance(refused_by(guarded, tls), AuthenticationFailed)
    eventually(lambda: guarded.statistics().refused_connections == before + 20, 2, "counted")


@pytest.mark.parametrize("secret", [None, "a secret is no certificate"])
def test_a_plain_client_at_a_node_with_certificates_is_told(
    guarded: Node, secret: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    error = refused_by(guarded, None, secret=secret)
    assert isinstance(error, AuthenticationFailed)
    assert "TLS" in str(error)
    assert guarded.statistics().refused_connections == 1
    (text,) = eventually(lambda: refusals(caplog), 2, "it is logged")
    assert "TLS" in text


def test_a_client_with_certificates_at_a_plain_node_is_told(
    ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "antiphon.node")
    with Node(1, config=QUICK) as plain:
        inbox = plain.inbox(KIND)
        error = refused_by(plain, ours.node(2))
        assert isinstance(error, AuthenticationFailed)
        assert "TLS" in str(error)
        assert plain.statistics().refused_connections == 1
        (text,) = refusals(caplog)
        assert "it speaks TLS" in text
        with Node(3, peers={1: plain.address}) as friend:
            friend.send(1, b"unharmed", kind=KIND)
            assert inbox.receive(5) == (3, b"unharmed")


@pytest.mark.parametrize("certificate", [True, False], ids=["with certificate", "without"])
def test_tls_of_an_older_version_is_refused(
    guarded: Node, ours: Authority, certificate: bool, caplog: pytest.LogCaptureFixture
) -> None:
    context = client_context(ours.node(2) if certificate else None)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with Stranger.dial(guarded.address) as stranger:
        with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
            TlsClient(stranger.socket, context).shake_hands()
        assert stranger.dropped_within(1)
    eventually(lambda: guarded.statistics().refused_connections == 1, 2, "counted")
    (text,) = eventually(lambda: refusals(caplog), 2, "it is logged")
    assert "unsupported protocol" in text


def test_a_client_without_a_certificate_gets_nowhere(
    guarded: Node, caplog: pytest.LogCaptureFixture
) -> None:
    with Stranger.dial(guarded.address) as stranger:
        client = TlsClient(stranger.socket, client_context(None))
        client.shake_hands()  # it is done first, and has its answer later
        stranger.say(client.seal(frame(strangers.HELLO, hello(2))))
        with pytest.raises((ssl.SSLError, EOFError, ConnectionError)):
            client.read()
    eventually(lambda: guarded.statistics().refused_connections == 1, 2, "counted")
    (text,) = eventually(lambda: refusals(caplog), 2, "it is logged")
    assert "certificate" in text


def test_refusals_are_counted_all_and_logged_few(
    guarded: Node, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    for _ in range(200):
        with Stranger.dial(guarded.address) as stranger:
            stranger.say(b"\x16\x03\x01\x00\x05hello")
            assert stranger.dropped_within(1)
    ticks = 2 + (time.monotonic() - began) / BEAT
    assert guarded.statistics().refused_connections == 200
    assert 1 <= len(refusals(caplog)) <= 10 * ticks


# --- strangers who know how TLS begins ------------------------------------------------------------


def target(control: Control, files: list[str], timeout: float) -> None:
    """A node that answers requests; tells what it has counted and logged."""
    import logging
    from pathlib import Path

    import antiphon

    logged = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("antiphon.node").addHandler(handler)
    config = antiphon.NodeConfig(connect_timeout=timeout, heartbeat=0.2)
    with antiphon.Node(1, config=config, tls=antiphon.TLS(*files)) as node:
        node.on(200, lambda source, data: data)
        control.tell("ready", address=node.address)
        while True:
            control.hear()
            control.tell(
                "facts",
                refused=node.statistics().refused_connections,
                descriptors=len(list(Path("/proc/self/fd").iterdir())),
                logged=logged,
            )


class Attacked:
    """The node under attack, and a client that asks it something all the while."""

    def __init__(self, child: Child, client: Node) -> None:
        self.child = child
        self.address = str(child.expect("ready")["address"])
        self._client = client
        self.lost: Collected[str] = Collected()
        client.add_peer(1, self.address)
        client.on_disconnected(lambda peer, reason: self.lost.add(reason))
        self.ask()

    def ask(self) -> None:
        question = os.urandom(16)
        assert self._client.request(1, question, kind=KIND, timeout=2) == question

    def dial(self) -> Stranger:
        return Stranger.dial(self.address)

    def facts(self) -> dict[str, Any]:
        self.child.tell("facts")
        return self.child.expect("facts", timeout=3)

    @property
    def processor_seconds(self) -> float:
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @contextlib.contextmanager
    def undisturbed(self, growth: int = 8 * MIB) -> Iterator[None]:
        """Its client is answered, and in the end it holds as many descriptors as before."""
        held, memory = self.facts()["descriptors"], self.child.resident_bytes
        problems: Collected[BaseException] = Collected()
        stops = threading.Event()

        def watch() -> None:
            try:
                while not stops.wait(0.02):
                    self.ask()
            except BaseException as error:
                problems.add(error)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            stops.set()
            watcher.join()
        assert not problems.items
        assert not self.lost.items
        eventually(lambda: self.facts()["descriptors"] <= held, 3, "nothing is held")
        if not build_info()["sanitizers"]:
            assert self.child.resident_bytes - memory < growth


@pytest.fixture
def attacked(ours: Authority) -> Iterator[Attacked]:
    tls = ours.node(1)
    files = [tls.certificate, tls.key, tls.authority]
    with (
        Child(target, files=files, timeout=1.0) as child,
        Node(2, tls=ours.node(2), config=QUICK) as client,
    ):
        yield Attacked(child, client)


def client_hello() -> bytes:
    with socket.socket() as nobody:
        return TlsClient(nobody, client_context(None)).first_words()


def test_garbage_in_a_record_of_tls_is_dropped_at_once(attacked: Attacked) -> None:
    whole = client_hello()
    noises = [
        b"\x16\x03\x01\x03\xe8\x63" + os.urandom(999),
        b"\x16\x03\x01" + b"\xff" * 100_000,
        b"\x16\x03\x01\x00\x00" * 100,
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
        whole[:9] + os.urandom(len(whole) - 9),
        whole + b"\x17\x03\x03\x00\x20" + os.urandom(32),
        whole + whole,
        b"\x16\x02\x01" + whole[3:],
        b"\x16\x03\x00" + whole[3:],
        b"GET / HTTP/1.1\r\n\r\n",
    ]
    before = attacked.facts()["refused"]
    with attacked.undisturbed():
        for noise in noises:
            for _ in range(3):
                with attacked.dial() as stranger:
                    stranger.say(noise)
                    assert stranger.dropped_within(0.8), noise[:20]
    assert attacked.facts()["refused"] >= before + 3 * len(noises)


def test_random_bytes_after_the_first_three_do_no_harm(
    attacked: Attacked, count: Callable[[int, int], int]
) -> None:
    with attacked.undisturbed():
        for _ in range(count(100, 5000)):
            with attacked.dial() as stranger:
                stranger.say(b"\x16\x03\x01" + os.urandom(1 + os.urandom(1)[0] * 16))


def test_parts_of_a_client_hello_and_silence_are_given_up_after_the_connect_timeout(
    attacked: Attacked,
) -> None:
    whole = client_hello()
    with contextlib.ExitStack() as stack, attacked.undisturbed():
        began = time.monotonic()
        parts = [whole[:count] for count in (0, 1, 2, 3, 5, 100, len(whole) - 1)]
        halves = [stack.enter_context(attacked.dial()) for _ in parts]
        for half, part in zip(halves, parts, strict=True):
            half.say(part)
        for half in halves:
            assert half.dropped_within(3)
            assert 0.8 < time.monotonic() - began < 2.0


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_waiting_for_the_rest_of_a_client_hello_costs_nothing(
    attacked: Attacked, count: int
) -> None:
    """Bytes that are left in the socket are no reason to spin."""
    with attacked.dial() as stranger:
        stranger.say(client_hello()[:count])
        assert not stranger.dropped_within(0.1)
        spent = attacked.processor_seconds
        assert not stranger.dropped_within(0.4)
        assert attacked.processor_seconds - spent < 0.1


def test_a_client_hello_of_a_byte_at_a_time_is_given_up_after_the_connect_timeout(
    attacked: Attacked,
) -> None:
    with attacked.dial() as stranger, attacked.undisturbed():
        began = time.monotonic()
        for byte in client_hello():
            stranger.say(bytes([byte]))
            if stranger.dropped_within(0.05):
                break
        assert 0.8 < time.monotonic() - began < 2.0


def test_a_client_hello_that_was_never_finished_is_counted_and_logged(attacked: Attacked) -> None:
    before = attacked.facts()["refused"]
    with attacked.dial() as stranger:
        stranger.say(client_hello()[:-1])
        assert stranger.dropped_within(3)
    facts = attacked.facts()
    assert facts["refused"] == before + 1
    assert any("no complete hand-shake in time" in text for text in facts["logged"])


def test_silence_after_the_answer_to_a_client_hello_is_given_up(attacked: Attacked) -> None:
    with attacked.dial() as stranger, attacked.undisturbed():
        stranger.say(client_hello())
        began = time.monotonic()
        assert stranger.dropped_within(3)
        assert 0.8 < time.monotonic() - began < 2.0


@pytest.mark.parametrize("stage", ["hello", "confirm", "data"])
def test_half_a_record_holds_nobody_up(attacked: Attacked, ours: Authority, stage: str) -> None:
    """Whoever is on the line can see to it that the rest of a record never comes."""
    with attacked.dial() as stranger, attacked.undisturbed():
        client = TlsClient(stranger.socket, client_context(ours.node(7)))
        client.shake_hands()
        words = frame(strangers.HELLO, hello(7))
        if stage != "hello":
            stranger.say(client.seal(words))
            assert client.read()
            words = frame(strangers.CONFIRM)
        if stage == "data":
            stranger.say(client.seal(words))
            assert client.read()
            words = frame(KIND, bytes(1000))
        sealed = client.seal(words)
        stranger.say(sealed[: len(sealed) // 2])
        time.sleep(0.1)
        spent = attacked.processor_seconds
        for _ in range(20):
            attacked.ask()
        time.sleep(0.4)  # in which there is nothing to do but to wait for the rest
        assert attacked.processor_seconds - spent < 0.2
        assert stranger.dropped_within(3)


def test_a_recorded_conversation_cannot_be_played_back(attacked: Attacked, ours: Authority) -> None:
    with tapped(attacked.address) as tap:
        with Node(3, listen=None, tls=ours.node(3), peers={1: tap.address}) as node:
            assert node.request(1, b"record this", kind=KIND) == b"record this"
        chunks = tap.forward.items
    first = next(chunk for chunk in chunks if chunk[:2] == b"\x16\x03")
    before = attacked.facts()["refused"]
    with attacked.undisturbed():
        for words in ([first], chunks):
            for _ in range(5):
                with attacked.dial() as stranger:
                    for word in words:
                        stranger.say(word)
                    if words is chunks:
                        assert stranger.dropped_within(0.8)
    # Keys are fresh: nothing that was recorded fits, and nobody became node 3.
    assert attacked.facts()["refused"] >= before + 5


def test_hundreds_of_half_open_connections_hold_nobody_up(
    attacked: Attacked, ours: Authority, count: Callable[[int, int], int]
) -> None:
    """More than the 512 strangers that are let in at a time."""
    wanted = count(1200, 5000)
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < wanted + 500:
        pytest.skip(f"needs {wanted + 500} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted + 500), most))
    try:
        # OpenSSL keeps what it has had: 512 sessions with their buffers.
        with contextlib.ExitStack() as stack, attacked.undisturbed(growth=64 * MIB):
            half = client_hello()[:-1]
            for _ in range(wanted):
                with contextlib.suppress(ConnectionError):  # no room: it is closed at once
                    stack.enter_context(attacked.dial()).socket.sendall(half)
            patient = NodeConfig(connect_timeout=5.0)
            with Node(
                3, listen=None, tls=ours.node(3), config=patient, peers={1: attacked.address}
            ) as newcomer:
                assert newcomer.request(1, b"let me in", kind=KIND) == b"let me in"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
    assert attacked.facts()["refused"] >= wanted - 512


# --- what is on the line --------------------------------------------------------------------------


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "certificates"])
def test_who_listens_on_the_line_learns_nothing_with_certificates(
    ours: Authority, encrypted: bool
) -> None:
    """Without them everything: the ear is good."""
    question, answer = os.urandom(24), os.urandom(24)
    with (
        Node(1, tls=ours.node(1) if encrypted else None) as one,
        # It only dials, so that both channels pass the tap.
        Node(2, listen=None, tls=ours.node(2) if encrypted else None) as two,
        tapped(one.address) as tap,
    ):
        one.on(KIND, lambda source, data: answer)
        two.add_peer(1, tap.address)
        assert two.request(1, question * 100, kind=KIND) == answer
        heard = tap.heard
    assert len(heard) > 24 * 100
    assert (question in heard) is not encrypted
    assert (answer in heard) is not encrypted
    assert (b"ANPH" in heard) is not encrypted  # what a hello begins with


def test_a_byte_changed_on_the_line_ends_the_connection_and_is_not_delivered(
    attacked: Attacked, ours: Authority
) -> None:
    with attacked.dial() as stranger, attacked.undisturbed():
        client = TlsClient(stranger.socket, client_context(ours.node(7)))
        client.shake_hands()
        sealed = bytearray(client.seal(frame(strangers.HELLO, hello(7))))
        sealed[-20] ^= 1
        stranger.say(bytes(sealed))
        assert stranger.dropped_within(0.8)


# --- life -----------------------------------------------------------------------------------------


def test_a_lost_connection_is_made_again(ours: Authority) -> None:
    with (
        Node(1, tls=ours.node(1), config=QUICK) as one,
        Node(2, listen=None, tls=ours.node(2), config=QUICK) as two,
        Proxy(one.address) as proxy,
    ):
        one.on(KIND, lambda source, data: data)
        lost: Collected[str] = Collected()
        two.on_disconnected(lambda peer, reason: lost.add(reason))
        two.add_peer(1, proxy.address)
        for round_, reset in enumerate((True, False, True), start=1):
            assert two.request(1, b"%d" % round_, kind=KIND) == b"%d" % round_
            proxy.cut(reset)
            lost.first(round_, timeout=2)
        assert two.request(1, b"again", kind=KIND) == b"again"
        (connection,) = two.connections()
        assert connection.reconnects == 3


def test_a_line_that_swallows_everything_is_found_dead_and_mended(ours: Authority) -> None:
    with (
        Node(1, tls=ours.node(1), config=QUICK) as one,
        Node(2, listen=None, tls=ours.node(2), config=QUICK) as two,
        Proxy(one.address) as proxy,
    ):
        one.on(KIND, lambda source, data: data)
        lost: Collected[str] = Collected()
        two.on_disconnected(lambda peer, reason: lost.add(reason))
        two.add_peer(1, proxy.address)
        assert two.request(1, b"there", kind=KIND) == b"there"
        proxy.swallow()
        assert "no sign of life" in lost.first(1, timeout=15 * BEAT)[0]
        proxy.flow()
        proxy.cut()
        assert two.request(1, b"again", kind=KIND) == b"again"


def flooding(control: Control, files: list[str], address: str) -> None:
    """Sends without end."""
    import antiphon

    with antiphon.Node(5, tls=antiphon.TLS(*files), peers={1: address}) as node:
        number = 0
        while True:
            node.send(1, number.to_bytes(4, "little") * 5000, kind=200)
            number += 1


def test_a_peer_that_is_killed_in_the_middle_is_lost_at_once_and_may_come_back(
    ours: Authority,
) -> None:
    tls = ours.node(5)
    files = [tls.certificate, tls.key, tls.authority]
    with Node(1, tls=ours.node(1), config=QUICK) as one:
        lost: Collected[int] = Collected()
        got: Collected[bytes] = Collected()
        one.on_disconnected(lambda peer, reason: lost.add(peer))
        one.on(KIND, lambda source, data: got.add(data))
        for round_ in (1, 2):
            with Child(flooding, files=files, address=one.address) as child:
                got.first(len(got) + 100)
                child.kill()
                assert lost.first(round_, timeout=1)[-1] == 5
            assert all(data == data[:4] * 5000 for data in got.items)


def forking(control: Control, files: list[str], address: str) -> None:
    """Forks with a connection that is in use; the child closes, and makes a node of its own."""
    import os

    import antiphon

    tls = antiphon.TLS(*files)
    with antiphon.Node(5, tls=tls, peers={1: address}) as node:
        assert node.request(1, b"before", kind=200) == b"before"
        pid = os.fork()
        if pid == 0:
            try:
                node.close()
                with antiphon.Node(6, tls=tls, peers={1: address}) as own:
                    assert own.request(1, b"child", kind=200) == b"child"
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        after = node.request(1, b"after", kind=200)
        control.tell("done", status=status, after=after.decode())
        control.hear()


def test_a_fork_leaves_the_connection_to_the_parent(ours: Authority) -> None:
    tls = ours.node("*")
    files = [tls.certificate, tls.key, tls.authority]
    with Node(1, tls=ours.node(1)) as one:
        asked: Collected[tuple[int, bytes]] = Collected()
        lost: Collected[int] = Collected()

        def answer(source: int, data: bytes) -> bytes:
            asked.add((source, data))
            return data

        one.on(KIND, answer)
        one.on_disconnected(lambda peer, reason: lost.add(peer))
        with Child(forking, files=files, address=one.address) as child:
            done = child.expect("done")
            assert done["status"] == 0
            assert done["after"] == "after"
            assert lost.items == [6]
            assert asked.items == [(5, b"before"), (6, b"child"), (5, b"after")]


def test_closing_delivers_what_was_sent_and_is_quick(ours: Authority) -> None:
    with Node(1, tls=ours.node(1)) as one:
        inbox = one.inbox(KIND)
        lost: Collected[str] = Collected()
        one.on_disconnected(lambda peer, reason: lost.add(reason))
        for round_ in range(1, 4):
            with Node(2, tls=ours.node(2), peers={1: one.address}) as two:
                for number in range(100):
                    two.send(1, b"%d" % number * 2000, kind=KIND)
                began = time.monotonic()
            assert time.monotonic() - began < 2
            for number in range(100):
                assert inbox.receive(5) == (2, b"%d" % number * 2000)
            assert "closed" in lost.first(round_, timeout=1)[-1]


def test_closing_in_the_middle_of_a_hand_shake_is_quick_and_leaves_no_descriptor(
    ours: Authority,
) -> None:
    held = []
    for _ in range(4):
        with contextlib.ExitStack() as stack:
            with Node(1, tls=ours.node(1)) as one:
                for words in (client_hello(), client_hello()[:50], b"\x16", b""):
                    stranger = stack.enter_context(Stranger.dial(one.address))
                    stranger.say(words)
                began = time.monotonic()
            assert time.monotonic() - began < 2
        held.append(len(list(Path("/proc/self/fd").iterdir())))
    assert held[-1] <= held[0]


# --- certificates that change ---------------------------------------------------------------------


def replace(tls: TLS, by: TLS) -> None:
    """Writes new files over the old ones, certificate first: for a moment the two do not fit."""
    for name in ("certificate", "key"):
        Path(getattr(tls, name)).write_bytes(Path(getattr(by, name)).read_bytes())


def connects(address: str, tls: TLS) -> bool:
    """Whether a new node with these certificates finds node 1 at the address trustworthy."""
    with Node(2, listen=None, tls=tls, config=QUICK, peers={1: address}) as node:
        try:
            node.request(1, b"who are you", kind=KIND)
        except AuthenticationFailed:
            return False
    return True


def test_new_files_are_used_for_new_connections_and_old_connections_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = Authority(tmp_path / "old", "old"), Authority(tmp_path / "new", "new")
    both = tmp_path / "both.pem"
    both.write_bytes(old.path.read_bytes() + new.path.read_bytes())
    served = old.node(1)
    served = TLS(served.certificate, served.key, str(both))
    with (
        Node(1, tls=served, config=QUICK) as one,
        Node(3, tls=old.node(3, trusts=old), config=QUICK, peers={1: one.address}) as standing,
    ):
        one.on(KIND, lambda source, data: data)
        lost: Collected[str] = Collected()
        standing.on_disconnected(lambda peer, reason: lost.add(reason))
        assert standing.request(1, b"before", kind=KIND) == b"before"
        knows_new = old.node(2, trusts=new)
        assert not connects(one.address, knows_new)
        replace(served, new.node(1))
        began = time.monotonic()
        eventually(lambda: connects(one.address, knows_new), 5, "the new certificate is shown")
        assert time.monotonic() - began < 2 * BEAT + 1.0  # the attempts take a moment
        assert not connects(one.address, old.node(2))
        assert standing.request(1, b"still there", kind=KIND) == b"still there"
        assert not lost.items


def test_the_files_of_a_node_that_dials_are_looked_at_too(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    with Node(1, tls=ours.node(1), config=QUICK) as one:
        one.on(KIND, lambda source, data: data)
        mine = theirs.node(2, trusts=ours)
        with Node(2, listen=None, tls=mine, config=QUICK, peers={1: one.address}) as two:
            with pytest.raises(AuthenticationFailed):
                two.request(1, b"", kind=KIND)
            replace(mine, ours.node(2))

            def connected() -> bool:
                with contextlib.suppress(AuthenticationFailed):
                    return two.request(1, b"now", kind=KIND) == b"now"
                return False

            eventually(connected, 3, "the new certificate is used")


@pytest.mark.parametrize("how", ["garbage", "missing", "another key"])
def test_a_broken_replacement_is_logged_and_the_old_one_stays(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "antiphon.node")

    def complaints() -> list[str]:
        texts = [record.getMessage() for record in caplog.records]
        return [text for text in texts if "new certificates cannot be used" in text]

    ours = Authority(tmp_path)
    served = ours.node(1)
    good = Path(served.key).read_bytes()
    client = ours.node(2)
    beat = 0.05
    with Node(1, tls=served, config=NodeConfig(heartbeat=beat)) as one:
        one.on(KIND, lambda source, data: data)
        assert connects(one.address, client)
        if how == "missing":
            Path(served.key).unlink()
        else:
            _, other = ours.issue("other", "antiphon:node:1")
            Path(served.key).write_bytes(b"no key" if how == "garbage" else other.read_bytes())
        eventually(complaints, 2, "it is logged")
        assert served.key in complaints()[0]
        assert connects(one.address, client)
        # Once, and not with every beat for as long as nobody looks.
        time.sleep(8 * beat)
        assert len(complaints()) <= 2
        Path(served.key).write_bytes(good)
        seen = len(complaints())
        time.sleep(3 * beat)
        assert len(complaints()) <= seen + 1
        assert connects(one.address, client)


# --- the secret, off loopback ---------------------------------------------------------------------


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

    config = antiphon.NodeConfig(heartbeat=0.2, connect_timeout=1.0)
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
                        control.tell("facts", refused=refused, logged=logged)
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

            told = eventually(lambda: (h := heard())["bytes"] > 100 * 64 and h, 5, "it is heard")
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
        if server is None:
            # It answers TLS with silence: whether it is a node at all cannot be known.
            assert told["error"] in ("AuthenticationFailed", "PeerUnreachable")
            assert "TLS" in told["text"]
        else:
            assert told["error"] == "AuthenticationFailed"
            assert "secret" in told["text"]
        facts = eventually(lambda: (f := counted(one))["refused"] and f, 2, "it is counted")
        assert facts
        assert facts["logged"]
        if server is not None:
            assert "secret" in facts["logged"][0]
            assert members[1].address in facts["logged"][0]
        assert "ours" not in " ".join(facts["logged"])


@pytest.mark.needs("netns")
def test_a_wrong_secret_is_told_every_time(members: list[Member]) -> None:
    with machines(members, "ours", "theirs") as (one, two):
        for _ in range(15):
            assert ask(two, 1)["error"] == "AuthenticationFailed"
        eventually(lambda: counted(one)["refused"] == 15, 2, "each is counted once")


@pytest.mark.needs("netns")
def test_with_a_secret_a_lost_connection_is_made_again(members: list[Member]) -> None:
    with machines(members, "ours", "ours") as (one, two):
        assert ask(two, 1)["event"] == "answered"
        members[0].vanish()
        try:
            assert two.expect("lost", timeout=4)["peer"] == 1
            assert one.expect("lost", timeout=4)["peer"] == 2
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
        timeout=8,
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
            said = client.expect("done")["said"]
        assert ("Reused, TLSv1.3" in said) is right, said
        with Child(openssl_client, prefix=members[1].prefix, address=address, key="") as client:
            said = client.expect("done")["said"]
        assert "alert handshake failure" in said, said
        assert ask(two, 1)["event"] == "answered"


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
