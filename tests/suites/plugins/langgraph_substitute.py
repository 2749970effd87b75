"""A pytest plugin for LangGraph's tests: our saver and store in place of those in memory and on SQLite.

The tests named ``sqlite_aio`` run on the native async code: their saver is on an async store.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from typing import Any

import langgraph.checkpoint.memory as checkpoints
import langgraph.store.memory as stores
import langgraph_sqlite_substitute  # noqa: F401  Replaces the savers and stores on SQLite.

import everthread
from everthread.adapters.langgraph import EverthreadSaver, EverthreadStore


class Saver(EverthreadSaver, AbstractContextManager, AbstractAsyncContextManager):  # type: ignore[type-arg]
    """Takes what InMemorySaver takes, under default settings."""

    def __init__(self, *, serde: Any = None, factory: Any = None) -> None:
        self.stack = ExitStack()
        super().__init__(self.stack.enter_context(everthread.open("memory:")), serde=serde)

    # As in InMemorySaver, async methods call the blocking ones: tests override these.

    async def aget_tuple(self, config: Any) -> Any:
        return self.get_tuple(config)

    async def aput(self, *args: Any, **options: Any) -> Any:
        return self.put(*args, **options)

    async def aput_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        self.put_writes(config, writes, task_id, task_path)

    async def aget_delta_channel_history(self, **options: Any) -> Any:
        return self.get_delta_channel_history(**options)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *error: Any) -> None:
        return None


class Items(EverthreadStore):
    """Takes what InMemoryStore takes."""

    def __init__(self, *, index: Any = None, ttl: Any = None) -> None:
        super().__init__(everthread.open("memory:"), index=index, ttl=ttl)


checkpoints.InMemorySaver = checkpoints.MemorySaver = Saver  # type: ignore[assignment,misc]
stores.InMemoryStore = Items  # type: ignore[assignment,misc]
