"""XPath over bodies, evaluated in a process that is killed when it takes too long.

One process, started for the first body and again after each end; one batch of bodies at a time,
each with a deadline. An expression that was too slow is set aside for a while, longer each time, so
it cannot cost the others more than a small part of the time.

Receives expressions and bodies from `antiphon.topics.judge`; hands verdicts back.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["Expression", "Verdict", "XmlJudge"]

log = logging.getLogger("antiphon.topics")

DEADLINE = 1.0
"""Seconds for one body and all its expressions."""

_BATCH = 5.0  # seconds for all bodies of one call; the rest is not judged
_STARTS = 15.0  # seconds that a process may take to begin
_MOST_WAITING = 8  # threads, behind the one whose turn it is
_MOST_KNOWN = 16384  # expressions in the process
_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_FORGIVEN = 600.0  # seconds after which a pause is the first one again
_HELPER = Path(__file__).with_name("xml_helper.py")
_LENGTH = struct.Struct("<I")
_NOW = struct.Struct("<Q")


@dataclass(slots=True, eq=False)
class Expression:
    """An expression that somebody asks for, and how it has behaved."""

    number: int
    text: str
    namespaces: dict[str, str]
    strikes: int = 0
    aside_until: float = 0.0


@dataclass(slots=True)
class Verdict:
    """What is known of one body."""

    true: set[int] = field(default_factory=set)
    is_xml: bool = True
    failed: int = 0
    timed_out: bool = False
    """An expression was not evaluated: it took too long, or is set aside for that."""


class XmlJudge:
    """The process, and the way to it. Thread-safe."""

    def __init__(self, deadline: float = DEADLINE) -> None:
        self._deadline = deadline
        self._turn = threading.Lock()
        self._owner: int | None = None
        self._waiting = 0
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._now: mmap.mmap | None = None
        self._known: set[int] = set()
        self._dropped: list[int] = []
        self._start_again = 0.0
        self.starts = 0
        """Processes so far."""

    @property
    def pid(self) -> int | None:
        """Of the process, if there is one."""
        process = self._process
        return None if process is None else process.pid

    def judge(
        self, expressions: Mapping[int, Expression], bodies: Sequence[bytes]
    ) -> list[Verdict]:
        """A verdict for each body. Waits for at most some seconds; does not raise.

        With too many threads waiting already, or in a signal handler inside another call,
        nothing is evaluated.
        """
        verdicts: list[Verdict] = []
        with self._my_turn() as mine:
            until = time.monotonic() + _BATCH
            while mine and len(verdicts) < len(bodies) and time.monotonic() < until:
                if self._closed:
                    break
                self._judge_some(expressions, bodies[len(verdicts) :], verdicts, until)
        return verdicts + [Verdict(timed_out=True) for _ in bodies[len(verdicts) :]]

    def forget(self, number: int) -> None:
        """Nobody asks for this expression any more."""
        if number in self._known:
            self._dropped.append(number)

    def close(self) -> None:
        """Ends the process. Idempotent."""
        self._closed = True
        with self._my_turn(patience=2 * _BATCH):
            self._end()

    # --- one at a time ----------------------------------------------------------------------

    @contextlib.contextmanager
    def _my_turn(self, patience: float = _BATCH) -> Iterator[bool]:
        me = threading.get_ident()
        if self._owner == me or self._waiting > _MOST_WAITING:
            yield False
            return
        self._waiting += 1
        try:
            mine = self._turn.acquire(timeout=patience)
        finally:
            self._waiting -= 1
        if not mine:
            yield False
            return
        self._owner = me
        try:
            yield True
        finally:
            self._owner = None
            self._turn.release()

    def _judge_some(
        self,
        expressions: Mapping[int, Expression],
        bodies: Sequence[bytes],
        verdicts: list[Verdict],
        until: float,
    ) -> None:
        """As many as go without trouble. Each call gives at least one verdict."""
        now = time.monotonic()
        usable = [number for number, one in expressions.items() if one.aside_until <= now]
        aside = len(usable) < len(expressions)
        try:
            if usable:
                self._prepare(expressions, usable)
                self._send(["judge", usable, bodies])
            for _ in bodies:
                if time.monotonic() >= until:
                    self._end()
                    return
                verdict = Verdict(timed_out=aside)
                if usable:
                    true, verdict.failed, slow = self._receive(self._deadline)
                    verdict.is_xml = true is not None
                    verdict.true.update(true or ())
                    for number in slow:
                        self._set_aside(expressions[number])
                verdicts.append(verdict)
        except (OSError, EOFError, ValueError, msgspec.DecodeError) as error:
            self._failed(expressions, error)
            late = isinstance(error, TimeoutError)
            verdicts.append(Verdict(timed_out=late or aside, failed=not late))
        except BaseException:  # Ctrl-C: what comes next on the link would be of this call
            self._end()
            raise

    def _failed(self, expressions: Mapping[int, Expression], error: BaseException) -> None:
        if self._process is None:
            return  # it could not be started, which was said
        guilty = 0 if self._now is None else _NOW.unpack_from(self._now, 0)[0]
        self._end()
        one = expressions.get(guilty)
        if not isinstance(error, TimeoutError):
            what = "a body" if one is None else f"XPath {one.text!r}"
            log.warning("the process that evaluates XPath ended at %s: %s", what, error)
        if one is not None:
            self._set_aside(one)

    def _set_aside(self, one: Expression) -> None:
        now = time.monotonic()
        if now - one.aside_until > _FORGIVEN:
            one.strikes = 0
        pause = min(_LONGEST_PAUSE, _PAUSE * 2**one.strikes)
        one.strikes += 1
        one.aside_until = now + pause
        log.warning("XPath %r takes too long; nothing matches it for %g s", one.text, pause)

    # --- the process ------------------------------------------------------------------------

    def _prepare(self, expressions: Mapping[int, Expression], numbers: Iterable[int]) -> None:
        if self._process is None or self._process.poll() is not None:
            self._start()
        if len(self._known) > _MOST_KNOWN:  # some were forgotten while they were in use
            self._dropped += self._known.difference(numbers)
        while self._dropped:
            number = self._dropped.pop()
            if number in self._known:
                self._known.discard(number)
                self._send(["drop", number])
        for number in numbers:
            if number not in self._known:
                one = expressions[number]
                self._send(["add", number, one.text, one.namespaces])
                self._known.add(number)

    def _start(self) -> None:
        self._end()
        if self._closed:
            raise OSError("it was closed")
        if time.monotonic() < self._start_again:
            raise OSError("it was tried a moment ago")
        try:
            self._spawn()
        except OSError as error:
            self._end()
            self._start_again = time.monotonic() + _PAUSE
            log.error("the process that evaluates XPath cannot be started: %s", error)
            raise
        self.starts += 1

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        page = os.memfd_create("antiphon-xpath", os.MFD_CLOEXEC)
        try:
            os.ftruncate(page, mmap.PAGESIZE)
            self._now = mmap.mmap(page, mmap.PAGESIZE)
            # A session of its own: Ctrl-C is for us, who end it then.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_HELPER), str(page)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(page,),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(page)
        self._link = ours
        try:
            self._receive(_STARTS)
        except (OSError, EOFError) as error:
            raise OSError(f"{sys.executable} {_HELPER} does not answer ({error})") from None

    def _end(self) -> None:
        process, self._process = self._process, None
        link, self._link = self._link, None
        now, self._now = self._now, None
        self._known.clear()
        if link is not None:
            link.close()
        if process is not None:
            process.kill()
            process.wait()
        if now is not None:
            now.close()

    def _send(self, message: object) -> None:
        assert self._link is not None
        data = msgspec.msgpack.encode(message)
        self._link.settimeout(_BATCH)
        self._link.sendall(_LENGTH.pack(len(data)) + data)

    def _receive(self, patience: float) -> Any:
        until = time.monotonic() + patience
        (size,) = _LENGTH.unpack(self._read(_LENGTH.size, until))
        return msgspec.msgpack.decode(self._read(size, until))

    def _read(self, size: int, until: float) -> bytes:
        assert self._link is not None
        parts = []
        while size:
            # With no time left there is one more look: the answer may be there, and we may be late.
            self._link.settimeout(max(0.0, until - time.monotonic()))
            try:
                part = self._link.recv(size)
            except BlockingIOError:
                raise TimeoutError("no answer in time") from None
            if not part:
                raise EOFError("it died")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
