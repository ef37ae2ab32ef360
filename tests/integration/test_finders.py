"""Finding the other nodes of a channel, with real processes, a real directory and a real group."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import itertools
import logging
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon import INSECURE, Closed, ConfigError, DuplicateNode
from antiphon.testing import Child, Collected, Control, Network, eventually
from antiphon.topics.finder import Finder, Member
from antiphon.topics.local import LocalFinder
from antiphon.topics.multicast import MulticastFinder

pytestmark = pytest.mark.timeout(120)

PATIENCE = 20.0
GROUP = "239.77.0.1"
# So long that nothing but the event itself can have told.
SELDOM = {"interval": 300.0}
SELDOM_BY_DATAGRAM = {"interval": 300.0, "expiry": 600.0}
OFTEN = {"interval": 0.3}
OFTEN_BY_DATAGRAM = {"interval": 0.15, "expiry": 1.5}

_numbers = itertools.count(1)


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.bind(("", 0))
        port: int = asking.getsockname()[1]
        return port


def new(id: int, version: int = 0) -> Member:
    return Member(id, 2**63 + next(_numbers), f"tcp://127.0.0.1:{10_000 + id}", version)


class Channel:
    """A channel of its own for each test, and finders on it, here or in other processes."""

    def __init__(self, settings: dict[str, Any], seldom: dict[str, Any], often: dict[str, Any]):
        self.settings = settings
        self.seldom = seldom
        self.often = often
        self._open = contextlib.ExitStack()

    def make(self, **more: Any) -> Finder:
        settings = {**self.settings, **more}
        finder: Finder
        if "port" in settings:
            finder = MulticastFinder(**settings)
        else:
            finder = LocalFinder(**settings)
        return self._open.enter_context(finder)

    def start(self, me: Member, **more: Any) -> tuple[Finder, Changes]:
        finder, changes = self.make(**more), Changes()
        finder.start(me, changes.add)
        return finder, changes

    def child(self, *ids: int, **more: Any) -> Child:
        """A process with a finder for each id; told to the test once all have started."""
        child = self._open.enter_context(Child(resident, ids=ids, settings=self.settings | more))
        child.expect("ready", PATIENCE)
        return child

    def close(self) -> None:
        self._open.close()


class Changes(Collected[tuple[list[Member], list[Member]]]):
    """What a callback was told."""

    def add(self, *change: Any) -> None:
        super().add(change)

    @property
    def gone(self) -> list[int]:
        return [member.id for _, gone in self.items for member in gone]


def resident(
    control: Control, ids: list[int], settings: dict[str, Any], delay: float = 0.0
) -> None:
    """Finders that stay, and do what the test says."""
    import os
    import subprocess
    import time

    from antiphon import Closed
    from antiphon.topics.finder import Member
    from antiphon.topics.local import LocalFinder
    from antiphon.topics.multicast import MulticastFinder

    def tell(present: list[Member], gone: list[Member]) -> None:
        for member in gone:
            control.tell("gone", id=member.id, at=time.monotonic())
        for member in present:
            control.tell("present", id=member.id, version=member.version)

    finders: list[Any] = []
    for own in ids:
        kind: Any = MulticastFinder if "port" in settings else LocalFinder
        finder = kind(**settings)
        me = Member(own, int.from_bytes(os.urandom(8), "little"), f"tcp://127.0.0.1:{10_000 + own}")
        finder.start(me, tell if ids == [own] else lambda present, gone: None)
        finders.append(finder)
    control.tell("ready")
    while True:
        order = control.hear()
        match order["order"]:
            case "announce":
                for version in order["versions"]:
                    finders[0].announce(version)
            case "close":
                for finder in finders:
                    finder.close()
                control.tell("closed")
            case "fork":
                pid = os.fork()
                if pid == 0:
                    refused = 0
                    for call in (finders[0].members, lambda: finders[0].announce(1)):
                        try:
                            call()
                        except Closed:
                            refused += 1
                    finders[0].close()
                    control.tell("forked", refused=refused)
                    time.sleep(120)
                    os._exit(0)
            case "exec":
                subprocess.Popen(["sleep", "120"], close_fds=False)
                control.tell("forked", refused=2)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Channel]:
    made = Channel({"name": "plant", "directory": str(tmp_path / "run")}, SELDOM, OFTEN)
    yield made
    made.close()


@pytest.fixture
def multicast() -> Iterator[Channel]:
    settings = {"address": GROUP, "port": free_port(), "interface": "lo"}
    made = Channel(settings, SELDOM_BY_DATAGRAM, OFTEN_BY_DATAGRAM)
    yield made
    made.close()


@pytest.fixture(params=["local", "multicast"])
def channel(request: pytest.FixtureRequest) -> Channel:
    made: Channel = request.getfixturevalue(request.param)
    return made


def sees(finder: Finder, *ids: int) -> None:
    """Its callback may be told a moment later."""
    eventually(
        lambda: [member.id for member in finder.members()] == sorted(ids),
        PATIENCE,
        f"sees exactly {ids}",
    )


def shows(finder: Finder, version: int) -> None:
    """The only other member has this version."""
    eventually(lambda: [each.version for each in finder.members()] == [version], PATIENCE)


def hears_of(
    child: Child, event: str, id: int | None = None, version: int | None = None
) -> dict[str, Any]:
    while True:
        told = child.hear(PATIENCE, f"{event} {id}")
        right = (told["event"], told.get("id")) == (event, id)
        if right and (version is None or told["version"] == version):
            return told


# --- what every finder does -----------------------------------------------------------------------


def test_two_processes_find_each_other(channel: Channel) -> None:
    child = channel.child(2, **channel.seldom)
    finder, changes = channel.start(new(1), **channel.seldom)
    sees(finder, 2)
    hears_of(child, "present", 1)
    ((present, gone),) = changes.first(1, PATIENCE)
    assert [(member.id, member.address) for member in present] == [(2, "tcp://127.0.0.1:10002")]
    assert gone == []


def test_a_changed_version_arrives_without_waiting_for_the_interval(channel: Channel) -> None:
    child = channel.child(2, **channel.seldom)
    finder, changes = channel.start(new(1), **channel.seldom)
    sees(finder, 2)
    child.tell("announce", versions=[2**64 - 1])
    shows(finder, 2**64 - 1)
    present, gone = changes.first(2, PATIENCE)[1]
    assert [member.version for member in present] == [2**64 - 1]
    assert gone == []
    finder.announce(7)
    hears_of(child, "present", 1, version=7)


def test_of_many_changes_the_last_one_arrives(channel: Channel) -> None:
    child = channel.child(2, **channel.seldom)
    finder, changes = channel.start(new(1), **channel.seldom)
    sees(finder, 2)
    # Of different lengths in text, so that a longer line is overwritten by a shorter one.
    versions = [10 ** (number % 19) + number for number in range(3000)] + [5]
    child.tell("announce", versions=versions)
    shows(finder, 5)
    seen = [member.version for present, _ in changes.items for member in present]
    assert set(seen) <= {0, *versions}
    assert changes.gone == []


def test_an_orderly_end_is_seen_at_once(channel: Channel) -> None:
    child = channel.child(2, **channel.seldom)
    finder, changes = channel.start(new(1), **channel.seldom)
    sees(finder, 2)
    child.tell("close")
    hears_of(child, "closed")
    sees(finder)
    eventually(lambda: changes.gone == [2], PATIENCE)


def test_a_killed_process_is_noticed(channel: Channel) -> None:
    child = channel.child(2, **channel.often)
    finder, changes = channel.start(new(1), **channel.often)
    sees(finder, 2)
    child.kill()
    sees(finder)
    eventually(lambda: 2 in changes.gone, PATIENCE)


def test_one_that_came_back_is_gone_and_present(channel: Channel) -> None:
    finder, changes = channel.start(new(1), **channel.seldom)
    first, again = new(2), new(2)
    other, _ = channel.start(first, **channel.seldom)
    sees(finder, 2)
    other.close()
    channel.start(again, **channel.seldom)
    eventually(lambda: finder.members() == [again], PATIENCE)
    eventually(lambda: any(first in gone for _, gone in changes.items), PATIENCE)


def test_a_failing_callback_is_logged_and_ends_nothing(
    channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    finder = channel.make(**channel.seldom)

    def fail(present: list[Member], gone: list[Member]) -> None:
        raise SystemExit("not that way")

    finder.start(new(1), fail)
    channel.start(new(2), **channel.seldom)
    sees(finder, 2)
    channel.start(new(3), **channel.seldom)
    sees(finder, 2, 3)
    eventually(lambda: "not that way" in caplog.text, PATIENCE)


def test_callbacks_come_one_at_a_time_on_a_thread_of_the_finder(channel: Channel) -> None:
    finder = channel.make(**channel.seldom)
    inside = threading.Lock()
    threads: Collected[threading.Thread] = Collected()

    def check(present: list[Member], gone: list[Member]) -> None:
        assert inside.acquire(blocking=False)
        time.sleep(0.01)
        threads.add(threading.current_thread())
        inside.release()

    finder.start(new(1), check)
    for number in range(2, 6):
        channel.start(new(number), **channel.seldom)
        sees(finder, *range(2, number + 1))
    thread, *others = threads.first(4, PATIENCE)
    assert {id(other) for other in others} == {id(thread)}
    assert thread.daemon
    finder.close()
    assert not thread.is_alive()


def test_it_can_be_closed_by_its_callback(channel: Channel) -> None:
    finder = channel.make(**channel.seldom)
    threads: Collected[threading.Thread] = Collected()

    def close(present: list[Member], gone: list[Member]) -> None:
        finder.close()
        threads.add(threading.current_thread())

    finder.start(new(1), close)
    other, _ = channel.start(new(2), **channel.seldom)
    (thread,) = threads.first(1, PATIENCE)
    eventually(lambda: not thread.is_alive(), PATIENCE)
    eventually(lambda: other.members() == [], PATIENCE)
    assert finder.members() == []


def test_close_wakes_the_thread_and_can_be_called_again(channel: Channel) -> None:
    finder, _ = channel.start(new(1), **channel.seldom)
    before = len(list(Path("/proc/self/fd").iterdir()))
    began = time.monotonic()
    finder.close()
    assert time.monotonic() - began < 4.0, "the patience of close was used up"
    finder.close()
    assert len(list(Path("/proc/self/fd").iterdir())) < before
    with pytest.raises(Closed, match="closed"):
        finder.announce(1)
    with pytest.raises(Closed, match="make another"):
        finder.start(new(1), lambda present, gone: None)
    assert finder.members() == []


def test_a_start_that_is_interrupted_leaves_neither_thread_nor_traceback(
    channel: Channel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, begun = threading.Thread.start, list[threading.Thread]()

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        begun.append(thread)
        raise KeyboardInterrupt

    finder = channel.make(**channel.seldom)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            finder.start(new(1), lambda present, gone: None)
    (thread,) = begun
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert not caplog.records
    finder.close()


def test_before_its_start_a_finder_knows_nobody(channel: Channel) -> None:
    finder = channel.make()
    assert finder.members() == []
    with pytest.raises(Closed, match="not been started"):
        finder.announce(1)
    finder.close()
    finder.close()


@pytest.mark.parametrize(
    ("me", "setting"),
    [
        (Member(0, 1, "tcp://127.0.0.1:1"), "id"),
        (Member(65536, 1, "tcp://127.0.0.1:1"), "id"),
        (Member(1, -1, "tcp://127.0.0.1:1"), "incarnation"),
        (Member(1, 2**64, "tcp://127.0.0.1:1"), "incarnation"),
        (Member(1, 1, ""), "address"),
        (Member(1, 1, "x" * 513), "address"),
        (Member(1, 1, "tcp://a\nb:1"), "address"),
        (Member(1, 1, "tcp://127.0.0.1:1", 2**64), "version"),
    ],
)
def test_a_member_that_cannot_be_is_refused(channel: Channel, me: Member, setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        channel.make().start(me, lambda present, gone: None)
    assert caught.value.setting == setting


def test_twenty_members_in_four_processes(channel: Channel) -> None:
    finder, changes = channel.start(new(100), **channel.often)
    children = [channel.child(*range(n, n + 5), **channel.often) for n in (1, 6, 11, 16)]
    sees(finder, *range(1, 21))
    children[0].kill()
    sees(finder, *range(6, 21))
    children[1].tell("close")
    sees(finder, *range(11, 21))
    eventually(lambda: set(range(1, 11)) <= set(changes.gone), PATIENCE)


@pytest.mark.parametrize("how", ["fork", "exec"])
def test_a_descendant_neither_disturbs_nor_hides_the_end_of_its_parent(
    channel: Channel, how: str
) -> None:
    child = channel.child(2, **channel.often)
    finder, changes = channel.start(new(1), **channel.often)
    sees(finder, 2)
    hears_of(child, "present", 1)
    child.tell(how)
    assert child.expect("forked", PATIENCE)["refused"] == 2
    child.tell("announce", versions=[3])
    shows(finder, 3)
    assert changes.gone == [] or "port" in channel.settings  # where a busy machine can be silence
    child.kill()
    sees(finder)


# --- local: ids -----------------------------------------------------------------------------------


def local_finder(channel: Channel, **more: Any) -> LocalFinder:
    finder = channel.make(**more)
    assert isinstance(finder, LocalFinder)
    return finder


def test_an_id_that_a_living_node_holds_cannot_be_claimed(local: Channel) -> None:
    local.child(2)
    with pytest.raises(DuplicateNode, match="choose another") as caught:
        local_finder(local).claim(2)
    assert (caught.value.id, caught.value.other) == (2, "tcp://127.0.0.1:10002")
    starting = local_finder(local)
    starting.claim(3)
    with pytest.raises(DuplicateNode) as caught:
        local_finder(local).start(new(3), lambda present, gone: None)
    assert caught.value.other is None
    starting.close()
    assert local_finder(local).claim(3) == 3


def test_the_id_of_a_dead_node_can_be_claimed_with_what_it_left(local: Channel) -> None:
    child = local.child(2)
    finder = local_finder(local)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(finder.socket_path(2))
    child.kill()
    assert finder.claim(2) == 2
    assert sorted(path.name for path in finder.directory.iterdir()) == ["2.node"]
    # Twice is once.
    assert finder.claim() == finder.claim(2) == 2
    with pytest.raises(ConfigError, match="claimed before"):
        finder.claim(3)
    with pytest.raises(ConfigError, match="claimed before"):
        finder.start(new(3), lambda present, gone: None)
    assert list(finder.directory.iterdir()) == []


def test_drawn_ids_are_all_different(local: Channel) -> None:
    drawn = [local_finder(local).claim() for _ in range(100)]
    assert len(set(drawn)) == 100
    assert all(32768 <= each <= 65535 for each in drawn)


def test_of_many_who_want_the_id_of_a_dead_node_one_gets_it(local: Channel) -> None:
    """With others that watch, and remove the dead one's file at the same moment."""
    watchers = [local.start(new(number), **local.seldom)[0] for number in (1, 2, 3)]
    directory = local_finder(local).directory
    for turn in range(8):
        (directory / "77.node").write_text("left behind")
        won, lost = compete(77, [local_finder(local) for _ in range(6)])
        assert (len(won), len(lost)) == (1, 5), turn
        won[0].start(new(77), lambda present, gone: None)
        for watcher in watchers:
            sees(
                watcher,
                77,
                *(number for number in (1, 2, 3) if watcher is not watchers[number - 1]),
            )
        won[0].close()
        assert not (directory / "77.node").exists()


def compete(id: int, finders: list[LocalFinder]) -> tuple[list[LocalFinder], list[DuplicateNode]]:
    """All claim the same id at the same time."""
    barrier = threading.Barrier(len(finders))
    won: Collected[LocalFinder] = Collected()
    lost: Collected[DuplicateNode] = Collected()

    def claim(finder: LocalFinder) -> None:
        barrier.wait()
        try:
            finder.claim(id)
            won.add(finder)
        except DuplicateNode as error:
            lost.add(error)

    threads = [threading.Thread(target=claim, args=[finder]) for finder in finders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return won.items, lost.items


# --- local: files ---------------------------------------------------------------------------------


def test_a_kill_is_noticed_long_before_the_interval(local: Channel) -> None:
    child = local.child(2, **local.seldom)
    finder, changes = local.start(new(1), **local.seldom)
    sees(finder, 2)
    child.kill()
    sees(finder)
    eventually(lambda: changes.gone == [2], PATIENCE)


def test_what_the_dead_leave_is_removed_by_whoever_notices(local: Channel) -> None:
    child = local.child(2, 3)
    watcher = local_finder(local)
    for path in (watcher.socket_path(2), watcher.socket_path(3)):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(path)
    child.kill()
    assert len(list(watcher.directory.iterdir())) == 4
    stray = watcher.directory / ".claim-0123"
    stray.touch()
    os.utime(stray, (0, 0))
    watcher.start(new(1), lambda present, gone: None)
    eventually(lambda: [path.name for path in watcher.directory.iterdir()] == ["1.node"], PATIENCE)
    watcher.close()
    assert list(watcher.directory.iterdir()) == []


def test_without_inotify_the_interval_suffices(local: Channel, need: Callable[[str], None]) -> None:
    need("netns")
    without = ["unshare", "-U", "-r", "sh", "-c"]
    without += ['echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"', "sh"]
    if subprocess.run([*without, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespace in which inotify could be forbidden")
    settings = local.settings | local.often
    with Child(resident, prefix=without, ids=[2], settings=settings) as child:
        child.expect("ready", PATIENCE)
        other = local.child(3, **local.often)
        hears_of(child, "present", 3)
        other.tell("announce", versions=[9])
        hears_of(child, "present", 3, version=9)
        other.kill()
        hears_of(child, "gone", 3)
        assert "no inotify" in child.errors


@pytest.mark.parametrize("what", ["file", "directory", "moved directory"])
def test_what_was_cleaned_up_is_put_back(local: Channel, what: str) -> None:
    child = local.child(2, **local.often)
    finder, _ = local.start(new(1), **local.often)
    assert isinstance(finder, LocalFinder)
    directory = finder.directory
    hears_of(child, "present", 1)
    sees(finder, 2)
    removed = (directory / "1.node").stat()
    if what == "file":
        (directory / "1.node").unlink()
    else:
        aside = directory.with_name("aside")
        directory.rename(aside)
        if what == "directory":
            shutil.rmtree(aside)

    def is_back() -> bool:
        with contextlib.suppress(FileNotFoundError):
            return not os.path.samestat((directory / "1.node").stat(), removed)
        return False

    eventually(is_back, PATIENCE)
    # Twice: the first may have been noticed by the way, the second needs both to watch again.
    for version in (1, 2):
        finder.announce(version)
        hears_of(child, "present", 1, version=version)
        child.tell("announce", versions=[version])
        shows(finder, version)
    with pytest.raises(DuplicateNode):
        local_finder(local).claim(1)


def test_files_that_describe_no_node_are_ignored(
    local: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    import fcntl

    finder, changes = local.start(new(1), **local.often)
    assert isinstance(finder, LocalFinder)
    texts = ["{}", '{"id": 7', "\n", "\0" * 5000, '{"id": 9} 00000000\n']
    with contextlib.ExitStack() as files:
        for number, text in enumerate(texts, start=5):
            path = finder.directory / f".{number}"
            file = files.enter_context(path.open("w"))
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(text)
            file.flush()
            path.rename(finder.directory / f"{number}.node")
        (finder.directory / "20.node").symlink_to("/etc/passwd")
        (finder.directory / "21.node").mkdir()
        os.mkfifo(finder.directory / "22.node")
        (finder.directory / "099999.node").touch()
        (finder.directory / "notes.txt").touch()
        eventually(
            lambda: all(f"{n}.node does not describe" in caplog.text for n in range(5, 10)),
            PATIENCE,
        )
        local.child(2)
        sees(finder, 2)
    eventually(lambda: not (finder.directory / "5.node").exists(), PATIENCE)
    changes.first(1, PATIENCE)
    assert {member.id for present, _ in changes.items for member in present} == {2}
    assert Path("/etc/passwd").exists()
    assert (finder.directory / "notes.txt").exists()


# --- local: directories ---------------------------------------------------------------------------


def test_directories_are_made_for_the_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with LocalFinder("plant", tmp_path / "run") as finder:
            finder.claim(1)
    finally:
        os.umask(before)
    for made in (tmp_path / "run", tmp_path / "run" / "plant"):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700


@pytest.mark.parametrize("level", ["run", "run/plant"])
@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ("mode 0750", "chmod 700"),
        ("mode 0701", "chmod 700"),
        ("link", "symbolic link"),
        ("file", "no directory"),
        ("owner", "belongs to uid 12345"),
    ],
)
def test_a_directory_in_which_others_have_a_say_is_refused(
    tmp_path: Path, level: str, wrong: str, advice: str
) -> None:
    path = tmp_path / level
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if wrong == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "elsewhere")
    elif wrong == "file":
        path.touch(mode=0o600)
    else:
        path.mkdir(mode=0o700)
        if wrong == "owner":
            if os.geteuid() != 0:
                pytest.skip("only root can give a directory away")
            os.chown(path, 12345, 12345)
        else:
            path.chmod(int(wrong.split()[1], 8))
    finder = LocalFinder("plant", tmp_path / "run")
    for attempt in (finder.claim, lambda: finder.start(new(1), lambda present, gone: None)):
        with pytest.raises(ConfigError, match=advice) as caught:
            attempt()
        assert caught.value.setting == "directory"
        assert caught.value.value == str(path)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be made"):
        LocalFinder("plant", tmp_path / "no" / "where").claim()


_ON_A_FULL_DISK = """
import os, pathlib, sys, time
from antiphon import Bus, ConfigError
place = pathlib.Path(os.environ["XDG_RUNTIME_DIR"])
full = place / "full"
full.write_bytes(bytes(8192))
bus = Bus("local://plant")
try:
    bus.start()
except ConfigError as error:
    assert error.setting == "directory", error.setting
    print(error)
else:
    sys.exit("it started without a word to the others")
finally:
    bus.close()
full.unlink()
with Bus("local://plant") as bus, Bus("local://plant") as other:
    other.subscribe("temperature", print)
    publisher = bus.publisher("temperature")
    deadline = time.monotonic() + 20
    while publisher.subscribers != 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
print("well")
"""


@pytest.mark.needs("netns")
def test_a_full_disk_is_said_and_once_there_is_room_all_is_well(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o mode=0700,size=8k none "$0" && exec "$@"'
    command = ["unshare", "-Urm", "--", "sh", "-c", mount, str(tmp_path), sys.executable]
    done = subprocess.run(
        [*command, "-c", _ON_A_FULL_DISK],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert said[-1] == "well"
    assert "No space left on device" in said[0]
    assert str(tmp_path) in said[0]


def test_the_directory_is_the_runtime_one_or_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    temporary = tmp_path / f"antiphon-{os.geteuid()}" / "plant"
    runtime = tmp_path / "runtime"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert LocalFinder("plant").directory == temporary
    runtime.mkdir()
    with LocalFinder("plant") as finder:
        finder.claim(1)
        assert finder.directory == runtime / "antiphon" / "plant"
        assert (finder.directory / "1.node").exists()
    monkeypatch.setenv("XDG_RUNTIME_DIR", "runtime")
    assert LocalFinder("plant").directory == temporary
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    with LocalFinder("plant") as finder:
        finder.claim(1)
        assert (temporary / "1.node").exists()


def test_a_socket_path_fits_into_an_address(tmp_path: Path) -> None:
    room = 107 - len(str(tmp_path / "x" / "65535.sock")) + 1
    fits = LocalFinder("x" * room, tmp_path)
    fits.claim(65535)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(fits.socket_path(65535))
    fits.close()
    with pytest.raises(ConfigError, match="shorter"):
        LocalFinder("x" * (room + 1), tmp_path).socket_path(65535)
    with pytest.raises(ConfigError):
        fits.socket_path(0)


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "a b", "ä", "x" * 65, "a\n", 7])
def test_a_name_that_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        LocalFinder(name)
    assert caught.value.setting == "name"


@pytest.mark.parametrize("interval", [0, -1, float("nan"), float("inf"), 3601, True, "1"])
def test_an_interval_that_is_none_is_refused(interval: Any) -> None:
    with pytest.raises(ConfigError, match="interval"):
        LocalFinder("plant", interval=interval)
    with pytest.raises(ConfigError, match="interval"):
        MulticastFinder(GROUP, 7777, interval=interval)


# --- multicast: datagrams -------------------------------------------------------------------------


def datagram(
    member: Member,
    sequence: int,
    *,
    kind: int = 1,
    expiry: float = 600.0,
    secret: bytes | None = None,
    port: int = 0,
) -> bytes:
    """An announcement, written from the description of the layout."""
    address = member.address.encode()
    data = b"ANTI" + struct.pack(
        "<BBHQQQIH",
        1,
        kind + (128 if secret else 0),
        member.id,
        member.incarnation,
        member.version,
        sequence,
        int(expiry * 1000),
        len(address),
    )
    data += address
    if secret is None:
        return data
    channel = b"antiphon finder\0" + socket.inet_aton(GROUP) + struct.pack("<H", port)
    return data + hmac.new(secret, channel + data, hashlib.sha256).digest()[:16]


class Eavesdropper:
    """Somebody else on the channel: hears everything and can say anything."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            self._socket.setsockopt(socket.SOL_SOCKET, option, 1)
        self._socket.bind((GROUP, port))
        on = socket.inet_aton(GROUP) + socket.inet_aton("127.0.0.1")
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, on)
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, on[4:])

    def say(self, *datagrams: bytes) -> None:
        for each in datagrams:
            self._socket.sendto(each, (GROUP, self.port))

    def hear(self) -> bytes:
        self._socket.settimeout(PATIENCE)
        return self._socket.recv(65536)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def stranger(multicast: Channel) -> Iterator[Eavesdropper]:
    with contextlib.closing(Eavesdropper(multicast.settings["port"])) as made:
        yield made


def multicast_finder(channel: Channel, me: Member, **more: Any) -> tuple[MulticastFinder, Changes]:
    finder, changes = channel.start(me, **{**channel.seldom, **more})
    assert isinstance(finder, MulticastFinder)
    return finder, changes


def test_the_layout_is_as_described(multicast: Channel, stranger: Eavesdropper) -> None:
    me = new(1, version=2**64 - 7)
    finder, _ = multicast_finder(multicast, me)
    assert stranger.hear() == datagram(me, 1)
    finder.close()
    assert stranger.hear() == datagram(me, 2, kind=2)
    multicast_finder(multicast, me, secret="s3cret")
    assert stranger.hear() == datagram(me, 3, kind=2)  # said twice by the first
    assert stranger.hear() == datagram(me, 1, secret=b"s3cret", port=stranger.port)


@pytest.mark.parametrize("secret", [None, b"s3cret"])
def test_garbage_is_counted_and_ignored(
    multicast: Channel, stranger: Eavesdropper, secret: bytes | None
) -> None:
    finder, changes = multicast_finder(multicast, new(1), secret=secret)
    good = datagram(new(9), 1, secret=secret, port=stranger.port)
    unsigned = datagram(new(9), 1)
    garbage = [
        b"",
        b"\0",
        os.urandom(40),
        os.urandom(600),
        bytes(60_000),
        good[:-1],
        good + b"\0",
        good + bytes(1000),
        b"ANTJ" + good[4:],
        good[:4] + b"\2" + good[5:],
        good[:36] + b"\xff\xff" + good[38:],
        datagram(new(9), 1, secret=b"another", port=stranger.port),
        datagram(new(9), 1, kind=3, secret=secret, port=stranger.port),
        datagram(new(0), 1, secret=secret, port=stranger.port),
        datagram(Member(9, 1, ""), 1, secret=secret, port=stranger.port),
        datagram(Member(9, 1, "tcp://\n:1"), 1, secret=secret, port=stranger.port),
        unsigned[:38] + b"\xff" * (len(unsigned) - 38),
        unsigned[:5] + b"\x81" + unsigned[6:],
    ]
    if secret is not None:
        garbage.append(unsigned)
    stranger.say(*garbage)
    eventually(lambda: finder.refused == len(garbage), PATIENCE)
    assert finder.members() == []
    stranger.say(good)
    sees(finder, 9)
    assert finder.refused == len(garbage)
    changes.first(1, PATIENCE)
    assert len(changes) == 1


def test_only_those_with_the_same_secret_find_each_other(multicast: Channel) -> None:
    ours = [multicast_finder(multicast, new(n), secret="ours")[0] for n in (1, 2)]
    theirs = [multicast_finder(multicast, new(n), secret=b"theirs")[0] for n in (3, 4)]
    nobodys = [
        multicast_finder(multicast, new(5))[0],
        multicast_finder(multicast, new(6), secret=INSECURE)[0],
    ]
    for group, ids in ((ours, (1, 2)), (theirs, (3, 4)), (nobodys, (5, 6))):
        for finder, other in zip(group, reversed(ids), strict=True):
            sees(finder, other)
    everyone = [*ours, *theirs, *nobodys]
    eventually(lambda: all(finder.refused > 0 for finder in everyone), PATIENCE)
    assert {len(finder.members()) for finder in everyone} == {1}


def test_silence_expires_as_the_sender_said(multicast: Channel, stranger: Eavesdropper) -> None:
    finder, changes = multicast_finder(multicast, new(1))
    brief, lasting = new(2), new(3)
    stranger.say(datagram(brief, 1, expiry=0.5), datagram(lasting, 1))
    changes.first(1, PATIENCE)
    sees(finder, 3)
    # A cable that was out is no death.
    stranger.say(datagram(brief, 2))
    sees(finder, 2, 3)


def test_one_who_was_stopped_does_not_call_the_others_silent(
    multicast: Channel, stranger: Eavesdropper
) -> None:
    child = multicast.child(1, **multicast.often)
    stranger.say(datagram(new(2), 1, expiry=3.0))  # before that it is stopped
    hears_of(child, "present", 2)
    child.signal(signal.SIGSTOP)
    time.sleep(3.5)  # longer than the silence that is allowed
    resumed = time.monotonic()
    child.signal(signal.SIGCONT)
    assert hears_of(child, "gone", 2)["at"] > resumed + 0.5


def test_a_member_that_hangs_is_gone_until_it_goes_on(multicast: Channel) -> None:
    finder, _ = multicast_finder(multicast, new(1))
    child = multicast.child(2, interval=0.3, expiry=1.0)
    sees(finder, 2)
    (before,) = finder.members()
    child.signal(signal.SIGSTOP)
    sees(finder)
    child.signal(signal.SIGCONT)
    eventually(lambda: finder.members() == [before], PATIENCE)


def test_old_datagrams_change_nothing(multicast: Channel, stranger: Eavesdropper) -> None:
    finder, changes = multicast_finder(multicast, new(1))
    first = new(2, version=1)
    later = Member(first.id, first.incarnation, first.address, version=2)
    stranger.say(datagram(later, 5), datagram(first, 4), datagram(first, 5))
    eventually(lambda: finder.repeated == 2, PATIENCE)
    assert finder.members() == [later]
    stranger.say(datagram(first, 3, kind=2))
    eventually(lambda: finder.repeated == 3, PATIENCE)
    assert finder.members() == [later]
    assert finder.refused == 0
    assert len(changes) == 1


def test_a_recording_does_not_bring_the_dead_back(
    multicast: Channel, stranger: Eavesdropper
) -> None:
    finder, changes = multicast_finder(multicast, new(1), secret=b"s")
    dead, left = new(2), new(3)
    sign = functools.partial(datagram, secret=b"s", port=stranger.port)
    of_the_dead = [sign(dead, number, expiry=0.5) for number in range(1, 6)]
    of_the_departed = [sign(left, number) for number in range(1, 6)]
    stranger.say(*of_the_dead)
    eventually(lambda: 2 in changes.gone, PATIENCE)
    stranger.say(*of_the_departed)
    sees(finder, 3)
    stranger.say(sign(left, 9, kind=2))
    sees(finder)
    before = finder.repeated
    stranger.say(*of_the_dead, *of_the_departed)
    eventually(lambda: finder.repeated == before + 10, PATIENCE)
    # Nor does what was held back, of one that has taken leave.
    stranger.say(sign(left, 10))
    eventually(lambda: finder.repeated == before + 11, PATIENCE)
    assert finder.members() == []
    # One who has not known them believes it, once.
    newcomer, changes = multicast_finder(multicast, new(4), secret=b"s")
    sees(newcomer, 1)
    stranger.say(*of_the_dead)
    eventually(lambda: 2 in changes.gone, PATIENCE)
    stranger.say(*of_the_dead)
    eventually(lambda: newcomer.repeated == 5, PATIENCE)
    sees(newcomer, 1)


def test_a_recording_is_worth_nothing_on_another_channel(multicast: Channel) -> None:
    finder, _ = multicast_finder(multicast, new(1), secret=b"s")
    with contextlib.closing(Eavesdropper(multicast.settings["port"])) as stranger:
        stranger.say(datagram(new(2), 1, secret=b"s", port=stranger.port ^ 1))
        eventually(lambda: finder.refused == 1, PATIENCE)
    assert finder.members() == []


def test_a_farewell_cannot_be_forged(multicast: Channel, stranger: Eavesdropper) -> None:
    finder, _ = multicast_finder(multicast, new(1), secret=b"s")
    other = new(2)
    multicast_finder(multicast, other, secret=b"s")
    sees(finder, 2)
    stranger.say(
        datagram(other, 1000, kind=2),
        datagram(other, 1000, kind=2, secret=b"t", port=stranger.port),
    )
    eventually(lambda: finder.refused == 2, PATIENCE)
    sees(finder, 2)


# --- multicast: ids -------------------------------------------------------------------------------


def test_a_restarted_node_replaces_its_old_self_at_once(
    multicast: Channel, stranger: Eavesdropper
) -> None:
    finder, changes = multicast_finder(multicast, new(1))
    old, restarted = new(2), new(2)
    stranger.say(datagram(old, 50))
    sees(finder, 2)
    stranger.say(datagram(restarted, 1))
    eventually(lambda: finder.members() == [restarted], PATIENCE)
    assert changes.first(2, PATIENCE)[1:] == [([restarted], [old])]


def test_two_with_one_id_know_of_each_other(
    multicast: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    often = {"interval": 0.3, "expiry": 60.0}
    witness, seen = multicast_finder(multicast, new(1), **often)
    first, second = new(2), new(2)
    one, told = multicast_finder(multicast, first, **often)
    sees(witness, 2)
    assert one.conflict is None
    with caplog.at_level(logging.WARNING):
        two, _ = multicast_finder(multicast, second, **often)
        eventually(lambda: one.conflict == second and two.conflict == first, PATIENCE)
        eventually(lambda: ([], []) in told.items, PATIENCE)
        eventually(lambda: caplog.text.count("two nodes have the id 2") == 3, PATIENCE)
    assert second not in one.members()
    # The witness believes one of them, and stays with it.
    assert len(witness.members()) == 1
    two.close()
    eventually(lambda: one.conflict is None, PATIENCE)
    eventually(lambda: witness.members() == [first], PATIENCE)
    assert len(seen) <= 4
    assert caplog.text.count("two nodes have the id 2") == 3


# --- multicast: networks --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "interface"),
    [
        (GROUP, "127.0.0.1"),
        ("127.255.255.255", None),
        ("127.255.255.255", "lo"),
        ("127.255.255.255", "127.0.0.1"),
    ],
)
def test_groups_and_broadcasts_of_this_machine(address: str, interface: str | None) -> None:
    port = free_port()
    with (
        MulticastFinder(address, port, interface, interval=300.0, expiry=600.0) as one,
        MulticastFinder(address, port, interface, interval=300.0, expiry=600.0) as two,
    ):
        one.start(new(1), lambda present, gone: None)
        two.start(new(2), lambda present, gone: None)
        sees(one, 2)
        sees(two, 1)


def test_channels_with_other_ports_are_apart(multicast: Channel) -> None:
    other = free_port()
    first, _ = multicast_finder(multicast, new(1))
    stray, _ = multicast_finder(multicast, new(2), port=other)
    second, _ = multicast_finder(multicast, new(3))
    sees(first, 3)
    sees(second, 1)
    assert stray.members() == []


def inside_a_network(network: Network, settings: dict[str, Any]) -> contextlib.ExitStack:
    """Two members of a network, each with a finder, and each in turn cut off for a while."""
    left, right = network.members
    with contextlib.ExitStack() as children:
        one, two = (
            children.enter_context(
                Child(
                    resident,
                    prefix=member.prefix,
                    ids=[number],
                    settings=settings | OFTEN_BY_DATAGRAM,
                )
            )
            for number, member in ((1, left), (2, right))
        )
        hears_of(one, "present", 2)
        hears_of(two, "present", 1)
        right.vanish()
        hears_of(one, "gone", 2)
        hears_of(two, "gone", 1)
        right.reappear()
        hears_of(one, "present", 2)
        hears_of(two, "present", 1)
        two.tell("close")
        hears_of(one, "gone", 2)
        return children.pop_all()


@pytest.mark.needs("netns")
@pytest.mark.parametrize("address", [GROUP, "10.77.9.255", "255.255.255.255", "ff12::77"])
def test_two_machines_find_lose_and_find_each_other(address: str) -> None:
    if ":" in address and not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    settings = {"address": address, "port": 7777, "interface": "eth0"}
    with Network(2, subnet=9) as network:
        if ":" in address:
            # Until it is sure that nobody else has its address, an interface says nothing.
            show = "ip -6 address show dev eth0"
            texts = [functools.partial(member.run, show) for member in network.members]
            eventually(lambda: all("fe80" in text() for text in texts), PATIENCE)
            eventually(lambda: not any("tentative" in text() for text in texts), PATIENCE)
        inside_a_network(network, settings).close()


@pytest.mark.needs("netns")
def test_a_machine_without_a_route_is_told_to_name_an_interface() -> None:
    def join(control: Control) -> None:
        from antiphon import ConfigError
        from antiphon.topics.finder import Member
        from antiphon.topics.multicast import MulticastFinder

        finder = MulticastFinder("239.77.0.1", 7777)
        try:
            finder.start(Member(1, 1, "tcp://127.0.0.1:1"), lambda present, gone: None)
        except ConfigError as error:
            control.tell("refused", text=str(error), setting=error.setting)

    with Network(1, subnet=9) as network, Child(join, prefix=network.members[0].prefix) as child:
        told = child.expect("refused", PATIENCE)
        assert told["setting"] == "interface"
        assert "name an interface" in told["text"]


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3"])
def test_an_address_of_one_machine_is_no_channel(address: str) -> None:
    with pytest.raises(ConfigError, match="broadcast"):
        MulticastFinder(address, free_port()).start(new(1), lambda present, gone: None)


@pytest.mark.parametrize(
    ("wrong", "setting"),
    [
        ({"address": "localhost"}, "address"),
        ({"address": "0.0.0.0"}, "address"),
        ({"address": "::1"}, "address"),
        ({"address": 7}, "address"),
        ({"port": 0}, "port"),
        ({"port": 65536}, "port"),
        ({"port": "7777"}, "port"),
        ({"interface": ""}, "interface"),
        ({"address": "ff12::77%eth0", "interface": "lo"}, "interface"),
        ({"ttl": 256}, "ttl"),
        ({"ttl": -1}, "ttl"),
        ({"secret": ""}, "secret"),
        ({"secret": 7}, "secret"),
        ({"expiry": 0}, "expiry"),
        ({"expiry": 1.5}, "expiry"),
        ({"interval": 3.0}, "expiry"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MulticastFinder(**{"address": GROUP, "port": 7777, **wrong})
    assert caught.value.setting == setting


def test_an_interface_that_is_not_there_is_refused() -> None:
    for address in (GROUP, "255.255.255.255"):
        with pytest.raises(ConfigError) as caught:
            MulticastFinder(address, 7777, "nosuch0").start(new(1), lambda present, gone: None)
        assert caught.value.setting == "interface"
