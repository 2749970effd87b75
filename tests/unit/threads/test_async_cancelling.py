"""Cancelled at every call of the store that a verb makes, before, within and after it.

Whatever it was: the store holds the old state or the new one, verify() finds nothing, the handle goes on or
says how, a retried commit makes one version, and the next call gets its own answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import everthread as e
from everthread.errors import ConflictError, ThreadDeletedError
from everthread.history import packs, snapshots
from everthread.threads.aio import fold
from everthread.threads.aio.journals import beside
from tests.unit.threads.tripwire import (
    MOMENTS,
    Tripwire,
    cancelled_at,
    cancelled_when_suspended,
    open_tripped,
    run,
)

Case = Callable[
    ["Bench"], Awaitable[tuple[Callable[[], Coroutine[Any, Any, Any]], Callable[[], Awaitable[None]]]]
]

CASES: list[Case] = []


def case(function: Case) -> Case:
    """``async def case(bench)``: prepares, then returns the verb to cancel and what must hold afterwards."""
    CASES.append(function)
    return function


class Bench:
    """A store with a thread that has been folded, forked and rewound."""

    def __init__(self, store: e.AsyncStore, folder: Path) -> None:
        self.store = store
        self.folder = folder

    async def talk(self, thread: e.AsyncThread, count: int, prefix: str = "m") -> list[e.Version]:
        versions = []
        for number in range(count):
            thread.messages.append({"id": f"{prefix}{number}", "n": number})
            thread.state["count"] = number
            version = await thread.commit(metadata={"prefix": prefix})
            assert version is not None
            versions.append(version)
        return versions

    async def thread(self, name: str = "a", count: int = 7) -> e.AsyncThread:
        thread = await self.store.thread(name)
        await self.talk(thread, count)
        return thread

    async def fresh(self, name: str = "a") -> e.AsyncThread:
        """A new handle that goes by what the store holds, not by what is remembered."""
        self.store.core.head_cache.clear()
        return await self.store.thread(name)

    async def ids(self, name: str = "a") -> list[Any]:
        return [item["id"] for item in await (await self.fresh(name)).messages.read()]

    async def sound(self) -> None:
        report = await self.store.verify()
        assert report.ok, report.damage
        assert self.store.core.background_error is None
        # The next call gets its own answer.
        other = await self.store.thread("another")
        number = other.state.get("n", 0)
        other.state["n"] = number + 1
        made = await other.commit(metadata={"n": number})
        assert made is not None
        assert made.metadata == {"n": number}
        assert (await self.fresh("another")).state.plain() == {"n": number + 1}


SEVEN = [f"m{number}" for number in range(7)]
#: When the task waits, whatever for.
SUSPENDED = "suspended"


# ── committing ───────────────────────────────────────────────────────────────────────────────────


def _edit(thread: e.AsyncThread) -> None:
    thread.state["new"] = {"x": [1]}
    thread.messages.truncate_from("m5")
    thread.messages.append({"id": "m2", "n": 2})
    thread.messages.append({"id": "mine", "n": "new"})
    thread.messages.append({"n": "no id"})
    thread.log("other").append("plain")


async def _edited(bench: Bench, thread: e.AsyncThread, before: e.Version) -> None:
    """What :func:`_edit` made is there, in one version."""
    ids = await bench.ids()
    assert ids[:-1] == [*SEVEN[:5], "mine"]
    again = await bench.fresh()
    assert again.head == thread.head
    assert again.head is not None
    assert (again.head.seq, again.head.parent) == (before.seq + 1, before.id)
    assert again.state.plain() == {"count": 6, "new": {"x": [1]}}
    assert await again.log("other").read() == ["plain"]
    assert not thread.dirty


@case
async def commit(bench: Bench) -> Any:
    thread = await bench.thread()
    before = thread.head
    assert before is not None
    _edit(thread)

    async def holds() -> None:
        ids = await bench.ids()
        assert ids == SEVEN or ids[:-1] == [*SEVEN[:5], "mine"], "old or new"
        await thread.commit()
        await _edited(bench, thread, before)

    return thread.commit, holds


@case
async def commit_then_edit(bench: Bench) -> Any:
    thread = await bench.thread()
    before = thread.head
    assert before is not None
    _edit(thread)

    async def holds() -> None:
        thread.state["later"] = 1
        thread.messages.append({"id": "later"})
        thread.messages.append({"id": "mine", "n": "new"})
        await thread.commit(label="second")
        ids = await bench.ids()
        assert [id_ for id_ in ids if id_ in SEVEN or id_ in ("mine", "later")] == [
            *SEVEN[:5],
            "mine",
            "later",
        ]
        again = await bench.fresh()
        assert again.state.plain() == {"count": 6, "new": {"x": [1]}, "later": 1}
        assert again.head is not None
        assert again.head.label == "second"
        assert again.head.seq - before.seq in (1, 2)

    return lambda: thread.commit("first"), holds


@case
async def commit_then_discard(bench: Bench) -> Any:
    thread = await bench.thread()
    _edit(thread)
    # As after a move that was interrupted half way: it has to read where it stands.
    thread.handle.moving = "standing"
    bench.store.core.head_cache.clear()

    async def holds() -> None:
        await thread.discard()
        await thread.refresh()
        assert thread.state.plain() == (await bench.fresh()).state.plain()
        thread.state["on"] = 1
        await thread.commit()
        assert (await bench.fresh()).state["on"] == 1

    return thread.commit, holds


@case
async def first_commit(bench: Bench) -> Any:
    thread = await bench.store.thread("a")
    thread.state["x"] = 1
    thread.messages.append({"id": "one"})

    async def holds() -> None:
        names = [info.name async for info in bench.store.threads()]
        assert names in ([], ["a"])
        version = await thread.commit()
        assert version is not None
        assert (version.seq, (await bench.fresh()).head) == (1, version)
        assert await bench.ids() == ["one"]
        assert [info.name async for info in bench.store.threads()] == ["a"]

    return thread.commit, holds


@case
async def first_commit_then_discard(bench: Bench) -> Any:
    thread = await bench.store.thread("a")
    thread.state["x"] = 1

    async def holds() -> None:
        await thread.discard()
        thread.state["y"] = 1
        try:
            await thread.commit()
        except ConflictError:
            await thread.rebase()
            await thread.commit()
        assert (await bench.fresh()).state["y"] == 1

    return thread.commit, holds


@case
async def commit_under_a_key(bench: Bench) -> Any:
    thread = await bench.thread()
    before = thread.head
    assert before is not None
    _edit(thread)

    async def holds() -> None:
        made = await thread.commit(key="k")
        await _edited(bench, thread, before)
        _edit(again := await bench.fresh())
        assert await again.commit(key="k") == made
        assert (await bench.fresh()).head == made

    return lambda: thread.commit(key="k", label="keyed"), holds


@case
async def commit_under_a_known_key(bench: Bench) -> Any:
    thread = await bench.thread()
    thread.state["k"] = 1
    made = await thread.commit(key="k")
    await bench.talk(thread, 9, "later")
    newest = thread.head
    other = await bench.fresh()
    other.state["k"] = 1

    async def holds() -> None:
        assert await other.commit(key="k") == made
        assert not other.dirty
        assert other.head == (await bench.fresh()).head == newest

    return lambda: other.commit(key="k"), holds


@case
async def commit_that_conflicts(bench: Bench) -> Any:
    thread = await bench.thread()
    await bench.talk(await bench.fresh(), 1, "theirs")
    _edit(thread)
    thread.state.pop("count")
    await thread.discard()
    thread.state["mine"] = 1
    thread.messages.append({"id": "mine"})

    async def refused() -> None:
        with pytest.raises(ConflictError):
            await thread.commit()

    async def holds() -> None:
        await refused()
        assert thread.state["mine"] == 1
        await thread.rebase()
        await thread.commit()
        assert await bench.ids() == [*SEVEN, "theirs0", "mine"]

    return refused, holds


@case
async def commit_of_a_label(bench: Bench) -> Any:
    thread = await bench.thread()
    before = thread.head
    assert before is not None

    async def holds() -> None:
        version = await thread.commit(label="x")
        assert version is not None
        assert (version.label, version.seq) == ("x", before.seq + 1)
        assert (await bench.fresh()).head == version

    return lambda: thread.commit(label="x"), holds


async def _lose_the_answer(bench: Bench, verb: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Cancel when what it writes has been written."""
    core: Any = bench.store.core
    tripwire: Tripwire = core.backend
    for nth in range(1, 20):
        assert await cancelled_at(tripwire, nth, "after", verb)
        if tripwire.cut in ("append:after", "create:after"):
            return


@case
async def commit_tried_again(bench: Bench) -> Any:
    thread = await bench.thread()
    before = thread.head
    assert before is not None
    _edit(thread)

    def verb() -> Coroutine[Any, Any, Any]:
        return thread.commit("again", metadata={"x": 1})

    await _lose_the_answer(bench, verb)

    async def holds() -> None:
        made = await verb()
        assert made.label == "again"
        await _edited(bench, thread, before)

    return verb, holds


@case
async def commit_of_a_label_tried_again(bench: Bench) -> Any:
    thread = await bench.thread()
    await _lose_the_answer(bench, lambda: thread.commit("again"))

    async def holds() -> None:
        version = await thread.commit("again")
        assert version is not None
        assert (version.label, version.seq) == ("again", 8)
        assert (await bench.fresh()).head == version == thread.head

    return lambda: thread.commit("again"), holds


@case
async def first_commit_tried_again(bench: Bench) -> Any:
    thread = await bench.store.thread("a")
    thread.state["x"] = 1
    await _lose_the_answer(bench, lambda: thread.commit("again"))

    async def holds() -> None:
        version = await thread.commit("again")
        assert version is not None
        assert version.seq == 1
        assert (await bench.fresh()).head == version == thread.head

    return lambda: thread.commit("again"), holds


@case
async def commit_of_much(bench: Bench) -> Any:
    thread = await bench.thread()
    thread.messages.extend({"id": f"big{number}", "text": "x" * 100} for number in range(50))

    async def holds() -> None:
        version = await thread.commit()
        assert version is not None
        assert version.seq == 8
        assert await bench.ids() == [*SEVEN, *(f"big{number}" for number in range(50))]

    return thread.commit, holds


@case
async def commit_of_a_personal_value(bench: Bench) -> Any:
    thread = await bench.thread()
    thread.state["who"] = e.Personal("ann", "Ann")

    async def holds() -> None:
        await thread.commit()
        again = await bench.fresh()
        assert again.state["who"].value == "Ann"
        assert again.head is not None
        assert again.head.seq == 8

    return thread.commit, holds


@case
async def update(bench: Bench) -> Any:
    thread = await bench.thread()
    await bench.talk(await bench.fresh(), 1, "theirs")

    async def fn(draft: Any) -> None:
        draft["n"] = draft.get("n", 0) + 1
        await asyncio.sleep(0)
        draft.messages.append({"id": f"u{draft['n']}"})

    async def holds() -> None:
        assert not thread.dirty
        before = (await bench.fresh()).state.get("n", 0)
        assert before in (0, 1)
        await thread.update(fn)
        assert (await bench.fresh()).state["n"] == before + 1
        assert (await bench.ids())[8:] == [f"u{number}" for number in range(1, before + 2)]

    return lambda: thread.update(fn), holds


# ── moving ───────────────────────────────────────────────────────────────────────────────────────


@case
async def expire(bench: Bench) -> Any:
    thread = await bench.thread()

    async def holds() -> None:
        assert not thread.dirty
        await thread.refresh()
        await thread.expire(3600)
        found = await bench.fresh()
        assert found.head is not None
        assert found.head.ttl_us == 3_600_000_000
        await bench.talk(thread, 1, "on")

    return lambda: thread.expire(3600), holds


@case
async def refresh(bench: Bench) -> Any:
    thread = await bench.thread()
    versions = await bench.talk(await bench.fresh(), 5, "theirs")
    bench.store.core.head_cache.clear()

    async def holds() -> None:
        assert thread.head is not None
        assert thread.head.seq in (7, 12)
        assert await thread.refresh() == versions[-1]
        assert thread.state["count"] == 4

    return thread.refresh, holds


@case
async def rebase(bench: Bench) -> Any:
    thread = await bench.thread()
    await bench.talk(await bench.fresh(), 3, "theirs")
    bench.store.core.head_cache.clear()
    thread.state["mine"] = 1
    thread.messages.append({"id": "theirs1", "n": 1})
    thread.messages.append({"id": "mine"})

    async def holds() -> None:
        assert thread.state["mine"] == 1
        await thread.rebase()
        await thread.commit()
        assert await bench.ids() == [*SEVEN, "theirs0", "theirs1", "theirs2", "mine"]
        assert (await bench.fresh()).state.plain() == {"count": 2, "mine": 1}

    return thread.rebase, holds


@case
async def rebase_after_a_lost_answer(bench: Bench) -> Any:
    thread = await bench.thread()
    thread.state["mine"] = 1
    thread.messages.append({"id": "mine"})
    core: Any = bench.store.core
    tripwire: Tripwire = core.backend
    assert await cancelled_at(tripwire, 1, "after", lambda: _only_append(thread))
    await bench.talk(await bench.fresh(), 1, "theirs")
    thread.state["more"] = 1

    async def holds() -> None:
        await thread.rebase()
        await thread.commit()
        assert await bench.ids() == [*SEVEN, "mine", "theirs0"]
        assert (await bench.fresh()).state.plain() == {"count": 0, "mine": 1, "more": 1}

    return thread.rebase, holds


async def _only_append(thread: e.AsyncThread) -> None:
    # What an id of the caller's needs to ask comes before.
    await thread.messages.read(0, 0)
    core: Any = thread.core
    core.backend.arm(1, "after", asyncio.current_task())
    await thread.commit()


@case
async def discard(bench: Bench) -> Any:
    thread = await bench.thread()
    _edit(thread)
    # As after a move that was interrupted half way: it has to read where it stands.
    thread.handle.moving = "standing"
    bench.store.core.head_cache.clear()

    async def holds() -> None:
        await thread.discard()
        assert not thread.dirty
        assert await bench.ids() == SEVEN

    return thread.discard, holds


@case
async def rewind(bench: Bench) -> Any:
    thread = await bench.thread()
    versions = [version async for version in thread.history()]

    async def holds() -> None:
        assert await bench.ids() in (SEVEN, SEVEN[:3])
        back = await thread.rewind(versions[4])
        assert (back.seq, back.source) == (8, versions[4].id)
        assert await bench.ids() == SEVEN[:3]
        assert (await bench.fresh()).head == back == thread.head
        await bench.talk(thread, 2, "on")

    return lambda: thread.rewind(3), holds


@case
async def rewind_tried_again(bench: Bench) -> Any:
    thread = await bench.thread()
    await _lose_the_answer(bench, lambda: thread.rewind(3))

    async def holds() -> None:
        back = await thread.rewind(3)
        assert back.seq == 8
        assert await bench.ids() == SEVEN[:3]
        assert (await bench.fresh()).head == back == thread.head

    return lambda: thread.rewind(3), holds


@case
async def rewind_then_commit(bench: Bench) -> Any:
    thread = await bench.thread()

    async def holds() -> None:
        landed = await bench.ids() == SEVEN[:3]
        thread.state["on"] = 1
        if landed and thread.head is not None and thread.head.seq == 7:
            with pytest.raises(ConflictError):
                await thread.commit()
            await thread.rebase()
        await thread.commit()
        assert await bench.ids() == (SEVEN[:3] if landed else SEVEN), "no rewind is undone"
        assert (await bench.fresh()).state["on"] == 1

    return lambda: thread.rewind(3), holds


# ── branching ────────────────────────────────────────────────────────────────────────────────────


async def _with_journal(bench: Bench, thread: e.AsyncThread) -> None:
    """A companion, as a session has one."""
    assert thread.uid is not None
    journal = e.AsyncThread(beside(bench.store.core), thread.uid)
    await journal.handle.load()
    journal.state["ledger"] = 1
    await journal.commit()


async def _forked(bench: Bench, thread: e.AsyncThread, expected: list[Any]) -> e.AsyncThread:
    """Fork unless that was done before it was cancelled; the fork is whole."""
    with suppress(e.ThreadExistsError):
        await thread.fork("b", at=5)
    fork = await bench.fresh("b")
    assert await bench.ids("b") == expected
    assert fork.uid is not None
    journal = e.AsyncThread(beside(bench.store.core), fork.uid)
    await journal.handle.load()
    assert journal.state.plain() == {"ledger": 1}, "no fork is without its ledger"
    await bench.talk(fork, 2, "fork")
    return fork


@case
async def fork(bench: Bench) -> Any:
    thread = await bench.thread()
    await _with_journal(bench, thread)

    async def holds() -> None:
        assert not thread.dirty
        await _forked(bench, thread, SEVEN[:5])
        assert await bench.ids() == SEVEN

    return lambda: thread.fork("b", at=5), holds


@case
async def fork_with_hooks(bench: Bench) -> Any:
    thread = await bench.thread()
    await _with_journal(bench, thread)

    async def holds() -> None:
        if "b" in [info.name async for info in bench.store.threads()]:
            await _forked(bench, thread, ["m0", "m1", "told"])
        else:
            await _forked(bench, thread, SEVEN[:5])
        assert await bench.ids() == SEVEN

    def prepare(messages: list[Any]) -> list[Any]:
        return [*messages[:2], {"id": "told"}]

    return lambda: thread.fork("b", at=5, prepare=prepare, transform=lambda message: message), holds


@case
async def merge(bench: Bench) -> Any:
    thread = await bench.thread()
    fork = await thread.fork("b")
    await bench.talk(fork, 3, "fork")
    thread.messages.append({"id": "ours"})
    await thread.commit()

    async def holds() -> None:
        assert not thread.dirty
        try:
            merged = await thread.merge(fork)
        except ConflictError:
            # It had landed: then the newest version holds it.
            await thread.refresh()
            merged = await thread.merge(fork)
        assert merged.version is not None
        assert not merged.conflicts
        assert sorted(await bench.ids()) == sorted([*SEVEN, "ours", "fork0", "fork1", "fork2"])
        versions = [version.kind async for version in (await bench.fresh()).history()]
        assert versions.count("merge") == 1

    return lambda: thread.merge(fork), holds


@case
async def delete(bench: Bench) -> Any:
    thread = await bench.thread()
    await _with_journal(bench, thread)
    uid = thread.uid
    assert uid is not None
    fork = await thread.fork("b")

    async def holds() -> None:
        with suppress(ThreadDeletedError):
            await thread.delete()
        assert [info.name async for info in bench.store.threads()] == ["b"]
        journal = e.AsyncThread(beside(bench.store.core), uid)
        await journal.handle.load()
        assert journal.head is None
        assert await bench.ids("b") == SEVEN
        await bench.talk(fork, 1, "on")
        new = await bench.store.thread("a")
        assert new.head is None
        await bench.talk(new, 1)

    return thread.delete, holds


# ── steps ────────────────────────────────────────────────────────────────────────────────────────


async def _step(
    thread: e.AsyncThread, attempt: int = 1, others: Callable[[], Awaitable[Any]] | None = None
) -> Any:
    async with thread.step(("turn", 1), attempt=attempt, slot=0) as step:
        if step.done:
            return step.result
        step.messages.append({"n": "step"})
        step.state["stepped"] = step.state.get("stepped", 0) + 1
        thread.log("aside").append({"id": "aside"})
        if others is not None:
            await others()
        step.result = {"attempt": attempt}
    return step.result


async def _stepped(bench: Bench, thread: e.AsyncThread, attempt: int, **options: Any) -> None:
    assert not thread.dirty
    result = await _step(thread, attempt, **options)
    assert result == {"attempt": attempt}
    assert await _step(thread, attempt) == result, "recorded once"
    again = await bench.fresh()
    assert again.state["stepped"] == 1
    assert len(await again.messages.read()) - (1 if options else 0) == 8
    assert await again.log("aside").read() == [{"id": "aside"}]


@case
async def step(bench: Bench) -> Any:
    thread = await bench.thread()
    return lambda: _step(thread), lambda: _stepped(bench, thread, 1)


@case
async def step_again(bench: Bench) -> Any:
    thread = await bench.thread()

    async def holds() -> None:
        await _stepped(bench, thread, 2)

    return lambda: _step(thread, 2), holds


@case
async def step_that_meets_others(bench: Bench) -> Any:
    thread = await bench.thread()
    met: asyncio.Future[None] | None = None

    async def commit() -> None:
        other = await bench.fresh()
        other.messages.append({"id": "theirs"})
        await other.commit()

    async def others() -> None:
        nonlocal met
        if met is None:
            # In a task of its own, which nobody cancels.
            met = asyncio.ensure_future(commit())
        # Whoever asks next waits for it, too: else it might come second.
        await asyncio.shield(met)

    async def holds() -> None:
        await others()
        await _stepped(bench, thread, 1, others=others)

    return lambda: _step(thread, 1, others), holds


# ── looking ──────────────────────────────────────────────────────────────────────────────────────


def _looking(look: Callable[[Bench, e.AsyncThread], Coroutine[Any, Any, Any]], name: str) -> None:
    async def prepared(bench: Bench) -> Any:
        thread = await bench.thread("a", 20)
        await thread.rewind(15)
        expected = await look(bench, thread)
        bench.store.core.head_cache.clear()
        thread = await bench.store.thread("a")

        async def holds() -> None:
            assert await look(bench, thread) == expected
            await bench.talk(thread, 1, "on")

        return lambda: look(bench, thread), holds

    prepared.__name__ = name
    CASES.append(prepared)


async def _history(bench: Bench, thread: e.AsyncThread) -> Any:
    return [version async for version in thread.history(limit=None)]


async def _read(bench: Bench, thread: e.AsyncThread) -> Any:
    return [await thread.messages.read(3, 9), [item async for item in thread.messages]]


async def _find(bench: Bench, thread: e.AsyncThread) -> Any:
    return [await thread.messages.find("m3"), await thread.messages.find("none")]


async def _at(bench: Bench, thread: e.AsyncThread) -> Any:
    past = await thread.at(4)
    return past.state.plain(), await past.messages.read()


async def _diff(bench: Bench, thread: e.AsyncThread) -> Any:
    return (await thread.diff(3, 12)).summary()


async def _thread(bench: Bench, thread: e.AsyncThread) -> Any:
    found = await bench.fresh()
    return found.head, found.state.plain(), len(found.messages)


async def _threads(bench: Bench, thread: e.AsyncThread) -> Any:
    return [info.name async for info in bench.store.threads()]


async def _by_metadata(bench: Bench, thread: e.AsyncThread) -> Any:
    return [info.name async for info in bench.store.threads(metadata={"prefix": "m"})]


async def _watch(bench: Bench, thread: e.AsyncThread) -> Any:
    return [version.seq async for version in thread.watch(after=14, timeout=0.001)]


async def _stats(bench: Bench, thread: e.AsyncThread) -> Any:
    return (await bench.store.stats()).versions


async def _verify(bench: Bench, thread: e.AsyncThread) -> Any:
    return (await bench.store.verify()).ok


for _name, _look in {
    "history": _history,
    "read": _read,
    "find": _find,
    "at": _at,
    "diff": _diff,
    "thread": _thread,
    "threads": _threads,
    "threads_by_metadata": _by_metadata,
    "verify": _verify,
    "watch": _watch,
    "stats": _stats,
}.items():
    _looking(_look, _name)


# ── the store as a whole ─────────────────────────────────────────────────────────────────────────


@case
async def backup(bench: Bench) -> Any:
    await bench.thread()
    path = bench.folder / "backup"

    async def holds() -> None:
        if path.exists():
            path.unlink()
        await bench.store.backup(path)
        async with e.open_async(f"sqlite:///{path}") as copy:
            assert (await copy.verify()).ok
            assert len((await copy.thread("a")).messages) == 7

    return lambda: bench.store.backup(path), holds


@case
async def gc(bench: Bench) -> Any:
    thread = await bench.thread("a", 12)
    fork = await thread.fork("b", at=3)
    gone = await bench.thread("gone", 2)
    await gone.expire(1e-6)
    keep = e.Retention(keep_last=2)

    async def holds() -> None:
        await bench.store.gc(keep)
        assert await bench.ids() == [f"m{number}" for number in range(12)]
        assert await bench.ids("b") == ["m0", "m1", "m2"]
        with pytest.raises(e.VersionNotFoundError):
            await (await bench.fresh()).at(5)
        await bench.talk(fork, 1, "on")
        await bench.talk(await bench.fresh(), 1, "on")
        assert "gone" not in [info.name async for info in bench.store.threads()]

    return lambda: bench.store.gc(keep), holds


@case
async def restore(bench: Bench) -> Any:
    thread = await bench.thread()
    path = bench.folder / "backup"
    await bench.store.backup(path)
    await bench.talk(thread, 3, "lost")
    assert await thread.messages.find("lost0") == 7, "now the store remembers its ids"

    async def holds() -> None:
        async with e.open_async(bench.store.url) as other:
            found = await other.thread("a")
            assert len(found.messages) in (7, 10)
            if len(found.messages) == 10:
                await bench.store.restore(path)
            # Elsewhere, so that the store that was restored learns of it by reading only.
            found = await other.thread("a")
            await bench.talk(found, 3, "new")
            await found.fork("b")
        fork = await bench.store.thread("b")
        fork.messages.append({"id": "new0", "n": 0})
        fork.messages.append({"id": "lost0", "n": 0})
        await fork.commit()
        assert await bench.ids("b") == [*SEVEN, "new0", "new1", "new2", "lost0"]

    return lambda: bench.store.restore(path), holds


# ── events ───────────────────────────────────────────────────────────────────────────────────────


def _count(state: dict[str, int], event: e.Event) -> dict[str, int]:
    return {**state, "n": state.get("n", 0) + event.data["n"]}


@case
async def events(bench: Bench) -> Any:
    stream = bench.store.events("s")
    await stream.extend([("a", {"n": 1})] * 3)

    async def verb() -> None:
        await stream.append("a", {"n": 1})
        await stream.projection("p", _count)
        consumer = stream.consumer("c")
        for event in await consumer.poll(2):
            await consumer.commit(event)
        await stream.last()

    async def holds() -> None:
        count = await stream.count()
        assert count in (3, 4)
        assert [event.seq async for event in stream] == list(range(1, count + 1))
        assert (await stream.projection("p", _count)).state == {"n": count}
        consumer = stream.consumer("c")
        position = await consumer.position()
        assert position in (0, 1, 2)
        assert [event.seq for event in await consumer.poll()] == list(range(position + 1, count + 1))
        await stream.append("a", {"n": 5})
        assert (await stream.projection("p", _count)).state == {"n": count + 5}

    return verb, holds


@case
async def delete_events(bench: Bench) -> Any:
    stream = bench.store.events("s")
    await stream.extend([("a", {"n": 1})] * 3)
    await stream.projection("p", _count)

    async def holds() -> None:
        assert await stream.count() in (0, 3)
        await stream.delete()
        assert await stream.count() == 0
        await stream.append("a", {"n": 7})
        assert (await stream.projection("p", _count)).state == {"n": 7}

    return stream.delete, holds


# ── the tests ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fold after a few versions, so that most commits do."""
    monkeypatch.setattr(snapshots, "KEYFRAME_PACKS", 2)
    monkeypatch.setattr(snapshots, "KEYFRAME_WASTE_BYTES", 64)
    for module in (snapshots, fold):
        monkeypatch.setattr(module, "KEYFRAME_ROWS", 6)
    for module in (packs, fold):
        monkeypatch.setattr(module, "FOLD_BYTES", 2000)


async def _sweep(prepare: Case, url: str, moment: str, records_max: int, folder: Path) -> None:
    """Cancel at the first call, at the second … until the verb comes to its end."""
    nth = 0
    while True:
        nth += 1
        place = folder / f"{nth}"
        place.mkdir()
        store, tripwire = await open_tripped(url.replace("PLACE", str(place)), keyring="memory:")
        store.core.folder.records_max = records_max
        async with store:
            bench = Bench(store, place)
            verb, holds = await prepare(bench)
            if moment == SUSPENDED:
                cut = await cancelled_when_suspended(nth, verb)
            else:
                cut = await cancelled_at(tripwire, nth, moment, verb)
            if not cut:
                assert nth > 1, "it was never cancelled"
                return
            try:
                await holds()
                await bench.sound()
            except BaseException as error:
                error.add_note(f"cancelled at {nth}: {tripwire.cut or SUSPENDED}")
                raise


#: These run on a worker thread as blocking code, which makes no async call of the store: they are cancelled
#: while they are waited for. tests/unit/test_store_async.py cancels them between their calls.
ON_A_WORKER = ("backup", "gc", "restore", "stats", "verify")
AWAITED = [each for each in CASES if each.__name__ not in ON_A_WORKER]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("prepare", AWAITED, ids=lambda prepare: prepare.__name__)
def test_cancelled_at_any_call(prepare: Case, moment: str, tmp_path: Path) -> None:
    # Seven versions are there already: the next one makes them fold.
    run(_sweep(prepare, "memory:", moment, 7, tmp_path))


@pytest.mark.parametrize("prepare", AWAITED, ids=lambda prepare: prepare.__name__)
def test_cancelled_on_a_disk(prepare: Case, tmp_path: Path) -> None:
    run(_sweep(prepare, "sqlite:///PLACE/store.db", "begun", 3, tmp_path))


@pytest.mark.parametrize("prepare", CASES, ids=lambda prepare: prepare.__name__)
def test_cancelled_while_suspended(prepare: Case, tmp_path: Path) -> None:
    run(_sweep(prepare, "sqlite:///PLACE/store.db", SUSPENDED, 3, tmp_path))


@pytest.mark.parametrize("place", ["memory:", "sqlite", "file"])
def test_tasks_cancelled_at_random_lose_and_double_nothing(place: str, seed: int, tmp_path: Path) -> None:
    """Each commit is cancelled again and again until it comes through; without ids and without keys."""
    rng = random.Random(seed)
    tasks, turns = 12, 8
    cancelled = 0

    async def work(store: e.AsyncStore, number: int) -> None:
        nonlocal cancelled
        thread = await store.thread(f"t{number}")
        for turn in range(turns):
            thread.messages.append({"turn": turn})
            thread.state["turn"] = turn
            while True:
                try:
                    async with asyncio.timeout(rng.choice((0, 0.0003, 0.001, 0.003, 0.1))):
                        await thread.commit(label=f"turn {turn}")
                    break
                except TimeoutError:
                    cancelled += 1

    async def main() -> None:
        places = {"sqlite": f"sqlite:///{tmp_path}/store.db", "file": f"file://{tmp_path}/store"}
        async with e.open_async(places.get(place, place), durability="process") as store:
            store.core.folder.records_max = 3
            await asyncio.gather(*(work(store, number) for number in range(tasks)))
            store.core.head_cache.clear()
            for number in range(tasks):
                found = await store.thread(f"t{number}")
                assert [item["turn"] for item in await found.messages.read()] == list(range(turns))
                labels = [version.label async for version in found.history()]
                assert labels == [f"turn {turn}" for turn in reversed(range(turns))], "one version each"
            assert (await store.verify()).ok
            assert store.core.background_error is None

    run(main())
    assert cancelled > tasks
