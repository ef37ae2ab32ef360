"""From a channel's address to the way its members are found, and how their node listens."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from antiphon.errors import ConfigError, DuplicateNode
from antiphon.node import INSECURE, TLS, Node, NodeConfig
from antiphon.node.address import parse_address
from antiphon.node.config import Insecure
from antiphon.topics.brokered import BrokerFinder
from antiphon.topics.config import BusConfig
from antiphon.topics.finder import Finder
from antiphon.topics.local import LocalFinder
from antiphon.topics.multicast import MulticastFinder

__all__ = ["Channel", "open_channel"]

_WANTED = "local://name, mcast://239.77.0.1:7777, or a broker's tcp://host:7000"


@dataclass(frozen=True)
class Channel:
    """A finder that is not started, and the node that goes with it."""

    finder: Finder
    make_node: Callable[[], Node]
    address: Callable[[Node], str]
    """Where the others reach a node of ours."""


def open_channel(
    text: object,
    config: BusConfig,
    node: Node | None,
    secret: str | bytes | Insecure | None,
    tls: TLS | None,
    node_config: NodeConfig | None,
    token: str | None = None,
) -> Channel:
    """Raises `ConfigError`, and `DuplicateNode` where the node's id is taken on this channel."""
    if not isinstance(text, str) or "://" not in text:  # "local" is no channel of that name
        raise ConfigError(f"address {text!r}: give {_WANTED}", setting="address", value=text)
    scheme = text.partition("://")[0]
    if node is not None and not (secret is None and tls is None and node_config is None):
        raise ConfigError(
            "secret=, tls= and node_config= belong to the node that is shared; give them there",
            setting="node",
        )
    if token is not None and scheme in ("local", "mcast"):
        raise ConfigError(
            f"token= is shown to a broker, and {text} has none; leave it out", setting="token"
        )
    if scheme == "local":
        return _local(text, config, node, secret, tls, node_config)
    if scheme == "mcast":
        return _multicast(text, config, node, secret, tls, node_config)
    if scheme in ("tcp", "unix", "inproc"):
        return _brokered(text, node, secret, tls, node_config, token)
    raise ConfigError(f"address {text!r}: give {_WANTED}", setting="address", value=text)


def _local(
    text: str,
    config: BusConfig,
    node: Node | None,
    secret: str | bytes | Insecure | None,
    tls: TLS | None,
    node_config: NodeConfig | None,
) -> Channel:
    finder = LocalFinder(text.removeprefix("local://"), interval=config.announce_interval)
    try:
        own_id = finder.claim(None if node is None else node.id)
        path = finder.socket_path(own_id)
    except DuplicateNode as error:
        finder.close()
        if node is None:
            raise
        # The finder knows the other one only; whoever looks for the two wants both addresses.
        raise DuplicateNode(
            f"{error} (this node is at {node.address or 'no address'})",
            id=error.id,
            address=node.address,
            other=error.other,
        ) from None
    except BaseException:
        finder.close()
        raise
    return Channel(
        finder,
        lambda: Node(own_id, listen=f"unix://{path}", secret=secret, tls=tls, config=node_config),
        lambda own: own.address,
    )


def _brokered(
    text: str,
    node: Node | None,
    secret: str | bytes | Insecure | None,
    tls: TLS | None,
    node_config: NodeConfig | None,
    token: str | None,
) -> Channel:
    shown: object = token
    if shown is not None and not (isinstance(shown, str) and 0 < len(shown) <= 1024):
        raise ConfigError("token= is a text of 1 to 1024 characters", setting="token")
    finder = BrokerFinder(str(parse_address(text)), token)
    if node is not None:
        finder.use(node)

    def make_node() -> Node:
        made = Node(listen=None, secret=secret, tls=tls, config=node_config)
        finder.use(made)
        return made

    return Channel(finder, make_node, lambda own: own.address)


def _multicast(
    text: str,
    config: BusConfig,
    node: Node | None,
    secret: str | bytes | Insecure | None,
    tls: TLS | None,
    node_config: NodeConfig | None,
) -> Channel:
    parts = urlsplit(text)
    options = dict(parse_qsl(parts.query))
    try:
        port = parts.port
    except ValueError:
        port = None
    unknown = set(options) - {"interface", "ttl"}
    ttl = options.get("ttl", "1")
    if not parts.hostname or port is None or unknown or not ttl.isdecimal():
        raise ConfigError(
            f"address {text!r}: give mcast://group:port, and at most ?interface= and &ttl=",
            setting="address",
            value=text,
        )
    interface = options.get("interface")
    # What the group's interface reaches, the node must be reached on. A name is no address to
    # listen on; the finders put the one in that the datagrams come from.
    host = "[::]" if ":" in parts.hostname else "0.0.0.0"
    with contextlib.suppress(ValueError):
        host = str(ipaddress.IPv4Address(interface or ""))
    listen = parse_address(f"tcp://{host}:0", listening=True)
    if node is None and secret is None and tls is None and not listen.local:
        raise ConfigError(
            f"address {text!r}: other machines can connect to a bus on it, and there is neither a "
            "secret nor tls; give one of them, stay on this machine with ?interface=127.0.0.1, or "
            "pass secret=antiphon.INSECURE to accept anybody",
            setting="secret",
        )
    proof = node._secret if node is not None else None if secret is INSECURE else secret
    finder = MulticastFinder(
        parts.hostname,
        port,
        interface=interface,
        ttl=int(ttl),
        secret=proof.encode() if isinstance(proof, str) else proof,
        interval=config.announce_interval,
        expiry=config.announce_expiry,
    )
    return Channel(
        finder,
        lambda: Node(listen=str(listen), secret=secret, tls=tls, config=node_config),
        lambda own: own.address,
    )
