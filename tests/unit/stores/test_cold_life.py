"""What else happens to threads that are in an archive: forks, rewinds, erasure, pruning, expiry, copies."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Personal, Store
from everthread.errors import UnsupportedError, VersionPrunedError
from everthread.testing.driver import DrivenStore
from everthread.values import Erased
from tests.servers.colours import Url, behind
from tests.unit.stores.cooling import STORES, is_cold, later, opened, picture, place, write

KINDS = [*STORES, "valkey async"]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    kind, _, colour = request.param.partition(" ")
    with opened(Url(place(request, kind, tmp_path), colour), tmp_path) as store:
        store.core.folder.records_max = 4
        yield store
        assert store.verify()


def cooled(store: Store, threads: int = 1) -> None:
    """All are away, and nobody remembers anything of them."""
    later(3600)
    report = store.cool(1800)
    assert (report.threads, report.problems) == (threads, ())
    store.core.head_cache.clear()


def test_a_fork_of_what_is_away(store: Store, seed: int) -> None:
    write(store, "a", 30, random.Random(seed))
    before = picture(store, "a")
    past = store.thread("a").at(11).version
    cooled(store)
    late = store.thread("a")
    fork = late.fork("b", at=past)
    for number in range(2):
        fork.state["forked"] = number
        fork.commit()
    assert picture(store, "b")[2:] == [entry for entry in before if entry[0].seq <= 11]
    assert picture(store, "a") == before
    # A fork holds what it stands on, wherever that is.
    cooled(store, 2)
    store.thread("a").delete()
    assert [entry[0].seq for entry in picture(store, "b")] == list(range(13, 0, -1))


def test_a_rewind_to_what_is_away(store: Store, seed: int) -> None:
    write(store, "a", 30, random.Random(seed))
    before = picture(store, "a")
    goal = next(entry for entry in before if entry[0].seq == 9)
    cooled(store)
    thread = store.thread("a")
    thread.rewind(9)
    after = picture(store, "a")
    # A log that came later is there, and empty.
    assert _filled(after[0]) == _filled(goal)
    assert after[1:] == before
    # The newest version is one that refers to what goes away with the rest.
    cooled(store)
    assert store.thread("a").state.plain() == goal[1]
    assert is_cold(store, "a")
    assert picture(store, "a") == after


def _filled(entry: Any) -> Any:
    """What a version holds, without the logs in which there is nothing."""
    _, state, logs = entry
    return state, {log: items for log, items in logs.items() if items}


def test_a_person_is_erased_whose_values_are_away(store: Store, tmp_path: Path) -> None:
    thread = store.thread("a")
    for number in range(12):
        thread.messages.append({"content": Personal("u1" if number % 2 else "u2", f"canary {number}")})
        thread.state["last"] = Personal("u1", f"state {number}")
        thread.commit()
    cooled(store)
    report = store.erase("u1")
    assert report.complete
    assert is_cold(store, "a")
    contents = [message["content"] for message in store.thread("a").messages]
    assert all(isinstance(each, Erased) for each in contents[1::2])
    assert [each.value for each in contents[::2]] == [f"canary {number}" for number in range(0, 12, 2)]
    assert isinstance(store.thread("a").at(5).state["last"], Erased)
    # And it stays so when it goes away once more.
    cooled(store)
    assert isinstance(list(store.thread("a").messages)[1]["content"], Erased)


def test_pruning_takes_the_same_of_what_is_away(store: Store, seed: int) -> None:
    for name in ("here", "away"):
        write(store, name, 30, random.Random(seed))
    later(3600)
    thread = store.thread("here")
    thread.state["used"] = True
    thread.commit()
    assert store.cool(1800).threads == 1
    thread = store.thread("away")
    thread.state["used"] = True
    thread.commit()
    assert (is_cold(store, "here"), is_cold(store, "away")) == (False, True)
    report = store.gc(everthread.Retention(keep_last=7))
    assert (report.threads, report.problems) == (2, ())
    away = picture(store, "away")
    assert _without_ids(away) == _without_ids(picture(store, "here"))
    assert len(away) < 20
    # Where rewinds went back to is kept: which versions that are depends on the seed.
    kept = {entry[0].seq for entry in away}
    pruned = next(seq for seq in range(1, 31) if seq not in kept)
    with pytest.raises(VersionPrunedError):
        store.thread("away").at(pruned)
    # What was pruned stays so, through the archive and back.
    cooled(store, 2)
    assert picture(store, "away") == away
    with pytest.raises(VersionPrunedError):
        store.thread("away").at(pruned)


def _without_ids(past: Any) -> Any:
    """Ids of messages come from the thread's own."""
    return [
        (state, {log: [{**item, "id": None} for item in items] for log, items in logs.items()})
        for _, state, logs in past
    ]


def test_what_expires_while_it_is_away_goes_as_a_whole(store: Store, tmp_path: Path) -> None:
    for name, ttl in (("short", 7200.0), ("long", None)):
        thread = store.thread(name, ttl=ttl)
        for number in range(20):
            thread.messages.append({"content": f"{name} {number}"})
            thread.commit()
    cooled(store, 2)
    # Every write is a new lease of life, also of what is away.
    later(3000)
    late = store.thread("short")
    late.state["on"] = True
    late.commit()
    later(3000)
    assert is_cold(store, "short")
    assert len(list(store.thread("short").messages)) == 20
    assert not is_cold(store, "short")
    cooled(store)
    later(7200)
    assert len(store.thread("short").messages) == 0
    report = store.gc()
    assert (report.expired, report.problems) == (("short",), ())
    assert [info.name for info in store.threads()] == ["long"]
    # A parcel of each move, three by now, and one is needed.
    assert len(list((tmp_path / "cold").iterdir())) == 3
    for parcel in (tmp_path / "cold").iterdir():
        os.utime(parcel, (0, 0))
    assert store.cool(10**6, sweep_after=60).swept == 2
    assert [message["content"] for message in store.thread("long").messages] == [
        f"long {number}" for number in range(20)
    ]


def test_sizes_without_what_is_away(store: Store, seed: int) -> None:
    write(store, "a", 40, random.Random(seed))
    line = store.core.backend.find("", "a")
    assert line is not None
    usage = store.core.backend.usage
    before = usage(line.line.id)
    versions, size = store.stats().versions, store.stats().bytes
    cooled(store)
    after = usage(line.line.id)
    assert after.versions == before.versions
    assert after.chunks < before.chunks
    assert store.stats().versions == versions
    assert store.stats().bytes < size
    assert is_cold(store, "a"), "looking at sizes brings nothing back"
    assert len(picture(store, "a")) >= 40
    assert usage(line.line.id).chunks >= before.chunks


def test_copies_have_what_is_away(store: Store, tmp_path: Path, seed: int) -> None:
    colour = "async" if isinstance(store, DrivenStore) else ""
    write(store, "a", 30, random.Random(seed))
    before = picture(store, "a")
    cooled(store)
    with Url(f"sqlite:///{tmp_path}/copy.db", colour).open(keyring="memory:") as other:
        store.copy_to(behind(other))
        assert picture(other, "a") == before
    cooled(store)
    store.export(tmp_path / "archive")
    with everthread.open(f"sqlite:///{tmp_path}/imported.db", keyring="memory:") as other:
        other.import_from(tmp_path / "archive")
        assert picture(other, "a") == before


def test_what_was_imported_stays_listed(store: Store, tmp_path: Path, seed: int) -> None:
    """Its newest version is in a pack, with others: they stay together."""
    with everthread.open("memory:", keyring="memory:", durability="process") as other:
        other.core.folder.records_max = 4
        write(other, "a", 30, random.Random(seed))
        thread = other.thread("a")
        for number in range(8):
            thread.state["n"] = number
            thread.commit(metadata={"colour": "red"})
        before = picture(other, "a")
        other.export(tmp_path / "archive")
    store.import_from(tmp_path / "archive")
    assert picture(store, "a") == before
    later(10**9)
    report = store.cool(1800)
    assert (report.threads, report.problems) == (1, ())
    store.core.head_cache.clear()
    assert [info.name for info in store.threads()] == ["a"]
    assert [info.name for info in store.threads(metadata={"colour": "red"})] == ["a"]
    assert store.thread("a").state["n"] == 7
    assert store.cool(1800).threads == 0
    assert is_cold(store, "a")
    late = store.thread("a")
    late.state["late"] = True
    late.commit()
    assert is_cold(store, "a")
    assert picture(store, "a")[1:] == before


@pytest.mark.parametrize("store", [kind for kind in KINDS if kind != "memory"], indirect=True)
def test_a_backup_knows_what_was_away(store: Store, tmp_path: Path, seed: int) -> None:
    if not store.capabilities.backup:
        with pytest.raises(UnsupportedError, match="export"):
            store.backup(tmp_path / "backup")
        return
    write(store, "a", 30, random.Random(seed))
    before = picture(store, "a")
    cooled(store)
    store.backup(tmp_path / "backup")
    assert picture(store, "a") == before
    write(store, "a", 3, random.Random(seed + 1))
    store.restore(tmp_path / "backup")
    store.core.head_cache.clear()
    assert is_cold(store, "a")
    assert picture(store, "a") == before


def test_writers_readers_and_movers_at_once(store: Store, tmp_path: Path, seed: int) -> None:
    """Nobody is told of damage, nothing is lost, and everything stands in its order."""
    write(store, "a", 10, random.Random(seed))
    errors: list[BaseException] = []
    moved: list[int] = []
    written = threading.Event()

    def running(work: Any) -> threading.Thread:
        def run() -> None:
            try:
                while not written.is_set():
                    work()
            except BaseException as error:
                errors.append(error)
                written.set()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def move() -> None:
        report = store.cool(0)
        moved.append(report.threads)

    def read() -> None:
        thread = store.thread("a")
        at = thread.at(random.Random(seed).randrange(1, 10))
        assert len(list(at.messages)) == len(list(thread.at(at.version).messages))

    others = [running(move), running(read)]
    thread = store.thread("a")
    known = [message.get("n") for message in thread.messages]
    try:
        for number in range(60):
            if written.is_set():
                break
            thread.messages.append({"n": f"late {number}"})
            thread.commit()
    finally:
        written.set()
        for other in others:
            other.join()
    assert errors == []
    assert sum(moved) > 0
    store.core.head_cache.clear()
    assert [m.get("n") for m in store.thread("a").messages] == known + [f"late {n}" for n in range(60)]
