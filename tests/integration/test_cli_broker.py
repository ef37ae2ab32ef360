"""``antiphon broker`` as people run it, with ``antiphon pub`` and ``antiphon sub`` behind it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from antiphon import AuthenticationFailed
from antiphon.testing.waiting import eventually
from antiphon.topics import Bus
from integration.buses import PATIENCE, Events, serves
from integration.commands import ANTIPHON, command, serving, subscriber
from unit.node.pairs import free_address, numbered

pytestmark = pytest.mark.timeout(120)


def test_three_commands_pass_events_from_hand_to_hand() -> None:
    with serving("--listen", "tcp://127.0.0.1:0") as broker:
        assert re.fullmatch(r"tcp://127\.0\.0\.1:\d{2,5}", broker.address)
        where = ["--bus", broker.address]
        with subscriber("plant/*/temp", *where, "--count", "3", "--json") as sub:
            done = command(
                "pub",
                "plant/7/temp",
                *where,
                "--property",
                "site=A",
                "--wait",
                "30",
                lines="one\ntwo\n\n",
            )
            output, errors = sub.communicate(timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stderr == "3 events to 1 subscription\n"
        assert (errors, sub.returncode) == ("", 0)
        events = [json.loads(line) for line in output.splitlines()]
        assert [event["data"] for event in events] == ["one", "two", ""]
        assert [event["sequence"] for event in events] == [1, 2, 3]
        assert {event["topic"] for event in events} == {"plant/7/temp"}
        assert all(event["properties"] == {"site": "A"} for event in events)
        assert len({event["source"] for event in events} - {broker.node}) == 1
        code, output, errors = broker.end()
        assert (code, output) == (0, "")
        assert errors.splitlines()[-1] == "3 events relayed, 0 dropped"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_it_says_what_it_has_done(number: signal.Signals) -> None:
    events = Events()
    with serving("--listen", "tcp://127.0.0.1:0") as broker:
        with Bus(broker.address) as here, Bus(broker.address) as there:
            there.subscribe("a", events)
            publisher = here.publisher("a")
            serves(publisher)
            publisher.publish_many(numbered(1000))
            assert events.wait(1000) == numbered(1000)
            code, output, errors = broker.end(number)  # while its clients are there
        assert (code, output) == (0, "")
        assert errors.splitlines()[-1] == "1000 events relayed, 0 dropped"
        assert "Traceback" not in errors


def test_it_listens_where_it_is_told(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("b") / "s"
    tcp = free_address()
    for address in (tcp, f"unix://{path}", tcp):
        with serving("--listen", address) as broker:
            assert broker.address == address
            events = Events()
            with Bus(address) as here, Bus(address) as there:
                there.subscribe("a", events)
                publisher = here.publisher("a")
                serves(publisher)
                publisher.publish(b"x")
                assert events.wait(1) == [b"x"]
            assert broker.end()[0] == 0
    assert not path.exists()


def test_a_secret_comes_from_a_file(tmp_path: Path) -> None:
    secret, wrong = tmp_path / "secret", tmp_path / "wrong"
    secret.write_text("between us\n")
    wrong.write_text("guessed\n")
    with serving("--listen", "tcp://127.0.0.1:0", "--secret-file", str(secret)) as broker:
        where = ["--bus", broker.address]
        with subscriber("a", *where, "--secret-file", str(secret), "--count", "1") as sub:
            done = command("pub", "a", "x", *where, "--secret-file", str(secret), "--wait", "30")
            output, errors = sub.communicate(timeout=60)
        assert done.returncode == 0, done.stderr
        assert (output, errors, sub.returncode) == ("a  x\n", "", 0)
        refused = command("pub", "a", "x", *where, "--secret-file", str(wrong), "--wait", "30")
        assert refused.returncode == 1
        assert refused.stderr.startswith("antiphon: ")
        assert refused.stderr.count("\n") == 1, refused.stderr
        with pytest.raises(AuthenticationFailed):
            Bus(broker.address).start()
        code, _, errors = broker.end()
        assert code == 0
        assert errors.splitlines()[-1] == "1 events relayed, 0 dropped"


def test_settings_come_from_a_file(tmp_path: Path) -> None:
    settings = tmp_path / "broker.toml"
    settings.write_text("[broker]\nmax_block = 0.5\ncapacity = 8\n")
    arguments = ["--listen", "tcp://127.0.0.1:0"]
    with (
        serving(*arguments, "--config", str(settings)) as broker,
        Bus(broker.address) as here,
        Bus(broker.address) as there,
    ):
        full = there.subscribe("a", capacity=4)
        publisher = here.publisher("a")
        serves(publisher)
        for number in range(100):  # four have room, and nobody waits for long
            publisher.publish(b"%d" % number)
        here.node.flush(PATIENCE)
        code, _, errors = broker.end()
        assert code == 0
        counts = re.fullmatch(r"100 events relayed, (\d+) dropped", errors.splitlines()[-1])
        assert counts
        kept = 100 - int(counts[1])
        assert 1 <= kept <= 4
        eventually(lambda: full.statistics()["messages"] == kept, PATIENCE)
    # Without being told, from the directory where it stands.
    (tmp_path / "antiphon.toml").write_text("[broker]\ncapacity = 0\n")
    failed = subprocess.run(
        [*ANTIPHON, "broker", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert failed.returncode == 2
    assert "capacity" in failed.stderr
    assert failed.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--listen", "127.0.0.1:7000"], 2, "127.0.0.1:7000"),
        (["--listen", "carrier-pigeon://x"], 2, "carrier-pigeon"),
        (["--listen", "tcp://127.0.0.1:many"], 2, "many"),
        (["--listen", "tcp://0.0.0.0:0"], 2, "secret"),
        (["--listen", "local://plant"], 2, "local"),
        (["--config", "/nowhere/broker.toml"], 2, "/nowhere/broker.toml"),
        (["--secret-file", "/nowhere/secret"], 2, "/nowhere/secret"),
        (["--colour", "red"], 2, "--colour"),
        (["somewhere"], 2, "somewhere"),
    ],
)
def test_a_mistake_is_one_line_that_says_it(arguments: list[str], code: int, says: str) -> None:
    done = command("broker", *arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert says in done.stderr
    assert done.stderr.startswith("antiphon: ")
    assert done.stderr.count("\n") == 1, done.stderr


def test_an_address_that_is_taken_and_an_empty_secret_are_one_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    refused = command("broker", "--secret-file", str(empty))
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
    with serving("--listen", "tcp://127.0.0.1:0") as broker:
        second = command("broker", "--listen", broker.address)
        assert second.returncode == 1
        assert broker.address in second.stderr
        assert second.stderr.count("\n") == 1, second.stderr
        assert broker.end()[0] == 0


def test_a_mistake_in_the_settings_is_one_line(tmp_path: Path) -> None:
    settings = tmp_path / "broker.toml"
    for text, says in [
        ("[broker]\ncapacity = 'many'\n", "capacity"),
        ("[broker]\ncolour = 'red'\n", "colour"),
        ("[broker\n", str(settings)),
    ]:
        settings.write_text(text)
        done = command("broker", "--listen", "tcp://127.0.0.1:0", "--config", str(settings))
        assert done.returncode == 2, done.stderr
        assert says in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


def test_publishing_without_a_broker_names_the_one_that_is_not_there() -> None:
    address = free_address()
    done = command("pub", "a/b", "x", "--bus", address, "--wait", "0.2")
    assert done.returncode == 1
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("antiphon: ")]
    assert f"no broker answered at {address}" in said
    assert f"'antiphon broker --listen {address}'" in said
    assert "nobody has subscribed" not in done.stderr


def test_a_store_that_is_in_use_is_a_failure_and_says_what_to_do(tmp_path: Path) -> None:
    where = ["--listen", "tcp://127.0.0.1:0", "--store", str(tmp_path / "store")]
    with serving(*where) as broker:
        done = command("broker", *where)
        assert done.returncode == 1
        process = broker.process.pid
        assert f"is in use by process {process}; end that one, or give" in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "letter").write_text("dear")
    assert command("broker", *where[:3], str(tmp_path / "none")).returncode == 2


def test_publishing_to_nobody_says_so_in_one_line() -> None:
    with serving("--listen", "tcp://127.0.0.1:0") as broker:
        done = command("pub", "t", "x", "--bus", broker.address, "--wait", "0.2")
        assert done.returncode == 1
        assert done.stderr.startswith("antiphon: nobody has subscribed to 't'")
        assert done.stderr.count("\n") == 1, done.stderr


def test_help_has_an_example() -> None:
    done = command("broker", "--help")
    assert done.returncode == 0
    assert "antiphon broker --listen tcp://127.0.0.1:7000" in " ".join(done.stdout.split())
