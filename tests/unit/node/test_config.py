from __future__ import annotations

import copy
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import ConfigError
from antiphon.node.config import INSECURE, Insecure, NodeConfig, check_listen, check_secret


def test_defaults_are_valid_and_documented() -> None:
    config = NodeConfig()
    assert config.ring_bytes == 4 << 20
    assert config.kernel_buffer_bytes == config.ring_bytes
    assert config.dead_after == 5.0
    assert config.buffer_pool == {16384: 256, 65536: 64, 262144: 64}


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("ring_bytes", 3 << 20),
        ("ring_bytes", 32 << 10),
        ("ring_bytes", "4MiB"),
        ("ring_bytes", True),
        ("flow_window_bytes", 100),
        ("flow_threshold", 0),
        ("flow_threshold", 0.8),
        ("flow_threshold", float("nan")),
        ("socket_buffer_bytes", 1),
        ("buffer_pool", {}),
        ("buffer_pool", {100: 1}),
        ("buffer_pool", {4096: 0}),
        ("buffer_pool", [4096]),
        ("receive_bytes", 1 << 20),
        ("large_message_bytes", 1 << 20),
        ("max_message_bytes", 0),
        ("max_message_bytes", 1 << 32),
        ("connect_timeout", 0),
        ("request_timeout", float("inf")),
        ("send_timeout", -1),
        ("heartbeat", "1"),
        ("heartbeat", 1e-10),
        ("max_message_bytes", 1 << 31),
    ],
)
def test_a_bad_value_is_refused_and_named(name: str, bad: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} is .* must be") as caught:
        NodeConfig(**{name: bad})
    assert caught.value.setting == name


def test_a_config_cannot_be_changed_and_can_be_compared_hashed_copied_and_pickled() -> None:
    config = NodeConfig(ring_bytes=1 << 16, buffer_pool={8192: 2, 4096: 1})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.heartbeat = 2.0  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"dataclasses\.replace"):
        config.buffer_pool[4096] = 9  # type: ignore[index]
    with pytest.raises(TypeError):
        config.buffer_pool.clear()  # type: ignore[attr-defined]
    for other in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config)):
        assert other == config
        assert hash(other) == hash(config)
    assert dataclasses.asdict(config)["buffer_pool"] == {4096: 1, 8192: 2}
    assert dataclasses.replace(config, heartbeat=2.0).buffer_pool == config.buffer_pool


def test_the_pool_is_a_copy_in_order_of_size() -> None:
    mine = {8192: 2, 4096: 1}
    config = NodeConfig(buffer_pool=mine)
    mine[4096] = 99
    assert list(config.buffer_pool.items()) == [(4096, 1), (8192, 2)]


def test_load_reads_the_environment_and_a_plain_config_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "antiphon.toml").write_text("[node]\nheartbeat = 2\nring_bytes = '1MiB'\n")
    monkeypatch.setenv("ANTIPHON_NODE_RING_BYTES", "2MiB")
    monkeypatch.setenv("ANTIPHON_NODE_BUFFER_POOL", "16KiB=8")
    loaded = NodeConfig.load(send_timeout=3)
    assert (loaded.ring_bytes, loaded.heartbeat, loaded.send_timeout) == (2 << 20, 2.0, 3.0)
    assert loaded.buffer_pool == {16384: 8}
    assert NodeConfig() != loaded
    assert NodeConfig().heartbeat == 1.0


def test_load_says_who_set_a_bad_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_NODE_RING_BYTES", "3MiB")
    with pytest.raises(ConfigError, match=r"power of two.*set by ANTIPHON_NODE_RING_BYTES"):
        NodeConfig.load()


def test_insecure_is_one_object_that_does_not_travel() -> None:
    assert repr(INSECURE) == "antiphon.INSECURE"
    assert Insecure() is INSECURE
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(INSECURE)


@pytest.mark.parametrize(
    "listen",
    [
        "tcp://127.0.0.1:0",
        "tcp://127.8.9.10:7001",
        "tcp://[::1]:7001",
        "tcp://[::ffff:127.0.0.1]:7001",
        "tcp://localhost:7001",
        "unix:///tmp/a.sock",
        "inproc://a",
    ],
)
@pytest.mark.parametrize("secret", [None, "s", b"s", INSECURE])
def test_this_machine_may_listen_with_or_without_a_secret(listen: str, secret: object) -> None:
    assert str(check_listen(listen, secret)) == listen


@pytest.mark.parametrize(
    "listen", ["tcp://0.0.0.0:7001", "tcp://[::]:7001", "tcp://10.0.0.1:0", "tcp://db.example:7001"]
)
def test_off_loopback_listening_needs_proof_or_a_word(listen: str) -> None:
    with pytest.raises(ConfigError, match=r"neither a secret nor tls.*antiphon\.INSECURE"):
        check_listen(listen)
    assert str(check_listen(listen, "hunter2")) == listen
    assert str(check_listen(listen, INSECURE)) == listen


def test_a_node_that_only_dials_listens_nowhere() -> None:
    assert check_listen(None, "s") is None


def test_a_secret_is_bytes_and_never_shown() -> None:
    assert check_secret("pä") == "pä".encode()
    assert check_secret(bytearray(b"x")) == b"x"
    assert check_secret(None) is None
    assert check_secret(INSECURE) is None
    for bad in ("", b"", 12345):
        with pytest.raises(ConfigError) as caught:
            check_secret(bad)
        assert "12345" not in repr(caught.value)
