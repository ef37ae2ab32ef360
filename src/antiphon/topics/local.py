"""``local://name``: the nodes of one user on one machine, found through a directory.

Each node has a file ``<id>.node`` in the channel's directory and holds a lock on it (flock) for as
long as it lives. The kernel frees the lock however the process ends, so a lock that is free is the
death certificate of its node: whoever notices removes the file. The file is made under a name that
nobody reads, locked, and only then linked to its own, which fails if the name is there: the lock
makes ids unique, and nobody ever sees a file that is not locked yet.

The file's one line is the `Member` as JSON and a checksum of it. It is rewritten in place: a new
file renamed over the old one would leave the lock behind, on a file without a name. A reader that
meets half a line sees it by the checksum and looks again. A file without a line belongs to a node
that has its id and no address yet.

inotify tells what happens at once, also a death, since the kernel then closes a file that was open
for writing. All files are looked at once per ``interval`` besides: some systems have no inotify
left to give, and an event may come just before the lock is free.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import logging
import os
import re
import secrets
import stat
import struct
import tempfile
import time
import zlib
from pathlib import Path
from typing import Literal

from antiphon.errors import Closed, ConfigError, DuplicateNode
from antiphon.topics.finder import (
    Descriptor,
    Member,
    ThreadedFinder,
    acceptable_address,
    check_seconds,
    check_whole,
    not_forking,
    refuse,
)

__all__ = ["LocalFinder"]

log = logging.getLogger("antiphon.topics")

DRAWN = range(32768, 65536)
_DRAWS = 4096

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_FILE = re.compile(r"([1-9][0-9]{0,4})\.node")
_UNBORN = ".claim-"
# sun_path holds 108 bytes, the last of which is the terminating zero.
_UNIX_PATH_BYTES = 107
_LINE_BYTES = 4096

_GAP = 0.02
_CLAIM_PATIENCE = 0.5
_LOOK_AGAIN = 0.02
_DOUBT = 0.2
_UNBORN_AGE = 60.0
_TOUCH_EVERY = 3600.0


class LocalFinder(ThreadedFinder):
    """Finds the nodes of this user on this machine that use the same ``name``.

    The directory is ``$XDG_RUNTIME_DIR/antiphon/<name>``, if that variable names a directory of
    ours, else ``<tempdir>/antiphon-<uid>/<name>``; with ``directory`` it is ``<directory>/<name>``.
    It is made when it is first needed, with mode 0700. One that others own, or may enter, or that
    is reached through a symbolic link, is refused with `ConfigError`: who can write there decides
    whom we talk to.

    A member that ends in whatever way is noticed at once as a rule, and within ``interval``
    seconds at the latest.
    """

    def __init__(
        self, name: str, directory: str | os.PathLike[str] | None = None, interval: float = 1.0
    ) -> None:
        given: object = name
        if not isinstance(given, str) or not _NAME.fullmatch(given):
            wanted = "1 to 64 of the characters A-Z a-z 0-9 . _ - and must not begin with a dot"
            raise ConfigError(f"name is {given!r}; it takes {wanted}", setting="name", value=given)
        super().__init__(check_seconds("interval", interval), _GAP)
        self.name = name
        self._base = _default_base() if directory is None else Path(directory).absolute()
        self.directory = self._base / name
        """Where the files of the channel are. It need not exist before `claim`."""
        self._id: int | None = None
        self._table: dict[int, Member] = {}
        self._doubtful: dict[str, float] = {}  # to be looked at again, and until when
        self._complained: set[str] = set()
        self._next_scan = 0.0
        self._touched = 0.0
        self._watched = False

    # --- ids --------------------------------------------------------------------------------

    def claim(self, wanted: int | None = None) -> int:
        """Makes an id ours until close: ``wanted``, or one drawn from 32768 to 65535 that is free.

        Call it before `start`, which claims the id of its member otherwise. Raises `DuplicateNode`
        if a living node holds ``wanted``, and `ConfigError` if the directory cannot be used. May
        block for half a second, while a dead node's file is being removed by somebody else.
        """
        self._check_process()
        if wanted is not None:
            check_whole("id", wanted, 1, 65535)
        with self._lock:
            if self._state != "new":
                raise Closed(f"this finder is {self._state}; claim an id before", what="finder")
            if self._id is not None:
                if wanted not in (None, self._id):
                    raise refuse("id", wanted, f"{self._id}, which this finder has claimed before")
                return self._id
            self._prepare()
            try:
                self._id = self._draw() if wanted is None else self._take(wanted)
            except OSError as error:
                raise self._refusal("no file can be made and locked", error) from error
            return self._id

    def _refusal(self, what: str, error: OSError) -> ConfigError:
        return ConfigError(
            f"{what} in {self.directory} ({error}); free some space there, or give another "
            "directory",
            setting="directory",
            value=str(self.directory),
        )

    def socket_path(self, id: int) -> str:
        """Where the node of that id listens. Raises `ConfigError` if no socket can have the path.

        A socket that a dead node has left there goes when its id is claimed or its file removed.
        """
        path = str(self._socket(check_whole("id", id, 1, 65535)))
        size = len(os.fsencode(path))
        if size > _UNIX_PATH_BYTES:
            raise ConfigError(
                f"the path {path!r} of a unix socket would have {size} bytes and the system allows "
                f"{_UNIX_PATH_BYTES}; choose a shorter name, or set XDG_RUNTIME_DIR (or give a "
                "directory) with a shorter path",
                setting="directory",
                value=path,
            )
        return path

    def _draw(self) -> int:
        for _ in range(_DRAWS):
            # From the system: a forked process would go on with the random numbers of its parent.
            drawn = secrets.choice(DRAWN)
            if not self._path(drawn).exists() and self._place(drawn, 0.0):
                return drawn
        raise ConfigError(
            f"no id is free in {self.directory}: {_DRAWS} were tried; give the node an id below "
            f"{DRAWN.start}",
            setting="id",
        )

    def _take(self, id: int) -> int:
        if self._place(id, _CLAIM_PATIENCE):
            return id
        holder = _parse(self._examine(self._path(id)) or b"")
        who = f"the node at {holder.address}" if holder else "another node, just starting,"
        raise DuplicateNode(
            f"id {id} is taken: {who} has it in {self.directory}; choose another id, or give none "
            "and one is drawn",
            id=id,
            other=holder.address if holder else None,
        )

    def _place(self, id: int, patience: float) -> bool:
        """Puts a locked file where that of the id belongs; False if a living node's is there."""
        path = self._path(id)
        unborn = self.directory / f"{_UNBORN}{secrets.token_hex(8)}"
        before = self._handles.get("lock")
        self._keep("lock", lambda: Descriptor(os.open(unborn, _CREATE, 0o600)))
        lock = self._handles["lock"]
        placed = False
        try:
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            placed = self._link(unborn, path, time.monotonic() + patience)
        finally:
            unborn.unlink(missing_ok=True)
            with not_forking():
                if not placed:
                    lock.close()
                    del self._handles["lock"]
                    if before is not None:
                        self._handles["lock"] = before
        if not placed:
            return False
        if before is not None:
            before.close()
        # inotify names a file as it was opened, and nobody knows the name under which it was made.
        line = self._handles.get("line")
        self._keep("line", lambda: Descriptor(os.open(path, os.O_WRONLY | _OPEN)))
        if line is not None:
            line.close()
        with contextlib.suppress(OSError):
            self._socket(id).unlink()
        return True

    def _link(self, unborn: Path, path: Path, deadline: float) -> bool:
        buried = 0
        while True:
            try:
                os.link(unborn, path)
                return True
            except FileExistsError:
                # The lock may be that of somebody who is removing the file at this moment.
                if self._examine(path) is None and buried < 100:
                    buried += 1
                elif time.monotonic() < deadline:
                    time.sleep(0.01)
                else:
                    return False

    def _path(self, id: int) -> Path:
        return self.directory / f"{id}.node"

    def _socket(self, id: int) -> Path:
        return self.directory / f"{id}.sock"

    def _prepare(self) -> None:
        for directory in (self._base, self.directory):
            _make_private(directory)

    # --- our own file -----------------------------------------------------------------------

    def _open(self, me: Member) -> None:
        self.claim(me.id)
        self._watch()

    def _tell(self, me: Member) -> float:
        facts = {
            "id": me.id,
            "incarnation": me.incarnation,
            "address": me.address,
            "version": me.version,
        }
        text = json.dumps(facts).encode()
        line = b"%b %08x\n" % (text, zlib.crc32(text))
        file = self._handles["line"].fileno()
        try:
            os.pwrite(file, line, 0)
        except OSError as error:
            raise self._refusal("nothing can be written", error) from error
        if os.fstat(file).st_size > len(line):
            os.ftruncate(file, len(line))
        return float("inf")

    def _leave(self) -> None:
        if self._id is not None and self._is_ours():
            with contextlib.suppress(OSError):
                self._path(self._id).unlink()

    def _is_ours(self) -> bool:
        """Whether the file with our name is the one that we hold."""
        if self._id is None or "lock" not in self._handles:
            return False
        try:
            there = self._path(self._id).lstat()
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self._handles["lock"].fileno()))

    def _mend(self, now: float) -> None:
        """Puts our file back if somebody has cleaned up: to the others we would be dead."""
        with self._lock:
            if self._state != "running" or self._id is None or self._me is None:
                return
            if self._is_ours():
                # Those who clean up temporary directories go by age.
                if now - self._touched > _TOUCH_EVERY:
                    self._touched = now
                    os.utime(self._handles["lock"].fileno())
                return
            self._prepare()
            if self._place(self._id, 0.0):
                self._tell_at = now  # and again, if it fails
                self._tell_at = self._tell(self._me)
                self._complain(
                    "mended",
                    f"somebody has removed {self._path(self._id)}; it was made again, but a socket "
                    "removed with it is not: restart this process if others cannot reach it",
                )
            else:
                self._complain(
                    "taken",
                    f"somebody has removed {self._path(self._id)}, and another node has taken id "
                    f"{self._id} since; others do not find this one any more",
                )

    # --- the others -------------------------------------------------------------------------

    def _turn(self, now: float) -> float:
        names, closed = self._events()
        doubtful = self._doubtful | dict.fromkeys(closed, now + _DOUBT)
        if now >= self._next_scan:
            self._mend(now)
            if not self._watched:
                self._watch()
            names |= self._scan()
            self._next_scan = now + self._interval
        self._doubtful = {}
        for name in names | doubtful.keys():
            found = _FILE.fullmatch(name)
            if not found or int(found[1]) == self._id:
                continue
            state = self._look(name, int(found[1]))
            until = doubtful.get(name, now + _DOUBT if state == "torn" else now)
            if state != "dead" and now < until:
                self._doubtful[name] = until
            elif state == "torn":
                self._complain(name, f"{self.directory / name} does not describe a node; ignored")
        self._settle(self._table)
        if self._doubtful:
            return min(self._next_scan, time.monotonic() + _LOOK_AGAIN)
        return self._next_scan

    def _scan(self) -> set[str]:
        """Names of all that is there or was."""
        names = {f"{known}.node" for known in self._table}
        for name in os.listdir(self.directory):  # noqa: PTH208 - only names are wanted
            if _FILE.fullmatch(name):
                names.add(name)
            elif name.startswith(_UNBORN):
                self._sweep(self.directory / name)
        return names

    def _sweep(self, path: Path) -> None:
        """A node that died between two system calls leaves a file that never got its name."""
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > _UNBORN_AGE:
                path.unlink()

    def _look(self, name: str, id: int) -> Literal["dead", "alive", "torn"]:
        """Brings the table up to date for one file."""
        line = self._examine(self.directory / name)
        if not line:
            # A node never empties its line: where none is, the next node has taken the id.
            self._table.pop(id, None)
            return "dead" if line is None else "alive"
        member = _parse(line)
        if member is None or member.id != id:
            return "torn"
        self._table[id] = member
        return "alive"

    def _examine(self, path: Path) -> bytes | None:
        """What a living node has written to its file. None if there is no such node.

        A dead one's file is removed, with its socket. A name goes only by the hand that holds the
        lock of the file behind it: so the file that is unlinked is the one that was looked at, and
        never its successor.
        """
        try:
            with not_forking():  # a child would hold the lock for as long as it lives
                file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _OPEN)
                try:
                    if not _lock(file):
                        return os.read(file, _LINE_BYTES)
                    with contextlib.suppress(OSError):
                        if os.path.samestat(path.lstat(), os.fstat(file)):
                            path.with_suffix(".sock").unlink(missing_ok=True)
                            path.unlink()
                    return None
                finally:
                    os.close(file)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._complain(path.name, f"{path} cannot be read and is ignored: {error}")
            return b""

    def _complain(self, key: str, text: str) -> None:
        if key not in self._complained:
            self._complained.add(key)
            log.warning("%s", text)

    # --- inotify ----------------------------------------------------------------------------

    def _watch(self) -> None:
        """Without inotify there is still the look at all files once per interval."""
        try:
            if "inotify" not in self._handles:
                self._keep("inotify", lambda: Descriptor(_inotify("init1", _NONBLOCK)))
            watcher = self._handles["inotify"].fileno()
            _inotify("add_watch", watcher, os.fsencode(self.directory), _MASK)
            self._watched = True
        except (OSError, AttributeError) as error:
            self._complain(
                "inotify",
                f"no inotify for {self.directory} ({error}): others are noticed after up to "
                f"{self._interval:g} s; see fs.inotify.max_user_instances",
            )

    def _events(self) -> tuple[set[str], set[str]]:
        """Names that something happened to; and of those, the ones that were closed by a writer.

        Never blocks.
        """
        names: set[str] = set()
        closed: set[str] = set()
        data = b""
        if "inotify" in self._handles:
            with contextlib.suppress(BlockingIOError):
                data = os.read(self._handles["inotify"].fileno(), 65536)
        at = 0
        while at < len(data):
            _, mask, _, length = struct.unpack_from("iIII", data, at)
            name = os.fsdecode(data[at + 16 : at + 16 + length].rstrip(b"\0"))
            at += 16 + length
            names.add(name)
            if mask & _CLOSED:  # which comes just before the lock is free
                closed.add(name)
            if mask & (_OVERFLOW | _MOVED | _IGNORED):
                self._next_scan = 0.0
            if mask & (_MOVED | _IGNORED):  # the directory itself was moved away or removed
                self._watched = False
        return names, closed


# Of inotify: modified, closed after writing, moved away, moved in, created, deleted.
_CLOSED, _MOVED, _OVERFLOW, _IGNORED, _ONLY_DIRECTORY = 0x8, 0x800, 0x4000, 0x8000, 0x01000000
_MASK = 0x2 | _CLOSED | 0x40 | 0x80 | 0x100 | 0x200 | _MOVED | _ONLY_DIRECTORY

_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN
_NONBLOCK = os.O_NONBLOCK | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


def _inotify(call: str, *arguments: int | bytes) -> int:
    result: int = getattr(_libc, f"inotify_{call}")(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _default_base() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    # Another user's, as after su, is not ours to put things into.
    with contextlib.suppress(OSError):
        if runtime.startswith("/") and Path(runtime).stat().st_uid == os.geteuid():
            return Path(runtime) / "antiphon"
    return Path(tempfile.gettempdir()).absolute() / f"antiphon-{os.geteuid()}"


def _make_private(directory: Path) -> None:
    """Makes the directory unless it is there; raises `ConfigError` if others have a say in it."""

    def bad(why: str) -> ConfigError:
        return ConfigError(
            f"the directory {directory} {why}", setting="directory", value=str(directory)
        )

    try:
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        there = directory.lstat()
    except OSError as error:
        raise bad(
            f"cannot be made ({error.strerror}); make it with mode 0700, or give another one"
        ) from error
    if not stat.S_ISDIR(there.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(there.st_mode) else "no directory"
        raise bad(f"is {kind}; remove it, or set XDG_RUNTIME_DIR to a directory of your own")
    if there.st_uid != os.geteuid():
        raise bad(
            f"belongs to uid {there.st_uid} and this process is uid {os.geteuid()}; set "
            "XDG_RUNTIME_DIR to a directory of your own, or have that one removed"
        )
    if there.st_mode & 0o077:
        raise bad(
            f"has mode {stat.S_IMODE(there.st_mode):04o}, so others may enter; run "
            f"chmod 700 {directory}"
        )


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _parse(data: bytes) -> Member | None:
    """The member in a line; None if the line is not whole."""
    line, end, _ = data.partition(b"\n")
    text, _, checksum = line.rpartition(b" ")
    if not end or checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        facts = json.loads(text)
        member = Member(facts["id"], facts["incarnation"], facts["address"], facts["version"])
    except (ValueError, KeyError, TypeError):
        return None
    numbers = (member.id, member.incarnation, member.version)
    whole = all(type(number) is int and 0 <= number < 2**64 for number in numbers)
    return member if whole and acceptable_address(member.address) else None
