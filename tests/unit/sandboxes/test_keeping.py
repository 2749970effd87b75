"""Files under all that keeps, moves, counts and removes threads, on every store."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Retention, Store
from everthread.sandboxes import Files, contents
from everthread.sandboxes.contents import LOG
from everthread.sandboxes.directory import save_directory
from everthread.sandboxes.stat_cache import StatCache
from everthread.sandboxes.workspace import files_beside
from everthread.threads.runtime import Runtime
from tests.kit.trees import Held, RandomTree, held

MINUTE_US = 60_000_000
STORES = ("memory", "sqlite", "files", "postgres", "valkey")


class Clock:
    now_us = 1_800_000_000_000_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Store]:
    places = {
        "memory": "memory:",
        "sqlite": f"sqlite:///{tmp_path}/s.db",
        "files": f"file://{tmp_path}/s",
    }
    url = places.get(request.param) or request.getfixturevalue(f"{request.param}_url")
    runtime = Runtime(now_us=lambda: clock.now_us)
    with everthread.open(url, durability="process", runtime=runtime) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


def large(rng: random.Random) -> bytes:
    """More than one piece, and nothing that compresses."""
    return rng.randbytes(3_000_000)


def test_files_leave_with_a_thread_that_expires(store: Store, clock: Clock, seed: int) -> None:
    rng = random.Random(seed)
    files = Files(store.thread("goes", ttl=60))
    files.write("large", large(rng))
    files.write("text", "a text that goes\n" * 100)
    files.save()
    stays = Files(store.thread("stays"))
    stays.write("text", "a text that stays\n" * 100)
    stays.save()
    # Each save renews it.
    clock.now_us += MINUTE_US * 5 // 6
    files.write("text", "a text that went on\n" * 100)
    files.save()
    clock.now_us += MINUTE_US * 5 // 6
    assert Files(store.thread("goes")).exists("large")
    assert store.stats().bytes > 3_000_000
    clock.now_us += MINUTE_US
    assert not Files(store.thread("goes")).exists("large")
    store.gc()
    assert store.stats().bytes < 100_000
    assert [place.thread for place in store.scan("a text that")] == ["stays"]
    assert Files(store.thread("stays")).read("text").startswith(b"a text that stays\n")
    assert store.verify()


def test_a_recorded_folder_leaves_with_its_thread_and_stays_on_disk(
    store: Store, clock: Clock, folder: Path, seed: int
) -> None:
    data = large(random.Random(seed))
    (folder / "large").write_bytes(data)
    thread = store.thread("goes", ttl=60)
    thread.attach_workspace(folder)
    clock.now_us += MINUTE_US // 2
    (folder / "new").write_text("a text that goes\n")
    thread.commit()
    clock.now_us += MINUTE_US * 5 // 6
    assert files_beside(store.thread("goes")).read("large") == data
    assert store.stats().beside["files"] > 3_000_000
    clock.now_us += MINUTE_US
    assert store.thread("goes").head is None
    store.gc()
    assert store.stats().beside["files"] == 0
    assert store.stats().bytes < 100_000
    assert list(store.scan("a text that goes")) == []
    assert (folder / "large").read_bytes() == data
    # Who comes back begins anew.
    workspace = store.thread("goes").attach_workspace(folder)
    assert (workspace.last.added, workspace.last.changed) == (2, 0)
    assert store.verify()


def test_a_copy_has_the_same_files_and_contents_at_every_version(
    store: Store, folder: Path, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    tree, cache = RandomTree(tmp_path / "tree", rng, large=3_000_000), StatCache()
    for _ in range(20):
        tree.grow()
    files, known = Files(store.thread("box")), list[tuple[str, Held]]()
    for _ in range(6):
        for _ in range(3):
            tree.change()
        saved = save_directory(files, tree.root, cache=cache)
        known.append((saved.snapshot.version, held(tmp_path / "tree")))
    files.fork("fork", at=known[2][0])
    (folder / "large").write_bytes(large(rng))
    thread = store.thread("coder")
    thread.attach_workspace(folder)
    for target in ("memory:", f"sqlite:///{tmp_path}/copy.db", f"file://{tmp_path}/copy"):
        with everthread.open(target, durability="process") as other:
            store.copy_to(other)
            for number, (version, expected) in enumerate(known):
                place = tmp_path / f"{target[:4]}{number}"
                Files(other.thread("box")).restore_directory(place, at=version)
                assert held(place) == expected
            for name in ("box", "fork"):
                assert _contents(Files(other.thread(name))) == _contents(Files(store.thread(name)))
            recorded = files_beside(other.thread("coder"))
            assert _contents(recorded) == _contents(files_beside(thread))
            assert recorded.read("large") == (folder / "large").read_bytes()
            # The thread goes on there, with the same folder.
            workspace = other.thread("coder").attach_workspace(folder)
            assert (workspace.last.added, workspace.last.changed, workspace.last.removed) == (0, 0, 0)
            assert other.verify()


def _contents(files: Files) -> list[Any]:
    """Every piece that is stored, in its order: those of superseded contents as well."""
    return list(files.thread.handle.log(LOG).read())


def test_stats_name_what_files_take_up(store: Store, folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    empty = store.stats()
    assert dict(empty.beside) == {"journal": 0, "inbox": 0, "files": 0}
    files = Files(store.thread("box"))
    files.write("large", large(rng))
    files.save()
    (folder / "large").write_bytes(rng.randbytes(1_000_000))
    thread = store.thread("coder")
    thread.attach_workspace(folder)
    with store.session("talk") as session:
        session.add_usage(tokens=1)
    found = store.stats()
    assert found.threads["box"].chunks + found.threads["box"].records >= 3_000_000
    assert found.threads["box"].files == 0
    assert 1_000_000 <= found.threads["coder"].files == found.beside["files"] < 1_500_000
    assert found.threads["coder"].bytes > found.threads["coder"].files
    assert [*found.threads] == ["box", "coder", "talk"], "the largest first, with their folders"
    assert found.beside["journal"] > 0
    assert found.deleted == 0
    assert sum(found.kinds.values()) == found.bytes
    thread.delete()
    store.gc()
    assert store.stats().beside["files"] == 0


def test_retention_takes_contents_that_no_kept_version_has(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    # How many superseded contents wait until it is worth looking for them.
    monkeypatch.setattr(contents, "RELEASE_FROM", 4)
    rng, files, versions = random.Random(seed), Files(store.thread("box")), []
    thread = store.thread("coder")
    thread.attach_workspace(folder)
    for turn in range(24):
        # More than a chunk of a log holds: a chunk goes when nothing in it is needed.
        rows = f"of turn {turn}.\n" + rng.randbytes(45_000).hex()
        files.write("f", rows)
        files.save()
        (folder / "f").write_text(rows)
        versions.append(thread.commit())
    assert {place.beside for place in store.scan("of turn 3.")} == {"", "files"}
    before = store.stats()
    store.gc(Retention(keep_last=1))
    after = store.stats()
    assert list(store.scan("of turn 3.")) == []
    assert after.beside["files"] < 0.6 * before.beside["files"]
    assert after.threads["box"].bytes < 0.6 * before.threads["box"].bytes
    assert Files(store.thread("box")).read("f") == files_beside(thread).read("f") == rows.encode()
    thread = store.thread("coder")
    thread.attach_workspace(folder)
    (folder / "f").unlink()
    thread.rewind(versions[-1], files=True)
    assert (folder / "f").read_text() == rows
    with pytest.raises(everthread.VersionPrunedError):
        thread.rewind(versions[3], files=True)
    assert store.verify()


@pytest.mark.parametrize("url", ["memory:", "sqlite:///{}/s.db"])
def test_a_dry_run_of_gc_says_what_the_real_run_does_to_forks_with_files(
    url: str, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    folder = tmp_path / "work"
    folder.mkdir()
    with everthread.open(url.format(tmp_path), durability="process") as store:
        threads = {"t0": store.thread("t0")}
        threads["t0"].attach_workspace(folder)
        for turn in range(120):
            thread = threads[rng.choice(sorted(threads))]
            if rng.random() < 0.3:
                (folder / f"f{rng.randrange(3)}").write_text(f"turn {turn}")
            thread.state["turn"] = turn
            thread.commit()
            head = thread.head
            assert head is not None
            if rng.random() < 0.1:
                at = rng.randint(2, head.seq)
                name = f"t{len(threads)}"
                threads[name] = thread.fork(name, at=at)
                if rng.random() < 0.7:
                    threads[name].attach_workspace(folder)
            elif rng.random() < 0.1:
                thread.rewind(rng.randint(2, head.seq))
        planned = store.gc(Retention(keep_last=5), dry_run=True)
        done = store.gc(Retention(keep_last=5))
        told = ("versions", "threads", "expired", "companions", "problems")
        assert {each: getattr(planned, each) for each in told} == {each: getattr(done, each) for each in told}
        assert done.problems == ()
        assert store.verify()
