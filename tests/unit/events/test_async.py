"""Streams of an async store, natively; that they keep all rules of streams is in the other modules."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import everthread as e
from everthread.errors import InvalidValueError
from tests.unit.threads.tripwire import run


def test_verbs_are_awaited_and_events_are_streamed(tmp_path: Path) -> None:
    async def main() -> None:
        async with e.open_async(f"sqlite:///{tmp_path}/store.db", durability="process") as store:
            stream = store.events("tasks")
            assert isinstance(stream, e.AsyncEventStream)
            assert (await stream.last(), await stream.count()) == (None, 0)
            first = await stream.append("made", {"n": 1}, agent="a")
            await stream.extend([("made", {"n": number}) for number in range(2, 251)])
            assert [event.data["n"] async for event in stream] == list(range(1, 251))
            assert [event.seq async for event in stream.replay(agent="a")] == [1] == [first.seq]
            assert [event.seq async for event in stream.replay(after=first, limit=2)] == [2, 3]
            last = await stream.last()
            assert last is not None
            assert (last.seq, await stream.count()) == (250, 250)
            async for event in stream:
                # Left in the middle: nothing stays behind.
                assert event == first
                break
            assert (await store.verify()).ok

    run(main())


def test_projectors_of_both_colours() -> None:
    async def main() -> None:
        async with e.open_async("memory:") as store:
            stream = store.events("s")
            await stream.extend([("a", number) for number in range(5)])

            def plain(state: dict[str, int], event: e.Event) -> dict[str, int]:
                return {"sum": state.get("sum", 0) + event.data}

            async def awaited(state: dict[str, int], event: e.Event) -> dict[str, int]:
                await asyncio.sleep(0)
                return plain(state, event)

            async def forgetful(state: Any, event: e.Event) -> None:
                await asyncio.sleep(0)

            assert await stream.project(plain) == await stream.project(awaited) == {"sum": 10}
            projection = await stream.projection("p", awaited)
            await stream.append("a", 10)
            assert projection.state == {"sum": 10}
            assert await projection.refresh() == projection.state == {"sum": 20}
            with pytest.raises(InvalidValueError, match="None"):
                await stream.project(forgetful)

    run(main())


def test_many_tasks_append_to_one_stream_and_one_follows(tmp_path: Path) -> None:
    async def main() -> None:
        async with e.open_async(f"sqlite:///{tmp_path}/store.db", durability="process") as store:
            stream = store.events("s")

            async def write(number: int) -> None:
                for turn in range(10):
                    await stream.append("turn", turn, agent=f"{number}")

            async def follow() -> list[e.Event]:
                consumer, seen = stream.consumer("c"), []
                while len(seen) < 160:
                    for event in await consumer.poll(7):
                        seen.append(event)
                        await consumer.commit(event)
                return seen

            seen, *_ = await asyncio.gather(follow(), *(write(number) for number in range(16)))
            assert [event.seq for event in seen] == list(range(1, 161))
            for number in range(16):
                assert [event.data for event in seen if event.agent == f"{number}"] == list(range(10))

    run(main())
