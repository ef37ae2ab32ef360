"""``antiphon broker subscriptions``, ``forget`` and ``replay-dead``: what a broker remembers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from antiphon.broker.durable import describe
from antiphon.broker.positions import Positions
from antiphon.broker.store import Store
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
from antiphon.node import TLS
from antiphon.topics import Bus
from antiphon.topics.asking import Replay, Tell

__all__ = ["add_commands"]

Address = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="A broker's, such as tcp://host:7000.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Of a durable subscription.")]


def add_commands(app: typer.Typer) -> None:
    """To those of ``antiphon broker``."""
    app.command()(subscriptions)
    app.command()(forget)
    app.command(name="replay-dead")(replay_dead)


def subscriptions(
    where: Annotated[
        str,
        typer.Argument(metavar="DIR|ADDRESS", help="The directory of a store, or a broker."),
    ],
    secret_file: SecretFile = None,
    token_file: TokenFile = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_authority: TlsAuthority = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List durable subscriptions, where they stand and how far they are behind.

    Example: antiphon broker subscriptions tcp://127.0.0.1:7000
    """
    tls = read_tls(tls_certificate, tls_key, tls_authority)
    if "://" in where:
        with _bus(where, secret_file, token_file, tls) as bus:
            found = bus._behind("address").ask(Tell(), "subscriptions")
    else:
        with Store(Path(where), read_only=True) as store:
            found = [describe(saved, store) for saved in Positions(where).load()]
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    for one in found:
        holders = one.get("holders")
        held = "" if holders is None else f", held by {', '.join(map(str, holders)) or 'nobody'}"
        shared = f", group {one['group']}" if one["group"] else ""
        typer.echo(f"{one['name']}: {one['pattern']}{shared}, {one['lag']} events behind{held}")
        for topic in one["topics"]:
            typer.echo(
                f"  {topic['topic']}: next {topic['next']} of {topic['end'] - 1}, "
                f"{topic['lag']} behind"
            )
    if not found:
        typer.echo("no durable subscriptions")


def forget(
    address: Address,
    name: Name,
    secret_file: SecretFile = None,
    token_file: TokenFile = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_authority: TlsAuthority = None,
) -> None:
    """Forget a durable subscription that nobody holds, and its position.

    Example: antiphon broker forget tcp://127.0.0.1:7000 billing
    """
    tls = read_tls(tls_certificate, tls_key, tls_authority)
    with _bus(address, secret_file, token_file, tls) as bus:
        bus.forget(name)
    typer.echo(f"{name} is forgotten", err=True)


def replay_dead(
    address: Address,
    name: Name,
    limit: Annotated[int, typer.Option(min=0, help="At most so many; 0: all.")] = 0,
    secret_file: SecretFile = None,
    token_file: TokenFile = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_authority: TlsAuthority = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Publish the dead letters of a durable subscription again, each on its topic, each once.

    Example: antiphon broker replay-dead tcp://127.0.0.1:7000 billing --limit 100
    """
    tls = read_tls(tls_certificate, tls_key, tls_authority)
    with _bus(address, secret_file, token_file, tls) as bus:
        count = bus._behind("address").ask(Replay(name, limit), "replay-dead")
    if as_json:
        typer.echo(json.dumps({"name": name, "replayed": count}))
    else:
        typer.echo(f"{count} dead letters of {name} replayed", err=True)


def _bus(address: str, secret_file: Path | None, token_file: Path | None, tls: TLS | None) -> Bus:
    return Bus(address, secret=read_secret(secret_file), tls=tls, token=read_token(token_file))
