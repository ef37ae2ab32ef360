"""Machines on one network, each a network namespace, joined by a bridge in another one.

A namespace lives as long as a process in it. Each is held by a ``cat`` that reads from us, so that
the kernel takes everything down when this process ends, however it ends; nothing is ever named in
``/run/netns``. Root unshares the network alone; others get a user namespace around it, once, which
all members share.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from types import TracebackType
from typing import Self

__all__ = ["Member", "Network"]


class _Holder:
    """A process that keeps a network namespace in being."""

    def __init__(self, prefix: list[str]) -> None:
        self._process = subprocess.Popen(
            [*prefix, "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            # What cat gives back proves that it runs, hence that the namespace is there.
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write("here\n")
            self._process.stdin.flush()
            if self._process.stdout.readline() != "here\n":
                raise OSError(f"no network namespace: {' '.join(prefix)} failed")
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.kill()
        self._process.wait()


class _Space:
    """One namespace and the way into it."""

    def __init__(self, holder: _Holder) -> None:
        self._holder = holder
        user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
        self.prefix = ["nsenter", "-t", str(holder.pid), *user, "-n", "--"]

    @property
    def pid(self) -> int:
        return self._holder.pid

    def run(self, command: str) -> str:
        """Runs a command inside; returns its output. CalledProcessError when it fails."""
        done = subprocess.run(
            [*self.prefix, *command.split()], check=True, capture_output=True, text=True, timeout=10
        )
        return done.stdout

    def close(self) -> None:
        self._holder.close()


class Member(_Space):
    """One machine: its ``address``, and the ``prefix`` of commands that are to run on it."""

    def __init__(self, holder: _Holder, hub: _Space, number: int, address: str) -> None:
        super().__init__(holder)
        self.address = address
        self._hub = hub
        self._port = f"port{number}"
        hub.run(f"ip link add {self._port} type veth peer name eth0 netns {self.pid}")
        hub.run(f"ip link set {self._port} master bridge up")
        self.run("ip link set lo up")
        self.run(f"ip address add {address}/24 dev eth0")
        self.run("ip link set eth0 up")

    def vanish(self) -> None:
        """Its frames get no further than the bridge, from now on and both ways.

        Neither end can tell from its interface: the carrier stays, nothing is refused or reset.
        """
        self._hub.run(f"ip link set {self._port} nomaster")

    def reappear(self) -> None:
        """Undoes `vanish`."""
        self._hub.run(f"ip link set {self._port} master bridge")

    def unplug(self) -> None:
        """Its interface goes down, which it can see and the others cannot."""
        self.run("ip link set eth0 down")

    def plug_in(self) -> None:
        """Undoes `unplug`."""
        self.run("ip link set eth0 up")


class Network:
    """``with Network(2) as network: left, right = network.members``: they reach only each other.

    Addresses are ``10.77.<subnet>.1`` and so on; they exist inside the namespaces only.
    """

    def __init__(self, size: int = 2, subnet: int = 0) -> None:
        self.members: list[Member] = []
        self._spaces = contextlib.ExitStack()
        try:
            kind = ["-n"] if os.geteuid() == 0 else ["-U", "-r", "-n"]
            hub = _Space(self._hold(["unshare", *kind]))
            hub.run("ip link add bridge type bridge forward_delay 0")
            hub.run("ip link set bridge up")
            # From inside the hub, so that all are in one user namespace and may touch each other.
            inside = [*hub.prefix, "unshare", "-n"]
            for number in range(1, size + 1):
                address = f"10.77.{subnet}.{number}"
                self.members.append(Member(self._hold(inside), hub, number, address))
        except BaseException:
            self.close()
            raise

    def _hold(self, prefix: list[str]) -> _Holder:
        holder = _Holder(prefix)
        self._spaces.callback(holder.close)
        return holder

    def close(self) -> None:
        """Ends all namespaces. Processes of the test inside are to be ended before."""
        self._spaces.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
