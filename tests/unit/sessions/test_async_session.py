"""Sessions of async stores: the same runs, none of whose calls holds up the event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import AsyncStore, SessionBusyError, ThreadNotFoundError, UsageError, store_async
from everthread.sessions.aio import run_start
from everthread.sessions.aio import session as sessions


def to_its_end(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    return run


@pytest.fixture(params=["memory", "sqlite", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    places = {
        "memory": "memory:",
        "sqlite": f"sqlite:///{tmp_path}/agent.db",
        "file": f"file://{tmp_path}/agent",
    }
    return places[request.param]


@to_its_end
async def test_a_run_is_begun_ended_and_resumed(url: str) -> None:
    async def pay(amount: int) -> str:
        await asyncio.sleep(0)
        return f"paid {amount}"

    async with everthread.open_async(url) as store:
        async with store.session("bot", agent="weaver") as s:
            await s.work.add_todo("reconcile March")
            await s.messages.append({"role": "user", "content": "hello"})
            assert await s.call("pay-1", pay, 80) == "paid 80"
        thread = await store.thread("bot")
        assert len(thread.messages) == 1
        report = await store.resume("bot")
        assert (report.status, len(report.todos["pending"])) == ("completed", 1)
        assert "reconcile March" in await store.briefing("bot", 800)
        assert (await (await store.session_records("bot")).effects())[0].key == "pay-1"

        async with store.session("bot") as again:
            assert await again.resumed is not None
            # Done is done, whoever asks.
            assert await again.call("pay-1", pay, 80) == "paid 80"


@to_its_end
async def test_a_busy_thread_and_one_that_is_not_there(url: str) -> None:
    async with everthread.open_async(url) as store, store.session("bot"):
        with pytest.raises(SessionBusyError):
            async with store.session("bot"):
                pass
        with pytest.raises(ThreadNotFoundError):
            await store.resume("nobody")


@to_its_end
async def test_an_error_inside_ends_the_run_as_failed(url: str) -> None:
    async with everthread.open_async(url) as store:
        with pytest.raises(KeyError):
            async with store.session("bot"):
                raise KeyError("lost")
        assert (await store.resume("bot")).status == "failed"


@to_its_end
async def test_awaited_instead_of_entered(url: str) -> None:
    async with everthread.open_async(url) as store:
        session = await store.session("bot")
        await session.close()
        assert (await store.resume("bot")).status == "completed"


@to_its_end
async def test_a_session_that_was_forgotten_is_free_again(url: str) -> None:
    async with everthread.open_async(url) as store:
        session = await store.session("bot")
        session.state["x"] = 1
        await session.save()
        del session
        gc.collect()
        async with store.session("bot") as second:
            assert second.state["x"] == 1
            assert second.found.last_run is not None
            assert second.found.last_run.status == "crashed"


@to_its_end
async def test_a_fork_of_an_async_handle(url: str) -> None:
    async with everthread.open_async(url) as store:
        thread = await store.thread("source")
        for number in (1, 2, 3):
            thread.state["n"] = number
            await thread.commit()
        await thread.rewind(2)
        async with store.session("fork", mode="fork", source=thread) as session:
            assert session.state["n"] == 2
        async with store.session("older", mode="fork", source=thread, at=1) as session:
            assert session.state["n"] == 1
        with pytest.raises(ThreadNotFoundError):
            await store.session("x", mode="fork", source=await store.thread("nobody"))


@to_its_end
async def test_cancelled_while_it_begins_it_holds_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()
    real = run_start.begin

    async def slow(*arguments: Any) -> Any:
        entered.set()
        await go_on.wait()
        return await real(*arguments)

    async with everthread.open_async(url) as store:
        with monkeypatch.context() as patched:
            patched.setattr(sessions, "begin", slow)

            async def begin() -> None:
                async with store.session("bot"):
                    raise AssertionError("never entered")

            task = asyncio.create_task(begin())
            await entered.wait()
            task.cancel()
            await asyncio.sleep(0)
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await store.resume("bot")).status == "cancelled"
        async with store.session("bot") as s:
            assert await s.resumed is not None


@to_its_end
async def test_cancelled_while_it_ends_it_gives_the_lease_back(url: str) -> None:
    async with everthread.open_async(url) as store:

        async def work(begun: asyncio.Event) -> None:
            async with store.session("bot") as s:
                await s.messages.append({"role": "user"})
                begun.set()

        for rounds in range(12):
            begun = asyncio.Event()
            task = asyncio.create_task(work(begun))
            await begun.wait()
            for _ in range(rounds):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            records = await store.session_records("bot")
            assert (records.holder, records.status in ("completed", "cancelled")) == (None, True)


@to_its_end
async def test_cancelled_anywhere_the_next_call_finds_what_began(url: str) -> None:
    async with everthread.open_async(url) as store, store.session("bot", max_turns=None) as s:

        async def work(number: int, calls: list[int]) -> None:
            async with s.turn():
                await s.messages.append({"id": f"m{number}"})
                await s.work.add_todo(f"todo {number}")
                await s.call(f"k{number}", calls.append, number)
                async with s.decide(f"d{number}"):
                    await s.tasks.add(f"task {number}")

        for rounds in range(40):
            calls: list[int] = []
            task = asyncio.create_task(work(rounds, calls))
            for _ in range(rounds):
                await asyncio.sleep(0.0002)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            # Whatever was cut, the next calls work, and what they say is there.
            assert len(calls) <= 1
            await s.messages.append({"id": f"m{rounds}"})
            assert await s.call(f"k{rounds}", calls.append, rounds, verify=lambda _: bool(calls)) is None  # noqa: B023
            assert calls == [rounds]
            thread = await store.thread("bot")
            assert await thread.messages.find(f"m{rounds}") is not None
        for decision in await s.incomplete_decisions():
            await s.record_outcome(decision.id, "late")
        assert await s.in_doubt() == []
        assert s.run.turn == 0 or s.turns >= 1
    assert s.status == "completed"


class Watched:
    """A driver that notes on which thread its verbs are called."""

    def __init__(self, beneath: Any, calls: list[tuple[int, str]]) -> None:
        self._beneath = beneath
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._beneath, name)
        if not callable(found):
            return found

        def verb(*args: Any, **options: Any) -> Any:
            self._calls.append((threading.get_ident(), name))
            return found(*args, **options)

        return verb


@to_its_end
async def test_no_store_call_is_made_on_the_loops_thread(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, str]] = []
    real = store_async.open_backend
    monkeypatch.setattr(store_async, "open_backend", lambda *args: Watched(real(*args), calls))
    told: list[str] = []

    async def hook(*args: Any) -> None:
        await asyncio.sleep(0)
        told.append("told")

    async with everthread.open_async(url, keyring="memory:") as store:
        calls.clear()
        for _ in range(2):
            async with store.session("bot", user_id="u1", hooks={"on_turn": [hook, told.append]}) as s:
                await _whole_session(s)
        await store.briefing("bot")
        await store.resume("bot")
        await (await store.session_records("bot")).runs()
    verbs = {name for _, name in calls}
    assert {"find", "cell", "swap"} < verbs
    loop = threading.get_ident()
    assert [name for thread, name in calls if thread == loop] == []
    assert told.count("told") == 4


async def _whole_session(s: everthread.AsyncAgentSession) -> None:
    todo = await s.work.add_todo("reconcile March")
    await s.work.set_context("branch", "main")
    for number in range(2):
        async with s.turn() as turn:
            await turn.messages.append({"role": "user", "content": f"{number}"})
            await turn.add_usage(tokens=1)
            await s.receive({"role": "user", "content": "late"})
            async with turn.tool("look"):
                pass
    await s.work.complete_todo(todo.id)
    s.state["plain"] = 1
    s.set_working("tool", {"a": 1})
    await s.checkpoint("done", include_keys=["tool"])
    decision = await s.decide(everthread.Personal("u1", "FIFO"), rationale="auditor")
    await s.record_outcome(decision.id, "done")
    async with s.decide("LIFO"):
        task = await s.tasks.add("one")
        await s.tasks.start(task.id)
    await s.call(f"pay-{s.turns}", lambda: "paid")
    with pytest.raises(OSError, match="no"):
        await s.call(f"fail-{s.turns}", _fail)
    with pytest.raises(everthread.InDoubtError):
        await s.call(f"fail-{s.turns}", _fail)
    await s.settle(f"fail-{s.turns}", False)
    await s.record_error("odd", where="here")
    await s.heartbeat()
    await s.merge_update(phase="two")
    await s.save()
    await s.rewind_to_checkpoint("done")
    assert await s.get_checkpoint("done") == {"tool": {"a": 1}}
    assert len(await s.list_checkpoints()) >= 1
    assert [error.personal for error in await s.errors][-1]
    assert await s.incomplete_decisions() == []
    assert await s.in_doubt() == []
    assert await s.effects()
    assert "reconcile" in str(await s.briefing())
    await s.resumed
    assert [message["role"] async for message in s.messages] == ["user"] * len(s.messages)
    assert s.usage.tokens == s.turns


async def _fail() -> None:
    raise OSError("no")


@to_its_end
async def test_tasks_of_one_session_take_turns(url: str) -> None:
    async with everthread.open_async(url) as store, store.session("bot", max_turns=None) as s:

        async def work(number: int) -> None:
            await s.work.add_todo(f"todo {number}")
            await s.messages.append({"id": number})
            await s.tasks.add(f"task {number}")
            await s.add_usage(tokens=1)
            await s.call(f"k{number % 3}", lambda: number % 3)

        await asyncio.gather(*(work(number) for number in range(12)))
        assert (len(s.work.todos), len(s.messages), len(s.tasks), s.usage.tokens) == (12, 12, 12, 12)
        assert len(await s.effects()) == 3


@to_its_end
async def test_an_effect_is_refused_within_itself_also_in_a_task_that_it_began(url: str) -> None:
    async with everthread.open_async(url) as store, store.session("bot") as s:

        async def again() -> Any:
            return await asyncio.create_task(s.call("k", again))

        with pytest.raises(UsageError, match="from within itself"):
            await s.call("k", again)


@to_its_end
async def test_a_subagent_counts_for_its_parent(url: str) -> None:
    async with everthread.open_async(url) as store, store.session("parent") as parent:
        async with store.session("child", parent=parent) as child:
            async with child.turn() as turn:
                await turn.add_usage(tokens=3)
            assert (parent.turns, parent.usage.tokens) == (1, 3)
        assert (parent.turns, parent.usage.tokens) == (1, 3)


@pytest.mark.filterwarnings("error")
@to_its_end
async def test_a_forgotten_await_is_a_warning(url: str) -> None:
    async with everthread.open_async(url) as store, store.session("bot") as s:
        for forget in (
            lambda: s.decide("x"),
            lambda: s.messages.append({}),
            lambda: s.call("k", print),
            lambda: s.work.add_todo("x"),
            lambda: s.tasks.add("x"),
            lambda: s.checkpoint("x"),
            s.heartbeat,
        ):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                forget()
                gc.collect()
            assert "never awaited" in str(caught[-1].message)
        assert len(s.messages) == 0


@to_its_end
async def test_the_wrong_colour_says_so(url: str) -> None:
    async with everthread.open_async(url) as store:
        with pytest.raises(UsageError, match="async with"), store.session("bot"):
            pass
        with pytest.raises(UsageError, match="hasn't begun"):
            store.session("bot").work  # noqa: B018
        assert [info.name async for info in store.threads()] == []
    with pytest.raises(everthread.StoreClosedError):
        await store.resume("bot")


def test_both_colours_have_the_same_verbs() -> None:
    def verbs(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert verbs(everthread.Store) == verbs(AsyncStore)
    assert verbs(everthread.Thread) == verbs(everthread.AsyncThread)
    assert verbs(everthread.AgentSession) == verbs(everthread.AsyncAgentSession)
