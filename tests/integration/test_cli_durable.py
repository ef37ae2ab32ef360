"""The command line of durable topics: pub --record, sub --durable, and what a broker remembers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon import Broker, Bus
from antiphon.testing import eventually
from integration.buses import PATIENCE
from integration.durables import record, recording, take

pytestmark = pytest.mark.timeout(120)

ANTIPHON = [sys.executable, "-m", "antiphon.cli.main"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def broker(path: Path) -> Iterator[Broker]:
    with recording(path) as running:
        yield running


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*ANTIPHON, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    return done


def test_recorded_events_are_printed_later_and_each_once(broker: Broker) -> None:
    done = run("pub", "orders/eu", "one", "--count", "3", "--record", "--bus", broker.address)
    assert "3 events recorded" in done.stderr
    to = ("--bus", broker.address, "--json")
    done = run("pub", "orders/us", "one", "--count", "2", "--record", *to)
    assert (json.loads(done.stdout), done.stderr) == ({"events": 2, "recorded": 2}, "")
    sub = ("sub", "orders/eu", "--bus", broker.address)
    assert run(*sub, "--start", "earliest", "--count", "3").stdout == "orders/eu  one\n" * 3
    assert run(*sub, "--start", "2000-01-01", "--count", "3").stdout == "orders/eu  one\n" * 3
    durable = (*sub, "--durable", "printer", "--json")
    lines = run(*durable, "--start", "earliest", "--count", "2").stdout.splitlines()
    assert [json.loads(line)["sequence"] for line in lines] == [1, 2]
    assert json.loads(run(*durable, "--count", "1").stdout)["sequence"] == 3
    assert "--start" in run(*sub, "--start", "whenever", code=2).stderr


def test_subscriptions_are_listed_forgotten_and_their_dead_letters_replayed(
    broker: Broker, path: Path
) -> None:
    with Bus(broker.address) as bus:
        record(bus, "t", b"one", b"two")
        sub = bus.subscribe("t", durable="d", start="earliest", ack="manual")
        take(sub, 2)[0].ack()
        eventually(lambda: broker._answers.durables(0)[0]["lag"] == 1, PATIENCE)
        listed = run("broker", "subscriptions", broker.address).stdout
        assert f"d: t, 1 events behind, held by {bus.node.id}" in listed
        assert "  t: next 3 of 2, 1 behind" in listed
        assert "held by client" in run("broker", "forget", broker.address, "d", code=2).stderr
        sub.close()
        eventually(lambda: not broker._answers.durables(0)[0]["holders"], PATIENCE)
    (only,) = json.loads(run("broker", "subscriptions", broker.address, "--json").stdout)
    assert (only["name"], only["lag"], only["holders"]) == ("d", 1, [])
    done = run("broker", "replay-dead", broker.address, "d")
    assert "0 dead letters of d replayed" in done.stderr
    done = run("broker", "replay-dead", broker.address, "d", "--json")
    assert (json.loads(done.stdout), done.stderr) == ({"name": "d", "replayed": 0}, "")
    offline = run("broker", "subscriptions", str(path)).stdout  # the store itself, beside a broker
    assert offline.startswith("d: t, ")
    run("broker", "forget", broker.address, "d")
    assert "no durable subscriptions" in run("broker", "subscriptions", broker.address).stdout


def test_a_broker_without_a_store_says_so() -> None:
    with Broker("tcp://127.0.0.1:0") as broker:
        done = run("broker", "subscriptions", broker.address, code=2)
        assert "--store" in done.stderr
        done = run("pub", "t", "x", "--record", "--bus", broker.address, code=2)
        assert "--store" in done.stderr
