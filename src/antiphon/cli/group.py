"""``antiphon group``: be a member of a group from a shell."""

from __future__ import annotations

import json
import select
import sys
import threading
import time
from typing import Annotated, Any

import typer

from antiphon.cli.secret import SecretFile, read_secret
from antiphon.errors import Closed
from antiphon.groups import Group, Member, View

__all__ = ["group"]


def group(
    name: Annotated[str, typer.Argument(help="The group's name: all members give the same.")],
    discover: Annotated[
        list[str] | None,
        typer.Option(help="How members are found; several may be given. Default: local://"),
    ] = None,
    stack: Annotated[
        str, typer.Option(help="tcp, udp, udp-flow, udp-fc, or paper- and one of them.")
    ] = "tcp",
    secret_file: SecretFile = None,
    member_name: Annotated[
        str | None, typer.Option("--as", help="What the others call this member.")
    ] = None,
    views: Annotated[
        bool, typer.Option("--views", help="Only views; nothing is read or sent.")
    ] = False,
    seconds: Annotated[float | None, typer.Option(min=0, help="Leave after so long.")] = None,
    draw: Annotated[bool, typer.Option("--draw", help="Print the stack, and do not join.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Join a group: lines that you type go to all, what members send and every view are printed.

    It ends with Ctrl-C, with the end of the input (unless --seconds says otherwise), or after
    --seconds.

    Example: antiphon group lounge --as anna
    """
    ways = discover or ["local://"]
    one = Group(
        name, discover=ways, stack=stack, secret=read_secret(secret_file), member_name=member_name
    )
    if draw:
        print(one.drawing)
        one.close()
        return
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
    with one:
        if views:
            _wait(until)
        else:
            _read(one, until)


def _read(one: Group, until: float | None) -> None:
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
        if line.strip():
            one.send(line.rstrip("\n").encode())


def _wait(until: float | None) -> None:
    while until is None or time.monotonic() < until:
        time.sleep(0.05 if until is None else min(0.05, max(0.0, until - time.monotonic())))
