"""The store of recorded topics from Python: what a broker and its tools rely on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from antiphon.broker.store import Store, check_store
from antiphon.errors import Closed, ConfigError, MessageTooLarge, QueueFull, WouldBlock
from antiphon.testing import Child, Control


def test_what_is_appended_is_read_back_with_everything_that_belongs_to_it(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        receipt = store.append(
            "plant/7/temp", [b"31.5", b""], properties=b"\x80", time_ns=5, source=9
        )
        assert (receipt.sequence, receipt.count, receipt.duplicates) == (1, 2, 0)
        (batch,) = iter(store.reader("plant/7/temp").read, None)
        assert batch.epoch == store.epoch == 1
        assert [record.sequence for record in batch.records] == [1, 2]
        first = batch.records[0]
        assert (first.data, first.properties, first.time_ns, first.source) == (
            b"31.5",
            b"\x80",
            5,
            9,
        )
        assert store.topics() == ["plant/7/temp"]
        info = store.log("plant/7/temp")
        assert (info.first, info.next, info.records, info.findings) == (1, 3, 2, ())
    with Store(tmp_path / "store") as store:
        assert store.epoch == 2
        assert store.append("plant/7/temp", b"x").sequence == 3
        assert [record.data for record in store.reader("plant/7/temp")] == [b"31.5", b"", b"x"]


@pytest.mark.parametrize("topic", ["a", "..", "/", "ä\n", "x" * 4000, "\udcff", "a/../../b", "%41"])
def test_any_topic_has_a_log_below_the_store(tmp_path: Path, topic: str) -> None:
    with Store(tmp_path / "store") as store:
        store.append(topic, b"x")
        assert store.topics() == [topic]
        assert [record.data for record in store.reader(topic)] == [b"x"]
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert {path.name for path in (tmp_path / "store").iterdir()} == {"lock", "store", "topics"}


@pytest.mark.parametrize("topic", ["", "x" * 5000])
def test_a_topic_that_cannot_be_recorded_says_so(tmp_path: Path, topic: str) -> None:
    with Store(tmp_path / "store") as store, pytest.raises(ConfigError, match=f"{len(topic)}"):
        store.append(topic, b"x")


def test_a_second_process_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "store"
    code = "import sys; from antiphon.broker.store import Store; Store(sys.argv[1])"

    def second() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, path],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    with Store(path) as store:
        store.append("t", b"x")
        refused = second()
        assert refused.returncode == 1
        assert f"is in use by process {os.getpid()}" in refused.stderr
        with pytest.raises(ConfigError, match="in use"):  # nor in this one
            Store(path)
        with Store(path, read_only=True) as looking:
            assert [record.data for record in looking.reader("t")] == [b"x"]
            with pytest.raises(Closed):
                looking.append("t", b"y")
        assert check_store(path).in_use
    assert second().returncode == 0


def test_a_directory_that_is_no_store_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    for read_only in (False, True):
        with pytest.raises(ConfigError, match="no store"):
            Store(tmp_path, read_only=read_only)
    assert [path.name for path in tmp_path.iterdir()] == ["letter"]
    with pytest.raises(OSError, match="nowhere"):
        Store(tmp_path / "nowhere" / "store")


def test_settings_that_make_no_sense_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fsync"):
        Store(tmp_path / "store", fsync="sometimes")  # type: ignore[arg-type]
    for setting, value in (
        ("interval", -0.1),
        ("interval", float("nan")),
        ("keep_age", float("inf")),
        ("segment_bytes", 0),
        ("segment_records", -1),
        ("queue_bytes", 1 << 70),
        ("max_open", 0),
    ):
        with pytest.raises(ConfigError, match=setting) as refused:
            Store(tmp_path / "store", **{setting: value})  # type: ignore[arg-type]
        assert refused.value.setting == setting
    assert list(tmp_path.iterdir()) == []


def test_readers_begin_where_they_are_told(tmp_path: Path) -> None:
    with Store(tmp_path / "store", fsync="none") as store:
        for number in range(10):
            store.append("t", b"%d" % number, time_ns=100 * number)

        def read(*arguments: object, **named: int) -> list[bytes]:
            return [record.data for record in store.reader("t", *arguments, **named)]  # type: ignore[arg-type]

        assert read() == read("earliest") == read(0) == [b"%d" % number for number in range(10)]
        assert read(8) == [b"7", b"8", b"9"]
        assert read(time_ns=750) == [b"8", b"9"]
        assert read("latest") == read(100) == []
        packed = store.reader("t", 6).read_packed()
        assert packed is not None
        sequences, offsets, data, missed, damage = packed
        assert memoryview(sequences).cast("Q").tolist() == [6, 7, 8, 9, 10]
        assert memoryview(offsets).cast("q").tolist() == [0, 1, 2, 3, 4, 5]
        assert (data, missed, damage) == (b"56789", 0, "")


def test_a_reader_waits_for_more_and_is_woken_by_closing(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", fsync="none")
    reader = store.reader("t")
    assert reader.read(0.01) is None
    got: list[bytes] = []
    ended = threading.Event()

    def follow() -> None:
        try:
            while True:
                batch = reader.read(60.0)
                assert batch is not None
                got.extend(record.data for record in batch.records)
        except Closed:
            ended.set()

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(100):
        store.append("t", b"%d" % number)
    store.close()
    assert ended.wait(30)
    thread.join()
    assert got == [b"%d" % number for number in range(100)]
    with pytest.raises(Closed):
        store.append("t", b"x")


def test_what_is_read_in_pieces_stops_where_records_are_missing_and_loses_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store"
    with Store(path, fsync="none", segment_bytes=2_000) as store:
        for number in range(100):
            store.append("t", b"%03d" % number + bytes(197))
    segments = sorted((path / "topics" / "t").glob("*.log"))
    segments[2].unlink()
    content = bytearray(segments[5].read_bytes())
    content[content.index(b"APBT", content.index(b"APBT") + 1) + 100] ^= 1
    segments[5].write_bytes(content)
    with Store(path, read_only=True) as store:
        reader = store.reader("t")
        pieces = list(iter(reader.read_packed, None))
        sequences = [n for piece in pieces for n in memoryview(piece[0]).cast("Q").tolist()]
        assert sequences == sorted(set(sequences))
        assert len(pieces) == 3
        (lost,) = [piece[3] for piece in pieces if piece[3]]
        assert len(sequences) + lost + 1 == 100
        (damage,) = [piece[4] for piece in pieces if piece[4]]
        assert str(segments[5]) in damage
        assert [record.sequence for record in store.reader("t")] == sequences


def test_a_store_that_is_closed_opens_no_log_and_repairs_none(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.append("t", b"x")
    reader = store.reader("t")
    store.close()
    assert [record.data for record in reader] == [b"x"]  # what was open can be read still
    for call in (store.log, store.reader, store.appender):
        with pytest.raises(Closed):
            call("other")


def test_a_reader_is_for_one_thread_at_a_time(tmp_path: Path) -> None:
    with Store(tmp_path / "store", fsync="none") as store:
        reader = store.reader("t")
        got: list[bytes] = []

        def follow() -> None:
            batch = reader.read(60.0)
            assert batch is not None
            got.extend(record.data for record in batch.records)

        thread = threading.Thread(target=follow)
        thread.start()
        refused = False
        deadline = time.monotonic() + 30
        while not refused and time.monotonic() < deadline:
            try:
                reader.read()
            except WouldBlock:
                refused = True
        store.append("t", b"x")
        thread.join()
        assert refused
        assert got == [b"x"]
        assert reader.read() is None


def test_threads_that_wait_for_receipts_of_one_appender_are_each_woken(tmp_path: Path) -> None:
    with Store(tmp_path / "store", fsync="always") as store:
        appender = store.appender("t")
        taken: list[float] = []

        def append() -> None:
            for _ in range(25):
                began = time.monotonic()
                appender.wait(appender.submit(b"x", timeout=10.0))
                taken.append(time.monotonic() - began)

        append()  # nobody else waits: what the disk takes
        alone = sorted(taken)[12]
        taken.clear()
        workers = [threading.Thread(target=append) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(taken) == 100
        # Signals are looked for every 100 ms; a waiter that is not woken takes as long. One that is
        # waits for what is being synced, and then for its own.
        assert sorted(taken)[50] < 0.09 + 2 * alone


def test_a_queue_that_is_full_and_a_record_that_cannot_fit_say_so(tmp_path: Path) -> None:
    with Store(tmp_path / "store", queue_bytes=100_000) as store:
        with pytest.raises(MessageTooLarge):
            store.append("t", bytes(200_000))
        appender = store.appender("t", capacity=2)
        tokens = [appender.submit(b"x"), appender.submit(b"y")]
        with pytest.raises(QueueFull):
            appender.submit(b"z")  # two receipts were not taken
        assert [receipt.token for receipt in appender.flush()] == tokens
        appender.submit(b"z")
        (receipt,) = appender.flush()
        assert receipt.sequence == 3


def test_a_producer_that_repeats_itself_after_a_restart_is_heard_once(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        store.append("t", [b"1", b"2"], producer=7, producer_sequence=1)
    with Store(tmp_path / "store") as store:
        again = store.append("t", [b"2", b"3"], producer=7, producer_sequence=2)
        assert (again.count, again.duplicates, again.sequence) == (1, 1, 3)
        assert [record.data for record in store.reader("t")] == [b"1", b"2", b"3"]


def limited(control: Control, path: str) -> None:
    """No file may grow beyond 100 KB: what a disk without space does, without a disk."""
    import resource

    from antiphon.broker.store import Store
    from antiphon.errors import StoreFull

    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    with Store(path, fsync="always") as store:
        taken = 0
        try:
            while True:
                store.append("t", b"%d" % taken + bytes(20_000))
                taken += 1
        except StoreFull as full:
            said = (str(full), full.path)
        # The segment could not grow; the next one has room, as one has that follows a clean-up.
        reads = len(list(store.reader("t")))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        while True:
            try:
                store.append("t", b"again")
                break
            except StoreFull:
                pass
        control.tell("done", taken=taken, said=said, reads=reads)


def test_a_full_disk_is_store_full_then_it_goes_on(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    with Child(limited, path=path) as child:
        done = child.expect("done", 60)
        assert child.wait() == 0
    assert done["taken"] >= 3
    assert done["reads"] == done["taken"]
    assert done["said"][1] == path
    assert "no space left" in done["said"][0]
    assert not check_store(path).damaged
    with Store(path) as store:
        assert [record.data for record in store.reader("t")][-1] == b"again"
        assert store.log("t").records == done["taken"] + 1


@pytest.mark.needs("netns")
def test_a_small_file_system_fills_up_and_is_freed(tmp_path: Path) -> None:
    """A real file system of one megabyte, mounted in a namespace of its own."""
    script = f"""
import os
from antiphon.broker.store import Store
from antiphon.errors import StoreFull
path = {str(tmp_path)!r}
with Store(path + "/store", fsync="interval", segment_bytes=100_000) as store:
    ballast = path + "/ballast"
    with open(ballast, "wb") as file:
        file.write(bytes(400_000))
    taken = 0
    try:
        while True:
            store.append("t", bytes(10_000))
            taken += 1
    except StoreFull as full:
        print(full)
    assert len(list(store.reader("t"))) == taken
    os.unlink(ballast)
    for _ in range(1000):
        try:
            store.append("t", b"again")
            break
        except StoreFull:
            pass
    records = list(store.reader("t"))
    assert len(records) == taken + 1, (len(records), taken)
    print("taken", taken)
"""
    mounted = f'mount -t tmpfs -o size=1m none {tmp_path} && exec {sys.executable} -c "$SCRIPT"'
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    done = subprocess.run(
        [*unshare, "sh", "-c", mounted],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "SCRIPT": script},
    )
    assert done.returncode == 0, done.stderr
    assert "no space left" in done.stdout
    assert int(done.stdout.split()[-1]) >= 20


def test_few_descriptors_serve_many_topics(tmp_path: Path) -> None:
    with Store(tmp_path / "store", max_open=5, fsync="none") as store:
        for number in range(50):
            store.append(f"topic/{number}", b"x")
        assert store.statistics()["open_files"] <= 5
        assert store.statistics()["logs"] == 50
        assert len(store.topics()) == 50
        assert _open_below(tmp_path) <= 7


def _open_below(path: Path) -> int:
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists
            count += descriptor.readlink().is_relative_to(path)
    return count


def forks(control: Control, path: str) -> None:
    import os

    from antiphon.broker.store import Store
    from antiphon.errors import Closed

    with Store(path) as store:
        store.append("t", b"x")
        reader = store.reader("t")
        child = os.fork()
        if child == 0:
            refused = 0
            for call in (lambda: store.append("t", b"y"), reader.read, store.close):
                try:
                    call()
                except Closed as error:
                    refused += "fork" in str(error)
            del store, reader
            os._exit(refused)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        control.tell("done", refused=status, next=store.append("t", b"z").sequence)


def test_a_forked_child_is_refused_and_harms_nobody(tmp_path: Path) -> None:
    with Child(forks, path=str(tmp_path / "store")) as child:
        done = child.expect("done")
        assert (done["refused"], done["next"]) == (3, 2)
        assert child.wait() == 0
    assert not check_store(tmp_path / "store").damaged


def test_old_segments_are_dropped_and_readers_hear_how_many_records_those_were(
    tmp_path: Path,
) -> None:
    with Store(tmp_path / "store", fsync="none", segment_bytes=10_000, keep_bytes=50_000) as store:
        slow = store.reader("t")
        for number in range(1000):
            store.append("t", b"%d" % number + bytes(200))
        assert store.log("t").bytes < 70_000
        batch = slow.read()
        assert batch is not None
        kept = len(batch.records) + len(list(slow))
        assert batch.missed + kept == 1000
        assert len(list((tmp_path / "store" / "topics" / "t").glob("*.log"))) < 10


@pytest.mark.parametrize("fsync", ["none", "interval", "always"])
def test_many_threads_append_and_read_at_once(tmp_path: Path, fsync: str) -> None:
    threads, each = 8, 50
    failed: list[BaseException] = []
    with Store(tmp_path / "store", fsync=fsync, interval=0.001) as store:  # type: ignore[arg-type]

        def append(producer: int) -> None:
            try:
                for number in range(1, each + 1):
                    receipt = store.append(
                        "t", b"%d" % number, producer=producer, producer_sequence=number
                    )
                    assert receipt.count == 1
            except BaseException as error:
                failed.append(error)

        def read() -> None:
            try:
                reader, got, last = store.reader("t"), 0, 0
                while got < threads * each:
                    batch = reader.read(30.0)
                    assert batch is not None
                    for record in batch.records:
                        assert record.sequence > last
                        last = record.sequence
                        got += 1
            except BaseException as error:
                failed.append(error)

        workers = [threading.Thread(target=append, args=(n + 1,)) for n in range(threads)]
        workers += [threading.Thread(target=read) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not failed
        statistics = store.statistics()
        assert statistics["appended"] == threads * each
        if fsync != "none":
            assert statistics["syncs"] <= threads * each
