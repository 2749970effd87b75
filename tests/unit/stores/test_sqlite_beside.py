"""Sealed values that stand beside a version, in its own row, and where they go from there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import everthread
from everthread import Erased, Personal
from everthread.errors import ConflictError, ErasedError, SealError
from everthread.stores.contract import ErasedKey
from everthread.stores.sqlite import sealed

BESIDE = "SELECT count(*) FROM record WHERE sealed IS NOT NULL"
APART = "SELECT count(*) FROM sealed_apart"
ALL = "SELECT count(*) FROM sealed"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


def opened(path: Path, **options: Any) -> everthread.Store:
    return everthread.open(
        f"sqlite:///{path}", keyring=str(path.parent / "keys"), durability="process", **options
    )


@pytest.fixture
def store(path: Path) -> Iterator[everthread.Store]:
    with opened(path) as found:
        yield found


def ask(path: Path, statement: str, *values: Any) -> Any:
    db = apsw.Connection(str(path))
    try:
        rows: Any = db.execute(statement, values).fetchall()
        return rows[0][0] if rows else None
    finally:
        db.close()


def counts(path: Path) -> tuple[int, int]:
    """How many values stand beside versions, and how many apart; the view has them all."""
    found = ask(path, BESIDE), ask(path, APART)
    assert ask(path, ALL) == sum(found)
    return found


def begin(store: everthread.Store, name: str = "a") -> everthread.Thread:
    """A thread that exists: the first version of all brings its values into the table."""
    thread = store.thread(name)
    thread.state["begun"] = True
    thread.commit()
    return thread


def save(thread: everthread.Thread, *values: str, subject: str = "ann") -> None:
    for value in values:
        thread.state["value"] = Personal(subject, value)
        thread.commit()


def test_a_single_value_costs_no_row_of_its_own(store: everthread.Store, path: Path) -> None:
    thread = begin(store)
    thread.state["other"] = Personal("ann", "the ledger is read once")
    thread.commit()
    seen: list[str] = []
    writer = store.core.backend._connections._writer  # type: ignore[attr-defined]
    writer.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: seen.append(event["sql"].split()[0]))
    save(thread, "one")
    writer.trace_v2(0, None)
    assert seen == ["INSERT"]
    assert counts(path) == (2, 0)
    with opened(path) as other:
        assert other.thread("a").state["value"].value == "one"
        assert other.verify()
        assert other.core.backend.totals().sealed == (2, store.core.backend.totals().sealed[1])


@pytest.mark.parametrize("what", ["the first version", "two values", "two people", "long", "an event"])
def test_others_stand_apart(store: everthread.Store, path: Path, what: str) -> None:
    thread = store.thread("a") if what == "the first version" else begin(store)
    people = ["ann", "bob"] if what == "two people" else "ann"
    value = Personal(people, "x" if what != "long" else "".join(map(str, range(3_000))))
    if what == "an event":
        store.events("s").append("t", {"value": value})
    else:
        thread.state["value"] = value
        if what == "two values":
            thread.state["other"] = Personal("bob", "another")
        thread.commit()
        assert store.thread("a").state["value"].value == value.value
    assert counts(path) == (0, 2 if what == "two values" else 1)
    assert store.verify()


def test_rewinds_keys_and_steps(store: everthread.Store, path: Path) -> None:
    thread = begin(store)
    save(thread, "one")
    thread.state["value"] = Personal("ann", "two")
    thread.commit(key="k")
    with thread.step("s") as step:
        step.state["value"] = Personal("ann", "three")
        step.result = 1
    for number in range(70):
        thread.state["n"] = number
        thread.commit()
    thread.state["value"] = Personal("ann", "four")
    thread.commit(key="other")
    assert sum(counts(path)) == 4
    for seq, value in ((2, "one"), (3, "two"), (4, "three"), (75, "four")):
        thread.rewind(seq)
        assert store.thread("a").state["value"].value == value
    assert store.verify()


def test_folding_moves_them(store: everthread.Store, path: Path) -> None:
    thread = begin(store)
    seen = set()
    for number in range(150):
        save(thread, f"value {number}")
        beside, apart = counts(path)
        seen.add(beside)
        assert beside + apart == number + 1
    assert len(seen) > 2
    assert 0 < beside < 100, "the newest is never folded"
    assert ask(path, "SELECT count(*) FROM record WHERE sealed IS NOT NULL AND kind <> 0") == 0
    for at in range(2, 151):
        assert thread.at(at).state["value"].value == f"value {at - 2}"
    assert store.verify()


def test_they_outlive_the_thread_that_brought_them(store: everthread.Store, path: Path) -> None:
    thread = begin(store)
    save(thread, "taken along")
    other = begin(store, "other")
    other.state["copy"] = thread.state["value"]
    other.commit()
    assert counts(path) == (1, 0)
    fork = thread.fork("fork")
    thread.delete()
    assert fork.state["value"].value == "taken along"
    fork.delete()
    assert counts(path) == (0, 1)
    assert other.state["copy"].value == "taken along"
    assert store.verify()


def test_they_outlive_versions_that_are_pruned(store: everthread.Store, path: Path) -> None:
    thread = begin(store)
    for number in range(40):
        save(thread, f"value {number}")
    other = begin(store, "other")
    other.state["copy"] = thread.at(10).state["value"]
    other.commit()
    store.gc(everthread.Retention(keep_last=2))
    with pytest.raises(everthread.VersionPrunedError):
        _ = thread.at(10).state["value"]
    assert sum(counts(path)) == 40
    assert other.state["copy"].value == "value 8"
    assert store.verify()


def test_who_comes_second_stands_apart(store: everthread.Store, path: Path) -> None:
    begin(store)
    first, second = store.thread("a"), store.thread("a")
    second.state["mine"] = Personal("ann", "second")
    save(first, "first")
    with pytest.raises(ConflictError):
        second.commit()
    second.rebase()
    second.commit()
    assert counts(path) == (1, 1)
    with opened(path) as other:
        state = other.thread("a").state
        assert (state["value"].value, state["mine"].value) == ("first", "second")
        assert other.verify()


def test_nothing_is_taken_of_who_is_erased_at_this_moment(store: everthread.Store, path: Path) -> None:
    """Decided by the statement that would write it: whatever the handle believes."""
    thread = begin(store)
    save(thread, "before")
    (key_id,) = store.core.vault.keyring.key_ids("ann")
    thread.state["late"] = Personal("ann", "late")
    with opened(path) as other:
        other.core.backend.note_erasures([ErasedKey(key_id=key_id, phase=1, erasure=b"e" * 16, noted_us=5)])
        with pytest.raises(ErasedError):
            thread.commit()
        assert counts(path) == (1, 0)
        assert ask(path, "SELECT max(id) & 0xffffffff FROM record") == 2


def test_erasing_takes_them_from_both_places(store: everthread.Store, path: Path) -> None:
    thread = begin(store)
    for number in range(95):
        save(thread, f"ann {number}")
        save(thread, f"bob {number}", subject="bob")
    assert min(counts(path)) > 20
    backend = store.core.backend
    theirs = {
        name: backend.sealed_under(store.core.vault.keyring.key_ids(name), b"", 999)
        for name in ("ann", "bob")
    }
    assert [len(rows) for rows in theirs.values()] == [95, 95]
    files = [path.with_name(f"a.db{ending}") for ending in ("", "-wal")]

    def found(name: str) -> int:
        content = b"".join(file.read_bytes() for file in files)
        return sum(row[2][13:45] in content for row in theirs[name])

    assert found("ann") == 95, "control"
    report = store.erase("ann")
    assert report.complete, report.summary()
    assert report.sealed_values == 95
    assert (found("ann"), found("bob"), sum(counts(path))) == (0, 95, 95)
    assert isinstance(thread.at(180).state["value"], Erased)
    assert isinstance(store.thread("a").at(2).state["value"], Erased)
    assert store.thread("a").state["value"].value == "bob 94"
    assert store.verify()


def test_they_are_told_page_by_page_in_order(store: everthread.Store, path: Path) -> None:
    for name in ("a", "b", "c"):
        thread = store.thread(name)
        for number in range(70):
            save(thread, f"{name} {number}", subject="ann" if number % 2 else "bob")
        thread.state["two"] = [Personal("ann", "x"), Personal("ann", "y")]
        thread.commit()
    assert min(counts(path)) > 5
    backend, (key_id,) = store.core.backend, store.core.vault.keyring.key_ids("ann")
    whole = backend.sealed_under([key_id], b"", 999)
    assert len(whole) == 3 * (35 + 2)
    assert whole == sorted(whole)
    paged, after = [], b""
    while page := backend.sealed_under([key_id], after, 7):
        paged += page
        after = page[-1][0]
    assert paged == whole
    assert backend.sealed([row[0] for row in whole]) == {row[0]: row[2] for row in whole}
    assert backend.sealed_under([key_id], b"\xff" * 16, 9) == []


def test_one_that_is_here_isnt_added_again(store: everthread.Store, path: Path, tmp_path: Path) -> None:
    thread = begin(store)
    save(thread, "here")
    archive = tmp_path / "archive"
    store.export(archive)
    thread.state["more"] = 1
    thread.commit()
    store.import_from(archive)
    assert counts(path) == (1, 0)
    row = store.core.backend.sealed_under(store.core.vault.keyring.key_ids("ann"), b"", 9)[0]
    with store.core.backend._connections as db:  # type: ignore[attr-defined]
        sealed.add_sealed(db, [row])
        assert not sealed.add_single(db, row)
    assert counts(path) == (1, 0)


def test_an_import_brings_them(store: everthread.Store, tmp_path: Path) -> None:
    thread = begin(store)
    for number in range(80):
        save(thread, f"value {number}")
    store.export(tmp_path / "archive")
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "a.db"
    with everthread.open(
        f"sqlite:///{other}", keyring=str(tmp_path / "keys"), durability="process"
    ) as target:
        target.import_from(tmp_path / "archive")
        for at in (2, 40, 81):
            assert target.thread("a").at(at).state["value"].value == f"value {at - 2}"
        assert sum(counts(other)) == 80
        assert target.verify()


def test_damage_is_found(store: everthread.Store, path: Path) -> None:
    save(begin(store), "x" * 40)
    whole = ask(path, "SELECT sealed FROM record WHERE sealed IS NOT NULL")
    row = "UPDATE record SET sealed = ? WHERE sealed IS NOT NULL"
    for at, told in ((0, "doesn't belong to"), (20, "whose it is"), (35, "whose it is"), (60, "digest")):
        ask(path, row, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        damage = str(store.verify().damage)
        assert told in damage, f"byte {at}: {damage}"
    ask(path, row, whole)
    assert store.verify()
    ask(path, "UPDATE record SET sealed = NULL")
    with opened(path) as other, pytest.raises(SealError):
        _ = other.thread("a").state["value"].value


def test_damage_to_one_doesnt_keep_its_row(store: everthread.Store, path: Path) -> None:
    """A flipped bit in the header of a row makes a number of a column of bytes."""
    thread = begin(store)
    for number in range(20):
        save(thread, f"value {number}")
    gone = begin(store, "gone")
    save(gone, "of another")
    db = apsw.Connection(str(path))
    ((sql,),) = db.execute("SELECT sql FROM sqlite_schema WHERE name = 'record'").fetchall()
    change = "UPDATE sqlite_schema SET sql = ? WHERE name = 'record'"
    db.execute("PRAGMA writable_schema = ON")
    db.execute(change, (sql.replace("STRICT", "").replace("sealed BLOB", "sealed"),))
    db.execute("PRAGMA writable_schema = RESET")
    db.execute("UPDATE record SET sealed = 7 WHERE id & 0xffffffff = 2")
    assert db.changes() == 2
    db.execute("PRAGMA writable_schema = ON")
    db.execute(change, (sql,))
    db.execute("PRAGMA writable_schema = RESET")
    # Whoever has the file open reads the definitions again.
    db.execute("CREATE TABLE other (a); DROP TABLE other")
    db.close()
    report = everthread.salvage(f"sqlite:///{path}", f"sqlite:///{path.parent}/new.db")
    assert report.sealed == 19
    assert not report.lost, "the versions themselves are sound"
    assert "non-BLOB value in record.sealed" in str(store.verify().damage)
    gone.delete()
    for number in range(70):
        thread.state["n"] = number
        thread.commit()
    assert store.core.background_error is None
    assert ask(path, "SELECT count(*) FROM record WHERE kind = 1") == 1
    assert thread.at(10).state["value"].value == "value 8"
    assert store.erase("ann").sealed_values == 19


def test_salvaging_brings_them_along(path: Path) -> None:
    with opened(path) as store:
        thread = begin(store)
        for number in range(80):
            save(thread, f"value {number}")
    assert min(counts(path)) > 10
    report = everthread.salvage(f"sqlite:///{path}", f"sqlite:///{path.parent}/new.db")
    assert report, report
    assert report.sealed == 80
    with opened(path.parent / "new.db") as store:
        for at in (2, 40, 81):
            assert store.thread("a").at(at).state["value"].value == f"value {at - 2}"
        assert store.verify()


def test_a_restored_backup_brings_nobody_back(store: everthread.Store, path: Path, tmp_path: Path) -> None:
    save(begin(store), "in a backup")
    store.backup(str(tmp_path / "backup.db"))
    assert store.erase("ann").complete
    store.restore(str(tmp_path / "backup.db"))
    assert counts(path) == (0, 0)
    assert isinstance(store.thread("a").state["value"], Erased)
    assert store.verify()


def test_who_reads_while_others_fold_finds_them(store: everthread.Store, path: Path) -> None:
    """A fold moves them from the one place to the other, and a reader looks at both."""
    thread = begin(store)
    save(thread, "value 0")
    begun, done = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        with opened(path) as other:
            while not done.is_set():
                found = other.thread("a")
                try:
                    assert found.state["value"].value.startswith("value")
                except BaseException as error:
                    failures.append(error)
                    return
                finally:
                    begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(60)
    for number in range(400):
        save(thread, f"value {number}")
    done.set()
    reader.join()
    assert not failures, failures


def test_what_the_version_before_does_with_such_a_file(store: everthread.Store, path: Path) -> None:
    """Its process may have the file open while the tables are brought up to date: it loses nothing, reads
    everything, and where it would add or erase values it fails."""
    thread = begin(store)
    for number in range(10):
        save(thread, f"value {number}")
    rows = store.core.backend.sealed_under(store.core.vault.keyring.key_ids("ann"), b"", 99)
    db = apsw.Connection(str(path))
    for value_id, _, data in rows:
        assert db.execute("SELECT data FROM sealed WHERE value = ?1", (value_id,)).fetchall() == [(data,)]
    for statement in (
        "INSERT OR IGNORE INTO sealed (value, keys, data, sum) VALUES (x'01', x'01', x'01', 1)",
        "DELETE FROM sealed WHERE value = x'01'",
    ):
        with pytest.raises(apsw.SQLError):
            db.execute(statement)
    line = ask(path, "SELECT id FROM line WHERE name = 'a'") << 32
    db.execute("BEGIN")
    db.execute("DELETE FROM record WHERE id >= ?1 AND id < ?2 AND kind = 0", (line + 2, line + 7))
    assert db.changes() == 5
    db.execute("UPDATE record SET kind = 1, first = ?2 WHERE id = ?1 AND kind = 0", (line + 7, 2))
    assert db.changes() == 1
    db.execute("COMMIT")
    db.close()
    assert counts(path) == (4, 6)
    assert store.core.backend.sealed_under(store.core.vault.keyring.key_ids("ann"), b"", 99) == rows


def test_async_commits_that_share_a_transaction(path: Path) -> None:
    import asyncio

    async def run() -> None:
        async with everthread.open_async(
            f"sqlite:///{path}", keyring=str(path.parent / "keys"), durability="process"
        ) as store:

            async def work(name: str) -> None:
                thread = await store.thread(name)
                thread.state["n"] = 0
                await thread.commit()
                for number in range(10):
                    thread.state["value"] = Personal("ann", f"{name} {number}")
                    await thread.commit()

            await asyncio.gather(*(work(f"t{number}") for number in range(12)))
            for number in range(12):
                thread = await store.thread(f"t{number}")
                assert thread.state["value"].value == f"t{number} 9"
            (key_id,) = store.core.vault.keyring.key_ids("ann")
            late = [await store.thread(f"t{number}") for number in range(6)]
            for thread in late:
                thread.state["late"] = Personal("ann", "late")
            await store.core.backend.note_erasures(
                [ErasedKey(key_id=key_id, phase=1, erasure=b"e" * 16, noted_us=5)]
            )
            told = await asyncio.gather(*(thread.commit() for thread in late), return_exceptions=True)
            assert [type(each) for each in told] == [ErasedError] * 6

    asyncio.run(run())
    assert counts(path) == (120, 0)
