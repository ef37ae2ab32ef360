"""From the tables to the file."""

from __future__ import annotations

import datetime
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
from antiphon.pipeline.report.shape import Figure
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
    figures = _figures(tables, looks, papers)
    # Only now is it known which tables could not be read, and which were cut.
    story = Story(tables)
    sections = [
        Section("summary", "At a glance", summary(story, looks)),
        *figures,
        Section("endings", "How runs ended", endings(story, papers)),
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


def _figures(tables: Tables, looks: Looks, papers: Papers) -> list[Section]:
    load = [figures_load.degradation(tables, looks, papers), figures_load.evenness(tables, looks)]
    fast = [
        figures_speed.bandwidth(tables, looks),
        figures_speed.processor(tables, looks),
        figures_gain.by_protocol(tables, looks),
    ]
    late = [
        figures_delay.by_rate(tables, looks, papers),
        figures_delay.distribution(tables, looks),
        figures_model.jitter(tables, looks),
        figures_speed.publishers(tables, looks),
        figures_model.predicted(tables, looks),
    ]
    many = [
        figures_cluster.scaling(tables, looks, papers),
        figures_cluster.slowdown(tables, looks, papers),
        figures_delay.round_trip(tables, looks, papers),
        figures_gain.by_size(tables, looks),
        figures_cluster.sizing(tables, looks),
        figures_cluster.streams(tables, looks),
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
        Section("time", "Over time", figures=[figures_time.timelines(tables, looks)]),
    ]
