"""The store that the steps of this process work on, in either colour."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from typing import Any

from everthread.errors import UsageError
from everthread.store import Store
from everthread.store import open as open_blocking
from everthread.store_async import AsyncStore, open_async

#: What :func:`use` takes: where a store is, what ``open()`` is called with, or an open one.
AnyStore = str | os.PathLike[str] | Mapping[str, Any] | Store | AsyncStore | None


class StoreSource:
    """A store, opened when a step first needs it in a colour. Steps run in several threads and loops."""

    def __init__(self, given: AnyStore) -> None:
        if not isinstance(given, str | os.PathLike | Mapping | Store | AsyncStore | None):
            raise UsageError(f"use() takes a URL, options or an open store, not {type(given).__name__}")
        self._given = given
        self._options = dict(given) if isinstance(given, Mapping) else {"url": given}
        self._lock = threading.Lock()
        self._store = given if isinstance(given, AsyncStore) else None
        self._blocking = given if isinstance(given, Store) else None

    async def store(self) -> AsyncStore:
        if self._store is None:
            self._require_shareable("an async step", "blocking")
            opened = await open_async(**self._options)
            with self._lock:
                made = self._store = self._store or opened
            if made is not opened:
                # Another loop came first.
                await opened.close()
        return self._store

    def blocking_store(self) -> Store:
        with self._lock:
            if self._blocking is None:
                self._require_shareable("a blocking step", "async")
                self._blocking = open_blocking(**self._options)
            return self._blocking

    def _require_shareable(self, what: str, colour: str) -> None:
        if isinstance(self._given, Store | AsyncStore):
            raise UsageError(f"{what} can't use the {colour} store that use() was given: give it a URL")
        if str(self._options.get("url")).startswith("memory:"):
            raise UsageError(
                "what is in memory doesn't outlive a process: give use() the URL of another store"
            )

    def close(self) -> None:
        """Close what was opened here."""
        with self._lock:
            store, self._store = self._store, None
            blocking, self._blocking = self._blocking, None
        if blocking is not None and blocking is not self._given:
            blocking.close()
        if store is not None and store is not self._given:
            # In a loop of its own: the caller may or may not have one.
            closing = threading.Thread(target=lambda: asyncio.run(store.close()))
            closing.start()
            closing.join()


_source: StoreSource | None = None


def use(store: AnyStore = None) -> None:
    """Say, before ``DBOS.launch()``, which store the steps of this process work on: a URL, a dictionary with
    the options of ``open()``, or an open store, which then serves steps of its own colour only. A URL is
    opened when it is first needed; :func:`close` closes it."""
    global _source
    found, _source = _source, StoreSource(store)
    if found is not None:
        found.close()


def close() -> None:
    """Close what was opened, after ``DBOS.destroy()``. May be called twice."""
    global _source
    found, _source = _source, None
    if found is not None:
        found.close()


def source() -> StoreSource:
    if _source is None:
        raise UsageError("call everthread.engines.dbos.use(store) before DBOS.launch()")
    return _source


async def store() -> AsyncStore:
    """The store, in an async step."""
    return await source().store()


def blocking_store() -> Store:
    """The store, in a blocking step."""
    return source().blocking_store()
