"""Stacks: which layers go together, what presets are made of, and what is refused."""

from __future__ import annotations

import pytest

from antiphon.errors import ConfigError
from antiphon.groups.config import GroupConfig, make_stack
from antiphon.groups.drawing import draw
from antiphon.groups.layers import (
    Discovery,
    FailureDetection,
    Fifo,
    Fragmentation,
    Membership,
    Tcp,
    Template,
)
from antiphon.groups.messages import AreYouThere, Envelope, decode, encode
from antiphon.groups.protocol import Layer, Received, Stack

FULL = ["tcp", "discovery", "failure-detection", "membership", "fifo", "stability", "fragmentation"]


def test_the_stack_tcp() -> None:
    layers, config, name = make_stack("tcp", None)
    assert [layer.name for layer in layers] == FULL
    assert name == "tcp"
    assert config == GroupConfig()


def test_settings_reach_their_layers() -> None:
    config = GroupConfig(heartbeat=0.1, failure_timeout=1.5, primary=True, window_bytes=1 << 20)
    layers, _, _ = make_stack("tcp", config)
    assert layers[2].settings()["heartbeat"] == 0.1
    assert layers[2].settings()["timeout"] == 1.5
    assert layers[3].settings()["primary"] is True
    assert layers[4].settings()["window_bytes"] == 1 << 20


def test_the_paper_had_its_own_times() -> None:
    layers, config, _ = make_stack("paper-tcp", None)
    assert (config.failure_timeout, config.verify_timeout) == (5.0, 1.5)
    assert layers[3].settings()["discovery"] == 3.0
    with pytest.raises(ConfigError, match="sets failure_timeout itself"):
        make_stack("paper-tcp", GroupConfig(failure_timeout=9.0))


@pytest.mark.parametrize("name", ["udp", "udp-flow", "udp-fc", "paper-udp"])
def test_there_is_no_udp_yet_and_it_says_so(name: str) -> None:
    with pytest.raises(ConfigError, match="no UDP transport yet"):
        make_stack(name, None)


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([], "no 'membership'"),
        ([Discovery()], "stands upon nothing"),
        ([Tcp(), Tcp()], "twice"),
        ([Tcp(), Membership()], "'membership' needs 'discovery', 'failure-detection' below it"),
        ([Tcp(), Discovery(), FailureDetection(), Fifo()], "'fifo' needs 'membership'"),
        (["tcp"], "is no layer"),
        ([Tcp(), Discovery()], "no 'membership'"),
    ],
)
def test_what_makes_no_stack_is_refused_with_what_it_needs(layers: list[object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_stack(layers, None)


def test_layers_of_ones_own_come_with_their_settings() -> None:
    layers: list[Layer] = [
        Tcp(),
        Template(),
        Discovery(),
        FailureDetection(),
        Membership(),
        Fifo(),
        Fragmentation(),
    ]
    assert make_stack(layers, None)[0] == tuple(layers)
    with pytest.raises(ConfigError, match="config= goes with a stack that has a name"):
        make_stack(layers, GroupConfig())


@pytest.mark.parametrize("stack", ["nothing", 7, None])
def test_an_unknown_stack_is_refused(stack: object) -> None:
    with pytest.raises(ConfigError, match="stack"):
        make_stack(stack, None)


@pytest.mark.parametrize(
    "setting",
    [
        {"heartbeat": 0},
        {"heartbeat": "1"},
        {"failure_timeout": 0.1},
        {"window_bytes": 10},
        {"capacity": 0},
        {"detector": "guess"},
        {"primary": 1},
    ],
)
def test_a_wrong_setting_says_what_is_allowed(setting: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        GroupConfig(**setting)  # type: ignore[arg-type]


def test_settings_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_GROUP_HEARTBEAT", "0.25")
    assert GroupConfig.load().heartbeat == 0.25


def test_the_template_passes_everything_on_and_counts() -> None:
    template = Template()
    stack = Stack([Tcp(), template, Discovery(), FailureDetection(), Membership()])
    stack.up(Received(1, AreYouThere(5)), 0.0)
    assert template.statistics() == {"ups": 1, "downs": 0}


def test_a_stack_can_be_drawn() -> None:
    layers, _, _ = make_stack("tcp", None)
    lines = [line.split("|")[1].strip() for line in draw(layers).splitlines() if "|" in line]
    assert lines == ["application", *reversed(FULL), "network"]


def test_messages_name_their_group() -> None:
    assert decode(encode("orders", AreYouThere(7))) == ("orders", AreYouThere(7))
    assert Envelope("a", AreYouThere(7)) != Envelope("b", AreYouThere(7))
