"""Connections to PostgreSQL that break at any moment: nothing twice, nothing lost, no answer of another's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

import pytest

import everthread
from everthread import ConflictError, Store
from everthread.stores.contract import NewEvent, StaleCell
from everthread.stores.postgres.aio import connections as connections_async
from everthread.stores.postgres.sync import connections
from tests.servers.proxy import CUTS, Cut, proxied

#: So many connections are cut in each colour.
CUTS_EACH = 75
#: Not the store's own.
SPACE = "contract"
#: Short: a half-open connection is given up a while after this.
TIMEOUT_MS = 100


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_GRACE_S", 0.3)
    monkeypatch.setattr(connections_async, "_GRACE_S", 0.3)


def _through(url: str, port: int) -> str:
    rest = urlsplit(url).path
    return (
        f"postgresql://postgres@127.0.0.1:{port}{rest}?statement_timeout_ms={TIMEOUT_MS}&pool_max=4"
        # Through this proxy an encrypted start would be two more requests.
        "&sslmode=disable&gssencmode=disable"
    )


_UNSURE = (everthread.StorageWriteError, everthread.StoreUnavailableError, everthread.StoreBusyError)


class _Cutter:
    """Cuts every so many requests, each time in another way, until there were enough cuts."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.left = CUTS_EACH
        self.on = False

    def __call__(self, number: int, data: bytes) -> Cut | None:
        if not self.on or not self.left or self._random.random() > 0.25:
            return None
        self.left -= 1
        # Half-open ones cost their time.
        return self._random.choice([*CUTS[:4], *CUTS[:4], "silent"])


def test_cut_connections_leave_every_write_exactly_once(postgres_url: str, seed: int) -> None:
    cutter = _Cutter(seed)
    port = urlsplit(postgres_url).port
    assert port is not None
    with (
        proxied(port, cutter) as proxy,
        everthread.open(_through(postgres_url, proxy.port), durability="process") as store,
    ):
        thread = store.thread("a")
        thread.commit(label="first")
        cutter.on = True
        sent, conflicts = 0, 0
        events: list[bytes] = []
        while cutter.left:
            sent += 1
            # Whether the id is new is asked of the store.
            _insist(partial(thread.messages.append, {"id": f"m{sent}", "content": sent}))
            thread.state.increment("n")
            conflicts += _insist(thread.commit)
            events.append(b"%d" % sent)
            _emit(store, events[-1])
            if sent % 7 == 0:
                _beat(store, sent)
            if sent % 20 == 0:
                _insist(partial(thread.fork, f"fork {sent}"))
        cutter.on = False
        assert not conflicts, "nobody else wrote: a lost answer was taken for a foreign commit"
        assert sum(proxy.made.values()) == CUTS_EACH
        assert set(proxy.made) == set(CUTS)
    with everthread.open(postgres_url, durability="process") as store:
        thread = store.thread("a")
        assert [item["content"] for item in thread.messages] == list(range(1, sent + 1))
        assert thread.state["n"] == sent
        assert thread.head is not None
        assert thread.head.seq == sent + 1, "one version for each"
        stored = store._core.backend.events(SPACE, "s", 0, 10 * sent)
        assert [event.body for event in stored] == events
        assert len(list(store.threads(prefix="fork "))) == sent // 20
        assert store.verify()


def _emit(store: Store, body: bytes) -> None:
    """An event that may be there after an error is looked for before it is emitted again."""
    backend = store._core.backend
    while True:
        try:
            newest = backend.streams(SPACE, "s", None, 1)
            if not newest or backend.events(SPACE, "s", newest[0][1] - 1, 1)[0].body != body:
                backend.emit(SPACE, "s", [NewEvent(0, "t", None, body)])
            return
        except _UNSURE:
            continue


def _insist(verb: Callable[[], object]) -> int:
    """Do something until it is done, as its errors say; how many conflicts there were."""
    conflicts = 0
    while True:
        try:
            verb()
            return conflicts
        except ConflictError:
            conflicts += 1
            return conflicts
        except everthread.ThreadExistsError:
            # The fork of an earlier try.
            return conflicts
        except _UNSURE:
            continue


def _beat(store: Store, number: int) -> None:
    backend = store._core.backend
    while True:
        try:
            cell = backend.cell(SPACE, "beat", 0)
            if cell is not None and cell.value == b"%d" % number:
                return
            backend.swap(SPACE, "beat", cell.revision if cell else 0, b"%d" % number, 0)
            return
        except StaleCell as stale:
            pytest.fail(f"nobody else writes this cell, but it holds {stale.actual}")
        except _UNSURE:
            continue


def test_the_same_for_tasks_that_are_cancelled_too(postgres_url: str, seed: int) -> None:
    """Many tasks on few connections, cut and cancelled: each reads its own thread, and none another's."""
    cutter = _Cutter(seed)
    port = urlsplit(postgres_url).port
    assert port is not None
    draw = random.Random(seed)

    async def work(store: everthread.AsyncStore, number: int) -> int:
        done = 0
        name = f"t{number}"
        while cutter.left:
            try:
                thread = await store.thread(name)
                assert thread.state.plain().get("who", number) == number, "the answer of another task"
                thread.state["who"] = number
                thread.state.increment("n")
                await thread.commit(key=f"k{done}")
                done += 1
            except _UNSURE:
                continue
        return done

    async def interrupted(store: everthread.AsyncStore, number: int) -> None:
        """Cancelled again and again, at whatever it waits for."""
        while cutter.left:
            task = asyncio.create_task(work(store, 100 + number))
            await asyncio.sleep(draw.uniform(0, 0.01))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def main(url: str) -> list[int]:
        async with everthread.open_async(url, durability="process") as store:
            await (await store.thread("first")).commit(label="x")
            cutter.on = True
            workers = [asyncio.create_task(work(store, number)) for number in range(6)]
            others = [asyncio.create_task(interrupted(store, number)) for number in range(3)]
            done = await asyncio.gather(*workers)
            await asyncio.gather(*others)
            cutter.on = False
            return done

    with proxied(port, cutter) as proxy:
        done = asyncio.run(main(_through(postgres_url, proxy.port)))
        assert sum(proxy.made.values()) == CUTS_EACH
    with everthread.open(postgres_url, durability="process") as store:
        for number, times in enumerate(done):
            thread = store.thread(f"t{number}")
            if thread.head is None:
                # So unlucky that nothing of it landed before there were enough cuts.
                assert times == 0
                continue
            # A commit that landed without being told is found by its key and counts once.
            assert thread.state["n"] == thread.head.seq
            assert thread.state["n"] - times in (0, 1), (thread.state["n"], times)
            assert thread.state["who"] == number
        assert store.verify()
