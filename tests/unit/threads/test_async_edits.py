"""Async handles: edits that wait for the store, and several tasks on one handle."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import everthread as e
from everthread.errors import ConflictError, InvalidStateError, InvalidValueError
from everthread.history import packs
from tests.unit.threads.tripwire import run

Main = Callable[[e.AsyncStore], Awaitable[None]]


def on_a_store(main: Main, url: str = "memory:", records_max: int | None = None) -> None:
    async def opened() -> None:
        async with e.open_async(url, durability="process", keyring="memory:") as store:
            if records_max is not None:
                store.core.folder.records_max = records_max
            await main(store)
            report = await store.verify()
            assert report.ok, report.damage
            assert store.core.background_error is None

    run(opened())


@asynccontextmanager
async def held(store: e.AsyncStore, verb: str = "append") -> AsyncIterator[asyncio.Event]:
    """Within the block a verb of the driver waits; the event is set when it has been called."""
    offloaded: Any = store.core.backend
    driver, go, begun = offloaded.blocking, threading.Event(), asyncio.Event()
    loop, work = asyncio.get_running_loop(), getattr(driver, verb)

    def wait(*args: Any, **options: Any) -> Any:
        loop.call_soon_threadsafe(begun.set)
        assert go.wait(30)
        return work(*args, **options)

    setattr(driver, verb, wait)
    try:
        yield begun
    finally:
        delattr(driver, verb)
        go.set()


async def talked(store: e.AsyncStore, name: str = "a", count: int = 5) -> e.AsyncThread:
    thread = await store.thread(name)
    for number in range(count):
        thread.messages.append({"id": f"m{number}", "n": number})
        thread.state["count"] = number
        await thread.commit()
    return thread


async def ids(log: Any) -> list[Any]:
    return [item["id"] for item in await log.read()]


async def stored(store: e.AsyncStore, name: str = "a") -> tuple[Any, list[Any], int]:
    """Document, ids and seq as the store holds them."""
    store.core.head_cache.clear()
    thread = await store.thread(name)
    assert thread.head is not None
    return thread.state.plain(), await ids(thread.messages), thread.head.seq


FIVE = ["m0", "m1", "m2", "m3", "m4"]


# ── what async offers plainly ────────────────────────────────────────────────────────────────────


def test_a_handle_is_loaded_so_that_looking_needs_no_await() -> None:
    async def main(store: e.AsyncStore) -> None:
        made = await talked(store)
        store.core.head_cache.clear()
        thread = await store.thread("a")
        assert (thread.head, thread.state["count"], len(thread.messages), thread.logs) == (
            made.head,
            4,
            5,
            ["messages"],
        )
        before = made.head
        made.messages.append({"id": "later"})
        await made.commit()
        assert thread.head == before
        assert len(thread.messages) == 5, "pinned"
        assert not thread.dirty

    on_a_store(main)


def test_reads_are_half_open_and_count_from_the_end() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store, count=40)
        thread.messages.append({"id": "pending"})
        expected = [*(f"m{number}" for number in range(40)), "pending"]
        for start, stop in ((0, None), (0, 0), (3, 9), (-3, None), (-20, -5), (30, 100), (7, 3), (-100, 2)):
            found = [item["id"] for item in await thread.messages.read(start, stop)]
            assert found == expected[start:stop], (start, stop)
        assert [item["id"] async for item in thread.messages] == expected
        past = await thread.at(7)
        assert [item["id"] async for item in past.messages] == expected[:7]
        assert [item["id"] for item in await past.messages.read(-2)] == ["m5", "m6"]
        assert len(past.messages) == 7

    on_a_store(main, records_max=6)


def test_lists_are_iterated_with_async_for() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store)
        await (await thread.fork("b")).commit("forked")
        assert [info.name async for info in store.threads()] == ["a", "b"]
        assert [version.seq async for version in thread.history(limit=2)] == [5, 4]
        async for version in thread.history():
            # Left in the middle: nothing stays behind.
            assert version.seq == 5
            break
        diff = await thread.diff(2, 4)
        assert diff.logs["messages"].added == 2
        merged = await thread.merge(await store.thread("b"))
        assert merged.version is not None

    on_a_store(main)


def test_update_takes_functions_of_both_colours() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store)

        def plain(draft: Any) -> None:
            draft["n"] = draft.get("n", 0) + 1

        async def awaited(draft: Any) -> None:
            seen = await draft.messages.read(-1)
            draft["last"] = seen[0]["id"]
            await asyncio.sleep(0)
            draft.increment("n")

        await thread.update(plain)
        await thread.update(awaited)
        assert (await stored(store))[0] == {"count": 4, "n": 2, "last": "m4"}

        async def fails(draft: Any) -> None:
            draft["n"] = 99
            await asyncio.sleep(0)
            raise LookupError

        with pytest.raises(LookupError):
            await thread.update(fails)
        assert not thread.dirty
        handles = [await store.thread("a") for _ in range(8)]
        await asyncio.gather(*(handle.update(awaited) for handle in handles for _ in range(1)))
        assert (await stored(store))[0]["n"] == 10

    on_a_store(main)


def test_a_step_is_entered_with_async_with() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store)
        async with thread.step(("turn", 1)) as step:
            assert not step.done
            step.messages.append({"role": "assistant"})
            step.state["stepped"] = True
            step.result = {"tokens": 7}
        again = await store.thread("a")
        async with again.step(("turn", 1)) as step:
            assert step.done
            assert step.result == {"tokens": 7}

        async def fail() -> None:
            async with again.step("s") as step:
                step.state["lost"] = 1
                raise LookupError

        with pytest.raises(LookupError):
            await fail()
        assert not again.dirty
        state, found, seq = await stored(store)
        assert (state, len(found), seq) == ({"count": 4, "stepped": True}, 6, 6)

    on_a_store(main)


def test_a_step_settles_what_waits_in_its_thread() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store)
        async with thread.step("s") as step:
            thread.messages.append({"id": "m2", "n": 2})
            thread.messages.truncate_from("m4")
            thread.messages.append({"id": "aside"})
            step.messages.append({"id": "m1", "n": "replaced"})
            step.messages.append({"id": "step"})
        assert (await stored(store))[1] == ["m0", "m1", "m2", "m3", "aside", "step"]
        assert (await (await store.thread("a")).messages.read(1, 2))[0]["n"] == "replaced"

    on_a_store(main)


# ── edits that wait for the store ────────────────────────────────────────────────────────────────


def test_an_id_of_the_callers_shows_at_once_and_is_settled_later() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store)
        assert thread.messages.append({"id": "m2", "n": 2}) == "m2"
        assert thread.messages.append({"id": "new"}) == "new"
        assert len(thread.messages) == 7, "shown as if nothing hindered them"
        assert thread.dirty
        assert "wait" in repr(thread.messages)
        assert await ids(thread.messages) == [*FIVE, "new"]
        assert len(thread.messages) == 6
        await thread.commit()
        assert (await stored(store))[1] == [*FIVE, "new"]
        thread.messages.append({"id": "new"})
        assert await thread.commit() == thread.head
        assert not thread.dirty
        assert (await stored(store))[2] == 6, "nothing new, no version"

    on_a_store(main)


def test_truncation_is_settled_by_the_next_read_or_the_commit() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store)
        thread.messages.truncate_from("m3")
        assert thread.dirty
        with pytest.raises(InvalidStateError, match="read or committed"):
            len(thread.messages)
        assert "messages" in repr(thread.messages)
        assert await ids(thread.messages) == FIVE[:3]
        assert len(thread.messages) == 3
        thread.messages.truncate_from("nowhere")
        await thread.commit()
        assert (await stored(store))[1:] == (FIVE[:3], 6)
        thread.messages.truncate_from("nowhere")
        assert await thread.commit() == thread.head, "an absent id removes nothing"

    on_a_store(main)


def test_edits_are_settled_in_their_order() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store)
        thread.messages.append({"n": "before"})
        thread.messages.append({"id": "x", "n": 1})
        thread.messages.truncate_from("m2")
        thread.messages.append({"id": "m4", "n": "anew"})
        thread.messages.append({"id": "x", "n": 2})
        thread.messages.append({"id": "y"})
        thread.messages.truncate_from("y")
        thread.messages.append({"id": "z"})
        thread.log("other").append("plain")
        await thread.commit()
        assert (await stored(store))[1] == ["m0", "m1", "m4", "x", "z"]
        found = await store.thread("a")
        assert (await found.messages.read())[2:4] == [{"id": "m4", "n": "anew"}, {"id": "x", "n": 2}]
        assert await found.messages.find("m4") == 2

    on_a_store(main)


def test_refused_content_keeps_the_changes_until_they_are_discarded() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store)
        thread.state["x"] = 1
        thread.messages.append({"id": "m1", "n": "another"})
        thread.messages.append({"id": "new"})
        for _ in range(2):
            with pytest.raises(InvalidValueError, match="'m1'"):
                await thread.commit()
            with pytest.raises(InvalidValueError):
                await thread.messages.read()
            assert await thread.rebase() == thread.head, "nothing newer to go to"
            assert thread.dirty
            assert thread.state["x"] == 1
            assert len(thread.messages) == 7
        assert (await stored(store))[2] == 5
        await thread.discard()
        assert (thread.dirty, len(thread.messages), await ids(thread.messages)) == (False, 5, FIVE)
        thread.messages.append({"id": "new"})
        await thread.commit()
        assert (await stored(store))[1] == [*FIVE, "new"]

    on_a_store(main)


def test_what_can_be_refused_at_once_is() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store)
        for bad in ({"id": "x", "value": object()}, object()):
            with pytest.raises(InvalidValueError):
                thread.messages.append(bad)
            with pytest.raises(InvalidValueError):
                thread.messages.extend([{"id": "y"}, {"n": 1}, bad])
        assert not thread.dirty
        assert await ids(thread.messages) == FIVE
        thread.messages.append({"id": "x"})
        with pytest.raises(InvalidValueError):
            thread.messages.extend([{"id": "y"}, object()])
        assert await ids(thread.messages) == [*FIVE, "x"], "what came before the batch stays"

    on_a_store(main)


def test_personal_values_are_compared_by_what_they_hold() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await store.thread("a")
        for _ in range(3):
            thread.messages.append({"id": "p", "who": e.Personal("ann", "Ann")})
            await thread.commit()
        assert len(thread.messages) == 1
        thread.messages.append({"id": "p", "who": e.Personal("ann", "Bob")})
        with pytest.raises(InvalidValueError):
            await thread.commit()
        await thread.discard()

    on_a_store(main)


# ── several tasks on one handle ──────────────────────────────────────────────────────────────────


def _edit_in_flight(thread: e.AsyncThread) -> None:
    thread.state["later"] = {"x": 1}
    thread.state["count"] = "later"
    thread.messages.append({"n": "made id"})
    thread.messages.append({"id": "own", "n": "own"})
    thread.messages.append({"id": "m1", "n": 1})
    thread.messages.append({"id": "flying", "n": 1})
    thread.log("new log").append("first")


@pytest.mark.parametrize("records_max", [3, 100], ids=["folding", "plain"])
@pytest.mark.parametrize("place", ["memory:", "sqlite"])
def test_edits_made_during_a_commit_belong_to_the_next(place: str, records_max: int, tmp_path: Path) -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store)
        thread.state["first"] = [1]
        thread.messages.append({"id": "flying", "n": 1})
        async with held(store) as begun:
            committing = asyncio.ensure_future(thread.commit("first"))
            await begun.wait()
            _edit_in_flight(thread)
            shown = thread.state.plain()
            await asyncio.sleep(0)
        first = await committing
        assert first is not None
        assert thread.head == first
        assert thread.dirty
        assert thread.state.plain() == shown
        state, found, seq = await stored(store)
        assert (state, found, seq) == ({"count": 4, "first": [1]}, [*FIVE, "flying"], 6)
        second = await thread.commit("second")
        assert second is not None
        assert second.seq == 7
        state, found, seq = await stored(store)
        assert state == {"count": "later", "first": [1], "later": {"x": 1}}
        assert [id_ for id_ in found if id_ in (*FIVE, "flying", "own")] == [*FIVE, "flying", "own"], (
            "each once"
        )
        assert len(found) == 8
        assert await (await store.thread("a")).log("new log").read() == ["first"]
        assert not thread.dirty
        assert thread.state.plain() == state

    url = place if place == "memory:" else f"sqlite:///{tmp_path}/store.db"
    on_a_store(main, url, records_max)


def test_a_truncation_made_during_a_commit_is_not_lost() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store)
        thread.messages.append({"id": "flying"})
        async with held(store) as begun:
            committing = asyncio.ensure_future(thread.commit())
            await begun.wait()
            thread.messages.truncate_from("m3")
            thread.messages.append({"id": "m4", "n": "anew"})
        await committing
        assert (await stored(store))[1] == [*FIVE, "flying"]
        assert thread.dirty
        await thread.commit()
        assert (await stored(store))[1] == ["m0", "m1", "m2", "m4"]

    on_a_store(main)


def test_a_truncation_alone_is_noticed_too() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store)
        async with held(store) as begun:
            committing = asyncio.ensure_future(thread.commit("label only"))
            await begun.wait()
            thread.messages.truncate_from("m3")
        await committing
        assert thread.dirty
        await thread.commit()
        assert (await stored(store))[1] == FIVE[:3]

    on_a_store(main)


def test_edits_made_during_a_first_commit() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await store.thread("a")
        thread.state["x"] = 1
        async with held(store, "create") as begun:
            committing = asyncio.ensure_future(thread.commit())
            await begun.wait()
            thread.state["x"] = 2
            thread.messages.append({"id": "1"})
        await committing
        assert (await stored(store))[:2] == ({"x": 1}, [])
        await thread.commit()
        assert (await stored(store)) == ({"x": 2}, ["1"], 2)

    on_a_store(main)


def test_edits_made_while_it_folds() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store)
        thread.state["first"] = 1
        async with held(store, "fold") as begun:
            committing = asyncio.ensure_future(thread.commit())
            await begun.wait()
            thread.state["second"] = 1
            thread.messages.append({"id": "m2", "n": 2})
            thread.messages.append({"id": "new"})
        await committing
        assert (await stored(store))[0] == {"count": 4, "first": 1}
        await thread.commit()
        assert await stored(store) == ({"count": 4, "first": 1, "second": 1}, [*FIVE, "new"], 7)

    on_a_store(main, records_max=5)


def test_edits_made_while_edits_are_settled() -> None:
    """Also where one of them is refused: what another task appended meanwhile stays in its place."""

    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store)
        for bad in (False, True):
            thread.messages.append({"id": f"one {bad}"})
            if bad:
                thread.messages.append({"id": "m0", "n": "other content"})
            store.core.head_cache.clear()
            thread.handle.slot.prints.clear()
            async with held(store, "fingerprints") as begun:
                reading = asyncio.ensure_future(thread.messages.read())
                await begun.wait()
                thread.messages.append({"id": f"two {bad}"})
                thread.messages.append({"n": "made"})
            if bad:
                with pytest.raises(InvalidValueError):
                    await reading
                assert len(thread.messages) == 12
                await thread.discard()
            else:
                assert [item["id"] for item in await reading][:-1] == [*FIVE, "one False", "two False"]
                await thread.commit()
        assert (await stored(store))[1][:-1] == [*FIVE, "one False", "two False"]

    on_a_store(main)


def test_a_discard_while_edits_are_settled_stays_one() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store)
        thread.messages.append({"id": "gone"})
        store.core.head_cache.clear()
        thread.handle.slot.prints.clear()
        async with held(store, "fingerprints") as begun:
            reading = asyncio.ensure_future(thread.messages.read())
            await begun.wait()
            await thread.discard()
        assert [item["id"] for item in await reading] == FIVE
        assert not thread.dirty
        assert await thread.commit() == thread.head

    on_a_store(main)


def test_another_verb_during_a_commit_is_refused_and_loses_nothing() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread, other = await talked(store), await talked(store, "other")
        verbs: list[Callable[[], Awaitable[Any]]] = [
            thread.commit,
            lambda: thread.commit("x", key="k"),
            thread.discard,
            thread.refresh,
            thread.rebase,
            lambda: thread.rewind(1),
            lambda: thread.fork("b"),
            lambda: thread.merge(other),
            lambda: thread.update(lambda draft: None),
            lambda: thread.step("s").__aenter__(),
        ]
        for number, change in enumerate([lambda: None, lambda: thread.state.update(x=1)]):
            change()
            async with held(store) as begun:
                committing = asyncio.ensure_future(thread.commit(f"label {number}"))
                await begun.wait()
                for verb in verbs:
                    with pytest.raises(InvalidStateError):
                        await verb()
                found = await thread.messages.read(-1)
                assert found[0]["id"] == "m4", "reading goes on"
            made = await committing
            assert made is not None
            assert made.label == f"label {number}"
        assert (await stored(store))[0] == {"count": 4, "x": 1}

    on_a_store(main)


def test_reading_while_a_commit_ends_misses_nothing() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store)
        thread.messages.append({"id": "pending"})
        await thread.messages.read(0, 0)
        head = thread.handle.head
        assert head is not None
        # So that the older ones must be read.
        thread.handle.head = type(head)(
            **{**{f: getattr(head, f) for f in head.__struct_fields__}, "recent": {}}
        )
        async with held(store, "tail") as begun:
            reading = asyncio.ensure_future(thread.messages.read())
            await begun.wait()
            await thread.commit()
        assert [item["id"] for item in await reading] == [*FIVE, "pending"]

    on_a_store(main)


def test_edits_made_during_a_refresh_or_rebase_are_not_lost() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store)
        other = await store.thread("a")
        other.messages.append({"id": "theirs"})
        await other.commit()
        async with held(store, "find") as begun:
            refreshing = asyncio.ensure_future(thread.refresh())
            await begun.wait()
            thread.state["mine"] = 1
        with pytest.raises(InvalidStateError):
            await refreshing
        assert thread.state["mine"] == 1
        store.core.head_cache.clear()
        async with held(store, "find") as begun:
            rebasing = asyncio.ensure_future(thread.rebase())
            await begun.wait()
            thread.state["more"] = 1
            thread.messages.append({"id": "theirs"})
            thread.messages.append({"id": "more"})
        await rebasing
        await thread.commit()
        assert await stored(store) == ({"count": 4, "mine": 1, "more": 1}, [*FIVE, "theirs", "more"], 7)

    on_a_store(main)


def test_edits_made_during_a_rewind_can_be_rebased_onto_it() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store)
        async with held(store) as begun:
            rewinding = asyncio.ensure_future(thread.rewind(2))
            await begun.wait()
            thread.state["mine"] = 1
        with pytest.raises(InvalidStateError, match="rebase"):
            await rewinding
        assert (await stored(store))[1:] == (FIVE[:2], 6)
        with pytest.raises(ConflictError):
            await thread.commit()
        await thread.rebase()
        await thread.commit()
        assert await stored(store) == ({"count": 1, "mine": 1}, FIVE[:2], 7)

    on_a_store(main)


def test_edits_made_during_a_merge_are_kept() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store)
        fork = await thread.fork("b")
        fork.state["theirs"] = 1
        await fork.commit()
        async with held(store, "line") as begun:
            merging = asyncio.ensure_future(thread.merge(fork))
            await begun.wait()
            thread.state["mine"] = 1
        with pytest.raises(InvalidStateError):
            await merging
        assert thread.state["mine"] == 1
        await thread.commit()
        await thread.merge(fork)
        assert (await stored(store))[0] == {"count": 4, "mine": 1, "theirs": 1}

    on_a_store(main)


def test_many_tasks_each_with_a_handle_of_its_own(tmp_path: Path) -> None:
    async def main(store: e.AsyncStore) -> None:
        async def work(number: int) -> None:
            own = await store.thread(f"own {number}")
            shared = await store.thread("shared")
            for turn in range(6):
                own.messages.append({"id": f"{turn}"})
                own.state["turn"] = turn
                await own.commit(key=f"turn {turn}")
                item = {"id": f"{number}-{turn}"}
                await shared.update(lambda draft, item=item: draft.messages.append(item))

        await asyncio.gather(*(work(number) for number in range(24)))
        shared = await stored(store, "shared")
        assert sorted(shared[1]) == sorted(f"{number}-{turn}" for number in range(24) for turn in range(6))
        assert shared[2] == 144
        for number in range(24):
            assert await stored(store, f"own {number}") == ({"turn": 5}, list("012345"), 6)

    on_a_store(main, f"sqlite:///{tmp_path}/store.db", records_max=4)


def test_personal_values_edited_during_a_commit() -> None:
    async def main(store: e.AsyncStore) -> None:
        thread = await store.thread("a")
        thread.state["x"] = 0
        await thread.commit()
        thread.state["one"] = e.Personal("ann", "first")
        async with held(store) as begun:
            committing = asyncio.ensure_future(thread.commit())
            await begun.wait()
            thread.state["two"] = e.Personal("ann", "second")
            thread.messages.append({"id": "m", "who": e.Personal("bob", "third")})
        await committing
        await thread.commit()
        store.core.head_cache.clear()
        found = await store.thread("a")
        assert (found.state["one"].value, found.state["two"].value) == ("first", "second")
        assert (await found.messages.read())[0]["who"].value == "third"
        assert found.head is not None
        assert found.head.seq == 3

    on_a_store(main)


@pytest.mark.parametrize("place", ["memory:", "sqlite"])
def test_editors_readers_and_a_committer_share_a_handle(place: str, seed: int, tmp_path: Path) -> None:
    """However they meet: every edit is committed once, in the order of its editor, and every commit lands."""
    rng = random.Random(seed)
    editors, edits = 4, 25

    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store)
        editing = editors

        async def edit(number: int) -> None:
            nonlocal editing
            for turn in range(edits):
                for _ in range(rng.randrange(6)):
                    await asyncio.sleep(rng.choice((0, 0, 0, 0.0002)))
                item: dict[str, Any] = {"editor": number, "turn": turn}
                if rng.random() < 0.6:
                    item["id"] = f"{number}-{turn}"
                thread.messages.append(item)
                if rng.random() < 0.3:
                    # Again, or something that has been there for long: both change nothing.
                    thread.messages.append(dict(item) if "id" in item else {"id": "m3", "n": 3})
                thread.state[f"editor {number}"] = turn
                if rng.random() < 0.3:
                    thread.log("aside").append([number, turn])
            editing -= 1

        async def read() -> None:
            while editing:
                found = await thread.messages.read()
                assert [item["id"] for item in found[:5]] == FIVE
                turns = [(item["editor"], item["turn"]) for item in found[5:]]
                assert len(set(turns)) == len(turns), "each once"
                await asyncio.sleep(0)

        async def commit() -> None:
            while editing or thread.dirty:
                await thread.commit()
                await asyncio.sleep(0)

        await asyncio.gather(*(edit(number) for number in range(editors)), read(), commit())
        store.core.head_cache.clear()
        found = await store.thread("a")
        assert found.head == thread.head
        items = (await found.messages.read())[5:]
        for number in range(editors):
            assert [i["turn"] for i in items if i["editor"] == number] == list(range(edits))
            assert found.state[f"editor {number}"] == edits - 1
        aside = await found.log("aside").read()
        assert len({tuple(item) for item in aside}) == len(aside)
        assert found.state.plain() == thread.state.plain()

    url = place if place == "memory:" else f"sqlite:///{tmp_path}/store.db"
    on_a_store(main, url, records_max=4)


def test_folds_are_compressed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The other tasks needn't wait for it."""
    made_on: list[str] = []
    fold_parts = packs.fold_parts

    def noted(*args: Any) -> packs.Pack:
        made_on.append(threading.current_thread().name)
        return fold_parts(*args)

    monkeypatch.setattr(packs, "fold_parts", noted)

    async def main(store: e.AsyncStore) -> None:
        thread = await talked(store, count=12)
        assert len(thread.messages) == 12

    on_a_store(main, f"sqlite:///{tmp_path}/a.db", records_max=4)
    assert made_on
    assert set(made_on) == {"everthread-reader"}, made_on
