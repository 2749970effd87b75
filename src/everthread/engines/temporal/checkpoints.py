"""``ForwardingSaver``: checkpoints of LangGraph inside workflows, forwarded to ``EverthreadSaver``.

Temporal's plugin for LangGraph wants a saver that does no I/O. This one is that, and has an activity store
each checkpoint too: readable by everybody, also when no worker runs, and there for the workflow that goes on.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

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


class ForwardingSaver(InMemorySaver):
    """The checkpointer of a graph in a workflow: ``graph("g").compile(checkpointer=ForwardingSaver())``.

    What it is given is in memory for this run, and in the store as ``EverthreadSaver(store)`` keeps it. Where
    memory has no checkpoint of a thread, the latest one is asked for once: a conversation goes on in the next
    workflow. Only channels that changed are handed over. ``options`` are those of
    ``workflow.execute_activity()``.
    """

    def __init__(self, *, prefix: str = PREFIX, subject: str | None = None, **options: Any) -> None:
        super().__init__()
        self._prefix = prefix
        self._subject = subject
        self._options = options
        self._asked: set[tuple[str, str]] = set()

    def _place(self, config: RunnableConfig, kind: str = "", unchanged: Sequence[str] = ()) -> Forwarded:
        named = config["configurable"]
        return Forwarded(
            thread_id=str(named["thread_id"]),
            checkpoint_ns=named.get("checkpoint_ns") or "",
            parent_id=named.get("checkpoint_id"),
            kind=kind,
            unchanged=list(unchanged),
            prefix=self._prefix,
            subject=self._subject,
        )

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Keep a checkpoint, and have it stored."""
        values = checkpoint["channel_values"]
        # The first one has all: there is none before it to take the others from.
        is_first = not config["configurable"].get("checkpoint_id")
        unchanged = [] if is_first else [name for name in values if name not in new_versions]
        changed = {name: value for name, value in values.items() if name not in unchanged}
        parts = [{**checkpoint, "channel_values": changed}, dict(metadata), dict(new_versions)]
        kind, data = self.serde.dumps_typed(parts)
        stored = super().put(config, checkpoint, metadata, new_versions)
        await call(put_checkpoint_activity, [self._place(config, kind, unchanged), data], self._options)
        return stored

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a task returned, and have it stored."""
        super().put_writes(config, writes, task_id, task_path)
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
        super().put({"configurable": named}, checkpoint, metadata, versions)
        for task_id, channel, value in writes:
            super().put_writes(config, [(channel, value)], task_id)

    async def alist(self, config: RunnableConfig | None, **options: Any) -> AsyncIterator[CheckpointTuple]:
        """The checkpoints of this run, and the one that it began with."""
        if config is not None:
            await self.aget_tuple(config)
        for found in super().list(config, **options):
            yield found
