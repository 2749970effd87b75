"""A pytest plugin for the tests of langgraph-checkpoint-sqlite: our store in place of SqliteStore and
AsyncSqliteStore, our saver in place of SqliteSaver and AsyncSqliteSaver. The async ones use async stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import langgraph.checkpoint.sqlite as savers
import langgraph.checkpoint.sqlite.aio as async_savers
import langgraph.store.sqlite as package
import langgraph.store.sqlite.aio as aio
import langgraph.store.sqlite.base as base

import everthread
from everthread.adapters.langgraph import EverthreadSaver, EverthreadStore


def url_of(path: str) -> str:
    return "memory:" if path == ":memory:" else f"sqlite:///{path}.everthread"


def index_of(index: Any) -> Any:
    """Its configuration of an index has another name for the fields."""
    return index and {**index, "fields": index.get("text_fields") or index.get("fields")}


class Blocking(EverthreadStore):
    """Made as SqliteStore is."""

    @classmethod
    @contextmanager
    def from_conn_string(cls, path: str, *, index: Any = None, ttl: Any = None) -> Iterator[Any]:
        with everthread.open(url_of(path)) as store:
            made = cls(store, index=index_of(index), ttl=ttl)
            yield made
            made.stop_ttl_sweeper()


class Awaited(EverthreadStore):
    """Made as AsyncSqliteStore is."""

    @classmethod
    @asynccontextmanager
    async def from_conn_string(cls, path: str, *, index: Any = None, ttl: Any = None) -> AsyncIterator[Any]:
        async with everthread.open_async(url_of(path)) as store:
            yield cls(store, index=index_of(index), ttl=ttl)

    async def setup(self) -> None:  # type: ignore[override]
        await self.asetup()

    async def sweep_ttl(self) -> int:  # type: ignore[override]
        return await self.asweep()


class BlockingSaver(EverthreadSaver):
    """Made as SqliteSaver is."""

    @classmethod
    @contextmanager
    def from_conn_string(cls, path: str) -> Iterator[Any]:
        with everthread.open(url_of(path)) as store:
            yield cls(store)


class AwaitedSaver(EverthreadSaver):
    """Made as AsyncSqliteSaver is."""

    @classmethod
    @asynccontextmanager
    async def from_conn_string(cls, path: str) -> AsyncIterator[Any]:
        async with everthread.open_async(url_of(path)) as store:
            yield cls(store)


savers.SqliteSaver = BlockingSaver  # type: ignore[assignment,misc]
async_savers.AsyncSqliteSaver = AwaitedSaver  # type: ignore[assignment,misc]
package.SqliteStore = base.SqliteStore = Blocking  # type: ignore[assignment,misc]
package.AsyncSqliteStore = aio.AsyncSqliteStore = Awaited  # type: ignore[assignment,misc,attr-defined]
