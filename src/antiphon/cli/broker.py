"""``antiphon broker``: a broker, until it is told to end."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from antiphon.broker import Broker
from antiphon.cli.secret import SecretFile, read_secret

__all__ = ["broker"]


def broker(
    listen: Annotated[
        str, typer.Option(help="Where buses find it: tcp://host:port or unix:///path.")
    ] = "tcp://127.0.0.1:7000",
    secret_file: SecretFile = None,
    config: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Settings, instead of ./antiphon.toml."),
    ] = None,
) -> None:
    """Pass events on between buses, until Ctrl-C or SIGTERM.

    Example: antiphon broker --listen tcp://127.0.0.1:7000
    """
    if config is not None:
        os.environ["ANTIPHON_CONFIG"] = str(config)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    with Broker(listen, secret=read_secret(secret_file)) as running:
        typer.echo(f"broker at {running.address}, node {running.node.id}; Ctrl-C ends it", err=True)
        running.wait()
        counts = running.statistics()
    typer.echo(f"{counts.relayed} events relayed, {counts.dropped} dropped", err=True)
