"""The parts of the page that are words and small tables: its head, the summary and its end."""

from __future__ import annotations

from antiphon.pipeline.report.bursts import burst_table
from antiphon.pipeline.report.data import Row
from antiphon.pipeline.report.divide import values_of
from antiphon.pipeline.report.looks import Looks
from antiphon.pipeline.report.page import grid_html, sentence, text
from antiphon.pipeline.report.papers import Papers
from antiphon.pipeline.report.shape import Grid
from antiphon.pipeline.report.story import COLLAPSES, Contender, Story
from antiphon.pipeline.report.units import key_text, plural, share, size, speed
from antiphon.pipeline.report.words import (
    ENDINGS,
    answer,
    findings,
    headline,
    listed,
    machine_line,
    method,
    warnings,
)

__all__ = ["about", "endings", "footer", "head", "summary"]

MAX_CONTENDERS = 60
MAX_LISTED = 100


def head(story: Story) -> str:
    plans = f": {listed(story.plans)}" if story.plans else ""
    return f"""<p class="kicker"><span>Antiphon lab report{text(plans)}</span>
<button type="button" class="theme">Dark page</button></p>
<h1>{text(headline(story))}</h1>
<p class="answer">{sentence(answer(story))}</p>
<p class="machine">{text(method(story))}</p>
<p class="machine">{text(machine_line(story))}</p>"""


def summary(story: Story, looks: Looks) -> str:
    said = "".join(f"<li>{sentence(one)}</li>" for one in findings(story))
    warned = "".join(f"<li>{text(one)}</li>" for one in warnings(story))
    parts = [_tiles(story), _glance(story, looks)]
    if said:
        parts.append(f'<ul class="plain">{said}</ul>')
    if warned:
        parts.append(
            f'<div class="warnings" role="note"><b>Before you rely on it</b><ul>{warned}</ul></div>'
        )
    return "\n".join(parts)


def _tiles(story: Story) -> str:
    protocols = len({row["protocol"] for row in story.ran()})
    complete, ran = story.outcomes["complete"], len(story.ran())
    seconds = sum(row["window_seconds"] or 0 for row in story.runs if row["outcome"] == "complete")
    tiles = [
        (f"{protocols:,}", "protocol" if protocols == 1 else "protocols"),
        (f"{complete:,} of {ran:,}", "runs completed"),
        (_lasted(seconds), "of traffic kept"),
        (
            f"{len(story.campaigns):,}",
            "campaign" if len(story.campaigns) == 1 else "campaigns",
        ),
    ]
    made = "".join(f"<li><b>{text(value)}</b>{text(name)}</li>" for value, name in tiles)
    return f'<ul class="tiles">{made}</ul>'


def _lasted(seconds: float) -> str:
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 180 else f"{seconds:.0f} s"


def _glance(story: Story, looks: Looks) -> str:
    """Every protocol in a line: what it does alone, and what is left beside each load."""
    contenders = story.contenders[:MAX_CONTENDERS]
    if not contenders:
        return ""
    heads = ["protocol", "no load", *(f"beside {one}" for one in story.workloads)]
    top = "".join(
        f"<th scope=col{' class=n' if at else ''}>{text(name)}</th>"
        for at, name in enumerate(heads)
    )
    body = "".join(_line(one, heads, story.workloads, looks) for one in contenders)
    row = contenders[0].row
    setting = [key_text(key, row[key]) for key in ("pattern", "link") if row[key]]
    if row["size"]:
        setting.append(f"messages of {size(row['size'])}")
    more = (
        f" {MAX_CONTENDERS} of {len(story.contenders):,} are listed."
        if len(story.contenders) > MAX_CONTENDERS
        else ""
    )
    kept = (
        " Percentages are parts of the protocol's own unloaded throughput."
        if story.workloads
        else ""
    )
    return (
        f'<div class="scroll glance" tabindex="0"><table><thead><tr>{top}</tr></thead>'
        f'<tbody>{body}</tbody></table></div><p class="notes">'
        f"{text(', '.join(setting))}.{kept}{text(more)}</p>"
    )


def _line(one: Contender, heads: list[str], workloads: list[str], looks: Looks) -> str:
    """On a phone cells stand below the name, each with its head, for which there is no room."""
    swatch = f'<span class="swatch" data-colour="{looks.colour(one.row)}"></span>'
    cells = [('class="n"', speed(one.unloaded))]
    for workload in workloads:
        row = one.kept.get(workload)
        if workload in one.failed:
            ending = ENDINGS.get(one.failed[workload], one.failed[workload])
            cells.append(('class="n low" style="--w:0%"', ending))
        elif row is None:
            cells.append(('class="n"', "—"))
        else:
            kind = "low" if row["kept"] < COLLAPSES else "part"
            width = max(0.0, min(100.0, 100 * row["kept"]))
            cells.append((f'class="n {kind}" style="--w:{width:.1f}%"', share(row["kept"])))
    made = "".join(
        f'<td {given} data-head="{text(head)}">{text(said)}</td>'
        for head, (given, said) in zip(heads[1:], cells, strict=True)
    )
    return f"<tr><td>{swatch}{text(one.name)}</td>{made}</tr>"


def endings(story: Story, papers: Papers) -> str:
    """What did not complete, and why, in the words of the lab."""
    rows = [row for row in story.tables.rows("outcomes") if row["outcome"] != "complete"]
    theirs = "".join(
        f'<p class="muted">{text(one.paper)}: {text(one.says)} {text(one.theirs)}.</p>'
        for one in papers.beside("outcomes")
    )
    most = burst_table(story.ran(), ENDINGS)
    if not rows:
        return f"<p>Every run that was planned completed.</p>{most}{theirs}"
    keys = ("campaign", "variant", "workload", "link", "size", "nodes", "rate")
    told = [key for key in keys if len(values_of(rows, key)) > 1]
    grid = Grid(
        ["protocol", "ending", "runs", "of", *told, "reason"],
        [
            [
                row["protocol"],
                ENDINGS.get(row["outcome"], row["outcome"]),
                row["runs"],
                row["of"],
                *(key_text(key, row[key]) for key in told),
                _reasons(row),
            ]
            for row in sorted(rows, key=_worst_first)
        ],
    )
    return (
        "<p>Failing to finish is a result. What was not there, or does not apply, is listed "
        f"last.</p>{grid_html(grid)}{most}{theirs}"
    )


def _worst_first(row: Row) -> tuple[bool, str, str]:
    aside = row["outcome"] in ("absent", "not_applicable", "interrupted")
    return (aside, row["protocol"] or "", row["outcome"] or "")


def _reasons(row: Row) -> str:
    reasons = [" ".join(str(one).split())[:300] for one in row["reasons"] or [] if one]
    more = f" (and {len(reasons) - 3} more)" if len(reasons) > 3 else ""
    return "; ".join(reasons[:3]) + more


def about(story: Story) -> str:
    """Campaigns, their machines, and what was set aside."""
    rows = []
    for machine, campaigns in story.machines.items():
        for campaign in campaigns:
            runs = [row for row in story.runs if row["campaign"] == campaign]
            plans = sorted({row["plan"] for row in runs if row["plan"]})
            rows.append(
                [campaign, ", ".join(plans), len(runs), machine.host, machine.cpu, machine.cores,
                 machine.memory_gb, machine.kernel, machine.python, machine.antiphon]
            )  # fmt: skip
    columns = [
        "campaign", "plan", "runs", "host", "processor", "cores", "memory GB", "kernel", "Python",
        "Antiphon",
    ]  # fmt: skip
    parts = [
        "<p>The tables lie beside this file; <code>antiphon pipeline show</code> prints them.</p>",
        grid_html(Grid(columns, rows)),
    ]
    aside = story.tables.set_aside()
    if aside:
        listing = "".join(
            f"<li>{text(one['path'])}: {text(one['reason'][:300])}</li>"
            for one in aside[:MAX_LISTED]
        )
        more = f"<li>and {len(aside) - MAX_LISTED:,} more</li>" if len(aside) > MAX_LISTED else ""
        said = plural(len(aside), "file or folder was", "files or folders were")
        parts.append(
            f"<details><summary>{said} set aside</summary>"
            f'<ul class="plain">{listing}{more}</ul></details>'
        )
    return "\n".join(parts)


def footer(version: str, written: str) -> str:
    return (
        f"<p>Written by Antiphon {text(version)} on {text(written)}. This file holds all that it "
        "shows and asks the network for nothing.</p>"
    )
