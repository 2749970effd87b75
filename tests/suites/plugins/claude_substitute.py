"""A pytest plugin for the tests of the Claude Agent SDK: our store in place of InMemorySessionStore, on
asyncio. What its tests ask of that class beyond the protocol is read from the threads."""

from __future__ import annotations

from typing import Any

import claude_agent_sdk
import claude_agent_sdk._internal.session_store as inside

import everthread
from everthread.adapters.claude import EverthreadSessionStore


class Substitute(EverthreadSessionStore):
    """Made without arguments."""

    def __init__(self) -> None:
        self._opened = everthread.open("memory:")
        super().__init__(self._opened)

    def get_entries(self, key: Any) -> list[Any]:
        log = "messages" if key.get("subpath") is None else f"sub/{key['subpath']}"
        return [item["message"] for item in self._opened.thread(self.thread_name(key)).log(log)]

    @property
    def size(self) -> int:
        return sum(1 for _ in self._opened.threads(prefix="claude/"))

    def clear(self) -> None:
        for info in list(self._opened.threads(prefix="claude/")):
            self._opened.thread(info.name).delete()


claude_agent_sdk.InMemorySessionStore = inside.InMemorySessionStore = Substitute  # type: ignore[assignment,misc]
