"""``antiphon sub``: the events of topics, as lines."""

from __future__ import annotations

import base64
import datetime
import json
import sys
import time
from typing import Annotated, Any

import typer

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
from antiphon.cli.topic import Kind, KindOption, read_topic
from antiphon.errors import ConfigError, ReceiveTimeout
from antiphon.topics import AllOf, Bus, Regex, XPath
from antiphon.topics.wishes import Start

__all__ = ["sub"]


def sub(
    pattern: Annotated[str, typer.Argument(help="Topics: * is one level, ** any number.")],
    bus: Annotated[
        str, typer.Option(help="The channel: local://name, mcast://group:port, a broker's tcp://.")
    ] = "local://default",
    secret_file: SecretFile = None,
    token_file: TokenFile = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_authority: TlsAuthority = None,
    kind: KindOption = Kind.NAME,
    where: Annotated[
        str | None, typer.Option(help="A filter on properties: site = 'A' AND temp > 30")
    ] = None,
    regex: Annotated[
        str | None,
        typer.Option("--where-regex", help="A filter on the data, by RE2: timeout|refused"),
    ] = None,
    xpath: Annotated[
        str | None,
        typer.Option("--where-xpath", help="A filter on data that is XML: /order\\[total > 100]"),
    ] = None,
    namespace: Annotated[
        list[str] | None, typer.Option(help="prefix=name, for --where-xpath.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            help="What a broker has recorded first: earliest, latest, a sequence, a time."
        ),
    ] = None,
    durable: Annotated[
        str | None, typer.Option(help="A name whose position the broker keeps.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Each event goes to one of those with this name.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many events.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="End after so long.")] = None,
    rate: Annotated[
        bool, typer.Option("--rate", help="Events and bytes per second instead of events.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="One JSON object per line. Data that is not UTF-8 is null under data, and under "
            "data_base64 as what that says.",
        ),
    ] = False,
) -> None:
    """Print what is published, until Ctrl-C.

    Example: antiphon sub 'plant/*/temp' --where "temp > 30" --json
    Example: antiphon sub 'log/*' --where-regex 'timeout|refused'
    """
    wanted = _where(where, regex, xpath, namespace or [])
    until = None if seconds is None else time.monotonic() + seconds
    secret, token = read_secret(secret_file), read_token(token_file)
    tls = read_tls(tls_certificate, tls_key, tls_authority)
    with Bus(bus, secret=secret, tls=tls, token=token) as channel:
        named = durable is not None or group is not None
        subscription = channel.subscribe(
            read_topic(pattern, kind),
            where=wanted,
            start=_start(start),
            durable=durable,
            group=group,
            ack="manual" if named else "auto",
        )
        seen = size = said = 0
        due = time.monotonic() + 1
        while count is None or seen < count:
            now = time.monotonic()
            if rate and now >= due:
                _say_rate(seen - said, size, now - due + 1, as_json)
                said, size, due = seen, 0, now + 1
            if until is not None and now >= until:
                break
            patience = min(1.0, *(point - now for point in (until, due) if point is not None))
            try:
                event = subscription.receive(max(0.0, patience))
            except ReceiveTimeout:
                continue
            seen += 1
            size += len(event.data)
            if not rate:
                _say(event, as_json)
            if named:  # it is printed
                event.ack()


def _start(text: str | None) -> Start:
    if text is None or text in ("earliest", "latest"):
        return text
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"--start {text!r}: earliest, latest, a sequence, or a time such as "
            "2026-01-31T12:00:00+01:00",
            setting="start",
            value=text,
        ) from None
    return moment if moment.tzinfo is not None else moment.astimezone()


def _where(
    where: str | None, regex: str | None, xpath: str | None, namespaces: list[str]
) -> AllOf | None:
    """All that was given has to hold."""
    parts: list[Any] = [] if where is None else [where]
    if regex is not None:
        parts.append(Regex(regex))
    if xpath is not None:
        pairs = [text.partition("=") for text in namespaces]
        parts.append(XPath(xpath, {prefix: name for prefix, _, name in pairs}))
    return AllOf(*parts) if parts else None


def _say_rate(events: int, size: int, seconds: float, as_json: bool) -> None:
    facts = {"events_per_s": round(events / seconds, 1), "bytes_per_s": round(size / seconds, 1)}
    if as_json:
        print(json.dumps(facts), flush=True)
    else:
        print(f"{facts['events_per_s']:,.0f} events/s  {facts['bytes_per_s']:,.0f} B/s", flush=True)


def _say(event: Any, as_json: bool) -> None:
    if as_json:
        facts = {
            "topic": event.topic if isinstance(event.topic, int) else str(event.topic),
            **_data(event.data),
            "properties": event.properties,
            "time_ns": event.time_ns,
            "source": event.source,
            "sequence": event.sequence,
            "missed": event.missed,
        }
        print(json.dumps(facts), flush=True)
        return
    if event.missed:
        print(f"({event.missed} events were missed here)", file=sys.stderr)
    print(f"{event.topic}  {event.data.decode(errors='backslashreplace')}", flush=True)


def _data(data: bytes) -> dict[str, str | None]:
    """As JSON can hold it: nothing that is no text looks like one."""
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"data": None, "data_base64": base64.b64encode(data).decode()}
