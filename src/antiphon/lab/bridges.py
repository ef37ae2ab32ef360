"""Network namespaces joined by a bridge: a network of its own for the processes of a run.

Receives how many members there are and how fast their cables are; hands to ``places`` an address
and a way in for each. The bridge is in a namespace too, so the machine's own network gets nothing
that is new and sees nothing that goes on: the addresses cannot meet others.

Namespaces have names, which outlive the process that gave them: `remove_leftovers`.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.lab.bench.processes import deferred_interrupt
from antiphon.lab.leftovers import PREFIX, Leftover, is_left, owned_name

__all__ = ["INTERFACE", "Member", "cannot_bridge", "open_bridge", "remove_leftovers"]

INTERFACE = "eth0"
NETWORK = ipaddress.IPv4Network("10.77.0.0/16")
# Where ``ip netns`` keeps the names.
NAMES = Path("/run/netns")
# What a cable may send at once after a rest: a millisecond of it, and some frames at the least.
BURST_SECONDS, BURST_LEAST = 0.001, 20_000
# How long a frame may wait for its turn; what would wait longer is dropped, as a switch does.
QUEUE = "50ms"
COMMAND_TIMEOUT = 20.0
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Member:
    """One namespace: its address, and what stands before a command that is to run in it."""

    address: str
    command: tuple[str, ...]


def cannot_bridge(rate_bits: float | None) -> str:
    """Why there can be no such bridge here, in one line; empty when there can."""
    if os.geteuid() != 0:
        return "a bridge needs network namespaces: run as root"
    for program, package in (("ip", "iproute2"), ("tc", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(program) is None:
            return f"a bridge needs the program {program}; install the package {package}"
    return _fault(False) or (_fault(True) if rate_bits is not None else "")


@functools.cache
def _fault(shaped: bool) -> str:
    """What goes wrong with the smallest of bridges."""
    try:
        with open_bridge(1, 1e8 if shaped else None):
            return ""
    except OSError as error:
        kind = "a bridge with a rate" if shaped else "a bridge"
        return f"{kind} cannot be had: {error}"


@contextlib.contextmanager
def open_bridge(count: int, rate_bits: float | None = None) -> Iterator[list[Member]]:
    """As many members as wanted, each on a cable of its own to a bridge between them.

    ``rate_bits`` a second go over a cable, each way. Processes in them are to be ended before; all
    else is gone on the way out, whatever happened. Raises `OSError`.
    """
    remove_leftovers()
    stem = owned_name(str(next(_numbers)))
    hub = f"{stem}-hub"
    names = [f"{stem}-{number}" for number in range(count)]
    try:
        yield _build(hub, names, rate_bits)
    finally:
        # Ctrl-C, also a second one, must not leave any of them.
        with deferred_interrupt({signal.SIGINT, signal.SIGTERM}):
            _delete([name for name in (hub, *names) if (NAMES / name).exists()])


def _delete(names: Sequence[str]) -> None:
    """All of them; raises the first complaint when it has tried the last."""
    faults = []
    for name in names:
        try:
            _run("ip", "netns", "delete", name)
        except OSError as error:
            faults.append(error)
    if faults:
        raise faults[0]


def _build(hub: str, names: Sequence[str], rate_bits: float | None) -> list[Member]:
    for name in (hub, *names):
        _run("ip", "netns", "add", name)
    ports = [f"port{number}" for number in range(len(names))]
    # Snooping would keep a group's datagrams from members that joined a moment ago.
    orders = ["link add bridge type bridge forward_delay 0 mcast_snooping 0", "link set bridge up"]
    for name, port in zip(names, ports, strict=True):
        orders.append(f"link add {port} type veth peer name {INTERFACE} netns {name}")
        orders.append(f"link set {port} master bridge up")
    _run("ip", "-netns", hub, "-batch", "-", orders=orders)
    members = []
    for name, address in zip(names, NETWORK.hosts(), strict=False):
        orders = [
            "link set lo up",
            f"address add {address}/{NETWORK.prefixlen} dev {INTERFACE}",
            f"link set {INTERFACE} up",
            f"route add 224.0.0.0/4 dev {INTERFACE}",
        ]
        _run("ip", "-netns", name, "-batch", "-", orders=orders)
        # Unlike ``ip netns exec`` it changes the network alone, and leaves /sys as it is.
        command = ("nsenter", f"--net={NAMES / name}", "--")
        members.append(Member(str(address), command))
    if rate_bits is not None:
        _shape(hub, ports, rate_bits)
        for name in names:
            _shape(name, [INTERFACE], rate_bits)
    return members


def _shape(name: str, interfaces: Sequence[str], rate_bits: float) -> None:
    """What leaves these interfaces goes no faster than that."""
    burst = max(BURST_LEAST, round(rate_bits / 8 * BURST_SECONDS))
    shape = f"tbf rate {round(rate_bits)}bit burst {burst}b latency {QUEUE}"
    orders = [f"qdisc add dev {interface} root {shape}" for interface in interfaces]
    _run("tc", "-netns", name, "-batch", "-", orders=orders)


def remove_leftovers() -> list[Leftover]:
    """Remove the namespaces of processes that are gone, and end what still runs in them."""
    found = []
    for path in sorted(NAMES.glob(f"{PREFIX}-*")):
        if not is_left(path.name):
            continue
        processes = 0
        reason = ""
        try:
            for line in _run("ip", "netns", "pids", path.name).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(line), signal.SIGKILL)
                    processes += 1
            _run("ip", "netns", "delete", path.name)
        except OSError as error:
            if not path.exists():
                continue  # another one was faster
            reason = str(error) if os.geteuid() == 0 else "run as root to remove it"
        found.append(Leftover("network namespace", path.name, processes, reason))
    return found


def _run(*command: str, orders: Sequence[str] = ()) -> str:
    """What the command prints. Raises `OSError` with its complaint."""
    try:
        done = subprocess.run(
            command,
            input="".join(f"{order}\n" for order in orders),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{' '.join(command)} took longer than {COMMAND_TIMEOUT:g} s") from None
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {' '.join(done.stderr.split()) or 'failed'}")
    return done.stdout
