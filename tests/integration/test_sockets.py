"""What a node asks of the kernel: buffers by direction, and pauses between attempts to connect."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon import Node, NodeConfig
from antiphon.node.kernel import report_kernel_caps
from antiphon.testing import Host, strangers
from unit.node.pairs import HERE, KIND, THERE, Running, eventually, nodes

pytestmark = pytest.mark.timeout(60)

BACK = 16 << 10
"""Bytes asked for where only credit and answers go."""


def cap(name: str) -> int:
    return int(Path(f"/proc/sys/net/core/{name}").read_text())


def granted(wanted: int, name: str) -> int:
    """What the kernel says it gives: twice as much, for what it keeps of its own beside it."""
    return 2 * min(wanted, cap(name))


@contextlib.contextmanager
def open_sockets() -> Iterator[list[socket.socket]]:
    """All connected TCP sockets of this process, as copies."""
    with contextlib.ExitStack() as stack:
        found = []
        for one in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                if not str(one.readlink()).startswith("socket:"):
                    continue
                copy = stack.enter_context(socket.socket(fileno=os.dup(int(one.name))))
                if copy.family == socket.AF_INET:
                    copy.getpeername()
                    found.append(copy)
        yield found


def buffers(node: Node) -> dict[str, set[tuple[int, int]]]:
    """Bytes to send and to receive, of both ends of the channels that were dialled to this node."""
    port = int(node.address.rpartition(":")[2])
    sizes: dict[str, set[tuple[int, int]]] = {"sender": set(), "receiver": set()}
    with open_sockets() as found:
        for one in found:
            size = (
                one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
                one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
            )
            if one.getpeername()[1] == port:
                sizes["sender"].add(size)
            elif one.getsockname()[1] == port:
                sizes["receiver"].add(size)
    return sizes


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (NodeConfig(ring_bytes=128 << 10), 128 << 10),
        (NodeConfig(ring_bytes=1 << 20, socket_buffer_bytes=80_000), 80_000),
        (NodeConfig(), NodeConfig().ring_bytes),
    ],
    ids=["the ring's size", "as set", "default"],
)
def test_the_kernels_buffers_are_large_where_data_goes_and_small_where_it_does_not(
    config: NodeConfig, wanted: int
) -> None:
    with nodes(config) as (here, there):
        for node, peer in ((here, THERE), (there, HERE)):
            node.on(KIND, lambda source, data: None)
            node.send(peer, b"x", kind=KIND)
        for node, peer in ((here, THERE), (there, HERE)):
            node.flush()
            assert [info.id for info in node.connections() if info.sending] == [peer]
        forth = granted(wanted, "wmem_max"), granted(wanted, "rmem_max")
        back = granted(BACK, "wmem_max"), granted(BACK, "rmem_max")
        for node in (here, there):
            assert buffers(node) == {
                "sender": {(forth[0], back[1])},
                "receiver": {(back[0], forth[1])},
            }


def test_a_channel_that_is_opened_for_the_other_side_has_its_buffers_the_other_way_round() -> None:
    """By a node without a listener: it dials both, and sends on the first."""
    config = NodeConfig(ring_bytes=128 << 10)
    with (
        Node(THERE, config=config) as there,
        Node(HERE, listen=None, peers={THERE: there.address}, config=config) as here,
    ):
        inbox = there.inbox(KIND)
        back = here.inbox(KIND)
        here.send(THERE, b"x", kind=KIND)
        inbox.receive(10)
        eventually(lambda: [info.sending for info in there.connections()] == [True])
        there.send(HERE, b"y", kind=KIND)
        back.receive(10)
        large = granted(128 << 10, "wmem_max"), granted(128 << 10, "rmem_max")
        small = granted(BACK, "wmem_max"), granted(BACK, "rmem_max")
        one_way, other_way = (large[0], small[1]), (small[0], large[1])
        both = {one_way, other_way}
        assert buffers(there) == {"sender": both, "receiver": both}


def test_a_node_that_wants_more_than_the_kernel_gives_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "antiphon.node")
    report_kernel_caps.cache_clear()  # this process may have asked for as much before
    most = max(cap("wmem_max"), cap("rmem_max"))
    large, small = NodeConfig(socket_buffer_bytes=most + 4096), NodeConfig(socket_buffer_bytes=4096)
    for _ in range(2):
        with Node(HERE, config=large):
            pass
    told = [one.getMessage() for one in caplog.records if "caps socket buffers" in one.getMessage()]
    assert len(told) == 2
    for text, name in zip(told, ("rmem_max", "wmem_max"), strict=True):
        # What is, what was asked for, and what to do.
        assert f"at {cap(name)} bytes, not {most + 4096}" in text
        assert f"sysctl -w net.core.{name}={most + 4096}" in text
    with Node(HERE, config=small):
        pass
    assert len(caplog.records) == len(told)


# --- connecting again -----------------------------------------------------------------------------

FIRST, LONGEST = 0.020, 1.0
"""Seconds of the shortest and of the longest pause; each is drawn from its upper half."""


def longest_pauses() -> Iterator[float]:
    return (min(FIRST * 2**number, LONGEST) for number in itertools.count())


class Closing(Host):
    """Ends every connection as soon as it is there, and keeps how long the next one took to come.

    From just before the end of one to the next: so it is never less than the pause itself,
    however slow this machine is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        ended: float | None = None
        while not self.over.is_set():
            try:
                stranger = self.accept(0.2)
            except TimeoutError:
                continue
            if ended is not None:
                self.pauses.append(time.monotonic() - ended)
            with stranger, contextlib.suppress(EOFError, TimeoutError):  # it may be over
                stranger.read_until(strangers.HELLO)
                ended = time.monotonic()

    def close(self) -> None:
        self.over.set()
        self._thread.join()
        super().close()


def test_a_node_that_cannot_connect_pauses_twice_as_long_each_time() -> None:
    patient = NodeConfig(connect_timeout=5.0, send_timeout=30.0)
    with Closing() as host, Node(HERE, peers={THERE: host.address}, config=patient) as here:
        sending = Running(lambda: here.send(THERE, b"x", kind=KIND))
        eventually(lambda: len(host.pauses) >= 7 or sending.done, "it has tried often", 40)
        sending.error(20)
        pauses = host.pauses[:]
        for pause, longest in zip(pauses, longest_pauses(), strict=False):
            assert pause >= longest / 2 - 0.002, pauses
        # And not longer than that, but for what a busy machine adds.
        assert len(pauses) >= 5, pauses
        assert min(pauses[4:]) < LONGEST + 1.0, pauses


def test_the_pauses_begin_anew_after_a_connection() -> None:
    """A peer that was connected is tried again soon when it is lost, not only after a second."""
    patient = NodeConfig(connect_timeout=20.0, send_timeout=30.0)
    soonest = []
    with Host() as host, Node(HERE, peers={THERE: host.address}, config=patient) as here:

        def end_one() -> float:
            with host.accept() as stranger:
                stranger.read_until(strangers.HELLO)
                return time.monotonic()

        for _ in range(3):
            sending = Running(lambda: here.send(THERE, b"x", kind=KIND))
            ended = [end_one() for _ in range(2)]
            soonest.append(ended[1] - ended[0])
            for _ in range(5):
                end_one()
            with host.accept_node(THERE) as stranger:
                stranger.be_ready(KIND, window=1 << 16)
                assert stranger.read_until(KIND).payload == b"x"
                sending.result()
            eventually(lambda: not here.connections()[0].sending)
    # The first pause of each time. The seventh is half a second at least.
    assert min(soonest[1:]) < 0.4, soonest
