"""One member of the benchmark of groups. Run as ``python -m antiphon.lab.bench.group_worker``.

====================  ===========================================================================
``open``              a node that listens on TCP; answers with its address
``join``              joins the group, by the addresses of all; answers when all are members
``flood``             sends to all, as much as goes, until the end
``sample``            messages that were sent and that came, own ones included, and the time
====================  ===========================================================================
"""

from __future__ import annotations

import threading
import time
from typing import Any

import antiphon
from antiphon.lab.bench.orders import Connectable, Orders, carry_out

__all__ = ["GroupWorker"]


class GroupWorker(Orders):
    """Carries out the orders."""

    def __init__(self) -> None:
        super().__init__()
        self._node: antiphon.Node | None = None
        self._group: antiphon.Group | None = None
        self._sending: threading.Thread | None = None
        self._going = False
        self._sent = 0

    def _parts(self) -> list[Connectable]:
        return []

    def do_open(self) -> dict[str, Any]:
        self._node = antiphon.Node().start()
        return {"address": self._node.address}

    def do_join(
        self, name: str, addresses: list[str], members: int, stack: str = "tcp"
    ) -> dict[str, Any]:
        group = antiphon.Group(name, node=self._node, discover=addresses, stack=stack)
        group.on_message(_take)
        self._group = group.start()
        deadline = time.monotonic() + 60
        while len(group.members) < members:
            if time.monotonic() > deadline:
                return {"error": f"{len(group.members)} of {members} members after 60 s"}
            time.sleep(0.01)
        return {"members": len(group.members)}

    def do_flood(self, size: int) -> dict[str, Any]:
        self._going = True
        self._sending = threading.Thread(target=self._send, args=(bytes(size),), daemon=True)
        self._sending.start()
        return {}

    def _send(self, data: bytes) -> None:
        assert self._group is not None
        send = self._group.send
        while self._going:
            for _ in range(64):
                send(data)
            self._sent += 64

    def do_sample(self) -> dict[str, Any]:
        assert self._group is not None
        statistics = self._group.statistics()
        return {
            "time_ns": time.monotonic_ns(),
            "messages": statistics.delivered,
            "sent": statistics.sent,
            "cpu_ns": time.process_time_ns(),
        }

    def do_close(self) -> dict[str, Any]:
        self._going = False
        if self._sending is not None:
            self._sending.join(30)
        if self._group is not None:
            self._group.close(drain=1.0)
        if self._node is not None:
            self._node.close(drain=0.0)
        return super().do_close()


def _take(source: antiphon.Member, data: bytes) -> None:
    """What a program does with a message is its own affair."""


if __name__ == "__main__":
    carry_out(GroupWorker())
