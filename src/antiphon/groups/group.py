"""A group over a node: the protocol's events come from here, its actions are carried out here.

Receives messages about membership from a `Port`, contacts from `Finding`, time from a timer of the
node; hands them to the stack, sends what comes out, and tells the core who the members are. What
happens once per message is the core's.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Self, TypeVar

import msgspec
from typing_extensions import Buffer

from antiphon._core import GroupCore
from antiphon.errors import AntiphonError, Closed, ConfigError, NotPrimary, PeerUnreachable
from antiphon.groups.checks import check_text, life_of
from antiphon.groups.config import GroupConfig, make_stack
from antiphon.groups.core import make_core
from antiphon.groups.datagrams import by_datagrams, layer_counts, with_encryption
from antiphon.groups.drawing import draw
from antiphon.groups.finding import find_by
from antiphon.groups.hanging import Hanging
from antiphon.groups.messages import Control, Find, Join, encode
from antiphon.groups.outbox import Outbox
from antiphon.groups.port import KIND, port_of
from antiphon.groups.protocol import (
    Busy,
    Contact,
    Contacts,
    Disconnected,
    Heard,
    HeldUp,
    Installed,
    JoinGroup,
    Layer,
    LeaveGroup,
    Left,
    Received,
    Reset,
    Send,
    Signal,
    Stack,
    Stuck,
)
from antiphon.groups.reachable import is_wildcard
from antiphon.groups.reading import Reading
from antiphon.groups.statistics import GroupStatistics, make_statistics
from antiphon.groups.view import Member, View
from antiphon.node import TLS, Future, Node, NodeConfig
from antiphon.node.config import Insecure, check_type
from antiphon.node.coroutines import is_coroutine
from antiphon.node.future import Job
from antiphon.node.life import Owner, begin, end
from antiphon.node.waits import check_timeout
from antiphon.topics.timer import make_timer

__all__ = ["Group"]

log = logging.getLogger("antiphon.groups")

MessageHandler = TypeVar("MessageHandler", bound=Callable[[Member, bytes], Any])
ViewHandler = TypeVar("ViewHandler", bound=Callable[[View], Any])

_TICK = 0.05
_FIRST_VIEW = 30.0
_numbers = itertools.count(2, 2)


class Group(Owner):
    """Processes that know of each other and send to all: membership, and order per sender.

    Whoever gives the same name and finds the others by ``discover`` is in one group: one way or a
    list of them; ``local://`` is this machine and user, with nothing to configure. ``stack`` is
    ``"tcp"``, ``"udp"``, ``"udp-flow"``, ``"udp-fc"``, or a list of layers. The group owns a node,
    or shares ``node``; ``secret`` and ``tls`` are of the node.
    ``with group:`` joins, returns with the first view, and leaves at the end.

    Every member gets what a member sends to all, the sender included, in the order in which it was
    sent. Handlers run on the node's scheduler threads, messages and views in one order, one call at
    a time. All methods are thread-safe.
    """

    _name = "group"

    def __init__(
        self,
        name: str,
        *,
        discover: str | Sequence[str] = "local://",
        stack: str | Sequence[Layer] = "tcp",
        node: Node | None = None,
        config: GroupConfig | None = None,
        secret: str | bytes | Insecure | None = None,
        tls: TLS | None = None,
        node_config: NodeConfig | None = None,
        member_name: str | None = None,
    ) -> None:
        check_text("name", name)
        if member_name is not None:
            check_text("member_name", member_name)
        check_type("node", node, Node)
        check_type("config", config, GroupConfig)
        super().__init__()
        self.name = name
        """The group's name: whoever gives the same is in it."""
        layers, self.config, self._stack_name = make_stack(stack, config)
        if node is not None:
            port_of(node).check(name)
        self._finding = find_by(discover, name, node, secret, tls, node_config)
        self.node = self._finding.node
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        try:
            layers = with_encryption(layers, self.node, isinstance(stack, str))
        except ConfigError:
            self._finding.close()
            raise
        self._stack = Stack(layers, random.SystemRandom())
        self._encryption: Any = self._stack.find("encryption")
        self._by_datagrams = by_datagrams(self._stack)
        self._carries = self._by_datagrams or self._stack.find("fifo") is not None
        self._to_one = not self._by_datagrams or self._stack.find("unicast") is not None
        self._wire_name = f"{name}\0udp" if self._by_datagrams else name
        self._member_name = member_name or f"{socket.gethostname()}-{os.getpid()}"
        self._port = port_of(self.node)
        self._core: GroupCore | None = None
        self._me: Member | None = None
        self._view: View | None = None
        self._first_view = threading.Event()
        self._left = threading.Event()
        self._view_handlers: list[Callable[[View], Any]] = []
        self._reading = Reading(self._pause)
        self._handler: Callable[[Member, bytes], Any] | None = None
        self._contacts: tuple[Contact, ...] = ()
        self._peers: dict[int, str] = {}
        self._outbox = Outbox(lambda node, data: self.node._tell(node, data, False, KIND))
        self._hanging = Hanging(name)
        self._number = next(_numbers)  # lives of members are odd, these are even
        self._timer = make_timer(self.node, _TICK, self._tick)

    # --- life -------------------------------------------------------------------------------

    def start(self) -> Self:
        """Joins, and blocks until the first view is there. ``with group:`` does it.

        On a thread with a running event loop it does not wait: use ``async with``. Raises
        `PeerUnreachable` when no view has come after 30 s, and `ConfigError` where the node is in
        this group already.
        """
        self._begin()
        if asyncio._get_running_loop() is None:
            self._await_view()
        return self

    async def __aenter__(self) -> Self:
        self._begin()
        await asyncio.to_thread(self._await_view)
        return self

    def _begin(self) -> None:
        self.node._check_process()
        with self._lock:
            if self._state == "running":
                return
            if self._state == "closed":
                raise Closed("this group was left; make a new one", what="group")
            self._port.add(self)
            self._state = "running"
        begin(self)
        try:
            self.node.start()
            self.node._settle_id()
            self._core = self._make_core()
            self._finding.start()
            me = self._describe()
            contacts = self._finding.poll(time.monotonic())
            with self._lock:
                now = time.monotonic()
                self._learn(contacts, now)
                self._carry_out(self._stack.down(JoinGroup(me), now))
            self._timer._start()
        except BaseException:
            self._close_now(0.0)
            raise

    def _make_core(self) -> GroupCore:
        core = make_core(self._stack, self.name, self.node, self.config.capacity, _log_failure)
        core.set_handler(self._handler or self._reading.put)
        return core

    def _describe(self) -> Member:
        core = self._running_core()
        return Member(
            id=self.node.id,
            name=self._member_name,
            address=self.node._advertised or self.node.address,
            life=random.SystemRandom().getrandbits(63) | 1,
            node_life=self.node._incarnation,
            flow=core.flow,
            charge=core.least_charge,
            acknowledgement_flow=core.acknowledgement_flow,
            acknowledgement_charge=core.acknowledgement_charge,
            datagrams=core.datagram_address,
            datagram_buffer=core.datagram_buffer,
        )

    def _await_view(self) -> None:
        until = time.monotonic() + _FIRST_VIEW
        while not self._first_view.wait(0.1):
            if self._state == "closed":
                raise Closed("this group was left before its first view", what="group")
            if time.monotonic() > until:
                self._close_now(0.0)
                raise PeerUnreachable(
                    f"group {self.name!r} has given no view in {_FIRST_VIEW:g} s; look whether its "
                    "members reach this process at the address of its node",
                    address=self.node.address,
                    reason="no view",
                )

    def _close_now(self, drain: float) -> None:
        with self._lock:
            before, self._state = self._state, "closed"
            self._changed.notify_all()
        if before == "closed":
            return
        end(self)
        core = self._core
        if self.node.closed:  # nothing moves any more: there is nothing to wait for
            drain = 0.0
        with contextlib.ExitStack() as stack:  # backwards; Ctrl-C ends the patience, not the rest
            if self._finding.owns_node:
                stack.callback(self.node._close_now, drain)
            stack.callback(self._reading.close)
            if core is not None:
                stack.callback(core.close, drain)
            stack.callback(self._finding.close)
            stack.callback(self._port.remove, self)
            stack.callback(self._timer.close)
            if core is None or before != "running":
                return
            # First the others get what was sent, then they are told; so nothing of it is lost.
            if drain > 0 and self._first_view.is_set():
                core.settle(drain)
            with self._lock:
                self._carry_out(self._stack.down(LeaveGroup(), time.monotonic()))
            if drain > 0:
                self._left.wait(drain)
                core.settle(min(drain, 1.0))  # own ones, for the handler

    def __repr__(self) -> str:
        view = self._view
        size = f"{len(view)} members" if view is not None else "no view"
        return f"<Group {self.name!r} on node {self.node.id}, {size}, {self._state}>"

    # --- what it is -------------------------------------------------------------------------

    @property
    def view(self) -> View:
        """The view that holds, where the handlers are. Raises `Closed` before the first one."""
        if self._view is None:
            raise Closed("this group has no view yet; use 'with group:'", what="group")
        return self._view

    @property
    def members(self) -> tuple[Member, ...]:
        """Those of the view, by seniority."""
        return self.view.members

    @property
    def me(self) -> Member:
        """This member. It is another one after it was put out and has joined again."""
        if self._me is None:
            raise Closed("this group was not joined yet; use 'with group:'", what="group")
        return self._me

    @property
    def stuck(self) -> tuple[Member, ...]:
        """Members that live, and whose handler or iteration has been at one message for longer than
        ``stuck_after``, as far as they have told."""
        with self._lock:
            return self._hanging.members

    @property
    def drawing(self) -> str:
        """The stack in text, the transport below, with the settings of each layer."""
        return draw(self._stack.layers)

    def statistics(self) -> GroupStatistics:
        """Counts and depths of this moment, and what the layers count."""
        self.node._check_process()  # the core's locks may be held for ever, in a forked child
        core = self._running_core()
        counts = core.statistics()
        moved = layer_counts(counts)
        with self._lock:
            layers = {
                layer.name: {**layer.statistics(), **moved.get(layer.name, {})}
                for layer in self._stack.layers
            }
            view = self._view
        return make_statistics(
            counts,
            len(view) if view is not None else 0,
            view.id if view is not None else 0,
            self._reading.unread,
            layers,
        )

    # --- receiving --------------------------------------------------------------------------

    def on_message(self, handler: MessageHandler) -> MessageHandler:
        """``handler(source, data)`` for every message, with a `Member` and bytes. Never blocks.

        Best before the group is joined, so that no message comes before. It runs on a scheduler
        thread, one call at a time with those of `on_view`, and may send; what it raises is logged
        and counted. Also a decorator. Without it, messages are read by iteration. Raises
        `ConfigError` for a second one, and for a coroutine: iterate with ``async for`` instead.
        """
        self._check_handler(handler)
        with self._lock:
            if self._handler is not None or self._reading.begun:
                raise ConfigError(
                    "this group's messages have a reader already: one handler, or an iteration",
                    setting="handler",
                )
            self._handler = handler
            if self._core is not None:
                self._core.set_handler(handler)
        return handler

    def on_view(self, handler: ViewHandler) -> ViewHandler:
        """``handler(view)`` for every view from now on, in one order with the messages.

        As `on_message`, but there may be several. Never blocks. Also a decorator.
        """
        self._check_handler(handler)
        self._view_handlers.append(handler)
        return handler

    def _check_handler(self, handler: object) -> None:
        self._check_open()
        if not callable(handler) or is_coroutine(handler):
            raise ConfigError(
                f"handler {handler!r} is no plain function; coroutines read with 'async for'",
                setting="handler",
            )

    def __iter__(self) -> Iterator[tuple[Member, bytes]]:
        """Messages, as ``(source, data)``, until the group is left."""
        self._iterate()
        return self._reading

    def __aiter__(self) -> Reading:
        self._iterate()
        return self._reading

    def _iterate(self) -> None:
        self.node._check_process()
        with self._lock:
            if self._handler is not None:
                raise ConfigError(
                    "this group's messages go to the handler of on_message", setting="handler"
                )
            self._reading.begun = True

    def _pause(self, paused: bool) -> None:
        if self._core is not None:
            self._core.pause(paused)

    # --- sending ----------------------------------------------------------------------------

    def send(self, data: Buffer, *, to: Member | None = None, timeout: float | None = None) -> None:
        """To all members, this one included; with ``to`` to that member alone.

        Returns once the message is in the window: from there it reaches every member that stays.
        Blocks while the window is full, for ``timeout`` seconds (None: the node's ``send_timeout``,
        inside a handler ``request_timeout``; 0: not at all); then `SendTimeout`, or `QueueFull`.
        Raises `PeerUnreachable` when ``to`` is not a member any more, `MessageTooLarge`,
        `NotPrimary` in a minority, and `Closed` when the group is left meanwhile.
        """
        if not self._may_send:
            self._refuse_to_send()
        if to is not None and not self._to_one:
            self._refuse_to_one()
        core = self._core
        assert core is not None
        patience = check_timeout(timeout)
        core.send(data, life_of(to), -1.0 if patience is None else patience)

    def send_async(self, data: Buffer, *, to: Member | None = None) -> Future[None]:
        """`send` as a `Future`, done when the message is in the window. Never blocks.

        What must wait for room waits in one queue, in order; with 65,536 calls waiting it raises
        `QueueFull`.
        """
        if not self._may_send:
            self._refuse_to_send()
        if to is not None and not self._to_one:
            self._refuse_to_one()
        core = self._core
        assert core is not None
        life = life_of(to)
        key = -(1 << 41) - (life or self._number)
        later = self.node._later
        if not later.busy(key) and core.try_send(data, life):
            return Job.of(None)
        kept = bytes(data)  # as it is now
        return later.add(
            key, partial(core.send, kept, life, -1.0), attempt=partial(core.try_send, kept, life)
        )

    def _refuse_to_one(self) -> None:
        raise ConfigError(
            "to=: the stack has no layer for messages to one member; add Unicast() to it",
            setting="to",
        )

    @property
    def _may_send(self) -> bool:
        view = self._view
        return (
            view is not None
            and view.primary
            and self._carries
            and self._state == "running"
            and self.node._state == "running"
        )

    def _refuse_to_send(self) -> None:
        self._check_open()
        if not self._carries:
            raise ConfigError(
                "the stack has no layer that carries messages, only membership; add Fifo() to it",
                setting="stack",
            )
        if self.node.closed:
            raise Closed("the node of this group is closed; nothing can be sent", what="node")
        view = self.view
        if not view.primary:
            raise NotPrimary(
                f"group {self.name!r} is partitioned, and this side, {len(view)} members, is not "
                "the larger one: it may not send until it has joined the other",
                group=self.name,
                members=len(view),
            )

    def _running_core(self) -> GroupCore:
        if self._core is None:
            raise Closed("this group was not joined yet; use 'with group:'", what="group")
        return self._core

    # --- the protocol -----------------------------------------------------------------------

    def _heard(self, source: int, message: Control) -> None:
        message = self._with_address(source, message)
        with self._lock:
            if self._core is not None:
                event = Received(source, message)
                self._carry_out(self._stack.up(event, time.monotonic()))

    def _with_address(self, source: int, message: Control) -> Control:
        """One that listens on all interfaces does not know its address; its connection does."""
        joining = message.member if isinstance(message, Join) else None
        if isinstance(message, Find):
            joining = message.joining
        if joining is None or not is_wildcard(joining.address):
            return message
        for peer in self.node.connections():
            if peer.id == source and peer.address and not is_wildcard(peer.address):
                known = msgspec.structs.replace(joining, address=peer.address)
                if isinstance(message, Join):
                    return Join(known, message.above)
                return Find(known)
        return message

    def _lost(self, node: int) -> None:
        with self._lock:
            if self._core is not None:
                self._carry_out(self._stack.up(Disconnected(node), time.monotonic()))

    def _tick(self) -> None:
        core = self._core
        if core is None or self._left.is_set():
            return
        heard, held_up = core.heard(), core.held_up()
        busy = max(core.busy(), self._reading.stalled)
        partition: Any = self._stack.find("partition")
        if partition is not None and self._by_datagrams:
            core.cut(list(partition.nodes))
        contacts = self._finding.poll(time.monotonic())  # which may look at files
        with self._lock:
            now = time.monotonic()
            self._learn(contacts, now)
            for life, age in heard.items():
                self._carry_out(self._stack.up(Heard(life, now - age), now))
            self._carry_out(self._stack.up(Busy(busy), now))
            for life, seconds in held_up.items():
                self._carry_out(self._stack.up(HeldUp(life, seconds), now))
            self._carry_out(self._stack.tick(now))
            self._outbox.flush(now)
        core.tick()

    def _learn(self, contacts: tuple[Contact, ...], now: float) -> None:
        if contacts != self._contacts:
            self._contacts = contacts
            self._carry_out(self._stack.up(Contacts(contacts), now))

    def _carry_out(self, actions: list[Signal]) -> None:
        """With the lock."""
        for action in actions:
            if isinstance(action, Send):
                self._send(action)
            elif isinstance(action, Installed):
                self._install(action)
            elif isinstance(action, Reset):
                # The first time, or after it was put out: nothing of the old life goes on.
                core = self._running_core()
                core.leave()
                core.expect(action.me.life)
            elif isinstance(action, Stuck):
                self._hanging.note(action)
            elif isinstance(action, Left):
                self._left.set()

    def _install(self, action: Installed) -> None:
        members = action.record.members
        self._hanging.keep(action.record.by_life().keys())
        for member in members:
            self._know(member.id, member.address)
        self._running_core().install(
            action.me.life,
            [
                (
                    one.life,
                    one.id,
                    one.node_life,
                    one.flow,
                    one.charge,
                    one.acknowledgement_flow,
                    one.acknowledgement_charge,
                    one,
                    one.datagrams,
                    one.datagram_buffer,
                )
                for one in members
            ],
            self._encryption.current.key if self._encryption is not None else b"",
            action.view.primary,
            partial(self._show, action.view, action.me),
        )

    def _show(self, view: View, me: Member) -> None:
        """Where the view stands among the messages; on a scheduler thread."""
        self._view, self._me = view, me
        log.info("group %s, %s", self.name, view)
        self._first_view.set()
        for handler in tuple(self._view_handlers):
            try:
                handler(view)
            except Exception as error:
                _log_failure(error)

    # --- messages about membership ----------------------------------------------------------

    def _know(self, node: int, address: str) -> None:
        if is_wildcard(address):
            return  # it is known from its connection, or from whoever found it
        if node != self.node.id and address and self._peers.get(node) != address:
            with contextlib.suppress(AntiphonError):
                self.node.add_peer(node, address)
                self._peers[node] = address

    def _send(self, action: Send) -> None:
        if action.node == self.node.id:
            return
        self._know(action.node, action.address)
        self._outbox.put(action.node, encode(self._wire_name, action.message), time.monotonic())


def _log_failure(error: BaseException) -> None:
    log.error("a handler of a group failed", exc_info=error)
