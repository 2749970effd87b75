"""merge() takes the name of a thread as well as the thread."""

from __future__ import annotations

import asyncio

import pytest

import everthread


def test_a_thread_is_merged_by_its_name() -> None:
    with everthread.open("memory:") as store:
        thread = store.thread("a")
        thread.state["n"] = 1
        thread.commit()
        other = thread.fork("b")
        other.state["m"] = 2
        other.commit()
        assert thread.merge("b")
        assert thread.state.plain() == {"n": 1, "m": 2}
        with pytest.raises(everthread.ThreadNotFoundError, match="'c'"):
            thread.merge("c")
        with store.session("a") as session:
            other.state["k"] = 3
            other.commit()
            assert session.thread.merge("b")
            assert session.state["k"] == 3


def test_an_async_thread_is_merged_by_its_name() -> None:
    async def main() -> None:
        async with everthread.open_async("memory:") as store:
            thread = await store.thread("a")
            await thread.commit(label="first")
            other = await thread.fork("b")
            other.state["m"] = 2
            await other.commit()
            assert await thread.merge("b")
            assert thread.state["m"] == 2

    asyncio.run(main())
