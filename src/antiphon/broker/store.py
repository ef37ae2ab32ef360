"""The logs of recorded topics on disk: opening, appending, reading and checking them from Python.

The core writes and reads; a broker calls it without Python. This is the same store for tests and
tools: calls that wait, and plain objects. Receives bytes from whoever records, and hands them back
in the order of their sequences. `docs/explanation/log.md` says what holds after a crash.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, get_args

from antiphon._core import LogAppender, LogReader, LogStore, check_log
from antiphon.errors import AntiphonError, Closed, ConfigError, QueueFull, SendTimeout, StoreFull

__all__ = [
    "Appender",
    "Finding",
    "Fsync",
    "LogBatch",
    "LogInfo",
    "LogRecord",
    "Reader",
    "Receipt",
    "Store",
    "StoreInUse",
    "StoreReport",
    "TopicReport",
    "check_store",
    "raise_for",
]

Fsync = Literal["none", "interval", "always"]

# Above any sensible setting, in bytes as in seconds; nanoseconds of it still fit into 64 bits.
_MOST = 1 << 48


@dataclass(frozen=True)
class Finding:
    """Something about a store's files. ``damage``: what was acknowledged may be gone."""

    damage: bool
    path: str
    position: int
    what: str


@dataclass(frozen=True)
class LogInfo:
    """One topic's log. Sequences from ``first`` to below ``next``, perhaps with gaps."""

    topic: str
    first: int
    next: int
    records: int
    bytes: int
    segments: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class LogRecord:
    """One recorded event. ``properties`` are encoded as they were sent."""

    sequence: int
    time_ns: int
    source: int
    properties: bytes
    data: bytes


@dataclass(frozen=True)
class LogBatch:
    """Records that were written together.

    ``missed`` records just before it are no longer kept; ``damage`` is what was passed over, as
    text, mostly empty.
    """

    epoch: int
    producer: int
    producer_sequence: int
    missed: int
    damage: str
    records: tuple[LogRecord, ...]


@dataclass(frozen=True)
class Receipt:
    """What became of one append. ``sequence`` is 0 when all of it had been there before."""

    token: int
    status: Literal["ok", "full", "failed", "out_of_order", "closed"]
    sequence: int
    count: int
    duplicates: int
    errno: int


class StoreInUse(ConfigError):
    """Another process, or another `Store` of this one, has it open for writing."""


class Store:
    """A directory of logs, one per topic. One process may have it open for writing.

    Raises `ConfigError` for a directory that is in use, no store, or of another format, and for
    settings that make no sense; `OSError` when the disk fails. ``read_only`` looks at a store that
    may be in use, as it is at that moment, and changes nothing. All methods are thread-safe, and
    none needs a running event loop.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fsync: Fsync = "interval",
        interval: float = 0.01,
        segment_bytes: int = 64 << 20,
        segment_records: int = 1 << 20,
        segment_age: float = 3600.0,
        keep_bytes: int = 0,
        keep_age: float = 0.0,
        queue_bytes: int = 80 << 20,
        max_open: int = 256,
        max_producers: int = 4096,
        read_only: bool = False,
    ) -> None:
        if fsync not in get_args(Fsync):
            raise ConfigError(
                f"fsync is {fsync!r}; it is one of {', '.join(get_args(Fsync))}",
                setting="fsync",
                value=fsync,
            )
        for setting, value, least in (
            ("interval", interval, 0),
            ("segment_bytes", segment_bytes, 1),
            ("segment_records", segment_records, 1),
            ("segment_age", segment_age, 0),
            ("keep_bytes", keep_bytes, 0),
            ("keep_age", keep_age, 0),
            ("queue_bytes", queue_bytes, 1),
            ("max_open", max_open, 1),
            ("max_producers", max_producers, 0),
        ):
            if not least <= value < _MOST:
                raise ConfigError(
                    f"{setting} is {value}; it is a number from {least} on",
                    setting=setting,
                    value=value,
                )
        self.path = os.fspath(path)
        # Cleared of slashes at its end: the core finds the parent by the last one.
        given = self.path.rstrip("/") or "/"
        settings = {
            "fsync": fsync,
            "interval": interval,
            "segment_bytes": segment_bytes,
            "segment_records": segment_records,
            "segment_age": segment_age,
            "keep_bytes": keep_bytes,
            "keep_age": keep_age,
            "queue_bytes": queue_bytes,
            "max_open": max_open,
            "max_producers": max_producers,
            "writable": not read_only,
        }
        try:
            self._core = LogStore(given, settings)
        except ConfigError as error:
            if not str(error).startswith(f"{given} is in use"):
                raise
            raise StoreInUse(
                f"{error}; end that one, or give another directory",
                setting="store",
                value=self.path,
            ) from None

    def topics(self) -> list[str]:
        """All topics that have a log, in order."""
        return [_text(topic) for topic in self._core.topics()]

    def log(self, topic: str) -> LogInfo:
        """What is known of a topic's log; opens it, which may read a whole segment."""
        facts = self._core.facts(_bytes(topic))
        return LogInfo(
            topic=topic, **{**facts, "findings": tuple(map(_finding, facts["findings"]))}
        )

    def has_open(self, topic: str) -> bool:
        """Whether its log is open already. Never waits for the disk."""
        return self._core.has_open(_bytes(topic))

    def append(
        self,
        topic: str,
        data: bytes | Sequence[bytes],
        *,
        properties: bytes = b"",
        time_ns: int | None = None,
        source: int = 0,
        producer: int = 0,
        producer_sequence: int = 0,
        timeout: float = 30.0,
    ) -> Receipt:
        """Append one record or several, all or none, and wait for the acknowledgement.

        Raises `StoreFull` when the disk is, `OSError` when it failed, `SendTimeout`.
        """
        appender = self.appender(topic)
        token = appender.submit(
            data,
            properties=properties,
            time_ns=time_ns,
            source=source,
            producer=producer,
            producer_sequence=producer_sequence,
            timeout=timeout,
        )
        return appender.wait(token, timeout)

    def appender(self, topic: str, capacity: int = 65536) -> Appender:
        """For appends that do not wait for each other."""
        return Appender(self, topic, self._core.appender(_bytes(topic), capacity))

    def reader(
        self,
        topic: str,
        start: Literal["earliest", "latest"] | int = "earliest",
        *,
        time_ns: int | None = None,
    ) -> Reader:
        """Reads from the earliest, the latest, a sequence, or the first record of that time on."""
        if time_ns is not None:
            return Reader(self._core.reader(_bytes(topic), "time", time_ns))
        if isinstance(start, int):
            return Reader(self._core.reader(_bytes(topic), "sequence", max(0, start)))
        return Reader(self._core.reader(_bytes(topic), start, 0))

    def statistics(self) -> dict[str, int]:
        """Counts since it was opened, and what waits now."""
        return self._core.statistics()

    def take_damages(self) -> list[tuple[str, str]]:
        """Topics, and what could not be read of their logs; of each place once, as it is found."""
        return [(_text(topic), _text(what)) for topic, what in self._core.take_damages()]

    @property
    def epoch(self) -> int:
        """How often it was opened for writing."""
        return self._core.epoch

    @property
    def id(self) -> int:
        """Drawn when the directory became a store: one that was emptied and begun anew has another.

        0: not known, of one that is only looked at and was made by an earlier version.
        """
        return self._core.id

    def close(self) -> None:
        """Write what waits, and end every log so that it goes on without a gap."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Appender:
    """Appends to one topic without waiting for each. Thread-safe."""

    def __init__(self, store: Store, topic: str, core: LogAppender) -> None:
        self._store = store
        self._topic = topic
        self._core = core

    def submit(
        self,
        data: bytes | Sequence[bytes],
        *,
        properties: bytes = b"",
        time_ns: int | None = None,
        source: int = 0,
        producer: int = 0,
        producer_sequence: int = 0,
        timeout: float = 0.0,
    ) -> int:
        """Hand over a record or several; the token for `wait`. `QueueFull` without room in time."""
        given = data if isinstance(data, bytes) else list(data)
        size = len(given) if isinstance(given, bytes) else sum(map(len, given))
        until = time.monotonic() + timeout
        while True:
            token = self._core.submit(
                given,
                properties,
                time.time_ns() if time_ns is None else time_ns,
                source,
                producer,
                producer_sequence,
            )
            if token:
                return token
            left = until - time.monotonic()
            if left <= 0 or not self._core.wait_for_room(size, left):
                raise QueueFull(
                    f"the log of {self._topic!r} is behind: its disk is slower than its appenders",
                    pending=self._core.under_way,
                )

    def wait(self, token: int, timeout: float = 30.0) -> Receipt:
        """The receipt of one append; raises as `Store.append` does."""
        found = self._core.wait(token, timeout)
        if found is None:
            raise SendTimeout(
                f"nothing was acknowledged in {timeout:.3g} s; the disk hangs, or is very slow",
                waited=timeout,
            )
        receipt = _receipt(found)
        raise_for(receipt, self._store.path)
        return receipt

    def flush(self, timeout: float = 30.0) -> list[Receipt]:
        """Wait for all that were submitted; their receipts, and those of before, in order."""
        if not self._core.wait_all(timeout):
            raise SendTimeout(
                f"{self._core.under_way} appends were not acknowledged in {timeout:.3g} s",
                waited=timeout,
            )
        return self.take()

    def take(self) -> list[Receipt]:
        """The receipts that are there, in order; each is given once. Never waits."""
        return [_receipt(one) for one in self._core.take()]


class Reader:
    """Reads one log, from one thread at a time. Sees what is acknowledged, and nothing else.

    `WouldBlock` while another thread reads with it.
    """

    def __init__(self, core: LogReader) -> None:
        self._core = core

    def read(self, timeout: float = 0.0) -> LogBatch | None:
        """The next batch, or None in so many seconds. `Closed` when its store is, at the end."""
        found = self._core.read(timeout)
        if found is None:
            return None
        epoch, producer, first, missed, damage, records = found
        return LogBatch(
            epoch, producer, first, missed, _text(damage), tuple(LogRecord(*one) for one in records)
        )

    def read_packed(
        self, size: int = 1 << 20, timeout: float = 0.0
    ) -> tuple[bytes, bytes, bytes, int, str] | None:
        """Many records at once, without an object for each.

        Sequences (uint64) and n+1 offsets (int64) as bytes, the data of all records in one piece;
        how many were missed before the first, and what was passed over there, as in `LogBatch`.
        """
        found = self._core.read_packed(size, timeout)
        if found is None:
            return None
        sequences, offsets, data, missed, damage = found
        return sequences, offsets, data, missed, _text(damage)

    def __iter__(self) -> Iterator[LogRecord]:
        """Every record that is there now; does not wait for more."""
        while True:
            try:
                batch = self.read()
            except Closed:
                return
            if batch is None:
                return
            yield from batch.records


@dataclass(frozen=True)
class TopicReport:
    """What `check_store` found of one topic; ``topic`` is empty if no segment tells."""

    topic: str
    directory: str
    segments: int
    batches: int
    records: int
    bytes: int
    first: int
    last: int
    first_ns: int
    last_ns: int
    epoch: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class StoreReport:
    """What `check_store` found. ``in_use``: ends of logs may be in the middle of a write."""

    epoch: int
    in_use: bool
    topics: tuple[TopicReport, ...]

    @property
    def damaged(self) -> bool:
        """Whether anything that was acknowledged may be gone."""
        return any(finding.damage for topic in self.topics for finding in topic.findings)


def check_store(path: str | os.PathLike[str]) -> StoreReport:
    """Read every batch of a store and its checksums; changes nothing, also beside a broker."""
    found = check_log(os.fspath(path).rstrip("/") or "/")
    topics = [
        TopicReport(
            **{
                **one,
                "topic": _text(one["topic"]),
                "directory": _text(one["directory"]),
                "findings": tuple(map(_finding, one["findings"])),
            }
        )
        for one in found["topics"]
    ]
    return StoreReport(found["epoch"], found["in_use"], tuple(topics))


def raise_for(receipt: Receipt, path: str) -> None:
    """Raises what an append that was not acknowledged means; returns for one that was."""
    if receipt.status == "ok":
        return
    why = os.strerror(receipt.errno)
    if receipt.status == "full":
        raise StoreFull(
            f"{path} has no space left ({why}); free some, or let the log keep less", path=path
        )
    if receipt.status == "out_of_order":
        raise AntiphonError("an earlier append of this producer failed; repeat that one first")
    if receipt.status == "closed":
        raise Closed("this store is closed", what="store")
    raise OSError(receipt.errno or errno.EIO, f"the disk failed: {why}", path)


def _receipt(found: tuple[Any, ...]) -> Receipt:
    return Receipt(*found)


def _finding(found: tuple[bool, bytes, int, bytes]) -> Finding:
    return Finding(found[0], _text(found[1]), found[2], _text(found[3]))


# A topic is text; what stands in a damaged file may be anything.
def _text(topic: bytes) -> str:
    return topic.decode(errors="surrogateescape")


def _bytes(topic: str) -> bytes:
    return topic.encode(errors="surrogateescape")
