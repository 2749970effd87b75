"""The archive as a file: whole or refused, and nothing changes before it is known to be whole."""

from __future__ import annotations

import os
import random
import stat
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

import everthread
from everthread import Personal, Store
from everthread.codec import records
from everthread.codec.archive import MAGIC, EndEntry, Header, read_entry, write_entry
from everthread.errors import (
    EverthreadError,
    NotFoundError,
    SchemaVersionError,
    StateCorruptedError,
    StoreBusyError,
    StoreUnavailableError,
    UsageError,
)
from everthread.transfer.archive_file import PARTIAL, ArchiveReader, ArchiveWriter


def fill(store: Store) -> None:
    thread = store.thread("bot")
    for number in range(80):
        thread.state["n"] = number
        thread.messages.append({"role": "user", "content": f"message {number}"})
        thread.commit()
    thread.state["who"] = Personal("u1", "a secret")
    thread.commit()
    thread.fork("other", at=40)
    store.events("tasks").append("made", {"n": 1})


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "store.archive"
    with everthread.open("memory:") as store:
        fill(store)
        report = store.export(path)
    assert (report.threads, report.versions, report.events, report.sealed) == (2, 81, 1, 1)
    assert report.bytes == path.stat().st_size
    return path


def test_an_archive_is_private_and_never_overwrites(archive: Path) -> None:
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    before = archive.read_bytes()
    with everthread.open("memory:") as store, pytest.raises(UsageError, match="there already"):
        store.export(archive)
    assert archive.read_bytes() == before
    assert os.listdir(archive.parent) == [archive.name]


def test_what_is_sealed_is_not_in_clear(archive: Path) -> None:
    opened = b"".join(
        records.expand(data, "a record") if data else b"" for data in _records(archive.read_bytes())
    )
    assert b"message 79" in opened
    assert b"a secret" not in opened


def test_any_wrong_byte_is_found_and_nothing_is_written(archive: Path, tmp_path: Path, seed: int) -> None:
    whole = archive.read_bytes()
    chance = random.Random(seed)
    broken = tmp_path / "broken"
    with everthread.open("memory:") as store:
        places = [*range(120), *chance.sample(range(len(whole)), 150), len(whole) - 1]
        for place in places:
            data = bytearray(whole)
            data[place] ^= 1 << chance.randrange(8)
            broken.write_bytes(data)
            with pytest.raises((StateCorruptedError, UsageError, SchemaVersionError)):
                store.import_from(broken)
        for length in (0, 5, len(MAGIC), len(MAGIC) + 3, len(whole) // 2, len(whole) - 1):
            broken.write_bytes(whole[:length])
            with pytest.raises((StateCorruptedError, UsageError)):
                store.import_from(broken)
        broken.write_bytes(whole + b"x")
        with pytest.raises(StateCorruptedError, match="follows its end"):
            store.import_from(broken)
        assert list(store.threads()) == []
        assert store.stats().totals.events == (0, 0)


def _records(data: bytes) -> list[bytes]:
    found, at = [], len(MAGIC)
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        found.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return found


def _joined(parts: list[bytes]) -> bytes:
    return MAGIC + b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def test_records_that_are_missing_doubled_or_exchanged_are_found(archive: Path, tmp_path: Path) -> None:
    parts = _records(archive.read_bytes())
    broken = tmp_path / "broken"
    with everthread.open("memory:") as store:
        for other in (
            parts[:3] + parts[4:],
            [*parts[:3], parts[2], *parts[3:]],
            [*parts[:2], parts[3], parts[2], *parts[4:]],
            parts[:-1],
            parts[1:],
        ):
            broken.write_bytes(_joined(other))
            with pytest.raises(StateCorruptedError):
                store.import_from(broken)
        assert list(store.threads()) == []


def _rewritten(parts: list[bytes], change: Any) -> bytes:
    """An archive whose sums are right, but whose entries somebody altered."""
    entries = [change(read_entry(part, number)) for number, part in enumerate(parts[:-1])]
    data = MAGIC + b"".join(write_entry(number, entry) for number, entry in enumerate(entries))
    return data + write_entry(len(entries), EndEntry(len(entries), sha256(data).digest()))


def test_an_archive_with_right_sums_and_another_past_is_refused(archive: Path, tmp_path: Path) -> None:
    parts = _records(archive.read_bytes())
    broken = tmp_path / "broken"
    broken.write_bytes(_rewritten(parts, lambda entry: entry))
    assert broken.read_bytes() == archive.read_bytes()

    def altered(entry: Any) -> Any:
        if hasattr(entry, "versions") and not isinstance(entry, Header):
            head, change, blocks = entry.versions[0]
            return msgspec.structs.replace(
                entry, versions=[(head, change.replace(b"n", b"m", 1), blocks), *entry.versions[1:]]
            )
        return entry

    broken.write_bytes(_rewritten(parts, altered))
    with everthread.open("memory:") as store:
        with pytest.raises(StateCorruptedError, match="hashes"):
            store.import_from(broken)
        assert list(store.threads()) == []


def test_a_newer_archive_says_so(archive: Path, tmp_path: Path) -> None:
    parts = _records(archive.read_bytes())
    newer = tmp_path / "newer"
    newer.write_bytes(
        _rewritten(parts, lambda e: msgspec.structs.replace(e, format=2) if isinstance(e, Header) else e)
    )
    unknown = records.compress(msgspec.msgpack.encode((1, [99, "future"])))
    with everthread.open("memory:") as store:
        with pytest.raises(SchemaVersionError, match="format 2"):
            store.import_from(newer)
        newer.write_bytes(_joined([parts[0], unknown]))
        with pytest.raises(SchemaVersionError, match="kind"):
            store.import_from(newer)


def test_what_is_no_archive_is_named(tmp_path: Path) -> None:
    with everthread.open("memory:") as store:
        with pytest.raises(NotFoundError, match="no archive"):
            store.import_from(tmp_path / "nothing")
        with pytest.raises(EverthreadError):
            store.import_from(tmp_path)
        other = tmp_path / "text"
        other.write_text("everthread is great")
        with pytest.raises(UsageError, match="isn't an Everthread archive"):
            store.import_from(other)
        with pytest.raises(StoreUnavailableError):
            store.export(tmp_path / "no folder" / "x")


def test_an_export_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    with everthread.open("memory:") as store:
        fill(store)
        monkeypatch.setattr(ArchiveWriter, "finish", _full)
        with pytest.raises(EverthreadError):
            store.export(path)
        assert os.listdir(tmp_path) == []
        monkeypatch.undo()
        # One that was killed left its beginning behind; another one that runs holds it.
        (tmp_path / f"a{PARTIAL}").write_bytes(b"half")
        held = ArchiveWriter(str(path))
        with pytest.raises(StoreBusyError):
            store.export(path)
        held.abandon()
        (tmp_path / f"a{PARTIAL}").write_bytes(b"half")
        store.export(path)
        assert os.listdir(tmp_path) == ["a"]
    with ArchiveReader(str(path)) as reader:
        assert len(list(reader)) > 3


def _full(self: Any) -> None:
    raise everthread.StorageWriteError("the disk is full")


def test_a_damaged_table_of_threads_is_not_taken_for_a_shorter_one(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with everthread.open(f"sqlite:///{path}") as store:
        for name in "abc":
            store.thread(name).commit(label="x")
    db = apsw.Connection(str(path))
    db.execute("UPDATE line SET sum = sum + 1 WHERE name = 'b'")
    db.close()
    with everthread.open(f"sqlite:///{path}") as store:
        with pytest.raises(StateCorruptedError, match="nothing was taken out"):
            store.export(tmp_path / "all.archive")
        assert not (tmp_path / "all.archive").exists()
        with everthread.open("memory:") as target, pytest.raises(StateCorruptedError):
            store.copy_to(target)
        with pytest.raises(StateCorruptedError, match="weren't looked through"):
            list(store.scan("needle"))
