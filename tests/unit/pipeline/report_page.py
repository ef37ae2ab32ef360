"""A report, read as a browser would: its elements, its figures, its words."""

from __future__ import annotations

import base64
import csv
import io
import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from antiphon.pipeline.report import write_report


@dataclass
class Report:
    """Elements with their attributes, in order; figures by key; all words but those of scripts."""

    source: str
    elements: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    blocks: dict[str, Any] = field(default_factory=dict)
    words: str = ""
    files: dict[str, list[list[str]]] = field(default_factory=dict)

    def figure(self, key: str) -> list[dict[str, Any]]:
        """Its facets."""
        facets: list[dict[str, Any]] = self.blocks[f"data-{key}"]["facets"]
        return facets

    @property
    def figures(self) -> list[str]:
        return [name.removeprefix("data-") for name in self.blocks if name.startswith("data-")]


class _Reader(HTMLParser):
    def __init__(self, report: Report) -> None:
        super().__init__(convert_charrefs=True)
        self.report = report
        self.inside: dict[str, str] | None = None
        self.style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.report.elements.append((tag, given))
        if tag == "script":
            self.inside = given
        self.style = self.style or tag == "style"

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self.inside = None
        self.style = self.style and tag != "style"

    def handle_data(self, data: str) -> None:
        if self.inside is None:
            self.report.words += "" if self.style else data
        elif self.inside.get("type") == "application/json":
            self.report.blocks[self.inside["id"]] = json.loads(data)
        else:
            self.report.scripts.append(data)


def parsed(source: str) -> Report:
    report = Report(source)
    _Reader(report).feed(source)
    return report


def read(path: Path) -> Report:
    report = parsed(path.read_text(encoding="utf-8"))
    report.words = " ".join(report.words.replace("\u00a0", " ").split())
    for tag, given in report.elements:
        if tag == "a" and given.get("href", "").startswith("data:text/csv"):
            content = base64.b64decode(given["href"].partition("base64,")[2]).decode()
            report.files[given["download"]] = list(csv.reader(io.StringIO(content)))
    return report


def made(out: Path) -> Report:
    return read(write_report(out))
