"""Settings reach the node that was given none, and one that was given some ignores the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon import ConfigError, MessageTooLarge, Node, NodeConfig, SendTimeout
from unit.node.pairs import HERE, KIND, THERE, Heard, place, to

pytestmark = pytest.mark.timeout(20)


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ring_in_use(here: Node, there: Node) -> int:
    heard = Heard()
    there.on(KIND, heard)
    here.send(THERE, b"x", kind=KIND)
    return to(here).ring_bytes


def test_a_variable_reaches_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_NODE_RING_BYTES", "128KiB")
    with Node(THERE) as there, Node(HERE, peers={THERE: there.address}) as here:
        assert here.config.ring_bytes == 128 << 10
        assert ring_in_use(here, there) == 128 << 10


def test_the_file_in_the_directory_reaches_the_ring(tmp_path: Path) -> None:
    (tmp_path / "antiphon.toml").write_text('[node]\nring_bytes = "256KiB"\n')
    with Node(THERE) as there, Node(HERE, peers={THERE: there.address}) as here:
        assert ring_in_use(here, there) == 256 << 10


def test_the_named_file_reaches_the_receive_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "elsewhere.toml"
    path.write_text('[node.buffer_pool]\n"4KiB" = 8\n"64KiB" = 2\n')
    monkeypatch.setenv("ANTIPHON_CONFIG", str(path))
    with Node() as node:
        assert node.statistics().buffer_bytes_bound == 8 * 4096 + 2 * 65536


def test_a_variable_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "antiphon.toml").write_text("[node]\nring_bytes = 262144\nsend_timeout = 7\n")
    monkeypatch.setenv("ANTIPHON_NODE_RING_BYTES", "131072")
    with Node(THERE) as there, Node(HERE, peers={THERE: there.address}) as here:
        assert ring_in_use(here, there) == 131072
        assert here.config.send_timeout == 7


def test_a_config_in_the_program_wins_over_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "antiphon.toml").write_text("[node]\nring_bytes = 262144\n")
    monkeypatch.setenv("ANTIPHON_NODE_RING_BYTES", "131072")
    config = NodeConfig(ring_bytes=65536)
    with Node(THERE) as there, Node(HERE, peers={THERE: there.address}, config=config) as here:
        assert ring_in_use(here, there) == 65536


def test_the_limit_of_messages_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_NODE_MAX_MESSAGE_BYTES", "1MiB")
    with Node(THERE) as there, Node(HERE, peers={THERE: there.address}) as here:
        there.inbox(KIND)
        here.send(THERE, bytes(1 << 20), kind=KIND)
        with pytest.raises(MessageTooLarge) as error:
            here.send(THERE, bytes((1 << 20) + 1), kind=KIND)
        assert error.value.limit == 1 << 20


def test_the_patience_of_send_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_NODE_SEND_TIMEOUT", "0.2")
    with Node(THERE) as there, Node(HERE, peers={THERE: there.address}) as here:
        there.inbox(KIND, capacity=1)
        place(here, b"x")
        with pytest.raises(SendTimeout) as error:
            here.send(THERE, b"x", kind=KIND)
        assert error.value.waited >= 0.2


def test_a_misspelt_variable_stops_the_node_from_being_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTIPHON_NODE_RING_SIZE", "1MiB")
    with pytest.raises(ConfigError, match="ANTIPHON_NODE_RING_SIZE"):
        Node()


def test_a_misspelt_key_stops_the_node_from_being_made(tmp_path: Path) -> None:
    (tmp_path / "antiphon.toml").write_text("[node]\nring_byte = 65536\n")
    with pytest.raises(ConfigError, match="ring_bytes"):
        Node()
