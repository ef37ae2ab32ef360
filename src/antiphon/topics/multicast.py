"""``mcast://239.77.0.1:7777``: the nodes of a network, found by datagrams to a group.

Everyone sends a small datagram to a multicast group, or to a broadcast address, once per
``interval``, and at once when its version changes or a new member is heard. What was heard holds
for as long as its sender said (``expiry``); a farewell ends it early. Datagrams may be lost,
doubled or reordered: each says everything, and a number that grows tells old from new.

The datagram, little-endian::

     0  4  magic "ANTI"
     4  1  version of this layout: 1
     5  1  kind: 1 here, 2 farewell; plus 128 when a proof follows
     6  2  node id
     8  8  incarnation
    16  8  version of what the node publishes and subscribes
    24  8  sequence: grows with every datagram of an incarnation
    32  4  expiry in milliseconds
    36  2  length of the address, then the address in UTF-8
     …  16  proof: HMAC-SHA256 of the group, the port and all of the above, cut to 16 bytes

With a secret only datagrams with a good proof are heeded. What that prevents: inventing or
changing members, sending anyone's farewell, and repeating on one channel what was recorded on
another. A repeated datagram of a member that is known, or that died or left while we listened, is
told by its sequence and ignored. What it does not prevent: whoever has recorded a member that died
before *we* began to listen can play the recording to us once, in order; we then believe in that
member for as long as the recording is, plus one ``expiry``. Clocks could narrow that, but would
make the channel depend on their agreement; and no more comes of it than a failed dial, since nodes
prove the secret again when they connect. Nothing is hidden: who can listen reads the addresses. One
secret is everybody's: a member can pose as another. Without a secret nothing is signed, and anyone
on the network may say anything.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import ipaddress
import logging
import math
import random
import socket
import struct
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import cast

from antiphon.errors import ConfigError
from antiphon.node.config import Insecure, check_secret
from antiphon.topics.finder import (
    MAX_ADDRESS_BYTES,
    Member,
    ThreadedFinder,
    acceptable_address,
    check_seconds,
    check_whole,
    refuse,
)

__all__ = ["MulticastFinder"]

log = logging.getLogger("antiphon.topics")

_MAGIC = b"ANTI"
_LAYOUT = 1
_HERE, _FAREWELL = 1, 2
_SIGNED = 128
_HEAD = struct.Struct("<4sBBHQQQIH")
_PROOF_BYTES = 16
_MOST_BYTES = _HEAD.size + MAX_ADDRESS_BYTES + _PROOF_BYTES

_GAP = 0.05
_PER_TURN = 256
_MOST_PAST = 4096
_NEVER_AGAIN = 2**64
_RECEIVE_BYTES = 2**20

# Not in Python's socket module: only groups that this socket has joined, on the interface it named.
_IP_MULTICAST_ALL, _IPV6_MULTICAST_ALL = 49, 29
_SIOCGIFADDR = 0x8915


@dataclass(slots=True)
class _Heard:
    """The state of one member: what it said last, in which datagram, and how long that holds."""

    member: Member
    sequence: int
    until: float


@dataclass(frozen=True, slots=True)
class _Announcement:
    """What a datagram says."""

    member: Member
    sequence: int
    expiry: float
    farewell: bool


class _Codec:
    """Announcements to datagrams and back; no sockets."""

    def __init__(self, secret: bytes | None, channel: bytes) -> None:
        self._secret = secret
        self._channel = channel

    def encode(self, said: _Announcement) -> bytes:
        member = said.member
        address = member.address.encode()
        kind = _FAREWELL if said.farewell else _HERE
        data = _HEAD.pack(
            _MAGIC,
            _LAYOUT,
            kind if self._secret is None else kind | _SIGNED,
            member.id,
            member.incarnation,
            member.version,
            said.sequence,
            math.ceil(said.expiry * 1000),
            len(address),
        )
        data += address
        return data if self._secret is None else data + self._proof(data)

    def decode(self, data: bytes) -> _Announcement:
        """Raises ValueError, with the reason why the datagram is not to be believed."""
        if not _HEAD.size <= len(data) <= _MOST_BYTES:
            raise ValueError("its length is wrong")
        magic, layout, kind, *numbers, size = _HEAD.unpack_from(data)
        if magic != _MAGIC or layout != _LAYOUT:
            raise ValueError("it is no announcement, or of another version")
        signed = bool(kind & _SIGNED)
        end = _HEAD.size + size
        if len(data) != end + (_PROOF_BYTES if signed else 0):
            raise ValueError("its length is wrong")
        if signed and self._secret is None:
            raise ValueError("it is signed with a secret, and this node was given none")
        if self._secret is not None:
            if not signed:
                raise ValueError("it is not signed, and this node was given a secret")
            if not hmac.compare_digest(self._proof(data[:end]), data[end:]):
                raise ValueError("it is signed with another secret, or for another channel")
        node, incarnation, version, sequence, expiry = numbers
        kind &= ~_SIGNED
        # What is not UTF-8 becomes surrogates, which no acceptable address has.
        address = data[_HEAD.size : end].decode("utf-8", "surrogateescape")
        if kind not in (_HERE, _FAREWELL) or not node or not acceptable_address(address):
            raise ValueError("it describes no node")
        member = Member(node, incarnation, address, version)
        # An hour at most, as for our own setting.
        return _Announcement(member, sequence, min(expiry / 1000, 3600.0), kind == _FAREWELL)

    def _proof(self, data: bytes) -> bytes:
        assert self._secret is not None
        return hmac.digest(self._secret, self._channel + data, "sha256")[:_PROOF_BYTES]


class MulticastFinder(ThreadedFinder):
    """Finds the nodes that send to the same group and port, with the same secret.

    ``address`` is a multicast group, IPv4 or IPv6 (``ff15::77``, or with its interface
    ``ff12::77%eth0``), or an IPv4 broadcast address of a network of this machine. ``interface`` is
    the name of one, or for IPv4 its address; without it the routing table decides, which on a
    machine with several networks may not be what you want. ``ttl`` is how many routers a multicast
    may pass, plus one. Several finders may share a machine.

    A member that ends without a farewell is gone after ``expiry`` seconds of silence, as told by
    its own finder: at least twice the ``interval``. Raises `ConfigError` when made with settings
    that cannot be, and from `start` when the group cannot be joined.
    """

    def __init__(
        self,
        address: str,
        port: int,
        interface: str | None = None,
        ttl: int = 1,
        secret: str | bytes | Insecure | None = None,
        interval: float = 1.0,
        expiry: float = 5.0,
    ) -> None:
        super().__init__(check_seconds("interval", interval), min(_GAP, interval / 4))
        self._group = _check_group(address)
        self._port = check_whole("port", port, 1, 65535)
        self._interface = _check_interface(interface, self._group)
        self._ttl = check_whole("ttl", ttl, 0, 255)
        channel = b"antiphon finder\0" + self._group.packed + self._port.to_bytes(2, "little")
        self._codec = _Codec(check_secret(secret), channel)
        self._expiry = check_seconds("expiry", expiry)
        if self._expiry < 2 * self._interval:
            raise refuse("expiry", expiry, f"at least twice the interval, {2 * self._interval:g}")
        self.refused = 0
        """Datagrams that were ignored: no announcement, too long, or without a good proof."""
        self.repeated = 0
        """Announcements that were ignored because a newer one of their sender had come before."""
        self._destination: tuple[str | int, ...] = ()
        self._sequence = 0
        self._heard: dict[int, _Heard] = {}
        # Incarnations that were replaced, fell silent or left, and the last that they said. Bounded
        # by forgetting the oldest.
        self._past: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._rival: _Heard | None = None
        self._rival_is_news = False
        self._complained: set[str] = set()
        self._planned = math.inf  # when the next turn was to begin
        self._send_fails = False

    @property
    def conflict(self) -> Member | None:
        """Another living node that has our id, as it was last heard; None when there is none.

        It sees us in the same way. When one is found, the callback of `start` is called with two
        empty lists, so that the bus may look here, and draw another id.
        """
        rival = self._rival
        return rival.member if rival is not None and time.monotonic() < rival.until else None

    # --- telling ----------------------------------------------------------------------------

    def _open(self, me: Member) -> None:
        try:
            self._keep("socket", self._make_socket)
        except OSError as error:
            where = f" on {self._interface}" if self._interface else ""
            raise ConfigError(
                f"the group {self._group} port {self._port} cannot be used{where}: "
                f"{error.strerror or error}; name an interface that is up, such as "
                "interface='eth0', or 'lo' for this machine alone",
                setting="interface",
                value=self._interface,
            ) from error

    def _tell(self, me: Member) -> float:
        self._send(me)
        return time.monotonic() + self._interval * random.uniform(0.9, 1.0)

    def _leave(self) -> None:
        if self._me is not None and "socket" in self._handles:
            for _ in range(2):  # one may be lost, and there is no third chance
                self._send(self._me, farewell=True)

    def _send(self, me: Member, farewell: bool = False) -> None:
        self._sequence += 1
        said = _Announcement(me, self._sequence, self._expiry, farewell)
        data = self._codec.encode(said)
        try:
            self._socket.sendto(data, self._destination)
            self._send_fails = False
        except BlockingIOError:
            pass  # the next one says the same
        except OSError as error:
            if not self._send_fails:
                log.warning("node %d cannot announce itself, and goes on trying: %s", me.id, error)
            self._send_fails = True

    # --- hearing ----------------------------------------------------------------------------

    def _turn(self, now: float) -> float:
        # Who was stopped himself, or busy in a callback, has no right to call others silent.
        late = now - self._planned
        if late > self._interval:
            for heard in self._heard.values():
                heard.until += late
        drained = False
        for _ in range(_PER_TURN):
            try:
                data, sender = self._socket.recvfrom(_MOST_BYTES + 1)
            except BlockingIOError:
                drained = True
                break
            except OSError as error:  # that the network has reported; receiving takes it away
                self._complain("receive", f"a datagram could not be received: {error}")
                continue
            self._receive(data, now, sender[0])
        if drained:
            self._expire(now)
        self._settle({heard.member.id: heard.member for heard in self._heard.values()})
        if self._rival_is_news:
            self._rival_is_news = False
            self._call([], [])
        until = now
        if drained:
            ends = (heard.until for heard in self._heard.values())
            until = min([now + self._interval, *ends])
        self._planned = until
        return until

    def _receive(self, data: bytes, now: float, host: str) -> None:
        try:
            said = self._codec.decode(data)
        except ValueError as error:
            self.refused += 1
            why = str(error)
            self._complain(why, f"a datagram to {self._group} port {self._port} is ignored: {why}")
        else:
            self._hear(replace(said, member=_located(said.member, host)), now)

    def _hear(self, said: _Announcement, now: float) -> None:
        member, me = said.member, cast("Member", self._me)
        if member.id == me.id:
            if member.incarnation != me.incarnation:
                self._hear_rival(said, now)
            return
        key = (member.id, member.incarnation)
        current = self._heard.get(member.id)
        if current is not None and current.member.incarnation == member.incarnation:
            if said.sequence <= current.sequence:
                self.repeated += 1
            elif said.farewell:
                del self._heard[member.id]
                self._remember(key, _NEVER_AGAIN)
            else:
                self._heard[member.id] = _Heard(member, said.sequence, now + said.expiry)
            return
        last = self._past.get(key)
        if last is not None and said.sequence <= last:
            self.repeated += 1
        elif said.farewell:
            self._remember(key, _NEVER_AGAIN)
        elif current is not None and last is not None:
            # Replaced, and yet it speaks: two live. The one that is known stays, or they would
            # take turns.
            self._remember(key, said.sequence)
            self._complain(
                f"id {member.id}",
                f"two nodes have the id {member.id}: those at {current.member.address} and "
                f"{member.address}; give them different ids, or none",
            )
        else:
            if current is not None:
                # Most likely the node was restarted, and its old self is dead and not yet expired.
                self._remember((member.id, current.member.incarnation), current.sequence)
            self._past.pop(key, None)
            self._heard[member.id] = _Heard(member, said.sequence, now + said.expiry)
            self._welcome()

    def _hear_rival(self, said: _Announcement, now: float) -> None:
        """Somebody else uses our id."""
        member = said.member
        key = (member.id, member.incarnation)
        if said.sequence <= self._past.get(key, -1):
            self.repeated += 1
            return
        self._remember(key, _NEVER_AGAIN if said.farewell else said.sequence)
        known = self.conflict
        same = known is not None and known.incarnation == member.incarnation
        if said.farewell:
            if same:
                self._rival = None
            return
        self._rival = _Heard(member, said.sequence, now + said.expiry)
        if not same:
            self._rival_is_news = True
            self._welcome()
            self._complain(
                "conflict",
                f"two nodes have the id {member.id}: this one, and the one at {member.address}; "
                "give them different ids, or none",
            )

    def _welcome(self) -> None:
        """A newcomer hears of us soon, and not from all of us at the same moment."""
        spread = min(self._interval / 2, 0.01 + 0.001 * len(self._heard))
        self._tell_within(random.uniform(0.0, spread))

    def _expire(self, now: float) -> None:
        for heard in [heard for heard in self._heard.values() if heard.until <= now]:
            member = heard.member
            del self._heard[member.id]
            # It may come back: a cable that was out is no death.
            self._remember((member.id, member.incarnation), heard.sequence)

    def _remember(self, key: tuple[int, int], sequence: int) -> None:
        self._past[key] = sequence
        self._past.move_to_end(key)
        if len(self._past) > _MOST_PAST:
            self._past.popitem(last=False)

    def _complain(self, key: str, text: str) -> None:
        if key not in self._complained:
            self._complained.add(key)
            log.warning("%s", text)

    # --- the socket -------------------------------------------------------------------------

    @property
    def _socket(self) -> socket.socket:
        return cast("socket.socket", self._handles["socket"])

    def _make_socket(self) -> socket.socket:
        family = socket.AF_INET if self._group.version == 4 else socket.AF_INET6
        made = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
            # Bound to the group, not to the wildcard: nothing else on this port is ours to read.
            if isinstance(self._group, ipaddress.IPv6Address):
                self._join_ipv6(made, self._group)
            elif self._group.is_multicast:
                self._join_ipv4(made, self._group)
            else:
                self._prepare_broadcast(made, self._group)
        except BaseException:
            made.close()
            raise
        return made

    def _join_ipv4(self, made: socket.socket, group: ipaddress.IPv4Address) -> None:
        self._destination = (str(group), self._port)
        own, index = bytes(4), 0
        if self._interface is not None:
            with contextlib.suppress(ValueError):
                own = ipaddress.IPv4Address(self._interface).packed
            if not any(own):
                index = socket.if_nametoindex(self._interface)
        request = struct.pack("@4s4si", group.packed, own, index)
        made.bind((str(group), self._port))
        made.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
        if self._interface is not None:
            made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, request)
        made.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, self._ttl)
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)

    def _join_ipv6(self, made: socket.socket, group: ipaddress.IPv6Address) -> None:
        name = self._interface or group.scope_id
        index = 0
        if name:
            index = int(name) if name.isdigit() else socket.if_nametoindex(name)
        plain = str(ipaddress.IPv6Address(group.packed))
        self._destination = (plain, self._port, 0, index)
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(self._destination)
        request = struct.pack("@16si", group.packed, index)
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, request)
        if index:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        made.setsockopt(socket.IPPROTO_IPV6, _IPV6_MULTICAST_ALL, 0)
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, self._ttl)
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)

    def _prepare_broadcast(self, made: socket.socket, address: ipaddress.IPv4Address) -> None:
        self._destination = (str(address), self._port)
        device = None if self._interface is None else _device_of(self._interface).encode()
        # Only the routing table knows whether an address is a broadcast: the kernel refuses those
        # to a socket that has not asked for them.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            if device is not None:
                for each in (probe, made):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
            with contextlib.suppress(PermissionError):
                probe.connect(self._destination)
                wanted = "a multicast group, or a broadcast address of a network of this machine"
                raise refuse("address", str(address), wanted)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        made.bind(self._destination)


def _located(member: Member, host: str) -> Member:
    """A node that listens on all its addresses is to be reached where its datagram came from."""
    for everywhere in ("tcp://0.0.0.0:", "tcp://[::]:"):
        if member.address.startswith(everywhere):
            port = member.address.removeprefix(everywhere)
            there = f"[{host}]" if ":" in host else host
            return replace(member, address=f"tcp://{there}:{port}")
    return member


def _check_group(address: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    wanted = "a multicast group such as 239.77.0.1 or ff15::77, or an IPv4 broadcast address"
    if not isinstance(address, str):
        raise refuse("address", address, wanted)
    try:
        group = ipaddress.ip_address(address)
    except ValueError:
        raise refuse("address", address, wanted) from None
    if group.is_unspecified or (group.version == 6 and not group.is_multicast):
        raise refuse("address", address, wanted)
    return group


def _check_interface(
    interface: object, group: ipaddress.IPv4Address | ipaddress.IPv6Address
) -> str | None:
    if interface is None:
        return None
    wanted = "the name of a network interface, such as 'eth0'"
    if group.version == 4:
        wanted += ", or its IPv4 address"
    if not isinstance(interface, str) or not interface or "\0" in interface:
        raise refuse("interface", interface, wanted)
    scope = group.scope_id if isinstance(group, ipaddress.IPv6Address) else None
    if scope not in (None, interface):
        raise refuse("interface", interface, f"{scope!r}, which the address names")
    return interface


def _device_of(interface: str) -> str:
    """The name of the interface that has this address; a name stays as it is."""
    try:
        wanted = ipaddress.IPv4Address(interface).packed
    except ValueError:
        return interface
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode())
                if fcntl.ioctl(asking, _SIOCGIFADDR, request)[20:24] == wanted:
                    return name
    raise refuse("interface", interface, "the name of an interface of this machine, or its address")
