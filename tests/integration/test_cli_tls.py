"""Commands with certificates: at a broker and in a group that let nobody in without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon import TLS, Broker, Bus, Group
from antiphon.broker import check_health
from antiphon.testing import eventually
from antiphon.testing.certificates import Authority
from integration.buses import PATIENCE
from integration.commands import command, subscriber
from integration.durables import record, take
from integration.test_cli_group import running
from integration.tls_tools import TLS_TESTS

pytestmark = [*TLS_TESTS, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def any_node(ours: Authority) -> TLS:
    return ours.node("*")


@pytest.fixture
def broker(ours: Authority, tmp_path: Path) -> Iterator[Broker]:
    with Broker("tcp://127.0.0.1:0", id=1, tls=ours.node(1), store=tmp_path / "store") as running:
        yield running


def options(tls: TLS) -> list[str]:
    return [
        "--tls-certificate", tls.certificate, "--tls-key", tls.key, "--tls-authority", tls.authority
    ]  # fmt: skip


def test_health_is_asked_with_certificates(
    broker: Broker, any_node: TLS, theirs: Authority
) -> None:
    assert check_health(broker.address, tls=any_node).healthy
    assert not check_health(broker.address, tls=theirs.node("*")).healthy
    assert not check_health(broker.address, timeout=1.0).healthy
    done = command("broker", "health", broker.address, *options(any_node), "--json")
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["healthy"] is True
    assert command("broker", "health", broker.address, "--timeout", "1").returncode == 1


def test_events_are_published_and_printed_with_certificates(broker: Broker, any_node: TLS) -> None:
    where = ["--bus", broker.address, *options(any_node)]
    with subscriber("a", *where, "--count", "1") as sub:
        done = command("pub", "a", "x", *where, "--wait", "30")
        output, errors = sub.communicate(timeout=60)
    assert done.returncode == 0, done.stderr
    assert (output, errors, sub.returncode) == ("a  x\n", "", 0)


def test_what_a_broker_remembers_is_asked_with_certificates(broker: Broker, any_node: TLS) -> None:
    with Bus(broker.address, tls=any_node) as bus:
        record(bus, "t", b"one")
        sub = bus.subscribe("t", durable="d", start="earliest", ack="manual")
        take(sub, 1)[0].ack()
        eventually(lambda: broker._answers.durables(0)[0]["lag"] == 0, PATIENCE)
        sub.close()
        eventually(lambda: not broker._answers.durables(0)[0]["holders"], PATIENCE)
    known = options(any_node)
    done = command("broker", "subscriptions", broker.address, "--json", *known)
    assert done.returncode == 0, done.stderr
    assert [one["name"] for one in json.loads(done.stdout)] == ["d"]
    done = command("broker", "replay-dead", broker.address, "d", *known)
    assert (done.returncode, done.stderr) == (0, "0 dead letters of d replayed\n")
    done = command("broker", "forget", broker.address, "d", *known)
    assert (done.returncode, done.stderr) == (0, "d is forgotten\n")


def test_a_member_from_a_shell_has_certificates(channel: str, any_node: TLS) -> None:
    way = "mcast://239.77.0.5:7797?interface=127.0.0.1"
    shell = running("group", "lounge", "--as", "shell", "--discover", way, *options(any_node))
    with Group("lounge", discover=way, tls=any_node, member_name="here") as group, shell:
        eventually(lambda: [one.name for one in group.members] == ["here", "shell"], 40)


@pytest.mark.parametrize(
    "arguments",
    [
        ["broker", "health", "tcp://127.0.0.1:7"],
        ["broker", "subscriptions", "tcp://127.0.0.1:7"],
        ["broker", "forget", "tcp://127.0.0.1:7", "d"],
        ["broker", "replay-dead", "tcp://127.0.0.1:7", "d"],
        ["sub", "a", "--bus", "tcp://127.0.0.1:7"],
        ["pub", "a", "x", "--bus", "tcp://127.0.0.1:7"],
        ["group", "lounge"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_it_is_all_three_files_or_none(arguments: list[str], channel: str, any_node: TLS) -> None:
    done = command(*arguments, "--tls-certificate", any_node.certificate)
    assert done.returncode == 2
    assert done.stderr == (
        "antiphon: certificates are three files; --tls-key and --tls-authority are missing\n"
    )


def test_files_that_are_no_certificates_are_one_line(tmp_path: Path, any_node: TLS) -> None:
    files = options(any_node)
    files[1] = str(tmp_path / "none.pem")
    done = command("broker", "health", "tcp://127.0.0.1:7", *files)
    assert done.returncode == 2
    assert done.stderr.startswith("antiphon: tls: ")
    assert done.stderr.count("\n") == 1
