"""A role of a run in a JVM, spoken to with the orders of ``lab.worker``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from antiphon.lab.java.programs import COLUMNS, JavaChild
from antiphon.lab.stamps import STAMP_BYTES

__all__ = ["JavaRole", "prepared"]

CHUNK = 1000
# Both are of util-linux, and become the program that they are given.
CLASSES = {"fifo": ("chrt", "--fifo", "10"), "idle": ("chrt", "--idle", "0")}


def prepared(scheduling: str, cores: Sequence[int] | None) -> tuple[str, ...]:
    """What stands before a command line, so that it runs in that class and on those cores."""
    pinned = ("taskset", "--cpu-list", ",".join(map(str, cores))) if cores else ()
    return (*pinned, *CLASSES.get(scheduling, ()))


class JavaRole(JavaChild):
    """Translates orders on their way in, and answers on their way out.

    A plan's threads do not reach a JVM, and ``begin`` says so where they are asked for. Its cores
    and its scheduling class it gets from ``before``, since they are to be those of all its threads.
    """

    def __init__(
        self,
        label: str,
        program: str,
        role: str,
        stack: str = "",
        before: Sequence[str] = (),
    ) -> None:
        super().__init__(label, program, role, before=before)
        self._stack = stack
        self._groups = program == "Groups"
        self._messages = 0
        self._stamps = True
        self._target = 0
        self._answers: deque[Callable[[float], dict[str, Any]]] = deque()

    def tell(self, order: str, **arguments: Any) -> None:
        translate = getattr(self, f"_tell_{order}", None)
        if translate is None:
            self._pass_on(order, **arguments)
        else:
            translate(**arguments)

    def answer(self, timeout: float) -> dict[str, Any]:
        return self._answers.popleft()(timeout)

    def _pass_on(
        self,
        order: str,
        change: Callable[[dict[str, Any]], dict[str, Any]] = lambda answer: answer,
        **arguments: Any,
    ) -> None:
        super().tell(order, **arguments)
        self._answers.append(lambda timeout: change(super(JavaRole, self).answer(timeout)))

    def _say(self, answer: dict[str, Any]) -> None:
        self._answers.append(lambda timeout: answer)

    def _tell_prepare(
        self,
        scheduling: str = "other",
        cores: list[int] | None = None,
        collector: dict[str, Any] | None = None,
        memory_limit: int | None = None,
    ) -> None:
        if memory_limit is not None:
            self._say({"error": "a Java role has a limit of memory only by control groups"})
        else:
            self._say({})

    def _tell_open(self, system: str, config: dict[str, Any], adapter: str) -> None:
        more: dict[str, Any] = {"stack": self._stack} if self._groups else {}
        more |= {"slow": config["slow"]} if config["slow"] else {}
        self._messages = (config["messages"] or 0) if config["targets"] else 0
        # All of a group join the first one; of two, each writes to the other.
        self._target = 0 if self._groups else next(iter(config["targets"]), 0)
        # Too short for a stamp: as from Python, none comes between them.
        self._stamps = config["size"] >= STAMP_BYTES
        more["clocked"] = config["messages"] is not None
        if self._groups and config["pattern"] != "one-way":
            more["expected"] = config["messages"] or 0
        config = {name: config[name] for name in ("size", "index", "host", "timed")}
        self._pass_on("open", **config, **more)

    def _tell_connect(self, addresses: dict[int, str]) -> None:
        more: dict[str, Any] = {"members": len(addresses)} if self._groups else {}
        self._pass_on("connect", address=addresses[self._target], **more)

    def _tell_begin(self, threads: int = 1, rate: float | None = None) -> None:
        if threads != 1:
            self._say({"error": "a Java role sends with one thread"})
        else:
            more: dict[str, Any] = {"messages": self._messages} if self._messages else {}
            more["stamp_all"] = rate is not None
            more |= {} if self._stamps else {"stamp_ms": 0}
            self._pass_on("send" if self._messages else "start", rate=rate or 0, **more)

    def _tell_garbage(self, live_bytes: int, replaced_per_second: float, seed: int) -> None:
        self._pass_on(
            "garbage", live_bytes=live_bytes, replaced_per_second=replaced_per_second, seed=seed
        )

    def _tell_sample(self) -> None:
        self._pass_on("sample", self._sample)

    def _sample(self, facts: dict[str, Any]) -> dict[str, Any]:
        return {**_sample(facts), "done": facts["sent"] >= self._messages}

    def _tell_times(self, most: int = 20_000, end: bool = False) -> None:
        super().tell("latencies", limit=CHUNK, end=end)
        self._answers.append(lambda timeout: self._times(timeout, most, end))

    def _times(self, timeout: float, most: int, end: bool) -> dict[str, Any]:
        times: list[int] = []
        while True:
            facts = super().answer(timeout)
            for row in zip(*(facts[name] for name in COLUMNS), strict=True):
                times.extend(row)
            if not facts["left"] or len(times) >= most * len(COLUMNS):
                return {"times": times, "left": facts["left"], "left_out": facts["dropped"]}
            super().tell("latencies", limit=CHUNK, end=end)


def _sample(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "time_ns": facts["time_ns"],
        "received": facts["messages"],
        "received_bytes": facts["bytes"],
        "sent": facts["sent"],
        "sent_bytes": facts["sent_bytes"],
        "wrong": facts["wrong"],
        "skipped": facts["skipped"],
        "begun_ns": facts["begun_ns"],
        "last_ns": facts["last_ns"],
        "acks": facts["acks"],
        "acked_ns": facts["acked_ns"],
        "garbage_replaced": facts["garbage_replaced"],
        "garbage_missed": facts["garbage_missed"],
        "gc_collections": facts["collections"],
        "gc_pause_ns": int(facts["pause_ms"] * 1e6),
        "events": [
            (when, "view", text)
            for when, text in zip(facts["views_ns"], facts["views"], strict=True)
        ],
    }
