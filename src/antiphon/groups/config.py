"""The settings of a group, and what the named stacks are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from antiphon import settings
from antiphon.errors import ConfigError
from antiphon.groups.checks import check_flag, check_number
from antiphon.groups.layers.credit_flow import CreditFlow
from antiphon.groups.layers.discovery import Discovery
from antiphon.groups.layers.failure import FailureDetection
from antiphon.groups.layers.fifo import Fifo
from antiphon.groups.layers.fragmentation import Fragmentation
from antiphon.groups.layers.membership import Membership
from antiphon.groups.layers.negative_ack import NegativeAck
from antiphon.groups.layers.reactive_flow import ReactiveFlow
from antiphon.groups.layers.stability import Stability
from antiphon.groups.layers.tcp import Tcp
from antiphon.groups.layers.udp import Udp
from antiphon.groups.layers.unicast import Unicast
from antiphon.groups.protocol import Layer, check

__all__ = ["GroupConfig"]

_SECONDS: Final = (
    "heartbeat",
    "failure_timeout",
    "verify_timeout",
    "discovery_timeout",
    "join_timeout",
    "leave_timeout",
    "merge_interval",
)
_UDP_ONLY: Final = ("multicast", "interface", "ttl", "mtu", "receive_buffer")


@dataclass(frozen=True, kw_only=True)
class GroupConfig(settings.Settings, table="group"):
    """Settings of one group, checked when made; raises `ConfigError` that says what is allowed.

    A group takes what is not written here from ``ANTIPHON_GROUP_*``, then ``[group]`` in
    ``antiphon.toml``, then the default; `GroupConfig.load` does so at once. All members should have
    the same.
    """

    heartbeat: float = 0.5
    """Seconds between two signs of life to every other member."""

    failure_timeout: float = 3.0
    """Seconds of silence after which a member is asked whether it is there. A lost connection
    raises the question at once."""

    verify_timeout: float = 0.5
    """Seconds that it has to answer before it is suspected."""

    detector: str = "fixed"
    """``fixed``: silence of ``failure_timeout``; ``phi``: also silence that is improbable, going by
    the member's own rhythm."""

    stuck_after: float = 10.0
    """Seconds that a member's application may be at one message before the others call it stuck:
    a warning in the log, and `Group.stuck`. 0: never."""

    evict_stuck: bool = False
    """Whether a member that is stuck is put out. It joins again when its handler has returned."""

    stability_timeout: float = 20.0
    """Seconds that senders wait for a member that acknowledges nothing while their window is full,
    before it is put out. 0: never; they wait, and time out."""

    discovery_timeout: float = 1.0
    """Seconds that others that do not answer are waited for before a member is a group alone."""

    join_timeout: float = 3.0
    """Seconds that a coordinator has to take a member in before another way is looked for."""

    leave_timeout: float = 2.0
    """Seconds that a member waits to be let go; then it goes all the same."""

    merge_interval: float = 1.0
    """Seconds between two looks for other coordinators of the same group."""

    primary: bool = False
    """Whether after a partition only the side with the majority may send; the other gets
    `NotPrimary` and views that are not ``primary``."""

    window_bytes: int = 4 << 20
    """How much a member may have sent to all that somebody does not have yet."""

    unicast_bytes: int = 1 << 20
    """The same for what was sent to one member alone."""

    capacity: int = 65536
    """Messages that may wait at a member; beyond it those who send to it wait. Over UDP the
    senders' windows are the bound."""

    multicast: str = ""
    """UDP: where the group's datagrams go, such as ``239.1.2.3:7600``; empty: by its name."""

    interface: str = ""
    """UDP: the address or the name of the network interface; empty: that of the node."""

    ttl: int = 1
    """UDP: how far datagrams go; 1 is this network."""

    mtu: int = 0
    """UDP: bytes of a datagram; 0: what the interface takes, at most 32 KiB."""

    receive_buffer: int = 8 << 20
    """UDP: bytes that the kernel is asked for, for each of the two sockets."""

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Arguments, ``ANTIPHON_GROUP_*``, ``[group]`` in antiphon.toml, defaults, in turn."""
        return settings.load(cls, "group", overrides)

    def __post_init__(self) -> None:
        for name in _SECONDS:
            check_number(name, getattr(self, name), 0.01, 3600, unit="seconds")
        if self.failure_timeout <= self.heartbeat:
            raise ConfigError(
                f"failure_timeout is {self.failure_timeout!r}; it must be longer than heartbeat "
                f"({self.heartbeat!r})",
                setting="failure_timeout",
                value=self.failure_timeout,
            )
        for name in ("stuck_after", "stability_timeout"):
            check_number(name, getattr(self, name), 0.01, 3600, unit="seconds", zero="for never")
        for name in ("primary", "evict_stuck"):
            check_flag(name, getattr(self, name))
        for name, low, high in (
            ("window_bytes", 1 << 16, 1 << 30),
            ("unicast_bytes", 1 << 16, 1 << 30),
            ("capacity", 16, 1 << 24),
        ):
            check_number(name, getattr(self, name), low, high, whole=True)
        if self.evict_stuck and not self.stuck_after:
            raise ConfigError(
                "evict_stuck puts out who is stuck, and with stuck_after=0 nobody is; give the "
                "seconds",
                setting="evict_stuck",
                value=self.evict_stuck,
            )
        FailureDetection(detector=self.detector)
        _transport(self)


def _tcp(config: GroupConfig) -> list[Layer]:
    return [
        Tcp(),
        *_membership(config),
        Fifo(window_bytes=config.window_bytes, unicast_bytes=config.unicast_bytes),
        Stability(timeout=config.stability_timeout),
        Fragmentation(),
    ]


def _transport(config: GroupConfig) -> Udp:
    return Udp(
        address=config.multicast,
        interface=config.interface,
        ttl=config.ttl,
        mtu=config.mtu,
        receive_buffer=config.receive_buffer,
    )


def _udp(config: GroupConfig) -> list[Layer]:
    return [
        _transport(config),
        *_membership(config),
        NegativeAck(window_bytes=config.window_bytes),
        Stability(timeout=config.stability_timeout),
        Unicast(window_bytes=config.unicast_bytes),
        Fragmentation(),
    ]


def _udp_flow(config: GroupConfig) -> list[Layer]:
    return [*_udp(config), ReactiveFlow()]


def _udp_credit(config: GroupConfig) -> list[Layer]:
    return [*_udp(config), CreditFlow()]


def _paper_udp(config: GroupConfig) -> list[Layer]:
    return [
        _transport(config),
        *_membership(config),
        NegativeAck(window_bytes=config.window_bytes, first=3.0, again=3.0, most=3.0),
        Stability(seconds=10.0, timeout=config.stability_timeout),
        Unicast(window_bytes=config.unicast_bytes, first=5.0),
        Fragmentation(),
    ]


def _paper_udp_flow(config: GroupConfig) -> list[Layer]:
    return [*_paper_udp(config), ReactiveFlow()]


def _paper_udp_credit(config: GroupConfig) -> list[Layer]:
    return [*_paper_udp(config), CreditFlow(credits=200_000, least=5_200)]


def _membership(config: GroupConfig) -> list[Layer]:
    return [
        Discovery(),
        FailureDetection(
            heartbeat=config.heartbeat,
            timeout=config.failure_timeout,
            verify=config.verify_timeout,
            detector=config.detector,
            stuck=config.stuck_after,
            evict_stuck=config.evict_stuck,
        ),
        Membership(
            discovery=config.discovery_timeout,
            join=config.join_timeout,
            leave=config.leave_timeout,
            merge=config.merge_interval,
            primary=config.primary,
        ),
    ]


PAPER_TCP: Final = {
    "heartbeat": 2.5,
    "failure_timeout": 5.0,
    "verify_timeout": 1.5,
    "discovery_timeout": 3.0,
    "join_timeout": 3.0,
    "merge_interval": 10.0,
}
"""What the stack of the measurements of 2004 had, as far as it has a counterpart here."""

PAPER_UDP: Final = {**PAPER_TCP, "join_timeout": 5.0, "ttl": 32}
"""The same for its stacks over UDP; the times of their layers are in the layers."""

PAPERS: Final[dict[str, dict[str, Any]]] = {
    "paper-tcp": PAPER_TCP,
    "paper-udp": PAPER_UDP,
    "paper-udp-flow": PAPER_UDP,
    "paper-udp-fc": PAPER_UDP,
}

STACKS: Final[dict[str, Callable[[GroupConfig], list[Layer]]]] = {
    "tcp": _tcp,
    "udp": _udp,
    "udp-flow": _udp_flow,
    "udp-fc": _udp_credit,
    "paper-tcp": _tcp,
    "paper-udp": _paper_udp,
    "paper-udp-flow": _paper_udp_flow,
    "paper-udp-fc": _paper_udp_credit,
}


def make_stack(
    stack: object, config: GroupConfig | None
) -> tuple[tuple[Layer, ...], GroupConfig, str]:
    """The layers, the settings that hold, and a name. Raises `ConfigError`."""
    if isinstance(stack, str):
        if stack not in STACKS:
            raise ConfigError(
                f"stack {stack!r}: one of {', '.join(sorted(STACKS))}, or a list of layers",
                setting="stack",
                value=stack,
            )
        if "udp" not in stack and config is not None:
            clash = [name for name in _UDP_ONLY if getattr(config, name) != _default(name)]
            if clash:
                raise ConfigError(
                    f"{clash[0]} is for stacks over UDP; stack {stack!r} has no use for it",
                    setting=clash[0],
                )
        paper = PAPERS.get(stack)
        if paper is not None:
            given = GroupConfig() if config is None else config
            clash = [name for name in paper if getattr(given, name) != _default(name)]
            if clash:
                raise ConfigError(
                    f"stack {stack!r} sets {', '.join(clash)} itself; take "
                    f"{stack.removeprefix('paper-')!r} to choose",
                    setting=clash[0],
                )
        used = settings.complete(GroupConfig, "group", config, paper)
        return tuple(STACKS[stack](used)), used, stack
    if isinstance(stack, Sequence):
        check(stack)
        if config is not None:
            raise ConfigError(
                "config= goes with a stack that has a name; layers are given their own settings",
                setting="config",
            )
        return tuple(stack), GroupConfig(), "own"
    raise ConfigError(
        f"stack {stack!r}: give a name, such as 'tcp', or a list of layers",
        setting="stack",
        value=stack,
    )


def _default(name: str) -> object:
    return next(field.default for field in fields(GroupConfig) if field.name == name)
