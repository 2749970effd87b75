"""gc() and pruning: killed at every call of the disk, on a failing disk, against writers of other processes.

Unlike a commit, gc() is many steps. Each leaves a store that is whole: every head as it was, of the past what
was there or what is to stay, and the next gc() comes to the same end as one that nothing stopped.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

import everthread
from everthread import Retention
from everthread.errors import ConflictError, EverthreadError, StoreBusyError, VersionPrunedError
from everthread.maintenance import prune
from everthread.stores.files import line_files
from tests.crash.iofaults import NEVER, Engine, url
from tests.crash.workload import memory_directory
from tests.kit.failing_disk import KILL, FaultyDisk

RULE = Retention(keep_last=3)
ENGINES: tuple[Engine, ...] = ("sqlite", "file")
Seen = dict[str, Any]


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
        yield Path(directory).resolve()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch)


def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several groups of versions, in several segments: more moments between."""
    monkeypatch.setattr(prune, "GROUP_MAX", 16)
    monkeypatch.setattr(line_files, "SEGMENT_BYTES", 5000)


def prepare(place: Path, engine: Engine) -> None:
    """A thread with labels, a rewind and forks; one that is deleted but needed; items that will go."""
    place.mkdir()
    with everthread.open(url(place, engine)) as store:
        store.core.folder.records_max = 8
        main = store.thread("main")
        for number in range(30):
            main.state["n"] = number
            main.messages.append({"id": f"m{number}", "text": "x" * 40})
            main.commit(label="kept" if number == 11 else None, key=f"key {number}")
            if number == 20:
                main.messages.truncate_from("m17")
                main.commit()
        main.fork("fork", at=8)
        main.rewind(25)
        main.state["n"] = "after"
        main.commit()
        doomed = store.thread("doomed")
        for number in range(12):
            doomed.state["n"] = number
            doomed.commit()
        doomed.fork("heir", at=5)
        doomed.delete()


def look(store: everthread.Store) -> tuple[Seen, dict[str, list[int]]]:
    """What heads hold, and which versions there are."""
    heads: Seen = {}
    pasts: dict[str, list[int]] = {}
    for info in store.threads():
        thread = store.thread(info.name)
        heads[info.name] = (str(thread.head), thread.state.plain(), thread.messages[:])
        pasts[info.name] = [version.seq for version in thread.history(limit=None)]
        for seq in pasts[info.name]:
            assert thread.at(seq).state.plain(), f"{info.name} at {seq}"
            assert len(thread.at(seq).messages[:]) == len(thread.at(seq).messages)
    return heads, pasts


class Gc:
    """gc() on copies of one prepared store."""

    def __init__(self, directory: Path, engine: Engine) -> None:
        self.engine = engine
        self.template, self.place = directory / "template", directory / "run"
        prepare(self.template, engine)
        with self.fresh() as store:
            self.old = look(store)
            assert store.gc(RULE).problems == ()
            self.new = look(store)
        assert self.old[0] == self.new[0]
        assert self.old[1] != self.new[1]

    def fresh(self) -> everthread.Store:
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.template, self.place)
        return everthread.open(url(self.place, self.engine))

    def calls(self) -> int:
        with FaultyDisk(self.place) as disk, self.fresh() as store:
            disk.fail(NEVER, KILL)
            store.gc(RULE)
            found = len(disk.calls)
            disk.heal()
        return found

    def check(self, store: everthread.Store, where: str) -> None:
        heads, pasts = look(store)
        assert heads == self.old[0], where
        for name, seqs in pasts.items():
            assert set(self.new[1][name]) <= set(seqs) <= set(self.old[1][name]), f"{where}: {name} {seqs}"
        report = store.verify()
        assert report, f"{where}: {report.damage}"
        assert store.thread("main").commit(key="key 7").seq == 8, where

    def finish(self, store: everthread.Store, where: str) -> None:
        report = store.gc(RULE)
        assert report.problems == (), f"{where}: {report.problems}"
        assert look(store) == self.new, where
        assert store.gc(RULE, dry_run=True).versions == 0, where
        thread = store.thread("main")
        thread.state["later"] = True
        thread.commit()
        assert store.verify(), where


@pytest.mark.parametrize("engine", ENGINES)
def test_killed_at_calls_of_the_disk(memory: Path, engine: Engine) -> None:
    """At some of them; ``python -m tests.torture.moments`` takes many more."""
    kill_at_calls(memory, engine)


def kill_at_calls(directory: Path, engine: Engine, first: int = 1, step: int = 0) -> int:
    """Kill gc() at calls of the disk, ``step`` apart (0: at about 35 of them); how many that were."""
    gc = Gc(directory, engine)
    calls = gc.calls()
    assert calls > 20
    chosen = range(first, calls + 1, step or max(1, calls // 35))
    print(f"{calls} calls: {chosen}")
    for nth in chosen:
        gc.fresh().close()
        pid = os.fork()
        if pid == 0:
            _gc_and_die(gc, nth)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), f"call {nth}: ended by itself with {status}"
        with everthread.open(url(gc.place, engine)) as store:
            gc.check(store, f"killed at call {nth}")
            gc.finish(store, f"killed at call {nth}")
    return len(chosen)


def _gc_and_die(gc: Gc, nth: int) -> NoReturn:
    try:
        with FaultyDisk(gc.place) as disk, everthread.open(url(gc.place, gc.engine)) as store:
            disk.fail(nth, KILL)
            store.gc(RULE)
    finally:
        os._exit(1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("error", "times"), [(errno.EIO, 1), (errno.ENOSPC, None)], ids=["EIO", "disk full"])
def test_on_a_failing_disk(memory: Path, engine: Engine, error: int, times: int | None) -> None:
    gc = Gc(memory, engine)
    calls = gc.calls()
    for nth in range(1, calls + 1, max(1, calls // 40)):
        where = f"{errno.errorcode[error]} at call {nth}"
        with FaultyDisk(gc.place) as disk, gc.fresh() as store:
            disk.fail(nth, error, times=times)
            with contextlib.suppress(EverthreadError):
                store.gc(RULE)
            disk.heal()
            with everthread.open(url(gc.place, engine)) as other:
                gc.check(other, where)
            gc.check(store, where)
            gc.finish(store, where)


# Writers of other processes.

WRITERS = 2
GCS = 24
FORKS_MAX = 8


class Writer:
    """A process that commits, forks and rewinds, and tells of everything that was acknowledged."""

    def __init__(self, name: str, place: Path, engine: Engine, seed: int) -> None:
        self.name = name
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            _write(name, place, engine, seed, writing)
        os.close(writing)
        self._reading = reading
        self.told: dict[str, list[Any]] = {}

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        with os.fdopen(self._reading, "rb") as file:
            for line in file.read().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    thread, seq, count = json.loads(line)
                    assert thread != "failed", count
                    self.told[thread] = [seq, count]


def _write(name: str, place: Path, engine: Engine, seed: int, writing: int) -> NoReturn:
    rng = random.Random(f"{seed} {name}")

    def tell(*what: Any) -> None:
        os.write(writing, json.dumps(what).encode() + b"\n")

    try:
        store = everthread.open(url(place, engine))
        store.core.folder.records_max = 8
        names = [name]
        count = 0
        while True:
            # Whoever commits without a pause leaves nobody room to look at anything twice.
            time.sleep(rng.uniform(0, 0.01))
            chosen = rng.choice(names[-4:])
            thread = store.thread(chosen)
            with contextlib.suppress(VersionPrunedError, ConflictError, StoreBusyError):
                if rng.random() < 0.08 and thread.head is not None and len(names) <= FORKS_MAX:
                    names.append(f"{name} {len(names)}")
                    thread.fork(names[-1])
                    continue
                if rng.random() < 0.08 and thread.head is not None and thread.head.seq > 4:
                    thread.rewind(thread.head.seq - rng.randint(1, 3))
                count += 1
                thread.state["count"] = count
                thread.messages.append({"id": f"{chosen} {count}"})
                version = thread.commit(key=f"{chosen} {count}")
                assert version is not None
                tell(chosen, version.seq, count)
    except BaseException as problem:
        tell("failed", 0, repr(problem))
    finally:
        os._exit(1)


@pytest.mark.parametrize("engine", ENGINES)
def test_against_writers_of_other_processes(memory: Path, engine: Engine, seed: int) -> None:
    place = memory / "shared"
    place.mkdir()
    everthread.open(url(place, engine)).close()
    rng = random.Random(seed)
    writers = [Writer(f"w{number}", place, engine, seed) for number in range(WRITERS)]
    gone = 0
    try:
        with everthread.open(url(place, engine)) as store:
            for number in range(GCS):
                if number % 3 == 2:
                    _gc_killed_after(place, engine, rng.uniform(0, 0.05))
                else:
                    gone += store.gc(Retention(keep_last=rng.randint(1, 6))).versions
    finally:
        for writer in writers:
            writer.stop()
    assert gone > 0
    with everthread.open(url(place, engine)) as store:
        for writer in writers:
            assert writer.told, "it never got to write"
            for name, (seq, count) in writer.told.items():
                thread = store.thread(name)
                assert thread.head is not None
                assert thread.head.seq >= seq, f"{name}: {thread.head} where {seq} was acknowledged"
                if thread.head.seq == seq:
                    assert thread.state["count"] == count
                    assert thread.messages[-1]["id"] == f"{name} {count}"
        report = store.verify()
        assert report, report.damage
        assert store.gc(Retention(keep_last=1)).problems == ()
        for info in store.threads():
            assert len(store.thread(info.name).messages[:]) == len(store.thread(info.name).messages)
        assert store.verify()


def _gc_killed_after(place: Path, engine: Engine, seconds: float) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            with everthread.open(url(place, engine)) as store:
                while True:
                    store.gc(Retention(keep_last=2))
        finally:
            os._exit(1)
    time.sleep(0.05 + seconds)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
