"""``antiphon demo``: a few lines of code, then the same lines live.

Each act is a module of `antiphon.cli.acts`; this one raises the curtain. Ctrl-C at any moment ends
the processes of the act that runs, and the command with status 130.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from antiphon._version import __version__
from antiphon.cli.acts import messages, orders, report, shares
from antiphon.cli.acts.stage import Act, ActFailed, Stage
from antiphon.errors import AntiphonError

__all__ = ["ACTS", "demo"]

ACTS: tuple[Act, ...] = (messages.ACT, shares.ACT, orders.ACT, report.ACT)


def demo(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the figures only, as one JSON document.")
    ] = False,
) -> None:
    """Show the code of each act, then run it live.

    Example: antiphon demo
    """
    console = Console(quiet=as_json)
    stage = Stage(console)
    stage.say(f"antiphon {__version__}: {_length(ACTS)}; Ctrl-C ends it")
    figures = {}
    for number, act in enumerate(ACTS, 1):
        stage.title(f"{number}. {act.title}")
        try:
            figures[act.name] = act.perform(stage)
        except ActFailed as error:
            raise AntiphonError(f"the demonstration stopped: {error}") from None
    if as_json:
        typer.echo(json.dumps({"schema_version": 1, "acts": figures}, indent=2))
        return
    stage.say("The whole comparison: antiphon bench node, antiphon bench request.")
    stage.say("The code to begin with: README.md.")


def _length(acts: tuple[Act, ...]) -> str:
    count = "1 act" if len(acts) == 1 else f"{len(acts)} acts"
    return f"{count}, about {sum(act.seconds for act in acts):.0f} s"
