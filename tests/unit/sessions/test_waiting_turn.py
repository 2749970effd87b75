"""A session that waits while another run holds its thread."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

import everthread
from everthread.testing.faults import WrappedBackend, wrap_every_backend

#: More calls of the store than one attempt to begin a session makes.
CALLS = 20


class Busy:
    """Says when so many calls of the store were made since it was armed."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._left = 0

    def arm(self) -> None:
        self._left = CALLS

    def note(self, call: Any) -> None:
        if self._left > 0:
            self._left -= 1
            if self._left == 0:
                self.event.set()

    def wrap(self, backend: Any) -> Any:
        return cast("Any", WrappedBackend(backend, self.note))


def test_a_session_with_wait_s_begins_when_the_other_run_has_ended(tmp_path: Path) -> None:
    busy, url = Busy(), f"sqlite:///{tmp_path}/a.db"
    with wrap_every_backend(busy.wrap), everthread.open(url, durability="process") as store:
        first = store.session("bot")
        first.state["n"] = 1

        def wait() -> int:
            with store.session("bot", wait_s=600) as second:
                return int(second.state["n"]) + 1

        with ThreadPoolExecutor(1) as pool:
            busy.arm()
            waiting = pool.submit(wait)
            assert busy.event.wait(60)
            assert not waiting.done()
            first.close()
            assert waiting.result() == 2


def test_an_agent_session_with_wait_s_begins_when_the_other_run_has_ended(tmp_path: Path) -> None:
    busy, url = Busy(), f"sqlite:///{tmp_path}/a.db"
    with wrap_every_backend(busy.wrap):
        first = everthread.AgentSession("bot", store=url)

        def wait() -> int:
            with everthread.AgentSession("bot", store=url, wait_s=600) as second:
                return len(second.work.todos)

        with ThreadPoolExecutor(1) as pool:
            first.work.add_todo("reconcile")
            busy.arm()
            waiting = pool.submit(wait)
            assert busy.event.wait(60)
            first.close()
            assert waiting.result() == 1


def test_an_async_session_with_wait_s_begins_when_the_other_run_has_ended() -> None:
    async def main() -> None:
        async with everthread.open_async("memory:") as store:
            first = await store.session("bot")

            async def wait() -> str:
                async with store.session("bot", wait_s=600) as second:
                    return second.run_id

            busy.arm()
            waiting = asyncio.create_task(wait())
            assert await asyncio.to_thread(busy.event.wait, 60)
            await first.close()
            assert await waiting != first.run_id

    busy = Busy()
    with wrap_every_backend(busy.wrap):
        asyncio.run(main())


def test_waiting_can_be_cancelled_and_leaves_no_run() -> None:
    async def main() -> None:
        async with everthread.open_async("memory:") as store:
            async with store.session("bot") as first:
                busy.arm()
                waiting = asyncio.ensure_future(store.session("bot", wait_s=600).__aenter__())
                assert await asyncio.to_thread(busy.event.wait, 60)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await first.work.add_todo("still here")
            assert len(await (await store.session_records("bot")).runs()) == 1

    busy = Busy()
    with wrap_every_backend(busy.wrap):
        asyncio.run(main())


def test_without_wait_s_or_when_it_is_over_the_thread_is_busy() -> None:
    with everthread.open("memory:") as store, store.session("bot"):
        for wait_s in (0, 0.001, -1):
            with pytest.raises(everthread.SessionBusyError):
                store.session("bot", wait_s=wait_s)
        with pytest.raises(everthread.InvalidValueError, match="wait_s"):
            store.session("bot", wait_s=cast("Any", "soon"))
