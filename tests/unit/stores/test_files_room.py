"""Room at the end of a journal: where it comes from, who takes it away, and that nobody is misled by it."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import random
import runpy
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.stores.files import access, copies, disk, jsonl, linefile, locks, room

ROOT = Path(__file__).resolve().parents[3]
#: Enough to have room, few enough to have much of it left.
MANY = room.ROOM_AFTER + 4


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
    """A store with room at the end of its only journal."""
    with opened(path) as store:
        thread = store.thread("a")
        for number in range(MANY):
            say(thread, number)
        assert journal(path).read_bytes().endswith(b" " * 4096)
        yield store


def test_it_comes_late_and_goes_when_the_store_is_closed(path: Path) -> None:
    with opened(path) as store:
        thread = store.thread("a")
        for number in range(room.ROOM_AFTER):
            say(thread, number)
            assert journal(path).read_bytes().endswith(b"}\n")
        sizes = set()
        for number in range(room.ROOM_AFTER, MANY):
            say(thread, number)
            sizes.add(journal(path).stat().st_size)
        assert len(sizes) < MANY - room.ROOM_AFTER
        *versions, rest = journal(path).read_bytes().splitlines(keepends=True)
        assert len(versions) == MANY + 1, "a header, and a line for each version"
        assert not rest.strip(b" ")
        assert len(rest) <= room.ROOM_BYTES
        for number in range(MANY, 300):
            say(thread, number)
    assert journal(path).read_bytes().endswith(b"}\n")
    assert count(path) == 300


def test_a_commit_that_waits_for_no_disk_makes_none(path: Path) -> None:
    with opened(path, durability="process") as store:
        thread = store.thread("a")
        for number in range(MANY + 5):
            say(thread, number)
            assert journal(path).read_bytes().endswith(b"}\n")


def test_what_a_killed_process_left_is_used_and_taken_away(
    live: everthread.Store, path: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    size = journal(copy).stat().st_size
    with opened(copy) as store:
        thread = store.thread("a")
        assert thread.head.seq == MANY
        say(thread, MANY)
        assert journal(copy).stat().st_size == size
    assert journal(copy).read_bytes().endswith(b"}\n")
    assert count(copy) == MANY + 1
    # Whoever only looks leaves it tidy, too.
    shutil.rmtree(copy)
    shutil.copytree(path, copy)
    assert count(copy) == MANY
    assert journal(copy).read_bytes().endswith(b"}\n")


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
    # Closing the other one took the room from under this one.
    assert journal(path).read_bytes().endswith(b"}\n")
    for number in range(MANY + 100, MANY + 110):
        say(thread, number)
    assert journal(path).read_bytes().endswith(b" ")
    live.close()
    assert count(path) == MANY + 110


def test_the_reader_of_the_format_knows_it(live: everthread.Store, path: Path) -> None:
    read = runpy.run_path(str(ROOT / "examples" / "file_reader.py"))["lines_in"]
    assert [line.get("seq") for line in read(journal(path))] == [None, *range(1, MANY + 1)]


def test_a_torn_version_is_none_and_the_next_one_takes_its_place(
    live: everthread.Store, path: Path, tmp_path: Path
) -> None:
    """Any sectors of what was written last may not have arrived: killed or cut off before it was synced."""
    thread = live.thread("a")
    segment = journal(path)
    before = len(segment.read_bytes().rstrip(b" "))
    say(thread, MANY, 900)
    data = segment.read_bytes()
    after = len(data.rstrip(b" "))
    edges = [before, *range(before // 512 * 512 + 512, after, 512), after]
    sectors = list(itertools.pairwise(edges))
    assert len(sectors) >= 4
    for lost in range(1, 2 ** len(sectors)):
        torn = bytearray(data)
        for index, (start, stop) in enumerate(sectors):
            if lost >> index & 1:
                torn[start:stop] = b" " * (stop - start)
        check_torn(path, tmp_path / f"lost-{lost}", bytes(torn))
    for stop in range(before, after, 97):
        check_torn(path, tmp_path / f"cut-{stop}", data[:stop] + b" " * (len(data) - stop))


def test_neither_version_nor_room_need_have_arrived(
    live: everthread.Store, path: Path, tmp_path: Path
) -> None:
    """Where both are new, the disk shows zeros instead, however few of them are in the version."""
    thread = live.thread("a")
    before = len(journal(path).read_bytes().rstrip(b" "))
    say(thread, MANY)
    data = journal(path).read_bytes().rstrip(b" ")
    for lost in (2, 30, 300):
        for rest in (
            b"",
            bytes(512),
            b" " * 100 + bytes(512),
            b" " * 90 + bytes(512) + b" " * 700,
            b" " * 50,
        ):
            torn = data[:before] + bytes(lost) + data[before + lost :] + rest
            check_torn(path, tmp_path / f"lost-{lost}", torn)


def test_any_sectors_of_the_last_write_may_be_missing(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines of any length, at any offset, with and without room: what was synced is believed, and nothing
    else but the last one as a whole; the next ones find their place."""
    rng, path = random.Random(seed), str(tmp_path / "journal")
    monkeypatch.setattr(os, "fdatasync", lambda file: None)
    for _ in range(1500):
        monkeypatch.setattr(room, "ROOM_AFTER", rng.choice([0, 0, 1, 3]))
        lines = [line(rng, 0)]
        Path(path).write_bytes(lines[0])
        file, _ = whole(path)
        for number in range(1, rng.randrange(2, 9)):
            before = Path(path).read_bytes()
            lines.append(line(rng, number))
            assert file.append_at_once(lines[-1], 0, 0.0)
        file.close()
        Path(path).write_bytes(after_power_cut(rng, before, Path(path).read_bytes()))
        file, found = whole(path)
        assert found in (lines, lines[:-1])
        more = [line(rng, 98), line(rng, 99)]
        if rng.random() < 0.5 or not file.append_at_once(more[0], 0, 0.0):
            file.prepare()
            file.append(more[0])
        assert file.append_at_once(more[1], 0, 0.0)
        file.close()
        file, after = whole(path)
        file.close()
        assert after == [*found, *more]


def line(rng: random.Random, number: int) -> bytes:
    length = rng.choice([0, 1, rng.randrange(60), rng.randrange(700), rng.randrange(3000)])
    return jsonl.stamped({"seq": number, "text": rng.choice(["x", " ", "é"]) * length})


def whole(path: str) -> tuple[linefile.LineFile, list[bytes]]:
    """A file that was read from its beginning, and its lines."""
    file, found = linefile.LineFile(path, disk.Disk(durable=True)), []
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
    end = len(data.rstrip(b" "))
    last = data.rfind(b"\n", 0, end - 1) + 1
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    for at in [*range(last, end + 3), end + 700, len(data) - 1]:
        wounded = bytearray(data)
        wounded[at] ^= 1 << at % 8
        journal(copy).write_bytes(wounded)
        with opened(copy, durability="process") as store:
            if last <= at < end - 1:
                assert not store.verify(), at
                assert store.thread("a").recovered is not None, at
            else:
                # Nothing is wrong with any version, be it the newline or the room.
                assert store.verify(), at
                assert store.thread("a").head.seq == MANY, at
        assert len(journal(copy).read_bytes()) <= len(data)


def test_a_full_disk_takes_versions_as_long_as_it_can(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, refused = os.pwrite, []

    def full(file: int, data: bytes, offset: int) -> int:
        if data.endswith(b"   "):
            # Some of it fits.
            refused.append(real(file, data[: len(data) // 2], offset))
            raise OSError(errno.ENOSPC, "no space left")
        return real(file, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with opened(path) as store:
        thread = store.thread("a")
        for number in range(3 * room.ROOM_AFTER):
            say(thread, number)
            assert journal(path).read_bytes().endswith(b"}\n")
    assert len(refused) == 2, "it isn't tried every time"
    assert count(path) == 3 * room.ROOM_AFTER


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_an_error_leaves_the_old_state(
    live: everthread.Store, path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    thread = live.thread("a")
    before = journal(path).read_bytes().rstrip(b" ")

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


def test_what_ends_a_segment_leaves_none(
    live: everthread.Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from everthread.stores.files import packing

    first, thread = journal(path), live.thread("a")
    thread.fork("b").commit(label="so that something is left")
    monkeypatch.setattr(packing, "SEGMENT_BYTES", 1000)
    for number in range(MANY, 90):
        say(thread, number)
    assert journal(first.parents[3]) != first
    assert first.read_bytes().endswith(b"}\n")
    last = max(first.parent.glob("journal-*.jsonl"))
    assert last.read_bytes().endswith(b" ")
    thread.delete()
    assert last.read_bytes().endswith(b"}\n")


def test_copies_sizes_and_salvage_leave_it_out(live: everthread.Store, path: Path, tmp_path: Path) -> None:
    length = len(journal(path).read_bytes().rstrip(b" "))
    live.backup(str(tmp_path / "backup"))
    assert journal(tmp_path / "backup").read_bytes() == journal(path).read_bytes().rstrip(b" ")
    assert count(tmp_path / "backup") == MANY
    backend = live._core.backend
    assert backend.usage(backend.find("", "a").line.id).records == length
    shutil.copytree(path, tmp_path / "copy")
    report = everthread.salvage(f"file://{tmp_path / 'copy'}", f"file://{tmp_path / 'salvaged'}")
    assert not report.problems
    assert count(tmp_path / "salvaged") == MANY


def test_lines_that_fall_out_of_mind_are_trimmed_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from everthread.stores.files import lines

    monkeypatch.setattr(lines, "TRACKS_MAX", 2)
    with opened(path) as store:
        for name in "abcd":
            thread = store.thread(name)
            for number in range(MANY):
                say(thread, number)
        assert sum(found.read_bytes().endswith(b" ") for found in path.rglob("journal-*.jsonl")) == 4
    assert all(found.read_bytes().endswith(b"}\n") for found in path.rglob("journal-*.jsonl"))


def test_a_child_takes_nothing_away(live: everthread.Store, path: Path) -> None:
    size = journal(path).stat().st_size
    child = os.fork()
    if not child:
        live.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    say(live.thread("a"), MANY)
    assert journal(path).stat().st_size >= size - room.ROOM_BYTES
    live.close()
    assert count(path) == MANY + 1


def test_a_file_that_was_replaced_is_noticed_in_the_middle_of_many_saves(
    live: everthread.Store, path: Path
) -> None:
    thread, segment = live.thread("a"), journal(path)
    other = segment.with_name("other")
    other.write_bytes(segment.read_bytes())
    say(thread, MANY)
    other.rename(segment)
    # What people do shows after a few milliseconds.
    time.sleep(0.01)
    with pytest.raises(everthread.ConflictError):
        say(thread, MANY + 1)


@pytest.fixture
def never_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks whether people have replaced files: only what processes tell each other is left."""
    for module in (access, linefile, locks):
        monkeypatch.setattr(module, "_LOOK_S", 3600.0)


def test_a_journal_that_another_store_rewrites_gets_what_is_saved_next(
    never_looking: None, live: everthread.Store, path: Path
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
    never_looking: None, live: everthread.Store, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = live.thread("a")
    live.backup(str(tmp_path / "backup"))
    say(thread, MANY)
    with opened(path) as other:
        # Killed before it could take the former content away.
        monkeypatch.setattr(copies, "remove_others", lambda root, content: None)
        other.restore(str(tmp_path / "backup"))
        with pytest.raises(everthread.ConflictError):
            say(thread, MANY + 1)


def test_a_look_says_what_the_system_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(count: room.CountNames) -> None:
        with (tmp_path / "file").open("w+b") as file:
            for size in (0, 1, 70_000, 5 << 32):
                file.truncate(size)
                assert count(file.fileno()) == 1
            os.link(tmp_path / "file", tmp_path / "second")
            assert count(file.fileno()) == 2
            os.unlink(tmp_path / "second")
            os.unlink(tmp_path / "file")
            assert count(file.fileno()) == 0
        with pytest.raises(OSError, match="Bad file descriptor"):
            count(-1)

    assert sys.platform != "linux" or room.make_count_names() is not room.count_names
    check(room.make_count_names())
    monkeypatch.setattr(room, "_EMPTY_PATH", -1)
    check(room.make_count_names())
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    assert room.make_count_names() is room.count_names
    check(room.count_names)


def test_spaces_in_a_message_are_no_room() -> None:
    """Where nothing is missing nothing is torn: only a whole sector of spaces may be one that was lost."""
    line = b'{"seq":7,"content":"' + b" " * 700 + b'","sum":"01234567"}\n'
    inside = line.index(b"  ")
    assert not room.shows_room(line, 512 - inside - 300)
    assert room.shows_room(line, 512 - inside)
    assert linefile.first_torn([line], [False], 512 - inside - 300) == 1
