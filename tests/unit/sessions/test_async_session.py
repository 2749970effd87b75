"""Sessions of async stores: the same runs, begun, ended and looked at without holding up the event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import AsyncStore, SessionBusyError, ThreadNotFoundError, UsageError


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
            s.work.add_todo("reconcile March")
            s.messages.append({"role": "user", "content": "hello"})
            assert await s.acall("pay-1", pay, 80) == "paid 80"
        thread = await store.thread("bot")
        assert len(thread.messages) == 1
        report = await store.resume("bot")
        assert (report.status, len(report.todos["pending"])) == ("completed", 1)
        assert "reconcile March" in await store.briefing("bot", 800)
        assert (await store.session_records("bot")).effects()[0].key == "pay-1"

        async with store.session("bot") as again:
            assert again.resumed is not None
            # Done is done, whoever asks.
            assert await again.acall("pay-1", pay, 80) == "paid 80"


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
        session.close()
        assert (await store.resume("bot")).status == "completed"


@to_its_end
async def test_a_session_that_was_forgotten_is_free_again(url: str) -> None:
    async with everthread.open_async(url) as store:
        session = await store.session("bot")
        session.state["x"] = 1
        session.save()
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
    entered, go_on = threading.Event(), threading.Event()
    async with everthread.open_async(url) as store:
        real = everthread.Store.session

        def slow(self: everthread.Store, *arguments: Any, **options: Any) -> everthread.AgentSession:
            entered.set()
            assert go_on.wait(20)
            return real(self, *arguments, **options)

        with monkeypatch.context() as patched:
            patched.setattr(everthread.Store, "session", slow)

            async def begin() -> None:
                async with store.session("bot"):
                    raise AssertionError("never entered")

            task = asyncio.create_task(begin())
            await asyncio.to_thread(entered.wait, 20)
            task.cancel()
            await asyncio.sleep(0)
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await store.resume("bot")).status == "cancelled"
        async with store.session("bot") as s:
            assert s.resumed is not None


@to_its_end
async def test_beginning_does_not_hold_up_the_loop(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = threading.get_ident()
    seen: list[int] = []
    real = everthread.Store.session

    def spy(self: everthread.Store, *arguments: Any, **options: Any) -> everthread.AgentSession:
        seen.append(threading.get_ident())
        return real(self, *arguments, **options)

    monkeypatch.setattr(everthread.Store, "session", spy)
    async with everthread.open_async(url) as store, store.session("bot"):
        pass
    assert seen
    assert loop not in seen


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
