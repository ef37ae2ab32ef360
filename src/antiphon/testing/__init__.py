"""Faults on demand, for our own tests and for those of programs that use the library.

- ``antiphon.testing.processes``: a function in a process of its own, told and asked, killed at will
- ``antiphon.testing.child``: the other end of that, and what such a function is handed
- ``antiphon.testing.namespaces``: machines on one network, out of network namespaces; cut links
- ``antiphon.testing.certificates``: an authority of your own and what it signs, good or bad; apart
  from the others in that it needs the package cryptography, and is imported by its full name
- ``antiphon.testing.proxy``: a TCP proxy that stalls, swallows, slows down or cuts
- ``antiphon.testing.strangers``: clients and servers that do not keep to the protocol
- ``antiphon.testing.waiting``: looking again until something holds, with a deadline

Faults come from outside, over sockets, signals and links: nothing in here patches the library.
Receives only what any program may use, the public names and the wire; hands to tests. Needs no
test framework. Everything that starts something is a context manager and leaves nothing behind.
"""

from __future__ import annotations

from antiphon.testing.child import Control
from antiphon.testing.namespaces import Member, Network
from antiphon.testing.processes import Child, ChildFailed
from antiphon.testing.proxy import Lane, Proxy
from antiphon.testing.strangers import Frame, Host, Stranger
from antiphon.testing.waiting import Collected, eventually

__all__ = [
    "Child",
    "ChildFailed",
    "Collected",
    "Control",
    "Frame",
    "Host",
    "Lane",
    "Member",
    "Network",
    "Proxy",
    "Stranger",
    "eventually",
]
