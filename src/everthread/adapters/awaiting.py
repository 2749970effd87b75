"""A store of either colour for frameworks that await: a blocking one is used on threads of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from everthread.errors import StoreClosedError, UsageError
from everthread.store import Store
from everthread.store import open as open_store
from everthread.store_async import AsyncStore
from everthread.stores.offloaded import Offloaded
from everthread.threads.aio.store import AsyncThreadStore
from everthread.threads.sync.store import ThreadStore

T = TypeVar("T")

#: What a caller may hand over as a store: one of either colour, a URL, or nothing for the default place.
AnyStore = Store | AsyncStore | str | None

_AWAITED: WeakKeyDictionary[ThreadStore, AsyncStore] = WeakKeyDictionary()


class StoreInUse:
    """The store that an adapter works on; closed with it only if the adapter has opened it itself."""

    def __init__(self, store: AnyStore) -> None:
        self._own: Store | None = None
        if store is None or isinstance(store, str):
            store = self._own = open_store(store)
        #: What was handed over, or opened.
        self.given: Store | AsyncStore = store
        self._store = awaited(store)
        self._closed = False

    @property
    def store(self) -> AsyncThreadStore:
        """The store, to be awaited. Raises :class:`StoreClosedError` after a close."""
        if self._closed or self.given._closed:
            raise StoreClosedError("this store is closed; open it again")
        return self._store

    def close(self) -> None:
        """Use it no more. May be called twice."""
        self._closed = True
        if self._own is not None:
            self._own.close()


def awaited(store: Any) -> AsyncThreadStore:
    """The store as async code uses it. A blocking store keeps its files and keys, and is closed by itself."""
    if isinstance(store, AsyncThreadStore):
        return store
    if not isinstance(store, ThreadStore):
        raise UsageError(
            f"a store is what everthread.open() or open_async() gives, or a URL, not {type(store).__name__}; "
            "async stores are awaited, or entered with async with, before they are handed over"
        )
    if (made := _AWAITED.get(store)) is None:
        core = store.core
        threads = Offloaded(core.backend)
        made = AsyncStore(threads, namespace=core.space, limits=core.limits, runtime=core.runtime)
        store._at_close.append(threads.stop)
        # One vault for both: keys that one of them has dropped are gone for the other as well.
        made.core.vault = core.vault
        _AWAITED[store] = made
    return made


async def surely(work: Coroutine[Any, Any, T]) -> T:
    """Wait until a write has come to its end, also if the caller is cancelled meanwhile: then it is known
    whether it happened before anybody goes on."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        if not task.cancelled():
            # Looked at, so that nobody is told of an error that the cancellation outranks.
            task.exception()
        raise cancelled
    return task.result()
