"""Connections to a server that break at any moment: nothing twice, nothing lost, no answer of another's.

What `test_postgres_cuts.py` and `test_valkey_cuts.py` run on their servers, each through its own proxy.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

import pytest

import everthread
from everthread import ConflictError, Store
from everthread.stores.contract import NewEvent, StaleCell
from tests.servers.proxy import CUTS, Cut, proxied

#: So many connections are cut in each colour.
CUTS_EACH = int(os.environ.get("EVERTHREAD_CUTS", "75"))
#: Not the store's own.
SPACE = "contract"
#: The URL of the store through a proxy, given the proxy's port.
Through = Callable[[int], str]

_UNSURE = (everthread.StorageWriteError, everthread.StoreUnavailableError, everthread.StoreBusyError)


class Cutter:
    """Cuts every so many requests, each time in another way, until there were enough cuts.

    `often` is the share of requests that are cut; one that holds `spared` never is.
    """

    def __init__(self, seed: int, often: float, spared: bytes | None = None) -> None:
        self._random = random.Random(seed)
        self._often = often
        self._spared = spared
        self.left = CUTS_EACH
        self.on = False

    def __call__(self, number: int, data: bytes) -> Cut | None:
        if not self.on or not self.left or (self._spared is not None and self._spared in data[:200]):
            return None
        if self._random.random() > self._often:
            return None
        self.left -= 1
        # Half-open ones cost their time.
        return self._random.choice([*CUTS[:4], *CUTS[:4], "silent"])


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


def write_while_cut(url: str, through: Through, cutter: Cutter) -> None:
    """Every write is there exactly once."""
    with (
        proxied(port_of(url), cutter) as proxy,
        everthread.open(through(proxy.port), durability="process") as store,
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
    with everthread.open(url, durability="process") as store:
        thread = store.thread("a")
        assert [item["content"] for item in thread.messages] == list(range(1, sent + 1))
        assert thread.state["n"] == sent
        assert thread.head is not None
        assert thread.head.seq == sent + 1, "one version for each"
        stored = store.core.backend.events(SPACE, "s", 0, 10 * sent)
        assert [event.body for event in stored] == events
        assert len(list(store.threads(prefix="fork "))) == sent // 20
        assert store.verify()


def _emit(store: Store, body: bytes) -> None:
    """An event that may be there after an error is looked for before it is emitted again."""
    backend = store.core.backend
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
    backend = store.core.backend
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


def cancel_while_cut(url: str, through: Through, cutter: Cutter, seed: int) -> None:
    """Many tasks on few connections, cut and cancelled: each reads its own thread, and none another's."""
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

    async def main(through_proxy: str) -> list[int]:
        async with everthread.open_async(through_proxy, durability="process") as store:
            await (await store.thread("first")).commit(label="x")
            cutter.on = True
            workers = [asyncio.create_task(work(store, number)) for number in range(6)]
            others = [asyncio.create_task(interrupted(store, number)) for number in range(3)]
            done = await asyncio.gather(*workers)
            await asyncio.gather(*others)
            cutter.on = False
            return done

    with proxied(port_of(url), cutter) as proxy:
        done = asyncio.run(main(through(proxy.port)))
        assert sum(proxy.made.values()) == CUTS_EACH
    with everthread.open(url, durability="process") as store:
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
