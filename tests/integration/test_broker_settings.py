"""``broker.toml``: everything of a broker in one file, read at the start and again on SIGHUP."""

from __future__ import annotations

import json
import logging
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from antiphon import Broker, BrokerConfig
from antiphon.broker.tokens import hash_token
from antiphon.errors import ConfigError, MessageTooLarge, PermissionDenied
from antiphon.testing.waiting import eventually
from antiphon.topics import Bus
from integration.buses import PATIENCE, Events, serves
from integration.commands import ANTIPHON, Serving, command, serving
from unit.node.pairs import free_address

pytestmark = pytest.mark.timeout(120)

WHOLE = """
[broker]
listen = "tcp://127.0.0.1:0"
secret_file = "{secret}"
capacity = 64
max_block = 0.25
system_interval = 1
log_level = "debug"

[broker.limits]
max_clients = 100
max_topics = 2
max_subscriptions = 3
max_events_per_s = 1e6
max_bytes_per_s = "100MB"
max_message_bytes = "64KiB"

[broker.anonymous]
subscribe = ["public/**"]

[broker.tokens.billing]
hash = "{hash}"
publish = ["bills/**", "public/bills"]
subscribe = ["orders/*"]
record = ["bills/**"]
admin = ["**"]

[node]
heartbeat = 2.0
spin_us = 10
"""


def lines(broker: Serving, what: str) -> str:
    """Lines of standard error until one says that. The test's own timeout bounds the wait."""
    assert broker.process.stderr is not None
    seen = ""
    while line := broker.process.stderr.readline():
        seen += line
        if what in line:
            return seen
    raise AssertionError(f"it ended, and never said {what!r}: {seen}")


def test_everything_of_a_broker_is_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("between us\n")
    settings = tmp_path / "broker.toml"
    settings.write_text(WHOLE.format(secret=tmp_path / "secret", hash=hash_token("let me in")))
    with serving("--config", str(settings)) as broker:
        with Bus(broker.address, secret="between us", token="let me in") as bus:
            with pytest.raises(PermissionDenied, match="may publish bills"):
                bus.publisher("orders/1")
            bus.publisher("bills/7")
            bus.publisher("public/bills")
            with pytest.raises(PermissionDenied, match="may publish 2 topics"):
                bus.publisher("bills/8")
            with Bus(broker.address, secret="between us") as reader:
                events = Events()
                reader.subscribe("public/bills", events)
                with pytest.raises(PermissionDenied, match="'anonymous' subscribe 'bills/7'"):
                    reader.subscribe("bills/7")
            with pytest.raises(MessageTooLarge):
                bus.node.send(broker.node, bytes(65 * 1024), kind=200)
        assert broker.end()[0] == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[broker]\nlisten = 7\n", "listen, set by {} [broker], line 2: 7 is not a text"),
        ("[broker]\n\ncolour = 1\n", "{}: unknown key 'colour' in [broker], line 3"),
        ("[brokers]\n", "{}: unknown table [brokers], line 1; did you mean broker?"),
        (
            "[broker.limits]\nmax_client = 3\n",
            "limits.max_client, set by {} [broker], line 2: 'max_client' is none of max_clients,",
        ),
        (
            "[broker.limits]\nmax_topics = 3\nmax_clients = 0\n",
            "limits.max_clients, set by {} [broker], line 3: max_clients is 0; it must be a whole",
        ),
        (
            '[broker.limits]\nmax_bytes_per_s = "fast"\n',
            "limits.max_bytes_per_s, set by {} [broker], line 2: 'fast' is not a",
        ),
        (
            '[broker.tokens.a]\nhash = "x"\n',
            "tokens.a.hash, set by {} [broker], line 2: hash is 'x'; it must be what",
        ),
        ('[broker.tokens.a]\npublish = ["x"]\n', "tokens.a, set by {} [broker], line 1: hash is"),
        (
            '[broker.tokens.a]\nhash = "{hash}"\npublish = [\n  "a",\n  "b*"]\n',
            "tokens.a.publish, set by {} [broker], line 3: publish: pattern 'b*'",
        ),
        (
            '[broker.tokens.a]\nhash = "{hash}"\n[broker.tokens.b]\nhash = "{hash}"\n',
            "a and b have one hash; give each its own",
        ),
        ('[broker.anonymous]\nread = ["a"]\n', "line 2: 'read' is none of publish, subscribe"),
        ('[broker]\nlog_level = "loud"\n', "it must be one of debug, info, warning, error"),
        ("[broker]\nmax_block = -1\n", "it must be a number of seconds from 0 to 3600"),
        ('[broker]\nlisten = "tcp://0.0.0.0:0"\n', "neither a secret nor tls"),
        ('[broker]\nsecret_file = "/nowhere/s"\n', "cannot be read from /nowhere/s"),
        ('[broker.tls]\ncertificate = "c"\n', "tls, set by {} [broker], line 1: key is missing"),
        ("[node]\nheartbeat = 0\n", "heartbeat is 0.0; it must be"),
    ],
)
def test_a_mistake_names_the_file_the_line_and_what_is_allowed(
    tmp_path: Path, text: str, says: str
) -> None:
    settings = tmp_path / "broker.toml"
    settings.write_text(text.replace("{hash}", hash_token("x")))
    done = command("broker", "--config", str(settings))
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert says.replace("{}", str(settings)) in done.stderr, done.stderr


def test_the_argument_beats_the_file(tmp_path: Path) -> None:
    settings = tmp_path / "broker.toml"
    settings.write_text(f'[broker]\nlisten = "unix://{tmp_path}/not-here"\n')
    with serving("--config", str(settings), "--listen", "tcp://127.0.0.1:0") as broker:
        assert broker.address.startswith("tcp://127.0.0.1:")
        assert broker.end()[0] == 0


def test_a_signal_reads_the_settings_again_and_says_what_needs_a_restart(tmp_path: Path) -> None:
    settings = tmp_path / "broker.toml"
    first = (
        '[broker]\nlisten = "tcp://127.0.0.1:0"\n'
        f'[broker.tokens.one]\nhash = "{hash_token("1")}"\npublish = ["a"]\nsubscribe = ["a"]\n'
    )
    settings.write_text(first)
    with serving("--config", str(settings)) as broker, Bus(broker.address, token="1") as bus:
        events = Events()
        with pytest.raises(PermissionDenied):
            bus.subscribe("b", events)
        with pytest.raises(PermissionDenied) as refused:
            Bus(broker.address, token="2").start()
        assert refused.value.action == "connect"
        settings.write_text(
            first.replace('"a"', '"b"').replace("[broker]\n", "[broker]\ncapacity = 8\n", 1)
            + f'[broker.tokens.two]\nhash = "{hash_token("2")}"\npublish = ["b"]\n'
            + "[broker.limits]\nmax_topics = 5\n"
        )
        broker.process.send_signal(signal.SIGHUP)
        said = lines(broker, "cannot change while it runs")
        assert "changed: tokens, limits" in said
        assert re.search(r"cannot change while it runs: capacity\n", said), said

        def subscribed() -> bool:
            try:
                bus.subscribe("b", events)
            except PermissionDenied:
                return False
            return True

        eventually(subscribed, PATIENCE, "the new rights have come")
        with Bus(broker.address, token="2") as second:
            publisher = second.publisher("b")
            serves(publisher)
            publisher.publish(b"x")
            assert events.wait(1) == [b"x"]
        # Settings that make no sense change nothing.
        settings.write_text("[broker]\ncapacity = 'none'\n")
        broker.process.send_signal(signal.SIGHUP)
        said = lines(broker, "stay as they were")
        assert "line 2" in said
        with Bus(broker.address, token="2"):
            pass
        assert broker.end()[0] == 0


def test_the_log_level_changes_while_it_runs(tmp_path: Path) -> None:
    settings = tmp_path / "broker.toml"
    settings.write_text('[broker]\nlog_level = "info"\n')
    arguments = ["--config", str(settings), "--listen", "tcp://127.0.0.1:0"]
    with serving(*arguments) as broker:
        with Bus(broker.address):
            pass
        settings.write_text('[broker]\nlog_level = "debug"\n')
        broker.process.send_signal(signal.SIGHUP)
        said = lines(broker, "changed: log_level")
        assert "has connected" not in said
        with Bus(broker.address):
            pass
        lines(broker, "has connected")
        assert broker.end()[0] == 0


def test_logs_are_objects_if_one_wants_them_so(tmp_path: Path) -> None:
    settings = tmp_path / "broker.toml"
    settings.write_text(f'[broker.tokens.one]\nhash = "{hash_token("1")}"\n')
    process = subprocess.Popen(
        [
            *ANTIPHON,
            "broker",
            "--config",
            str(settings),
            "--listen",
            "tcp://127.0.0.1:0",
            "--log-format",
            "json",
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        first = json.loads(process.stderr.readline())
        assert first["level"] == "info"
        assert first["logger"] == "antiphon.broker"
        with pytest.raises(PermissionDenied, match="a token is needed here"):
            Bus(first["address"]).start()
        process.send_signal(signal.SIGHUP)
        again = json.loads(process.stderr.readline())
        assert again["changed"] == []
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=PATIENCE)
        assert [json.loads(line)["message"] for line in rest.splitlines()][-1].endswith("dropped")
    finally:
        process.kill()
        process.communicate()
    wrong = command("broker", "--log-format", "xml")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1), wrong.stderr


def test_a_broker_that_stops_tells_its_clients_who_find_it_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = Events()
    address = free_address()
    with (
        serving("--listen", address) as broker,
        Bus(address) as here,
        Bus(address) as there,
    ):
        there.subscribe("a", events)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish(b"before")
        events.wait(1)
        with caplog.at_level(logging.WARNING, "antiphon.topics"):
            code, _, errors = broker.end()
            assert (code, errors.splitlines()[-1]) == (0, "1 events relayed, 0 dropped")
            eventually(lambda: caplog.text.count(f"the broker at {address} stopped") == 2, PATIENCE)
        # Before the next one: that may be found before anybody looks here.
        eventually(lambda: publisher.subscribers == 0, PATIENCE)
        with serving("--listen", address):
            serves(publisher)
            publisher.publish(b"after")
            assert events.wait(2) == [b"before", b"after"]


def test_a_broker_that_stops_tells_also_those_for_whom_something_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Broker("tcp://127.0.0.1:0") as broker, Bus(broker.address) as bus:
        bus.publisher("a")
        eventually(lambda: broker._neighbours.others == 1, PATIENCE)
        # As a letter that finds no room: what comes now queues behind it.
        broker.node._later.add(bus.node.id, lambda: time.sleep(0.5))
        with caplog.at_level(logging.WARNING, "antiphon.topics"):
            broker.close()
            eventually(lambda: f"the broker at {broker.address} stopped" in caplog.text, PATIENCE)


def test_health_is_an_exit_code(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("between us\n")
    (tmp_path / "token").write_text("1\n")
    settings = tmp_path / "broker.toml"
    settings.write_text(
        f'[broker]\nlisten = "unix://{tmp_path}/s"\nsecret_file = "{tmp_path}/secret"\n'
        f'[broker.tokens.one]\nhash = "{hash_token("1")}"\n'
    )
    secret = ["--secret-file", str(tmp_path / "secret")]
    with serving("--config", str(settings)) as broker:
        well = command("broker", "health", broker.address, *secret, "--json")
        assert well.returncode == 0, well.stderr
        found = json.loads(well.stdout)
        assert (found["healthy"], found["client"]) == (True, None)
        known = command(
            "broker", "health", broker.address, *secret, "--token-file", str(tmp_path / "token")
        )
        assert known.returncode == 0
        assert "known here as one" in known.stdout
        stranger = command("broker", "health", broker.address, "--timeout", "1")
        assert stranger.returncode == 1
        assert "not well" in stranger.stdout
        assert broker.end()[0] == 0
    gone = command("broker", "health", f"unix://{tmp_path}/s", *secret, "--timeout", "0.5")
    assert (gone.returncode, gone.stdout.count("\n")) == (1, 1)
    assert "not well" in gone.stdout
    assert command("broker", "health", "nowhere").returncode == 2


def test_a_token_is_made_by_a_command(tmp_path: Path) -> None:
    done = command("broker", "token", "billing")
    assert done.returncode == 0
    token = done.stdout.strip()
    settings = tmp_path / "broker.toml"
    settings.write_text(done.stderr[done.stderr.index("[broker.tokens.billing]") :])
    assert command("broker", "token", "billing").stdout.strip() != token
    with serving("--config", str(settings), "--listen", "tcp://127.0.0.1:0") as broker:
        with Bus(broker.address, token=token) as bus, pytest.raises(PermissionDenied) as refused:
            bus.publisher("a")
        assert (refused.value.client, refused.value.action) == ("billing", "publish")
        assert broker.end()[0] == 0
    assert json.loads(command("broker", "token", "x", "--json").stdout).keys() == {
        "name",
        "token",
        "hash",
    }
    assert command("broker", "token", "not a name").returncode == 2


def test_reloading_in_a_program() -> None:
    with Broker("tcp://127.0.0.1:0", config=BrokerConfig(capacity=8)) as broker:
        assert broker.reload(BrokerConfig(capacity=16, log_level="error")) == (
            ["log_level"],
            ["capacity"],
        )
        assert (broker.config.capacity, broker.config.log_level) == (8, "error")
        with pytest.raises(ConfigError):
            BrokerConfig(anonymous="everybody")  # type: ignore[arg-type]
