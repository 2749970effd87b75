"""What the page reader finds in damaged files of the SQLite store."""

from __future__ import annotations

import os
import random
import shutil
import zlib
from pathlib import Path
from typing import Any

import apsw
import pytest

from everthread.stores.interface import Batch, Key, Span, run
from everthread.stores.sqlite.salvage import DamagedFile, Found
from tests.contract.stores import KEY, ROW, TABLES, accept, delete, head, open_sqlite, put, row

PAGE = 4096


def _checked(key: Key, value: bytes) -> tuple[Key, bytes]:
    return key, value + zlib.crc32(repr(key).encode() + value).to_bytes(4, "big")


def _fits(key: Key, value: bytes) -> bool:
    return _checked(key, value[:-4])[1] == value


@pytest.fixture
def stored(tmp_path: Path) -> dict[Key, bytes]:
    """The content of a store: values of all shapes and sizes, on many pages; some of it only in the log."""
    rng = random.Random(5)
    store = open_sqlite(tmp_path, wal_autocheckpoint=0)
    content = dict(
        [_checked(row(at, owner), rng.randbytes(rng.choice((0, 20, 900, 9_000))))
         for owner in (1, 2) for at in range(1, 120)]
        + [_checked((KEY.number, 1, b"%d" % at * 90), rng.randbytes(30)) for at in range(150)]
        + [_checked(head(b"%d" % at), rng.randbytes(150)) for at in range(300)]
    )  # fmt: skip
    accept(store, put(*content.items()))
    db = apsw.Connection(str(tmp_path / "store.db"))
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()
    newer = dict([_checked(head(b"1"), b"newer"), _checked(row(500), b"newer" * 2_000)])
    accept(store, put(*newer.items()), delete(head(b"2")), Batch(deletes=(Span(ROW.number, 2, 1, 10),)))
    (tmp_path / "copy").mkdir()
    for ending in ("", "-wal"):
        shutil.copyfile(tmp_path / f"store.db{ending}", tmp_path / "copy" / f"store.db{ending}")
    run(store.close())
    content |= newer
    del content[head(b"2")]
    for at in range(1, 10):
        del content[row(at, 2)]
    return content


def _read(path: Path) -> tuple[dict[Key, bytes], list[Found], list[str]]:
    """What is found: the reachable values, all others, and what couldn't be read."""
    file = DamagedFile(str(path), TABLES, _fits)
    try:
        found = list(file.values())
    finally:
        file.close()
    reachable = {each.key: each.value for each in found if each.reachable}
    return reachable, [each for each in found if not each.reachable], file.problems


def test_a_sound_file_is_read_whole_with_its_log(tmp_path: Path, stored: Any) -> None:
    before = {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()}
    assert _read(tmp_path / "copy" / "store.db") == (stored, [], [])
    assert {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()} == before


def test_values_survive_the_loss_of_the_pages_that_lead_to_them(tmp_path: Path, stored: Any) -> None:
    """The first page holds the definitions, the root of a table leads to all of its pages."""
    path = tmp_path / "copy" / "store.db"
    os.unlink(f"{path}-wal")
    db = apsw.Connection(str(path))
    roots = dict(db.execute("SELECT name, rootpage FROM sqlite_schema WHERE rootpage > 0").fetchall())
    db.close()
    whole = _read(path)[0]
    data = path.read_bytes()
    for name in ("sqlite_schema", "row", "entry", "head"):
        damaged = bytearray(data)
        start = (roots.get(name, 1) - 1) * PAGE
        damaged[start : start + PAGE] = bytes(PAGE)
        path.write_bytes(damaged)
        reachable, others, problems = _read(path)
        found = {each.key: each.value for each in others} | reachable
        assert all(whole[key] == value for key, value in found.items())
        missing = whole.keys() - found.keys()
        # The root of a table that is kept as an index also holds entries itself.
        assert len(missing) <= (30 if name in ("entry", "head") else 0), name
        assert problems


def test_nothing_false_is_found_in_a_file_with_random_damage(tmp_path: Path, stored: Any) -> None:
    path = tmp_path / "copy" / "store.db"
    data, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    least = len(stored)
    ever = dict(stored) | {each.key: each.value for each in _read(path)[1]}
    for seed in range(40):
        rng = random.Random(seed)
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 6)):
            at, size = rng.randrange(len(data)), rng.choice((1, 8, 200, PAGE))
            damaged[at : at + size] = rng.randbytes(size)
        path.write_bytes(damaged[: rng.choice((len(data), len(data) * 2 // 3))])
        Path(f"{path}-wal").write_bytes(log if seed % 2 else log[: rng.randrange(len(log))])
        reachable, others, _ = _read(path)
        for key, value in [*reachable.items(), *((each.key, each.value) for each in others)]:
            assert _fits(key, value)
            assert key in ever or key in (head(b"2"), *(row(at, 2) for at in range(1, 10)))
        least = min(least, len(reachable.keys() | {each.key for each in others}))
    assert least > len(stored) // 4
