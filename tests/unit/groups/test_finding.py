"""Ways to find members whose servers hang: they hold up nothing, and nothing piles up."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from antiphon import ConfigError, Group, Node
from antiphon.groups.finding import _LOOK_UP, _Names
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
