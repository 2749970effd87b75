"""A name that is seen for the first time brings along the rows that are asked for next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

import everthread
from everthread.errors import StateCorruptedError
from everthread.stores.sqlite import replaying


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


def _seen(store: everthread.Store) -> list[str]:
    seen: list[str] = []
    writer = store._core.backend._connections._writer  # type: ignore[attr-defined]

    def note(_: object, sql: str, __: object) -> bool:
        seen.append(sql.split(maxsplit=1)[0])
        return True

    writer.exec_trace = note
    return seen


@pytest.mark.parametrize("versions", [1, 2, 20, 64, 66, 200, 700])
def test_what_comes_along_is_what_would_be_read(url: str, versions: int) -> None:
    _filled(url, versions)
    with everthread.open(url, durability="process") as store:
        backend: Any = store._core.backend
        first = backend.find("", "t")
        ahead = backend._ahead.take(first.line.id, versions, 0)
        assert backend.find("", "t") == first
        assert backend._ahead.take(first.line.id, versions, 0) is None
        rows = backend.replay(first.line.id, versions, 0)
        assert ahead == rows
        assert backend.replay(first.line.id, versions, versions - 1) == rows[:1]


def test_opening_a_thread_runs_two_statements(url: str) -> None:
    _filled(url, 30)
    with everthread.open(url, durability="process") as store:
        seen = _seen(store)
        thread = store.thread("t")
        assert thread.state.plain() == {"n": 29}
        assert [item["id"] for item in thread.messages[-20:]] == [f"m{n}" for n in range(10, 30)]
        assert seen == ["SELECT"] * 2
        assert store.thread("t").state["n"] == 29
        assert seen == ["SELECT"] * 3


def test_what_came_along_is_used_once_and_soon(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _filled(url, 5)
    with everthread.open(url, durability="process") as store:
        backend: Any = store._core.backend
        line = backend.find("", "t").line
        assert backend._ahead.take(line.id, 4, 0) is None
    with everthread.open(url, durability="process") as store:
        backend = store._core.backend
        line = backend.find("", "t").line
        assert len(backend._ahead.take(line.id, 5, 0)) == 5
        assert backend._ahead.take(line.id, 5, 0) is None
    monkeypatch.setattr(replaying, "_KEPT_S", -1.0)
    with everthread.open(url, durability="process") as store:
        backend = store._core.backend
        line = backend.find("", "t").line
        assert backend._ahead.take(line.id, 5, 0) is None


@pytest.mark.parametrize("column", ["hash", "kind", "sum"])
def test_a_damaged_newest_row_is_found_damaged_at_first_sight(url: str, tmp_path: Path, column: str) -> None:
    _filled(url, 5)
    value: Any = b"x" * 32 if column == "hash" else 7
    with apsw.Connection(f"{tmp_path}/a.db") as db:
        db.execute(f"UPDATE record SET {column} = ? WHERE id = (SELECT max(id) FROM record)", (value,))
    with everthread.open(url, durability="process") as store:
        backend: Any = store._core.backend
        first, second = backend.find("", "t"), backend.find("", "t")
        assert first == second
        with pytest.raises(StateCorruptedError):
            store.thread("t", strict=True)


def test_a_damaged_line_is_told_at_first_sight(url: str, tmp_path: Path) -> None:
    _filled(url, 5)
    with apsw.Connection(f"{tmp_path}/a.db") as db:
        db.execute("UPDATE line SET parent_seq = 3")
    with everthread.open(url, durability="process") as store, pytest.raises(StateCorruptedError):
        store.thread("t", strict=True)
