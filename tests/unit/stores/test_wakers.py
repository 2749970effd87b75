"""Telling event loops from other threads."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from typing import Any

import pytest

from everthread.stores import wakers
from everthread.stores.wakers import telling


def counters() -> int:
    """How many event counters this process has open."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return links.count("anon_inode:[eventfd]")


async def told(calls: int) -> list[Any]:
    """What a loop gets to hear from a thread, and in which thread."""
    loop = asyncio.get_running_loop()
    tell, heard, over = telling(loop), [], asyncio.Event()

    def hear(number: int) -> None:
        heard.append((number, threading.current_thread() is threading.main_thread()))
        if number == calls - 1:
            over.set()

    def work() -> None:
        for number in range(calls):
            tell(hear, number)

    thread = threading.Thread(target=work)
    thread.start()
    await asyncio.wait_for(over.wait(), 30)
    thread.join()
    return heard


def test_all_is_heard_in_its_order_and_in_the_loop() -> None:
    assert asyncio.run(told(2_000)) == [(number, True) for number in range(2_000)]


def test_a_loop_has_one_counter_which_goes_with_it() -> None:
    gc.collect()
    before = counters()

    async def main() -> None:
        assert telling(asyncio.get_running_loop()) is telling(asyncio.get_running_loop())
        # The loop's own is a pair of sockets.
        assert counters() == before + 1

    for _ in range(5):
        asyncio.run(main())
    gc.collect()
    assert counters() == before


def test_loops_in_several_threads_hear_what_is_theirs() -> None:
    found: list[list[Any]] = []
    threads = [threading.Thread(target=lambda: found.append(asyncio.run(told(300)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [[number for number, _ in heard] for heard in found] == [list(range(300))] * 4


def test_what_comes_behind_a_call_that_raises_is_heard() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        heard: list[str] = []
        loop.set_exception_handler(lambda _, context: heard.append(repr(context["exception"])))
        tell, over = telling(loop), asyncio.Event()

        def refuse() -> None:
            raise OSError("no")

        tell(refuse)
        tell(heard.append, "behind")
        tell(over.set)
        await asyncio.wait_for(over.wait(), 30)
        return heard

    assert asyncio.run(main()) == ["OSError('no')", "behind"]


def test_a_loop_that_has_ended_is_told_in_vain() -> None:
    async def main() -> Any:
        return telling(asyncio.get_running_loop())

    loop = asyncio.new_event_loop()
    tell = loop.run_until_complete(main())
    loop.close()
    tell(pytest.fail, "nobody is there")


@pytest.mark.parametrize("why", ["no counters", "no readers"])
def test_without_counters_asyncio_does_it(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    class Blind(asyncio.SelectorEventLoop):
        def add_reader(self, *_: Any) -> None:
            raise NotImplementedError

    def refuse(*_: int) -> int:
        raise OSError("too many open files")

    gc.collect()
    before = counters()
    if why == "no counters":
        monkeypatch.setattr(wakers.os, "eventfd", refuse)
    with asyncio.Runner(loop_factory=Blind if why == "no readers" else None) as runner:
        assert runner.run(told(50)) == [(number, True) for number in range(50)]
    assert counters() == before


def test_timers_have_their_turn_while_there_is_ever_more_to_hear() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        tell, heard, over = telling(loop), 0, asyncio.Event()
        loop.call_later(0.01, over.set)

        def hear() -> None:
            nonlocal heard
            heard += 1
            # Whoever hears it has the thread say something again, as a task that goes on committing.
            if not over.is_set() and heard < 10_000_000:
                tell(hear)

        tell(hear)
        await asyncio.wait_for(over.wait(), 60)
        return heard

    assert 0 < asyncio.run(main()) < 10_000_000
