"""Stores behind a network: which driver each colour gets, and what a missing one says."""

from __future__ import annotations

import asyncio
import sys
import threading
from types import ModuleType
from typing import Any

import pytest

import everthread
from everthread import MissingDependencyError
from everthread.records import opening
from everthread.records.opening import open_memory
from everthread.stores import urls
from everthread.stores.contract import Backend
from everthread.stores.offloaded import Offloaded
from everthread.stores.urls import Network
from everthread.stores.valkey.aio.client import _Gate as AsyncGate
from everthread.testing.faults import wrap_every_backend, wrapped


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Backends that a network store of the scheme ``fake`` has opened."""
    made: list[Any] = []

    def connect(url: str, durability: str, create: bool) -> Backend:
        made.append(open_memory())
        return made[-1]

    async def connect_async(url: str, durability: str, create: bool) -> Any:
        made.append(Offloaded(open_memory()))
        return made[-1]

    for colour, function in (("sync", connect), ("aio", connect_async)):
        module = ModuleType("store")
        module.connect = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"everthread.stores.fake.{colour}.store", module)
        for package in ("everthread.stores.fake", f"everthread.stores.fake.{colour}"):
            monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setitem(urls.NETWORK, "fake", Network("fake", "fakedriver"))
    return made


def test_each_colour_gets_its_own_driver(made: list[Any]) -> None:
    with everthread.open("fake://host/db") as store:
        assert store.core.backend is made[0]

    async def main() -> None:
        async with everthread.open_async("fake://host/db") as store:
            assert store.core.backend is made[1]

    asyncio.run(main())


def test_both_can_be_wrapped(made: list[Any]) -> None:
    seen: list[str] = []
    with wrap_every_backend(lambda backend: wrapped(backend, lambda call: seen.append(call.verb))):
        with everthread.open("fake://host/db") as store:
            store.thread("a").commit(label="x")

        async def main() -> None:
            async with everthread.open_async("fake://host/db") as store:
                await (await store.thread("b")).commit(label="x")

        asyncio.run(main())
    assert seen.count("create") == 4
    assert opening.connect_async.__name__ == "connect_async"


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(urls.NETWORK, "fake", Network("fake", "fakedriver"))

    def no_driver(name: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {name}", name="fakedriver")

    monkeypatch.setattr(opening, "import_module", no_driver)
    with pytest.raises(MissingDependencyError, match=r"with its extra 'fake'"):
        everthread.open("fake://host/db")

    async def main() -> None:
        await everthread.open_async("fake://host/db")

    with pytest.raises(MissingDependencyError, match=r"with its extra 'fake'"):
        asyncio.run(main())


def test_an_async_gate_serves_tasks_of_several_loops_in_turn() -> None:
    gate = AsyncGate(1)
    inside: list[int] = []
    most: list[int] = []

    async def one(number: int) -> None:
        assert await gate.acquire(60)
        inside.append(number)
        most.append(len(inside))
        await asyncio.sleep(0)
        inside.remove(number)
        gate.release()

    async def many(base: int) -> None:
        await asyncio.gather(*(one(base + number) for number in range(50)))

    threads = [threading.Thread(target=lambda base=base: asyncio.run(many(base))) for base in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 150
    assert set(most) == {1}
    assert gate._free == 1


@pytest.mark.parametrize("seed_", range(20))
def test_a_place_is_never_lost_to_a_cancellation(seed_: int) -> None:
    import random

    draw = random.Random(seed_)
    gate = AsyncGate(1)

    async def one() -> None:
        if await gate.acquire(draw.choice((0.0, 0.0001, 60))):
            try:
                await asyncio.sleep(0)
            finally:
                gate.release()

    async def main() -> None:
        tasks = [asyncio.create_task(one()) for _ in range(40)]
        for _ in range(60):
            await asyncio.sleep(0)
            draw.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert gate._free == 1
    assert not gate._waiting
