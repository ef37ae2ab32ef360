"""A node's own life: identity, start, close, and what it refuses before and after."""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import threading
import warnings
import weakref
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon import Closed, ConfigError, Node, NodeConfig, UnknownPeer
from unit.node.pairs import HERE, KIND, OTHER, THERE, Heard, Running, eventually, nodes, python

pytestmark = pytest.mark.timeout(20)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_node_without_an_id_draws_one_of_the_upper_half() -> None:
    drawn = set()
    for _ in range(20):
        node = Node(config=NodeConfig())
        drawn.add(node.id)
        node.close()
    assert all(32768 <= number <= 65535 for number in drawn)
    assert len(drawn) > 10


@pytest.mark.parametrize("number", [0, -1, 65536, True, 1.0, "1", b"1"])
def test_an_id_outside_1_to_65535_is_refused(number: Any) -> None:
    with pytest.raises(ConfigError, match="1 to 65535") as error:
        Node(number)
    assert (error.value.setting, error.value.value) == ("id", number)


@pytest.mark.parametrize("number", [1, 65535])
def test_the_first_and_the_last_id_work(number: int) -> None:
    heard = Heard()
    with Node(number) as node, Node(7, peers={number: node.address}) as other:
        node.on(KIND, heard)
        other.send(number, b"x", kind=KIND)
        other.flush()
    assert heard.calls == [(7, b"x")]


def test_a_started_node_tells_the_port_that_it_got() -> None:
    with Node(config=NodeConfig()) as node:
        assert node.address.startswith("tcp://127.0.0.1:")
        port = int(node.address.rpartition(":")[2])
        assert port > 0
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def test_a_node_that_only_dials_has_no_address_and_can_be_answered() -> None:
    heard = Heard()
    with Node(1) as hub, Node(2, listen=None, peers={1: hub.address}) as leaf:
        assert leaf.address == ""
        leaf.on(KIND, heard)
        hub.on(KIND, lambda source, data: hub.send(source, data + b" back", kind=KIND))
        leaf.send(1, b"there and", kind=KIND)
        assert heard.wait(1) == [b"there and back"]


def test_a_node_says_in_its_repr_who_and_where_it_is() -> None:
    with Node(77, config=NodeConfig()) as node:
        assert "77" in repr(node)
        assert node.address in repr(node)


def test_starting_twice_is_starting_once() -> None:
    with Node(config=NodeConfig()) as node:
        address = node.address
        assert node.start() is node
        assert node.address == address


def test_a_closed_node_does_not_start_again() -> None:
    node = Node(config=NodeConfig())
    node.start()
    assert not node.closed
    node.close()
    assert node.closed
    with pytest.raises(Closed, match="make a new one") as error:
        node.start()
    assert error.value.what == "node"


def test_a_node_that_was_never_started_can_be_closed() -> None:
    node = Node(config=NodeConfig())
    node.close()
    node.close()
    with pytest.raises(Closed):
        node.start()


def test_a_socket_file_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"listen on unix:.*nodir/x\.sock") as error:
        Node(listen=f"unix://{tmp_path}/nodir/x.sock").start()
    assert error.value.errno == errno.ENOENT
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        Node(listen=f"unix://{tmp_path}/file/x.sock").start()
    with pytest.raises(OSError, match="in use") as error:
        Node(listen=f"unix://{tmp_path}/file").start()  # somebody's, and it stays
    assert error.value.errno == errno.EADDRINUSE


def test_two_nodes_cannot_listen_on_one_port_and_the_second_says_so() -> None:
    with Node(config=NodeConfig()) as node:
        second = Node(listen=node.address, config=NodeConfig())
        with pytest.raises(OSError, match="in use"):
            second.start()
        second.close()


def test_a_port_is_free_again_after_close() -> None:
    with Node(config=NodeConfig()) as node:
        address = node.address
    with Node(listen=address, config=NodeConfig()) as again:
        assert again.address == address


SENDS: dict[str, Callable[[Node], object]] = {
    "send": lambda node: node.send(THERE, b"x", kind=KIND),
    "send to several": lambda node: node.send([THERE], b"x", kind=KIND),
    "try_send": lambda node: node.try_send(THERE, b"x", kind=KIND),
    "send_many": lambda node: node.send_many(THERE, [b"x"], kind=KIND),
    "send_packed": lambda node: node.send_packed(THERE, b"x", array("i", [0, 1]), kind=KIND),
}


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_a_send_before_start_raises_and_says_to_start(send: Callable[[Node], object]) -> None:
    with Node(THERE, config=NodeConfig()) as there:
        node = Node(HERE, peers={THERE: there.address}, config=NodeConfig())
        with pytest.raises(Closed, match="start") as error:
            send(node)
        assert error.value.what == "node"
        node.close()


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_a_send_after_close_raises_closed(send: Callable[[Node], object]) -> None:
    with nodes() as (here, there):
        there.inbox(KIND)
        here.send(THERE, b"x", kind=KIND)
        here.close()
        with pytest.raises(Closed, match="closed") as error:
            send(here)
        assert error.value.what == "node"


def test_flush_after_close_raises_closed() -> None:
    with nodes() as (here, _):
        here.close()
        with pytest.raises(Closed):
            here.flush()


def test_flush_of_a_node_that_has_sent_nothing_returns() -> None:
    with nodes() as (here, _):
        here.flush(0)
        here.flush(timeout=None)


def test_statistics_and_connections_can_be_read_in_every_state() -> None:
    node = Node(HERE, peers={THERE: "tcp://127.0.0.1:9"}, config=NodeConfig())
    assert [info.id for info in node.connections()] == [THERE]
    assert node.statistics().messages_out == 0
    node.start()
    assert node.statistics().messages_out == 0
    node.close()
    assert node.statistics().messages_out == 0
    assert [info.id for info in node.connections()] == [THERE]


@pytest.mark.parametrize("number", [0, 65536, True, "2", None])
def test_a_peer_needs_an_id(number: Any) -> None:
    with Node(config=NodeConfig()) as node, pytest.raises(ConfigError, match="1 to 65535"):
        node.add_peer(number, "tcp://127.0.0.1:7001")


@pytest.mark.parametrize("address", ["127.0.0.1:7001", "tcp://127.0.0.1", "http://a:1", "", 5])
def test_a_peer_needs_an_address_that_can_be_dialled(address: Any) -> None:
    with Node(config=NodeConfig()) as node, pytest.raises(ConfigError, match="address of peer 2"):
        node.add_peer(2, address)


@pytest.mark.parametrize("number", [0, 3, 65536])
def test_a_peer_that_is_not_known_cannot_be_removed(number: int) -> None:
    with Node(config=NodeConfig()) as node, pytest.raises(UnknownPeer) as error:
        node.remove_peer(number)
    assert error.value.peer == number


def test_a_removed_peer_is_unknown() -> None:
    heard = Heard()
    with nodes() as (here, there):
        there.on(KIND, heard)
        here.send(THERE, b"x", kind=KIND)
        here.flush()
        here.remove_peer(THERE)
        eventually(lambda: not here.connections()[0].sending)
        with pytest.raises(UnknownPeer):
            here.send(THERE, b"y", kind=KIND)
        here.add_peer(THERE, there.address)
        here.send(THERE, b"z", kind=KIND)
        here.flush()
    assert heard.data == [b"x", b"z"]


def test_a_node_that_was_never_closed_warns_and_closes() -> None:
    node = Node(77, config=NodeConfig())
    node.start()
    address = node.address
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del node
        gc.collect()
    assert any(
        issubclass(one.category, ResourceWarning) and "never closed" in str(one.message)
        for one in caught
    )
    with Node(listen=address, config=NodeConfig()):
        pass


def test_a_closed_node_goes_with_its_last_name_though_its_callbacks_hold_it() -> None:
    def life() -> weakref.ref[Node]:
        with nodes() as (here, there):
            there.on(KIND, lambda source, data: bytes([there.id % 256]))
            there.on_connected(lambda peer, address: there.address)
            there.on_disconnected(lambda peer, reason: there.address)
            there.inbox(OTHER)
            assert here.request(THERE, b"x", kind=KIND) == bytes([THERE % 256])
        return weakref.ref(there)

    life()  # what is made once for all nodes
    gc.collect()
    gc.disable()
    try:
        before = descriptors()
        ended = life()
        assert ended() is None
        assert descriptors() <= before
    finally:
        gc.enable()


def test_wait_on_another_thread_returns_when_the_node_is_closed() -> None:
    with Node(config=NodeConfig()) as node:
        waiting = Running(node.wait)
        assert not waiting.done
        node.close()
        waiting.result()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_wait_on_the_main_thread_returns_with_a_signal_and_gives_the_handlers_back(
    number: signal.Signals,
) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with Node(config=NodeConfig()) as node:

        def knock() -> None:
            eventually(lambda: signal.getsignal(number) not in before)
            os.kill(os.getpid(), number)

        knocking = Running(knock)
        node.wait()
        knocking.result()
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_node_leaves_no_thread_behind() -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))  # noqa: PTH208

    before = threads()
    for _ in range(5):
        heard = Heard()
        with nodes() as (here, there):
            there.on(KIND, heard)
            here.send(THERE, b"x", kind=KIND)
            here.flush()
    eventually(lambda: threads() <= before)


def test_a_node_leaves_no_descriptor_behind() -> None:
    def come_and_go() -> None:
        """Nothing refers to the nodes when it is over."""
        with nodes() as (here, there):
            there.inbox(KIND)
            here.send(THERE, b"x", kind=KIND)

    come_and_go()  # whatever the first of a process opens for good
    gc.collect()
    before = descriptors()
    for _ in range(5):
        come_and_go()
    gc.collect()
    assert descriptors() <= before


AT_EXIT = """
import antiphon, threading
node = antiphon.Node(1).start()
inbox = node.inbox(200)
ready = threading.Event()

def read():
    ready.set()
    try:
        inbox.receive()
    except antiphon.Closed:
        print("closed", flush=True)

threading.Thread(target=read).start()
ready.wait()
"""


def test_a_program_may_end_while_a_thread_waits_in_receive() -> None:
    done = python(AT_EXIT, timeout=15)
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr


def test_many_nodes_can_live_in_one_process() -> None:
    heard = Heard()
    with Node(1) as hub:
        hub.on(KIND, heard)
        leaves = [Node(100 + i, peers={1: hub.address}).start() for i in range(30)]
        threads = [
            threading.Thread(target=leaf.send, args=(1, b"x"), kwargs={"kind": KIND})
            for leaf in leaves
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        heard.wait(30)
        for leaf in leaves:
            leaf.close()
    assert sorted(source for source, _ in heard.calls) == list(range(100, 130))
