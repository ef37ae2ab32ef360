"""Where others can dial a node: what it advertises, or an address of this machine.

Receives the group's node; hands `antiphon.groups.finding` the address that it publishes.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from collections.abc import Iterator

from antiphon.node import Node
from antiphon.node.address import is_loopback

__all__ = ["is_wildcard", "reachable_address"]

_SIOCGIFADDR = 0x8915
# Of documentation: nobody is there, and nothing is sent. The question is which way it would go.
_FAR = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


def is_wildcard(address: str) -> bool:
    """Whether nobody can dial it: a node listens there on all interfaces."""
    return address.startswith(("tcp://0.0.0.0:", "tcp://[::]:"))


def reachable_address(node: Node) -> str:
    """What it advertises; else where it listens, with this machine's own address for all of them.

    That is the one from which the system would send to far away, else that of the first interface
    which has one, else the loopback: then there is no network. Looked up anew with each call, since
    a machine may get another.
    """
    if node._advertised is not None:
        return node._advertised
    address = node.address
    if not is_wildcard(address):
        return address
    host = next(_own_hosts(with_v6=address.startswith("tcp://[")), "127.0.0.1")
    port = address.rpartition(":")[2]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _own_hosts(with_v6: bool) -> Iterator[str]:
    """The best first."""
    for family, far in _FAR:
        if family == socket.AF_INET or with_v6:
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))
                host = str(probe.getsockname()[0])
                if not is_loopback(host):
                    yield host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode())
                host = socket.inet_ntoa(fcntl.ioctl(asking, _SIOCGIFADDR, request)[20:24])
                if not is_loopback(host):
                    yield host
