"""From ``discover=`` to nodes at which members may be.

Several ways may be given at once. All are polled by the group's own timer: none has a thread;
what may hang is done by the threads of the node that make calls which wait.

- ``local://``, ``local://name``: this machine and user, through a directory (`LocalFinder`)
- ``mcast://239.77.0.1:7777``: datagrams to a multicast group (`MulticastFinder`)
- ``tcp://host:port``, ``unix:///path``: addresses at which a node may listen
- ``dns://name:port``: all addresses of that name, looked up again from time to time
- ``file:///directory``: a directory that all members can write to, also over a network

Receives the group's node; hands it `Contact` objects.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

from antiphon.errors import AntiphonError, ConfigError
from antiphon.groups.protocol import Contact
from antiphon.groups.reachable import reachable_address
from antiphon.node import TLS, Node, NodeConfig
from antiphon.node.address import parse_address
from antiphon.node.config import Insecure
from antiphon.topics.channels import Channel, open_channel
from antiphon.topics.config import BusConfig
from antiphon.topics.finder import Member as Present
from antiphon.topics.finder import ThreadedFinder

__all__ = ["Finding", "find_by"]

log = logging.getLogger("antiphon.groups")

_WANTED = (
    "local://, local://name, mcast://239.77.0.1:7777, tcp://host:port, unix:///path, "
    "dns://name:port or file:///directory"
)
_ASK_AGAIN = 1.0
_IDENTIFY = 2.0
_LOOK_UP = 10.0
_FILE_AGE = 30.0
_WRITE_EVERY = 5.0
_LONG, _SHORT = 32, 20


class _Way(Protocol):
    def start(self, node: Node) -> None: ...
    def poll(self, now: float) -> Iterable[Contact]: ...
    def close(self) -> None: ...


class _Channelled:
    """Through a finder of topics. On a ``network`` others dial what the node advertises."""

    def __init__(self, channel: Channel, network: bool) -> None:
        self.channel = channel
        self._network = network
        finder = channel.finder
        assert isinstance(finder, ThreadedFinder)
        self._finder = finder

    def start(self, node: Node) -> None:
        address = self.channel.address(node)
        if self._network and node._advertised is not None:
            address = node._advertised
        me = Present(node.id, node._incarnation, address, 0)
        self._finder.start_polled(me, lambda present, gone: None)
        self._finder.poll()

    def poll(self, now: float) -> Iterable[Contact]:
        self._finder.poll()
        return [Contact(one.id, one.address) for one in self._finder.members()]

    def close(self) -> None:
        self._finder.close()


class _Addresses:
    """Nodes that may listen at addresses; who they are is asked there."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self.addresses = dict.fromkeys(addresses, 0.0)
        self._known: dict[str, Contact] = {}
        self._node: Node | None = None

    def start(self, node: Node) -> None:
        self._node = node

    def poll(self, now: float) -> Iterable[Contact]:
        node = self._node
        assert node is not None
        for address, due in self.addresses.items():
            if now < due or address == node.address:
                continue
            known = self._known.get(address)
            if known is not None and node._is_connected(known.node):
                continue
            self.addresses[address] = now + _ASK_AGAIN
            # One at a time on a node, by a thread that may wait.
            with contextlib.suppress(AntiphonError):
                if not node._later.busy(_IDENTIFYING):
                    node._later.add(_IDENTIFYING, self._ask(node, address))
                else:
                    self.addresses[address] = now
        return list(self._known.values())

    def _ask(self, node: Node, address: str) -> Callable[[], None]:
        def ask() -> None:
            try:
                found, _ = node._identify(address, _IDENTIFY)
            except AntiphonError as error:
                log.debug("nobody of the group at %s: %s", address, error)
                self._known.pop(address, None)
                return
            if found != node.id:
                self._known[address] = Contact(found, address)

        return ask

    def close(self) -> None:
        self._known.clear()


class _Aside:
    """Work that may hang, with a name server or a file server: on a thread, once at a time."""

    def __init__(self, key: int, work: Callable[[], None]) -> None:
        self._key, self._work = key, work
        self._under_way = False

    def begin(self, node: Node) -> None:
        """Unless the last time has not ended yet."""
        if self._under_way:
            return
        self._under_way = True
        try:
            node._later.add(self._key, self._run)
        except AntiphonError:
            self._under_way = False

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._under_way = False


class _Names(_Addresses):
    """All addresses of a name."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__([])
        self._host, self._port = host, port
        self._next = 0.0
        self._looking_up = _Aside(_LOOKING_UP, self._look_up)
        self._found: frozenset[str] | None = None

    def poll(self, now: float) -> Iterable[Contact]:
        node = self._node
        assert node is not None
        if now >= self._next:
            self._next = now + _LOOK_UP
            self._looking_up.begin(node)
        found, self._found = self._found, None
        if found is not None:
            self._keep(found, node)
        return super().poll(now)

    def _keep(self, found: frozenset[str], node: Node) -> None:
        """What the name does not mean any more is forgotten, once nobody is connected there."""
        for address in self.addresses.keys() - found:
            known = self._known.get(address)
            if known is None or not node._is_connected(known.node):
                del self.addresses[address]
                self._known.pop(address, None)
        for address in found:
            self.addresses.setdefault(address, 0.0)

    def _look_up(self) -> None:
        try:
            answers = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError as error:
            log.warning("dns://%s: %s", self._host, error)
            return
        hosts = {
            f"[{where[0]}]" if family == socket.AF_INET6 else where[0]
            for family, _, _, _, where in answers
        }
        self._found = frozenset(f"tcp://{host}:{self._port}" for host in hosts)


class _Directory:
    """A directory that several machines may share: a file for each member, with its age."""

    def __init__(self, path: Path, group: str) -> None:
        self._folder = path / re.sub(r"[^A-Za-z0-9._-]", "_", group)
        self._own: Path | None = None
        self._next_write = self._next_read = 0.0
        self._found: list[Contact] = []
        self._node: Node | None = None
        self._looking = _Aside(_LOOKING_IN, self._look)
        self._writing = threading.Lock()  # nothing is written after it was closed
        self._closed = False

    def start(self, node: Node) -> None:
        self._node = node
        self._own = self._folder / f"{node.id}-{node._incarnation:x}.member"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._write(time.monotonic())
        except OSError as error:
            raise ConfigError(
                f"discover: {self._folder} cannot be made or written to ({error.strerror}); give a "
                "directory that all members can write to",
                setting="discover",
                value=str(self._folder),
            ) from error
        self._look()

    def poll(self, now: float) -> Iterable[Contact]:
        assert self._node is not None
        if now >= self._next_read:
            self._next_read = now + _ASK_AGAIN
            self._looking.begin(self._node)
        return self._found

    def _look(self) -> None:
        try:
            self._write(time.monotonic())
            self._found = list(self._read())
        except OSError as error:
            log.warning("members cannot be looked for: %s", error)

    def _write(self, now: float) -> None:
        node = self._node
        assert self._own is not None
        assert node is not None
        with self._writing:
            if self._closed or now < self._next_write:
                return
            self._next_write = now + _WRITE_EVERY
            unfinished = self._own.with_suffix(".new")
            unfinished.write_text(json.dumps({"id": node.id, "address": reachable_address(node)}))
            unfinished.replace(self._own)

    def _read(self) -> Iterable[Contact]:
        for path in self._folder.glob("*.member"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                if path == self._own:
                    continue
                # By the file server's clock, which is that of our own file too.
                age = self._own.stat().st_mtime - path.stat().st_mtime if self._own else 0.0
                if age > _FILE_AGE:
                    path.unlink()
                    continue
                facts = json.loads(path.read_text())
                yield Contact(int(facts["id"]), str(facts["address"]))

    def close(self) -> None:
        with self._writing:
            self._closed = True
            if self._own is not None:
                with contextlib.suppress(OSError):
                    self._own.unlink()


class Finding:
    """All ways together."""

    def __init__(self, ways: list[_Way], node: Node, owns_node: bool) -> None:
        self._ways = ways
        self.node = node
        self.owns_node = owns_node

    def start(self) -> None:
        """Shows this node to others."""
        for way in self._ways:
            way.start(self.node)

    def poll(self, now: float) -> tuple[Contact, ...]:
        """Who may be there, without this node. A way that fails says so, and finds nobody."""
        found: dict[int, Contact] = {}
        for way in self._ways:
            try:
                for contact in way.poll(now):
                    if contact.node != self.node.id:
                        found.setdefault(contact.node, contact)
            except OSError as error:
                log.warning("members cannot be looked for: %s", error)
        return tuple(found.values())

    def close(self) -> None:
        """Takes leave."""
        for way in self._ways:
            way.close()


def find_by(
    discover: object,
    group: str,
    node: Node | None,
    secret: str | bytes | Insecure | None,
    tls: TLS | None,
    node_config: NodeConfig | None,
) -> Finding:
    """What ``discover=`` asks for, and the node that goes with it. Raises `ConfigError`."""
    texts = [discover] if isinstance(discover, str) else discover
    if not isinstance(texts, list | tuple) or not all(isinstance(one, str) for one in texts):
        raise _bad(discover)
    if node is not None and not (secret is None and tls is None and node_config is None):
        raise ConfigError(
            "secret=, tls= and node_config= belong to the node that is shared; give them there",
            setting="node",
        )
    ways: list[_Way] = []
    addresses: list[str] = []
    own: Node | None = None
    try:
        # The first channel makes the node, and is checked for a secret. A node that is found from
        # other machines is found on this one too, but not the reverse.
        for text in sorted(texts, key=_narrow):
            scheme, mark, _ = text.partition("://")
            if not mark:
                raise _bad(text)
            if scheme in ("local", "mcast"):
                name = _own_channel(text, group) if scheme == "local" else text
                if own is None:
                    channel = open_channel(name, BusConfig.load(), node, secret, tls, node_config)
                else:
                    channel = open_channel(name, BusConfig.load(), own, None, None, None)
                ways.append(_Channelled(channel, scheme == "mcast"))
                if node is None and own is None:
                    own = channel.make_node()
            elif scheme in ("tcp", "unix", "inproc"):
                addresses.append(str(parse_address(text, setting="discover")))
            elif scheme == "dns":
                ways.append(_names(text))
            elif scheme == "file":
                path = urlsplit(text).path
                if not path.startswith(os.sep):
                    raise _bad(text)
                ways.append(_Directory(Path(path), group))
            else:
                raise _bad(text)
        if addresses:
            ways.append(_Addresses(addresses))
        if node is not None:
            return Finding(ways, node, owns_node=False)
        if own is None:
            # A directory may be of a network. Who can be told from strangers listens to all of it.
            known = secret is not None or tls is not None
            shared = any(isinstance(way, _Directory) for way in ways)
            listen = "tcp://0.0.0.0:0" if known and shared else "tcp://127.0.0.1:0"
            own = Node(listen=listen, secret=secret, tls=tls, config=node_config)
        return Finding(ways, own, owns_node=True)
    except BaseException:
        for way in ways:
            way.close()
        if own is not None:
            own.close()
        raise


def _narrow(text: str) -> int:
    """By whom a channel is heard: other machines on all networks or on one, or this one alone."""
    if not text.startswith("mcast://"):
        return 3
    try:
        interface = dict(parse_qsl(urlsplit(text).query)).get("interface", "")
        return 2 if ipaddress.IPv4Address(interface).is_loopback else 1
    except ValueError:  # none, a name, or something that the channel refuses
        return 0


def _own_channel(text: str, group: str) -> str:
    """Every group has a directory of its own: one node may be in several of them."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", group)
    if safe != group or len(safe) > _LONG:
        safe = f"{safe[:_SHORT]}-{hashlib.sha256(group.encode()).hexdigest()[:8]}"
    return f"local://{text.removeprefix('local://') or 'group'}-{safe}"


def _names(text: str) -> _Names:
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        port = None
    if not parts.hostname or port is None:
        raise _bad(text)
    return _Names(parts.hostname, port)


def _bad(value: object) -> ConfigError:
    return ConfigError(
        f"discover {value!r}: give {_WANTED}, or a list of them", setting="discover", value=value
    )


_IDENTIFYING, _LOOKING_UP, _LOOKING_IN = (-(1 << 40) - number for number in range(3))
