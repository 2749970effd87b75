"""What the SQLite store promises beyond the common suite: few reads, typed errors, files left alone."""

from __future__ import annotations

import contextlib
import os
import random
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import everthread
from everthread.errors import (
    ConflictError,
    InvalidValueError,
    NotAStoreError,
    NotFoundError,
    SchemaVersionError,
    StateCorruptedError,
    StorageWriteError,
    StoreBusyError,
    StoreUnavailableError,
    ThreadDeletedError,
    ThreadExistsError,
    UnsupportedError,
    UsageError,
)
from everthread.history import packs
from everthread.stores.sqlite import schema
from everthread.stores.sqlite import sealed as erasures
from tests.unit.stores.tracing import traced


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def opening(path: Path) -> Iterator[Callable[..., everthread.Store]]:
    """Opens the store at ``path``, with options of the URL; closes all of them at the end."""
    stores = []

    def open_(query: str = "", **options: Any) -> everthread.Store:
        store = everthread.open(f"sqlite:///{path}{query}", **{"durability": "process", **options})
        stores.append(store)
        return store

    yield open_
    for store in stores:
        store.close()


def say(thread: everthread.Thread, number: int, size: int = 200) -> None:
    """One commit with one message."""
    thread.state["count"] = number
    thread.state[f"key {number % 10}"] = number
    thread.messages.append({"id": f"m{number}", "role": "user", "content": "x" * size})
    thread.commit()


def ids(log: Any) -> list[str]:
    return [item["id"] for item in log]


# ── how much is read ─────────────────────────────────────────────────────────────────────────────


class Reads:
    """Counts the rows that SQLite hands out, and their bytes."""

    def __init__(self) -> None:
        self.rows = self.bytes = 0

    def watch(self, connection: apsw.Connection) -> None:
        connection.row_trace = self._row

    def _row(self, cursor: apsw.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
        self.rows += 1
        self.bytes += sum(len(value) for value in row if isinstance(value, bytes | str))
        return row

    @contextlib.contextmanager
    def counted(self) -> Iterator[Reads]:
        self.rows = self.bytes = 0
        yield self


@pytest.fixture
def reads() -> Iterator[Reads]:
    counter = Reads()
    apsw.connection_hooks.append(counter.watch)
    yield counter
    apsw.connection_hooks.remove(counter.watch)


def resume(opening: Callable[..., everthread.Store], reads: Reads) -> tuple[int, int]:
    """The rows and bytes that a new process reads for the document and the last 20 messages."""
    store = opening()
    with reads.counted():
        thread = store.thread("a")
        thread.state.plain()
        assert len(thread.messages[-20:]) == 20
    store.close()
    return reads.rows, reads.bytes


#: Single records that wait for their fold (64), packs since the last keyframe (8), and what finds them.
ROWS_MAX = 64 + 8 + 6


def test_resuming_reads_a_bounded_number_of_rows(
    opening: Callable[..., everthread.Store], reads: Reads
) -> None:
    thread = opening().thread("a")
    done = 0
    measured = {}
    # The same place within the cycle of folds and keyframes, and some others.
    for size in (100, 612, 640, 1000, 1124, 2000, 3777, 5000, 5220):
        for number in range(done, size):
            say(thread, number)
        done = size
        measured[size] = resume(opening, reads)
    for size, (rows, bytes_) in measured.items():
        assert rows <= ROWS_MAX, measured
        assert bytes_ < 40_000, measured
        assert ids(thread.messages[-20:]) == [f"m{n}" for n in range(done - 20, done)], size
    assert measured[5220][0] <= measured[100][0] + 8, "only the packs since the last keyframe may differ"


def test_a_middle_slice_reads_only_its_chunks(opening: Callable[..., everthread.Store], reads: Reads) -> None:
    thread = opening().thread("a")
    for number in range(2000):
        say(thread, number)
    read = opening().thread("a")
    assert len(read.messages) == 2000
    for start in (0, 63, 500, 1000, 1500):
        with reads.counted():
            assert ids(read.messages[start : start + 20]) == [f"m{n}" for n in range(start, start + 20)]
        assert 1 <= reads.rows <= 2, start
        assert reads.bytes < 5_000
    with reads.counted():
        assert read.messages.find("m700") == 700
    assert reads.rows <= ROWS_MAX


def test_a_huge_commit_does_not_spoil_later_openings(
    opening: Callable[..., everthread.Store], reads: Reads
) -> None:
    thread = opening().thread("a")
    for number in range(100):
        say(thread, number)
    noise = [os.urandom(150).hex() for _ in range(5000)]
    thread.messages.extend([{"id": f"b{n}", "content": text} for n, text in enumerate(noise)])
    thread.commit()
    for number in range(100, 400):
        say(thread, number)
        if number in (100, 105, 150, 399):
            rows, bytes_ = resume(opening, reads)
            assert rows <= ROWS_MAX
            # The last 20 messages may lie in the chunk that ends the huge commit, of 256 KB at most.
            assert bytes_ < (400_000 if number < 130 else 60_000), number
    read = opening().thread("a")
    assert [item["content"] for item in read.messages[100:5100]] == noise
    with reads.counted():
        read.messages[2600:2620]
    assert reads.rows <= 2


def test_rewinds_do_not_pile_up(opening: Callable[..., everthread.Store], reads: Reads) -> None:
    thread = opening().thread("a")
    for number in range(70):
        say(thread, number)
    for number in range(600):
        thread.rewind(thread.head.seq - 1 - number % 3)
        if number % 7 == 0:
            say(thread, 1000 + number)
    rows, _ = resume(opening, reads)
    assert rows <= 2 * (ROWS_MAX + 192), "as many as a keyframe waits for"


def test_a_fork_reads_what_its_source_would(opening: Callable[..., everthread.Store], reads: Reads) -> None:
    source = opening().thread("source")
    for number in range(1000):
        say(source, number)
    source.fork("a", at=700)
    rows, _ = resume(opening, reads)
    assert rows <= ROWS_MAX
    store = opening()
    with reads.counted():
        store.thread("source").fork("again")
    assert reads.rows <= ROWS_MAX, "a fork copies nothing"


def test_a_fork_at_an_old_version_is_a_pointer(
    opening: Callable[..., everthread.Store], reads: Reads
) -> None:
    store = opening()
    source = store.thread("source")
    versions = []
    for number in range(300):
        say(source, number)
        versions.append(source.head)
    forks = {}
    for at in (3, 63, 64, 65, 150, 297):
        with reads.counted():
            forks[at] = source.fork(f"at {at}", at=versions[at])
        # The row that holds the version, looking for a journal beside the thread, and that both are there.
        assert reads.rows <= 6, at
    for at, fork in forks.items():
        assert fork.state.plain() == source.at(versions[at]).state.plain()
        assert list(fork.messages) == list(source.at(versions[at]).messages)
        say(fork, 1000 + at)
        again = opening().thread(f"at {at}")
        assert ids(again.messages) == [*ids(source.at(versions[at]).messages), ids(fork.messages)[-1]]
    assert store.verify()


def test_a_fork_at_an_old_version_of_several_logs(opening: Callable[..., everthread.Store]) -> None:
    """One of which had hardly been written to then, or not at all."""
    store = opening()
    source = store.thread("source")
    versions = []
    for number in range(200):
        if number in (20, 90, 91, 150):
            source.log("notes").append({"id": f"n{number}"})
        if number in (91, 120):
            source.messages.truncate_from(f"m{number - 5}")
        source.messages.append({"id": f"m{number}"})
        versions.append(source.commit())
    for at in (10, 19, 20, 21, 89, 90, 91, 92, 93, 120, 150, 151, 198):
        fork = source.fork(f"at {at}", at=versions[at])
        fork.log("notes").append({"id": "new"})
        fork.messages.append({"id": "new"})
        fork.commit()
        past, again = source.at(versions[at]), opening().thread(f"at {at}")
        assert ids(again.messages) == [*ids(past.messages), "new"], at
        assert ids(again.log("notes")) == [*ids(past.log("notes")), "new"], at
    assert store.verify()


def test_a_fork_that_was_deleted_before_anybody_looked_stays_deleted(
    opening: Callable[..., everthread.Store],
) -> None:
    source = opening().thread("source")
    for number in range(5):
        say(source, number)
    fork = source.fork("a", at=source.at(3).version)
    opening().thread("a").delete()
    with pytest.raises(ThreadDeletedError):
        say(fork, 9)
    assert opening().thread("a").head is None


def test_listing_reads_a_row_per_thread(opening: Callable[..., everthread.Store], reads: Reads) -> None:
    store = opening()
    for number in range(60):
        thread = store.thread(f"t{number:02}")
        for turn in range(3):
            say(thread, turn)
    store = opening()
    with reads.counted():
        assert len(list(store.threads())) == 60
    assert reads.rows <= 66
    with reads.counted():
        assert len(list(store.threads(limit=5))) == 5
    assert reads.rows <= 11


# ── opening what can't be opened ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("", UnsupportedError),
        ("mongodb://host", UnsupportedError),
        ("sqlite3:///agent.db", UnsupportedError),
        ("SQLITE:///agent.db", UnsupportedError),
        ("sqlite:", InvalidValueError),
        ("sqlite:agent.db", InvalidValueError),
        ("sqlite://agent.db", InvalidValueError),
        ("sqlite:///", InvalidValueError),
        ("sqlite:///a\0b.db", InvalidValueError),
        ("sqlite:///agent.db?busy=1", InvalidValueError),
        ("sqlite:///agent.db?busy_timeout_ms=soon", InvalidValueError),
        ("sqlite:///agent.db?vfs=nobody", StoreUnavailableError),
        ("sqlite:///no/such/folder/agent.db", StoreUnavailableError),
        (7, InvalidValueError),
    ],
)
def test_a_wrong_url_is_refused(
    url: Any, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        everthread.open(url)
    assert [name for name in os.listdir(tmp_path) if name != "agent.db"] == []


def test_options_of_the_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with everthread.open("sqlite:///my%20agent%3F.db?busy_timeout_ms=1&wal_autocheckpoint=10") as store:
        assert store.url == f"sqlite:///{tmp_path}/my%20agent%3F.db"
    assert (tmp_path / "my agent?.db").exists()
    with pytest.raises(InvalidValueError):
        everthread.open("memory:", durability="sometimes")


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError):
        everthread.open(f"sqlite:///{tmp_path}")
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnavailableError):
        everthread.open(f"sqlite:///{tmp_path}/file/agent.db")
    with pytest.raises(StoreUnavailableError):
        everthread.open(f"sqlite:///{tmp_path}/{'x' * 300}.db")
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_that_may_not_be_read() -> None:
    # Not below pytest's folder, which only its owner may enter.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path = os.path.join(folder, "agent.db")
        everthread.open(f"sqlite:///{path}").close()
        os.chmod(path, 0)
        with _somebody_else(), pytest.raises(StoreUnavailableError):
            everthread.open(f"sqlite:///{path}")


@contextlib.contextmanager
def _somebody_else() -> Iterator[None]:
    """The superuser may read everything, so the test steps down for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def _database(path: Path, *statements: str) -> None:
    db = apsw.Connection(str(path))
    for statement in statements:
        db.execute(statement)
    db.close()


def _unchanged(path: Path, error: type[Exception]) -> Exception:
    """Opening the file raises, and leaves it and its folder as they were."""
    before = {each: each.read_bytes() for each in path.parent.iterdir()}
    with pytest.raises(error) as caught:
        everthread.open(f"sqlite:///{path}")
    assert {each: each.read_bytes() for each in path.parent.iterdir()} == before
    return caught.value


@pytest.mark.parametrize(
    "content",
    [
        b"hello",
        b"\0" * 3,
        b"Plain text, nothing else.\n" * 400,
        b"PK\x03\x04" + bytes(range(256)) * 20,
        b"SQLite format 3\0" + b"\xff" * 84,
        b"SQLite format 3\0" + b"\xff" * 5000,
        b"\0" * 4096,
    ],
)
def test_a_file_that_is_no_database_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    _unchanged(path, NotAStoreError)


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE notes (text)"],
        ["CREATE TABLE notes (text)", "PRAGMA journal_mode = WAL"],
        ["PRAGMA user_version = 1"],
        ["PRAGMA application_id = 77"],
        ["CREATE TABLE line (id INTEGER PRIMARY KEY)", "PRAGMA user_version = 1"],
    ],
)
def test_a_database_of_another_program_is_left_alone(path: Path, statements: list[str]) -> None:
    _database(path, *statements)
    _unchanged(path, NotAStoreError)


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    with everthread.open(f"sqlite:///{path}") as store:
        say(store.thread("a"), 1)
    with everthread.open(f"sqlite:///{path}") as store:
        assert store.thread("a").state["count"] == 1


def test_a_newer_schema_is_left_alone(path: Path, opening: Callable[..., everthread.Store]) -> None:
    store = opening()
    say(store.thread("a"), 1)
    store.close()
    newer = schema.SCHEMA_VERSION + 1
    db = apsw.Connection(str(path))
    db.pragma("user_version", newer)
    db.close()
    error = _unchanged(path, SchemaVersionError)
    assert isinstance(error, SchemaVersionError)
    assert (error.found, error.supported) == (newer, schema.SCHEMA_VERSION)


def test_a_damaged_store_says_so(path: Path, opening: Callable[..., everthread.Store]) -> None:
    store = opening()
    for number in range(300):
        say(store.thread("a"), number)
    store.close()
    content = bytearray(path.read_bytes())
    # The header stays, all else goes.
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StateCorruptedError):
        opening().thread("a").state.plain()
    assert path.read_bytes() == bytes(content)


def test_a_flipped_bit_is_found(path: Path, opening: Callable[..., everthread.Store]) -> None:
    store = opening()
    thread = store.thread("a")
    for number in range(200):
        say(thread, number)
    assert store.verify()
    db = apsw.Connection(str(path))
    for table, column in (("record", "body"), ("chunk", "data")):
        rowid, good = db.execute(f"SELECT id, {column} FROM {table} ORDER BY id LIMIT 1").fetchall()[0]
        bad = bytearray(good)
        bad[len(bad) // 2] ^= 1
        db.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", (bytes(bad), rowid))
        report = opening().verify()
        assert not report.ok, table
        assert all(damage.thread == "a" for damage in report.damage)
        db.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", (good, rowid))
        assert opening().verify(), table
    db.close()


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def test_files_are_private(path: Path, opening: Callable[..., everthread.Store]) -> None:
    umask = os.umask(0)
    try:
        store = opening()
        say(store.thread("a"), 1)
        store.backup(path.with_name("backup.db"))
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    finally:
        os.umask(umask)
    assert {"store.db", "store.db-wal", "store.db-shm", "backup.db"} <= set(modes)
    assert set(modes.values()) == {0o600}, modes


def test_a_closed_store_is_one_file(path: Path, opening: Callable[..., everthread.Store]) -> None:
    store = opening()
    say(store.thread("a"), 1)
    store.thread("a").messages[:]
    store.close()
    left = sorted(each.name for each in path.parent.iterdir())
    assert left in (["store.db"], ["store.db", "store.db-lock"])


def test_pragmas(path: Path, opening: Callable[..., everthread.Store]) -> None:
    for durability, level in (("full", 2), ("process", 1)):
        store = opening(durability=durability)
        say(store.thread(durability), 1)
        with store.core.backend._connections as db:  # type: ignore[attr-defined]
            assert db.pragma("synchronous") == level
            assert db.pragma("journal_mode") == "wal"
            assert db.pragma("foreign_keys") == 1
            assert db.pragma("application_id") == schema.APPLICATION_ID
            assert db.pragma("user_version") == schema.SCHEMA_VERSION == len(schema.MIGRATIONS)


# ── backup and restore ───────────────────────────────────────────────────────────────────────────


def test_a_backup_is_a_store_of_its_own(path: Path, opening: Callable[..., everthread.Store]) -> None:
    store = opening()
    thread = store.thread("a")
    for number in range(150):
        say(thread, number)
    backup = path.with_name("backup.db")
    store.backup(backup)
    say(thread, 150)
    assert sorted(each.name for each in path.parent.iterdir() if each.name.startswith("backup")) == [
        "backup.db"
    ]
    with everthread.open(f"sqlite:///{backup}") as copy:
        assert len(copy.thread("a").messages) == 150
        assert copy.verify()
        say(copy.thread("a"), 999)
    assert ids(thread.messages[-1:]) == ["m150"]


def test_a_backup_overwrites_nothing(path: Path, opening: Callable[..., everthread.Store]) -> None:
    store = opening()
    say(store.thread("a"), 1)
    taken = path.with_name("taken")
    taken.write_text("mine")
    for wrong, error in (
        (taken, UsageError),
        (path, UsageError),
        (path.parent / "no" / "x", StoreUnavailableError),
    ):
        with pytest.raises(error):
            store.backup(wrong)
    assert taken.read_text() == "mine"
    assert store.thread("a").state["count"] == 1


def test_a_restore_replaces_everything(path: Path, opening: Callable[..., everthread.Store]) -> None:
    store = opening()
    for number in range(90):
        say(store.thread("a"), number)
    backup = path.with_name("backup.db")
    store.backup(backup)
    other = opening()
    watching, stale = other.thread("a"), other.thread("a")
    stale.state["stale"] = 1
    watching.state.plain()
    for number in range(90, 170):
        say(store.thread("a"), number)
    say(store.thread("b"), 1)
    store.restore(backup)
    for each in (store, other, opening()):
        assert [found.name for found in each.threads()] == ["a"]
        assert ids(each.thread("a").messages) == [f"m{n}" for n in range(90)]
        assert each.verify()
    say(store.thread("a"), 500)
    with pytest.raises(ConflictError):
        stale.commit()
    watching.refresh()
    assert watching.state["count"] == 500
    assert ids(watching.messages)[-2:] == ["m89", "m500"]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_handles_of_another_future_are_refused(
    count: int, path: Path, opening: Callable[..., everthread.Store]
) -> None:
    """After a restore numbers are given again; whoever remembers the other version of one must notice."""
    store, other = opening(), opening()
    for number in range(10):
        say(store.thread("a"), number)
    backup = path.with_name("backup.db")
    store.backup(backup)
    thread = store.thread("a")
    say(thread, 10)
    ahead = other.thread("a")
    assert ahead.head.seq == 11
    ahead.messages.append({"id": "m10", "role": "user", "content": "x" * 200})
    assert not ahead.dirty, "the other store knows the ids of that future"
    store.restore(backup)
    for number in range(77, 77 + count):
        say(store.thread("a"), number)
    ahead.state["late"] = 1
    with pytest.raises(ConflictError):
        ahead.commit()
    fresh = other.thread("a")
    assert fresh.state.plain() == opening().thread("a").state.plain()
    assert ids(fresh.messages) == [f"m{n}" for n in (*range(10), *range(77, 77 + count))]
    fresh.messages.append({"id": "m10", "content": "never was"})
    fresh.commit()
    assert ids(opening().thread("a").messages)[-2:] == [f"m{76 + count}", "m10"]


def _newer(backup: Path) -> None:
    db = apsw.Connection(str(backup))
    db.pragma("user_version", schema.SCHEMA_VERSION + 1)
    db.close()


def _cut(backup: Path) -> None:
    backup.write_bytes(backup.read_bytes()[:-5000])


def _scribbled(backup: Path) -> None:
    content = bytearray(backup.read_bytes())
    content[8192:12288] = b"\xa5" * 4096
    backup.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (Path.unlink, StoreUnavailableError),
        (lambda backup: backup.write_text("not a database, " * 100), NotAStoreError),
        (lambda backup: backup.write_text("x"), NotAStoreError),
        (lambda backup: (backup.unlink(), _database(backup, "CREATE TABLE t (x)")), NotAStoreError),
        (lambda backup: backup.write_bytes(b""), NotAStoreError),
        (_newer, SchemaVersionError),
        (_cut, StateCorruptedError),
        (_scribbled, StateCorruptedError),
    ],
)
def test_a_bad_backup_changes_nothing(
    spoil: Callable[[Path], Any], error: type[Exception], path: Path, opening: Callable[..., everthread.Store]
) -> None:
    store = opening()
    for number in range(100):
        say(store.thread("a"), number)
    backup = path.with_name("backup.db")
    store.backup(backup)
    say(store.thread("a"), 100)
    spoil(backup)
    with pytest.raises(error):
        store.restore(backup)
    for each in (store, opening()):
        assert len(each.thread("a").messages) == 101
        assert each.verify()
    say(store.thread("a"), 101)


# ── waiting ──────────────────────────────────────────────────────────────────────────────────────


def test_a_locked_database_is_busy_and_nothing_is_lost(
    path: Path, opening: Callable[..., everthread.Store]
) -> None:
    store = opening("?busy_timeout_ms=30")
    thread = store.thread("a")
    say(thread, 1)
    blocker = apsw.Connection(str(path))
    blocker.execute("BEGIN IMMEDIATE")
    thread.state["more"] = 1
    for verb in (thread.commit, lambda: store.thread("a").fork("b"), lambda: store.thread("a").delete()):
        with pytest.raises(StoreBusyError):
            verb()
    assert thread.dirty
    assert store.thread("a").state["count"] == 1, "reading never waits"
    blocker.execute("ROLLBACK")
    blocker.close()
    assert thread.commit().seq == 2
    assert [found.name for found in opening().threads()] == ["a"]


def test_what_is_written_while_a_restore_begins_counts(
    path: Path, opening: Callable[..., everthread.Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = opening(), opening()
    say(store.thread("a"), 1)
    store.backup(str(path) + ".backup")
    late = other.thread("late")
    looks: list[int] = []

    def carry_over(target: apsw.Connection, source: apsw.Connection) -> bool:
        if not looks:
            say(late, 1)
        looks.append(1)
        return real(target, source)

    real = erasures.carry_over
    monkeypatch.setattr(erasures, "carry_over", carry_over)
    store.restore(str(path) + ".backup")
    assert len(looks) == 2, "it looked again"
    new = store.thread("new")
    say(new, 1)
    assert new.handle.line.id > late.handle.line.id, "no handle finds another thread under its line's id"
    assert store.verify()


# ── a failing disk ───────────────────────────────────────────────────────────────────────────────


class FailingVFS(apsw.VFS):
    """A file system whose n-th write or sync from now on fails, once."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "")
        self.countdown = 0
        self.error: type[Exception] = apsw.IOError
        self.failed = False

    def arm(self, calls: int, error: type[Exception]) -> None:
        self.countdown, self.error, self.failed = calls, error, False

    def disarm(self) -> None:
        self.countdown = 0

    def tick(self) -> None:
        if self.countdown:
            self.countdown -= 1
            if not self.countdown:
                self.failed = True
                raise self.error("no more")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _FailingFile(name, flags, self)


class _FailingFile(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int], vfs: FailingVFS) -> None:
        super().__init__("", name, flags)
        self._vfs = vfs

    def xWrite(self, data: Any, offset: int) -> None:
        self._vfs.tick()
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._vfs.tick()
        super().xSync(flags)

    def xTruncate(self, size: int) -> None:
        self._vfs.tick()
        super().xTruncate(size)


@pytest.fixture
def disk() -> Iterator[FailingVFS]:
    vfs = FailingVFS("failing")
    yield vfs
    vfs.unregister()


def _commit(store: everthread.Store) -> Callable[[], Any]:
    thread = store.thread("a")
    thread.state["new"] = 1
    thread.messages.extend([{"id": "new 1"}, {"id": "new 2"}])
    return thread.commit


def _large_commit(store: everthread.Store) -> Callable[[], Any]:
    thread = store.thread("a")
    noise = random.Random(1)
    thread.messages.extend([{"id": f"new {n}", "content": noise.randbytes(300).hex()} for n in range(600)])
    return thread.commit


def _first_commit(store: everthread.Store) -> Callable[[], Any]:
    thread = store.thread("new")
    thread.state["new"] = 1
    thread.messages.append({"id": "new"})
    return thread.commit


def _rewind(store: everthread.Store) -> Callable[[], Any]:
    thread = store.thread("a")
    assert thread.head
    return lambda: thread.rewind(3)


def _fork(store: everthread.Store) -> Callable[[], Any]:
    return lambda: store.thread("a").fork("fork", at=4)


def _delete(store: everthread.Store) -> Callable[[], Any]:
    return lambda: store.thread("a").delete()


def _step(store: everthread.Store) -> Callable[[], Any]:
    def work() -> None:
        with store.thread("a").step("s", attempt=2) as step:
            if not step.done:
                step.messages.append({"id": "stepped"})
                step.result = 1

    return work


def _merge(store: everthread.Store) -> Callable[[], Any]:
    return lambda: store.thread("a").merge(store.thread("b"))


VERBS = {
    "commit": _commit,
    "large commit": _large_commit,
    "first commit": _first_commit,
    "rewind": _rewind,
    "fork": _fork,
    "delete": _delete,
    "step": _step,
    "merge": _merge,
}
#: Had the failed try landed after all, the second one says that it is done already.
DONE_ALREADY = {"fork": ThreadExistsError, "delete": NotFoundError}


def _contents(store: everthread.Store) -> dict[str, Any]:
    found = {}
    for info in store.threads():
        thread = store.thread(info.name)
        found[info.name] = (
            thread.state.plain(),
            thread.messages[:],
            [v.kind for v in thread.history(limit=None)],
        )
    return found


def _prepared(store: everthread.Store) -> None:
    thread = store.thread("a")
    for number in range(70):
        say(thread, number)
    fork = thread.fork("b", at=60)
    fork.state["forked"] = 1
    fork.messages.append({"id": "forked"})
    fork.commit()


@pytest.mark.parametrize("error", [apsw.IOError, apsw.FullError])
@pytest.mark.parametrize("verb", VERBS)
def test_whatever_write_fails_the_verb_can_be_repeated(
    verb: str, error: type[Exception], tmp_path: Path, disk: FailingVFS
) -> None:
    """Each write and sync of the verb fails once. The same content is reached, nothing comes twice."""
    template = tmp_path / "template.db"
    with everthread.open(f"sqlite:///{template}", durability="process") as store:
        _prepared(store)
    content = template.read_bytes()
    with everthread.open(f"sqlite:///{template}", durability="process") as store:
        VERBS[verb](store)()
        expected = _contents(store)
    told = 0
    for calls in range(1, 400):
        path = tmp_path / f"{calls}.db"
        path.write_bytes(content)
        url = f"sqlite:///{path}"
        with everthread.open(f"{url}?vfs=failing") as store:
            do = VERBS[verb](store)
            disk.arm(calls, error)
            try:
                do()
            except StorageWriteError:
                told += 1
                disk.disarm()
                with contextlib.suppress(DONE_ALREADY.get(verb, ())):
                    do()
            disk.disarm()
            assert _contents(store) == expected, f"write {calls} failed"
        with everthread.open(url) as store:
            assert _contents(store) == expected, f"write {calls} failed"
            report = store.verify()
            assert report, "\n".join(map(str, report.damage))
        if not disk.failed:
            assert told > 2, "failures must be told"
            return
    pytest.fail("the verb never got through")


def test_after_a_failure_the_connection_is_opened_anew(
    path: Path, opening: Callable[..., everthread.Store], disk: FailingVFS
) -> None:
    opened: list[apsw.Connection] = []
    apsw.connection_hooks.append(opened.append)
    try:
        store = opening("?vfs=failing", durability="full")
        thread = store.thread("a")
        say(thread, 1)
        before = len(opened)
        thread.state["x"] = 1
        disk.arm(1, apsw.IOError)
        with pytest.raises(StorageWriteError) as caught:
            thread.commit()
        assert isinstance(caught.value.__cause__, apsw.IOError)
        assert thread.dirty
        assert thread.commit().seq == 2
        assert len(opened) > before
    finally:
        apsw.connection_hooks.remove(opened.append)
    assert opening().thread("a").state.plain() == {"count": 1, "key 1": 1, "x": 1}


# ── a file that goes away ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["removed", "replaced", "moved"])
def test_a_file_that_is_removed_under_an_open_store_is_noticed_with_the_next_connection(
    tmp_path: Path, how: str
) -> None:
    path = tmp_path / "agent.db"
    with everthread.open(f"sqlite:///{path}") as store:
        thread = store.thread("a")
        thread.state["n"] = 1
        thread.commit()
        if how == "removed":
            path.unlink()
        elif how == "moved":
            path.rename(tmp_path / "elsewhere.db")
        else:
            (tmp_path / "other.db").write_bytes(b"")
            (tmp_path / "other.db").replace(path)
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match="moved, removed or replaced"):
                store.backup(tmp_path / "backup.db")
        assert path.exists() == (how == "replaced"), "nothing was made in its place"
        if how == "moved":
            (tmp_path / "elsewhere.db").rename(path)
            thread.state["n"] = 2
            assert thread.commit().seq == 2
            store.backup(tmp_path / "backup.db")


def _killed_after_commits(path: Path) -> None:
    """A process that committed 30 times and was killed: all of it stands in the log."""
    code = f"""
        import os, signal, everthread
        thread = everthread.open("sqlite:///{path}").thread("a")
        for n in range(30):
            thread.messages.append({{"id": str(n)}})
            thread.commit()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert Path(f"{path}-wal").stat().st_size > 100_000


@pytest.mark.parametrize("how", ["emptied", "removed"])
def test_an_empty_file_beside_a_log_is_no_new_store(tmp_path: Path, how: str) -> None:
    """SQLite deletes such a log as soon as it looks at the file, and everything in it."""
    path, log = tmp_path / "agent.db", tmp_path / "agent.db-wal"
    _killed_after_commits(path)
    whole, commits = path.read_bytes(), log.read_bytes()
    os.truncate(path, 0) if how == "emptied" else path.unlink()
    for _ in range(2):
        with pytest.raises(StateCorruptedError, match="-wal beside it holds commits") as refused:
            everthread.open(f"sqlite:///{path}")
        assert refused.value.where == str(path)
        assert log.read_bytes() == commits
        assert path.exists() == (how == "emptied")
    # What it says to do helps: salvaging what the log holds, or putting the file back.
    path.touch()
    report = everthread.salvage(f"sqlite:///{path}", f"sqlite:///{tmp_path}/saved.db")
    assert report.ok
    with everthread.open(f"sqlite:///{tmp_path}/saved.db") as store:
        assert len(store.thread("a").messages) == 30
    path.write_bytes(whole)
    with everthread.open(f"sqlite:///{path}") as store:
        assert len(store.thread("a").messages) == 30
        assert store.verify().ok


def test_a_store_that_was_killed_while_it_was_made_opens(tmp_path: Path) -> None:
    """Whatever of the very first transaction is there: none of that looks like a file that was emptied."""
    path = tmp_path / "agent.db"
    seen: set[tuple[bool, bool]] = set()
    connection = apsw.Connection(str(path))

    def look() -> bool:
        sizes = [each.stat().st_size if each.exists() else 0 for each in (path, tmp_path / "agent.db-wal")]
        seen.add((sizes[0] > 0, sizes[1] > 0))
        return False

    connection.set_progress_handler(look, 1)
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    schema.migrate(connection)
    connection.set_progress_handler(None)
    look()
    connection.close(True)
    assert (False, True) not in seen
    assert (True, True) in seen, "the log does hold it"


def test_a_file_with_another_name_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with everthread.open(f"sqlite:///{path}") as store:
        (tmp_path / "link.db").hardlink_to(path)
        store.thread("a").commit(label="linked")
        (tmp_path / "link.db").unlink()
        store.thread("a").commit(label="alone")
        assert store.verify()


@pytest.mark.parametrize("value", [None, 0, 7, "text"])
def test_items_whose_column_has_another_type_are_damaged_not_pruned(tmp_path: Path, value: Any) -> None:
    """One flipped bit in the header of a row makes a number, or nothing at all, of a column of bytes."""
    with everthread.open(f"sqlite:///{tmp_path}/a.db", durability="process") as store:
        thread = store.thread("t")
        for number in range(70):
            thread.messages.append({"id": f"m{number}"})
            thread.commit()
    table = "UPDATE sqlite_schema SET sql = replace(replace(sql, 'STRICT', ''), 'data BLOB NOT NULL', 'data')"
    connection = apsw.Connection(f"{tmp_path}/a.db")
    connection.execute(f"PRAGMA writable_schema = on; {table} WHERE name = 'chunk'")
    connection.close()
    connection = apsw.Connection(f"{tmp_path}/a.db")
    connection.execute("UPDATE chunk SET data = ?", (value,))
    assert connection.changes() > 0
    connection.close()
    with everthread.open(f"sqlite:///{tmp_path}/a.db", durability="process") as store:
        with pytest.raises(StateCorruptedError):
            list(store.thread("t").messages[:64])
        assert not store.verify().ok


def test_a_fork_at_an_old_version_runs_few_statements(path: Path) -> None:
    with everthread.open(f"sqlite:///{path}") as store:
        thread = store.thread("t")
        for number in range(200):
            thread.messages.append({"n": number})
            thread.commit(metadata={"n": number})
        version = thread.at(70).version
        seen = traced(store)
        thread.fork("past", at=version)
    # The version's row; its journal, which isn't there, and whether the index says so by mistake.
    assert seen == ["SELECT"] * 3 + ["BEGIN", "SELECT", "INSERT", "UPDATE", "INSERT", "COMMIT"]


def test_a_fold_of_what_was_written_here_reads_nothing(path: Path) -> None:
    with everthread.open(f"sqlite:///{path}") as store:
        thread = store.thread("t")
        seen: list[str] = []
        for number in range(packs.FOLD_RECORDS + 1):
            if number == packs.FOLD_RECORDS:
                seen = traced(store)
            thread.messages.append({"n": number})
            thread.commit(key=str(number), metadata={"n": number})
        folded, seen[:] = seen[:], []
        thread.commit(key="after it", label="knows which keys aren't folded")
        assert seen == ["INSERT"]
        again = thread.commit(key=str(packs.FOLD_RECORDS), label="the newest, which isn't")
        assert again is not None
        assert again.seq == packs.FOLD_RECORDS + 1
    written = ["DELETE", "UPDATE", "INSERT", *["INSERT"] * packs.FOLD_RECORDS, "UPDATE", "INSERT"]
    assert folded == ["INSERT", "PRAGMA", "BEGIN", *written, "COMMIT", "PRAGMA"]


def test_who_may_only_read_a_store_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "agent.db"
    with everthread.open(f"sqlite:///{path}") as store:
        store.thread("t").commit(label="x")
    # Root may write everywhere, so the answer of the system is put there.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(everthread.StoreUnavailableError, match="copy it, with the files beside it"):
        everthread.open(f"sqlite:///{path}")
