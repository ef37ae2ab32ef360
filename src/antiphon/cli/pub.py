"""``antiphon pub``: events from the command line, or a line of standard input each."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Annotated

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
from antiphon.errors import AntiphonError, ConfigError, PeerUnreachable
from antiphon.topics import Bus
from antiphon.topics.where import plain_properties

__all__ = ["pub"]

_PATIENCE = 5.0


def pub(
    topic: Annotated[str, typer.Argument(help="What to publish on, such as plant/7/temp.")],
    data: Annotated[
        str | None, typer.Argument(help="The event. Without it, every line of standard input.")
    ] = None,
    bus: Annotated[
        str, typer.Option(help="The channel: local://name, mcast://group:port, a broker's tcp://.")
    ] = "local://default",
    secret_file: SecretFile = None,
    token_file: TokenFile = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_authority: TlsAuthority = None,
    kind: KindOption = Kind.NAME,
    count: Annotated[int, typer.Option(min=1, help="How often to publish DATA.")] = 1,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Events per second; without it, as they come.")
    ] = None,
    prop: Annotated[
        list[str] | None, typer.Option("--property", help="name=value, for where= filters.")
    ] = None,
    ttl: Annotated[float | None, typer.Option(help="Seconds after which it is worthless.")] = None,
    record: Annotated[
        bool, typer.Option("--record", help="The broker records it; ends when all is recorded.")
    ] = False,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for the first subscriber.")
    ] = _PATIENCE,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the counts as one JSON object.")
    ] = False,
) -> None:
    """Publish on a topic, and say how many events went to how many subscriptions.

    Example: antiphon pub plant/7/temp 31.5 --property site=A
    Example: antiphon pub room=blue "the light is on" --kind tag
    """
    properties = dict(_property(text) for text in prop or ())
    plain_properties(properties)  # before anybody is waited for
    if ttl is not None and not ttl > 0:
        raise ConfigError(f"--ttl {ttl:g}: give seconds above 0", setting="ttl", value=ttl)
    secret, token = read_secret(secret_file), read_token(token_file)
    tls = read_tls(tls_certificate, tls_key, tls_authority)
    with Bus(bus, secret=secret, tls=tls, token=token) as channel:
        publisher = channel.publisher(read_topic(topic, kind), record=record)
        if wait and not record and not publisher.wait_for_subscribers(1, wait):
            like = "" if kind is Kind.NAME else f" --kind {kind}"
            raise _nobody(channel, topic, bus, like, wait)
        published = subscribers = 0
        due = time.monotonic()
        for event in _events(data, count):
            if rate is not None:
                time.sleep(max(0.0, due - time.monotonic()))
                due += 1 / rate
            subscribers = max(subscribers, publisher.subscribers)  # some leave early
            publisher.publish(event, properties or None, ttl)
            published += 1
        if record:
            publisher.flush(30.0)
            _say_recorded(published, as_json)
            return
        with contextlib.suppress(PeerUnreachable):  # it had enough, and left
            channel.node.flush(30.0)
    if as_json:
        typer.echo(json.dumps({"events": published, "subscriptions": subscribers}))
        return
    what = "event" if published == 1 else "events"
    whom = "subscription" if subscribers == 1 else "subscriptions"
    typer.echo(f"{published} {what} to {subscribers} {whom}", err=True)


def _nobody(channel: Bus, topic: str, bus: str, like: str, wait: float) -> AntiphonError:
    """Of an event that found no subscriber, and whose fault that is."""
    peer_to_peer = bus.startswith(("local:", "mcast:"))
    if not peer_to_peer and not any(one.sending for one in channel.node.connections()):
        return PeerUnreachable(
            f"no broker answered at {bus} within {wait:g} s; start one ('antiphon broker --listen "
            f"{bus}'), or give the address of another (--bus)",
            address=bus,
        )
    return AntiphonError(
        f"nobody has subscribed to {topic!r} on {bus} within {wait:g} s; start 'antiphon "
        f"sub {topic} --bus {bus}{like}', or wait longer (--wait)"
    )


def _say_recorded(published: int, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"events": published, "recorded": published}))
    else:
        typer.echo(f"{published} events recorded", err=True)


def _events(data: str | None, count: int) -> Iterator[bytes]:
    if data is not None:
        for _ in range(count):
            yield data.encode()
        return
    for line in sys.stdin.buffer:
        yield line.rstrip(b"\n")


def _property(text: str) -> tuple[str, str | int | float | bool]:
    name, sign, value = text.partition("=")
    if not sign:
        raise ConfigError(f"--property {text!r}: give name=value", setting="property", value=text)
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    for number in (int, float):
        try:
            return name, number(value)
        except ValueError:
            continue
    return name, value
