"""Where the processes of a run are, and how they reach each other.

Receives a plan's link; hands to the runner one place for every process. What a link needs is made
on the way in and gone on the way out, whatever happened between.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from antiphon.lab.bridges import INTERFACE, cannot_bridge, open_bridge
from antiphon.lab.peers.base import LOOPBACK
from antiphon.lab.plan import Link
from antiphon.lab.remote import address_of, cannot_reach, ssh_command

__all__ = ["Place", "cannot_open", "open_places"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one process is: the host's name, its address there, and what starts it there.

    ``command`` stands before the command line of a process, ``python`` is the interpreter.
    ``remote`` ones are on another machine, with its own clock and its own load. ``interface`` is
    the name of the one network interface that only this process uses, if there is one.
    """

    host: str = "local"
    address: str = LOOPBACK
    command: tuple[str, ...] = ()
    python: str = sys.executable
    remote: bool = False
    interface: str = ""


def cannot_open(link: Link) -> str:
    """Why a link cannot be had on this machine, in one line; empty when it can."""
    if link.kind == "bridge":
        return cannot_bridge(link.rate_bits)
    if link.kind == "ssh":
        reasons = (cannot_reach(host, link.python) for host in link.hosts)
        return next((reason for reason in reasons if reason), "")
    return ""


@contextlib.contextmanager
def open_places(link: Link, count: int) -> Iterator[list[Place]]:
    """As many places as there are processes, joined by the link."""
    if link.kind == "bridge":
        with open_bridge(count, link.rate_bits) as members:
            yield [
                Place(f"netns-{number}", member.address, member.command, interface=INTERFACE)
                for number, member in enumerate(members)
            ]
    elif link.kind == "ssh":
        yield [_remote(link, link.hosts[number % len(link.hosts)]) for number in range(count)]
    else:
        yield [Place() for _ in range(count)]


def _remote(link: Link, host: str) -> Place:
    # A shell is between: it gives its process to the worker, which then leads its own group.
    command = (*ssh_command(host), "exec")
    return Place(host, address_of(host), command, shlex.quote(link.python), remote=True)
