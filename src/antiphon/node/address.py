"""Addresses as users write them.

``tcp://host:port``, ``tcp://[v6]:port``, ``unix:///path`` and ``inproc://name``. Nothing is
resolved here: a name stays a name until the core dials it, so that a peer that moved is found.

Receives text from users and from handshakes; hands `Address` to the node, which gives its parts
to the core.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from antiphon.errors import ConfigError

__all__ = ["Address", "parse_address"]

_FORMS = "tcp://host:port, tcp://[v6]:port, unix:///path or inproc://name"
_HOST = re.compile(r"(?!-)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
# sun_path holds 108 bytes, the last of which is the terminating zero.
_UNIX_PATH_BYTES = 107


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address. ``str()`` gives it back in its one canonical spelling."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""
    """Of ``unix``: the path of the socket. Of ``inproc``: the name."""

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it: no proof of identity is needed then."""
        return self.scheme != "tcp" or is_loopback(self.host)

    @property
    def wildcard(self) -> bool:
        """Whether it listens on every interface and so cannot itself be dialled."""
        if self.scheme != "tcp":
            return False
        ip = _ip(self.host)
        return ip is not None and ip.is_unspecified

    def __str__(self) -> str:
        if self.scheme != "tcp":
            return f"{self.scheme}://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"


def is_loopback(host: str) -> bool:
    """127/8, ::1 and ``localhost``. Other names may resolve elsewhere tomorrow: not loopback."""
    ip = _ip(host)
    if ip is None:
        return host.rstrip(".").lower() == "localhost"
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback


def parse_address(text: str, *, setting: str = "address", listening: bool = False) -> Address:
    """Parse what a user wrote; raises `ConfigError` naming ``setting``.

    Port 0, which asks the system for a free port, makes sense only when ``listening``.
    """

    def refuse(why: str) -> ConfigError:
        return ConfigError(f"{setting} {text!r}: {why}", setting=setting, value=text)

    if not isinstance(text, str):
        raise refuse(f"not a text; write {_FORMS}")
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in ("tcp", "unix", "inproc"):
        raise refuse(f"not an address; write {_FORMS}")
    if "\0" in rest:
        raise refuse("contains a zero byte")
    if scheme == "unix":
        if not rest.startswith("/"):
            raise refuse("a unix address needs an absolute path: unix:///run/app/node.sock")
        size = len(rest.encode("utf-8", "surrogateescape"))
        if size > _UNIX_PATH_BYTES:
            raise refuse(f"the path has {size} bytes, the system allows {_UNIX_PATH_BYTES}")
        return Address("unix", path=rest)
    if scheme == "inproc":
        if not rest:
            raise refuse("an in-process address needs a name: inproc://name")
        return Address("inproc", path=rest)

    if rest.startswith("["):
        host, bracket, tail = rest[1:].partition("]")
        if not bracket or not isinstance(_ip(host), ipaddress.IPv6Address):
            raise refuse("what stands in brackets is not an IPv6 address")
        colon, port_text = tail[:1], tail[1:]
    else:
        host, colon, port_text = rest.rpartition(":")
        if ":" in host:
            raise refuse("put an IPv6 address in brackets: tcp://[::1]:7001")
        if host == "*":
            raise refuse("write 0.0.0.0 (or [::]) to listen on every interface")
        if colon and not _is_host(host):
            raise refuse(f"{host!r} is not a host name")
    if colon != ":" or not (port_text.isascii() and port_text.isdigit()):
        raise refuse("needs a port: tcp://host:port")
    port = int(port_text)
    if port > 65535:
        raise refuse(f"port {port} is above 65535")
    if port == 0 and not listening:
        raise refuse("port 0 cannot be dialled; give the port that the node listens on")
    return Address("tcp", host=host, port=port)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_host(host: str) -> bool:
    """Names made of digits and dots only are mistyped IPv4 addresses, such as 127.0.0.256."""
    if _ip(host) is not None:
        return True
    return bool(_HOST.fullmatch(host)) and not re.fullmatch(r"[0-9.]+", host)
