"""From the tables to the file."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

from antiphon._version import __version__
from antiphon.errors import ConfigError
from antiphon.pipeline.report import (
    figures_cluster,
    figures_delay,
    figures_gain,
    figures_load,
    figures_model,
    figures_speed,
    figures_time,
)
from antiphon.pipeline.report.data import Tables
from antiphon.pipeline.report.looks import Looks
from antiphon.pipeline.report.page import Section, page
from antiphon.pipeline.report.papers import Papers
from antiphon.pipeline.report.shape import Absent, Figure
from antiphon.pipeline.report.story import Story
from antiphon.pipeline.report.summary import about, endings, footer, head, summary
from antiphon.pipeline.report.words import headline

__all__ = ["REPORT", "write_report"]

REPORT = "report.html"


def write_report(out: Path) -> Path:
    """Write ``report.html`` beside the tables in ``out``, and return its path.

    Raises `ConfigError` when there are no tables, or when the file cannot be written.
    """
    tables = Tables(out)
    looks, papers = Looks(tables.rows("runs")), Papers(tables)
    story = Story(tables)
    figures = _figures(tables, looks, papers, story)
    ended = Section("endings", "How runs ended", endings(story, papers))
    # Only now is it known which tables could not be read, and which were cut.
    sections = [
        Section("summary", "At a glance", summary(story, looks)),
        *figures,
        ended,
        Section("about", "About these data", about(story)),
    ]
    title = headline(story)
    written = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    made = page(title, head(story), sections, footer(__version__, written))
    path = out / REPORT
    beside = path.with_name(f".{REPORT}.part")
    try:
        beside.write_text(made, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise ConfigError(
            f"the report cannot be written to {path} ({error.strerror}); "
            "free the disk, or make the directory writable",
            setting="out",
            value=str(out),
        ) from error
    return path


def _figures(tables: Tables, looks: Looks, papers: Papers, story: Story) -> list[Section]:
    def drawn(figure: Callable[..., Figure | Absent], *more: Papers | Story) -> Figure | Absent:
        return _drawn(tables, lambda: figure(tables, looks, *more))

    load = [drawn(figures_load.degradation, papers, story), drawn(figures_load.evenness)]
    fast = [
        drawn(figures_speed.bandwidth),
        drawn(figures_speed.processor),
        drawn(figures_gain.by_protocol),
    ]
    late = [
        drawn(figures_delay.by_rate, papers),
        drawn(figures_delay.distribution),
        drawn(figures_model.jitter),
        drawn(figures_speed.publishers),
        drawn(figures_model.predicted),
    ]
    many = [
        drawn(figures_cluster.scaling, papers),
        drawn(figures_cluster.slowdown, papers),
        drawn(figures_delay.round_trip, papers),
        drawn(figures_gain.by_size),
        drawn(figures_cluster.sizing),
        drawn(figures_cluster.streams),
    ]
    made = [*load, *fast, *late, *many]
    for one in made:
        if isinstance(one, Figure):
            one.papers = papers.beside(one.key)
    return [
        Section("load", "Under load", figures=load),
        Section("speed", "Throughput", figures=fast),
        Section("delay", "Delay", figures=late),
        Section("cluster", "More nodes, other links", figures=many),
        Section("time", "Over time", figures=[drawn(figures_time.timelines)]),
    ]


def _drawn(tables: Tables, draw: Callable[[], Figure | Absent]) -> Figure | Absent:
    """A figure, with a word on what it is made of where that is not all there is."""
    tables.asked.clear()
    made = draw()
    if isinstance(made, Figure):
        made.notes += [tables.left_out(name) for name in sorted(tables.asked & tables.cut.keys())]
    return made
