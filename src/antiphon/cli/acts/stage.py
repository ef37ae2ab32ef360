"""What an act and its scenes are, and the stage that they speak on.

A stage prints for people, or keeps silent under ``--json``. With a terminal it colours and shows
what is running now; without one, as in a log, it prints the same lines plainly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

__all__ = ["Act", "ActFailed", "Scene", "Stage"]

# Widest line of code that an act may show: it has to fit a terminal of 80 columns, indented.
CODE_COLUMNS = 76


class ActFailed(Exception):
    """The act could not show what it promised; the text is one line that says why."""


class Stage:
    """Where an act prints. Everything goes through here, so that ``--json`` can be silent."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @property
    def block(self) -> str:
        """What bars are made of: a full block, or ``#`` where that cannot be shown."""
        return "#" if self._console.options.ascii_only else "\N{FULL BLOCK}"

    @property
    def _line(self) -> str:
        return "-" if self._console.options.ascii_only else "\N{BOX DRAWINGS LIGHT HORIZONTAL}"

    def title(self, text: str) -> None:
        """The head line of an act."""
        self._console.print()
        self._console.rule(Text(text, style="bold"), align="left", characters=self._line)

    def code(self, text: str) -> None:
        """The few lines that an act is about."""
        code = text.strip()
        if self._console.is_terminal:
            shown = Syntax(code, "python", theme="ansi_dark", background_color="default")
            self._console.print(Padding(shown, (1, 0, 1, 2)))
            return
        # Not padded with spaces to the width of a screen that is not there.
        self.say("\n" + "\n".join(f"  {line}".rstrip() for line in code.splitlines()) + "\n")

    def say(self, text: str, style: str = "") -> None:
        """One line of text, as it is: no markup, no colours of its own."""
        self._console.print(
            text, style=style or None, markup=False, highlight=False, soft_wrap=True
        )

    def show(self, table: Table) -> None:
        """A table of results."""
        self._console.print(table)

    @contextlib.contextmanager
    def now(self, text: str) -> Iterator[None]:
        """Says what is running while it runs, on one line that goes away again.

        Nothing is redrawn meanwhile: a thread that draws would compete with what is measured.
        Without a terminal nothing is shown at all; the line that follows says it.
        """
        if not self._console.is_terminal:
            yield
            return
        self._console.print(f"  {text} ...", style="dim", markup=False, highlight=False, end="\r")
        try:
            yield
        finally:
            self._console.print(" " * (len(text) + 6), end="\r")


@dataclass(frozen=True, slots=True)
class Scene:
    """A few lines of code, and what runs them live.

    ``code`` is shown first, then ``run`` is called. It prints on the stage, returns its figures as
    plain values, and raises `ActFailed` when there is nothing to show. Interrupted at any moment,
    it leaves no process behind.
    """

    code: str
    run: Callable[[Stage], dict[str, object]]


@dataclass(frozen=True, slots=True)
class Act:
    """One part of the demonstration: scenes, one after the other. Their figures go together."""

    name: str
    title: str
    seconds: float
    scenes: tuple[Scene, ...]

    def perform(self, stage: Stage) -> dict[str, object]:
        """Show every scene; the figures of all."""
        figures: dict[str, object] = {}
        for scene in self.scenes:
            stage.code(scene.code)
            figures |= scene.run(stage)
        return figures
