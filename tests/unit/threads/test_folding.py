"""What a store has written itself it folds without reading it again, and into the same packs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import everthread as e
from everthread.history import packs
from everthread.stores.contract import DELTA, PACK, Fold, Line
from everthread.threads.aio import fold as async_folding
from everthread.threads.sync import fold as folding


@pytest.fixture(params=["memory", "sqlite", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[e.Store]:
    urls = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/a.db", "file": f"file:///{tmp_path}/a"}
    with e.open(urls[request.param]) as opened:
        yield opened


class Watched:
    """The store's backend, as the folder sees it: counts reads, and compares each fold with the rows."""

    def __init__(self, store: e.Store) -> None:
        self.backend: Any = store.core.backend
        self.folder = store.core.folder
        self.reads = 0
        self.folds: list[Fold] = []
        self.folder._backend = self  # type: ignore[assignment]

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return getattr(self.backend, verb)  # type: ignore[no-any-return]

    def tail(self, line: int) -> Any:
        self.reads += 1
        return self.backend.tail(line)

    def fold(self, line: Line, fold: Fold) -> bool:
        rows = [folding._taken_apart(*entry) for entry in self.backend.tail(line.id)]
        run = [row for row in rows if row is not None and fold.pack.first <= row.seq <= fold.pack.last]
        read = folding._made(run, fold.beside)
        taken: bool = self.backend.fold(line, fold)
        if taken:
            assert (fold.pack, fold.hash, fold.tags) == (read.pack, read.hash, read.tags)
            if self.backend.url != "memory:":
                # There keys are entries of their own, which rows don't name.
                assert fold.keys == read.keys
            self.folds.append(fold)
        return taken


def work(thread: e.Thread, rng: random.Random, step: int) -> None:
    """One commit of any kind."""
    for _ in range(rng.randrange(3)):
        thread.messages.append({"role": "user", "content": "x" * rng.randrange(200)})
    if rng.random() < 0.2:
        thread.log("notes").append([step, rng.random()])
    if rng.random() < 0.1 and len(thread.messages):
        thread.messages.truncate_from(thread.messages[-1]["id"])
    thread.state["step"] = step
    # A value that is changed in place after it was committed.
    todos = thread.state.setdefault("todos", [])
    todos.append({"n": step, "done": False})
    todos[rng.randrange(len(todos))]["done"] = True
    named = {"key": f"k{step}"} if rng.random() < 0.5 else {}
    metadata = {"run": rng.randrange(5), "long": "y" * 100} if rng.random() < 0.5 else None
    thread.commit(metadata=metadata, **named)
    if rng.random() < 0.3:
        with thread.step(f"s{step}") as each:
            each.result = {"step": step}


def test_nothing_is_read_to_fold_what_was_written_here(store: e.Store) -> None:
    seed = 20
    watched, rng = Watched(store), random.Random(seed)
    thread = store.thread("t")
    for step in range(300):
        work(thread, rng, step)
    assert watched.reads == 0, seed
    assert len(watched.folds) >= 4, seed
    assert store.verify().ok


def test_a_commit_of_many_items_is_folded_like_others(store: e.Store) -> None:
    watched, thread = Watched(store), store.thread("t")
    for n in range(3):
        thread.messages.extend({"n": n, "m": m, "text": "z" * 300} for m in range(1000))
        thread.commit()
    for n in range(70):
        thread.state["n"] = n
        thread.commit()
    assert watched.reads == 0
    assert watched.folds
    assert [(m["n"], m["m"]) for m in thread.messages] == [(n, m) for n in range(3) for m in range(1000)]


def test_others_wrote_in_between_so_the_rows_are_read(store: e.Store) -> None:
    watched, a, b = Watched(store), store.thread("t"), store.thread("t")
    for n in range(packs.FOLD_RECORDS + 5):
        writer = (a, b)[n % 7 == 3]
        writer.refresh()
        writer.state[f"k{n % 9}"] = n
        writer.commit(key=str(n))
    assert len(watched.folds) == 1
    assert store.verify().ok


def test_a_rewind_in_the_tail_is_not_folded(store: e.Store) -> None:
    watched, thread = Watched(store), store.thread("t")
    for n in range(packs.FOLD_RECORDS + 20):
        thread.state["n"] = n
        version = thread.commit()
        if n == 30 and version is not None:
            thread.rewind(version.seq - 5)
    assert watched.folds
    assert store.verify().ok
    assert [v.seq for v in thread.history(limit=1000)] == list(range(packs.FOLD_RECORDS + 21, 0, -1))


def test_somebody_else_folded_first(store: e.Store) -> None:
    watched, thread = Watched(store), store.thread("t")
    for n in range(40):
        thread.state["n"] = n
        thread.commit()
    line = thread.handle.line
    assert line is not None
    store.core.folder.fold_tail(line, newest=False)
    folded, reads = len(watched.folds), watched.reads
    for n in range(100):
        thread.state["n"] = n
        thread.commit()
    assert len(watched.folds) > folded
    # The first try is refused, the next one looks at what there is.
    assert watched.reads == reads + 1
    assert store.verify().ok


def test_a_fold_that_failed_is_made_up_for(store: e.Store) -> None:
    watched, thread = Watched(store), store.thread("t")
    real = watched.backend.fold

    def fails(*args: Any) -> bool:
        watched.backend.fold = real
        raise e.StorageWriteError("the disk is full")

    watched.backend.fold = fails
    for n in range(packs.FOLD_RECORDS + 10):
        thread.state["n"] = n
        thread.commit()
    assert [(fold.pack.first, fold.pack.last) for fold in watched.folds] == [(1, packs.FOLD_RECORDS + 1)]
    assert watched.reads == 1
    assert store.verify().ok


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_lines_that_grow_in_step_are_not_folded_in_step(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is folded before long, and into packs that are worth it."""
    own = async_folding.Folder._fold
    under_way = most = 0

    async def watched(self: async_folding.Folder, *arguments: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await own(self, *arguments)
        finally:
            under_way -= 1

    monkeypatch.setattr(async_folding.Folder, "_fold", watched)

    async def write(store: e.AsyncStore, name: str) -> list[int]:
        """220 commits; the length of the tail after each."""
        thread: Any = await store.thread(name)
        tails = []
        for step in range(220):
            thread.messages.append({"role": "user", "content": f"{name} {step}"})
            await thread.commit()
            tails.append(len(await store.core.backend.tail(thread.handle.line.id)))
        return tails

    async def main() -> None:
        names = [f"line-{number}" for number in range(16)]
        url = "memory:" if kind == "memory" else f"sqlite:///{tmp_path}/a.db"
        async with await e.open_async(url) as store:
            tails = await asyncio.gather(*(write(store, name) for name in names))
            assert most == 1
            assert max(map(max, tails)) < packs.FOLD_RECORDS * 3 // 2
            for name in names:
                thread: Any = await store.thread(name)
                contents = [message["content"] async for message in thread.messages]
                assert contents == [f"{name} {step}" for step in range(220)]
                rows = await store.core.backend.scan(thread.handle.line.id, 1 << 31, 1000)
                packed = [row.seq - row.first + 1 for row in rows if row.kind == PACK]
                assert packed
                assert min(packed) >= packs.FOLD_RECORDS

    asyncio.run(main())


def test_a_short_rest_goes_into_the_pack_before_it(store: e.Store) -> None:
    """Rows that another writer left: 64 and some would be a pack and a scrap."""
    folder = store.core.folder
    folder.records_max = 1000
    thread = store.thread("t")
    for step in range(75):
        thread.messages.append({"step": step})
        thread.commit()
    folder.records_max = 64
    thread.messages.append({"step": 75})
    thread.commit()
    rows = store.core.backend.scan(thread.handle.line.id, 1 << 31, 1000)  # type: ignore[union-attr]
    assert [(row.kind, row.first, row.seq) for row in rows] == [(DELTA, 76, 76), (PACK, 1, 75)]
    assert [each["step"] for each in thread.messages] == list(range(76))


def test_items_that_nobody_knows_of_are_damage(tmp_path: Path) -> None:
    with e.open(f"sqlite:///{tmp_path}/a.db") as opened:
        thread = opened.thread("t")
        thread.messages.append({"n": 0})
        thread.commit()
        connection = apsw.Connection(f"{tmp_path}/a.db")
        connection.execute(
            "INSERT INTO chunk (line, log, position, count, sum, fingerprints, data) "
            "VALUES (?, 'messages', 0, 1, 0, x'00', x'00')",
            (thread.handle.line.id,),  # type: ignore[union-attr]
        )
        connection.close()
        for number in range(1, 70):
            thread.messages.append({"n": number})
            thread.commit()
        assert isinstance(opened.core.background_error, e.StateCorruptedError)
        assert "see store.verify()" in str(opened.core.background_error)
        assert [message["n"] for message in thread.messages] == list(range(70)), "nothing was lost"
