"""The tables of a plan's file, and what each of them may hold.

Receives the parsed document from `antiphon.lab.plan_file`, which reads it twice: as it is written,
and as its ``[quick]`` table changes it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from antiphon.frozen import FrozenDict
from antiphon.lab import plan_values as values
from antiphon.lab.plan import (
    LINK_CHECKS,
    LINK_KINDS,
    LINKS,
    PATTERNS,
    SCHEDULING,
    Adapter,
    Garbage,
    Link,
    Plan,
    Series,
    Times,
    Workload,
    axes,
    members,
)
from antiphon.lab.plan_faults import Document, Faults, Table
from antiphon.lab.plan_values import Wrong
from antiphon.lab.protocols import PROTOCOLS

__all__ = ["MOST_RUNS", "plan_of"]

MOST_RUNS = 100_000
"""More than that is a list too many, and not a plan."""

_DAY = 86_400.0
_LARGEST = 2**30
_PLAN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,47}")


_LIMIT = values.size(2**20, 2**50)


def plan_of(faults: Faults, document: Document, stem: str, known: Collection[str]) -> Plan:
    top = Table(faults, document, ())
    name = top.get("name", values.text, stem)
    if not _PLAN_NAME.fullmatch(name):
        allowed = ["letters, digits, hyphens and underscores, at most 48"]
        top.wrong("name", f"{name!r} is not a name for a plan", allowed)
    title = top.get("title", values.text, name)
    source = top.get("source", values.text, "")
    repeats = top.get("repeats", values.whole(1, 1000), 1)
    seed = top.get("seed", values.whole(0, 2**31), 1)
    pinned = top.get("pinned", values.flag, False)
    handlers = top.get("handlers", values.whole(1, 32), None)
    scheduling = top.get("scheduling", values.choice(SCHEDULING, "a scheduling class"), "other")
    memory_limit = top.get("memory_limit", _LIMIT, None)
    times = _times(top)
    collector = _gc(top.table("gc"))
    workloads = _workloads(top.table("workloads"))
    links = _links(top.table("links"))
    adapters = _adapters(top.table("adapters"), known)
    series = _all_series(top, [*known, *adapters], workloads, links)
    top.table("quick")
    top.end()
    _check_shaped(faults, links.values(), series)
    plan = Plan(
        name=name,
        title=title,
        source=source,
        times=times,
        repeats=repeats,
        seed=seed,
        pinned=pinned,
        handlers=handlers,
        scheduling=scheduling,
        memory_limit=memory_limit,
        gc=collector,
        workloads=workloads,
        links=links,
        adapters=adapters,
        series=series,
        text="",
    )
    count = sum(repeats * _count(one) + _more(one) for one in series)
    if count > MOST_RUNS:
        faults.add(("series",), f"they come to {count:,} runs; {MOST_RUNS:,} are allowed")
    return plan


def _times(top: Table) -> Times:
    table = top.table("times")
    second = values.number(0, _DAY)
    load = table.get("load", second, 0.0)
    traffic = table.get("traffic", second, load)
    kept_from = table.get("kept_from", second, traffic)
    kept_until = table.need("kept_until", values.number(0, _DAY, above=True), _DAY)
    table.end()
    for name, value, other, bound in (
        ("load", load, "traffic", traffic),
        ("traffic", traffic, "kept_from", kept_from),
    ):
        if value > bound:
            table.wrong(name, f"{value:g} is after {other}", [f"0 to {bound:g}"])
    if kept_until <= kept_from:
        table.wrong(
            "kept_until", f"{kept_until:g} is not after kept_from", [f"above {kept_from:g}"]
        )
    return Times(load, traffic, kept_from, kept_until)


def _gc(table: Table) -> FrozenDict[str, Any]:
    found: dict[str, Any] = {"enabled": table.get("enabled", values.flag, True)}

    def thresholds(value: object) -> tuple[int, ...]:
        # The same number twice is all right here.
        if not isinstance(value, list) or not 1 <= len(value) <= 3:
            raise Wrong(f"{value!r} is not a list of one to three numbers")
        return tuple(values.whole(0, 2**31 - 1)(one) for one in value)

    given = table.get("thresholds", thresholds, ())
    if given:
        found["thresholds"] = given
    table.end()
    return FrozenDict(found)


def _workloads(tables: Table) -> FrozenDict[str, Workload]:
    found = {"none": Workload("none", None, False, None)}
    for name, content in tables.content.items():
        table = Table(tables.faults, content, (*tables.keys, name))
        found[name] = _workload(table, name)
        if name == "none" and table.content:
            tables.wrong(name, "it is the name of no load at all; choose another one")
        elif name != "none" and not table.content:
            allowed = ["cpu", "cpu_as_garbage", "garbage", "memory_bytes", "slow_receiver"]
            tables.wrong(name, "it is no load", allowed)
    loads = [one.name for one in found.values() if one.garbage]
    for name, one in found.items():
        if one.cpu_as_garbage and len(loads) != 1:
            what = f"needs one workload with garbage, and there are {len(loads)}"
            tables.faults.add((*tables.keys, name, "cpu_as_garbage"), what)
    return FrozenDict(found)


def _workload(table: Table, name: str) -> Workload:
    _check_name(table, name)
    cpu = table.get("cpu", values.number(0, 1, above=True), None)
    as_garbage = table.get("cpu_as_garbage", values.flag, False)
    inner = table.table("garbage")
    garbage = _garbage(inner) if "garbage" in table else None
    memory = table.get("memory_bytes", values.size(1, 2**50), 0)
    slow = table.get("slow_receiver", values.number(0, 1e6, above=True), None)
    table.end()
    if as_garbage and (cpu is not None or garbage is not None):
        table.wrong("cpu_as_garbage", "stands instead of cpu and garbage; leave those out")
    return Workload(name, cpu, as_garbage, garbage, memory, slow)


def _garbage(table: Table) -> Garbage:
    objects = values.only("calibrated", None, values.whole(1, 10**9))
    found = Garbage(
        live_objects=table.get("live_objects", objects, None),
        replaced_per_second=table.need("replaced_per_second", values.number(0, 1e9), 0.0),
        core_share=table.get("core_share", values.number(0, 1, above=True), 0.3),
        java_live_bytes=table.get("java_live_bytes", values.size(2**20, 2**40), 384 * 2**20),
    )
    table.end()
    return found


def _links(tables: Table) -> FrozenDict[str, Link]:
    found = {"loopback": Link("loopback", "loopback", None, None, None)}
    for name, content in tables.content.items():
        table = Table(tables.faults, content, (*tables.keys, name))
        _check_name(table, name)
        link = Link(
            name=name,
            kind=table.need("kind", values.choice(LINK_KINDS, "a kind of link"), "bridge"),
            rate_bits=table.get("rate_bits", values.bits, None),
            delay=table.get("delay", values.number(0, 60), None),
            loss=table.get("loss", values.number(0, 1), None),
            hosts=table.get("hosts", values.listed(values.host), ()),
            python=table.get("python", values.text, "python3"),
        )
        table.end()
        found[name] = link
        if name == "loopback" and link.kind != "loopback":
            table.wrong("kind", "the link named loopback is of that kind", ["loopback"])
        if link.kind != "bridge":
            for key in ("rate_bits", "delay", "loss"):
                if key in table:
                    table.wrong(key, f"a link of kind {link.kind} is as it is; bridge has it")
        if link.kind == "ssh" and "hosts" not in table:
            table.wrong("hosts", "is missing: ssh needs to know where the roles run")
        for key in ("hosts", "python"):
            if link.kind != "ssh" and key in table:
                table.wrong(key, f"a link of kind {link.kind} has none; ssh has them")
    return FrozenDict(found)


def _adapters(tables: Table, known: Collection[str]) -> FrozenDict[str, Adapter]:
    found: dict[str, Adapter] = {}
    for name, content in tables.content.items():
        table = Table(tables.faults, content, (*tables.keys, name))
        _check_name(table, name)
        if name in known or name in LINK_CHECKS:
            tables.wrong(name, f"there is a protocol {name} already; choose another name")
        found[name] = Adapter(
            name=name,
            file=table.need("file", values.text, ""),
            managed=table.get("managed", values.flag, True),
            group=table.get("group", values.flag, False),
            lossy=table.get("lossy", values.flag, False),
        )
        table.end()
    return FrozenDict(found)


def _check_name(table: Table, name: str) -> None:
    try:
        values.name(name)
    except Wrong as wrong:
        table.faults.add(table.keys, wrong.what, wrong.allowed, name)


def _check_shaped(faults: Faults, links: Iterable[Link], series: Iterable[Series]) -> None:
    """Delay and loss have their place in the format, and nothing that makes them, so far."""
    for link in links:
        users = [one for one in series if link.name in one.links]
        if users and all(one.later for one in users):
            continue
        for key in ("delay", "loss"):
            if getattr(link, key) is not None:
                faults.add(
                    ("links", link.name, key),
                    "links with delay or loss come later; leave it out, or use the link only in "
                    "series that are marked later",
                    value=getattr(link, key),
                )


def _all_series(
    top: Table, known: Collection[str], workloads: Collection[str], links: Collection[str]
) -> tuple[Series, ...]:
    tables = top.get("series", _tables, [])
    if top.content.get("series", []) == []:
        top.wrong("series", "is missing: a plan has one [[series]] or more")
    found: list[Series] = []
    for number, content in enumerate(tables):
        table = Table(top.faults, content, ("series", number))
        one = _one_series(table, known, workloads, links)
        if one.name == LINKS:
            table.wrong("name", f"{LINKS} is what the runs of the bare link are; choose another")
        if one.name and one.name in [other.name for other in found]:
            table.wrong("name", f"two series are named {one.name!r}; choose another name")
        found.append(one)
    return tuple(found)


def _tables(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise Wrong("is not a list of tables; write [[series]]")
    return value


def _one_series(
    table: Table, known: Collection[str], workloads: Collection[str], links: Collection[str]
) -> Series:
    later = table.get("later", _later, ())
    protocol = values.choice([*known, *later], "a known protocol")
    protocols = table.need("protocols", values.listed(protocol), ())
    rate = values.only("max", None, values.number(0, 1e9, above=True))
    variants = table.table("variants")
    names = values.listed(values.name)
    count = values.listed(values.whole(1, 1024))
    found = Series(
        name=table.need("name", values.name, ""),
        pattern=table.need("pattern", values.choice(PATTERNS, "a pattern"), "one-way"),
        protocols=protocols,
        variants=FrozenDict(
            {one: variants.get(one, names, ()) for one in protocols if one in variants}
        ),
        sizes=table.need("sizes", values.listed(values.size(1, _LARGEST)), ()),
        rates=table.get("rates", values.listed(rate), (None,)),
        nodes=table.get("nodes", values.listed(values.whole(2, 1024)), (2,)),
        senders=table.get("senders", count, (1,)),
        threads=table.get("threads", count, (1,)),
        streams=table.get("streams", values.listed(values.whole(1, 256)), (1,)),
        workloads=table.get(
            "workloads", values.listed(values.choice(workloads, "a workload here")), ("none",)
        ),
        links=table.get("links", values.listed(values.choice(links, "a link here")), ("loopback",)),
        stacks=table.get("stacks", names, (None,)),
        messages=table.get("messages", _messages, (None,)),
        paced=table.get("paced", values.whole(1, 1024), None),
        search=table.get("search", values.whole(0, 30), 0),
        placements=table.get("placements", names, (None,)),
        memory_limit=table.get("memory_limit", _LIMIT, None),
        later=later,
    )
    table.end()
    if protocols:
        _check_variants(variants, found)
    for key, patterns in (("nodes", ("1-n", "n-n", "m-n")), ("senders", ("one-way", "m-n"))):
        if key in table and found.pattern not in patterns:
            what = f"the pattern {found.pattern} has its own; {key} is for {', '.join(patterns)}"
            table.wrong(key, what)
    if found.pattern == "m-n" and not members(found):
        table.wrong("senders", "in m-n there are more nodes than senders, and here never are")
    _check_paced(table, found)
    if found.search and len(found.messages) < 2:
        table.wrong("search", "there is nothing to search between; give messages several numbers")
    return found


def _check_paced(table: Table, found: Series) -> None:
    if found.paced is None:
        return
    if found.pattern not in ("one-way", "m-n"):
        table.wrong("paced", f"in {found.pattern} all senders are alike; it is for one-way and m-n")
    elif None in found.rates:
        table.wrong("paced", "there is no rate to keep; give rates, without 'max'")
    elif found.paced >= max(found.senders):
        table.wrong("paced", f"all {max(found.senders)} keep the rate; leave it out")


def _check_variants(variants: Table, found: Series) -> None:
    for name in variants.content:
        if name not in found.protocols:
            what = f"{name!r} is not a protocol of the series"
            variants.wrong(name, what, found.protocols)
    for name, wanted in found.variants.items():
        if found.later or name not in PROTOCOLS:
            continue  # nobody knows yet; or its adapter is the user's own
        there = PROTOCOLS[name].variants
        for one in wanted:
            if one not in there:
                near = values.hint(one, there)
                variants.wrong(name, f"{one!r} is not a variant of {name}{near}", there)


def _later(value: object) -> tuple[str, ...]:
    return values.listed(values.name)([value] if isinstance(value, str) else value)


def _messages(value: object) -> tuple[int, ...]:
    return values.listed(values.whole(1, 10**12))(value if isinstance(value, list) else [value])


def _more(series: Series) -> int:
    """Runs that a search adds, at the most."""
    return series.search * _count(series) // max(1, len(series.messages))


def _count(series: Series) -> int:
    if series.later:
        return 0
    ways = sum(len(series.variants.get(name, (None,))) for name in series.protocols)
    for axis in axes(series):
        ways *= len(axis)
    return ways
