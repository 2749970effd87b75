"""Appends that gather while others are under way: who goes with whom, and what becomes of each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from everthread.stores import group_commit
from everthread.stores.contract import DELTA, NewRow
from everthread.stores.group_commit import RequestGroups

ROW = NewRow(1, DELTA, b"", b"", b"x")


class Server:
    """Answers with the line's number when it is let; notes what was sent together."""

    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self._let = asyncio.Semaphore(0)
        self.failure: BaseException | None = None

    def let(self, requests: int = 100) -> None:
        for _ in range(requests):
            self._let.release()

    async def one(self, line: int, row: NewRow) -> Any:
        return (await self.many([(line, row)]))[0]

    async def many(self, rows: Sequence[tuple[int, NewRow]]) -> Sequence[Any]:
        self.sent.append([line for line, _ in rows])
        await self._let.acquire()
        if self.failure is not None:
            raise self.failure
        return [line if line % 10 else ValueError(line) for line, _ in rows]


async def _begin(store: RequestGroups, lines: Sequence[int], row: NewRow = ROW) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.ensure_future(store.append(line, row)) for line in lines]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


def test_who_waits_goes_together_and_gets_an_answer_of_its_own() -> None:
    async def play() -> None:
        server = Server()
        store = RequestGroups(2, server.one, server.many)
        tasks = await _begin(store, range(1, 13))
        assert server.sent == [[1], [2]]
        server.let()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert server.sent == [[1], [2], list(range(3, 13))]
        assert done[:9] == list(range(1, 10))
        assert isinstance(done[9], ValueError)
        assert done[10:] == [11, 12]
        # Nobody is left behind: the next one goes at once.
        assert await store.append(13, ROW) == 13

    asyncio.run(play())


def test_not_too_many_and_not_too_much_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "ROWS_MAX", 3)
    monkeypatch.setattr(group_commit, "BYTES_MAX", 10)

    async def play() -> None:
        server = Server()
        store = RequestGroups(1, server.one, server.many)
        large = NewRow(1, DELTA, b"", b"", b"x" * 8)
        tasks = await _begin(store, range(1, 8)) + await _begin(store, range(11, 14), large)
        server.let()
        await asyncio.gather(*tasks)
        assert server.sent == [[1], [2, 3, 4], [5, 6, 7], [11], [12], [13]]

    asyncio.run(play())


def test_one_that_takes_long_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "SLOW_S", 0.001)

    async def play() -> None:
        server = Server()
        store = RequestGroups(1, server.one, server.many)
        tasks = await _begin(store, range(1, 5))
        assert server.sent == [[1]]
        while len(server.sent) < 2:  # noqa: ASYNC110 - time has to pass
            await asyncio.sleep(0.001)
        assert server.sent == [[1], [2, 3, 4]]
        server.let()
        assert await asyncio.gather(*tasks) == [1, 2, 3, 4]

    asyncio.run(play())


def test_cancelled_before_it_was_sent_and_after() -> None:
    async def play() -> None:
        server = Server()
        store = RequestGroups(1, server.one, server.many)
        tasks = await _begin(store, range(1, 6))
        tasks[2].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[2]
        server.let(1)
        await tasks[0]
        await asyncio.sleep(0)
        assert server.sent == [[1], [2, 4, 5]]
        # This one was sent: whoever cancels it, again and again, waits for its end.
        for _ in range(3):
            tasks[3].cancel()
            await asyncio.sleep(0)
            assert not tasks[3].done()
        server.let()
        with pytest.raises(asyncio.CancelledError):
            await tasks[3]
        assert await asyncio.gather(tasks[1], tasks[4]) == [2, 5]

    asyncio.run(play())


@pytest.mark.parametrize("failure", [OSError("gone"), asyncio.CancelledError()])
def test_what_fails_for_all_is_told_to_all(failure: BaseException) -> None:
    async def play() -> None:
        server = Server()
        server.failure = failure
        store = RequestGroups(1, server.one, server.many)
        tasks = await _begin(store, range(1, 5))
        server.let()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in done] == [type(failure)] * 4
        server.failure = None
        assert await store.append(7, ROW) == 7

    asyncio.run(play())


def test_each_event_loop_by_itself() -> None:
    answers: list[Any] = []

    async def play(store: RequestGroups) -> None:
        answers.append(await asyncio.gather(*(store.append(line, ROW) for line in (1, 2, 3))))

    async def one(line: int, row: NewRow) -> int:
        return line

    async def many(rows: Sequence[tuple[int, NewRow]]) -> list[int]:
        return [line for line, _ in rows]

    store = RequestGroups(1, one, many)
    asyncio.run(play(store))
    asyncio.run(play(store))
    assert answers == [[1, 2, 3], [1, 2, 3]]
