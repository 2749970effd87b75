"""Personal values in a SQLite store: how long they stay, and how they go."""

from __future__ import annotations

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


def values(path: Path) -> int:
    """How many personal values the store holds."""
    found: int = ask(path, "SELECT count(*) FROM sealed")
    return found


def begin(store: everthread.Store, name: str = "a") -> everthread.Thread:
    """A thread that exists."""
    thread = store.thread(name)
    thread.state["begun"] = True
    thread.commit()
    return thread


def save(thread: everthread.Thread, *values: str, subject: str = "ann") -> None:
    for value in values:
        thread.state["value"] = Personal(subject, value)
        thread.commit()


def test_they_outlive_the_thread_that_brought_them(store: everthread.Store, path: Path) -> None:
    thread = begin(store)
    save(thread, "taken along")
    other = begin(store, "other")
    other.state["copy"] = thread.state["value"]
    other.commit()
    assert values(path) == 1
    fork = thread.fork("fork")
    thread.delete()
    assert fork.state["value"].value == "taken along"
    fork.delete()
    assert values(path) == 1
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
    assert values(path) == 40
    assert other.state["copy"].value == "value 8"
    assert store.verify()


def test_a_commit_that_was_too_late_keeps_its_value(store: everthread.Store, path: Path) -> None:
    begin(store)
    first, second = store.thread("a"), store.thread("a")
    second.state["mine"] = Personal("ann", "second")
    save(first, "first")
    with pytest.raises(ConflictError):
        second.commit()
    second.rebase()
    second.commit()
    assert values(path) == 2
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
        assert values(path) == 1
        assert ask(path, "SELECT max(id) & 0xffffffff FROM record") == 2


def test_erasing_takes_the_bytes_of_one_and_no_other(store: everthread.Store, path: Path) -> None:
    thread = begin(store)
    for number in range(95):
        save(thread, f"ann {number}")
        save(thread, f"bob {number}", subject="bob")
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
    assert (found("ann"), found("bob"), values(path)) == (0, 95, 95)
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
    assert values(path) == 1
    row = store.core.backend.sealed_under(store.core.vault.keyring.key_ids("ann"), b"", 9)[0]
    with store.core.backend._connections as db:  # type: ignore[attr-defined]
        sealed.add_sealed(db, [row])
        assert not sealed.add_single(db, row)
    assert values(path) == 1


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
        assert values(other) == 80
        assert target.verify()


def test_damage_is_found(store: everthread.Store, path: Path) -> None:
    save(begin(store), "x" * 40)
    for column, told in (("value", "checksum"), ("keys", "checksum"), ("data", "digest")):
        whole = ask(path, f"SELECT {column} FROM sealed")
        ask(path, f"UPDATE sealed SET {column} = ?", whole[:-1] + bytes([whole[-1] ^ 1]))
        damage = str(store.verify().damage)
        assert told in damage, f"{column}: {damage}"
        ask(path, f"UPDATE sealed SET {column} = ?", whole)
    assert store.verify()
    ask(path, "DELETE FROM sealed")
    with opened(path) as other, pytest.raises(SealError):
        _ = other.thread("a").state["value"].value


def test_salvaging_brings_them_along(path: Path) -> None:
    with opened(path) as store:
        thread = begin(store)
        for number in range(80):
            save(thread, f"value {number}")
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
    assert values(path) == 0
    assert isinstance(store.thread("a").state["value"], Erased)
    assert store.verify()


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
    assert values(path) == 120
