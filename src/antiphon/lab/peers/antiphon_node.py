"""Antiphon itself, in the ways its users have: one adapter, six variants.

==========  ======================================  =========================================
variant     sends with                              receives with
==========  ======================================  =========================================
callback    ``send`` of bytes                       a handler per message
inbox       ``send`` of bytes                       ``inbox.receive`` in a loop
batch       ``send_many`` of a list                 a ``batch=True`` handler
packed      ``send_packed`` of one buffer           a ``batch=True`` handler
typed       ``send`` of a new Message (3 fields)    a typed handler
tls         ``send`` of bytes, encrypted            a handler per message
==========  ======================================  =========================================

``tls`` is ``callback`` over TLS 1.3 with the certificates that the configuration names: on
loopback nothing else would switch encryption on.
"""

from __future__ import annotations

import contextlib
import dataclasses
from array import array
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from antiphon.errors import ReceiveTimeout
from antiphon.lab.peers.base import (
    EndpointConfig,
    OnData,
    PullEndpoint,
    Sender,
    payload_of,
    typed_body,
)
from antiphon.lab.peers.depths import depths_of
from antiphon.lab.stamps import Reader

if TYPE_CHECKING:
    import antiphon

__all__ = ["ENDPOINT", "NodeEndpoint", "reading_type"]

RAW_KIND = 200
BATCH_KIND = 201
INBOX_KIND = 202
TYPED_KIND = 203
KINDS = {
    "callback": RAW_KIND,
    "tls": RAW_KIND,
    "inbox": INBOX_KIND,
    "batch": BATCH_KIND,
    "packed": BATCH_KIND,
    "typed": TYPED_KIND,
}


def reading_type() -> Any:
    """The typed message: three fields. Made on first use, which needs the native core."""
    import antiphon

    class Reading(antiphon.Message, kind=TYPED_KIND):
        sequence: int
        value: float
        body: bytes

    return Reading


class NodeSender(Sender):
    """Sends through the endpoint's node. ``burst`` is the loop that the figures are about."""

    def __init__(self, node: antiphon.Node, config: EndpointConfig, reading: Any) -> None:
        self._node = node
        self._config = config
        self._reading = reading
        self._targets = [target + 1 for target in config.targets]
        self._kind = KINDS[config.variant]
        payload = payload_of(config.size)
        self._payload = payload
        self._body = typed_body(config.size)
        self._list = [payload] * config.batch
        self._data = payload * config.batch
        self._offsets = array("i", range(0, len(self._data) + 1, config.size))
        self._loop = {
            "callback": self._burst_send,
            "tls": self._burst_send,
            "inbox": self._burst_send,
            "batch": self._burst_many,
            "packed": self._burst_packed,
            "typed": self._burst_typed,
        }[config.variant]

    def burst(self) -> int:
        return self._loop()

    def _burst_send(self) -> int:
        send = self._node.send
        payload = self._payload
        kind = self._kind
        targets = self._targets
        rounds = max(1, self._config.burst // len(targets))
        if len(targets) == 1:
            target = targets[0]
            for _ in range(rounds):
                send(target, payload, kind=kind)
        else:
            for _ in range(rounds):
                for target in targets:
                    send(target, payload, kind=kind)
        return rounds * len(targets)

    def _burst_many(self) -> int:
        send_many = self._node.send_many
        messages = self._list
        kind = self._kind
        rounds = max(1, self._config.burst // len(messages))
        for _ in range(rounds):
            for target in self._targets:
                send_many(target, messages, kind=kind)
        return rounds * len(messages) * len(self._targets)

    def _burst_packed(self) -> int:
        send_packed = self._node.send_packed
        data = self._data
        offsets = self._offsets
        kind = self._kind
        count = len(offsets) - 1
        rounds = max(1, self._config.burst // count)
        for _ in range(rounds):
            for target in self._targets:
                send_packed(target, data, offsets, kind=kind)
        return rounds * count * len(self._targets)

    def _burst_typed(self) -> int:
        send = self._node.send
        reading = self._reading
        body = self._body
        targets = self._targets
        rounds = max(1, self._config.burst // len(targets))
        for i in range(rounds):
            for target in targets:
                send(target, reading(i, 0.5, body))
        return rounds * len(targets)

    def send(self, target: int, data: bytes) -> None:
        node = target + 1
        match self._config.variant:
            case "typed":
                self._node.send(node, self._reading(0, 0.5, data))
            case "batch":
                self._node.send_many(node, [data], kind=self._kind)
            case "packed":
                self._node.send_packed(node, data, array("i", [0, len(data)]), kind=self._kind)
            case _:
                self._node.send(node, data, kind=self._kind)

    def flush(self, timeout: float) -> None:
        self._node.flush(timeout=timeout)


class NodeEndpoint(PullEndpoint):
    """One node: the variant's registration, and senders that share the node."""

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        super().__init__(config, on_data)
        import antiphon

        self._reading: Any = reading_type() if config.variant == "typed" else None
        tls: antiphon.TLS | None = None
        if config.variant == "tls":
            certificate, key, authority = config.tls
            tls = antiphon.TLS(certificate, key, authority)
        # Plain like its peers. Off the loopback that has to be said.
        secret = antiphon.INSECURE if tls is None else None
        listen = f"tcp://{config.host}:0"
        settings = antiphon.NodeConfig.load()
        if config.handlers is not None:
            schedule = dataclasses.replace(settings.schedule, threads=config.handlers)
            settings = dataclasses.replace(settings, schedule=schedule)
        self._node = antiphon.Node(
            config.index + 1, listen=listen, secret=secret, tls=tls, config=settings
        )
        self._resources = contextlib.ExitStack()
        self._inbox: Any = None
        self._started = False

    @property
    def expected_size(self) -> int:
        if self.config.variant == "typed":
            return len(typed_body(self.config.size))
        return self.config.size

    def listen(self) -> str:
        options: dict[str, Any] = {}
        if self.config.capacity is not None:
            options["capacity"] = self.config.capacity
        kind = KINDS[self.config.variant]
        match self.config.variant:
            case "inbox":
                self._inbox = self._node.inbox(kind, **options)
            case "typed":
                self._node.on(self._reading, self._typed_handler(), **options)
            case "batch" | "packed":
                self._node.on(kind, self._batch_handler(), batch=True, **options)
            case _:
                self._node.on(kind, self._handler(), **options)
        self._start()
        if self._inbox is not None:
            self._start_receiving()
        return self._node.address

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._resources.enter_context(self._node)

    def connect(self, addresses: Mapping[int, str]) -> None:
        self._start()
        for target in self.config.targets:
            self._node.add_peer(target + 1, addresses[target])

    def sender(self) -> NodeSender:
        return NodeSender(self._node, self.config, self._reading)

    def _handler(self) -> Callable[[int, bytes], None]:
        n = 0
        last: bytes | None = None
        self._reader = lambda: (n, None if last is None else len(last))

        def count(source: int, data: bytes) -> None:
            nonlocal n, last
            last = data
            n += 1

        if (on_data := self.on_data) is None:
            return count

        def deliver(source: int, data: bytes) -> None:
            nonlocal n
            on_data(data)
            n += 1

        return deliver

    def _typed_handler(self) -> Callable[[int, Any], None]:
        n = 0
        last: Any = None
        self._reader = lambda: (n, None if last is None else len(last.body))

        def count(source: int, message: Any) -> None:
            nonlocal n, last
            last = message
            n += 1

        if (on_data := self.on_data) is None:
            return count

        def deliver(source: int, message: Any) -> None:
            nonlocal n
            on_data(message.body)
            n += 1

        return deliver

    def _batch_handler(self) -> Callable[[int, Any], None]:
        n = 0
        size: int | None = None
        self._reader = lambda: (n, size)

        def count(source: int, batch: Any) -> None:
            nonlocal n, size
            # Keeping the batch itself would pin its receive buffer.
            size = len(batch[0])
            n += len(batch)

        if (on_data := self.on_data) is None:
            return count

        def deliver(source: int, batch: Any) -> None:
            nonlocal n
            if isinstance(on_data, Reader):
                on_data.batch(batch)
            else:
                for data in batch:
                    on_data(data)
            n += len(batch)

        return deliver

    def _receive(self) -> None:
        n = 0
        last: bytes | None = None
        self._reader = lambda: (n, None if last is None else len(last))
        receive = self._inbox.receive
        on_data = self.on_data
        while not self._stop.is_set():
            try:
                if on_data is None:
                    for _ in range(1000):
                        _, last = receive(0.2)
                        n += 1
                else:
                    on_data(receive(0.2)[1])
                    n += 1
            except ReceiveTimeout:
                continue

    def depths(self) -> dict[str, int]:
        return depths_of(self._node)

    def close(self) -> None:
        self._stop.set()
        self._resources.close()
        self._stop_receiving()


ENDPOINT = NodeEndpoint
