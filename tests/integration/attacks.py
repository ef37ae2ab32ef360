"""A node in a process of its own that strangers attack, and a client that it serves meanwhile."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from antiphon import Node
from antiphon.testing import Child, Collected, Stranger


class UnderAttack:
    """Node 1, which is attacked, and its client.

    A subclass knows what the client asks, and what must be as before when an attack is over.
    """

    def __init__(self, child: Child, client: Node) -> None:
        self.child = child
        self.address = str(child.expect("ready")["address"])
        self.lost: Collected[str] = Collected()
        self._client = client
        client.add_peer(1, self.address)
        client.on_disconnected(lambda peer, reason: self.lost.add(reason))

    def dial(self) -> Stranger:
        return Stranger.dial(self.address)

    @property
    def processor_seconds(self) -> float:
        """What the node's process has used so far."""
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rests(self, seconds: float, most: float) -> bool:
        """Whether its process uses less than ``most`` of so many seconds. Blocks.

        In one of three tries: what it had to do before may take it longer than thought.
        """
        for _ in range(3):
            before = self.processor_seconds
            time.sleep(seconds)  # what is observed is that nothing happens
            if self.processor_seconds - before < most:
                return True
        return False

    @contextlib.contextmanager
    def meanwhile(self, step: Callable[[], None], every: float) -> Iterator[None]:
        """Takes the step again and again on a thread; it must not fail, nor the client be cut."""
        problems: Collected[BaseException] = Collected()
        stops = threading.Event()

        def watch() -> None:
            try:
                while not stops.wait(every):
                    step()
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
