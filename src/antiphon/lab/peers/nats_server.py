"""A nats-server for a run: on a free port, without logs, and gone with whoever started it."""

from __future__ import annotations

import socket
from collections.abc import Callable

from antiphon.lab.peers import find_program
from antiphon.lab.peers.base import LOOPBACK
from antiphon.lab.peers.servers import start_server

__all__ = ["serve_nats"]


def serve_nats(host: str = LOOPBACK) -> tuple[str, list[int], Callable[[], None]]:
    """Its address, its process, and how to stop it."""
    program = find_program("nats-server")
    if program is None:
        raise FileNotFoundError("nats-server not found; install the package nats-server")

    def command(port: int) -> list[str]:
        return [program, "-a", host, "-p", str(port)]

    port, server, stop = start_server("nats-server", command, _greets, host)
    return f"nats://{host}:{port}", [server], stop


def _greets(connection: socket.socket) -> bool:
    """It says who it is, without being asked."""
    return connection.recv(4) == b"INFO"
