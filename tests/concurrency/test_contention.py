"""How often the store is asked when several tasks or threads of one process work on one thread.

Calls of the store are counted instead of seconds: what is retried or polled is asked again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

import everthread
from everthread.testing.faults import WrappedBackend, wrap_every_backend

MANY = 40
#: More calls than entering the queue of a lock takes, and few enough to be reached quickly by polling.
POLLS = 12
#: The longest time for which a waiting caller is watched; it ends sooner if the caller polls.
WATCHED_S = 5.0


class Calls:
    """The number of calls that any store of this process was given."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._limit, self._then = 0, cast("Callable[[], Any] | None", None)

    def when(self, count: int, then: Callable[[], Any]) -> None:
        """Call ``then`` once so many further calls were made."""
        with self._lock:
            self._limit, self._then = self.count + count, then

    def note(self, call: Any) -> None:
        if call.moment == "before":
            with self._lock:
                self.count += 1
                if self._then is not None and self.count >= self._limit:
                    then, self._then = self._then, None
                    then()


@contextmanager
def counted() -> Iterator[Calls]:
    calls = Calls()
    with wrap_every_backend(lambda backend: cast("Any", WrappedBackend(backend, calls.note))):
        yield calls


def message(number: int) -> dict[str, Any]:
    return {"role": "user", "content": str(number)}


NOTIFIED = "whoever waits for a lock polls the store instead of waiting for a notification"
RETRIED = "of n writers of one process all but one are refused and try again, n times"


@pytest.mark.xfail(strict=True, reason=NOTIFIED)
def test_a_task_that_waits_for_a_lock_does_not_poll_the_store(tmp_path: Path) -> None:
    async def main() -> None:
        async with everthread.open_async(f"sqlite:///{tmp_path}/a.db", durability="process") as store:
            first, second = await store.thread("t"), await store.thread("t")
            await first.commit(label="first")
            loop, polled = asyncio.get_running_loop(), asyncio.Event()

            async def wait() -> None:
                async with second.lock() as draft:
                    draft["second"] = draft["first"]

            async with first.lock() as draft:
                draft["first"] = True
                calls.when(POLLS, lambda: loop.call_soon_threadsafe(polled.set))
                waiting = asyncio.create_task(wait())
                await asyncio.wait([asyncio.ensure_future(polled.wait())], timeout=WATCHED_S)
            await waiting
            assert (await store.thread("t")).state.plain() == {"first": True, "second": True}
            assert not polled.is_set()

    with counted() as calls:
        asyncio.run(main())


@pytest.mark.xfail(strict=True, reason=NOTIFIED)
def test_a_thread_that_waits_for_a_lock_does_not_poll_the_store(tmp_path: Path) -> None:
    polled = threading.Event()
    url = f"sqlite:///{tmp_path}/a.db"
    with counted() as calls, everthread.open(url, durability="process") as store:
        first = store.thread("t")
        first.commit(label="first")

        def wait() -> None:
            with store.thread("t").lock() as draft:
                draft["second"] = draft["first"]

        with ThreadPoolExecutor(1) as pool:
            with first.lock() as draft:
                draft["first"] = True
                calls.when(POLLS, polled.set)
                waiting = pool.submit(wait)
                polled.wait(WATCHED_S)
            waiting.result()
        assert store.thread("t").state.plain() == {"first": True, "second": True}
        assert not polled.is_set()


@pytest.mark.xfail(strict=True, reason=RETRIED)
def test_concurrent_sends_ask_the_store_at_most_three_times_as_often_as_sends_in_sequence(
    tmp_path: Path,
) -> None:
    async def main(url: str, at_once: bool) -> int:
        async with everthread.open_async(url, durability="process") as store:
            await (await store.thread("t")).commit(label="first")
            before = calls.count
            if at_once:
                await asyncio.gather(*(store.send("t", message(number)) for number in range(MANY)))
            else:
                for number in range(MANY):
                    await store.send("t", message(number))
            made = calls.count - before
            async with store.session("t") as session:
                said = [(await session.next_input(timeout_s=0))["content"] for _ in range(MANY)]
            assert sorted(map(int, said)) == list(range(MANY))
            return made

    with counted() as calls:
        in_sequence = asyncio.run(main(f"sqlite:///{tmp_path}/sequence.db", False))
        assert asyncio.run(main(f"sqlite:///{tmp_path}/at_once.db", True)) <= 3 * in_sequence
