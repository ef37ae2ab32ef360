"""Stacks: which layers go together, what presets are made of, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.errors import ConfigError
from antiphon.groups.config import GroupConfig, make_stack
from antiphon.groups.drawing import draw
from antiphon.groups.layers import (
    CreditFlow,
    Delay,
    DelayDatagrams,
    Discovery,
    Drop,
    DropDatagrams,
    Duplicate,
    DuplicateDatagrams,
    FailureDetection,
    Fifo,
    Fragmentation,
    Membership,
    NegativeAck,
    Partition,
    ReactiveFlow,
    ShuffleDatagrams,
    Stability,
    Tcp,
    Template,
    Udp,
    Unicast,
)
from antiphon.groups.layers.udp import default_address
from antiphon.groups.messages import AreYouThere, Envelope, decode, encode
from antiphon.groups.protocol import Layer, Received, Stack

BELOW: list[Layer] = [Tcp(), Discovery(), FailureDetection(), Membership()]
CAST: list[Layer] = [Udp(), Discovery(), FailureDetection(), Membership(), NegativeAck()]
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


@pytest.mark.parametrize(
    ("name", "flow"),
    [("udp", []), ("udp-flow", ["reactive-flow"]), ("udp-fc", ["credit-flow"])],
)
def test_the_stacks_over_udp(name: str, flow: list[str]) -> None:
    wanted = ["udp", *FULL[1:4], "nak", "stability", "unicast", "fragmentation", *flow]
    assert [layer.name for layer in make_stack(name, None)[0]] == wanted
    paper, config, _ = make_stack(f"paper-{name}", None)
    assert [layer.name for layer in paper] == wanted
    assert (config.ttl, config.join_timeout) == (32, 5.0)
    settings = {layer.name: layer.settings() for layer in paper}
    assert settings["udp"]["ttl"] == 32
    assert settings["nak"]["first"] == 3.0
    assert settings["stability"]["seconds"] == 10.0
    assert settings["unicast"]["first"] == 5.0
    if flow == ["credit-flow"]:
        assert settings["credit-flow"] == {"credits": 200_000, "least": 5_200}
    with pytest.raises(ConfigError, match=f"sets ttl itself; take '{name}'"):
        make_stack(f"paper-{name}", GroupConfig(ttl=2))


def test_settings_of_udp_reach_their_layers_and_no_other_stack() -> None:
    config = GroupConfig(multicast="239.9.9.9:7000", interface="lo", mtu=9000, window_bytes=1 << 20)
    layers, _, _ = make_stack("udp", config)
    assert layers[0].settings()["address"] == "239.9.9.9:7000"
    assert layers[0].settings()["mtu"] == 9000
    assert layers[4].settings()["window_bytes"] == 1 << 20
    with pytest.raises(ConfigError, match="multicast is for stacks over UDP"):
        make_stack("tcp", config)


def test_the_address_of_a_group_is_by_its_name_and_local_to_the_site() -> None:
    assert default_address("orders") == default_address("orders")
    assert default_address("orders") != default_address("prices")
    assert default_address("orders").startswith("239.255.")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Udp(address="10.0.0.1:7600"),
        lambda: Udp(address="239.1.1.1"),
        lambda: Udp(ttl=256),
        lambda: Udp(mtu=100),
        lambda: NegativeAck(window_bytes=1),
        lambda: NegativeAck(first=0.0),
        lambda: Stability(seconds=0.0),
        lambda: Unicast(window_bytes=1),
        lambda: CreditFlow(credits=1),
        lambda: CreditFlow(credits=5000, least=5000),
        lambda: DropDatagrams(2.0),
        lambda: DropDatagrams(kinds=["everything"]),
        lambda: DelayDatagrams(1.0, 0.5),
        lambda: DuplicateDatagrams(-1.0),
        lambda: ShuffleDatagrams(1),
    ],
)
def test_a_layer_over_udp_says_what_it_takes(wrong: Callable[[], Layer]) -> None:
    with pytest.raises(ConfigError, match=r"must be|choose from|give a multicast"):
        wrong()


@pytest.mark.parametrize(
    ("wrong", "setting"),
    [
        (lambda: FailureDetection(heartbeat=-1), "heartbeat"),
        (lambda: FailureDetection(heartbeat="x"), "heartbeat"),
        (lambda: FailureDetection(heartbeat=True), "heartbeat"),
        (lambda: FailureDetection(timeout=0), "timeout"),
        (lambda: FailureDetection(timeout=math.nan), "timeout"),
        (lambda: FailureDetection(heartbeat=1.0, timeout=1.0), "timeout"),
        (lambda: FailureDetection(verify=-3), "verify"),
        (lambda: FailureDetection(detector="phi", threshold=-1), "threshold"),
        (lambda: FailureDetection(threshold=8.0), "threshold"),
        (lambda: FailureDetection(detector="guess"), "detector"),
        (lambda: FailureDetection(stuck=-1), "stuck"),
        (lambda: FailureDetection(evict_stuck="no"), "evict_stuck"),
        (lambda: Membership(discovery=0), "discovery"),
        (lambda: Membership(join=-1), "join"),
        (lambda: Membership(leave=math.inf), "leave"),
        (lambda: Membership(merge=None), "merge"),
        (lambda: Membership(primary="no"), "primary"),
        (lambda: Fifo(window_bytes=70000.5), "window_bytes"),
        (lambda: Fifo(unicast_bytes=1), "unicast_bytes"),
        (lambda: Stability(timeout=-1), "timeout"),
        (lambda: Stability(timeout="x"), "timeout"),
        (lambda: NegativeAck(window_bytes=70000.5), "window_bytes"),
        (lambda: NegativeAck(again="x"), "again"),
        (lambda: Unicast(first=None), "first"),
        (lambda: CreditFlow(credits=70000.5), "credits"),
        (lambda: CreditFlow(least=-1), "least"),
        (lambda: Udp(ttl=1.5), "ttl"),
        (lambda: Udp(mtu=None), "mtu"),
        (lambda: Udp(interface=7), "interface"),
        (lambda: Drop(2.0), "fraction"),
        (lambda: Drop(math.nan), "fraction"),
        (lambda: Duplicate("x"), "fraction"),
        (lambda: Delay(-1, -2), "least"),
        (lambda: Delay(2, 1), "most"),
        (lambda: Partition({70000}), "nodes"),
        (lambda: Partition(7), "nodes"),
        (lambda: DropDatagrams(first=-1), "first"),
        (lambda: DropDatagrams(every=2.5), "every"),
        (lambda: DropDatagrams(seed="x"), "seed"),
        (lambda: DropDatagrams(kinds="data"), "kinds"),
        (lambda: DuplicateDatagrams("x"), "fraction"),
        (lambda: DelayDatagrams("x", 1), "least"),
        (lambda: DelayDatagrams(1, 1), "most"),
        (lambda: ShuffleDatagrams(2.5), "depth"),
    ],
)
def test_a_layer_names_itself_and_the_setting_that_cannot_be(
    wrong: Callable[[], Any], setting: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^{setting} of layer '[a-z-]+' is ") as refused:
        wrong()
    assert refused.value.setting == setting


def test_the_threshold_is_one_of_phi() -> None:
    assert FailureDetection(detector="phi").settings()["threshold"] == 8.0
    assert FailureDetection(detector="phi", threshold=3).settings()["threshold"] == 3
    assert "threshold" not in FailureDetection().settings()


@pytest.mark.parametrize("fault", [Drop(1.0), Duplicate(1.0), Delay(0, 1), Partition()])
def test_faults_stand_right_above_the_transport(fault: Layer) -> None:
    """Further up nothing passes that they could spoil: they would be there, and do nothing."""
    for at in (2, 3, 4):
        with pytest.raises(ConfigError, match=f"'{fault.name}' .* put it right above 'tcp'"):
            make_stack([*BELOW[:at], fault, *BELOW[at:]], None)
    make_stack([BELOW[0], fault, *BELOW[1:]], None)


def test_faults_of_datagrams_stand_there_too_and_beside_each_other() -> None:
    with pytest.raises(ConfigError, match=r"'drop-datagrams' .* put it right above 'udp'"):
        make_stack([*CAST, DropDatagrams(1.0)], None)
    both: list[Layer] = [DelayDatagrams(0, 1), ShuffleDatagrams()]
    for faults in (both, both[::-1]):  # what is held is not mixed, and overtakes all the same
        with pytest.raises(ConfigError, match="two ways of the same"):
            make_stack([CAST[0], *faults, *CAST[1:]], None)
    make_stack([CAST[0], Partition(), DropDatagrams(0.1), ShuffleDatagrams(), *CAST[1:]], None)


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
        ([*BELOW, Fragmentation()], "'fragmentation' needs 'fifo or nak'"),
        ([Udp(), *BELOW[1:], Fifo()], "'fifo' needs 'tcp'"),
        ([*BELOW, NegativeAck()], "'nak' needs 'udp'"),
        ([Udp(), *BELOW[1:], Stability()], "'stability' needs 'fifo or nak'"),
        ([*CAST, Unicast()], "'unicast' needs 'stability'"),
        ([*CAST, ReactiveFlow()], "'reactive-flow' needs 'stability'"),
        ([*CAST, Stability(), ReactiveFlow(), CreditFlow()], "two ways of the same"),
        ([Tcp(), DropDatagrams(0.5)], "'drop-datagrams' needs 'udp'"),
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
        {"multicast": "somewhere"},
        {"ttl": -1},
        {"mtu": 99999},
        {"receive_buffer": 1},
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
