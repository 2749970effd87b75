"""Commits of many tasks share requests to Valkey; each is taken, refused or cancelled by itself."""

from __future__ import annotations

import asyncio
import random

import everthread
from everthread import ConflictError

TASKS = 40


async def _commit(thread: everthread.AsyncThread, number: int) -> everthread.Version:
    thread.state["n"] = number
    thread.messages.append({"content": number})
    return await thread.commit()


def test_each_on_its_own_terms(valkey_url: str) -> None:
    async def play() -> None:
        async with everthread.open_async(valkey_url, durability="process") as store:
            threads = [await store.thread(f"t{number}") for number in range(TASKS)]
            for thread in threads:
                await _commit(thread, 0)
            rivals = [await store.thread(f"t{number}") for number in range(TASKS)]
            found = await asyncio.gather(
                *(_commit(each, 9) for each in [*threads, *rivals]), return_exceptions=True
            )
            for one, other in zip(found[:TASKS], found[TASKS:], strict=True):
                assert {type(one), type(other)} == {everthread.Version, ConflictError}

    asyncio.run(play())


def test_cancelled_at_any_moment_each_counts_once_or_not_at_all(valkey_url: str, seed: int) -> None:
    draw = random.Random(seed)

    async def play() -> None:
        async with everthread.open_async(valkey_url, durability="process") as store:
            threads = [await store.thread(f"t{number}") for number in range(TASKS)]
            for thread in threads:
                await _commit(thread, 0)
            cancelled = 0
            for number in range(1, 21):
                tasks = [asyncio.ensure_future(_commit(thread, number)) for thread in threads]
                # At once, too: on a quick machine all may be through before that time.
                await asyncio.sleep(draw.choice((0.0, draw.uniform(0, 0.005))))
                for victim in draw.sample(tasks, TASKS // 3):
                    victim.cancel()
                found = await asyncio.gather(*tasks, return_exceptions=True)
                for at, outcome in enumerate(found):
                    if isinstance(outcome, asyncio.CancelledError):
                        cancelled += 1
                        # Done again from the same object, which recognises what has landed.
                        outcome = await threads[at].commit()
                    assert isinstance(outcome, everthread.Version), outcome
            assert cancelled > 0
            for thread in threads:
                assert [item["content"] async for item in thread.messages] == list(range(21))

    asyncio.run(play())
