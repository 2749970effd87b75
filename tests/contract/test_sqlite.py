"""What only the SQLite store of the small contract has: files, backups, a write lock."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from everthread.errors import NotAStoreError, SchemaVersionError, StateCorruptedError, UsageError
from everthread.stores.interface import Batch, Get, Guard, Span, Table, run
from everthread.stores.sqlite.connection import Connections, Settings
from everthread.stores.sqlite.tables import Layout
from tests.contract.stores import (
    HEAD,
    KEY,
    ROW,
    STORES,
    accept,
    changes,
    content,
    delete,
    feed,
    get,
    head,
    open_sqlite,
    page,
    put,
    row,
    write,
)  # fmt: skip

SECRET = b"the secret of the secret sauce"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    opened = open_sqlite(tmp_path, durability="process")
    yield opened
    run(opened.close())


# ── backup and restore ──


def test_a_backup_is_a_copy_of_one_moment_and_comes_back_whole(store: Any, tmp_path: Path) -> None:
    accept(store, put((row(1), b"1"), (head(b"a"), b"1"), (head(b"b"), b"1")), delete(head(b"b")))
    before = content(store)
    run(store.backup(str(tmp_path / "copy")))
    accept(store, put((row(1), b"2"), (row(2), b"2"), (head(b"c"), b"1")), delete(head(b"a")))
    run(store.restore(str(tmp_path / "copy")))
    assert content(store) == before
    assert run(store.check()) == []
    with pytest.raises(UsageError):
        run(store.backup(str(tmp_path / "copy")))


def test_a_reader_of_the_feed_sees_everything_again_after_a_restore(store: Any, tmp_path: Path) -> None:
    accept(store, put((head(b"old"), b"1"), (head(b"both"), b"1")))
    run(store.backup(str(tmp_path / "copy")))
    accept(
        store, put((head(b"both"), b"2"), (head(b"new"), b"1"), (head(b"gone"), b"1")), delete(head(b"gone"))
    )
    seen = [entry[0] for entry in feed(store)]
    for _ in range(2):
        run(store.restore(str(tmp_path / "copy")))
        entries = changes(store, 1, after=max(seen))
        assert {at: value for _, at, value in entries} == {
            b"old": b"1", b"both": b"1", b"new": None, b"gone": None,
        }  # fmt: skip
        assert [at for _, at, value in entries if value] == [b"old", b"both"], "in the order they had"
        assert not {entry[0] for entry in entries} & set(seen)
        seen += [entry[0] for entry in entries]
        accept(store, put((head(b"old"), b"9")))
        seen += [stamp for stamp, at, _ in feed(store, max(seen)) if at == b"old"]
        assert len(seen) == len(set(seen))


def test_stamps_do_not_repeat_those_of_the_store_that_a_backup_was_made_of(tmp_path: Path) -> None:
    """Also if the backup goes to another place, which never saw what the first store did afterwards."""
    first = open_sqlite(tmp_path)
    accept(first, put((head(b"a"), b"1")))
    run(first.backup(str(tmp_path / "copy")))
    for number in range(50):
        accept(first, put((head(b"a"), b"%d" % number)))
    (cursor,) = [entry[0] for entry in feed(first)]
    run(first.close())
    (tmp_path / "elsewhere").mkdir()
    second = open_sqlite(tmp_path / "elsewhere")
    run(second.restore(str(tmp_path / "copy")))
    assert [entry[1:] for entry in feed(second, cursor)] == [(b"a", b"1")]
    run(second.close())


def test_a_restore_keeps_what_the_caller_says_in_the_same_step(store: Any, tmp_path: Path) -> None:
    accept(store, put(((KEY.number, 1, b"k"), SECRET)))
    run(store.backup(str(tmp_path / "copy")))
    accept(store, put((row(7), b"kept")), delete((KEY.number, 1, b"k")))
    other = open_sqlite(tmp_path)
    calls: list[Any] = []

    async def keep(present: Any, restored: Any) -> Batch:
        calls.append((await present.read([Get([row(7), row(8)])]), await restored.walk(KEY.number, None, 9)))
        if len(calls) == 1:
            accept(other, put((row(8), b"written while it is restored")))
        (found,) = await present.read([Get([row(7), row(8)])])
        return Batch(
            (Guard(row(7), b"ignored"),),
            tuple((row(at), value) for at, value in zip((7, 8), found, strict=True) if value),
            (Span(KEY.number, 1),),
        )

    run(store.restore(str(tmp_path / "copy"), keep))
    assert calls[0] == ([[b"kept", None]], [(1, b"k", SECRET)])
    assert len(calls) == 2, "another process wrote meanwhile, so it asked again"
    assert page(store, ROW) == [(7, b"kept"), (8, b"written while it is restored")]
    assert page(store, KEY) == []
    assert run(store.purge(30)).waiting == ()
    assert run(store.find_residue([SECRET])).hits == ()
    run(other.close())


@pytest.mark.parametrize("content_of_file", [b"", b"no database", b"SQLite format 3\0" + b"x" * 5_000])
def test_what_is_no_backup_changes_nothing(store: Any, tmp_path: Path, content_of_file: bytes) -> None:
    accept(store, put((row(1), b"1")))
    (tmp_path / "file").write_bytes(content_of_file)
    with pytest.raises((NotAStoreError, StateCorruptedError)):
        run(store.restore(str(tmp_path / "file")))
    assert get(store, row(1)) == [b"1"]


# ── bytes that must go ──


def test_purge_removes_deleted_bytes_from_every_file(store: Any) -> None:
    accept(store, put((row(1), SECRET), ((KEY.number, 1, b"k"), SECRET), (head(b"a"), SECRET)))
    accept(store, put((row(2), SECRET * 1_000)))
    accept(store, put((head(b"a"), b"new")), delete(row(1)), delete(row(2)), delete((KEY.number, 1, b"k")))
    found = run(store.find_residue([SECRET]))
    assert dict(found.hits), "the log or free pages still hold it"
    told: list[tuple[str, float]] = []
    assert run(store.purge(30, lambda *each: told.append(each))).done == (
        "database rewritten", "write-ahead log emptied",
    )  # fmt: skip
    found = run(store.find_residue([SECRET]))
    assert found.hits == ()
    assert sum(size for _, size in found.searched) > 0
    assert told[-1] == ("rewriting the database", 1.0)
    with pytest.raises(UsageError, match="16"):
        run(store.find_residue([b"short"]))


def test_purge_names_a_reader_that_keeps_the_log(store: Any, tmp_path: Path) -> None:
    accept(store, put((row(1), SECRET)))
    reader = apsw.Connection(str(tmp_path / "store.db"))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM row").fetchall()
    accept(store, delete(row(1)))
    assert "reader" in run(store.purge(0)).waiting[0]
    reader.execute("COMMIT")
    reader.close()
    assert run(store.purge(30)).waiting == ()
    assert run(store.find_residue([SECRET])).hits == ()


def test_vacuum_returns_space(store: Any) -> None:
    accept(store, put(*((row(at), os.urandom(9_000)) for at in range(1, 100))))
    accept(store, Batch(deletes=(Span(ROW.number, 1),)))
    before = run(store.usage(None))
    run(store.vacuum())
    after = run(store.usage(None))
    assert before["free"][1] > 500_000 > after["files"][1]
    assert after["free"] == (0, 0)


# ── the file ──


def test_a_file_of_another_layout_or_program_is_left_as_it_is(tmp_path: Path) -> None:
    old = Connections(Settings(str(tmp_path / "store.db")))
    old.close()
    before = (tmp_path / "store.db").read_bytes()
    with pytest.raises(SchemaVersionError, match="before its first release"):
        open_sqlite(tmp_path)
    assert (tmp_path / "store.db").read_bytes() == before
    (tmp_path / "new").mkdir()
    run(open_sqlite(tmp_path / "new").close())
    with pytest.raises(SchemaVersionError, match="newer"):
        Connections(Settings(str(tmp_path / "new" / "store.db")))


def test_check_finds_a_changed_definition_and_a_damaged_page(store: Any, tmp_path: Path) -> None:
    accept(store, put(*((row(at), os.urandom(900)) for at in range(1, 100))))
    db = apsw.Connection(str(tmp_path / "store.db"))
    db.execute("DROP INDEX head_tombstone").fetchall()
    assert run(store.check()) == ["the definition of index 'head_tombstone' was changed"]
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()
    run(store.close())
    path = tmp_path / "store.db"
    data = bytearray(path.read_bytes())
    data[-4096:] = os.urandom(4096)
    path.write_bytes(data)
    damaged = open_sqlite(tmp_path)
    assert [problem for problem in run(damaged.check()) if "definition" not in problem]
    run(damaged.close())


@pytest.mark.parametrize("name", ["Head", "a b", 'a"', "a;", "", "1a"])
def test_only_plain_names_of_tables_reach_a_statement(name: str) -> None:
    with pytest.raises(ValueError, match="table name"):
        Layout([HEAD, Table(1, name, numbered=True)])


def test_a_reservation_keeps_other_processes_from_writing(store: Any, tmp_path: Path) -> None:
    accept(store, put((row(1), b"1")))
    assert store.reserve()
    write(store, put((row(1), b"2")))
    assert store.reserve()
    store.release()
    other = open_sqlite(tmp_path)
    accept(other, put((row(1), b"3")))
    assert get(store, row(1)) == [b"3"]
    run(other.close())


# ── interrupts ──


@pytest.mark.parametrize("kind", sorted(STORES))
def test_an_interrupt_anywhere_in_a_write_leaves_all_of_it_or_nothing(kind: str, tmp_path: Path) -> None:
    """Ctrl-C may come between any two lines of Python. The store goes on afterwards."""
    store = STORES[kind](tmp_path)
    accept(store, put((row(1), b"0"), (head(b"a"), b"0"), (head(b"b"), b"0")))
    interrupted = 0
    for number in range(1, 2_000):
        batch = put((row(1), b"%d" % number), (head(b"a"), b"%d" % number))._replace(
            deletes=(Span(HEAD.number, 1, b"b"), Span(ROW.number, 1))
        )
        before = content(store), [entry[1:] for entry in feed(store)]
        if not _interrupted(partial(accept, store, batch, put((head(b"b"), b"x"))), number):
            break
        interrupted += 1
        now = content(store), [entry[1:] for entry in feed(store)]
        if now != before:
            assert get(store, row(1), head(b"a"), head(b"b")) == [b"%d" % number, b"%d" % number, b"x"]
    assert interrupted > 20
    assert get(store, row(1)) == [b"%d" % number]
    assert run(store.check()) == []
    run(store.close())


def _interrupted(call: Callable[[], Any], nth: int) -> bool:
    """Raise KeyboardInterrupt before the ``nth`` line that ``call`` runs in a store, if there is one."""
    lines = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        code = frame.f_code
        if not code.co_filename.endswith(("memory_store.py", "ordered_store.py", "tables.py")):
            return None
        # Python runs no signal handler between the end of a with block and the release of its lock.
        text = linecache.getline(code.co_filename, frame.f_lineno).strip()
        if event == "line" and not text.startswith("with "):
            lines += 1
            if lines == nth:
                raise KeyboardInterrupt
        return trace

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(old)
    return False


def test_the_declared_tables_of_the_library_can_be_kept(tmp_path: Path) -> None:
    from everthread.records.tables import TABLES as DECLARED
    from everthread.stores.sqlite.ordered_store import SqliteStore

    store = SqliteStore(Settings(str(tmp_path / "store.db")), DECLARED)
    for table in DECLARED:
        accept(store, put(((table.number, 1, 1 if table.numbered else b"name"), table.name.encode())))
    assert all(page(store, table) for table in DECLARED)
    assert run(store.check()) == []
    run(store.close())
