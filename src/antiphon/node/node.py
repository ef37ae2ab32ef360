"""The node: this process among the others.

Receives the user's handlers, messages and peers; hands bytes to the core, which moves them. What
happens here happens once per registration, peer or call that is not on the fast path: `send`,
`try_send`, `send_many` and `send_packed` are the core's own methods, inherited.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NoReturn, Self, TypeVar, cast, overload

from typing_extensions import Buffer

from antiphon import settings
from antiphon._core import NodeCore, on_scheduler_thread
from antiphon.errors import (
    AntiphonError,
    Closed,
    ConfigError,
    MessageTooLarge,
    UnknownPeer,
    WouldBlock,
    together,
)
from antiphon.node.address import parse_address
from antiphon.node.answers import answer_converter
from antiphon.node.config import (
    TLS,
    Insecure,
    NodeConfig,
    check_flag,
    check_listen,
    check_secret,
    check_type,
)
from antiphon.node.coroutines import CoroutineHandler, is_coroutine, no_loop
from antiphon.node.future import Future, Job, RequestFuture, Several
from antiphon.node.inbox import Batch, Inbox
from antiphon.node.kernel import cores, report_kernel_caps, useful_spin
from antiphon.node.later import Later
from antiphon.node.life import Life
from antiphon.node.loops import refuse_to_block
from antiphon.node.shares import Shared, Shares, check_share
from antiphon.node.statistics import (
    ConnectionInfo,
    NodeStatistics,
    connection_info,
    node_statistics,
)
from antiphon.node.waits import check_timeout
from antiphon.whole import whole_number
from antiphon.wire.message import Message, check_kind, decoder_for, encode, kind_of

__all__ = ["Node", "Registration"]

log = logging.getLogger("antiphon.node")

M = TypeVar("M", bound=Message)
Handler = TypeVar("Handler", bound=Callable[..., Any])
PeerCallback = TypeVar("PeerCallback", bound=Callable[[int, str], Any])

_DEFAULT_LISTEN = "tcp://127.0.0.1:0"
_CAPACITY, _BATCH_CAPACITY = 4096, 65536
_WHEN_FULL = ("block", "drop_oldest", "drop_newest")
_CONNECTED, _DISCONNECTED, _WARNING = range(3)
_LOOK = 0.2

_flushes = itertools.count(1)


class Registration:
    """What `Node.on` and its like return: ``close()`` ends the registration. Idempotent."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close

    def close(self) -> None:
        """No call begins after this returns; a running one is waited for, unless it is this.

        Also one that another thread waits for already. Inside a handler, though, it waits neither
        for what somebody else closes, nor for a handler of its node that waits for this one.
        """
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.to_thread(self.close)  # which may wait for a handler, as the loop must not

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Registration belongs to its node; make one with on() in each process")


class Node(NodeCore, Life):
    """One process among others, known by a 16-bit number.

    ``peers`` and `add_peer` say where others are; a connection is opened by the first message in
    either direction, and a node that connects to this one is known from then on. Without ``id``
    the node draws one from 36864 to 65535. ``listen`` is an address (``tcp://host:port``,
    ``unix:///path``, ``inproc://name``); None makes a node that only dials. ``advertise`` is what
    peers are told to dial, where that differs. On loopback and unix sockets nothing need be
    configured. ``secret`` (text or bytes) is proven by both sides, and off loopback it is the key
    of TLS 1.3; ``tls`` are certificates instead, for every TCP connection. Off loopback listening
    needs one of the two, or ``secret=antiphon.INSECURE`` in so many words.

    Handlers run on the library's scheduler threads. All methods are thread-safe. ``with node:``
    starts it and closes it; everything that waits wakes with `Closed` then.
    """

    def __init__(
        self,
        id: int | None = None,
        *,
        listen: str | None = _DEFAULT_LISTEN,
        advertise: str | None = None,
        peers: Mapping[int, str] | None = None,
        secret: str | bytes | Insecure | None = None,
        tls: TLS | None = None,
        config: NodeConfig | None = None,
    ) -> None:
        own_id = 0 if id is None else _check_whole("id", id, 1, 65535)
        check_type("tls", tls, TLS)
        check_type("config", config, NodeConfig)
        check_type("peers", peers, Mapping, "a mapping of ids to addresses")
        check_listen(listen, secret, tls)
        self._secret = check_secret(secret)
        self._protected = self._secret is not None or tls is not None
        if advertise is not None:
            parse_address(advertise, setting="advertise")
        self._advertised = advertise
        self.config = settings.complete(NodeConfig, "node", config)
        self._lock = threading.Lock()
        self._state = "new"
        self._closed_event = threading.Event()
        self._inboxes: list[Inbox[Any]] = []
        self._coroutines: list[CoroutineHandler] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._later = Later()
        self._flushing = Later()  # which waits for handlers, and is not to hold up what is sent
        self._shares = Shares()
        self._closed_jobs: list[Job[None]] = []
        self._forgotten = {"forgotten_dropped": 0, "forgotten_failed": 0}
        self._callbacks: dict[int, list[Callable[[int, str], Any]]] = {
            _CONNECTED: [],
            _DISCONNECTED: [],
        }
        super().__init__(
            {
                "id": own_id,
                "listen": listen or "",
                "advertise": advertise or "",
                "secret": self._secret or b"",
                "tls": [] if tls is None else [tls.certificate, tls.key, tls.authority],
                "ring_bytes": self.config.ring_bytes,
                "flow_window_bytes": self.config.flow_window_bytes,
                "flow_threshold": self.config.flow_threshold,
                "socket_buffer_bytes": self.config.kernel_buffer_bytes,
                "buffer_pool": list(self.config.buffer_pool.items()),
                "receive_bytes": self.config.receive_bytes,
                "large_message_bytes": self.config.large_message_bytes,
                "max_message_bytes": self.config.max_message_bytes,
                "connect_timeout": self.config.connect_timeout,
                "request_timeout": self.config.request_timeout,
                "send_timeout": self.config.send_timeout,
                "heartbeat": self.config.heartbeat,
                "spin_us": useful_spin(self.config),
                "max_connections": self.config.max_connections or 0,
                "threads": self.config.schedule.threads or cores(),
                "period": self.config.schedule.period,
                "buckets": self.config.schedule.buckets,
                "penalty": self.config.schedule.penalty,
                "fifo_priority": self.config.schedule.fifo_priority or 0,
                "cpus": list(self.config.schedule.cpus),
            },
            kind_of,
            encode,
        )
        self._set_on_event(_event_caller(weakref.ref(self)))
        for peer, address in (peers or {}).items():
            self.add_peer(peer, address)

    # --- life -------------------------------------------------------------------------------

    _name = "node"

    def start(self) -> Self:
        """Listens and begins to run. ``with node:`` does it. Raises OSError if it cannot listen.

        Handlers that are coroutines run on the event loop that is running here and now; without
        one, a node that has such handlers raises `ConfigError`. Never blocks.
        """
        self._check_process()
        with self._lock:
            if self._state == "running":
                return self
            if self._state == "closed":
                raise Closed("this node was closed; make a new one", what="node")
            self._loop = asyncio._get_running_loop()
            if self._coroutines and self._loop is None:
                raise no_loop()
            report_kernel_caps(self.config.kernel_buffer_bytes)
            self._start()
            self._state = "running"
        _running.add(self)
        for handler in self._coroutines:
            handler.start(cast("asyncio.AbstractEventLoop", self._loop))
        return self

    def _close_now(self, drain: float) -> None:
        until = time.monotonic() + drain
        with self._lock:
            before, self._state = self._state, "closed"
            coroutines, inboxes = self._coroutines, self._inboxes
        while drain > 0 and time.monotonic() < until and any(one.busy for one in coroutines):
            time.sleep(0.002)
        try:
            clean = self._close(max(0.0, until - time.monotonic() if drain > 0 else 0.0))
        finally:  # closed all the same, if Ctrl-C ended the patience
            _running.discard(self)
            for callbacks in self._callbacks.values():
                callbacks.clear()  # they may hold the node, and it its descriptors
            self._later.close()
            self._flushing.close()
            self._closed_event.set()
            with self._lock:
                jobs, self._closed_jobs = self._closed_jobs, []
            for job in jobs:
                job.set(None)
            for handler in coroutines:
                handler.leave()
            for inbox in inboxes:
                inbox._leave()
        if not clean and before != "closed":
            log.warning(
                "node %d closed while a handler was still running; its thread is left", self.id
            )

    def wait(self) -> None:
        """Blocks until the node is closed, or SIGINT or SIGTERM arrives (on the main thread)."""
        self._wait(self._closed_event)

    def _wait(self, ended: threading.Event) -> None:
        """Until ``ended``, or until this node is closed."""
        self._check_process()
        if on_scheduler_thread():
            raise WouldBlock(
                "wait() inside a handler would hold it until the end; wait on another thread"
            )
        refuse_to_block("wait()", "wait_async()")
        if threading.current_thread() is not threading.main_thread():
            while not ended.wait(None if ended is self._closed_event else _LOOK):
                if self._closed_event.is_set():
                    return
            return
        arrived = threading.Event()

        def stop(number: int, frame: object) -> None:
            arrived.set()

        previous = {
            number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            while not (arrived.is_set() or ended.wait(_LOOK) or self._closed_event.is_set()):
                pass
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def wait_async(self) -> Future[None]:
        """Done when the node is closed. Signals are the event loop's to handle."""
        self._check_process()
        job: Job[None] = Job()
        self._tell_closed(job)
        return job

    def _tell_closed(self, job: Job[None]) -> None:
        with self._lock:
            self._closed_jobs.append(job)
        if self._closed_event.is_set():
            job.set(None)

    def __del__(self) -> None:
        # A node that never got through __init__ has no state.
        if getattr(self, "_state", "closed") == "running" and not self._forked:
            warnings.warn(
                f"{self!r} was never closed; use 'with node:'", ResourceWarning, stacklevel=2
            )
            self._close_now(0)

    def _check_process(self) -> None:
        # Before any lock: in a forked child it may be held by a thread that is not there.
        if self._forked:
            raise Closed(
                "this node belongs to the process that this one was forked from; make a node of "
                "your own after the fork, or use the 'spawn' start method",
                what="node",
            )

    def _check_not_closed(self) -> None:
        self._check_process()
        if self._state == "closed":
            raise Closed("this node is closed; make a new one", what="node")

    # --- identity ---------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """The node's number. One that was drawn may be drawn again until the first connection."""
        return self._id

    @property
    def address(self) -> str:
        """Where it listens, with the bound port; empty for a node that only dials."""
        # A forked child has no listener, and the core's lock may be held for ever there.
        return "" if self._forked else self._address

    def __repr__(self) -> str:
        return f"<Node {self.id} {self.address or 'without listener'} {self._state}>"

    # --- receiving --------------------------------------------------------------------------

    @overload
    def on(
        self,
        kind: type[M],
        handler: Callable[[int, M], Any],
        *,
        ordered: bool = ...,
        share: float | None = ...,
        capacity: int | None = ...,
        when_full: str = ...,
    ) -> Registration: ...
    @overload
    def on(
        self,
        kind: int,
        handler: Callable[[int, bytes], Any],
        *,
        batch: Literal[False] = ...,
        ordered: bool = ...,
        share: float | None = ...,
        capacity: int | None = ...,
        when_full: str = ...,
    ) -> Registration: ...
    @overload
    def on(
        self,
        kind: int,
        handler: Callable[[int, Batch], Any],
        *,
        batch: Literal[True],
        ordered: bool = ...,
        share: float | None = ...,
        capacity: int | None = ...,
        when_full: str = ...,
    ) -> Registration: ...
    @overload
    def on(
        self,
        kind: int | type[Message],
        handler: None = None,
        *,
        batch: bool = ...,
        ordered: bool = ...,
        share: float | None = ...,
        capacity: int | None = ...,
        when_full: str = ...,
    ) -> Callable[[Handler], Handler]: ...
    def on(
        self,
        kind: int | type[Message],
        handler: Callable[..., Any] | None = None,
        *,
        batch: bool = False,
        ordered: bool = True,
        share: float | None = None,
        capacity: int | None = None,
        when_full: str = "block",
    ) -> Any:
        """Registers a handler, before or after start; without ``handler`` it is a decorator.

        A Message class: ``handler(source, message)``. A number: ``handler(source, data)`` with
        bytes. With ``batch=True``: ``handler(source, batch)`` with a `Batch`. Handlers run on
        scheduler threads and may send; a handler that raises is logged and counted, and its
        message counts as handled. ``ordered``: one call at a time, in each sender's order;
        otherwise several threads take turns on one queue. ``capacity`` is how many messages may
        wait, here and on their way (4096; 65536 with ``batch``, as for an inbox: a batch handler
        takes a thousand in one call); ``when_full`` then makes senders wait (``block``) or loses
        messages here (``drop_oldest``, ``drop_newest``). ``share`` is the fraction of the
        schedule's period that this handler can count on; those without one divide the rest.

        Returns a `Registration` (as a decorator: the handler itself). Raises `ConfigError` for a
        kind that has a registration already. Never blocks.
        """
        if capacity is None:
            capacity = _BATCH_CAPACITY if batch else _CAPACITY
        if handler is None:
            return functools.partial(
                self._decorate,
                kind,
                batch=batch,
                ordered=ordered,
                share=share,
                capacity=capacity,
                when_full=when_full,
            )
        number, decode, capacity = self._resolve(kind, capacity, when_full)
        part = check_share(share)
        check_flag("batch", batch)
        check_flag("ordered", ordered)
        if not callable(handler):
            raise ConfigError(
                f"handler {handler!r} cannot be called; give a function of (source, message)",
                setting="handler",
            )
        if is_coroutine(handler):
            if part:
                raise ConfigError(
                    "share= is a part of the scheduler's time; an 'async def' handler runs on its "
                    "event loop instead",
                    setting="share",
                )
            return self._on_coroutine(number, handler, decode, batch, ordered, capacity, when_full)
        if batch and decode is not None:
            raise ConfigError(
                f"batch=True hands out bytes; register the kind's number, {number}, not the class",
                setting="batch",
            )
        tasks = 1 if ordered else max(2, cores())
        handle = self._on(number, handler, decode, _log_failure, batch, tasks, capacity, when_full)
        if handle is None:
            raise _taken(number)
        self._share(handle, part, f"kind {number}")
        return Registration(handle.close)

    def _share(self, handle: Shared, share: float, name: str) -> None:
        """Gives a new registration its share; without one to give, the registration ends."""
        if not share:
            return
        try:
            self._shares.give(handle, share, name)
        except ConfigError:
            handle.close()
            raise

    def _on_coroutine(
        self,
        kind: int,
        handler: Callable[..., Any],
        decode: Callable[[bytes], Any] | None,
        batch: bool,
        ordered: bool,
        capacity: int,
        when_full: str,
    ) -> Registration:
        if batch:
            raise ConfigError(
                "batch=True needs a plain function; an 'async def' handler gets single messages",
                setting="batch",
            )
        if self._state == "running" and (self._loop is None or self._loop.is_closed()):
            raise no_loop()
        core = self._feed(kind, decode, capacity, when_full)
        if core is None:
            raise _taken(kind)
        coroutines = CoroutineHandler(
            core, handler, ordered, functools.partial(_log_failure, kind), self._later
        )
        with self._lock:
            for known in self._coroutines:
                if known.closed:
                    counts = known.statistics()
                    self._forgotten["forgotten_dropped"] += counts["dropped"]
                    self._forgotten["forgotten_failed"] += counts["failed"]
            self._coroutines = [known for known in self._coroutines if not known.closed]
            self._coroutines.append(coroutines)
            running = self._state == "running"
        if running:
            loop = cast("asyncio.AbstractEventLoop", self._loop)
            if loop is asyncio._get_running_loop():
                coroutines.start(loop)
            else:
                loop.call_soon_threadsafe(coroutines.start, loop)
        return Registration(coroutines.close)

    def _decorate(self, kind: int | type[Message], handler: Handler, **options: Any) -> Handler:
        cast("Any", self).on(kind, handler, **options)
        return handler

    @overload
    def inbox(self, kind: int, capacity: int = ..., when_full: str = ...) -> Inbox[bytes]: ...
    @overload
    def inbox(self, kind: type[M], capacity: int = ..., when_full: str = ...) -> Inbox[M]: ...
    def inbox(
        self, kind: int | type[Message], capacity: int = _BATCH_CAPACITY, when_full: str = "block"
    ) -> Inbox[Any]:
        """An `Inbox` for a kind: the caller's own thread pulls its messages. Never blocks.

        ``capacity`` and ``when_full`` are as with `on`. Raises `ConfigError` for a kind that has a
        registration already.
        """
        number, decode, capacity = self._resolve(kind, capacity, when_full)
        core = self._inbox(number, decode, capacity, when_full)
        if core is None:
            raise _taken(number)
        inbox: Inbox[Any] = Inbox(core)
        with self._lock:
            self._forget_inboxes()
            self._inboxes.append(inbox)
        return inbox

    def _forget_inboxes(self) -> None:
        """Drops closed inboxes but for their counts. With the lock."""
        for inbox in self._inboxes:
            if inbox.closed:
                counts = inbox._core.statistics()
                self._forgotten["forgotten_dropped"] += counts["dropped"]
                self._forgotten["forgotten_failed"] += counts["failed"]
        self._inboxes = [inbox for inbox in self._inboxes if not inbox.closed]

    def _resolve(
        self, kind: int | type[Message], capacity: int, when_full: str
    ) -> tuple[int, Callable[[bytes], Message] | None, int]:
        """The kind, how to read it, and the capacity, all of them checked."""
        self._check_not_closed()
        capacity = _check_whole("capacity", capacity, 1, 2**24)
        if when_full not in _WHEN_FULL:
            raise ConfigError(
                f"when_full {when_full!r}: one of {', '.join(_WHEN_FULL)}",
                setting="when_full",
                value=when_full,
            )
        if isinstance(kind, type) and issubclass(kind, Message):
            return kind_of(kind), decoder_for(kind), capacity
        return check_kind(kind), None, capacity

    def on_connected(self, callback: PeerCallback) -> PeerCallback:
        """``callback(node_id, reason)`` when a peer is connected, on a scheduler thread.

        ``reason`` is ``dialled`` or ``accepted``. It may send. Also a decorator. Never blocks.
        """
        self._check_not_closed()
        self._callbacks[_CONNECTED].append(_plain(callback))
        return callback

    def on_disconnected(self, callback: PeerCallback) -> PeerCallback:
        """``callback(node_id, reason)`` when a connection is lost or closed by the other side.

        ``reason`` says why, and what was dropped with it. On a scheduler thread; it may send.
        Also a decorator. Never blocks.
        """
        self._check_not_closed()
        self._callbacks[_DISCONNECTED].append(_plain(callback))
        return callback

    # --- peers and sending --------------------------------------------------------------------

    def add_peer(self, id: int, address: str) -> None:
        """Says where a node is; replaces what was known. Connects with the first message."""
        self._check_not_closed()
        peer = _check_whole("peers", id, 1, 65535)
        parsed = parse_address(address, setting=f"address of peer {peer}")
        self._add_peer(peer, str(parsed))

    def remove_peer(self, id: int) -> None:
        """Forgets a node and closes its connection. Raises `UnknownPeer`."""
        self._check_not_closed()
        peer = _one_target(id)
        if not 1 <= peer <= 65535 or not self._remove_peer(peer):
            raise UnknownPeer(f"node {peer} is not known; there is nothing to remove", peer=peer)

    def _send_to_all(
        self, targets: Iterable[int], message: object, kind: int | None = None
    ) -> None:
        """`send` to several: tries all, then raises one error whose ``failed`` names each.

        Or to one whose id is no int, but says that it is a whole number.
        """
        one = whole_number(targets)
        if one is not None:
            return self.send(one, cast("Any", message), kind=cast("int", kind))
        if isinstance(targets, str | bytes) or not isinstance(targets, Iterable):
            raise _no_target(targets)
        failed: dict[int, AntiphonError] = {}
        for target in [_one_target(each) for each in targets]:
            try:
                if kind is None:
                    self.send(target, cast("Message", message))
                else:
                    self.send(target, cast("bytes", message), kind=kind)
            except AntiphonError as error:
                failed[target] = error
        if failed:
            raise together(failed)

    @overload
    def request(
        self, target: int, message: Message, *, reply: type[M], timeout: float | None = ...
    ) -> M: ...
    @overload
    def request(self, target: int, message: Message, *, timeout: float | None = ...) -> bytes: ...
    @overload
    def request(
        self,
        target: int,
        message: Buffer,
        *,
        kind: int,
        reply: type[M],
        timeout: float | None = ...,
    ) -> M: ...
    @overload
    def request(
        self, target: int, message: Buffer, *, kind: int, timeout: float | None = ...
    ) -> bytes: ...
    def request(
        self,
        target: int,
        message: Any,
        *,
        kind: int | None = None,
        reply: type[Message] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Sends a message and blocks until its handler's answer is here: bytes, or a ``reply``.

        The handler's return value answers: a Message, bytes, or None (``b""`` here). Raises
        `RequestTimeout` after ``timeout`` seconds (`NodeConfig.request_timeout`), `RemoteError`
        with the class and the text of what the handler raised, `UnknownKind` when nobody handles
        it, `PeerUnreachable` when the connection is lost. A request is made at most once: after a
        time-out or a loss the handler may have run. Works inside handlers; on a thread with a
        running event loop it raises `WouldBlock`.
        """
        number, data = self._encoded(message, kind, "request")
        if type(target) is not int:
            target = _one_target(target)
        convert = answer_converter(target, number, reply)
        refuse_to_block("request()", "request_async()")
        answered, answer = self._request(target, data, number, timeout)
        return answer if convert is None else convert(answered, answer)

    @overload
    def request_async(
        self, target: int, message: Message, *, reply: type[M], timeout: float | None = ...
    ) -> Future[M]: ...
    @overload
    def request_async(
        self, target: int, message: Message, *, timeout: float | None = ...
    ) -> Future[bytes]: ...
    @overload
    def request_async(
        self,
        target: int,
        message: Buffer,
        *,
        kind: int,
        reply: type[M],
        timeout: float | None = ...,
    ) -> Future[M]: ...
    @overload
    def request_async(
        self, target: int, message: Buffer, *, kind: int, timeout: float | None = ...
    ) -> Future[bytes]: ...
    def request_async(
        self,
        target: int,
        message: Any,
        *,
        kind: int | None = None,
        reply: type[Message] | None = None,
        timeout: float | None = None,
    ) -> Future[Any]:
        """`request` as a `Future`: await it, or ask for its ``result()`` later. Never blocks.

        The request goes out now. Cancelling the future, or the task that awaits it, gives the
        answer up; the handler may run all the same.
        """
        self._check_process()
        number, data = self._encoded(message, kind, "request_async")
        if type(target) is not int:
            target = _one_target(target)
        convert = answer_converter(target, number, reply)
        patience = None if timeout is None else check_timeout(timeout)
        seconds = self.config.request_timeout if patience is None else patience
        deadline = time.monotonic() + seconds
        core = self._prepare(target, number)
        answer: RequestFuture[Any] = RequestFuture(core, deadline, convert)
        if not self._later.busy(target) and core.send(data, False, 0.0):
            return answer
        data = bytes(data)  # as it is now
        core.keep(data, max(0.0, deadline - time.monotonic()))

        def ask() -> Any:
            core.send(data, True, max(0.0, deadline - time.monotonic()))
            return answer

        job = self._later.add(target, ask, number, value=answer, sender=core)
        job.limit(deadline, core.cancel, core.time_out)
        return job

    @overload
    def send_async(self, target: int | Iterable[int], message: Message) -> Future[None]: ...
    @overload
    def send_async(
        self, target: int | Iterable[int], message: Buffer, *, kind: int
    ) -> Future[None]: ...
    def send_async(
        self, target: int | Iterable[int], message: Any, *, kind: int | None = None
    ) -> Future[None]:
        """`send` as a `Future`, done when the message is on its way. Never blocks.

        What must wait for a connection or for credit waits in a queue of its peer, in order; with
        65,536 calls waiting it raises `QueueFull`. To several it goes to each as if alone, and one
        that fails holds up none of the others; the future is done when all are, and raises one
        error whose ``failed`` maps each id to its own.
        """
        self._check_process()
        number, data = self._encoded(message, kind, "send_async")
        if isinstance(target, str | bytes):
            raise _no_target(target)
        if not isinstance(target, Iterable):
            return self._send_soon(_one_target(target), data, number)
        parts: list[tuple[int, Future[None]]] = []
        for one in [_one_target(each) for each in target]:
            try:
                parts.append((one, self._send_soon(one, data, number)))
            except AntiphonError as error:
                parts.append((one, Job.of_error(error)))
        return Several(parts)

    def _send_soon(self, target: int, data: Any, number: int) -> Future[None]:
        if not self._later.busy(target):
            try:
                if self.try_send(target, data, kind=number):
                    return Job.of(None)
            except MessageTooLarge:
                if len(memoryview(data).cast("B")) > self.config.max_message_bytes:
                    raise
        data = bytes(data)  # as it is now
        work = functools.partial(self.send, target, data, kind=number)
        return self._later.add(target, work, number, sender=self._soon(target, data, number))

    def flush_async(self, timeout: float | None = 5.0) -> Future[None]:
        """`flush` as a `Future`. What `send_async` has not sent yet is not waited for."""
        return self._flush_later(functools.partial(self._flush, 0), timeout)

    def _flush_later(
        self, flush: Callable[[float | None], None], timeout: float | None
    ) -> Future[None]:
        self._check_process()
        self._check_flushable()
        patience = check_timeout(timeout)
        until = None if patience is None else time.monotonic() + patience  # it may be in a queue

        def work() -> None:
            flush(None if until is None else max(0.0, until - time.monotonic()))

        return self._flushing.add(-next(_flushes), work)

    def _encoded(self, message: Any, kind: int | None, call: str) -> tuple[int, Any]:
        if kind is None:
            if not isinstance(message, Message):
                raise ConfigError(
                    f"a raw message needs its kind: {call}(target, data, kind=...)", setting="kind"
                )
            return kind_of(message), encode(message)
        # The core refuses the others.
        if type(message) is not bytes and (message is None or isinstance(message, Message)):
            raise TypeError(
                f"a raw message is bytes or another buffer, not {type(message).__name__}; a "
                "Message goes without kind="
            )
        return check_kind(kind), message

    def flush(self, timeout: float | None = 5.0) -> None:
        """Blocks until everything sent before has been handled by the receivers.

        Messages that were dropped or whose handler failed count as handled. Raises `SendTimeout`
        after ``timeout`` seconds, `PeerUnreachable` when a connection is lost meanwhile, and
        `WouldBlock` inside a handler.
        """
        self._check_flush()
        self._flush(0, timeout)

    def _check_flush(self) -> None:
        """Whether `flush` may be called here and now."""
        if on_scheduler_thread():
            raise WouldBlock(
                "flush() inside a handler may wait for that handler; use another thread"
            )
        self._check_process()
        self._check_flushable()
        refuse_to_block("flush()", "flush_async()")

    def _check_flushable(self) -> None:
        if self._state == "closed":
            raise Closed("this node is closed; nothing is left to flush", what="node")
        if self._state == "new":
            raise Closed(
                "this node has not been started; use 'with node:' or node.start() first",
                what="node",
            )

    # --- looking ----------------------------------------------------------------------------

    def connections(self) -> list[ConnectionInfo]:
        """The peers that this node knows, connected or not."""
        self._check_process()
        return [connection_info(peer) for peer in self._peers()]

    def statistics(self) -> NodeStatistics:
        """Counters and depths of this moment: the node, its connections, its kinds."""
        self._check_process()
        with self._lock:
            inboxes = [inbox._core.statistics() for inbox in self._inboxes]
            inboxes += [handler.statistics() for handler in self._coroutines]
            gone = dict(self._forgotten)
        counters = self._counters()
        for name, value in gone.items():
            counters[name] += value
        return node_statistics(counters, self.connections(), self._handles() + inboxes)


def _one_target(target: object) -> int:
    number = whole_number(target)
    if number is None:
        raise _no_target(target)
    return number


def _no_target(target: object) -> TypeError:
    return TypeError(f"a target is the id of a node, a number from 1 to 65535, not {target!r}")


def _check_whole(setting: str, value: object, low: int, high: int) -> int:
    number = whole_number(value)
    if number is None or not low <= number <= high:
        raise ConfigError(
            f"{setting} {value!r}: give a whole number from {low} to {high}",
            setting=setting,
            value=value,
        )
    return number


def _plain(callback: PeerCallback) -> PeerCallback:
    given: object = callback
    if not callable(given) or is_coroutine(callback):
        raise ConfigError(
            f"callback {callback!r} is no plain function of (node_id, reason)",
            setting="callback",
            value=callback,
        )
    return callback


def _taken(kind: int) -> ConfigError:
    return ConfigError(
        f"kind {kind} has a handler or an inbox already; close that first",
        setting="kind",
        value=kind,
    )


def _log_failure(kind: int, source: int, error: BaseException) -> None:
    log.error("handler of kind %d failed on a message from node %d", kind, source, exc_info=error)


def _event_caller(node: weakref.ref[Node]) -> Callable[[int, int, str], None]:
    """Called by the core. Holds the node weakly: the core must not keep its own node alive."""

    def call(what: int, peer: int, reason: str) -> None:
        if what == _WARNING:
            log.warning("%s", reason)
            return
        target = node()
        if target is None:
            return
        for callback in tuple(target._callbacks[what]):
            try:
                callback(peer, reason)
            except Exception:
                log.exception("callback for node %d failed", peer)

    return call


_EXIT_DRAIN = 4.0
"""Seconds that all nodes together may take to drain when the interpreter ends."""

_running: weakref.WeakSet[Node] = weakref.WeakSet()


def _close_running() -> None:
    until = time.monotonic() + _EXIT_DRAIN
    for node in list(_running):
        node.close(drain=until - time.monotonic())


# Before `threading` joins its own threads: one of them may be blocked in receive(), and wakes only
# when its node is closed. The plain atexit runs after that join.
threading._register_atexit(_close_running)  # type: ignore[attr-defined]
