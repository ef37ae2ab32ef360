"""Groups whose members are in one process, over real nodes: messages, views, windows, errors."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

import antiphon
from antiphon import (
    Closed,
    ConfigError,
    Group,
    GroupConfig,
    Member,
    MessageTooLarge,
    Node,
    NodeConfig,
    PeerUnreachable,
    QueueFull,
    SendTimeout,
    View,
    WouldBlock,
)
from antiphon.groups.layers import (
    Discovery,
    FailureDetection,
    Fifo,
    Membership,
    Tcp,
)
from antiphon.testing import Collected, Proxy, eventually
from integration.parties import HELPERS, Party, threads
from unit.node.pairs import free_address

pytestmark = pytest.mark.timeout(60)


def test_one_alone_has_a_view_and_hears_itself(party: Party) -> None:
    group = party.join()
    assert group.view.id == 1
    assert group.members == (group.me,)
    assert group.view.coordinator == group.me
    assert group.view.primary
    group.send(b"to all")
    assert party.came[0].first(1) == [("m0", b"to all")]


def test_all_get_what_one_sends_in_its_order(party: Party) -> None:
    groups = [party.join() for _ in range(3)]
    party.all_see(3)
    for number in range(500):
        for group in groups:
            group.send(str(number).encode())
    for came in party.came:
        got = came.first(1500)
        for name in ("m0", "m1", "m2"):
            assert [int(data) for source, data in got if source == name] == list(range(500))


def test_a_member_has_id_name_and_address(party: Party) -> None:
    group = party.join()
    (member,) = group.members
    assert isinstance(member, Member)
    assert (member.id, member.name) == (group.node.id, "m0")
    assert member.address == group.node.address
    assert "m0" in repr(member)


def test_messages_to_one_reach_that_one_alone_in_order(party: Party) -> None:
    a, b, _ = (party.join() for _ in range(3))
    party.all_see(3)
    for number in range(200):
        a.send(str(number).encode(), to=b.me)
    a.send(b"to myself", to=a.me)
    assert [int(data) for _, data in party.came[1].first(200)] == list(range(200))
    assert party.came[0].first(1) == [("m0", b"to myself")]
    assert party.came[2].none_within(0.1)


def test_views_come_in_one_order_with_messages(party: Party) -> None:
    """The handlers of one member are never called at the same time."""
    inside = threading.Lock()
    views: list[View] = []
    clashes: list[str] = []

    def exclusively(what: str) -> None:
        if not inside.acquire(blocking=False):
            clashes.append(what)
            return
        time.sleep(0.0005)
        inside.release()

    first = Group(party.name, member_name="watcher")
    first.on_message(lambda source, data: exclusively("message"))

    @first.on_view
    def seen(view: View) -> None:
        exclusively("view")
        views.append(view)

    with first:
        for _ in range(3):
            other = party.join()
            for _ in range(50):
                other.send(b"x")
        eventually(lambda: len(first.members) == 4)
    assert not clashes
    ids = [view.id for view in views]
    assert ids == sorted(set(ids))
    assert [member.name for view in views for member in view.joined][:2] == ["watcher", "m0"]


def test_a_view_says_who_left(party: Party) -> None:
    a = party.join()
    views: Collected[View] = Collected()
    a.on_view(views.add)
    with Group(party.name, member_name="guest"):
        eventually(lambda: len(a.members) == 2)
    came, went = views.first(2)
    assert [member.name for member in came.joined] == ["guest"]
    assert [member.name for member in went.left] == ["guest"]
    assert not went.crashed
    assert went.reason == "guest left"


@pytest.mark.parametrize("size", [0, 1, 16384, 16385, 100_000, 5_000_000])
def test_messages_of_any_size(party: Party, size: int) -> None:
    a, b = party.join(), party.join()
    party.all_see(2)
    data = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
    a.send(data)
    b.send(memoryview(data), to=a.me)
    assert party.came[1].first(1) == [("m0", data)]
    assert sorted(party.came[0].first(2)) == sorted([("m0", data), ("m1", data)])


def test_small_messages_pass_between_the_parts_of_a_large_one(party: Party) -> None:
    config = GroupConfig(window_bytes=1 << 16)
    a, _ = party.join(config=config), party.join(config=config)
    party.all_see(2)
    large = threading.Thread(target=a.send, args=(b"x" * 20_000_000,))
    large.start()
    sent = 0
    while large.is_alive() and sent < 100_000:
        a.send(b"small")
        sent += 1
    large.join()
    assert sent > 5
    sizes = [len(data) for _, data in party.came[1].first(sent + 1)]
    assert sizes.index(20_000_000) > 0


def test_a_full_window_waits_refuses_or_gives_up(party: Party) -> None:
    held = threading.Event()
    config = GroupConfig(window_bytes=1 << 16)
    a = party.join(config=config)
    party.join(lambda source, data: held.wait(30), config=config)
    party.all_see(2)
    try:
        # What is under way to the one that does not read is not stable, so the window fills.
        def fill() -> None:
            while True:
                a.send(b"x" * 1000, timeout=0)

        with pytest.raises(QueueFull) as full:
            fill()
        assert 0 < full.value.pending <= full.value.capacity < 80_000
        began = time.monotonic()
        with pytest.raises(SendTimeout):
            a.send(b"x" * 60_000, timeout=0.2)
        assert 0.15 < time.monotonic() - began < 5
        assert a.statistics().waits > 0
        future = a.send_async(b"later" * 1000)
        assert not future.done()
    finally:
        held.set()
    future.result(20)
    a.send(b"again")


def test_a_blocked_sender_wakes_when_the_slow_member_goes(party: Party) -> None:
    held = threading.Event()
    config = GroupConfig(window_bytes=1 << 16)
    a = party.join(config=config)
    slow = Group(party.name, member_name="slow", config=config)
    slow.on_message(lambda source, data: held.wait(30))
    slow.start()
    eventually(lambda: len(a.members) == 2)
    sent = threading.Event()

    def fill() -> None:
        for _ in range(200):
            a.send(b"x" * 1000, timeout=30)
        sent.set()

    thread = threading.Thread(target=fill)
    thread.start()
    eventually(lambda: a.statistics().waits > 0)
    held.set()
    slow.close(drain=0)
    assert sent.wait(20)
    thread.join()


def test_a_blocked_sender_wakes_when_its_group_is_left(party: Party) -> None:
    held = threading.Event()
    config = GroupConfig(window_bytes=1 << 16)
    b = Group(party.name, config=config)
    b.on_message(lambda source, data: held.wait(30))
    b.start()
    a = Group(party.name, config=config)
    a.on_message(lambda source, data: None)
    a.start()
    raised: list[BaseException] = []

    def fill() -> None:
        try:
            while True:
                a.send(b"x" * 1000, timeout=30)
        except antiphon.AntiphonError as error:
            raised.append(error)

    thread = threading.Thread(target=fill)
    thread.start()
    eventually(lambda: a.statistics().waits > 0)
    a.close(drain=0)
    thread.join(20)
    held.set()
    b.close(drain=0)
    assert isinstance(raised[0], Closed)


def test_a_departed_member_cannot_be_sent_to(party: Party) -> None:
    a = party.join()
    with Group(party.name, member_name="guest") as guest:
        eventually(lambda: len(a.members) == 2)
        member = guest.me
        a.send(b"hello", to=member)
    eventually(lambda: len(a.members) == 1)
    with pytest.raises(PeerUnreachable, match="not in the view"):
        a.send(b"hello?", to=member)


def test_a_handler_may_send(party: Party) -> None:
    answered: Collected[bytes] = Collected()
    a = Group(party.name, member_name="asker")
    a.on_message(lambda source, data: answered.add(data) if data.startswith(b"re:") else None)
    b = Group(party.name, member_name="answerer")

    @b.on_message
    def answer(source: Member, data: bytes) -> None:
        if not data.startswith(b"re:"):
            b.send(b"re: " + data)

    with a, b:
        eventually(lambda: len(a.members) == 2)
        for number in range(300):
            a.send(str(number).encode())
        assert answered.first(300) == [b"re: %d" % number for number in range(300)]


def test_a_handler_that_raises_is_counted_and_the_rest_comes(
    party: Party, caplog: pytest.LogCaptureFixture
) -> None:
    came: Collected[bytes] = Collected()

    def handler(source: Member, data: bytes) -> None:
        came.add(data)
        if data == b"bad":
            raise ValueError("this one is bad")

    group = party.join(handler)
    for data in (b"one", b"bad", b"two"):
        group.send(data)
    assert came.first(3) == [b"one", b"bad", b"two"]
    eventually(lambda: group.statistics().failed == 1)
    assert "this one is bad" in caplog.text


def test_messages_can_be_iterated(party: Party) -> None:
    a, b = Group(party.name, member_name="a"), Group(party.name, member_name="b")
    with a, b:
        eventually(lambda: len(a.members) == 2)
        reading = iter(b)  # from now on it is waited for
        sending = threading.Thread(
            target=lambda: [a.send(str(number).encode()) for number in range(20_000)]
        )
        sending.start()
        assert [int(next(reading)[1]) for _ in range(20_000)] == list(range(20_000))
        sending.join()
        with pytest.raises(ConfigError, match="reader already"):
            b.on_message(lambda source, data: None)


def test_iteration_ends_with_the_group(party: Party) -> None:
    group = Group(party.name)
    group.start()
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.extend(data for _, data in group))
    thread.start()
    group.send(b"last")
    eventually(lambda: got == [b"last"])
    group.close()
    thread.join(10)
    assert not thread.is_alive()


def test_one_that_only_sends_holds_up_nobody(party: Party) -> None:
    reader = party.join()
    with Group(party.name, member_name="writer") as writer:
        eventually(lambda: len(reader.members) == 2)
        for _ in range(20_000):
            reader.send(b"for whoever listens")
        assert len(party.came[0].first(20_000, timeout=30)) == 20_000
        eventually(lambda: writer.statistics().unread > 0)


def test_coroutines_join_send_and_read(party: Party) -> None:
    async def talk() -> list[bytes]:
        async with Group(party.name) as group:
            with pytest.raises(WouldBlock):
                group.close()
            for number in range(10):
                await group.send_async(str(number).encode())
            return [data async for (_, data), _ in _first(group, 10)]

    async def _first(group: Group, most: int) -> Any:
        number = 0
        async for item in group:
            yield item, number
            number += 1
            if number == most:
                return

    assert asyncio.run(talk()) == [b"%d" % number for number in range(10)]


def test_what_was_sent_before_leaving_has_come(party: Party) -> None:
    party.join()
    with Group(party.name, member_name="guest") as guest:
        eventually(lambda: len(party.groups[0].members) == 2)
        for number in range(5000):
            guest.send(str(number).encode())
    # Nothing to wait for: they left when all had it.
    assert [int(data) for _, data in party.came[0].items] == list(range(5000))


def test_two_groups_on_one_node_do_not_hear_each_other(party: Party) -> None:
    with Node() as node:
        one = party.join(node=node)
        came: Collected[bytes] = Collected()
        with Group(f"{party.name}-other", node=node) as other:
            other.on_message(lambda source, data: came.add(data))
            one.send(b"one")
            other.send(b"other")
            assert came.first(1) == [b"other"]
            assert party.came[0].first(1) == [("m0", b"one")]
            with pytest.raises(ConfigError, match=r"in group .* already"):
                Group(party.name, node=node).start()
        one.close()


def test_threads_do_not_grow_with_groups(party: Party) -> None:
    with Node() as node, ExitStack() as stack:
        stack.enter_context(Group(f"{party.name}-0", node=node))
        before = threads()
        for number in range(1, 20):
            stack.enter_context(Group(f"{party.name}-{number}", node=node))
        eventually(lambda: threads() <= before + HELPERS, 30)  # nothing is per group


def test_connections_that_break_lose_nothing_and_nobody(party: Party) -> None:
    with Node() as one, ExitStack() as stack:
        address = free_address()
        proxy = stack.enter_context(Proxy(address))
        two = Node(listen=address, advertise=proxy.address)
        stack.enter_context(two)
        # Whoever is away for longer is another member when it comes back, and begins anew.
        patient = GroupConfig(failure_timeout=30.0)
        a = party.join(node=one, discover=[], config=patient)
        b = party.join(node=two, discover=[one.address], config=patient)
        party.all_see(2)
        many = 0
        # A cut takes nothing along when all of it has just come: then there is another one.
        while many < 20_000 or a.statistics().repeated == 0:
            for number in range(many, many + 5000):
                a.send(str(number).encode().ljust(500))
                if number % 5000 == 2500:
                    proxy.cut()
            many += 5000
        got = party.came[1].first(many, timeout=40)
        assert [int(data) for _, data in got] == list(range(many))
        assert a.view.id == b.view.id == 2
        b.close()
        a.close()


def test_a_secret_keeps_strangers_out(party: Party) -> None:
    with Node(secret="ours" * 4) as inside, Node(secret="theirs" * 4) as outside:
        member = party.join(node=inside, discover=[])
        stranger = Group(
            party.name,
            node=outside,
            discover=[inside.address],
            config=GroupConfig(discovery_timeout=0.3),
        )
        stranger.on_message(lambda source, data: None)
        with stranger:
            member.send(b"for members")
            stranger.send(b"let me in")
            assert party.came[0].first(1) == [("m0", b"for members")]
            assert len(member.members) == 1
            assert len(stranger.members) == 1
        member.close()


def test_messages_over_tls(party: Party) -> None:
    with Node(secret="shared" * 4) as one, Node(secret="shared" * 4) as two:
        a = party.join(node=one, discover=[])
        b = party.join(node=two, discover=[one.address])
        party.all_see(2)
        b.send(b"x" * 100_000)
        assert party.came[0].first(1) == [("m1", b"x" * 100_000)]
        b.close()
        a.close()


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Group(""),
        lambda: Group(7),  # type: ignore[arg-type]
        lambda: Group("x", discover="ftp://somewhere"),
        lambda: Group("x", discover=7),  # type: ignore[arg-type]
        lambda: Group("x", discover="dns://nowhere"),
        lambda: Group("x", stack="sctp"),
        lambda: Group("x", config=GroupConfig(ttl=3)),
        lambda: GroupConfig(multicast="10.0.0.1:7600"),
        lambda: Group("x", stack=[]),
    ],
)
def test_wrong_arguments_say_what_is_allowed(wrong: Callable[[], Group]) -> None:
    with pytest.raises(ConfigError):
        wrong()


def test_before_and_after_it_is_joined_it_says_so(party: Party) -> None:
    group = Group(party.name)
    for call in (lambda: group.view, lambda: group.me, lambda: group.send(b"x")):
        with pytest.raises(Closed):
            call()
    group.start()
    group.close()
    for again in (lambda: group.send(b"x"), group.start, lambda: group.on_view(print)):
        with pytest.raises(Closed):
            again()
    group.close()


def test_one_that_sends_to_one_while_the_group_is_left_gets_no_lane_any_more(party: Party) -> None:
    """Nobody would take it out of the scheduler again."""
    with Node() as node:
        a = party.join(node=node)
        me, core = a.me, a._core
        assert core is not None
        a.close(drain=0)
        with pytest.raises(Closed):
            core.send(b"late", me.life, 0.0)
        with pytest.raises(Closed):
            core.try_send(b"late", me.life)
        assert core.statistics()["one"] == {}


def test_a_group_whose_node_was_closed_says_so_and_ends_at_once(party: Party) -> None:
    node = Node().start()
    group = Group(party.name, node=node)
    group.on_message(lambda source, data: None)
    group.start()
    node.close()
    with pytest.raises(Closed):
        group.send(b"x")
    began = time.monotonic()
    group.close(drain=40)
    assert time.monotonic() - began < 15


def test_a_forked_child_has_no_part_in_the_group(party: Party) -> None:
    group = party.join()
    child = os.fork()
    if child == 0:
        try:
            group.send(b"from the child")
        except Closed:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    group.send(b"from the parent")
    assert party.came[0].first(1) == [("m0", b"from the parent")]


def test_handlers_are_plain_functions_and_there_is_one_for_messages(party: Party) -> None:
    async def coroutine(source: Member, data: bytes) -> None: ...

    group = party.join()
    with pytest.raises(ConfigError, match="async for"):
        group.on_message(coroutine)
    with pytest.raises(ConfigError, match="reader already"):
        group.on_message(lambda source, data: None)
    with pytest.raises(ConfigError, match="on_message"):
        iter(group)


def test_a_message_that_is_too_large_is_refused(party: Party) -> None:
    group = party.join(node_config=NodeConfig(max_message_bytes=1 << 20))
    with pytest.raises(MessageTooLarge) as refused:
        group.send(bytes((1 << 20) + 1))
    assert refused.value.limit == 1 << 20
    with pytest.raises(TypeError, match="bytes or another buffer"):
        group.send("text")  # type: ignore[arg-type]


def test_with_membership_alone_nothing_is_sent(party: Party) -> None:
    group = party.join(stack=[Tcp(), Discovery(), FailureDetection(), Membership()])
    other = party.join(stack=[Tcp(), Discovery(), FailureDetection(), Membership()])
    party.all_see(2)
    for wrong in (group.send, group.send_async):
        with pytest.raises(ConfigError, match=r"add Fifo\(\)"):
            wrong(b"anything")
        with pytest.raises(ConfigError, match=r"add Fifo\(\)"):
            wrong(b"anything", to=other.me)
    assert group.statistics().sent == 0


def test_without_the_layer_for_it_nothing_is_sent_in_parts(party: Party) -> None:
    group = party.join(stack=[Tcp(), Discovery(), FailureDetection(), Membership(), Fifo()])
    group.send(bytes(16384))
    with pytest.raises(MessageTooLarge):
        group.send(bytes(16385))


def test_closing_inside_a_handler_is_refused(party: Party) -> None:
    raised: Collected[BaseException] = Collected()

    def handler(source: Member, data: bytes) -> None:
        try:
            party.groups[0].close()
        except BaseException as error:
            raised.add(error)

    party.join(handler).send(b"x")
    assert isinstance(raised.first(1)[0], WouldBlock)


def test_statistics_and_the_drawing(party: Party) -> None:
    group = party.join()
    group.send(b"12345")
    party.came[0].first(1)
    statistics = group.statistics()
    assert (statistics.sent, statistics.delivered, statistics.delivered_bytes) == (1, 1, 5)
    assert (statistics.members, statistics.view) == (1, 1)
    assert statistics.layers["membership"]["views"] == 1
    assert "fifo" in group.drawing
    assert party.name in repr(group)
