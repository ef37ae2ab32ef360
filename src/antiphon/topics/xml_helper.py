"""The process that evaluates XPath. Not to be imported: `antiphon.topics.xml_judge` starts it.

libxml2 has no time limit, so what it is given runs where it can be killed. This file stands alone,
without the rest of the package, to start quickly and to be small.

On its standard input, a socket, come messages of MessagePack, each behind its length: ``["add",
number, text, namespaces]``, ``["drop", number]``, ``["judge", numbers, bodies]``. For each body
it answers ``[numbers that are true, or None if it is no XML, how many failed, slow ones]`` at once,
so that what was done is known if it is killed. The file whose descriptor is its argument holds the
number of the expression that is being evaluated, 0 while a body is parsed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from lxml import etree

SLOW = 0.1
"""Seconds of processor time for one expression and one body; more is held against it."""

_LENGTH = struct.Struct("<I")
_NOW = struct.Struct("<Q")
_ORPHANED = 10.0  # seconds for one body, after which nobody waits for it: who would is gone


def read_exactly(link: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = link.recv(min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class Evaluator:
    """Expressions by their numbers, and bodies against them."""

    def __init__(self, now: mmap.mmap) -> None:
        self._now = now
        self._expressions: dict[int, Any] = {}
        # No entities, no network, no DTD; libxml2's own limits on depth and size hold.
        self._parser = etree.XMLParser(
            resolve_entities=False,
            no_network=True,
            load_dtd=False,
            dtd_validation=False,
            attribute_defaults=False,
            huge_tree=False,
            collect_ids=False,
        )

    def add(self, number: int, text: str, namespaces: Mapping[str, str]) -> None:
        # The text was read by itself before, so it cannot end the call that stands around it.
        # Without the call a list of all nodes found would be made.
        self._expressions[number] = etree.XPath(
            f"boolean({text})", namespaces=namespaces or None, regexp=False, smart_strings=False
        )

    def drop(self, number: int) -> None:
        self._expressions.pop(number, None)

    def judge(self, numbers: list[int], body: bytes) -> tuple[list[int] | None, int, list[int]]:
        self._say(0)
        try:
            root = etree.fromstring(body, self._parser)
        except (etree.XMLSyntaxError, ValueError):
            return None, 0, []
        if root is None or root.getroottree().docinfo.internalDTD is not None:
            return None, 0, []
        true, failed, slow = [], 0, []
        for number in numbers:
            self._say(number)
            began = time.thread_time()
            try:
                if self._expressions[number](root):
                    true.append(number)
            except Exception:  # types that do not go together, or too many nodes: it does not match
                failed += 1
            if time.thread_time() - began > SLOW:
                slow.append(number)
        return true, failed, slow

    def _say(self, number: int) -> None:
        _NOW.pack_into(self._now, 0, number)


def main() -> None:
    """Until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends the process, inside libxml2 too
    link = socket.socket(fileno=os.dup(0))
    evaluator = Evaluator(mmap.mmap(int(sys.argv[1]), mmap.PAGESIZE))
    encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode

    def answer(value: object) -> None:
        data = encode(value)
        link.sendall(_LENGTH.pack(len(data)) + data)

    answer("ready")
    while True:
        (size,) = _LENGTH.unpack(read_exactly(link, _LENGTH.size))
        message = decode(read_exactly(link, size))
        if message[0] == "add":
            evaluator.add(*message[1:])
        elif message[0] == "drop":
            evaluator.drop(message[1])
        else:
            for body in message[2]:
                signal.setitimer(signal.ITIMER_REAL, _ORPHANED)
                verdict = evaluator.judge(message[1], body)
                signal.setitimer(signal.ITIMER_REAL, 0)
                answer(verdict)


if __name__ == "__main__":
    with contextlib.suppress(EOFError, OSError):  # nobody is there any more
        main()
