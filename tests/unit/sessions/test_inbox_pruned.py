"""Messages that are sent again under their key after gc() has deleted the versions that brought them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import everthread

COUNT = 5


def message(number: int) -> dict[str, str]:
    return {"role": "user", "content": str(number)}


@pytest.mark.parametrize("taken", [False, True])
def test_a_message_sent_again_after_gc_is_the_same_message(tmp_path: Path, taken: bool) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/a.db") as store:
        with store.session("bot"):
            pass
        sent = [store.send("bot", message(number), key=f"k{number}") for number in range(COUNT)]
        if taken:
            with store.session("bot") as session:
                assert [session.next_input(timeout_s=0)["id"] for _ in range(COUNT)] == sent
        store.gc(everthread.Retention(keep_last=1))
        again = [store.send("bot", message(number), key=f"k{number}") for number in range(COUNT)]
        assert again == sent
        with pytest.raises(everthread.InvalidValueError, match="another message"):
            store.send("bot", message(7), key="k0")
        with store.session("bot") as session:
            waiting = [] if taken else sent
            assert [session.next_input(timeout_s=0)["id"] for _ in waiting] == waiting
            assert session.next_input(timeout_s=0) is None


def test_an_async_message_sent_again_after_gc_is_the_same_message() -> None:
    async def main() -> None:
        async with everthread.open_async("memory:") as store:
            async with store.session("bot"):
                pass
            sent = [await store.send("bot", message(number), key=f"k{number}") for number in range(COUNT)]
            await store.gc(everthread.Retention(keep_last=1))
            again = [await store.send("bot", message(number), key=f"k{number}") for number in range(COUNT)]
            assert again == sent

    asyncio.run(main())
