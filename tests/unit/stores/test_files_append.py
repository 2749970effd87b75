"""Appending to journals: torn writes, errors, and files that somebody else rewrites meanwhile."""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.stores.files import backup, disk

MANY = 20


def opened(path: Path, **options: Any) -> everthread.Store:
    return everthread.open(f"file://{path}", **options)


def say(thread: Any, number: int, size: int = 20) -> None:
    thread.state["count"] = number
    thread.messages.append({"id": f"m{number}", "content": "é" * size})
    thread.commit(metadata={"n": number})


def journal(path: Path) -> Path:
    return max(path.glob("data/threads/*/journal-*.jsonl"))


def count(path: Path, name: str = "a") -> int:
    """How many versions there are, having looked through all of them."""
    with opened(path) as store:
        assert store.verify()
        thread = store.thread(name)
        assert [item["id"] for item in thread.messages] == [f"m{n}" for n in range(thread.head.seq)]
        assert thread.state["count"] == thread.head.seq - 1
        return thread.head.seq


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def live(path: Path) -> Iterator[everthread.Store]:
    """A store with a journal."""
    with opened(path) as store:
        thread = store.thread("a")
        for number in range(MANY):
            say(thread, number)
        yield store


def test_others_see_what_was_written_into_it(live: everthread.Store, path: Path) -> None:
    thread = live.thread("a")
    with opened(path) as other:
        watched = other.thread("a")
        for number in range(MANY, MANY + 4):
            say(thread, number)
            watched.refresh()
            assert watched.head == thread.head
            assert watched.state["count"] == number
        # Two that take turns: each sees the other's, and who is late is told.
        say(watched, MANY + 4)
        with pytest.raises(everthread.ConflictError):
            say(thread, 1000)
        thread.discard()
        thread.refresh()
        for number in range(MANY + 5, MANY + 60):
            writer, reader = (thread, watched) if number % 2 else (watched, thread)
            say(writer, number, number)
            reader.refresh()
            assert reader.head == writer.head
        for number in range(MANY + 60, MANY + 100):
            say(thread, number)
    for number in range(MANY + 100, MANY + 110):
        say(thread, number)
    live.close()
    assert count(path) == MANY + 110


def test_a_torn_version_is_none_and_the_next_one_takes_its_place(
    live: everthread.Store, path: Path, tmp_path: Path
) -> None:
    """Any sectors of what was written last may not have arrived: killed or cut off before it was synced."""
    thread = live.thread("a")
    segment = journal(path)
    before = segment.stat().st_size
    say(thread, MANY, 900)
    data = segment.read_bytes()
    after = len(data)
    edges = [before, *range(before // 512 * 512 + 512, after, 512), after]
    sectors = list(itertools.pairwise(edges))
    assert len(sectors) >= 4
    for lost in range(1, 2 ** len(sectors)):
        torn = bytearray(data)
        for index, (start, stop) in enumerate(sectors):
            if lost >> index & 1:
                torn[start:stop] = bytes(stop - start)
        check_torn(path, tmp_path / f"lost-{lost}", bytes(torn))
    for stop in range(before, after, 97):
        check_torn(path, tmp_path / f"cut-{stop}", data[:stop] + bytes(len(data) - stop))
        check_torn(path, tmp_path / f"short-{stop}", data[:stop])


def test_any_sectors_of_the_last_write_may_be_missing(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines of any length, at any offset: what was synced is believed, and nothing else but the last one as a
    whole; the next ones find their place."""
    rng, path = random.Random(seed), str(tmp_path / "journal")
    monkeypatch.setattr(os, "fdatasync", lambda file: None)
    for _ in range(1500):
        lines = [line(rng, 0)]
        Path(path).write_bytes(lines[0])
        file, _ = whole(path)
        for number in range(1, rng.randrange(2, 9)):
            before = Path(path).read_bytes()
            lines.append(line(rng, number))
            file.prepare()
            file.append(lines[-1])
        file.close()
        Path(path).write_bytes(after_power_cut(rng, before, Path(path).read_bytes()))
        file, found = whole(path)
        assert found in (lines, lines[:-1])
        more = [line(rng, 98), line(rng, 99)]
        for text in more:
            file.prepare()
            file.append(text)
            file.grow()
        file.close()
        file, after = whole(path)
        file.close()
        assert after == [*found, *more]


def line(rng: random.Random, number: int) -> bytes:
    length = rng.choice([0, 1, rng.randrange(60), rng.randrange(700), rng.randrange(3000)])
    return disk.record_of({"seq": number, "text": rng.choice(["x", " ", "é"]) * length})


def whole(path: str) -> tuple[disk.RecordFile, list[bytes]]:
    """A file that was read from its beginning, and its lines."""
    file, found = disk.RecordFile(path, disk.Disk(durable=True)), []
    while more := file.grow():
        assert all(good for _, _, good in more)
        found += [text for _, text, _ in more]
    return file, found


def after_power_cut(rng: random.Random, before: bytes, after: bytes) -> bytes:
    """What the disk may hold if the last write wasn't synced: any sectors of it, else what was there."""
    found, kept = bytearray(), rng.choice([0.5, 0.9])
    for at in range(0, len(after), 512):
        source = after if rng.random() < kept else before
        found += source[at : at + 512].ljust(len(after[at : at + 512]), b"\0")
    size = rng.choice([len(before), len(after), len(after), rng.randint(len(before), len(after))])
    return bytes(found[:size])


def check_torn(path: Path, copy: Path, torn: bytes) -> None:
    shutil.copytree(path, copy)
    journal(copy).write_bytes(torn)
    with opened(copy) as store:
        thread = store.thread("a")
        assert store.verify()
        assert thread.head.seq == MANY
        say(thread, MANY, 1)
    assert count(copy) == MANY + 1
    shutil.rmtree(copy)


def test_a_flipped_bit_is_damage_or_harmless(live: everthread.Store, path: Path, tmp_path: Path) -> None:
    data = journal(path).read_bytes()
    end = len(data)
    last = data.rfind(b"\n", 0, end - 1) + 1
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    for at in range(last, end):
        wounded = bytearray(data)
        wounded[at] ^= 1 << at % 8
        journal(copy).write_bytes(wounded)
        with opened(copy, durability="process") as store:
            if last <= at < end - 1:
                assert not store.verify(), at
                assert store.thread("a").recovered is not None, at
            else:
                # The newline: nothing is wrong with any version.
                assert store.verify(), at
                assert store.thread("a").head.seq == MANY, at
        assert len(journal(copy).read_bytes()) <= len(data)


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_an_error_leaves_the_old_state(
    live: everthread.Store, path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    thread = live.thread("a")
    before = journal(path).read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(everthread.StorageWriteError):
            say(thread, MANY)
    assert journal(path).read_bytes() == before
    thread.commit(metadata={"n": MANY})
    for number in range(MANY + 1, MANY + 30):
        say(thread, number)
    live.close()
    assert count(path) == MANY + 30


def test_a_file_that_was_replaced_is_noticed_in_the_middle_of_many_saves(
    live: everthread.Store, path: Path
) -> None:
    thread, segment = live.thread("a"), journal(path)
    other = segment.with_name("other")
    other.write_bytes(segment.read_bytes())
    say(thread, MANY)
    other.rename(segment)
    with pytest.raises(everthread.ConflictError):
        say(thread, MANY + 1)


def test_a_journal_that_another_store_rewrites_gets_what_is_saved_next(
    live: everthread.Store, path: Path
) -> None:
    thread, second = live.thread("a"), live.thread("b")
    for number in range(3):
        say(second, number)
    say(thread, MANY)
    with opened(path) as other:
        for round_ in range(3):
            pruned = other.gc(everthread.Retention(keep_last=5))
            assert pruned.versions, "the journals are others now"
            # The one that comes first must not make the other believe that all was seen to.
            say(second, 100 + round_)
            for number in range(8):
                say(thread, MANY + 10 * round_ + number + 1)
            for number in range(8):
                say(second, 200 + number)
    live.close()
    with opened(path) as store:
        assert store.thread("a").head == thread.head
        assert store.thread("b").head == second.head
        assert store.verify()


def test_what_is_saved_after_another_store_restored_a_backup_is_not_written_to_what_was_there(
    live: everthread.Store, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = live.thread("a")
    live.backup(str(tmp_path / "backup"))
    say(thread, MANY)
    with opened(path) as other:
        # Killed before it could take the former content away.
        monkeypatch.setattr(backup, "remove_others", lambda root, content: None)
        other.restore(str(tmp_path / "backup"))
        with pytest.raises(everthread.ConflictError):
            say(thread, MANY + 1)
