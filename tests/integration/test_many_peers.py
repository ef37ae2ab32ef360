"""A node with hundreds of peers, which needs no thread for any of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.testing import Child, Control, Stranger, strangers
from antiphon.testing.strangers import frame

pytestmark = pytest.mark.timeout(120)

KIND, ANSWER = 200, 201


def hub(control: Control) -> None:
    """A node that answers messages with messages; tells how many threads there are."""
    import os
    import threading
    from pathlib import Path

    import antiphon

    heard = 0
    all_heard = threading.Condition()

    def handle(source: int, data: bytes) -> None:
        nonlocal heard
        node.send(source, data, kind=201)
        with all_heard:
            heard += 1
            all_heard.notify_all()

    config = antiphon.NodeConfig(heartbeat=30.0, connect_timeout=60.0)
    with antiphon.Node(1, config=config) as node:
        node.on(200, handle)
        node.inbox(202)
        control.tell("ready", address=node.address)
        while True:
            wanted = control.hear()["heard"]
            with all_heard:
                while heard < wanted:
                    all_heard.wait()
            names = [
                (Path("/proc/self/task") / task / "comm").read_text().strip()
                for task in os.listdir("/proc/self/task")  # noqa: PTH208
            ]
            connected = sum(info.sending and info.receiving for info in node.connections())
            control.tell("threads", names=sorted(names), connected=connected, heard=heard)


class Peer:
    """Talks to the hub both ways, over two connections and without a thread."""

    def __init__(self, id: int, address: str, stack: contextlib.ExitStack) -> None:
        self.says = stack.enter_context(Stranger.dial(address))
        self.says.hand_shake(id, incarnation=id)
        self.hears = stack.enter_context(Stranger.dial(address))
        self.hears.hand_shake(id, incarnation=id, direction=strangers.YOURS)
        self.hears.be_ready(ANSWER, window=1 << 20)

    def talk(self) -> None:
        self.says.say(frame(KIND, b"hello"))

    def hear(self) -> None:
        assert self.hears.read_until(ANSWER).payload == b"hello"


def test_hundreds_of_peers_cost_a_node_no_thread(need_descriptors: Callable[[int], None]) -> None:
    few, many, rounds = 5, 250, 5
    need_descriptors(1000)
    with contextlib.ExitStack() as stack, Child(hub) as child:
        address = child.expect("ready")["address"]
        peers: list[Peer] = []
        said = 0

        def all_talk() -> dict[str, Any]:
            nonlocal said
            for _ in range(rounds):
                for peer in peers:
                    peer.talk()
                for peer in peers:
                    peer.hear()
            said += rounds * len(peers)
            child.tell("look", heard=said)
            told = child.expect("threads", timeout=40)
            assert (told["connected"], told["heard"]) == (len(peers), said)
            return told

        peers += [Peer(100 + number, address, stack) for number in range(few)]
        before = all_talk()["names"]
        peers += [Peer(100 + number, address, stack) for number in range(few, many)]
        after = all_talk()["names"]
        # The scheduler's come with the work: one for each core, and a few spares.
        assert after.count("ap-selector") == before.count("ap-selector") == 1
        assert len(after) <= len(before) + (os.cpu_count() or 1) + 4, after
