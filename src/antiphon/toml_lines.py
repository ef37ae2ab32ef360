"""On which line of a TOML file a value stands.

tomllib tells lines of syntax errors only, and a value of the right syntax may be wrong all the
same. A parser that keeps positions would be one more dependency; since tomllib has accepted the
text before, a walk over it that knows strings, brackets and comments is enough.
"""

from __future__ import annotations

import re
import tomllib

__all__ = ["Keys", "line_of", "lines_of"]

Keys = tuple[str | int, ...]
"""Keys, and numbers for the elements of arrays: ``("series", 0, "sizes", 2)``."""

_BLANK = re.compile(r"(?:[ \t\r\n,]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ATOM = re.compile(r"[^,\]}\n#]*")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\])*"'
    r"|'[^']*'",
    re.DOTALL,
)


def lines_of(text: str) -> dict[Keys, int]:
    """The line, from 1, of every table, key and element in ``text``, which must be valid TOML."""
    return _Walk(text).lines


def line_of(lines: dict[Keys, int], path: Keys) -> int:
    """The line of ``path``, or of what it is in, if it is not written at all."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


class _Walk:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._arrays: dict[Keys, int] = {}  # arrays of tables, to the number of the latest
        self.lines: dict[Keys, int] = {}
        table: Keys = ()
        self._skip(_BLANK)
        while self._at < len(text):
            if text.startswith("[[", self._at):
                self._at += 2
                table = self._begin_element(self._key())
                self._at += 2
            elif text[self._at] == "[":
                self._at += 1
                table = self._resolve(self._key())
                self._note(table)
                self._at += 1
            else:
                self._pair(table)
            self._skip(_BLANK)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        found = match[0] if match else ""
        self._at += len(found)
        return found

    def _note(self, path: Keys) -> None:
        line = self._text.count("\n", 0, self._at) + 1
        for length in range(1, len(path) + 1):  # a table may come to be by one inside it
            self.lines.setdefault(path[:length], line)

    def _key(self) -> list[str]:
        parts: list[str] = []
        while True:
            self._skip(_SPACE)
            if self._text[self._at] in "\"'":
                parts.append(tomllib.loads(f"key = {self._skip(_STRING)}")["key"])
            else:
                parts.append(self._skip(_BARE_KEY))
            self._skip(_SPACE)
            if not self._text.startswith(".", self._at):
                return parts
            self._at += 1

    def _resolve(self, keys: list[str]) -> Keys:
        path: Keys = ()
        for key in keys:
            path = (*path, key)
            if path in self._arrays:
                path = (*path, self._arrays[path])
        return path

    def _begin_element(self, keys: list[str]) -> Keys:
        array = (*self._resolve(keys[:-1]), keys[-1])
        self._arrays[array] = self._arrays.get(array, -1) + 1
        path = (*array, self._arrays[array])
        self._note(path)
        return path

    def _pair(self, table: Keys) -> None:
        line_start = self._at
        path = (*table, *self._key())
        end, self._at = self._at, line_start
        self._note(path)
        self._at = end + 1  # the equals sign
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: Keys) -> None:
        match self._text[self._at]:
            case '"' | "'":
                self._skip(_STRING)
            case "[":
                self._within("]", path, elements=True)
            case "{":
                self._within("}", path, elements=False)
            case _:
                self._skip(_ATOM)

    def _within(self, closing: str, path: Keys, *, elements: bool) -> None:
        self._at += 1
        self._skip(_BLANK)
        number = 0
        while self._text[self._at] != closing:
            if elements:
                self._note((*path, number))
                self._value((*path, number))
                number += 1
            else:
                self._pair(path)
            self._skip(_BLANK)
        self._at += 1
