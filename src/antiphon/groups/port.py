"""Where the groups of one node hear each other: one registration for all of them.

Receives what other nodes say about membership; hands it to the group that it names.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING, Final

import msgspec

from antiphon._core import Handle
from antiphon.errors import ConfigError
from antiphon.groups.messages import decode
from antiphon.node import Node
from antiphon.process_lock import ProcessLock

if TYPE_CHECKING:
    from antiphon.groups.group import Group

__all__ = ["KIND", "Port", "port_of"]

log = logging.getLogger("antiphon.groups")

KIND: Final = 38
_CAPACITY = 4096


class Port:
    """The groups of a node, by name."""

    def __init__(self, node: Node) -> None:
        self._lock = threading.Lock()
        self._groups: dict[str, Group] = {}
        self._by_wire: dict[str, Group] = {}
        self._warned: set[tuple[str, int]] = set()
        handle = node._on(KIND, self._heard, None, _log_failure, False, 1, _CAPACITY, "block")
        assert handle is not None, "only a port registers this kind"
        self._handle: Handle = handle
        node.on_disconnected(self._lost)

    def check(self, name: str) -> None:
        """Raises `ConfigError` where the node has that group already."""
        if name in self._groups:
            raise ConfigError(
                f"this node is in group {name!r} already; share that Group, or give the other "
                "one a node of its own",
                setting="name",
                value=name,
            )

    def add(self, group: Group) -> None:
        """It hears from now on. Raises as `check`."""
        with self._lock:
            self.check(group.name)
            self._groups[group.name] = group
            self._by_wire[group._wire_name] = group

    def remove(self, group: Group) -> None:
        """It hears nothing any more."""
        with self._lock:
            if self._groups.get(group.name) is group:
                del self._groups[group.name]
                del self._by_wire[group._wire_name]

    def _heard(self, source: int, data: bytes) -> None:
        try:
            name, message = decode(data)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            log.warning("node %d said something about a group that is nothing: %s", source, error)
            return
        group = self._by_wire.get(name)
        if group is not None:
            group._heard(source, message)
        elif (plain := name.partition("\0")[0]) in self._groups:
            self._warn(plain, source)

    def _warn(self, name: str, source: int) -> None:
        """Those who would never hear each other are two groups; nobody should have to guess it."""
        if len(self._warned) < _CAPACITY and (name, source) not in self._warned:
            self._warned.add((name, source))
            log.warning(
                "node %d is in group %r with another transport: over TCP and over UDP are two "
                "groups; give all members the same stack",
                source,
                name,
            )

    def _lost(self, node: int, reason: str) -> None:
        for group in list(self._groups.values()):
            group._lost(node)


_ports: weakref.WeakKeyDictionary[Node, Port] = weakref.WeakKeyDictionary()
_ports_lock = ProcessLock()


def port_of(node: Node) -> Port:
    """The one of that node, which is made for the first group."""
    with _ports_lock:
        port = _ports.get(node)
        if port is None:
            port = _ports[node] = Port(node)
        return port


def _log_failure(kind: int, source: int, error: BaseException) -> None:
    log.error("a group failed on what node %d said", source, exc_info=error)
