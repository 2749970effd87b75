"""``log.times()``: each item has the time of the version that brought it."""

from __future__ import annotations

import asyncio
from datetime import datetime
from itertools import count

import everthread
from everthread.threads.runtime import Runtime


def runtime() -> Runtime:
    clock = count(1_800_000_000_000_000, 1_000_000)
    return Runtime(now_us=lambda: next(clock))


def said(thread: everthread.Thread, *texts: str) -> datetime:
    for text in texts:
        thread.messages.append({"role": "user", "content": text})
    return thread.commit().at


def test_messages_carry_the_time_of_their_version_however_old_they_are() -> None:
    with everthread.open("memory:", runtime=runtime()) as store:
        thread = store.thread("t")
        wanted = [said(thread, "first")]
        for number in range(400):
            thread.state["n"] = number
            thread.commit()
        wanted += [said(thread, "a", "b")] * 2
        assert thread.messages.times() == wanted
        assert thread.messages.times(-1) == wanted[-1:]
        assert thread.messages.times(0, 1) == wanted[:1]
        assert thread.log("other").times() == []
        thread.messages.append({"role": "user", "content": "not committed"})
        assert thread.messages.times(2) == [wanted[2], None]


def test_times_survive_rewind_and_fork() -> None:
    with everthread.open("memory:", runtime=runtime()) as store:
        thread = store.thread("t")
        first = said(thread, "a")
        said(thread, "b")
        thread.rewind(1)
        again = said(thread, "c")
        fork = thread.fork("f")
        later = said(fork, "d")
        assert fork.messages.times() == [first, again, later]
        assert store.thread("t").messages.times() == [first, again]


def test_what_gc_deleted_has_no_time() -> None:
    with everthread.open("memory:", runtime=runtime()) as store:
        thread = store.thread("t")
        for number in range(10):
            last = said(thread, str(number))
        store.gc(everthread.Retention(keep_last=1))
        times = store.thread("t").messages.times()
        assert len(times) == 10
        assert times[0] is None
        assert times[-1] == last


def test_messages_of_an_async_session_carry_their_times() -> None:
    async def main() -> None:
        async with everthread.open_async("memory:", runtime=runtime()) as store:
            async with store.session("t") as session:
                await session.messages.append({"role": "user", "content": "a"})
                wanted = session.thread.head
                assert wanted is not None
                assert await session.messages.times() == [wanted.at]
            assert await (await store.thread("t")).messages.times() == [wanted.at]

    asyncio.run(main())
