"""``antiphon broker``: a broker, until it is told to end; its health, its tokens, its store."""

from __future__ import annotations

import base64
import datetime
import json
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from antiphon.broker import Broker, BrokerConfig
from antiphon.broker.health import check_health
from antiphon.broker.store import (
    LogRecord,
    Store,
    StoreInUse,
    StoreReport,
    TopicReport,
    check_store,
)
from antiphon.broker.tokens import check_name, hash_token, new_token
from antiphon.cli.durable import add_commands
from antiphon.cli.logs import FORMATS, set_up_logs
from antiphon.cli.secret import (
    SecretFile,
    TlsAuthority,
    TlsCertificate,
    TlsKey,
    TokenFile,
    read_secret,
    read_tls,
    read_token,
)
from antiphon.errors import AntiphonError, ConfigError

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
add_commands(app)

Directory = Annotated[
    Path,
    typer.Argument(metavar="DIR", exists=True, file_okay=False, help="The directory of a store."),
]
log = logging.getLogger("antiphon.broker")

_LOOK = 0.2

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback(invoke_without_command=True)
def broker(
    context: typer.Context,
    listen: Annotated[
        str | None,
        typer.Option(
            help="Where buses find it: tcp://host:port or unix:///path. "
            "Default: as the settings say, or tcp://127.0.0.1:7000."
        ),
    ] = None,
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
    log_format: Annotated[str, typer.Option(help="text, or json: an object per line.")] = "text",
) -> None:
    """Pass events on between buses, until Ctrl-C or SIGTERM; SIGHUP reads the settings again.

    The second Ctrl-C does not wait for clients that hang.

    Example: antiphon broker --listen tcp://127.0.0.1:7000 --store /var/lib/antiphon
    """
    if context.invoked_subcommand is not None:
        return
    if config is not None:
        os.environ["ANTIPHON_CONFIG"] = str(config)
    if log_format not in FORMATS:
        raise typer.BadParameter(f"{log_format!r} is none of {', '.join(FORMATS)}")
    given = {"store": None if store is None else str(store), "fsync": fsync}
    settings = BrokerConfig.load(**{name: one for name, one in given.items() if one is not None})
    set_up_logs(log_format, settings.log_level)
    _raise_limit()
    secret = read_secret(secret_file)
    ended = threading.Event()

    def end(number: int, frame: object) -> None:
        if ended.is_set():  # the second time: whoever asks does not want to wait
            for one in (signal.SIGINT, signal.SIGTERM):  # and what is left takes moments
                signal.signal(one, signal.SIG_IGN)
            raise KeyboardInterrupt
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):  # before it says that it is there
        signal.signal(number, end)
    made = Broker(listen, secret=secret, store=store, fsync=fsync, config=settings)
    with _started(made) as running:
        signal.signal(signal.SIGHUP, lambda number, frame: _reload_soon(running))
        said = f"broker at {running.address}, node {running.node.id}"
        _say(log_format, f"{said}; Ctrl-C ends it", address=running.address)
        while not ended.wait(_LOOK):  # in pieces: a signal may go to another thread
            if running.closed:
                break
        counts = running.statistics()
    recorded = "" if running.config.store is None else f", {counts.recorded} recorded"
    _say(log_format, f"{counts.relayed} events relayed, {counts.dropped} dropped{recorded}")


def _started(made: Broker) -> Broker:
    """A store that somebody else has is no mistake in the arguments: exit code 1."""
    try:
        return made.start()
    except StoreInUse as error:
        raise AntiphonError(str(error)) from None


def _raise_limit() -> None:
    """As many descriptors as this process may have: each client takes two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit on open files stays at %d, two for each client: %s", soft, error)


def _say(log_format: str, text: str, **facts: str) -> None:
    """To people; where programs read, as they expect it."""
    if log_format == "json":
        log.info(text, extra=facts)
    else:
        typer.echo(text, err=True)


def _reload_soon(running: Broker) -> None:
    """Not in the signal handler itself: the thread that it interrupts may hold any lock."""
    threading.Thread(target=_reload, args=(running,), name="ap-reload", daemon=True).start()


def _reload(running: Broker) -> None:
    try:
        changed, kept = running.reload()
    except AntiphonError as error:
        log.error("the settings cannot be read again, and stay as they were: %s", error)
        return
    logging.getLogger().setLevel(running.config.log_level.upper())
    log.info(
        "the settings were read again; changed: %s",
        ", ".join(changed) or "nothing",
        extra={"changed": changed},
    )
    if kept:
        log.warning(
            "restart the broker for what cannot change while it runs: %s",
            ", ".join(kept),
            extra={"needs_restart": kept},
        )


@app.command()
def health(
    address: Annotated[str, typer.Argument(help="Of the broker: tcp://host:port or unix:///path.")],
    secret_file: SecretFile = None,
    token_file: TokenFile = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_authority: TlsAuthority = None,
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds to wait for an answer.")] = 3.0,
    strict: Annotated[
        bool, typer.Option("--strict", help="A broker whose store has no space left is not well.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Ask a broker whether it is well; exit code 0 if it answers, 1 if not.

    Example: antiphon broker health tcp://127.0.0.1:7000
    """
    found = check_health(
        address,
        secret=read_secret(secret_file),
        tls=read_tls(tls_certificate, tls_key, tls_authority),
        token=read_token(token_file),
        timeout=timeout,
    )
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(found)))
    else:
        typer.echo(f"{address}: {found}")
    if not found.healthy or (strict and found.store_full):
        raise typer.Exit(1)


@app.command()
def token(
    name: Annotated[str, typer.Argument(help="Of the client that is to have it.")],
    as_json: AsJson = False,
) -> None:
    """Make a token: for the client, and the lines for the broker's settings.

    Example: antiphon broker token billing
    """
    check_name(name)
    made = new_token()
    if as_json:
        typer.echo(json.dumps({"name": name, "token": made, "hash": hash_token(made)}))
        return
    typer.echo(made)
    typer.echo(
        f"\nThe line above is for {name} alone, and is not shown again. "
        "For the broker's settings, with the topics that it may use:\n",
        err=True,
    )
    key = name if "." not in name else json.dumps(name)
    typer.echo(
        f'[broker.tokens.{key}]\nhash = "{hash_token(made)}"\npublish = []\nsubscribe = []',
        err=True,
    )


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
