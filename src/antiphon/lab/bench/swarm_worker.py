"""One process of the probe of idle clients: the broker, or the swarm of its clients.

Run as ``python -m antiphon.lab.bench.swarm_worker``; ``orders`` says how it is spoken to.

====================  ===========================================================================
``broker``            start a broker; answers with its address
``wait``              until it counts so many clients
``alive``             how many clients it counts
``join``              connect so many clients more, which live from then on
====================  ===========================================================================
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import threading
import time
from typing import Any

import antiphon
from antiphon.lab.bench.idle_worker import descriptors_for, too_few_descriptors
from antiphon.lab.bench.orders import Connectable, Orders, carry_out
from antiphon.testing import strangers
from antiphon.testing.strangers import Stranger, frame
from antiphon.topics.announcements import Update, encode

__all__ = ["Swarm", "SwarmWorker"]

KIND = 33
WINDOW = 65536
FIRST = 40_000
"""The id of the first client; a broker's own is below."""


class Swarm:
    """Clients of plain sockets: each has said who it is, and shows a sign of life now and then."""

    def __init__(self, beat: float) -> None:
        self._beat = beat
        self._links: list[socket.socket] = []
        self._kept: list[Stranger] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def join(self, address: str, count: int) -> None:
        """So many more. Blocks until all have shaken hands."""
        for _ in range(count):
            number, life = FIRST + len(self._links), secrets.randbits(63)
            mine = Stranger.dial(address)
            mine.hand_shake(number, incarnation=life)
            yours = Stranger.dial(address)
            yours.hand_shake(number, direction=strangers.YOURS, incarnation=life)
            yours.be_ready(KIND, WINDOW)
            mine.say(frame(KIND, encode(Update(life, -1, 1, {}, [], [], []))))
            self._kept += [mine, yours]
            self._links.append(mine.socket)

    def _live(self) -> None:
        """One sign of life of each in every beat, spread over it."""
        sign = frame(strangers.LIVENESS, struct.pack("<I", 0))
        while not self._ended.is_set():
            began = time.monotonic()
            links = list(self._links)
            for number, link in enumerate(links):
                with contextlib.suppress(OSError):
                    link.send(sign, socket.MSG_DONTWAIT)
                due = began + self._beat * (number + 1) / len(links)
                if due - time.monotonic() > 0.01:
                    self._ended.wait(due - time.monotonic())
            self._ended.wait(max(0.01, began + self._beat - time.monotonic()))

    def close(self) -> None:
        """All leave."""
        self._ended.set()
        self._thread.join()
        for one in self._kept:
            one.close()


class SwarmWorker(Orders):
    """Carries out the orders of the probe."""

    def __init__(self) -> None:
        super().__init__()
        self._broker: antiphon.Broker | None = None
        self._swarm: Swarm | None = None

    def _parts(self) -> list[Connectable]:
        return []

    def do_broker(self, clients: int) -> dict[str, Any]:
        if error := too_few_descriptors(descriptors_for(1, clients)):
            return {"error": error}
        self._broker = antiphon.Broker("tcp://127.0.0.1:0").start()
        return {"address": self._broker.address}

    def do_wait(self, clients: int) -> dict[str, Any]:
        assert self._broker is not None
        until = time.monotonic() + 60.0
        while (found := self._broker.statistics().clients) < clients:
            if time.monotonic() > until:
                return {"error": f"{found} of {clients} clients have come"}
            time.sleep(0.05)
        return {}

    def do_alive(self) -> dict[str, Any]:
        assert self._broker is not None
        return {"alive": self._broker.statistics().clients}

    def do_join(self, address: str, clients: int, beat: float) -> dict[str, Any]:
        if error := too_few_descriptors(descriptors_for(0, clients)):
            return {"error": error}
        if self._swarm is None:
            self._swarm = Swarm(beat)
        self._swarm.join(address, clients)
        return {}


if __name__ == "__main__":
    carry_out(SwarmWorker())
