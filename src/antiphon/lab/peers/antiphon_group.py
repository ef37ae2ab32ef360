"""Antiphon's groups: every process is a member, and what one sends goes to all others.

The variant is ``callback``: ``send`` of bytes, a handler per message. A sender's own messages come
back to it as in every group; they are not counted, since no other system's are. Where each sends a
given number, whoever has all of a sender's tells that one, by a message without data.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping

import antiphon
from antiphon.lab.peers.base import LOOPBACK, Endpoint, EndpointConfig, OnData, Sender, payload_of
from antiphon.lab.peers.depths import depths_of

__all__ = ["ENDPOINT", "GroupEndpoint"]

NAME = "antiphon-lab"
JOINED = 60.0
MOST_VIEWS = 1000  # between two looks; what happens that often is told by the counts


class GroupSender(Sender):
    """One thread's sends to all."""

    def __init__(self, group: antiphon.Group, config: EndpointConfig) -> None:
        self._group = group
        self._burst = config.burst
        self._payload = payload_of(config.size)

    def burst(self) -> int:
        send, payload = self._group.send, self._payload
        for _ in range(self._burst):
            send(payload)
        return self._burst

    def send(self, target: int, data: bytes) -> None:
        self._group.send(data)  # all of them are its targets


class GroupEndpoint(Endpoint):
    """A member with a node of its own."""

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        super().__init__(config, on_data)
        # Plain like its peers. Off the loopback that has to be said.
        secret = None if config.host == LOOPBACK else antiphon.INSECURE
        self._node = antiphon.Node(listen=f"tcp://{config.host}:0", secret=secret)
        self._node.start()
        self._group: antiphon.Group | None = None
        self._messages = 0
        self._last: int | None = None
        self._views: list[tuple[int, str, str]] = []
        self._acknowledged = (0, 0)

    def listen(self) -> str:
        if self.config.pattern == "one-way":
            self._join([])  # a reader is told of nobody: writers join it
        return self._node.address

    def connect(self, addresses: Mapping[int, str]) -> None:
        there = [address for address in addresses.values() if address]
        group = self._join(there)
        members = 2 if self.config.pattern == "one-way" else len(there)
        deadline = time.monotonic() + JOINED
        while len(group.members) < members:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{len(group.members)} of {members} members after {JOINED:g} s, in process "
                    f"{os.getpid()}"
                )
            time.sleep(0.01)

    def _join(self, addresses: list[str]) -> antiphon.Group:
        group = antiphon.Group(
            NAME,
            node=self._node,
            discover=addresses,
            stack=self.config.stack or "tcp",
            member_name=str(self.config.index),
        )
        own, on_data = str(self.config.index), self.on_data
        consume = self.config.consume

        def take(source: antiphon.Member, data: bytes) -> None:
            if source.name == own or not consume:
                return
            self._messages += 1
            self._last = len(data)
            if on_data is not None:
                on_data(data)

        each = self.config.messages
        got: Counter[antiphon.Member] = Counter()

        def take_and_tell(source: antiphon.Member, data: bytes) -> None:
            if data:
                take(source, data)
                got[source] += 1
                if got[source] == each and source.name != own:
                    group.send_async(b"", to=source)
            else:
                self._acknowledged = self._acknowledged[0] + 1, time.monotonic_ns()

        @group.on_view
        def seen(view: antiphon.View) -> None:
            if len(self._views) < MOST_VIEWS:
                text = f"{view.id}, {len(view)} members"
                self._views.append((time.monotonic_ns(), "view", text))

        tells = each is not None and consume and self.config.pattern != "one-way"
        group.on_message(take_and_tell if tells else take)
        self._group = group.start()
        return group

    def sender(self) -> GroupSender:
        if self._group is None:
            raise RuntimeError("connect() comes before sender()")
        return GroupSender(self._group, self.config)

    def depths(self) -> dict[str, int]:
        return depths_of(self._node)

    def happenings(self) -> list[tuple[int, str, str]]:
        seen, self._views = self._views, []
        return seen

    def acknowledged(self) -> tuple[int, int]:
        return self._acknowledged

    def _count(self) -> tuple[int, int | None]:
        return self._messages, self._last

    def close(self) -> None:
        if self._group is not None:
            self._group.close(drain=1.0)
        self._node.close(drain=0.0)


ENDPOINT: type[Endpoint] = GroupEndpoint
