"""Bars, lines and axes, as Plotly wants them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.pipeline.report.looks import PAPER
from antiphon.pipeline.report.shape import escaped
from antiphon.pipeline.report.units import size

__all__ = [
    "Bar",
    "amount_axis",
    "bar_height",
    "bars",
    "count_axis",
    "line",
    "mark",
    "paper_line",
    "rule",
    "size_axis",
    "time_axis",
]

_BAR = 30


def bar_height(count: int) -> int:
    return 96 + _BAR * max(count, 2)


@dataclass(frozen=True, slots=True)
class Bar:
    """``says`` stands beside it, ``short`` where there is no room for that; ``ends`` are those of
    its interval."""

    name: str
    value: float
    says: str
    marker: dict[str, Any]
    ends: tuple[float, float] | None = None
    short: str = ""


def bars(bars: Sequence[Bar], reach: float = 0.0) -> list[dict[str, Any]]:
    """Lying ones, so that names can be read on a phone; each says its value.

    A trace each: Plotly complains of a list where it wants to know the colour below a text. The
    page makes room for the texts, right of whatever is drawn and of ``reach``.
    """
    ends = [max(one.value, one.ends[1] if one.ends else 0.0, 0.0) for one in bars]
    texts = {
        "type": "scatter",
        "mode": "text",
        "y": [escaped(one.name) for one in bars],
        "x": [max(reach, end) for end in ends],
        "text": [one.says for one in bars],
        "textposition": "middle right",
        "textfont": {"color": "@ink"},
        "cliponaxis": False,
        "hoverinfo": "skip",
        "showlegend": False,
        "meta": {
            "reach": max([reach, *ends]),
            "least": [one.value for one in bars],
            "short": [one.short or one.says for one in bars],
        },
    }
    return [*(_bar(one) for one in bars), texts]


def _bar(one: Bar) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "y": [escaped(one.name)],
        "x": [one.value],
        "text": [one.says],
        "textposition": "none",
        "marker": one.marker,
        "hovertemplate": "<b>%{y}</b><br>%{text}<extra></extra>",
        "showlegend": False,
    }
    if one.ends is not None:
        made["error_x"] = {
            "type": "data",
            "symmetric": False,
            "array": [one.ends[1] - one.value],
            "arrayminus": [one.value - one.ends[0]],
            "color": "@ink",
            "thickness": 1.5,
            "width": 5,
        }
    return made


def line(
    name: str, style: dict[str, Any], xs: Sequence[Any], ys: Sequence[Any], hover: Sequence[str]
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escaped(name),
        "x": list(xs),
        "y": list(ys),
        "text": list(hover),
        "hovertemplate": "<b>%{fullData.name}</b><br>%{text}<extra></extra>",
        **style,
    }


def paper_line(name: str, xs: Sequence[Any], ys: Sequence[Any]) -> dict[str, Any]:
    """A paper's values, so that nobody takes them for ours."""
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(xs) > 1 else "markers",
        "name": escaped(name),
        "x": list(xs),
        "y": list(ys),
        "line": {"color": PAPER, "width": 1.5, "dash": "dot"},
        "marker": {"color": PAPER, "size": 9, "symbol": "diamond-open"},
        "hovertemplate": "<b>%{fullData.name}</b><br>%{x}: %{y}<extra></extra>",
    }


def mark(paper: str, name: str, value: float) -> dict[str, Any]:
    """A paper's value on a lying bar."""
    return {
        **paper_line(paper, [value], [escaped(name)]),
        "marker": {
            "color": "@page",
            "size": 11,
            "symbol": "diamond",
            "line": {"color": "@ink", "width": 2},
        },
        "hovertemplate": f"<b>{escaped(paper)}</b><br>%{{y}}: {value:.3g}<extra></extra>",
        "showlegend": True,
    }


def rule(axis: str, at: float, text: str = "") -> dict[str, Any]:
    """Shapes and annotations of a line across the picture, at one value of an axis."""
    other = "y" if axis == "x" else "x"
    shape = {
        "type": "line",
        f"{axis}0": at,
        f"{axis}1": at,
        f"{other}0": 0,
        f"{other}1": 1,
        f"{other}ref": "paper",
        "line": {"color": "@muted", "width": 1.5, "dash": "dash"},
    }
    made: dict[str, Any] = {"shapes": [shape]}
    if text:
        made["annotations"] = [
            {
                axis: at,
                other: 1,
                f"{other}ref": "paper",
                "text": escaped(text),
                "showarrow": False,
                "xanchor": "right",
                "yanchor": "bottom",
                "font": {"color": "@muted", "size": 12},
            }
        ]
    return made


def amount_axis(title: str, most: float, unit: str) -> tuple[float, dict[str, Any]]:
    """By what to divide, and the axis: thousands, millions or more of a unit."""
    letters = ("G", "M", "k") if unit.startswith("B") else ("billion", "million", "thousand")
    for factor, letter in zip((1e9, 1e6, 1e3), letters, strict=True):
        if most >= factor:
            return factor, {"title": {"text": f"{title} ({letter}{unit})"}, "rangemode": "tozero"}
    return 1.0, {"title": {"text": f"{title} ({unit})"}, "rangemode": "tozero"}


def time_axis(title: str, values: Iterable[float | None]) -> dict[str, Any]:
    """Of microseconds, by powers of ten; with steps between them where there are few powers."""
    drawn = [value for value in values if value]
    marks = _marks(drawn, -1, 9)
    return {
        "title": {"text": title},
        "type": "log",
        "tickvals": marks,
        "ticktext": [_time_mark(at) for at in marks],
        **_wide_enough(drawn, marks),
    }


def _marks(values: Sequence[float], first: int, end: int) -> list[float]:
    """Powers of ten; where the values span few of them, 2 and 5 times each as well."""
    near = bool(values) and max(values) < 300 * min(values)
    return [step * 10.0**at for at in range(first, end) for step in ((1, 2, 5) if near else (1,))]


def _wide_enough(values: Sequence[float], marks: Sequence[float]) -> dict[str, Any]:
    """A range from one mark to another, for values that lie between two: dots without a number
    beside them say nothing. Else nothing, and Plotly leaves room as it does."""
    if not values or sum(min(values) <= at <= max(values) for at in marks) > 1:
        return {}
    below = max((at for at in marks if at < min(values)), default=min(values))
    above = min((at for at in marks if at > max(values)), default=max(values))
    return {"range": [math.log10(below) - 0.03, math.log10(above) + 0.03]}


def _time_mark(us: float) -> str:
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if us >= factor:
            return f"{us / factor:g} {unit}"
    return f"{us:g} µs"


def count_axis(title: str, values: Sequence[float]) -> dict[str, Any]:
    """Of a few whole numbers or rates, by powers, each with its own mark; of many, round ones."""
    drawn = sorted({float(one) for one in values if one})
    marks = drawn if len(drawn) <= 8 else _marks(drawn, 0, 12)
    return {
        "title": {"text": title},
        "type": "log",
        "tickvals": marks,
        "ticktext": [f"{one / 1000:g}k" if one >= 1000 else f"{one:g}" for one in marks],
        **({} if len(drawn) <= 8 else _wide_enough(drawn, marks)),
    }


def size_axis(title: str, values: Sequence[int]) -> dict[str, Any]:
    """Of message sizes."""
    marks = sorted({one for one in values if one})
    return {
        "title": {"text": title},
        "type": "log",
        "tickvals": marks,
        "ticktext": [size(one) for one in marks],
    }
