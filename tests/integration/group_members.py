"""Members of a group as processes, which do as they are told, and the views that they tell."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from antiphon.testing import Child, Control


def member(
    control: Control,
    group: str,
    number: int,
    listen: str | None = None,
    discover: list[str] | None = None,
    secret: str | None = None,
    config: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    faults: dict[str, Any] | None = None,
    wait: bool = False,
) -> None:
    """Joins, if it is to ``wait`` when it is told to; tells every view, and does as it is told."""
    import struct
    import threading
    import time

    import antiphon
    from antiphon.groups import layers
    from antiphon.groups.config import STACKS

    next_from: dict[str, int] = {}
    wrong: list[str] = []
    counted = threading.Condition()
    hang, hangs, go_on = threading.Event(), threading.Event(), threading.Event()

    def take(source: antiphon.Member, data: bytes) -> None:
        if hang.is_set():
            hangs.set()
            go_on.wait(300)
        (sent,) = struct.unpack_from("<Q", data)
        with counted:
            expected = next_from.get(source.name)
            if expected is not None and sent != expected:
                wrong.append(f"{source.name}: {sent} instead of {expected}")
            next_from[source.name] = sent + 1
            counted.notify_all()

    node = None
    if listen is not None:
        node = antiphon.Node(listen=listen, secret=secret)
        node.start()
    settings = dict(options or {})
    chosen = antiphon.GroupConfig(**(config or {}))
    if faults:  # over datagrams, which are sealed
        made = STACKS[settings["stack"]](chosen)
        at = next(i for i, layer in enumerate(made) if layer.name == "membership")
        made.insert(at, layers.Encryption())
        for name, arguments in faults.items():
            made.insert(1, getattr(layers, name)(**arguments))
        settings["stack"] = made
    elif settings.get("stack") == "membership":
        needed = ("tcp", "discovery", "failure-detection", "membership")
        settings["stack"] = [one for one in STACKS["tcp"](chosen) if one.name in needed]
    else:
        settings["config"] = chosen
    one = antiphon.Group(
        group, node=node, discover=discover or "local://", member_name=f"m{number}", **settings
    )
    one.on_message(take)

    @one.on_view
    def seen(view: antiphon.View) -> None:
        control.tell(
            "view",
            id=view.id,
            members=[other.name for other in view.members],
            crashed=[other.name for other in view.crashed],
            left=[other.name for other in view.left],
            at=time.monotonic(),
        )

    if wait:
        control.tell("ready")
        assert control.hear()["order"] == "join"
    with one:
        control.tell("joined", address=one.node.address, took=time.monotonic())
        sent = 0
        while True:
            order = control.hear()
            if order["order"] == "send":
                for _ in range(order["count"]):
                    one.send(struct.pack("<Q", sent) + bytes(order.get("size", 100)), timeout=60)
                    sent += 1
                control.tell("sent", count=sent)
            elif order["order"] == "fill":  # until it does not go on
                began = time.monotonic()
                try:
                    while True:
                        data = struct.pack("<Q", sent) + bytes(order.get("size", 1000))
                        one.send(data, timeout=order["patience"])
                        sent += 1
                except antiphon.AntiphonError as error:
                    took = time.monotonic() - began
                    control.tell("filled", error=type(error).__name__, count=sent, took=took)
            elif order["order"] == "count":
                until = time.monotonic() + 40
                with counted:
                    while time.monotonic() < until and any(
                        next_from.get(name, 0) < at for name, at in order["wanted"].items()
                    ):
                        counted.wait(1.0)
                    control.tell("counted", got=dict(next_from), wrong=list(wrong))
            elif order["order"] == "hang":  # with the next message
                hangs.clear()
                go_on.clear()
                hang.set()
                control.tell("ready")
            elif order["order"] == "hangs":
                control.tell("hangs", so=hangs.wait(40))
            elif order["order"] == "go on":
                hang.clear()
                go_on.set()
            elif order["order"] == "stuck":  # until it knows of so many
                until = time.monotonic() + 40
                while len(one.stuck) != order["count"] and time.monotonic() < until:
                    time.sleep(0.02)
                control.tell("stuck", members=[other.name for other in one.stuck])
            elif order["order"] == "statistics":
                figures = one.statistics()
                layers = {name: dict(counts) for name, counts in figures.layers.items()}
                control.tell(
                    "statistics",
                    view=figures.view,
                    layers=layers,
                    waits=figures.waits,
                    unfinished=figures.unfinished,
                )
            elif order["order"] == "leave":
                break
    control.tell("left")


class Crowd:
    """Processes of one group, and the views that they tell."""

    def __init__(self, stack: ExitStack, name: str, **options: Any) -> None:
        self._stack = stack
        self._options = options
        self.name = name
        self.members: list[Child] = []

    def start(self, **options: Any) -> Child:
        number = len(self.members)
        child = Child(member, group=self.name, number=number, **{**self._options, **options})
        self._stack.enter_context(child)
        self.members.append(child)
        return child

    def start_in_turn(self, size: int, **options: Any) -> None:
        """The first one is the most senior, and so on."""
        for number in range(size):
            self.wait_for(self.start(**options), lambda view, n=number: len(view["members"]) > n)
        for child in self.members[:-1]:
            self.wait_for(child, lambda view: len(view["members"]) == size)

    def wait_for(
        self, child: Child, done: Callable[[dict[str, Any]], bool], timeout: float = 40.0
    ) -> dict[str, Any]:
        """The first view of that kind that it tells."""
        until = time.monotonic() + timeout
        while True:
            fact = child.hear(max(0.1, until - time.monotonic()), "a view")
            if fact["event"] == "view" and done(fact):
                return fact

    def all_see(self, size: int, timeout: float = 40.0) -> None:
        for child in self.members:
            self.wait_for(child, lambda view: len(view["members"]) == size, timeout)


def ask(child: Child, order: str, answer: str, timeout: float = 100.0, **facts: Any) -> Any:
    """Gives an order, and waits for the answer to it."""
    child.tell(order, **facts)
    return until(child, answer, timeout)


def until(child: Child, event: str, timeout: float = 100.0) -> dict[str, Any]:
    """The next of what it tells under that name; views in between are passed over."""
    end = time.monotonic() + timeout
    while True:
        fact = child.hear(max(0.1, end - time.monotonic()), event)
        if fact["event"] == event:
            return fact
