"""The transport by datagrams: IP multicast to all members at once, unicast datagrams to one.

Any of them may be lost, doubled or late; the layers above see to that. What members say about
membership goes over the connections of their nodes as with `tcp`, so that views need nothing of
those layers.
"""

from __future__ import annotations

import hashlib
import ipaddress
from functools import partial
from typing import Final

from antiphon.errors import ConfigError
from antiphon.groups.checks import check_number
from antiphon.groups.protocol import Layer

__all__ = ["PORT", "Udp", "default_address"]

PORT: Final = 45577
"""Where groups hear, unless they are given an address."""

_LEAST_MTU, _MOST_MTU = 576, 65507


def default_address(group: str) -> str:
    """In 239.255.0.0/16, which routers keep within a site, by the name of the group."""
    digest = hashlib.sha256(group.encode()).digest()
    return f"239.255.{digest[0]}.{digest[1]}:{PORT}"


class Udp(Layer):
    """``address``: ``239.1.2.3:7600``, empty: by the group's name; ``interface``: its IPv4 address
    or its name, empty: that of the node; ``ttl``: how many routers may pass a datagram on, and one
    more; ``mtu``: bytes of a datagram, 0: what the interface takes, at most 32 KiB;
    ``receive_buffer``: bytes asked of the kernel for each socket."""

    name = "udp"
    transport = True

    def __init__(
        self,
        *,
        address: str = "",
        interface: str = "",
        ttl: int = 1,
        mtu: int = 0,
        receive_buffer: int = 8 << 20,
    ) -> None:
        if address != "":
            split_address(address)
        check = partial(check_number, layer=self.name, whole=True)
        check("ttl", ttl, 0, 255)
        check("mtu", mtu, _LEAST_MTU, _MOST_MTU, unit="bytes", zero="for what the interface takes")
        check("receive_buffer", receive_buffer, 1 << 16, 1 << 30, unit="bytes")
        named: object = interface
        if not isinstance(named, str):
            raise ConfigError(
                f"interface of layer {self.name!r} is {named!r}; it must be a text: the IPv4 "
                "address or the name of one",
                setting="interface",
                value=named,
            )
        self.address = address
        self.interface = interface
        self.ttl = ttl
        self.mtu = mtu
        self.receive_buffer = receive_buffer


def split_address(text: str) -> tuple[str, int]:
    """Host and port. Raises `ConfigError` for what is no multicast address of IPv4."""
    given: object = text
    host, colon, port = text.rpartition(":") if isinstance(given, str) else ("", "", "")
    try:
        wrong = not ipaddress.IPv4Address(host).is_multicast
        number = int(port)
    except ValueError:
        wrong, number = True, 0
    if wrong or not colon or not 0 < number < 65536:
        raise ConfigError(
            f"address {text!r}: give a multicast address of IPv4 and a port, such as "
            "239.1.2.3:7600",
            setting="address",
            value=text,
        )
    return host, number
