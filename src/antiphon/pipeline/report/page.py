"""The HTML file: everything in it, and nothing that it would have to fetch.

Every text that comes from data goes through `text`; figures lie in blocks of JSON in which no tag
can end. The page's own policy forbids any request, and any script but the two that belong to it.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from antiphon.errors import ConfigError
from antiphon.pipeline.report.looks import DARK, LIGHT, PAPER
from antiphon.pipeline.report.shape import Absent, Facet, Figure, Grid
from antiphon.pipeline.report.units import cell, plural

__all__ = [
    "CSV_ROWS",
    "TABLE_ROWS",
    "Section",
    "grid_html",
    "page",
    "plotly_script",
    "sentence",
    "strong",
    "text",
]

TABLE_ROWS = 200
CSV_ROWS = 5_000
_HERE = Path(__file__).parent
_WIDE = 44
# Of the characters that Unicode leaves to everybody's own use.
_STRONG = ("\ue000", "\ue001")


@dataclass(slots=True)
class Section:
    """A heading, what is said first, and its figures. ``first`` is HTML already."""

    key: str
    title: str
    first: str = ""
    figures: list[Figure | Absent] = field(default_factory=list)


def text(value: object) -> str:
    """Anything, as text in HTML, also within quotes."""
    return html.escape(str(value), quote=True)


def sentence(value: str) -> str:
    """The same, of a sentence in which `strong` has marked names."""
    return text(value).replace(_STRONG[0], "<b>").replace(_STRONG[1], "</b>")


def strong(name: str) -> str:
    """To be set in bold; a name cannot contain the marks itself."""
    for mark in _STRONG:
        name = name.replace(mark, "")
    return name.join(_STRONG)


def page(title: str, head: str, sections: Sequence[Section], foot: str) -> str:
    """The whole file."""
    plotly, own = plotly_script(), (_HERE / "page.js").read_text(encoding="utf-8")
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"script-src {_hash(plotly)} {_hash(own)}; base-uri 'none'; form-action 'none'"
    )
    styles = (_HERE / "page.css").read_text(encoding="utf-8")
    palettes = {"light": LIGHT, "dark": DARK}
    body = "\n".join(_section(section) for section in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="color-scheme" content="light dark">
<title>{text(title)}</title>
<link rel="icon" href="data:,">
<style>
{styles}</style>
</head>
<body>
<div class="shell">
<header>
{head}
</header>
{_contents(sections)}
<main>
{body}
</main>
<footer>
{foot}
</footer>
</div>
<noscript><p class="shell">The figures need JavaScript; the tables do not.</p></noscript>
<script type="application/json" id="palettes">{_json(palettes)}</script>
<script>{plotly}</script>
<script>{own}</script>
</body>
</html>
"""


def plotly_script() -> str:
    """Plotly's own file, out of its Python package: nothing is fetched, now or later."""
    try:
        import plotly
    except ImportError as error:
        raise ConfigError(
            "the report needs plotly; install it with: pip install 'antiphon[spark]'",
            setting="plotly",
        ) from error
    path = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    return path.read_text(encoding="utf-8").replace("</script", "<\\/script")


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _json(value: Any) -> str:
    """Safe within a script element: no tag and no comment can begin in it."""
    made = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return made.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _finite(value: Any) -> Any:
    """JSON has no infinity: such a point is not drawn."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return value


def _contents(sections: Sequence[Section]) -> str:
    lines = []
    for section in sections:
        lines.append(f'<li><a href="#{section.key}">{text(section.title)}</a></li>')
        lines += [
            f'<li class="minor"><a href="#{one.key}">{text(one.title)}</a></li>'
            for one in section.figures
            if isinstance(one, Figure)
        ]
    return (
        '<nav class="contents" aria-label="Contents"><details><summary>Contents</summary><ol>'
        + "".join(lines)
        + "</ol></details></nav>"
    )


def _section(section: Section) -> str:
    drawn = [_figure(one) for one in section.figures if isinstance(one, Figure)]
    absent = [_absent(one) for one in section.figures if isinstance(one, Absent)]
    return "\n".join(
        [
            f'<section id="{section.key}"><h2>{text(section.title)}</h2>',
            section.first,
            *drawn,
            *absent,
            "</section>",
        ]
    )


def _absent(one: Absent) -> str:
    return (
        f'<p class="absent" id="{one.key}"><b>{text(one.title)}</b> '
        f'<span class="muted">Not measured here. {text(one.hint)}</span></p>'
    )


def _figure(figure: Figure) -> str:
    start = figure.start
    if start is None:
        # The view that compares the most; of several the first.
        start = max(range(len(figure.facets)), key=lambda at: (_content(figure.facets[at]), -at))
    data = {
        "start": start,
        "facets": [
            {
                "at": facet.at,
                "says": facet.says,
                "traces": facet.traces,
                "layout": facet.layout,
                "height": facet.height,
            }
            for facet in figure.facets
        ],
    }
    notes = "".join(f'<p class="notes">{text(note)}</p>' for note in dict.fromkeys(figure.notes))
    return f"""<figure id="{figure.key}" data-figure="data-{figure.key}">
<h3>{text(figure.title)}</h3>
<p>{text(figure.reading)}</p>
{_chips(figure)}
<p class="says">{text(figure.facets[start].says)}</p>
<div class="plot wait" role="img" aria-label="{text(figure.title)} {text(figure.reading)}"
 style="min-height:{figure.facets[start].height}px"></div>
{notes}
{_behind(figure)}
{_papers(figure)}
<script type="application/json" id="data-{figure.key}">{_json(data)}</script>
</figure>"""


def _content(facet: Facet) -> int:
    """How many traces of ours it has."""
    return sum(trace.get("line", {}).get("color") != PAPER for trace in facet.traces)


def _chips(figure: Figure) -> str:
    rows = []
    for which, dimension in enumerate(figure.dimensions):
        values = dict.fromkeys(facet.at[which] for facet in figure.facets)
        buttons = "".join(
            f'<button type="button" data-value="{text(value)}" aria-pressed="false">'
            f"{text(value)}</button>"
            for value in values
        )
        rows.append(
            f'<div class="chips" role="group" aria-label="{text(dimension)}">'
            f"<span>{text(dimension)}</span>{buttons}</div>"
        )
    return "\n".join(rows)


def _behind(figure: Figure) -> str:
    """The numbers, one click away, and as a file."""
    count = len(figure.grid.rows)
    listed = base64.b64encode(_csv(figure.grid).encode()).decode()
    said = f"the first {CSV_ROWS:,} of {count:,} rows"
    if count <= CSV_ROWS:
        said = plural(count, "row")
    return (
        f'<div class="row"><details><summary>The numbers as a table</summary>'
        f"{grid_html(figure.grid)}</details>"
        f'<a class="get" download="{figure.key}.csv" '
        f'href="data:text/csv;charset=utf-8;base64,{listed}">CSV, {said}</a></div>'
    )


def grid_html(grid: Grid) -> str:
    """A table that scrolls by itself; at most `TABLE_ROWS` of it."""
    numeric = [
        any(isinstance(row[at], (int, float)) for row in grid.rows[:TABLE_ROWS])
        for at in range(len(grid.columns))
    ]
    head = "".join(
        f"<th scope=col{' class=n' if right else ''}>{text(name.replace('_', ' '))}</th>"
        for name, right in zip(grid.columns, numeric, strict=True)
    )
    body = []
    for row in grid.rows[:TABLE_ROWS]:
        cells = []
        for name, value, right in zip(grid.columns, row, numeric, strict=True):
            said = cell(name, value)
            kind = " class=n" if right else " class=wrap" if len(said) > _WIDE else ""
            cells.append(f"<td{kind}>{text(said)}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    more = ""
    if len(grid.rows) > TABLE_ROWS:
        more = f'<p class="notes">The first {TABLE_ROWS} of {len(grid.rows):,} rows.</p>'
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>{more}"
    )


def _csv(grid: Grid) -> str:
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(grid.columns)
    writer.writerows([_plain(one) for one in row] for row in grid.rows[:CSV_ROWS])
    return file.getvalue()


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        value = "; ".join(str(one) for one in value)
    # A spreadsheet would take such a name for a formula.
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return "'" + value
    return value


def _papers(figure: Figure) -> str:
    if not figure.papers:
        return ""
    rows = [[one.says, one.theirs, one.ours, one.paper] for one in figure.papers]
    table = grid_html(Grid(["quantity", "paper", "here", "source"], rows))
    return (
        '<details class="papers"><summary>What the papers found</summary>'
        '<p class="notes">Hardware of 2004 to 2018: compare shapes and ratios, not heights.</p>'
        f"{table}</details>"
    )
