"""Items that pruned versions inserted and the head holds: ``verify()`` reads them, salvaging keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

import everthread
from everthread import Retention, Store, salvage

PLACES = {"sqlite": "sqlite:///{}/store.db", "file": "file://{}/store"}


def opened(engine: str, folder: Path, **options: Any) -> Store:
    return everthread.open(PLACES[engine].format(folder), durability="process", **options)


def build(engine: str, folder: Path, count: int = 150) -> None:
    """Versions of which most are pruned, and every item is still held by the newest."""
    folder.mkdir()
    with opened(engine, folder) as store:
        thread = store.thread("t")
        for number in range(count):
            thread.state["n"] = number
            thread.messages.append({"id": f"m{number}", "text": "x" * 40})
            thread.commit(key=f"key {number}")
        assert store.gc(Retention(keep_last=5, keep_labelled=False)).versions == count - 5
        assert len(thread.messages) == count
        assert store.verify().ok


def execute(folder: Path, statement: str) -> None:
    connection = apsw.Connection(str(folder / "store.db"))
    connection.execute(statement)
    assert connection.changes() > 0
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM chunk WHERE position = (SELECT min(position) FROM chunk)",
        "UPDATE chunk SET data = zeroblob(30) WHERE position = (SELECT min(position) FROM chunk)",
        "UPDATE chunk SET data = x'', fingerprints = x'' WHERE position = (SELECT min(position) FROM chunk)",
    ],
    ids=["gone", "damaged", "emptied"],
)
def test_verify_finds_items_that_are_gone(tmp_path: Path, statement: str) -> None:
    build("sqlite", tmp_path / "a")
    execute(tmp_path / "a", statement)
    with opened("sqlite", tmp_path / "a") as store:
        report = store.verify()
        assert not report.ok
        assert any(
            damage.what == "items" and "of log 'messages'" in damage.problem for damage in report.damage
        )
        with pytest.raises(everthread.EverthreadError):
            list(store.thread("t").messages)


def test_verify_finds_items_of_a_file_store_that_are_gone(tmp_path: Path) -> None:
    build("file", tmp_path / "a")
    (path,) = (tmp_path / "a").rglob("items-*")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:1] + lines[2:]) if len(lines) > 2 else lines[0][:-20])
    with opened("file", tmp_path / "a") as store:
        assert not store.verify().ok


@pytest.mark.parametrize("source", PLACES)
@pytest.mark.parametrize("target", PLACES)
def test_a_pruned_store_is_salvaged(tmp_path: Path, source: str, target: str) -> None:
    build(source, tmp_path / "a")
    (tmp_path / "b").mkdir()
    report = salvage(PLACES[source].format(tmp_path / "a"), PLACES[target].format(tmp_path / "b"))
    assert report, report.threads
    with opened(source, tmp_path / "a") as old, opened(target, tmp_path / "b") as new:
        wanted, found = old.thread("t"), new.thread("t")
        assert list(found.history(limit=None)) == list(wanted.history(limit=None))
        assert [item["id"] for item in found.messages] == [f"m{number}" for number in range(150)]
        assert found.state.plain() == wanted.state.plain()
        assert new.verify().ok, new.verify().damage
        assert found.commit(key="key 20", label="again") == wanted.commit(key="key 20", label="again")
        found.messages.append({"id": "new"})
        assert found.commit(label="goes on").seq == 151
        assert new.verify().ok
