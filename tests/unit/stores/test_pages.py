"""Reading a SQLite file without SQLite gives what SQLite gives."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest

from everthread.stores.sqlite.pages import Pages


def rows(pages: Pages, root: int) -> dict[int, list[Any]]:
    found = {}
    for leaf in pages.leaves(root, set()):
        for offset in pages.cells(leaf):
            row = pages.row((leaf, offset))
            assert row is not None
            found[row[0]] = row[1]
    return found


def roots(pages: Pages) -> dict[str, int]:
    return {columns[1]: columns[3] for columns in rows(pages, 1).values()}


def make(path: Path, page_bytes: int, seed: int) -> apsw.Connection:
    rng = random.Random(seed)
    db = apsw.Connection(str(path))
    db.pragma("page_size", page_bytes)
    db.pragma("journal_mode", "WAL")
    db.execute("CREATE TABLE a (id INTEGER PRIMARY KEY, n, t, b, r)")
    db.execute("CREATE INDEX a_t ON a (t)")
    numbers = [0, 1, -1, 127, 128, -129, 2**15, 2**23, -(2**31), 2**40, -(2**47), 2**62, -(2**63), None]
    for key in [*range(-3, 300), 2**40, 2**62, -(2**62)]:
        text = "ä" * rng.choice([0, 1, 20, 300])
        data = rng.randbytes(rng.choice([0, 1, 40, page_bytes - 40, page_bytes, 5 * page_bytes]))
        db.execute(
            "INSERT INTO a VALUES (?, ?, ?, ?, ?)", (key, rng.choice(numbers), text, data, rng.random())
        )
    return db


@pytest.mark.parametrize("page_bytes", [512, 4096, 65536])
def test_every_row_of_a_file_and_its_log(tmp_path: Path, page_bytes: int, seed: int) -> None:
    db = make(tmp_path / "a.db", page_bytes, seed)
    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    db.execute("DELETE FROM a WHERE id % 7 = 0")
    db.execute("UPDATE a SET b = zeroblob(1000) WHERE id % 11 = 0")
    db.execute("BEGIN; DELETE FROM a; ROLLBACK")
    wanted = {row[0]: [None, *row[1:]] for row in db.execute("SELECT * FROM a")}
    entries = sorted(row for row in db.execute("SELECT t, id FROM a"))
    pages = Pages(str(tmp_path / "a.db"))
    where = roots(pages)
    assert rows(pages, where["a"]) == wanted
    found = [
        pages.entry((leaf, offset))
        for leaf in pages.leaves(where["a_t"], set(), index=True)
        for offset in pages.cells(leaf, index=True)
    ]
    assert sorted(tuple(entry or ()) for entry in found) == entries
    assert not pages.log_damaged
    pages.close()
    db.close()


def test_frames_behind_a_damaged_one_still_count(tmp_path: Path, seed: int) -> None:
    db = make(tmp_path / "a.db", 4096, seed)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    for number in range(40):
        db.execute("INSERT INTO a (n, b) VALUES (?, randomblob(3000))", (number,))
    copy = tmp_path / "copy.db"
    for suffix in ("", "-wal"):
        shutil.copy(f"{tmp_path}/a.db{suffix}", f"{copy}{suffix}")
    last = db.execute("SELECT id, n FROM a ORDER BY id DESC LIMIT 1").fetchall()[0]
    db.close()
    raw = bytearray(Path(f"{copy}-wal").read_bytes())
    raw[32 + 3 * (24 + 4096) + 500] ^= 1
    Path(f"{copy}-wal").write_bytes(raw)
    pages = Pages(str(copy))
    assert pages.log_damaged == 1
    assert rows(pages, roots(pages)["a"])[int(last[0])][1] == last[1]
    pages.close()
    # SQLite itself stops at the first bad frame.
    stopped = apsw.Connection(str(copy))
    assert stopped.execute("SELECT max(id) FROM a").fetchall()[0][0] != last[0]
    stopped.close()


def test_nonsense_is_survived(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    make(tmp_path / "a.db", 512, seed).close()
    raw = (tmp_path / "a.db").read_bytes()
    for _ in range(150):
        spoilt = bytearray(raw)
        for _ in range(rng.choice([1, 10, 1000])):
            spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
        (tmp_path / "b.db").write_bytes(spoilt[: rng.choice([len(spoilt), rng.randrange(len(spoilt))])])
        pages = Pages(str(tmp_path / "b.db"))
        pages.free()
        for number in range(1, min(pages.count, 2000) + 1):
            for index in (False, True):
                for leaf in pages.leaves(number, set(), index=index):
                    for offset in pages.cells(leaf, index=index):
                        _ = pages.entry((leaf, offset)) if index else pages.row((leaf, offset))
                    break
        pages.close()
    assert (tmp_path / "a.db").read_bytes() == raw
    assert not os.path.exists(tmp_path / "b.db-wal")
