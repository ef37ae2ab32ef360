"""Publishers: the one end of a topic."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self

import msgspec
from typing_extensions import Buffer

from antiphon._core import OutboxCore, PublisherCore
from antiphon.errors import Closed
from antiphon.node import Future
from antiphon.node.waits import check_timeout
from antiphon.topics.finder import check_whole
from antiphon.topics.kinds import Topic, topic_of
from antiphon.topics.where import plain_properties
from antiphon.wire.message import Message, encode

if TYPE_CHECKING:
    from antiphon.topics.bus import Bus

__all__ = ["Publisher", "encode_properties"]

_properties = msgspec.msgpack.Encoder()


def encode_properties(properties: Mapping[str, str | int | float | bool]) -> bytes:
    """Properties for the wire. Raises `ConfigError` for what cannot be one."""
    return _properties.encode(plain_properties(properties))


class Publisher:
    """Publishes on one topic; made by `Bus.publisher`. All methods are thread-safe.

    An event goes straight to every subscription that matches, each in the publisher's order.
    Where one has no room, `publish` waits for it (``block``), for at most the node's
    ``send_timeout`` (inside a handler ``request_timeout``), or leaves it out (``drop_newest``):
    the subscriber then finds ``missed`` in its next event.
    """

    # A bus may have very many: few objects each, and what is not used is not made. Those with a
    # text are the core's own methods.
    __slots__ = {
        "__weakref__": None,
        "_bus": None,
        "_core": None,
        "_number": None,
        "_retain": None,
        "_text": None,
        "publish": PublisherCore.publish.__doc__,
        "publish_many": PublisherCore.publish_many.__doc__,
        "publish_packed": PublisherCore.publish_packed.__doc__,
    }

    def __init__(
        self, bus: Bus, core: PublisherCore | OutboxCore, text: str, number: int, retain: bool
    ) -> None:
        self._bus = bus
        self._core = core
        self._number = number
        self._retain = retain
        self._text = text

    @property
    def topic(self) -> Topic:
        """The topic: its name, its number or its tag."""
        return topic_of(self._text)

    def __getattr__(self, name: str) -> Any:
        # The core's own, from the first call on: a wrapper would cost as much as publishing.
        if name not in ("publish", "publish_many", "publish_packed"):
            raise AttributeError(f"a Publisher has no {name!r}", name=name, obj=self)
        method = getattr(self._core, name)
        setattr(self, name, method)
        return method

    if TYPE_CHECKING:

        def publish(
            self,
            data: Buffer | Message,
            properties: Mapping[str, str | int | float | bool] | None = None,
            ttl: float | None = None,
        ) -> None:
            """Sends an event to every subscription that wants it; may block for want of room."""

        def publish_many(
            self, events: Iterable[Buffer | Message], ttl: float | None = None
        ) -> None:
            """Several events in one go, in this order: much faster than one by one."""

        def publish_packed(self, data: Buffer, offsets: Buffer, ttl: float | None = None) -> None:
            """Events that lie in one buffer, and n+1 offsets (int32 or int64), as in Arrow."""

    def publish_async(
        self,
        data: Buffer | Message,
        properties: Mapping[str, str | int | float | bool] | None = None,
        ttl: float | None = None,
    ) -> Future[None]:
        """`publish` as a `Future`, done when the event is on its way to all. Never blocks."""
        if isinstance(data, Message):
            payload = encode(data)
        else:
            try:
                # Of a view: bytes(5) would be five zeros, and bytes([1, 2]) two bytes.
                payload = bytes(memoryview(data))
            except TypeError:
                raise TypeError(
                    f"an event is bytes, another buffer or a Message, not {type(data).__name__}"
                ) from None
        copied = None if properties is None else dict(plain_properties(properties))
        if isinstance(self._core, PublisherCore):
            self._core.check_open()
        work = functools.partial(self.publish, payload, copied, ttl)
        return self._bus._later(self._number, work)

    def flush(self, timeout: float | None = 5.0) -> None:
        """Blocks until everything published before is safe, or has been handled.

        With ``record=True``: the broker has it in its log, at its fsync setting. Raises
        `SendTimeout` after ``timeout`` seconds, `PeerUnreachable` if the broker is not there by
        then, `StoreFull` when its disk is full. What was not recorded is kept, and tried again.
        Elsewhere it is `Node.flush`, after what waits in a queue of the publisher's own was sent.
        """
        if isinstance(self._core, OutboxCore):
            self._core.flush(timeout)
            return
        self._bus.node._check_flush()
        self._flush(check_timeout(timeout))

    def _flush(self, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        if isinstance(self._core, PublisherCore):
            self._core.flush_queue(timeout)
        left = None if until is None else max(0.0, until - time.monotonic())
        self._bus.node._flush(0, left)

    def flush_async(self, timeout: float | None = 5.0) -> Future[None]:
        """`flush` as a `Future`. Never blocks."""
        if isinstance(self._core, OutboxCore):
            patience = check_timeout(timeout)
            return self._bus._later(self._number, functools.partial(self._core.flush, patience))
        return self._bus.node._flush_later(self._flush, timeout)

    @property
    def subscribers(self) -> int:
        """How many subscriptions this publisher serves now, here and on other nodes."""
        return self._core.targets

    def wait_for_subscribers(self, count: int = 1, timeout: float | None = 5.0) -> bool:
        """Blocks until there are so many; False after ``timeout`` s, `Closed` when it is closed."""
        self._bus.node._check_process()  # nobody would ever come
        check_whole("count", count, 0, 2**31)
        timeout = check_timeout(timeout)
        if self._core.targets >= count:
            return True  # nobody waits, also on an event loop
        self._bus._refuse_to_block("wait_for_subscribers()", "await asyncio.to_thread(...)")
        until = None if timeout is None else time.monotonic() + timeout
        served = self._bus._served
        with served:
            while self._core.targets < count:
                if self._bus.closed:
                    raise Closed("this bus was closed", what="bus")
                if not self._core.active:
                    raise Closed("this publisher was closed; nobody will come", what="publisher")
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return False
                served.wait(0.2 if left is None else min(left, 0.2))
        return True

    def statistics(self) -> dict[str, int]:
        """Events published, dropped for want of room, lost to unreachable subscribers; waits.

        With a queue of its own also its turns, ``slices``, and ``overruns`` of its share.
        """
        return self._core.statistics()

    def close(self) -> None:
        """No more events; subscribers are told that the topic is gone. Idempotent."""
        self._bus._close_publisher(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.to_thread(self.close)  # which may wait for its queue, as the loop must not

    def __repr__(self) -> str:
        return f"<Publisher {self.topic!r} to {self.subscribers} subscriptions>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Publisher belongs to its bus; make one in each process instead")
