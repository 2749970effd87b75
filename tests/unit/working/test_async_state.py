"""Working state for async callers: the rules of the blocking one, awaited, nothing on the loop's thread."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import threading
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import (
    AsyncStore,
    AsyncWorkingState,
    Config,
    ConflictError,
    InvalidStateError,
    InvalidValueError,
    SchemaVersionError,
    StateNotFoundError,
    StateStatus,
    StorageBackend,
    UsageError,
    WorkingState,
)
from everthread.diff import StateDiffer
from everthread.hooks import SessionLifecycle
from everthread.records.opening import open_backend
from everthread.recovery import SelfHealer
from everthread.stores.offloaded import Offloaded
from everthread.stores.tracing import VERBS
from everthread.verifiers import file_hash
from everthread.working.aio import home
from everthread.working.home import place_of


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    """Run it to its end; coroutines that nobody awaited are found by then."""

    async def whole() -> Any:
        return await main()

    return asyncio.run(whole())


def url_of(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/agent.db"


def contents(state: AsyncWorkingState) -> list[Any]:
    return [todo.content for todo in state.todos]


class Recorded:
    """A driver that notes which threads its verbs run on."""

    def __init__(self, beneath: Any) -> None:
        self._beneath = beneath
        self.threads: dict[int, set[str]] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._beneath, name)
        if name not in VERBS:
            return found

        def verb(*args: Any, **options: Any) -> Any:
            self.threads.setdefault(threading.get_ident(), set()).add(name)
            return found(*args, **options)

        return verb


# ── every call ───────────────────────────────────────────────────────────────────────────────


async def every_call(state: AsyncWorkingState, other: AsyncWorkingState) -> None:
    todo = await state.add_todo("pay", priority="high")
    await state.start_todo(todo)
    await state.complete_todo(todo)
    await state.cancel_todo(todo)
    await state.reopen_todo(todo)
    await state.update_todo(todo, content="pay 817")
    await state.remove_todo(await state.add_todo("nothing"))
    await state.set_context("branch", "main", metadata={"from": "git"}, verify=file_hash("pyproject.toml"))
    await state.mark_verified("branch")
    await state.remove_context((await state.set_context("gone", 1)).key)
    await state.resolve_open_loop(await state.add_open_loop("Ann owes us a file", context={"asked": 1}))
    await state.set_intention("compare")
    await state.remove_constraint(await state.add_constraint("never"))
    await state.save(label="all")
    assert [version.label async for version in state.history(1)] == ["all"]
    past = await state.at(1)
    assert past.read_only
    assert await state.fork("fork of it")
    await state.rewind(1)
    await state.reload()
    await other.save()
    await state.apply(StateDiffer.diff({}, {"todos": [{"id": "t", "content": "of a diff"}]}))
    assert await state.save() == state.id
    forked = await state.fork()
    await forked.add_todo("of the fork")
    await forked.save()
    assert await state.merge(forked)
    assert contents(state)[-1] == "of the fork"


@pytest.mark.parametrize("auto_save", [False, True])
def test_no_store_call_is_made_on_the_loops_thread(tmp_path: Path, auto_save: bool) -> None:
    backend = Recorded(open_backend(url_of(tmp_path), "full"))

    async def main() -> int:
        driver: Any = backend
        async with AsyncStore(Offloaded(driver)) as store:
            async with AsyncWorkingState(store=store, thread="bot", auto_save=auto_save) as state:
                await every_call(state, AsyncWorkingState(store=store))
            loaded = await AsyncWorkingState.load(state.id, store=store)
            assert contents(loaded) == ["pay" if auto_save else "pay 817", "of a diff", "of the fork"]
            resumed = await AsyncWorkingState.resume(store=store)
            await resumed.discard()
            await resumed.close()
        return threading.get_ident()

    loops = run(main)
    assert {"append", "find"} <= set().union(*backend.threads.values())
    assert loops not in backend.threads


def test_views_and_files_are_not_touched_on_the_loops_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    for name in ("write_view", "is_current", "_make"):
        real = getattr(everthread.working.home, name)  # type: ignore[attr-defined]

        def noted(*args: Any, real: Any = real) -> Any:
            threads.add(threading.get_ident())
            return real(*args)

        monkeypatch.setattr(f"everthread.working.home.{name}", noted)
    config = Config(storage_backend=StorageBackend.JSON, storage_path=tmp_path / "states")

    async def main() -> tuple[int, str]:
        async with AsyncWorkingState(config) as state:
            await state.add_todo("x")
            id = await state.save()
        loaded = await AsyncWorkingState.load(id, config)
        await loaded.close()
        return threading.get_ident(), id

    loops, id = run(main)
    assert threads
    assert loops not in threads
    view = json.loads((tmp_path / "states" / f"{id}.json").read_text())
    assert [todo["content"] for todo in view["todos"]] == ["x"]


def test_a_forgotten_await_is_noticed() -> None:
    async def main() -> list[Any]:
        state = AsyncWorkingState()
        state.add_todo("never made")
        gc.collect()
        return state.todos

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert run(main) == []
    assert ["was never awaited" in str(each.message) for each in found] == [True]


def test_what_is_plain_and_what_is_awaited() -> None:
    plain = """todos get_todo context get_context open_loops intentions get_intention constraints snapshot id
        status version updated_at thread read_only closed on""".split()
    awaited = {name for name in dir(AsyncWorkingState) if not name.startswith("_")} - {*plain, "history"}
    for name in awaited:
        assert asyncio.iscoroutinefunction(getattr(AsyncWorkingState, name)), name
    for name in plain:
        assert not asyncio.iscoroutinefunction(getattr(AsyncWorkingState, name)), name
    blocking = {name for name in dir(WorkingState) if not name.startswith("_")}
    assert {*awaited, *plain, "history"} - blocking == {"open_thread"}


# ── getting one ──────────────────────────────────────────────────────────────────────────────


def test_both_colours_see_the_same_state(tmp_path: Path) -> None:
    with everthread.open(url_of(tmp_path)) as store:
        state = WorkingState(store=store, thread="bot")
        state.add_todo("pay")
        state.save()

    async def main() -> dict[str, Any]:
        async with everthread.open_async(url_of(tmp_path)) as store:
            state = await AsyncWorkingState(store=store, thread="bot")
            assert state.status is StateStatus.LOADED
            await state.complete_todo(state.todos[0])
            await state.save()
            return state.snapshot()

    snapshot = run(main)
    with everthread.open(url_of(tmp_path)) as store:
        assert WorkingState(store=store, thread="bot").snapshot() == snapshot


def test_a_thread_is_read_before_it_is_looked_at(tmp_path: Path) -> None:
    with everthread.open(url_of(tmp_path)) as store:
        state = WorkingState(store=store, thread="bot")
        state.add_todo("pay")
        state.save()

    async def main() -> None:
        async with everthread.open_async(url_of(tmp_path)) as store:
            state = AsyncWorkingState(store=store, thread="bot")
            for look in (lambda: state.todos, lambda: state.status, lambda: state.thread, state.snapshot):
                with pytest.raises(InvalidStateError, match="await AsyncWorkingState"):
                    look()
            assert "not read yet" in repr(state)
            await state.add_todo("whoever changes it reads it first")
            assert len(state.todos) == 2
            await state.save()
            for verb in ("save", "reload", "discard", "open_thread", "fork"):
                fresh = AsyncWorkingState(store=store, thread="bot")
                await getattr(fresh, verb)()
                assert "not read yet" not in repr(fresh)
            fresh = AsyncWorkingState(store=store, thread="bot")
            assert [version.seq async for version in fresh.history()] == [2, 1]
            assert contents(await AsyncWorkingState(store=store, thread="bot")) == [
                "pay",
                "whoever changes it reads it first",
            ]

    run(main)


def test_a_newer_schema_stays_refused(tmp_path: Path) -> None:
    with everthread.open(url_of(tmp_path)) as store:
        thread = store.thread("bot")
        thread.state["schema_version"] = 99
        thread.commit()

    async def main() -> None:
        async with everthread.open_async(url_of(tmp_path)) as store:
            state = AsyncWorkingState(store=store, thread="bot")
            for _ in range(2):
                with pytest.raises(SchemaVersionError):
                    await state.add_todo("x")
            with pytest.raises(SchemaVersionError):
                await state

    run(main)


def test_it_works_with_no_set_up() -> None:
    async def main() -> None:
        state = AsyncWorkingState()
        await state.add_todo("x")
        id = await state.save()
        assert contents(await AsyncWorkingState.load(id)) == ["x"]
        assert (await AsyncWorkingState.resume()).id == id
        with pytest.raises(StateNotFoundError):
            await AsyncWorkingState.load("7f2b9a52-5d4f-4c5e-9d9a-0a52d4f7c55e")
        await state.close()
        with pytest.raises(InvalidStateError):
            _ = state.todos

    run(main)


def test_a_new_state_opens_nothing_and_gives_its_store_back(tmp_path: Path) -> None:
    config = Config(storage_path=tmp_path / "deep" / "states.db")

    async def main() -> None:
        one, two = AsyncWorkingState(config), AsyncWorkingState(config)
        await one.add_todo("x")
        assert os.listdir(tmp_path) == []
        await asyncio.gather(one.save(), two.save())
        url = place_of(config).url
        assert home._open[url].count == 2
        await one.close()
        await one.close()
        fork = await two.fork("f")
        await two.close()
        await fork.add_todo("still open")
        await fork.save()
        await fork.close()
        assert url not in home._open
        forgotten = AsyncWorkingState(config)
        await forgotten.save()
        assert url in home._open
        del forgotten
        gc.collect()
        assert url not in home._open

    run(main)


def test_states_in_memory_are_those_of_the_process() -> None:
    config = Config(storage_backend=StorageBackend.MEMORY, storage_path="both colours")
    state = WorkingState(config)
    state.add_todo("x")
    id = state.save()

    async def main() -> None:
        loaded = await AsyncWorkingState.load(id, config)
        await loaded.add_todo("y")
        await loaded.save()
        await loaded.close()

    run(main)
    assert [todo.content for todo in WorkingState.load(id, config).todos] == ["x", "y"]


def test_one_state_in_two_event_loops(tmp_path: Path) -> None:
    state = AsyncWorkingState(Config(storage_path=tmp_path / "states.db", auto_save=True))

    async def add() -> None:
        await asyncio.gather(*(state.add_todo(str(number)) for number in range(5)))

    run(add)
    run(add)
    assert len(state.todos) == 10
    run(state.close)


def test_the_wrong_colour_is_told(tmp_path: Path) -> None:
    with everthread.open(url_of(tmp_path)) as blocking:
        with pytest.raises(InvalidValueError, match="open_async"):
            AsyncWorkingState(store=blocking)
        with pytest.raises(UsageError, match="async with"), AsyncWorkingState():
            pass

    async def main() -> None:
        async with everthread.open_async(url_of(tmp_path)) as store:
            with pytest.raises(InvalidValueError, match=r"everthread\.open\(\)"):
                WorkingState(store=store)
            with pytest.raises(UsageError, match="blocking"):
                await WorkingState()  # type: ignore[misc]
            state = AsyncWorkingState(store=store)
            with pytest.raises(InvalidStateError, match="open_thread"):
                _ = state.thread
            assert (await state.open_thread()) is state.thread
            with pytest.raises(UsageError, match=r"await state\.apply"):
                StateDiffer.patch(state, StateDiffer.diff({}, {"todos": ["x"]}))

    run(main)


# ── several tasks ────────────────────────────────────────────────────────────────────────────


def test_many_tasks_may_share_one_state(tmp_path: Path) -> None:
    async def main() -> None:
        async with everthread.open_async(url_of(tmp_path)) as store:
            state = await AsyncWorkingState(store=store, thread="bot", auto_save=True)
            await asyncio.gather(*(state.add_todo(str(number)) for number in range(25)))
            loaded = await AsyncWorkingState.load(state.id, store=store)
            assert sorted(contents(loaded), key=int) == [str(number) for number in range(25)]

    run(main)


def test_others_changes_come_together_and_conflicts_are_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with everthread.open_async(url_of(tmp_path)) as store:
            mine = await AsyncWorkingState(store=store, thread="bot")
            todo = await mine.add_todo("both complete it")
            await mine.save()
            theirs = await AsyncWorkingState(store=store, thread="bot")
            first = await mine.complete_todo(todo)
            await theirs.complete_todo(todo)
            await mine.set_context("branch", "main")
            await theirs.add_todo("another")
            await mine.save()
            await theirs.save()
            assert theirs.get_todo(todo).completed_at == first.completed_at
            assert theirs.get_context("branch") == "main"
            await mine.reload()
            await mine.set_context("branch", "a")
            await theirs.set_context("branch", "b")
            await mine.save()
            with pytest.raises(ConflictError):
                await theirs.save()
            assert theirs.get_context("branch") == "b", "it is kept"
            await theirs.save(resolve="ours")
            await mine.reload()
            assert mine.get_context("branch") == "b"

    run(main)


def test_a_cancelled_save_loses_nothing_and_makes_nothing_twice(tmp_path: Path) -> None:
    async def main() -> None:
        async with everthread.open_async(url_of(tmp_path)) as store:
            state = await AsyncWorkingState(store=store, thread="bot")
            for number in range(20):
                await state.add_todo(str(number))
                saving = asyncio.ensure_future(state.save())
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                saving.cancel()
                await asyncio.gather(saving, return_exceptions=True)
                assert len(state.todos) == number + 1
            await state.save()
            loaded = await AsyncWorkingState.load(state.id, store=store)
            assert contents(loaded) == [str(number) for number in range(20)]

    run(main)


def test_closing_waits_for_a_save_that_is_under_way(tmp_path: Path) -> None:
    config = Config(storage_backend=StorageBackend.JSON, storage_path=tmp_path / "states")

    async def main() -> None:
        for turns in range(12):
            state = AsyncWorkingState(config)
            await state.add_todo("x")
            saving = asyncio.ensure_future(state.save())
            for _ in range(turns + 1):
                await asyncio.sleep(0)
            await state.close()
            assert contents(await AsyncWorkingState.load(await saving, config)) == ["x"]

    run(main)


# ── owners, hooks, recovery ──────────────────────────────────────────────────────────────────


def test_an_owner_commits_and_takes_turns(tmp_path: Path) -> None:
    async def main() -> None:
        async with everthread.open_async(url_of(tmp_path)) as store:
            thread = await store.thread("bot")
            lock = asyncio.Lock()
            saves = []

            async def save() -> None:
                saves.append(lock.locked())
                await thread.commit()

            state = AsyncWorkingState.on(thread, save=save, lock=lock)
            await asyncio.gather(*(state.add_todo(str(number)) for number in range(5)))
            assert all(saves)
            assert saves
            await lock.acquire()
            waiting = asyncio.ensure_future(state.add_todo("waits"))
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(state.todos) == 5, "no change falls into what the owner is doing"
            lock.release()
            await waiting
            assert len((await store.thread("bot")).state["todos"]) == 6
            with pytest.raises(InvalidStateError, match="owner"):
                await state.rewind(1)
            with pytest.raises(UsageError, match="owner"):
                await state.save(label="mine")

            async def failing() -> None:
                raise OSError("disk")

            kept = AsyncWorkingState.on(thread, save=failing, lock=lock)
            with pytest.raises(OSError, match="disk"):
                await kept.add_todo("uncommitted")
            assert contents(kept)[-1] == "uncommitted"
            assert not lock.locked()

    run(main)


def test_hooks_may_be_plain_or_async(tmp_path: Path) -> None:
    told: list[str] = []
    hooks = SessionLifecycle()

    @hooks.register("on_save")
    async def awaited(state: AsyncWorkingState) -> None:
        await asyncio.sleep(0)
        told.append(f"awaited {len(state.todos)}")
        await state.set_context("saves", state.get_context("saves", 0) + 1)
        await state.save()

    hooks.register("on_save", lambda state: told.append(f"plain {state.status.value}"))
    hooks.register("on_change", lambda state: asyncio.sleep(0, told.append("changed")))

    @hooks.register("on_close")
    async def broken() -> None:
        raise RuntimeError("the webhook is down")

    async def main() -> None:
        async with everthread.open_async(url_of(tmp_path)) as store:
            async with AsyncWorkingState(store=store, hooks=hooks) as state:
                await state.add_todo("x")
            assert [str(each.error) for each in hooks.failures] == ["the webhook is down"]
            loaded = await AsyncWorkingState.load(state.id, store=store)
            assert (contents(loaded), loaded.get_context("saves")) == (["x"], 1)

    run(main)
    assert told == ["changed", "awaited 1", "changed", "plain LOADED"], "each isn't told of its own change"


def test_recovery_makes_async_states_as_well(tmp_path: Path) -> None:
    async def main() -> None:
        async with everthread.open_async(url_of(tmp_path)) as store:
            state = SelfHealer.recover({"todos": ["pay", 7]}, store=store, kind=AsyncWorkingState)
            assert (contents(state), state.recovery.lost_count) == (["pay"], 1)
            await state.save()
            assert contents(await AsyncWorkingState.resume(store=store)) == ["pay"]
            assert SelfHealer.recover(state).todos == state.todos
            merged = StateDiffer.merge(state, StateDiffer.diff({}, {"todos": ["ask"]}))
            assert (contents(merged), contents(state)) == (["pay", "ask"], ["pay"])
            assert await merged.save() != state.id

    run(main)


def test_a_file_from_elsewhere_is_loaded_async(tmp_path: Path) -> None:
    id = "0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f1"
    path = tmp_path / f"{id}.json"
    path.write_text(json.dumps({"todos": [{"id": "t", "content": "pay", "status": "COMPLETED"}]}))

    async def main() -> None:
        async with everthread.open_async(url_of(tmp_path)) as store:
            state = await AsyncWorkingState.load(path, store=store)
            assert (state.id, state.status, contents(state)) == (id, "DIRTY", ["pay"])
            await state.save()
            assert contents(await AsyncWorkingState.load(id, store=store)) == ["pay"]

    run(main)
