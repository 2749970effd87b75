"""The rows that rebuilding a version takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

import everthread
from everthread.errors import StateCorruptedError
from everthread.stores.contract import DAMAGED
from tests.unit.stores.tracing import traced


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/a.db"


def _filled(url: str, versions: int) -> None:
    with everthread.open(url, durability="process") as store:
        thread = store.thread("t")
        for number in range(versions):
            thread.state["n"] = number
            thread.messages.append({"id": f"m{number}"})
            thread.commit()


@pytest.mark.parametrize("versions", [1, 2, 20, 64, 66, 200, 700])
def test_every_version_is_rebuilt_from_the_row_that_holds_it(url: str, versions: int) -> None:
    _filled(url, versions)
    with everthread.open(url, durability="process") as store:
        backend: Any = store.core.backend
        line = backend.find("", "t").line.id
        for seq in {1, 2, versions // 2, versions - 1, versions} - {0}:
            if seq <= versions:
                rows = backend.replay(line, seq, 0)
                assert rows[0].first <= seq <= rows[0].seq
                assert [row.seq for row in rows] == sorted((row.seq for row in rows), reverse=True)
                assert store.thread("t").at(seq).state["n"] == seq - 1
        newest = backend.replay(line, versions, 0)
        assert backend.replay(line, versions, versions - 1) == newest[:1]
        assert backend.replay(line, versions + 1, 0) == []


def test_opening_a_thread_runs_two_statements(url: str) -> None:
    _filled(url, 30)
    with everthread.open(url, durability="process") as store:
        seen = traced(store)
        thread = store.thread("t")
        assert thread.state.plain() == {"n": 29}
        assert [item["id"] for item in thread.messages[-20:]] == [f"m{n}" for n in range(10, 30)]
        assert seen == ["SELECT"] * 2
        assert store.thread("t").state["n"] == 29
        assert seen == ["SELECT"] * 3


@pytest.mark.parametrize("column", ["hash", "kind", "sum"])
def test_a_damaged_newest_row_is_found_damaged(url: str, tmp_path: Path, column: str) -> None:
    _filled(url, 5)
    value: Any = b"x" * 32 if column == "hash" else 7
    with apsw.Connection(f"{tmp_path}/a.db") as db:
        db.execute(f"UPDATE record SET {column} = ? WHERE id = (SELECT max(id) FROM record)", (value,))
    with everthread.open(url, durability="process") as store:
        backend: Any = store.core.backend
        assert backend.find("", "t").newest.kind == DAMAGED
        with pytest.raises(StateCorruptedError):
            store.thread("t", strict=True)


def test_a_damaged_line_is_told(url: str, tmp_path: Path) -> None:
    _filled(url, 5)
    with apsw.Connection(f"{tmp_path}/a.db") as db:
        db.execute("UPDATE line SET parent_seq = 3")
    with everthread.open(url, durability="process") as store, pytest.raises(StateCorruptedError):
        store.thread("t", strict=True)


def test_a_damaged_page_of_an_index_brings_no_other_thread_into_a_search(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with everthread.open(f"sqlite:///{path}") as store:
        for number, name in enumerate(("main", "fork")):
            thread = store.thread(name)
            thread.state["n"] = number
            thread.commit(metadata={"run": number})
        # The index is filled by who searches.
        assert [info.name for info in store.threads(metadata={"run": 1})] == ["fork"]
    database = apsw.Connection(str(path))
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (size,) = next(database.execute("PRAGMA page_size"))
    (page,) = next(database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'tag_value'"))
    database.close()
    content = bytearray(path.read_bytes())
    content[content.index(b"run\x01", (page - 1) * size, page * size) + 3] ^= 1
    path.write_bytes(content)
    with everthread.open(f"sqlite:///{path}") as store:
        assert [info.name for info in store.threads(metadata={"run": 0})] == ["main"]
