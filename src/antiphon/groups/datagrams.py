"""From the layers of a stack over UDP to the settings of the core, and its counts back to them.

Receives the stack and the node of a `Group`; hands `GroupCore` a dictionary.
"""

from __future__ import annotations

import hashlib
import logging
import random
import socket
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from antiphon._core import build_info
from antiphon.errors import ConfigError
from antiphon.groups.layers.credit_flow import CreditFlow
from antiphon.groups.layers.datagram_faults import DatagramFault
from antiphon.groups.layers.encryption import Encryption
from antiphon.groups.layers.negative_ack import NegativeAck
from antiphon.groups.layers.reactive_flow import ReactiveFlow
from antiphon.groups.layers.stability import Stability
from antiphon.groups.layers.udp import Udp, default_address, split_address
from antiphon.groups.layers.unicast import Unicast
from antiphon.groups.protocol import Layer, Stack
from antiphon.node import Node

__all__ = ["by_datagrams", "datagram_settings", "layer_counts", "report_buffer", "with_encryption"]

log = logging.getLogger("antiphon.groups")

One = TypeVar("One", bound=Layer)

_LOOPBACK: Final = "127.0.0.1"
_UNICAST_MESSAGES: Final = 4096
_SHARE, _REACTIVE, _CREDIT = 0, 1, 2
_NO_FAULTS: Final[dict[str, Any]] = {
    "drop": 0.0,
    "drop_kinds": 0,
    "drop_first": 0,
    "drop_every": 0,
    "duplicate": 0.0,
    "delay_least": 0.0,
    "delay_most": 0.0,
    "shuffle": 0,
    "seed": 0,
}


def by_datagrams(stack: Stack) -> bool:
    """Whether its data goes by UDP."""
    return isinstance(stack.layers[0], Udp)


def with_encryption(layers: Sequence[Layer], node: Node, named: bool) -> tuple[Layer, ...]:
    """The layers, with `Encryption` where a stack that has a name needs it.

    What a node proves to its peers is to hold for datagrams too. Raises `ConfigError` where layers
    of one's own say otherwise, and where there is no OpenSSL.
    """
    udp = isinstance(layers[0], Udp)
    names = [layer.name for layer in layers]
    sealed = Encryption.name in names
    if named and udp and node._protected:
        at = names.index("membership")
        layers, sealed = [*layers[:at], Encryption(), *layers[at:]], True
    if sealed and not node._protected:
        raise ConfigError(
            "stack: 'encryption' sends keys over the node's connections, which anybody can make; "
            "give the node a secret or tls",
            setting="secret",
        )
    if udp and node._protected and not sealed:
        raise ConfigError(
            "stack: the node has a secret or tls, and datagrams would go without; put Encryption() "
            "below 'membership'",
            setting="stack",
        )
    if sealed and not build_info()["openssl"]:
        raise ConfigError(
            "stack over UDP with a secret or tls needs OpenSSL 3, which is not here "
            "(libcrypto.so.3; on Debian: apt install libssl3)",
            setting="stack",
        )
    return tuple(layers)


def datagram_settings(
    stack: Stack, name: str, node: Node, window_messages: int
) -> dict[str, Any] | None:
    """What the core is to be made with; None where data goes over nodes. Raises `ConfigError`."""
    udp = stack.layers[0]
    if not isinstance(udp, Udp):
        _refuse_seconds(stack)
        return None
    nak = _need(stack, NegativeAck)
    stability = _need(stack, Stability)
    unicast = _find(stack, Unicast)
    credit = _find(stack, CreditFlow)
    reactive = _find(stack, ReactiveFlow)
    host, port = split_address(udp.address or default_address(name))
    faults = dict(_NO_FAULTS)
    for layer in stack.layers:
        if isinstance(layer, DatagramFault):
            faults |= layer.faults()
    if faults["seed"] == 0:
        faults["seed"] = random.SystemRandom().getrandbits(63) | 1
    return {
        "address": host,
        "port": port,
        "interface": udp.interface or _interface_of(node, host, port),
        "ttl": udp.ttl,
        "mtu": udp.mtu,
        "receive_buffer": udp.receive_buffer,
        "group": int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"),
        "window_bytes": nak.window_bytes,
        "window_messages": window_messages,
        "unicast_bytes": unicast.window_bytes if unicast else 1 << 16,
        "unicast_messages": _UNICAST_MESSAGES,
        "ask_first": nak.first,
        "ask_first_one": unicast.first if unicast else nak.first,
        "ask_again": nak.again,
        "ask_most": nak.most,
        "repair_fraction": nak.repair_fraction,
        "quiet": stability.quiet,
        "flow": _CREDIT if credit else _REACTIVE if reactive else _SHARE,
        "credits": credit.credits if credit else 0,
        "credits_least": credit.least if credit else 0,
        "sealed": _find(stack, Encryption) is not None,
        "faults": faults,
    }


def _refuse_seconds(stack: Stack) -> None:
    stability = _find(stack, Stability)
    if stability is not None and stability.seconds is not None:
        raise ConfigError(
            "seconds of stability is for datagrams; over 'tcp' leave it out",
            setting="seconds",
            value=stability.seconds,
        )


def _find(stack: Stack, kind: type[One]) -> One | None:
    return next((layer for layer in stack.layers if isinstance(layer, kind)), None)


def _need(stack: Stack, kind: type[One]) -> One:
    found = _find(stack, kind)
    if found is None:
        raise ConfigError(
            f"stack: {kind.name!r} is not in it, and nothing else carries messages over 'udp'",
            setting="stack",
        )
    return found


def _interface_of(node: Node, host: str, port: int) -> str:
    """Where the node listens; one that listens everywhere sends as the system's routes say."""
    address = node.address  # not what it advertises, which may be another machine's
    scheme, _, rest = address.partition("://")
    if scheme != "tcp":
        return _LOOPBACK  # its peers are on this machine
    listens = rest.rpartition(":")[0].strip("[]")
    if listens in ("0.0.0.0", "::", ""):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((host, port))
            except OSError as error:
                raise ConfigError(
                    f"interface: there is no route for {host} ({error}), and the node listens on "
                    "all interfaces; say which one, Udp(interface=...)",
                    setting="interface",
                ) from error
            return str(probe.getsockname()[0])
    if ":" in listens:
        raise ConfigError(
            f"interface: the node listens at {address}, and datagrams go over IPv4; say which "
            "interface, Udp(interface=...)",
            setting="interface",
        )
    return listens


def report_buffer(stack: Stack, given: int) -> None:
    """Says once where the kernel gives less than was asked for."""
    udp = stack.layers[0]
    if isinstance(udp, Udp) and given < udp.receive_buffer:
        log.warning(
            "the kernel gives sockets %d bytes to receive instead of %d, which holds senders up; "
            "raise net.core.rmem_max",
            given,
            udp.receive_buffer,
        )


def layer_counts(core: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What the core counts, by the layer that it does it for."""
    datagrams = core["datagrams"]
    if datagrams is None:
        return {}
    every = core["all"]
    ones = core["one"].values()
    return {
        Udp.name: {
            key: datagrams[key]
            for key in (
                "sent",
                "sent_bytes",
                "received",
                "received_bytes",
                "failed",
                "malformed",
                "foreign",
                "strangers",
                "mtu",
                "receive_buffer",
            )
        },
        "drop-datagrams": {"dropped": datagrams["dropped"]},
        NegativeAck.name: {
            "gaps": datagrams["gaps"],
            "asked": datagrams["asked"],
            "repeated": every["repeated"],
            "relayed": datagrams["relayed"],
            "refused": datagrams["refused"],
            "duplicates": datagrams["duplicates"],
            "flight": every["flight"],
            "held": every["held"],
        },
        Stability.name: {
            "acknowledgements": datagrams["acknowledgements"],
            "questions": every["probes"],
            "held_bytes": datagrams["held_bytes"],
            "kept": datagrams["kept"],
        },
        Unicast.name: {
            "lanes": len(ones),
            "repeated": sum(one["repeated"] for one in ones),
        },
        Encryption.name: {
            key: datagrams[key] for key in ("sealed", "opened", "unknown_key", "forged", "replayed")
        },
        ReactiveFlow.name: {"flight": every["flight"], "cuts": every["cuts"]},
    }
