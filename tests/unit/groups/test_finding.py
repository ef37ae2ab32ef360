"""Ways to find members whose servers hang: they hold up nothing, and nothing piles up."""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from antiphon import ConfigError, Group, Node
from antiphon.groups.finding import _LOOK_UP, _Channelled, _Names
from antiphon.node.address import parse_address
from antiphon.testing import eventually

pytestmark = pytest.mark.timeout(60)


class NameServer:
    """What `socket.getaddrinfo` asks; it may hang."""

    def __init__(self) -> None:
        self.hosts = ["127.0.0.1"]
        self.asked = 0
        self.answers = threading.Event()
        self.answers.set()

    def __call__(self, host: str, port: int, **more: Any) -> list[Any]:
        self.asked += 1
        self.answers.wait(30)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in self.hosts]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> NameServer:
    made = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", made)
    return made


def test_a_name_is_looked_up_once_at_a_time(server: NameServer) -> None:
    with Node() as node:
        names = _Names("members.test", 1)
        names.start(node)
        server.answers.clear()
        for number in range(50):
            names.poll(number * _LOOK_UP)
        eventually(lambda: server.asked == 1)
        assert node._later._jobs == 1
        server.answers.set()
        eventually(lambda: not names._looking_up._under_way)
        assert server.asked == 1
        names.poll(51 * _LOOK_UP)
        eventually(lambda: server.asked == 2)


def test_addresses_that_a_name_does_not_mean_any_more_are_forgotten(server: NameServer) -> None:
    with Node() as node:
        names = _Names("members.test", 1)
        names.start(node)
        for number in range(1, 20):
            server.hosts = [f"127.0.0.{number}", "127.0.0.200"]
            names.poll(number * _LOOK_UP)
            eventually(lambda: names._found is not None)
            names.poll(number * _LOOK_UP)
            assert set(names.addresses) == {f"tcp://{host}:1" for host in server.hosts}


def test_a_directory_whose_server_hangs_holds_up_nobody(tmp_path: Path) -> None:
    with Group("files", discover=f"file://{tmp_path}") as group:
        pipe = tmp_path / "files" / "1-1.member"
        os.mkfifo(pipe)  # whoever reads it waits for one who writes
        try:
            time.sleep(2.5)  # it is looked into every second; that it hangs cannot be seen
            asked = threading.Thread(target=group.statistics, daemon=True)
            asked.start()
            asked.join(5)
            assert not asked.is_alive()
            assert group._finding.poll(time.monotonic()) == ()
        finally:
            release = os.open(pipe, os.O_WRONLY)
            pipe.unlink()
            os.close(release)


def test_a_directory_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("a file, where the group would have its directory")
    with pytest.raises(ConfigError, match="directory"):
        Group("files", discover=f"file://{tmp_path}").start()


def published(directory: Path) -> str:
    (file,) = directory.glob("*/*.member")
    return str(json.loads(file.read_text())["address"])


def test_a_directory_has_what_the_node_advertises(tmp_path: Path) -> None:
    said = "tcp://198.51.100.7:7800"
    with (
        Node(listen="tcp://127.0.0.1:0", advertise=said) as node,
        Group("files", node=node, discover=f"file://{tmp_path}"),
    ):
        assert published(tmp_path) == said


def test_multicast_has_what_the_node_advertises() -> None:
    said = "tcp://198.51.100.7:7800"
    way = "mcast://239.77.0.9:7795?interface=127.0.0.1"
    with (
        Node(listen="tcp://127.0.0.1:0", advertise=said) as node,
        Group("cast", node=node, discover=way) as group,
    ):
        (found,) = group._finding._ways
        assert isinstance(found, _Channelled)
        assert found._finder._me is not None
        assert found._finder._me.address == said


def test_several_ways_are_checked_by_the_widest_of_them() -> None:
    here = "mcast://239.77.0.9:7795?interface=127.0.0.1"
    ways = ["local://", here, "mcast://239.77.0.9:7796"]
    for order in itertools.permutations(ways):
        with pytest.raises(ConfigError, match="neither a secret nor tls"):
            Group("strangers", discover=list(order)).start()


@pytest.mark.parametrize("listen", ["tcp://0.0.0.0:0", "tcp://[::]:0"])
def test_a_directory_never_has_an_address_that_nobody_can_dial(tmp_path: Path, listen: str) -> None:
    if "[" in listen and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with (
        Node(listen=listen, secret="shared" * 4) as node,
        Group("files", node=node, discover=f"file://{tmp_path}"),
    ):
        address = parse_address(published(tmp_path))
        assert not address.wildcard
        assert address.port == parse_address(node.address).port
        with Node(secret="shared" * 4) as other:
            assert other._identify(str(address), 5.0)[0] == node.id


def test_without_a_secret_a_group_of_a_directory_stays_on_this_machine(tmp_path: Path) -> None:
    with Group("files", discover=f"file://{tmp_path}") as group:
        assert group.node.address.startswith("tcp://127.0.0.1:")
        assert published(tmp_path) == group.node.address
