"""``antiphon broker``: a broker, until it is told to end; and a look into its store."""

from __future__ import annotations

import base64
import datetime
import json
import logging
import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from antiphon.broker import Broker
from antiphon.broker.store import LogRecord, Store, StoreReport, TopicReport, check_store
from antiphon.cli.durable import add_commands
from antiphon.cli.secret import SecretFile, read_secret
from antiphon.errors import ConfigError

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
add_commands(app)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a store.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback(invoke_without_command=True)
def broker(
    context: typer.Context,
    listen: Annotated[
        str, typer.Option(help="Where buses find it: tcp://host:port or unix:///path.")
    ] = "tcp://127.0.0.1:7000",
    secret_file: SecretFile = None,
    store: Annotated[
        Path | None, typer.Option(file_okay=False, help="Where recorded topics are kept.")
    ] = None,
    fsync: Annotated[
        str | None, typer.Option(help="none, interval or always: when events are acknowledged.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Settings, instead of ./antiphon.toml."),
    ] = None,
) -> None:
    """Pass events on between buses, until Ctrl-C or SIGTERM.

    Example: antiphon broker --listen tcp://127.0.0.1:7000 --store /var/lib/antiphon
    """
    if context.invoked_subcommand is not None:
        return
    if config is not None:
        os.environ["ANTIPHON_CONFIG"] = str(config)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    with Broker(listen, secret=read_secret(secret_file), store=store, fsync=fsync) as running:
        typer.echo(f"broker at {running.address}, node {running.node.id}; Ctrl-C ends it", err=True)
        running.wait()
        counts = running.statistics()
    recorded = "" if running.config.store is None else f", {counts.recorded} recorded"
    typer.echo(f"{counts.relayed} events relayed, {counts.dropped} dropped{recorded}", err=True)


@app.command()
def check(directory: Directory, as_json: AsJson = False) -> None:
    """Read every recorded event and its checksum. Changes nothing; exit code 1 for damage.

    Example: antiphon broker check /var/lib/antiphon
    """
    report = check_store(directory)
    if as_json:
        typer.echo(json.dumps({**msgspec.to_builtins(report), "damaged": report.damaged}, indent=1))
    else:
        for line in _check_lines(report):
            typer.echo(line)
    if report.damaged:
        raise typer.Exit(1)


@app.command()
def dump(
    directory: Directory,
    topic: Annotated[str | None, typer.Option(help="Only this topic. Default: all.")] = None,
    start: Annotated[
        int | None, typer.Option("--from", min=0, help="The first sequence. Needs --topic.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many of each topic.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print recorded events, oldest first; also of a store that is in use.

    Example: antiphon broker dump /var/lib/antiphon --topic orders/eu --from 1000 --limit 10
    """
    if start is not None and topic is None:
        raise typer.BadParameter("sequences count within a topic; give --topic as well")
    with Store(directory, read_only=True) as store:
        topics = store.topics()
        if topic is not None and topic not in topics:
            raise ConfigError(
                f"{directory} has no recorded topic {topic!r}; it has "
                + (", ".join(map(_printable, topics[:10])) or "none")
                + (" and more" if len(topics) > 10 else ""),
                setting="topic",
                value=topic,
            )
        for name in topics if topic is None else [topic]:
            for record in islice(_records(store, name, start), limit):
                sys.stdout.write(_line(name, record, as_json) + "\n")


def _records(store: Store, topic: str, start: int | None) -> Iterator[LogRecord]:
    reader = store.reader(topic, "earliest" if start is None else start)
    while (batch := reader.read()) is not None:
        if batch.missed:
            print(f"({batch.missed} records of {topic} are no longer kept)", file=sys.stderr)
        if batch.damage:
            print(f"damage: {_printable(batch.damage)}", file=sys.stderr)
        yield from batch.records


def _line(topic: str, record: LogRecord, as_json: bool) -> str:
    if not as_json:
        text = _printable(record.data.decode(errors="surrogateescape"))
        return f"{_printable(topic)}  {record.sequence}  {_when(record.time_ns)}  {text}"
    facts: dict[str, Any] = {
        "topic": _printable(topic),
        "sequence": record.sequence,
        "time_ns": record.time_ns,
        "source": record.source,
        **_value("properties", record.properties, _properties),
        **_value("data", record.data, bytes.decode),
    }
    return json.dumps(facts)


def _properties(encoded: bytes) -> Any:
    return msgspec.msgpack.decode(encoded, type=dict[str, Any]) if encoded else {}


def _value(name: str, encoded: bytes, decode: Any) -> dict[str, Any]:
    """Decoded, if it can be and JSON has it; as base64 under another name otherwise."""
    try:
        value = decode(encoded)
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError):
        return {f"{name}_base64": base64.b64encode(encoded).decode()}
    return {name: value}


def _check_lines(report: StoreReport) -> Iterator[str]:
    for topic in report.topics:
        yield _summary(topic)
        for finding in topic.findings:
            kind = "damage" if finding.damage else "note"
            yield f"  {kind}: {_printable(finding.path)} at {finding.position}: {finding.what}"
    records = sum(topic.records for topic in report.topics)
    damage = sum(finding.damage for topic in report.topics for finding in topic.findings)
    used = ", in use" if report.in_use else ""
    verdict = f"{damage} places are damaged" if damage else "no damage"
    yield f"{len(report.topics)} topics, {records} records, epoch {report.epoch}{used}: {verdict}"


def _summary(topic: TopicReport) -> str:
    name = _printable(topic.topic or topic.directory)
    if not topic.records:
        return f"{name}: no records, {topic.segments} segments"
    return (
        f"{name}: {topic.records} records, sequences {topic.first} to {topic.last}, "
        f"{topic.segments} segments, {topic.bytes} bytes, "
        f"{_when(topic.first_ns)} to {_when(topic.last_ns)}"
    )


def _when(time_ns: int) -> str:
    """A time as people read it; a publisher may have sent any number."""
    try:
        moment = datetime.datetime.fromtimestamp(time_ns / 1e9, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_ns} ns"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _printable(text: str) -> str:
    """What a terminal shows, and does not obey; bytes that are no text become ``\\xff``."""
    whole = text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in whole)
