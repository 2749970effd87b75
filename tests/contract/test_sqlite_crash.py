"""The SQLite store of the small contract when processes die, disks fail and the power goes."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everthread.errors import StateCorruptedError, StorageWriteError, UnavailableError
from everthread.stores.interface import Append, Batch, Guard, Span, run
from tests.contract.stores import (
    EVENT,
    HEAD,
    INDEX,
    KEY,
    ROW,
    accept,
    changes,
    get,
    head,
    open_sqlite,
    page,
    put,
    row,
    write,
)  # fmt: skip
from tests.crash.workload import memory_directory
from tests.kit.failing_disk import KILL, FaultyDisk
from tests.kit.power_loss import PowerLossVFS

SEED = 20_260_101
STEPS = 12


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=memory_directory()) as folder:
        yield Path(folder)


def _step(number: int) -> tuple[Batch, ...]:
    """One write of four batches: a commit, changes in all shapes of tables, a refusal, an append."""
    old, new = b"%d" % (number - 1), b"%d" % number
    commit = Batch(
        (Guard(head(b"a"), old),), ((head(b"a"), new), (row(number), new * 200), ((KEY.number, 1, new), new))
    )
    rest = Batch(
        puts=((head(b"b"), new), (row(number, 2), new)),
        deletes=(Span(HEAD.number, 1, b"c", b"d"), Span(EVENT.number, 9)),
    )
    refused = Batch((Guard(head(b"a"), old + b"!"),), ((row(1, 7), b"never"),))
    events = Batch(append=Append(EVENT.number, 1, [new, new], INDEX.number, [[b"t"], [b"t", b"u"]]))
    return commit, rest, refused, events


def _check(store: Any, acknowledged: int, begun: int) -> int:
    """Check that the writes up to ``acknowledged`` are stored whole, perhaps later ones too."""
    (newest,) = get(store, head(b"a"))
    done = int(newest or b"0")
    assert acknowledged <= done <= begun
    numbers = list(range(1, done + 1))
    assert page(store, EVENT) == [
        (at, b"%d" % number) for number in numbers for at in (2 * number - 1, 2 * number)
    ]
    assert [at for at, _ in page(store, HEAD)] == ([b"a", b"b"] if done else [b"a"])
    assert [value for _, value in page(store, KEY)] == sorted(b"%d" % number for number in numbers)
    for owner, times in ((1, 200), (2, 1)):
        assert [at for at, _ in page(store, ROW, owner)] == numbers
        assert all(value == b"%d" % at * times for at, value in page(store, ROW, owner))
    assert page(store, ROW, 7) == []
    assert len(page(store, INDEX)) == 3 * done
    assert {(at, value) for _, at, value in changes(store, 1) if value is not None} == set(page(store, HEAD))
    assert run(store.check()) == []
    return done


def _prepare(store: Any) -> None:
    accept(store, put((head(b"a"), b"0")))


def test_a_process_killed_at_any_disk_call_leaves_whole_writes(memory: Path) -> None:
    template = memory / "template"
    template.mkdir()
    store = open_sqlite(template)
    _prepare(store)
    accept_all(store, 1)
    run(store.close())
    for nth in range(1, 1_000):
        place = memory / "store"
        shutil.copytree(template, place)
        acknowledged, died = _killed(place, nth)
        store = open_sqlite(place)
        done = _check(store, 1 + acknowledged, 2 + acknowledged)
        accept_all(store, done + 1)
        run(store.close())
        shutil.rmtree(place)
        if not died:
            assert acknowledged == 2
            assert nth > 20, "the calls of two writes, each with a checkpoint"
            return
    pytest.fail("it never came to its end")


def _killed(place: Path, nth: int) -> tuple[int, bool]:
    """Let a child write twice and die at its ``nth`` disk call: acknowledged, and if it died."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with FaultyDisk(place) as disk:
                # Each write is followed by a checkpoint.
                store = open_sqlite(place, wal_autocheckpoint=1)
                disk.fail(nth, KILL)
                for number in (2, 3):
                    write(store, *_step(number))
                    os.write(writing, b".")
        finally:
            os._exit(0)
    os.close(writing)
    acknowledged = len(os.read(reading, 10)) if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT) else 0
    os.close(reading)
    status = os.waitpid(pid, 0)[1]
    return acknowledged, os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_disk_error_leaves_whole_writes_and_the_store_goes_on(memory: Path, error: int) -> None:
    with FaultyDisk(memory) as disk:
        store = open_sqlite(memory)
        _prepare(store)
        done, failures = 0, 0
        for nth in range(1, 40):
            disk.fail(nth, error)
            try:
                accept_all(store, done + 1)
                done += 1
            except UnavailableError:
                failures += 1
            except StateCorruptedError:
                # SQLite takes a page that the disk can't read for a damaged one.
                assert disk.failed[-1].kind == "read"
                failures += 1
            disk.heal()
            done = _check(store, done, done + 1)
        run(store.close())
    assert failures > 3
    assert done > 3


def accept_all(store: Any, number: int) -> None:
    outcomes = write(store, *_step(number))
    assert outcomes[0] == outcomes[1] == 0
    assert outcomes[3] == 2 * number - 1


@pytest.mark.parametrize("failing", [False, True])
def test_a_power_cut_loses_nothing_that_was_acknowledged(memory: Path, failing: bool) -> None:
    """Also if a sync failed before: no write is acknowledged until what came before is on the disk."""
    name = f"contract-{failing}"
    vfs = PowerLossVFS(name)
    try:
        store = open_sqlite(memory, vfs=name, wal_autocheckpoint=40)
        _prepare(store)
        vfs.recording.acknowledge()
        promised = [0]
        while promised[-1] < STEPS:
            if failing and promised[-1] % 4 == 2 and promised[-1] != promised[-2]:
                vfs.fail_syncs()
            try:
                accept_all(store, promised[-1] + 1)
            except StorageWriteError:
                # Whatever this reads counts as acknowledged.
                promised.append(int(get(store, head(b"a"))[0] or b"0"))
            else:
                promised.append(promised[-1] + 1)
            vfs.recording.acknowledge()
        run(store.close())
    finally:
        vfs.unregister()
    assert failing == (len(promised) > STEPS + 1), "writes that failed were tried again"
    for disk in vfs.recording.states(SEED, 60):
        disk.write_to(memory / "disk")
        store = open_sqlite(memory / "disk")
        if disk.acknowledged:
            least = promised[disk.acknowledged - 1]
            _check(store, least, least + 1)
        run(store.close())


def test_a_write_that_is_not_durable_becomes_so_with_the_next_durable_one(memory: Path) -> None:
    vfs = PowerLossVFS("following")
    try:
        store = open_sqlite(memory, vfs="following", wal_autocheckpoint=60)
        for number in range(1, 31):
            accept(store, put((row(number), b"%d" % number), durable=False))
            accept(store, put((row(number, 2), b"%d" % number), durable=False))
            if number % 3 == 0:
                accept(store, put((row(number, 3), b"x")))
                vfs.recording.acknowledge()
        run(store.close())
    finally:
        vfs.unregister()
    lost = 0
    for disk in vfs.recording.states(SEED, 60):
        disk.write_to(memory / "disk")
        store = open_sqlite(memory / "disk")
        first, second = len(page(store, ROW, 1)), len(page(store, ROW, 2))
        assert 3 * disk.acknowledged <= second <= first <= second + 1, "no batch without those before it"
        lost += first < 30
        run(store.close())
    assert lost, "some cuts came before the end"


def test_flush_syncs_the_log(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_sqlite(memory, durability="process")
    accept(store, put((row(1), b"1")))
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    run(store.flush())
    assert synced == [str(memory / "store.db-wal")]
    run(store.close())


def test_the_weaker_durability_loses_what_it_does_not_promise(memory: Path) -> None:
    vfs = PowerLossVFS("weaker")
    try:
        store = open_sqlite(memory, vfs="weaker", durability="process")
        for number in range(1, 21):
            accept(store, put((row(number), b"x" * 500)))
            vfs.recording.acknowledge()
        run(store.close())
    finally:
        vfs.unregister()
    missing = 0
    for disk in vfs.recording.states(SEED, 60):
        disk.write_to(memory / "disk")
        store = open_sqlite(memory / "disk")
        missing += len(page(store, ROW, 1)) < disk.acknowledged
        run(store.close())
    assert missing > 3, "what isn't promised is lost, so the check can fail"
