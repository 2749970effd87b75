"""Salvaging what was pruned, and what somebody else has open."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

import everthread
from everthread import Personal, Retention, salvage
from everthread.stores.contract import PRUNED, Line
from everthread.stores.sqlite.pages import SqliteSalvageSource

JOURNAL = "SELECT id FROM line WHERE name <> 'a' AND id > 0"


@pytest.mark.parametrize("inside", [False, True], ids=["thread", "journal"])
def test_the_version_after_pruned_ones_is_damaged(inside: bool, tmp_path: Path) -> None:
    """Nobody knows what the pruned versions came to: the thread goes on from what tells a whole state."""
    url, path = f"sqlite:///{tmp_path}/store.db", tmp_path / "store.db"
    with everthread.open(url, durability="process") as store:
        thread = store.thread("a")
        for number in range(30):
            thread.state["n"] = number
            thread.messages.append({"id": str(number), "content": f"message {number}"})
            thread.commit()
        for number in range(30 if inside else 0):
            with store.session("a") as session:
                session.call(f"pay {number}", lambda: 1)
        store.gc(Retention(keep_last=10))
    db = apsw.Connection(str(path))
    ((line,),) = db.execute("SELECT id FROM line WHERE name = 'a'" if not inside else JOURNAL).fetchall()
    rows = db.execute("SELECT id, kind FROM record WHERE id >> 32 = ? ORDER BY id", (line,)).fetchall()
    at = next(number for number, (_, kind) in enumerate(rows) if kind == PRUNED)
    db.execute("UPDATE record SET body = x'00' WHERE id = ?", (rows[at + 1][0],))
    db.close()
    report = salvage(url, f"sqlite:///{tmp_path}/saved.db")
    assert report.threads
    with everthread.open(f"sqlite:///{tmp_path}/saved.db", durability="process") as saved:
        assert {info.name for info in saved.threads()} == {"a"}
        assert saved.thread("a").state["n"] == 29
        assert saved.thread("a").messages[-1]["id"] == "29"
        assert saved.verify()


def test_rows_that_others_move_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has the store open goes on: something else stands where rows were noted."""
    url, path = f"sqlite:///{tmp_path}/store.db", tmp_path / "store.db"
    with everthread.open(url, keyring="memory:") as store:
        for number in range(4):
            thread = store.thread(f"thread {number}")
            for person in ("ann", "bob"):
                thread.state[person] = [Personal(person, f"{number} {'x' * 300}"), Personal(person, "y")]
            thread.messages.extend({"content": "z" * 100} for _ in range(20))
            thread.commit()
            store.events("tasks").append("made", {"number": number})
            store.users.set("ann", str(number), "value")
        remains = SqliteSalvageSource(str(path))
        there = remains._pages.row
        other = [None, 1, "text"]
        monkeypatch.setattr(remains._pages, "row", lambda place, passed=None: (there(place)[0], other))
        monkeypatch.setattr(remains._pages, "entry", lambda place, passed=None: other)
        assert not [*remains.sealed(), *remains.cells()]
        assert not any(stream.events for stream in remains.streams())
        for line in (entry.id for entry in remains.lines() if isinstance(entry, Line)):
            assert not any(remains.chunk(chunk.place) for chunk in remains.chunks(line))
            assert not any(remains.relic(place) for _, place in remains.rows(line))
        remains.close()
