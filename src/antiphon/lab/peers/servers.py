"""Servers that a peer needs beside it: started on a free port, and never left behind.

A server is tied to the process that starts it: when that one dies, however it dies, the kernel ends
the server too. The tie is set by a short Python program that then becomes the server, because code
between a fork and an exec is not safe in a process with threads.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from antiphon.lab.peers.base import LOOPBACK, free_port

__all__ = ["start_server", "tied"]

START_TIMEOUT = 10.0
START_ATTEMPTS = 3
# 1 is PR_SET_PDEATHSIG and 9 is SIGKILL. A starter that died before the tie was set is seen by its
# number. A server that changes its user loses the tie: it has to be told to stay who it is.
TIE = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 9)\n"
    "if os.getppid() != int(sys.argv[1]): os._exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


def tied(command: Sequence[str]) -> list[str]:
    """The command that ends with the thread that starts it. Its first word is a path."""
    return [sys.executable, "-I", "-S", "-c", TIE, str(os.getpid()), *command]


def start_server(
    name: str,
    command: Callable[[int], Sequence[str]],
    greeted: Callable[[socket.socket], bool],
    host: str = LOOPBACK,
) -> tuple[int, int, Callable[[], None]]:
    """Start a server that listens on a port of this host: the port, its process, how to stop it.

    ``command`` makes the command line for a port; ``greeted`` says over a connection whether the
    server answers. Another process may take the port first: then it is tried again with a new one.
    """
    for _ in range(START_ATTEMPTS):
        port = free_port(host)
        server = subprocess.Popen(
            tied(command(port)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

        def stop(server: subprocess.Popen[bytes] = server) -> None:
            server.kill()
            server.wait()

        try:
            answers = _answers(host, port, server, greeted)
        except BaseException:
            stop()
            raise
        if answers:
            return port, server.pid, stop
        stop()
    raise TimeoutError(f"{name} did not answer within {START_TIMEOUT:g} s")


def _answers(
    host: str,
    port: int,
    server: subprocess.Popen[bytes],
    greeted: Callable[[socket.socket], bool],
) -> bool:
    """Whether the server answers on the port before it ends or the time is up."""
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and server.poll() is None:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, port), timeout=1.0) as link,
        ):
            return greeted(link)
        time.sleep(0.02)
    return False
