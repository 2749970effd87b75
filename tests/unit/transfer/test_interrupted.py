"""Imports that are cut short, and exports of stores that others write to."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Personal, Retention, Store
from everthread.errors import ConflictError, StoreBusyError
from everthread.records.opening import open_backend
from everthread.store import Store as OpenStore
from everthread.testing.faults import Call, wrapped

#: What changes a store.
WRITES = frozenset("create append fold keyframe delete prune tag swap emit trim_stream".split())


class Cut(BaseException):
    """As if the process had been killed here."""


def fill(store: Store) -> None:
    thread = store.thread("bot")
    for number in range(150):
        thread.state["n"] = number
        thread.messages.append({"content": f"m{number}"})
        thread.commit(key=f"k{number}" if number % 10 == 0 else None)
    thread.state["who"] = Personal("u1", "secret")
    thread.commit()
    fork = thread.fork("fork", at=140)
    fork.state["f"] = 1
    fork.commit()
    doomed = store.thread("doomed")
    doomed.state["x"] = 1
    doomed.commit()
    doomed.fork("child")
    doomed.delete()
    store.gc(Retention(keep_last=30, keep_labelled=False))
    stream = store.events("tasks")
    stream.extend([("a", 1), ("b", 2)])
    stream.delete()
    stream.extend([("c", 3), ("d", Personal("u1", 4))])
    consumer = stream.consumer("c")
    consumer.ack(consumer.poll(1)[0])
    with store.session("session") as session:
        session.call("effect", lambda: 1)
    store.users.set("u1", "k", "v")


def seen(store: Store) -> Any:
    told: list[Any] = list(store.threads())
    for info in store.threads():
        thread = store.thread(info.name)
        told.append((list(thread.history(limit=None)), thread.state.plain(), thread.messages[:]))
    told.append([(e.seq, e.type) for e in store.events("tasks")])
    told.append(store.events("tasks").consumer("c").position())
    told.append(store.users.get("u1", "k"))
    return told


def test_cut_short_anywhere_an_import_is_finished_by_running_it_again(tmp_path: Path) -> None:
    archive = tmp_path / "a"
    with everthread.open("memory:") as source:
        fill(source)
        source.export(archive)
        expected = seen(source)
    number, ended = 0, False
    while not ended:
        number += 1
        backend = open_backend("memory:", "full")
        left = [number]

        def hook(call: Call, left: list[int] = left) -> None:
            if call.verb in WRITES and call.moment == "after":
                left[0] -= 1
                if left[0] == 0:
                    raise Cut

        try:
            OpenStore(wrapped(backend, hook)).import_from(archive)
            ended = True
        except Cut:
            pass
        store = OpenStore(backend)
        store.import_from(archive)
        assert seen(store) == expected, f"cut after write {number}"
        report = store.verify()
        assert report, f"cut after write {number}: {report}"
        assert report.versions > 30
    assert number >= 15


def test_others_write_while_it_is_exported(tmp_path: Path, seed: int) -> None:
    """Commits, forks, deletions and pruning between any two reads: what comes out is sound, or refused as
    long as somebody prunes what is on its way."""
    chance = random.Random(seed)
    backend = open_backend(f"sqlite:///{tmp_path}/s.db", "process")
    store = OpenStore(backend)
    fill(store)
    count = 0

    def deed() -> None:
        nonlocal count
        count += 1
        names = [info.name for info in store.threads()]
        name = chance.choice(names)
        what = chance.random()
        thread = store.thread(name)
        if what < 0.5:
            thread.state["n"] = count
            thread.messages.append({"content": f"late {count}"})
            thread.commit()
        elif what < 0.8:
            thread.fork(f"late {count}")
        elif what < 0.9 and len(names) > 3:
            thread.delete()
        else:
            store.gc(Retention(keep_last=20, keep_labelled=False))

    def hook(call: Call) -> None:
        reads = call.moment == "after" and call.verb in ("scan", "chunks", "line")
        # At least once, whatever the seed.
        if reads and (not count or chance.random() < 0.15):
            deed()

    copied = everthread.open("memory:")
    busy = OpenStore(wrapped(backend, hook))
    try:
        busy.export(tmp_path / "a")
    except StoreBusyError:
        store.export(tmp_path / "a")
    copied.import_from(tmp_path / "a")
    assert count > 0
    assert copied.verify()
    for info in copied.threads():
        found = store.thread(info.name)
        thread = copied.thread(info.name)
        if found.head is not None and thread.head is not None and found.head.seq >= thread.head.seq:
            with_same = found.at(thread.head) if found.head != thread.head else found
            assert with_same.state.plain() == thread.state.plain()


def test_a_commit_between_is_told_not_lost(tmp_path: Path) -> None:
    archive = tmp_path / "a"
    with everthread.open("memory:") as source:
        thread = source.thread("bot")
        for number in range(3):
            thread.state["n"] = number
            thread.commit()
        source.export(archive)
    backend = open_backend("memory:", "full")
    store = OpenStore(backend)

    def hook(call: Call) -> None:
        if call.verb == "create" and call.moment == "after" and call.number == 1:
            thread = store.thread("bot")
            thread.state["mine"] = True
            thread.commit()

    with pytest.raises(ConflictError, match="somebody wrote to 'bot'"):
        OpenStore(wrapped(backend, hook)).import_from(archive)
    assert store.thread("bot").state["mine"] is True


def test_both_colours_move_alike(tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/s.db") as source:
        fill(source)
        expected = seen(source)
        versions = source.export(tmp_path / "sync").versions
    told: list[tuple[int, int]] = []

    async def move() -> None:
        url = f"sqlite:///{tmp_path}/s.db"
        async with everthread.open_async(url) as a, everthread.open_async("memory:") as b:
            report = await a.export(
                tmp_path / "async", progress=lambda done, total: told.append((done, total))
            )
            assert report.versions == versions
            await b.import_from(tmp_path / "async")
            async with everthread.open_async(f"sqlite:///{tmp_path}/t.db") as c:
                await b.copy_to(c)
                assert (await c.verify()).versions >= versions
                with pytest.raises(everthread.UsageError, match="same colour"):
                    await b.copy_to("x")  # type: ignore[arg-type]

    asyncio.run(move())
    assert told[-1][0] == told[-1][1]
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    with everthread.open(f"sqlite:///{tmp_path}/t.db") as target:
        assert seen(target) == expected
        assert target.import_from(tmp_path / "sync").versions == 0
