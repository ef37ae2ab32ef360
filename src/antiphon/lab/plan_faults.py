"""The faults of a plan's file, each with its line, and the tables in which they are found.

Receives values from `antiphon.lab.plan_tables` and `antiphon.lab.plan_file`, hands the user a
`PlanError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from antiphon.lab.plan import PlanError
from antiphon.lab.plan_values import Reader, Wrong, hint
from antiphon.toml_lines import Keys, line_of

__all__ = ["Document", "Faults", "Table"]

T = TypeVar("T")
U = TypeVar("U")
Document = dict[str, Any]

# Under these, a key of [quick] stands for one key of the plan; elsewhere for a whole value.
_DEPTH = {"times": 2, "workloads": 3, "series": 3}


class Faults:
    """What is wrong with a file, collected."""

    def __init__(self, file: str, lines: dict[Keys, int], document: Document) -> None:
        self._file = file
        self._lines = lines
        self._series: dict[int, str] = {}
        tables = document.get("series")
        for number, table in enumerate(tables if isinstance(tables, list) else ()):
            given = table.get("name") if isinstance(table, dict) else None
            self._series[number] = given if isinstance(given, str) else f"[{number}]"
        self._found: list[PlanError] = []
        self.quick = False
        """Whether the tables that are read are those that ``[quick]`` has changed."""

    def add(self, keys: Keys, what: str, allowed: Iterable[str] = (), value: object = None) -> None:
        """One more; ``keys`` lead to the value, or to the table in which it is missing."""
        line, field = self._place(keys)
        choices = tuple(allowed)
        tail = f"; allowed are {', '.join(choices)}" if choices else ""
        self._found.append(
            PlanError(
                f"{self._file}, line {line}: {field}: {what}{tail}",
                setting=field,
                value=value,
                file=self._file,
                line=line,
                allowed=choices,
            )
        )

    def end(self) -> None:
        """Raise what was found, if anything was."""
        if not self._found:
            return
        found = sorted(self._found, key=lambda fault: fault.line or 0)
        first = found[0]
        raise PlanError(
            "\n".join(map(str, found)),
            setting=first.setting,
            value=first.value,
            file=first.file,
            line=first.line,
            allowed=first.allowed,
            faults=tuple(found),
        )

    def _place(self, keys: Keys) -> tuple[int, str]:
        named: Keys = keys
        if keys[:1] == ("series",) and len(keys) > 1 and isinstance(keys[1], int):
            named = ("series", self._series[keys[1]], *keys[2:])
        words = [key for key in named if isinstance(key, str)]
        if self.quick:
            changed: Keys = ("quick", *named)
            while len(changed) > _DEPTH.get(words[0], 1):
                if changed in self._lines:
                    return self._lines[changed], ".".join(["quick", *words])
                changed = changed[:-1]
            return line_of(self._lines, keys), f"{'.'.join(words)} with [quick] applied"
        return line_of(self._lines, keys), ".".join(words)


class Table:
    """A table of the file, from which values are taken by name; the rest is unknown."""

    def __init__(self, faults: Faults, content: object, keys: Keys) -> None:
        self.faults = faults
        self.keys = keys
        if not isinstance(content, dict):
            faults.add(keys, f"{content!r} is not a table", value=content)
            content = {}
        self.content: Document = content
        self._known: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self.content

    def wrong(self, name: str, what: str, allowed: Iterable[str] = ()) -> None:
        """The value of ``name`` cannot stay."""
        self.faults.add((*self.keys, name), what, allowed, self.content.get(name))

    def get(self, name: str, reader: Reader[T], default: U) -> T | U:
        """The value of ``name``, or the default if it is not given or cannot be used."""
        self._known.append(name)
        if name not in self.content:
            return default
        try:
            return reader(self.content[name])
        except Wrong as wrong:
            element: Keys = () if wrong.at is None else (wrong.at,)
            at = (*self.keys, name, *element)
            self.faults.add(at, wrong.what, wrong.allowed, self.content[name])
            return default

    def need(self, name: str, reader: Reader[T], default: U) -> T | U:
        """As `get`; it is a fault if it is not given."""
        if name not in self.content:
            self.wrong(name, "is missing")
        return self.get(name, reader, default)

    def table(self, name: str) -> Table:
        """The table ``name``, empty if there is none."""
        self._known.append(name)
        return Table(self.faults, self.content.get(name, {}), (*self.keys, name))

    def end(self) -> None:
        """Whatever was not asked for is a fault: a misspelt key would do nothing."""
        for name in self.content:
            if name not in self._known:
                near = hint(name, self._known)
                self.wrong(name, f"there is no such key{near}", self._known)
