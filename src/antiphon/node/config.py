"""The settings of a node, and what it takes to be allowed to listen.

`NodeConfig` is only numbers that have been checked; it opens nothing. Which of argument, variable,
file and default wins is decided by `antiphon.settings`; this module says what a value may be and
why. Receives from the user, hands to `antiphon.node.Node`, which passes the numbers to the core.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn, Self, final

from antiphon import settings
from antiphon._core import build_info, check_tls
from antiphon.errors import ConfigError
from antiphon.frozen import FrozenDict
from antiphon.node.address import Address, parse_address

__all__ = [
    "INSECURE",
    "TLS",
    "Insecure",
    "NodeConfig",
    "Schedule",
    "check_flag",
    "check_listen",
    "check_secret",
    "check_type",
]

KIB = 1024
MIB = 1024 * KIB
PAGE = 4096
_MAX_MESSAGE = 2**31 - 1  # the offsets of a batch are int32
_LEAST_HEARTBEAT = 0.0001


@final
class Insecure:
    """The type of `INSECURE`; there is one instance."""

    _only: ClassVar[Insecure | None] = None

    def __new__(cls) -> Insecure:
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

    def __repr__(self) -> str:
        return "antiphon.INSECURE"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "antiphon.INSECURE cannot be pickled: listening without proof is decided where the "
            "node is made, in code, and never arrives in data; name it there"
        )


INSECURE = Insecure()
"""Give it as ``secret`` to let a node listen off loopback without any proof of its peers.

An object and not a text, so that no variable, file or message can switch the protection off.
"""


def _size(default: int | None) -> Any:
    return field(default=default, metadata={"size": True})


def _default_pool() -> Mapping[int, int]:
    return FrozenDict({16 * KIB: 256, 64 * KIB: 64, 256 * KIB: 64})


@dataclass(frozen=True)
class Schedule(settings.Settings):
    """How a node divides its time among handlers, subscriptions and timers; checked when made.

    A share is a fraction of ``period``: a task with the share 0.2 of 10 ms may run for 2 ms in
    every 10 ms, whatever the others want. Time that nobody wants goes to whoever has work.
    """

    period: float = 0.010
    """Seconds, from 1 ms to 10 s. A task that has credits left waits no longer for its turn."""

    buckets: int = 100
    """In how many steps the time that a task has left is told apart: from 2 to 10,000."""

    threads: int | None = None
    """Scheduler threads; None: as many as there are processors."""

    penalty: bool = False
    """Whether a task that overruns its share pays for it in the next period."""

    fifo_priority: int | None = None
    """Real-time priority (SCHED_FIFO, 1 to 99) of the scheduler threads, where it is permitted;
    elsewhere a warning says what is missing, once, when the threads begin with the first work."""

    cpus: tuple[int, ...] = ()
    """Processors that the scheduler threads may use; empty: all. A warning as above names those
    that cannot be had; the threads run on the others, or anywhere if there are none."""

    def __post_init__(self) -> None:
        period: object = self.period
        number = isinstance(period, int | float) and not isinstance(period, bool)
        if not number or not 0.001 <= self.period <= 10:
            raise _refuse("period", period, "a number of seconds from 0.001 to 10")
        for name, low, high in (
            ("buckets", 2, 10_000),
            ("threads", 1, 32),
            ("fifo_priority", 1, 99),
        ):
            value = getattr(self, name)
            if value is None and name != "buckets":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise _refuse(name, value, f"a whole number from {low} to {high}")
        if not isinstance(self.penalty, bool):
            raise _refuse("penalty", self.penalty, "True or False")
        cpus: object = self.cpus
        if not isinstance(cpus, tuple | list) or not all(
            isinstance(cpu, int) and not isinstance(cpu, bool) and 0 <= cpu < 1024 for cpu in cpus
        ):
            raise _refuse("cpus", cpus, "a tuple of processor numbers")
        object.__setattr__(self, "cpus", tuple(cpus))


@dataclass(frozen=True, kw_only=True)
class NodeConfig(settings.Settings, table="node"):
    """Settings of one node, checked when made; raises `ConfigError` that says what is allowed.

    A node takes the fields that are written in ``NodeConfig(...)`` from there, and every other one
    from ``ANTIPHON_NODE_*``, then ``antiphon.toml``, then the default; `Node.config` has the values
    in force. `NodeConfig.load` looks at all of these at once, and leaves nothing open, as does
    `dataclasses.replace`. Sizes are bytes; in the environment and the file they may be written
    ``"4MiB"``.
    """

    ring_bytes: int = _size(4 * MIB)
    """Outgoing ring of each connection. A power of two of at least 64 KiB, since its pages are
    mapped twice in a row so that no message is split at the end. Larger absorbs longer bursts."""

    flow_window_bytes: int = _size(4 * MIB)
    """What senders together may have under way to one handler, inbox or subscription before it
    has handled it. At least 16 KiB; it bounds the memory that a slow handler can occupy."""

    flow_threshold: float = 0.4
    """Share of the window that is handled before credit is returned, above 0 and at most 0.75.
    Lower keeps senders moving, higher spends fewer credit records."""

    socket_buffer_bytes: int | None = _size(None)
    """Kernel buffer of the direction that carries data. None: as large as the ring. The kernel
    caps it (net.core.rmem_max, net.core.wmem_max); ``antiphon doctor`` compares."""

    buffer_pool: Mapping[int, int] = field(default_factory=_default_pool, metadata={"size": True})
    """Receive buffers: size of each to how many there may be. They are made on demand; with all
    in use the node stops reading, which the senders feel as back-pressure."""

    receive_bytes: int = _size(64 * MIB)
    """Bound on all the credit that the node has granted, hence on what can be parked here."""

    large_message_bytes: int = _size(128 * MIB)
    """Bound on messages that travel in fragments and are being put together at one time."""

    max_connections: int | None = None
    """How many peers the node stays connected with; None: all. With more, the connection that was
    used least recently is closed, once nothing is under way on it, and opened again when it is
    wanted. Each takes two sockets."""

    connect_timeout: float = 5.0
    """How long the first message to a peer waits for the connection."""

    request_timeout: float = 10.0
    """How long a request waits for its answer, and a send made inside a handler for room."""

    send_timeout: float = 30.0
    """How long a send waits for room before `SendTimeout`."""

    max_message_bytes: int = _size(64 * MIB)
    """Largest message sent or accepted, checked before anything is allocated for it."""

    spin_us: float = 25.0
    """How many microseconds the caller of a request looks for the answer before it sleeps, and the
    answering thread for the next request: at most 1000, and only while that helps. It saves the
    time a sleeping core needs to wake, and costs processor time while it lasts. With 0, on a single
    processor and with ``Schedule(fifo_priority=...)`` they do not look."""

    heartbeat: float = 1.0
    """Seconds, at least 0.0001. A peer that has nothing to send shows a sign of life every two
    heartbeats; silence for five of them means dead."""

    schedule: Schedule = field(default_factory=lambda: settings.whole(Schedule()))
    """How the node's time is divided; see `Schedule`."""

    HEARTBEATS_UNTIL_DEAD: ClassVar[int] = 5

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Arguments, then ``ANTIPHON_NODE_*``, then ``[node]`` in antiphon.toml, then defaults."""
        return settings.load(cls, "node", overrides)

    @property
    def kernel_buffer_bytes(self) -> int:
        """`socket_buffer_bytes`, or the ring's size where that is None."""
        return self.ring_bytes if self.socket_buffer_bytes is None else self.socket_buffer_bytes

    @property
    def dead_after(self) -> float:
        """Seconds of silence after which a peer counts as dead."""
        return self.heartbeat * self.HEARTBEATS_UNTIL_DEAD

    def __post_init__(self) -> None:
        self._check_size("ring_bytes", 64 * KIB, 2**30)
        if self.ring_bytes & (self.ring_bytes - 1):
            below = 1 << (self.ring_bytes.bit_length() - 1)
            raise _refuse(
                "ring_bytes", self.ring_bytes, f"a power of two, such as {below} or {2 * below}"
            )
        self._check_size("flow_window_bytes", 16 * KIB, 2**30)
        self._check_number("flow_threshold", 0.0, 0.75)
        if self.socket_buffer_bytes is not None:
            self._check_size("socket_buffer_bytes", PAGE, 2**30)
        self._check_size("receive_bytes", self.flow_window_bytes, 2**40, "flow_window_bytes")
        self._check_size("max_message_bytes", 1, _MAX_MESSAGE)
        self._check_size("large_message_bytes", self.max_message_bytes, 2**40, "max_message_bytes")
        for name in ("connect_timeout", "request_timeout", "send_timeout"):
            self._check_number(name, 0.0, 86_400.0)
        self._check_number("heartbeat", 0.0, 3600.0)
        if self.heartbeat < _LEAST_HEARTBEAT:
            raise _refuse("heartbeat", self.heartbeat, f"a number from {_LEAST_HEARTBEAT} to 3600")
        if not isinstance(self.schedule, Schedule):
            raise _refuse("schedule", self.schedule, "an antiphon.Schedule")
        self._check_number("spin_us", 0.0, 1000.0, zero=True)
        most: object = self.max_connections
        if most is not None and (
            isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= 65535
        ):
            raise _refuse("max_connections", most, "a whole number from 1 to 65535, or None")
        object.__setattr__(self, "buffer_pool", _check_pool(self.buffer_pool))

    def _check_size(self, name: str, low: int, high: int, bound: str = "") -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            least = f"{bound} ({low})" if bound else str(low)
            raise _refuse(name, value, f"a whole number of bytes from {least} to {high}")

    def _check_number(self, name: str, above: float, high: float, zero: bool = False) -> None:
        value = getattr(self, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and zero and value == 0:
            return
        if not number or not math.isfinite(value) or not above < value <= high:
            least = "from 0 to" if zero else f"above {above:g} and at most"
            raise _refuse(name, value, f"a number {least} {high:g}")


def _refuse(name: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"{name} is {value!r}; it must be {wanted}", setting=name, value=value)


def _check_pool(pool: object) -> Mapping[int, int]:
    wanted = f"a mapping of buffer sizes (multiples of {PAGE}) to the number allowed of each"
    if not isinstance(pool, Mapping) or not pool:
        raise _refuse("buffer_pool", pool, wanted)
    for size, count in pool.items():
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (size, count))
        if not whole or size < PAGE or size % PAGE or size > 2**30 or not 1 <= count <= 2**20:
            raise _refuse("buffer_pool", dict(pool), f"{wanted}, which {size!r}: {count!r} is not")
    return FrozenDict(sorted(pool.items()))


def check_type(name: str, value: object, wanted: type, what: str = "") -> None:
    """None, or one of ``wanted``. Raises `ConfigError`: the mistake shows where it was made."""
    if value is not None and not isinstance(value, wanted):
        raise _refuse(name, value, f"{what or 'an antiphon.' + wanted.__name__}, or None")


def check_flag(name: str, value: object) -> None:
    """True or False, and not what happens to count as one of them. Raises `ConfigError`."""
    if not isinstance(value, bool):
        raise _refuse(name, value, "True or False")


def check_secret(secret: object) -> bytes | None:
    """The secret as bytes; None for no secret and for `INSECURE`. Raises `ConfigError`."""
    if secret is None or secret is INSECURE:
        return None
    if isinstance(secret, str):
        secret = secret.encode()
    if not isinstance(secret, bytes | bytearray | memoryview):
        # The value itself stays out of the error: errors are logged, secrets must not be.
        raise ConfigError(
            f"secret is of type {type(secret).__name__}; give a str, bytes or antiphon.INSECURE",
            setting="secret",
        )
    if not len(secret):
        raise ConfigError("secret is empty; give at least one byte, or None", setting="secret")
    return bytes(secret)


@dataclass(frozen=True)
class TLS:
    """Certificates for TLS 1.3 between nodes: every TCP connection is encrypted, both sides prove
    who they are.

    ``certificate`` and ``key`` are this node's own, ``authority`` the one that has signed those of
    all peers: paths of PEM files. A certificate names its node in a URI among the subject's
    alternative names, ``antiphon:node:7``, or ``antiphon:node:*`` for any. The files are looked at
    about once a second: new connections use what they hold then. Raises `ConfigError` when made
    with files that do not fit together.
    """

    certificate: str
    key: str
    authority: str

    def __post_init__(self) -> None:
        for name in ("certificate", "key", "authority"):
            object.__setattr__(self, name, os.fspath(getattr(self, name)))
        if why := check_tls(self.certificate, self.key, self.authority):
            raise ConfigError(f"tls: {why}", setting="tls")


def check_listen(
    listen: str | None, secret: object = None, tls: TLS | None = None
) -> Address | None:
    """Parse ``listen`` and refuse an address that would let strangers in; None stays None.

    Loopback, ``unix://`` and ``inproc://`` need no proof: the machine guards them. Everything else
    can be reached by others, and a node that answers them without knowing who they are must have
    been asked for by name. Raises `ConfigError`.
    """
    proof = check_secret(secret)
    if listen is None:
        return None
    address = parse_address(listen, setting="listen", listening=True)
    if address.local or secret is INSECURE or tls is not None:
        return address
    if proof is None:
        raise ConfigError(
            f"listen {listen!r} can be reached from other machines and there is neither a secret "
            "nor tls; give one of them, listen on 127.0.0.1, or pass secret=antiphon.INSECURE to "
            "accept anybody",
            setting="listen",
            value=listen,
        )
    if not build_info()["openssl"]:
        raise ConfigError(
            f"listen {listen!r} with a secret needs TLS, and there is no OpenSSL 3 here "
            "(libssl.so.3; on Debian: apt install libssl3)",
            setting="listen",
            value=listen,
        )
    return address
