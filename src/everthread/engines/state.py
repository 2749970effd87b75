"""What queries and updates of a workflow see of an agent."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from everthread.arguments import check_mapping
from everthread.engines.exchange import RUNNING
from everthread.engines.pointers import ThreadRef
from everthread.sessions.records import TERMINAL
from everthread.sessions.tasks import custom_part, slice_of
from everthread.sessions.usage import Usage


class AgentState:
    """A run as queries and updates see it. Make it where the handlers are, and hand it to :func:`run_agent`.

    ``version`` grows with every change. Tasks and custom fields (:meth:`slice`, :meth:`merge_update`) are
    loaded when the run begins and saved after each turn and at the end; nothing else of it ever is.
    """

    def __init__(self, agent: str = "", metadata: Mapping[str, Any] | None = None) -> None:
        self.agent = agent
        self.metadata: dict[str, Any] = dict(metadata or {})
        self.status: str = RUNNING
        self.version = 0
        self.ref: ThreadRef | None = None
        self.turns = 0
        #: The turns of subagents, and of theirs, which ``max_turns`` doesn't count.
        self.subagent_turns = 0
        self.usage = Usage()
        #: The definitions that the model was given in this turn.
        self.tools: list[dict[str, Any]] = []
        self.sandbox_id: str | None = None
        self.files: Any = None
        self._fields: dict[str, Any] = {}
        self._event = asyncio.Event()

    def slice(self) -> dict[str, Any]:
        """Tasks, as pairs of id and fields, and custom fields: plain data, a copy."""
        return copy.deepcopy(slice_of(self._fields))

    def merge_update(self, update: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Assign custom fields one by one; ``tasks``, if given, replaces all tasks. One version. What is
        bookkeeping (status, turns, usage, …) is left out."""
        if update is not None:
            check_mapping(update, "update")
        self._fields.update(copy.deepcopy(custom_part({**(update or {}), **more})))
        self.changed()

    def changed(self) -> None:
        self.version += 1
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait_for_change(self, last_version: int, timeout_s: float | None = None) -> int:
        """Wait until ``version`` is another than ``last_version``, or the time is over, and return the
        version then. Return at once if the run has ended: nothing more changes."""
        if self.version == last_version and self.status not in TERMINAL:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._event.wait(), timeout_s)
        return self.version

    def __repr__(self) -> str:
        return f"<agent {self.agent!r}: {self.status}, {self.turns} turns>"
