"""Settings reach the node that was given none, and one that was given some has the rest of them."""

from __future__ import annotations

import copy
import dataclasses
import logging
import pickle
from pathlib import Path

import pytest

from antiphon import (
    Broker,
    BrokerConfig,
    Bus,
    BusConfig,
    ConfigError,
    Group,
    GroupConfig,
    MessageTooLarge,
    Node,
    NodeConfig,
    Schedule,
    SendTimeout,
    settings,
)
from antiphon.broker import Limits
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


# --- field by field -------------------------------------------------------------------------------


def test_what_is_not_written_comes_from_the_environment_then_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "antiphon.toml").write_text(
        "[node]\nsend_timeout = 7\nheartbeat = 7\nspin_us = 7\n"
    )
    monkeypatch.setenv("ANTIPHON_NODE_SEND_TIMEOUT", "3")
    monkeypatch.setenv("ANTIPHON_NODE_SPIN_US", "3")
    written = NodeConfig(spin_us=25.0)  # also where that is the default
    assert (written.spin_us, written.send_timeout, written.heartbeat) == (25, 30, 1)
    in_force = Node(config=written).config
    assert (in_force.spin_us, in_force.send_timeout, in_force.heartbeat) == (25, 3, 7)
    assert in_force.connect_timeout == 5
    monkeypatch.delenv("ANTIPHON_NODE_SEND_TIMEOUT")
    assert Node(config=in_force).config is in_force  # what is settled stays


def test_a_bus_a_group_and_a_broker_hand_the_settings_of_their_node_on_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("ANTIPHON_NODE_SEND_TIMEOUT", "3")
    config = NodeConfig(spin_us=5)
    with (
        Bus("local://a", node_config=config) as bus,
        Group("a", node_config=config) as group,
        Broker("tcp://127.0.0.1:0", node_config=config) as broker,
    ):
        for owner in (bus, group, broker):
            assert (owner.node.config.spin_us, owner.node.config.send_timeout) == (5, 3)


def test_a_bus_a_group_and_a_broker_take_what_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("ANTIPHON_BUS_ANNOUNCE_EXPIRY", "9")
    monkeypatch.setenv("ANTIPHON_GROUP_CAPACITY", "99")
    monkeypatch.setenv("ANTIPHON_BROKER_CAPACITY", "99")
    with Bus("local://a", config=BusConfig(announce_interval=0.5)) as bus:
        assert bus.config == BusConfig(announce_interval=0.5, announce_expiry=9)
    for stack in ("tcp", "paper-tcp"):
        group = Group("a", stack=stack, config=GroupConfig(leave_timeout=1))
        assert (group.config.leave_timeout, group.config.capacity) == (1, 99)
        assert (group.config.heartbeat == 2.5) == (stack == "paper-tcp")
        group.close()
    store = str(tmp_path / "s")
    broker = Broker("tcp://127.0.0.1:0", store=store, config=BrokerConfig(max_block=2))
    assert (broker.config.max_block, broker.config.capacity) == (2, 99)
    assert broker.config.store == store
    broker.close()


def test_a_schedule_and_limits_are_put_together_field_by_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "antiphon.toml").write_text(
        "[node.schedule]\nperiod = 0.005\nthreads = 3\nbuckets = 50\n"
        "[broker.limits]\nmax_clients = 7\nmax_topics = 7\n"
    )
    monkeypatch.setenv("ANTIPHON_NODE_SCHEDULE", "threads=2, buckets=60")
    assert Node().config.schedule == Schedule(period=0.005, threads=2, buckets=60)
    given = NodeConfig(schedule=Schedule(0.01, buckets=70))
    assert Node(config=given).config.schedule == Schedule(period=0.01, threads=2, buckets=70)
    source = settings.resolve(NodeConfig, "node")["schedule"].source
    assert source == "ANTIPHON_NODE_SCHEDULE and antiphon.toml [node]"
    given = BrokerConfig(limits=Limits(max_topics=9))
    broker = Broker("tcp://127.0.0.1:0", config=given)
    assert broker.config.limits == Limits(max_clients=7, max_topics=9)
    broker.close()


def test_copies_and_pickles_know_what_was_written_and_replacing_settles_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTIPHON_NODE_SEND_TIMEOUT", "3")
    written = NodeConfig(spin_us=5, schedule=Schedule(threads=1))
    for again in (copy.copy(written), copy.deepcopy(written), pickle.loads(pickle.dumps(written))):
        assert (again, repr(again), hash(again)) == (written, repr(written), hash(written))
        assert Node(config=again).config.send_timeout == 3
    replaced = dataclasses.replace(written, heartbeat=2.0)
    assert Node(config=replaced).config is not written
    assert Node(config=replaced).config == NodeConfig(
        spin_us=5, schedule=Schedule(threads=1), heartbeat=2.0
    )
    assert "written" not in str(dataclasses.asdict(written))
    assert NodeConfig() == NodeConfig(spin_us=25.0)
    with pytest.raises(ConfigError, match="spin_us"):
        NodeConfig(spin_us=-1)


def test_what_the_environment_says_wrongly_is_named_beside_what_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTIPHON_NODE_HEARTBEAT", "often")
    with pytest.raises(ConfigError, match="heartbeat, set by ANTIPHON_NODE_HEARTBEAT"):
        Node(config=NodeConfig(spin_us=5))
    assert Node(config=NodeConfig(heartbeat=2.0)).config.heartbeat == 2  # nobody asks for it
    monkeypatch.delenv("ANTIPHON_NODE_HEARTBEAT")
    monkeypatch.setenv("ANTIPHON_NODE_FLOW_WINDOW_BYTES", "16MiB")
    with pytest.raises(
        ConfigError,
        match=r"receive_bytes is .*\(flow_window_bytes set by ANTIPHON_NODE_FLOW_WINDOW_BYTES\)",
    ):
        Node(config=NodeConfig(receive_bytes=4 << 20))


# --- variables that nothing reads -----------------------------------------------------------------


def test_variables_that_nothing_reads_are_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "_warned", [])
    for known in settings.OTHER_VARIABLES:
        if known != "ANTIPHON_CONFIG":
            monkeypatch.setenv(known, "x")
    with caplog.at_level(logging.WARNING, "antiphon.settings"):
        Node()
        assert caplog.messages == []
        monkeypatch.setenv("ANTIPHON_NOED_RING_BYTES", "1MiB")
        monkeypatch.setenv("ANTIPHON_RING_BYTES", "1MiB")
        monkeypatch.setenv("ANTIPHON_EMPTY", "")
        monkeypatch.setenv("ANTIPHONY", "x")
        Node()
        Node(config=NodeConfig(spin_us=5))
    (text,) = caplog.messages
    meant = "did you mean ANTIPHON_NODE_RING_BYTES?"
    assert f"ANTIPHON_NOED_RING_BYTES ({meant}), ANTIPHON_RING_BYTES ({meant});" in text
    assert "EMPTY" not in text
    assert "ANTIPHONY" not in text
