"""Commits of many tasks share requests to PostgreSQL; each is taken, refused or cancelled by itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import everthread
from everthread import ConflictError
from everthread.stores import group_commit
from tests.servers.proxy import Counted, counting

TASKS = 40


@pytest.fixture
def counted(postgres_url: str) -> Iterator[Counted]:
    with counting(postgres_url) as found:
        yield found


async def _threads(store: everthread.AsyncStore) -> list[everthread.AsyncThread]:
    threads = [await store.thread(f"t{number}") for number in range(TASKS)]
    for thread in threads:
        thread.state["n"] = 0
        await thread.commit()
    return threads


async def _commit(thread: everthread.AsyncThread, number: int) -> everthread.Version:
    thread.state["n"] = number
    thread.messages.append({"content": number})
    return await thread.commit()


def test_those_who_wait_go_together(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    # However slow this machine is at the moment.
    monkeypatch.setattr(group_commit, "SLOW_S", 60.0)

    async def play() -> None:
        async with everthread.open_async(counted.url) as store:
            threads = await _threads(store)
            before = counted.trips
            for number in (1, 2, 3):
                done = await asyncio.gather(*(_commit(thread, number) for thread in threads))
                assert [version.seq for version in done] == [number + 1] * TASKS
            # Preparing a statement is a trip too, once for each connection.
            assert counted.trips - before < TASKS
            # One alone waits for nobody. Connections take turns: each prepares its statement first.
            for thread in threads[1:20]:
                await _commit(thread, 4)
            before = counted.trips
            await _commit(threads[0], 4)
            assert counted.trips - before == 1

    asyncio.run(play())


def test_each_on_its_own_terms(postgres_url: str) -> None:
    async def play() -> None:
        async with everthread.open_async(postgres_url) as store, everthread.open_async(postgres_url) as other:
            threads = await _threads(store)
            for number in range(0, TASKS, 4):
                await _commit(await other.thread(f"t{number}"), 7)
            rivals = [await store.thread(f"t{number}") for number in range(1, TASKS, 4)]
            both = [*threads, *rivals]
            found = await asyncio.gather(*(_commit(each, 9) for each in both), return_exceptions=True)
            for number, outcome in enumerate(found[:TASKS]):
                if number % 4 == 0:
                    assert isinstance(outcome, ConflictError), (number, outcome)
                elif number % 4 == 1:
                    # Of two at once exactly one.
                    rival = found[TASKS + number // 4]
                    assert {type(outcome), type(rival)} == {everthread.Version, ConflictError}
                else:
                    assert isinstance(outcome, everthread.Version), (number, outcome)

    asyncio.run(play())


@pytest.mark.parametrize("connections", [3, 8])
def test_one_that_waits_for_a_lock_holds_up_nobody(postgres_url: str, connections: int) -> None:
    async def play() -> None:
        url = f"{postgres_url}?lock_timeout_ms=60000&statement_timeout_ms=60000&pool_max={connections}"
        async with everthread.open_async(url) as store:
            threads = await _threads(store)
            with psycopg.connect(postgres_url) as locking:
                locking.execute(
                    "SELECT 1 FROM everthread.head h JOIN everthread.line l ON l.id = h.line "
                    "WHERE l.name = 't0' FOR UPDATE OF h"
                )
                tasks = [asyncio.ensure_future(_commit(thread, 1)) for thread in threads]
                await asyncio.gather(*(task for number, task in enumerate(tasks) if number))
                assert not tasks[0].done()
                locking.rollback()
                assert (await tasks[0]).seq == 2

    asyncio.run(play())


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_cut_connection_takes_nobody_along(postgres_url: str, carried_out: bool) -> None:
    async def play() -> None:
        async with everthread.open_async(postgres_url) as store:
            threads = await _threads(store)
            pool: Any = store.core.backend.pool  # type: ignore[attr-defined]
            once, cuts = pool._once, []

            async def cut(name: str, values: Any) -> Any:
                if name == "append_many":
                    cuts.append(len(values[0]))
                    if carried_out:
                        await once(name, values)
                    raise psycopg.OperationalError("the connection was cut")
                return await once(name, values)

            pool._once = cut
            done = await asyncio.gather(*(_commit(thread, 1) for thread in threads))
            assert [version.seq for version in done] == [2] * TASKS
            assert sum(cuts) > TASKS // 2
        with everthread.open(postgres_url) as after:
            for number in range(TASKS):
                assert [item["content"] for item in after.thread(f"t{number}").messages] == [1]

    asyncio.run(play())


def test_cancelled_at_any_moment_nothing_goes_on_behind_ones_back(postgres_url: str, seed: int) -> None:
    draw = random.Random(seed)

    async def play() -> None:
        async with everthread.open_async(postgres_url) as store:
            threads = await _threads(store)
            cancelled = 0
            for number in range(1, 31):
                tasks = [asyncio.ensure_future(_commit(thread, number)) for thread in threads]
                await asyncio.sleep(draw.uniform(0, 0.01))
                victims = draw.sample(range(TASKS), TASKS // 3)
                for victim in victims:
                    tasks[victim].cancel()
                found = await asyncio.gather(*tasks, return_exceptions=True)
                for at, outcome in enumerate(found):
                    if isinstance(outcome, asyncio.CancelledError):
                        cancelled += 1
                        assert at in victims
                        # It landed or it didn't: what is read now stays so.
                        again = await store.thread(threads[at].name)
                        await threads[at].discard()
                        await threads[at].refresh()
                        assert threads[at].state["n"] == again.state["n"]
                    else:
                        assert isinstance(outcome, everthread.Version), outcome
                        assert threads[at].state["n"] == number
            assert cancelled > 0
            for thread in threads:
                numbers = [item["content"] async for item in thread.messages]
                assert numbers == sorted(set(numbers))

    asyncio.run(play())
