"""The stores of working states: opened when they are needed, shared in a process; states found by id."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from everthread.errors import InvalidValueError, StateNotFoundError
from everthread.records.opening import open_backend
from everthread.stores.colours import ASYNC, aside_async
from everthread.working.config import Config
from everthread.working.home import (
    ID_TAG,
    IN_MEMORY,
    KIND_TAG,
    PREFIX,
    SESSION_TAG,
    WORKING_STATE,
    Place,
    checked_id,
    id_of,
    place_of,
)

if TYPE_CHECKING:
    from everthread.stores.contract_async import AsyncBackend
    from everthread.threads.aio.store import AsyncThreadStore
    from everthread.threads.aio.thread import AsyncThread


async def find_state(store: AsyncThreadStore, id: Any) -> str:
    """The name of the thread that holds the state with this id, else :class:`StateNotFoundError`."""
    wanted = checked_id(id)
    if (await store.thread(PREFIX + wanted)).head is not None:
        return PREFIX + wanted
    async for info in store.threads(metadata={ID_TAG: wanted}):
        # A fork made on the thread itself carries its source's mark until it is saved as a state.
        if id_of(info.name) == wanted:
            return info.name
    raise StateNotFoundError(f"no state with the id {wanted} has been saved in {store.url}")


async def latest_state(store: AsyncThreadStore, session_id: str | None) -> str:
    """The name of the thread of the state saved most recently, by the clocks of those who saved.

    Reads the newest version's head of every state, no documents. Raises :class:`StateNotFoundError`.
    """
    wanted = {KIND_TAG: WORKING_STATE}
    if session_id is not None:
        wanted[SESSION_TAG] = session_id
    found = [info async for info in store.threads(metadata=wanted)]
    if not found:
        of = "" if session_id is None else f" of the session {session_id!r}"
        raise StateNotFoundError(f"no state{of} has been saved in {store.url} yet; save() one first")
    return max(found, key=lambda info: info.updated_at_us).name


# ── stores that are open in this process ─────────────────────────────────────────────────────


class _Open:
    """A store that states of this process share; closed when the last one gave it back."""

    __slots__ = ("count", "dead", "store", "url")

    def __init__(self, url: str, store: AsyncThreadStore) -> None:
        self.url = url
        self.store = store
        self.count = 0
        self.dead = False


_open: dict[str, _Open] = {}
# May be taken again by the thread that holds it: a state that is collected as garbage gives its store back.
_lock = threading.RLock()


def _forget_after_fork() -> None:
    # A store can't be used across fork(2): the child opens its own. What is in memory goes along.
    for url in [url for url in _open if not url.startswith("memory:")]:
        del _open[url]
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it, and isn't here
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_after_fork)


async def borrow(url: str) -> _Open:
    """The open store of this URL, opened if it isn't; :func:`give_back` it."""
    while True:
        with _lock:
            entry = _open.get(url)
            if entry is not None:
                entry.count += 1
                # Its last user may have been collected between the two lines above.
                if not entry.dead:
                    return entry
                continue
        made = await open_threads(url)
        with _lock:
            if url not in _open:
                entry = _open[url] = _Open(url, made)
                entry.count = 1
                return entry
        # Somebody else has opened it meanwhile. What is in memory may be shared by both.
        if not url.startswith("memory:"):
            await made.close()


def _leave(entry: _Open) -> bool:
    """Use it no longer; whether nobody does any more."""
    with _lock:
        entry.count -= 1
        # What is in memory would be gone; it stays as long as the process.
        if entry.count or entry.dead or entry.url.startswith("memory:"):
            return False
        entry.dead = True
        if _open.get(entry.url) is entry:
            del _open[entry.url]
    return True


async def give_back(entry: _Open) -> None:
    if _leave(entry):
        await entry.store.close()


if ASYNC:

    def _drop(entry: _Open) -> None:
        # Nobody is there who could await its closing: it ends when it is collected itself.
        _leave(entry)

else:
    _drop = give_back


async def open_threads(url: str) -> AsyncThreadStore:
    """Open the store of this URL, creating it if it isn't there."""
    from everthread.threads.aio.store import AsyncThreadStore

    if ASYNC:
        return AsyncThreadStore(await _open_driver(url))
    else:
        return AsyncThreadStore(open_backend("memory:" if url.startswith(IN_MEMORY) else url, "full"))


if ASYNC:

    async def _open_driver(url: str) -> AsyncBackend:
        from everthread.records.opening import connect_async
        from everthread.stores.offloaded import Offloaded
        from everthread.stores.urls import over_network

        if over_network(url):
            return await connect_async(url, "full")
        if url.startswith("memory:"):
            # The one that blocking states of this process have, which is never closed.
            from everthread.working.sync import home

            return Offloaded(home.borrow(url).store.core.backend)
        opened: list[Any] = []
        try:
            await aside_async(lambda: opened.append(open_backend(url, "full")))
        except BaseException:
            # Cancelled while it was opened: then it is open now, and nobody will ever close it.
            for backend in opened:
                await aside_async(backend.close)
            raise
        return Offloaded(opened[0])


class AsyncHome:
    """The store of one state: somebody else's, or one that is shared and given back in the end.

    The end is :meth:`close`, or else when neither the state nor a handle of its is in use any more.
    """

    def __init__(self, store: Any, config: Config) -> None:
        self._config = config
        self._entry: _Open | None = None
        self._return: weakref.finalize[[_Open], AsyncHome] | None = None
        self._store: AsyncThreadStore | None = None
        self._place: Place | None = None
        if isinstance(store, str):
            self._place = Place(store)
        elif store is not None:
            from everthread.threads.aio.store import AsyncThreadStore

            if not isinstance(store, AsyncThreadStore):
                opener = "everthread.open_async()" if ASYNC else "everthread.open()"
                raise InvalidValueError(
                    f"store is what {opener} gives, or a URL, not {type(store).__name__}", path="store"
                )
            self._store = store

    async def open(self) -> AsyncThreadStore:
        """The store; opened at the first call."""
        if self._store is None:
            if self._place is None:
                self._place = await aside_async(place_of, self._config)
            entry = await borrow(self._place.url)
            if ASYNC and self._store is not None:
                # Another task has opened it meanwhile.
                await give_back(entry)
            if self._store is None:
                self._entry, self._store = entry, entry.store
                self._return = weakref.finalize(self, _drop, entry)
        assert self._store is not None
        return self._store

    async def thread(self, name: str) -> AsyncThread:
        """A handle; as long as it is in use, the store stays open."""
        thread = await (await self.open()).thread(name)
        self.hold(thread)
        return thread

    def hold(self, thread: AsyncThread) -> None:
        weakref.finalize(thread, _let_go, self)

    @property
    def views(self) -> str | None:
        """The folder for readable views, if there are any. Known once the store is open."""
        return self._place.views if self._place is not None else None

    def another(self) -> AsyncHome:
        """The same place for another state."""
        home = AsyncHome(self._store if self._entry is None else None, self._config)
        home._place = self._place
        return home

    async def close(self) -> None:
        self._store = None
        # Given back once, however often this is called.
        if self._return is not None and self._return.detach() is not None:
            assert self._entry is not None
            await give_back(self._entry)


def _let_go(home: AsyncHome) -> None:
    """Does nothing: that it is to be called is what keeps the home alive."""
