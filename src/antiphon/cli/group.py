"""``antiphon group``: be a member of a group from a shell."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import select
import sys
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from antiphon.cli.secret import (
    SecretFile,
    TlsAuthority,
    TlsCertificate,
    TlsKey,
    read_secret,
    read_tls,
)
from antiphon.errors import Closed
from antiphon.groups import Group, GroupStatistics, Member, View
from antiphon.node import Node

__all__ = ["group"]

_STATISTICS = "/stats"
_PATIENCE = 2.0


def group(
    name: Annotated[str, typer.Argument(help="The group's name: all members give the same.")],
    discover: Annotated[
        list[str] | None,
        typer.Option(help="How members are found; several may be given. Default: local://"),
    ] = None,
    stack: Annotated[
        str, typer.Option(help="tcp, udp, udp-flow, udp-fc, or paper- and one of them.")
    ] = "tcp",
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Where others reach this member: tcp://host:port or unix:///path. Default: as "
            "--discover has it.",
        ),
    ] = None,
    secret_file: SecretFile = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_authority: TlsAuthority = None,
    member_name: Annotated[
        str | None, typer.Option("--as", help="What the others call this member.")
    ] = None,
    views: Annotated[
        bool, typer.Option("--views", help="Only views; nothing is read or sent.")
    ] = False,
    seconds: Annotated[float | None, typer.Option(min=0, help="Leave after so long.")] = None,
    draw: Annotated[bool, typer.Option("--draw", help="Print the stack, and do not join.")] = False,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="At the end, print what was counted, by layer.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Join a group: lines that you type go to all, what members send and every view are printed.

    It ends with Ctrl-C, with the end of the input (unless --seconds says otherwise), or after
    --seconds. The line /stats is not sent: it prints what the group and its layers have counted.

    Example: antiphon group lounge --as anna
    """
    ways = discover or ["local://"]
    proof: dict[str, Any] = {
        "secret": read_secret(secret_file),
        "tls": read_tls(tls_certificate, tls_key, tls_authority),
    }
    node = None
    if listen is not None:  # the group's own would listen where its way of finding says
        node, proof = Node(listen=listen, **proof), {}
    with contextlib.ExitStack() as closing:
        if node is not None:
            closing.callback(node.close)
        one = Group(name, discover=ways, stack=stack, node=node, member_name=member_name, **proof)
        if draw:
            print(one.drawing)
            one.close()
            return
        _be_in(one, views, seconds, statistics, as_json)


def _be_in(one: Group, views: bool, seconds: float | None, statistics: bool, as_json: bool) -> None:
    said = threading.Lock()

    def say(facts: dict[str, Any], text: str) -> None:
        with said:
            print(json.dumps(facts) if as_json else text, flush=True)

    @one.on_view
    def seen(view: View) -> None:
        say(
            {
                "view": view.id,
                "members": [member.name for member in view.members],
                "coordinator": view.coordinator.name,
                "primary": view.primary,
                "reason": view.reason,
            },
            f"-- {view}",
        )

    @one.on_message
    def came(source: Member, data: bytes) -> None:
        if not views:
            text = data.decode(errors="backslashreplace")
            say({"from": source.name, "data": text}, f"{source.name}: {text}")

    until = None if seconds is None else time.monotonic() + seconds

    def show() -> None:
        counts = one.statistics()
        say({"statistics": dataclasses.asdict(counts)}, _table(counts))

    with one:
        try:
            if views:
                _wait(until)
            else:
                _read(one, until, show)
        finally:
            if statistics and not one.closed:
                _settle(one)
                show()


def _settle(one: Group) -> None:
    """Until what was sent has come to all, so that the last figures have it; not for long."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        counts = one.statistics()
        if not counts.window_used and not counts.pending:
            return
        time.sleep(0.01)


def _table(counts: GroupStatistics) -> str:
    """The group's own counts, then a line for each layer that counts, from the transport upward."""
    own = {name: value for name, value in dataclasses.asdict(counts).items() if name != "layers"}
    rows = [("group", own), *((name, dict(of)) for name, of in counts.layers.items() if of)]
    width = max(len(name) for name, _ in rows)
    return "\n".join(
        f"-- {name:<{width}}  "
        + "  ".join(f"{what} {round(value, 3)}" for what, value in of.items())
        for name, of in rows
    )


def _read(one: Group, until: float | None, show: Callable[[], None]) -> None:
    """Lines of standard input, to all."""
    while until is None or time.monotonic() < until:
        ready, _, _ = select.select([sys.stdin], [], [], 0.1)
        if one.closed:
            raise Closed("the group was left", what="group")
        if not ready:
            continue
        line = sys.stdin.readline()
        if not line:
            if until is not None:
                _wait(until)
            return
        if line.strip() == _STATISTICS:
            show()
        elif line.strip():
            one.send(line.rstrip("\n").encode())


def _wait(until: float | None) -> None:
    while until is None or time.monotonic() < until:
        time.sleep(0.05 if until is None else min(0.05, max(0.0, until - time.monotonic())))
