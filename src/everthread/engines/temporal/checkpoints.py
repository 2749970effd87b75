"""``ForwardingSaver``: checkpoints of LangGraph inside workflows, forwarded to ``EverthreadSaver``.

Temporal's plugin for LangGraph wants a saver that does no I/O. This one is that, and has an activity store
each checkpoint too: readable by everybody, also when no worker runs, and there for the workflow that goes on.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import UUID

from temporalio import workflow

from everthread.adapters.langgraph.names import PREFIX
from everthread.arguments import framework
from everthread.engines.temporal.log_activities import (
    Forwarded,
    Stored,
    get_checkpoint_activity,
    put_checkpoint_activity,
    put_writes_activity,
)
from everthread.engines.temporal.verbs import call

with framework("langgraph"):
    from langgraph.checkpoint.base import CheckpointTuple
    from langgraph.checkpoint.memory import InMemorySaver

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata

__all__ = ["ForwardingSaver"]

#: From the beginning of the Gregorian calendar to 1970, in steps of 100 ns: ids of checkpoints count so.
_TICKS_TO_1970 = 0x01B21DD213814000


class ForwardingSaver(InMemorySaver):
    """The checkpointer of a graph in a workflow: ``graph("g").compile(checkpointer=ForwardingSaver())``.

    What it is given is in memory for this run, and in the store as ``EverthreadSaver(store)`` keeps it. Where
    memory has no checkpoint of a thread, the latest one is asked for once: a conversation goes on in the next
    workflow. LangGraph draws the ids of checkpoints anew in each replay, so that those in the store have ids
    of their own, which a replay gives again. ``options`` are those of ``workflow.execute_activity()``.
    """

    def __init__(self, *, prefix: str = PREFIX, subject: str | None = None, **options: Any) -> None:
        super().__init__()
        self._prefix = prefix
        self._subject = subject
        self._options = options
        self._asked: set[tuple[str, str]] = set()
        #: LangGraph's id of a checkpoint → its id in the store.
        self._ids: dict[str, str] = {}
        self._last = 0

    def _place(self, config: RunnableConfig, kind: str = "") -> Forwarded:
        named = config["configurable"]
        known = named.get("checkpoint_id")
        return Forwarded(
            thread_id=str(named["thread_id"]),
            checkpoint_ns=named.get("checkpoint_ns") or "",
            parent_id=None if known is None else self._ids.get(known, known),
            kind=kind,
            prefix=self._prefix,
            subject=self._subject,
        )

    def _stable_id(self, drawn: str) -> str:
        """An id in the order of time, as LangGraph's are, that depends on the workflow alone."""
        if drawn not in self._ids:
            ticks = workflow.time_ns() // 100 + _TICKS_TO_1970
            self._last = max(self._last + 1, ticks)
            node = int(sha256(workflow.info().original_execution_run_id.encode()).hexdigest()[:12], 16)
            high, low = self._last >> 12, self._last & 0xFFF
            self._ids[drawn] = str(UUID(int=high << 80 | (0x6000 | low) << 64 | 0x8000 << 48 | node))
        return self._ids[drawn]

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Keep a checkpoint, and have it stored."""
        stored = super().put(config, checkpoint, metadata, new_versions)
        told: dict[str, Any] = dict(metadata)
        if parents := told.get("parents"):
            told["parents"] = {name: self._ids.get(drawn, drawn) for name, drawn in parents.items()}
        renamed = {**checkpoint, "id": self._stable_id(checkpoint["id"])}
        kind, data = self.serde.dumps_typed([renamed, told, dict(new_versions)])
        await call(put_checkpoint_activity, [self._place(config, kind), data], self._options)
        return stored

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a task returned, and have it stored."""
        super().put_writes(config, writes, task_id, task_path)
        # They may come before the checkpoint itself.
        self._stable_id(config["configurable"]["checkpoint_id"])
        kind, data = self.serde.dumps_typed([[list(each) for each in writes], task_id, task_path])
        await call(put_writes_activity, [self._place(config, kind), data], self._options)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """A checkpoint, or the latest one; out of the store, if this run has none of the thread yet."""
        found = super().get_tuple(config)
        place = self._place(config)
        if found is not None or (place.thread_id, place.checkpoint_ns) in self._asked:
            return found
        self._asked.add((place.thread_id, place.checkpoint_ns))
        stored: Stored = await call(get_checkpoint_activity, [place], self._options)
        if not stored.kind:
            return None
        parts = self.serde.loads_typed((stored.kind, b64decode(stored.data)))
        self._remember(*parts)
        return super().get_tuple(config)

    def _remember(self, config: Any, checkpoint: Any, metadata: Any, parent: Any, writes: Any) -> None:
        versions = {
            name: version
            for name, version in checkpoint["channel_versions"].items()
            if name in checkpoint["channel_values"]
        }
        before = parent["configurable"]["checkpoint_id"] if parent else None
        named = {**config["configurable"], "checkpoint_id": before}
        self._ids[checkpoint["id"]] = checkpoint["id"]
        super().put({"configurable": named}, checkpoint, metadata, versions)
        for task_id, channel, value in writes:
            super().put_writes(config, [(channel, value)], task_id)

    async def alist(self, config: RunnableConfig | None, **options: Any) -> AsyncIterator[CheckpointTuple]:
        """The checkpoints of this run, and the one that it began with."""
        if config is not None:
            await self.aget_tuple(config)
        for found in super().list(config, **options):
            yield found
