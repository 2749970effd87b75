"""Commits that queue up share one transaction and one sync, and still get an answer each."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import everthread as e
from everthread.codec import records
from everthread.codec.records import Change, Head
from everthread.errors import ConflictError, ThreadDeletedError, UnavailableError
from everthread.history.chain import genesis, link, record_digest
from everthread.records.opening import open_backend
from everthread.stores.contract import DELTA, Backend, KeyKnown, Line, NewRow, StaleWrite
from everthread.stores.offloaded import Offloaded
from tests.crash.workload import memory_directory
from tests.kit.failing_disk import FaultyDisk
from tests.kit.power_loss import PowerLossVFS, Recording, _Sync
from tests.unit.threads.tripwire import busy, run

_names = itertools.count()


@pytest.fixture(params=["memory:", "sqlite", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    places = {"sqlite": f"sqlite:///{tmp_path}/store.db", "file": f"file://{tmp_path}/store"}
    return places.get(request.param, request.param)


@pytest.fixture
def backend(url: str) -> Iterator[Backend]:
    opened = open_backend(url, "full")
    yield opened
    opened.close()


# ── the verb ─────────────────────────────────────────────────────────────────────────────────────


def _row(seq: int, previous: bytes, number: int = 0, **more: Any) -> NewRow:
    head = records.write_head(Head(records.COMMIT, 1_000_000 + number))
    body = records.write_record(head, records.write_change(Change()), [])
    return NewRow(seq, DELTA, previous, link(previous, record_digest(body)), body, **more)


def _line(backend: Backend, name: str) -> tuple[Line, NewRow]:
    uid = name.encode().ljust(16, b"\0")
    row = _row(1, genesis(uid))
    return backend.create(Line(id=0, uid=uid, space="", name=name, root=0, start_hash=genesis(uid)), row), row


def _newest(backend: Backend, name: str) -> Any:
    found = backend.find("", name)
    return found and found.newest and (found.newest.seq, found.newest.hash)


def test_each_row_is_judged_on_its_own(backend: Backend) -> None:
    lines = [_line(backend, f"t{number}") for number in range(6)]
    fresh = [_row(2, first.hash, 1) for _, first in lines]
    backend.append(lines[1][0].id, other := _row(2, lines[1][1].hash, 99))
    backend.delete(lines[3][0])
    answers = backend.append_all([(line.id, row) for (line, _), row in zip(lines, fresh, strict=True)])
    assert [type(answer) for answer in answers] == [
        type(None),
        StaleWrite,
        type(None),
        StaleWrite,
        type(None),
        type(None),
    ]
    stale, sealed = answers[1], answers[3]
    assert isinstance(stale, StaleWrite)
    assert stale.newest is not None
    assert (stale.newest.hash, stale.sealed) == (other.hash, False)
    assert isinstance(sealed, StaleWrite)
    assert sealed.sealed
    for number in (0, 2, 4, 5):
        assert _newest(backend, f"t{number}") == (2, fresh[number].hash)
    assert _newest(backend, "t1") == (2, other.hash)
    assert backend.find("", "t3") is None
    assert backend.append_all([]) == []


def test_rows_of_one_line_count_in_their_order(backend: Backend) -> None:
    line, first = _line(backend, "a")
    second = _row(2, first.hash)
    third, rival = _row(3, second.hash, 1), _row(3, second.hash, 2)
    fourth = _row(4, third.hash)
    early = _row(4, b"\0" * 32)
    rows = [second, third, rival, early, fourth]
    answers = backend.append_all([(line.id, row) for row in rows])
    assert [type(answer) for answer in answers] == [
        type(None),
        type(None),
        StaleWrite,
        StaleWrite,
        type(None),
    ]
    assert _newest(backend, "a") == (4, fourth.hash)
    assert [row.seq for row in backend.scan(line.id, 9, 9)] == [4, 3, 2, 1]
    (again,) = backend.append_all([(line.id, third)])
    assert isinstance(again, StaleWrite)


def test_a_group_of_one_is_an_append(backend: Backend) -> None:
    line, first = _line(backend, "a")
    (good,) = backend.append_all([(line.id, _row(2, first.hash))])
    (bad,) = backend.append_all([(line.id, _row(2, first.hash, 1))])
    assert good is None
    assert isinstance(bad, StaleWrite)


@pytest.mark.parametrize("count", [2, 4, 5, 33, 64, 256, 257])
def test_a_group_of_plain_versions_is_one_statement(count: int, tmp_path: Path) -> None:
    with closing(open_backend(f"sqlite:///{tmp_path}/store.db", "process")) as backend:
        lines = [_line(backend, f"t{number}") for number in range(count)]
        rows = [(line.id, _row(2, first.hash, number)) for number, (line, first) in enumerate(lines)]
        run: list[str] = []
        with backend._connections as db:
            db.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: event["trigger"] or run.append(event["sql"]))
        assert backend.append_all(rows) == [None] * count
        # More than go into one: row by row, in one transaction.
        assert len(run) == (1 if count <= 256 else count + 2)
        run.clear()
        lost = backend.append_all(rows)
        assert [type(answer) for answer in lost] == [StaleWrite] * count
        for number, (_, row) in enumerate(rows):
            assert _newest(backend, f"t{number}") == (2, row.hash)
    with e.open(f"sqlite:///{tmp_path}/store.db") as store:
        assert store.verify()


# ── tasks that share ─────────────────────────────────────────────────────────────────────────────


async def _in_one_group(
    store: e.AsyncStore, verbs: list[Callable[[], Any]], expected: int | None = None
) -> list[Any]:
    """Start all verbs while the writer is busy, then let it go on; what came of each."""
    offloaded: Any = store.core.backend
    sizes: list[int] = []
    work = offloaded.blocking.append_all

    def counted(rows: Any) -> Any:
        sizes.append(len(rows))
        return work(rows)

    offloaded.blocking.append_all = counted
    try:
        async with busy(offloaded._writer, 1):
            tasks = [asyncio.ensure_future(verb()) for verb in verbs]
            await _queued(offloaded, len(verbs))
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        del offloaded.blocking.append_all
    if expected is not None:
        assert sizes[0] == expected
    return outcomes


async def _queued(offloaded: Offloaded, count: int) -> None:
    """Wait until so many jobs wait for the writer."""
    while offloaded._writer._queue.qsize() < count:  # noqa: ASYNC110 - a queue of threads rings no bell
        await asyncio.sleep(0)


def test_tasks_of_one_group_get_an_answer_each(url: str) -> None:
    async def main() -> None:
        async with e.open_async(url, durability="process") as store:
            handles = [await store.thread(f"t{number}") for number in range(10)]
            for number, handle in enumerate(handles):
                handle.state["n"] = number
                await handle.commit()
            rivals = [await store.thread("t0") for _ in range(3)]
            gone = await store.thread("t9")
            await handles[9].delete()
            for number, handle in enumerate([*handles[:9], *rivals, gone]):
                handle.state["new"] = number
                handle.messages.append({"content": number})
            outcomes = await _in_one_group(
                store, [handle.commit for handle in [*handles[:9], *rivals, gone]], expected=13
            )
            for number in range(9):
                version = outcomes[number]
                assert version == handles[number].head
                assert (version.seq, version.parent is not None) == (2, True)
            assert [type(outcome) for outcome in outcomes[9:]] == [*[ConflictError] * 3, ThreadDeletedError]
            store.core.head_cache.clear()
            for number in range(9):
                found = await store.thread(f"t{number}")
                assert found.state.plain() == {"n": number, "new": number}
                assert [item["content"] for item in await found.messages.read()] == [number]
            for rival in rivals:
                assert rival.dirty, "the loser keeps its changes"
            assert (await store.verify()).ok

    run(main())


def test_a_cancelled_one_leaves_the_group_alone(url: str) -> None:
    async def main() -> None:
        async with e.open_async(url, durability="process") as store:
            handles = [await store.thread(f"t{number}") for number in range(8)]
            for handle in handles:
                handle.state["n"] = 0
                await handle.commit()
                handle.state["n"] = 1
            offloaded: Any = store.core.backend
            async with busy(offloaded._writer, 1):
                tasks = [asyncio.ensure_future(handle.commit()) for handle in handles]
                await _queued(offloaded, 8)
                for task in tasks[::2]:
                    task.cancel()
                await asyncio.sleep(0)
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            store.core.head_cache.clear()
            for number, outcome in enumerate(outcomes):
                found = (await store.thread(f"t{number}")).state["n"]
                cancelled = isinstance(outcome, asyncio.CancelledError)
                assert (cancelled, found) == ((True, 0) if number % 2 == 0 else (False, 1))
                await handles[number].commit()
                assert (await store.thread(f"t{number}")).head == handles[number].head
                assert handles[number].head.seq == 2  # type: ignore[union-attr]

    run(main())


def test_other_verbs_keep_their_place_among_appends(url: str) -> None:
    async def main() -> None:
        async with e.open_async(url, durability="process") as store:
            one, two, three = [await store.thread(name) for name in "abc"]
            for handle in (one, two, three):
                handle.state["n"] = 0
                await handle.commit()
            late = await store.thread("b")
            one.state["n"] = three.state["n"] = late.state["n"] = 1
            order: list[str] = []

            async def noted(name: str, verb: Any) -> Any:
                try:
                    return await verb
                finally:
                    order.append(name)

            outcomes = await _in_one_group(
                store,
                [
                    lambda: noted("one", one.commit()),
                    lambda: noted("delete", two.delete()),
                    lambda: noted("late", late.commit()),
                    lambda: noted("three", three.commit()),
                ],
            )
            assert isinstance(outcomes[2], ThreadDeletedError), "the delete came first"
            assert order[0] == "one"
            assert [type(outcomes[number]) for number in (0, 3)] == [e.Version, e.Version]

    run(main())


def test_keys_hold_within_a_group(url: str) -> None:
    async def main() -> None:
        async with e.open_async(url, durability="process") as store:
            first = await store.thread("a")
            first.state["n"] = 0
            await first.commit()
            handles = [await store.thread("a") for _ in range(5)]
            for handle in handles:
                handle.state["n"] = 1
            outcomes = await _in_one_group(
                store, [lambda handle=handle: handle.commit(key="k") for handle in handles]
            )
            assert len(set(outcomes)) == 1, outcomes
            assert outcomes[0].seq == 2
            store.core.head_cache.clear()
            assert (await store.thread("a")).head == outcomes[0]

    run(main())


def test_a_known_key_is_told_to_its_row_only(url: str) -> None:
    opened = open_backend(url, "process")
    line, _ = _line(opened, "a")
    other, start = _line(opened, "b")
    run(_folded_with_key(opened, line))
    found = opened.find("", "a")
    assert found is not None
    assert found.newest is not None
    guarded = _row(found.newest.seq + 1, found.newest.hash, key=b"k" * 16, guard=line.root)
    answers = opened.append_all([(line.id, guarded), (other.id, _row(2, start.hash))])
    assert [type(answer) for answer in answers] == [KeyKnown, type(None)]
    opened.close()


async def _folded_with_key(backend: Backend, line: Line) -> None:
    """Append a few versions, one of them with a key, and fold them."""
    from everthread.limits import DEFAULT_LIMITS
    from everthread.threads.aio.core import Core
    from everthread.threads.runtime import Runtime

    offloaded = Offloaded(backend)
    found = backend.find("", line.name)
    assert found is not None
    assert found.newest is not None
    previous = found.newest.hash
    for seq in range(2, 8):
        row = _row(seq, previous, key=b"k" * 16 if seq == 3 else None)
        backend.append(line.id, row)
        previous = row.hash
    core = Core(offloaded, "", DEFAULT_LIMITS, "memory:", Runtime())
    core.folder.records_max = 3
    newest = backend.find("", line.name)
    assert newest is not None
    await core.maintain(line, await core.head(newest))
    assert core.background_error is None
    assert backend.keyed(line.root, b"k" * 16) == [(line.id, 3)]


# ── disks that fail, power that goes ─────────────────────────────────────────────────────────────


def _contents(url: str, names: list[str]) -> list[int]:
    with e.open(url) as store:
        assert store.verify().ok
        return [store.thread(name).state["n"] for name in names]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("through", ["system", "vfs"])
def test_an_io_error_fails_all_of_the_group(error: int, through: Any, tmp_path: Path) -> None:
    """At every call about files that the group makes: each is told, and all of it is there or none."""
    names = [f"t{number}" for number in range(6)]

    async def main(nth: int) -> bool:
        store = await e.open_async(url)
        try:
            handles = [await store.thread(name) for name in names]
            for handle in handles:
                handle.state["n"] = 0
                await handle.commit()
                handle.state["n"] = 1
            offloaded: Any = store.core.backend
            async with busy(offloaded._writer, 1):
                tasks = [asyncio.ensure_future(handle.commit()) for handle in handles]
                await _queued(offloaded, len(names))
                disk.fail(nth, error)
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            failed = bool(disk.failed)
            disk.heal()
            told = [isinstance(outcome, UnavailableError) for outcome in outcomes]
            assert all(told) or not any(told), outcomes
            assert len(set(_contents(url, names))) == 1, "all of it is there, or nothing"
            # Trying again makes one version, whether it had landed or not.
            for handle in handles:
                await handle.commit()
                assert handle.head is not None
                assert handle.head.seq == 2
        finally:
            await store.close()
        return failed

    nth, failures = 0, 0
    while True:
        nth += 1
        folder = tmp_path / str(nth)
        folder.mkdir()
        url = f"sqlite:///{folder}/store.db"
        with FaultyDisk(folder, through=through) as disk:
            run(main(nth))
            cut = bool(disk.failed)
        assert _contents(url, names) == [1] * len(names)
        failures += cut
        if not cut:
            break
    assert failures >= 2


class Recorded:
    """A folder in memory, and a file system for SQLite that notes all that is done to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.vfs = f"group-{os.getpid()}-{next(_names)}"
        self._made = PowerLossVFS(self.vfs)
        self.recording: Recording = self._made.recording

    @property
    def syncs(self) -> int:
        return sum(isinstance(event, _Sync) for event in self.recording._events)

    def close(self) -> None:
        self._made.unregister()


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    with tempfile.TemporaryDirectory(dir=memory_directory()) as folder:
        made = Recorded(Path(folder))
        yield made
        made.close()


def test_many_tasks_share_syncs(recorded: Recorded) -> None:
    tasks, turns = 64, 4

    async def main() -> None:
        async with e.open_async(f"sqlite:///{recorded.folder}/store.db?vfs={recorded.vfs}") as store:
            handles = [await store.thread(f"t{number}") for number in range(tasks)]
            for handle in handles:
                handle.state["n"] = 0
            before = recorded.syncs
            await handles[0].commit()
            assert recorded.syncs - before == 1, "one alone takes one sync"
            for handle in handles[1:]:
                await handle.commit()
            for handle in handles:
                handle.state["n"] = 1
            before = recorded.syncs
            await _in_one_group(store, [handle.commit for handle in handles], expected=tasks)
            assert recorded.syncs - before == 1, "what queues up takes one together"

            async def work(handle: e.AsyncThread) -> None:
                for turn in range(turns):
                    handle.state["n"] = turn
                    handle.messages.append({"turn": turn})
                    await handle.commit()

            before = recorded.syncs
            await asyncio.gather(*(work(handle) for handle in handles))
            syncs = recorded.syncs - before
            print(f"{syncs} syncs for {tasks * turns} commits of {tasks} tasks")
            assert syncs < tasks * turns / 2

    run(main())


def test_a_power_loss_keeps_what_was_acknowledged(recorded: Recorded, seed: int) -> None:
    """Disks as a power loss may leave them while sixteen tasks commit: no acknowledged commit is missing."""
    acknowledged: list[tuple[str, int]] = []
    path = recorded.folder / "live" / "store.db"
    path.parent.mkdir()
    rng = random.Random(seed)

    async def main() -> None:
        url = f"sqlite:///{path}?vfs={recorded.vfs}&wal_autocheckpoint=40"
        async with e.open_async(url) as store:
            store.core.folder.records_max = 5

            async def work(name: str) -> None:
                handle = await store.thread(name)
                for turn in range(1, 13):
                    handle.state["n"] = turn
                    handle.messages.append({"id": f"{turn}", "text": "x" * rng.randrange(400)})
                    await handle.commit()
                    acknowledged.append((name, turn))
                    recorded.recording.acknowledge()

            await asyncio.gather(*(work(f"t{number}") for number in range(16)))

    run(main())
    assert len(acknowledged) == 192
    disks = 0
    for disk in recorded.recording.states(seed, 120):
        disks += 1
        promised: dict[str, int] = {}
        for name, turn in acknowledged[: disk.acknowledged]:
            promised[name] = max(turn, promised.get(name, 0))
        place = recorded.folder / "disk"
        disk.write_to(place)
        if not (place / "store.db").exists():
            assert not promised
            continue
        with e.open(f"sqlite:///{place}/store.db") as store:
            for name, turn in promised.items():
                thread = store.thread(name)
                assert thread.state["n"] >= turn, f"disk {disk.index}: {name} lost {turn}"
                assert thread.head is not None
                assert thread.state["n"] == thread.head.seq == len(thread.messages)
            if disks % 10 == 0:
                assert store.verify().ok
    assert disks == 120
