# Generated from adapters/langgraph/aio/writes.py by tools/twin.py: change that, then run: make twin
"""Pending writes: what tasks returned at a checkpoint before the next one was stored.

They are events, one for each call: many writers, no conflicts, durable when the call returns. A stream holds
those of the checkpoints of a few minutes, so that old ones can be dropped together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from langgraph.checkpoint.base import WRITES_IDX_MAP

from everthread.adapters.langgraph.values import Values, is_erased
from everthread.events.sync.stream import EventStream

if TYPE_CHECKING:
    from everthread.threads.sync.store import ThreadStore

#: So much of a checkpoint's id names its stream: about seven minutes by the clock in it.
_BUCKET: Final = 7
_PAGE: Final = 200

PendingWrite = tuple[str, str, Any]


class Writes:
    """The pending writes of one store."""

    def __init__(self, store: ThreadStore) -> None:
        self._core = store.core

    def _stream(self, name: str, generation: int, checkpoint_id: str) -> EventStream:
        return EventStream(self._core, f"{_begin(name, generation)}{bucket_of(checkpoint_id)}")

    def add(
        self,
        name: str,
        generation: int,
        checkpoint_id: str,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
        values: Values,
    ) -> None:
        """Store what a task returned, all of it or nothing, durably."""
        entries = [
            [WRITES_IDX_MAP.get(channel, at), channel, values.pack(value)]
            for at, (channel, value) in enumerate(writes)
        ]
        stream = self._stream(name, generation, checkpoint_id)
        data = {"task": task_id, "path": task_path, "writes": entries}
        stream.append(checkpoint_id, data)

    def of(self, name: str, generation: int, checkpoint_id: str, values: Values) -> list[PendingWrite]:
        """The writes of a checkpoint, in the order in which a graph applies them.

        Of an ordinary write the first one stands, of a special one (an error, an interrupt …) the last.
        """
        found: dict[tuple[str, str, int], tuple[str, Any]] = {}
        placed: dict[tuple[str, int], tuple[str, str, int]] = {}
        stream = self._stream(name, generation, checkpoint_id)
        for event in stream.replay(type=checkpoint_id):
            task, path = event.data["task"], event.data["path"]
            for at, channel, stored in event.data["writes"]:
                before = placed.get((task, at))
                if before is not None:
                    if at >= 0:
                        continue
                    del found[before]
                placed[task, at] = (path, task, at)
                found[path, task, at] = (channel, stored)
        return [
            (key[1], found[key][0], values.unpack(found[key][1]))
            for key in sorted(found)
            if not is_erased(found[key][1])
        ]

    def copy(self, name: str, generation: int, to: str, to_generation: int) -> None:
        """Copy all writes of a namespace to another one."""
        beginning = _begin(name, generation)
        for stream in self._streams(beginning):
            target = EventStream(self._core, _begin(to, to_generation) + stream.removeprefix(beginning))
            source = EventStream(self._core, stream)
            for event in source.replay():
                target.append(event.type, event.data)

    def drop(self, name: str, before: str | None = None, keep: frozenset[str] = frozenset()) -> None:
        """Remove writes of a namespace, of whatever generation: all, or the streams before that of a
        checkpoint that hold none of ``keep``."""
        kept = {bucket_of(each) for each in keep}
        for stream in self._streams(f"{name}#"):
            bucket = stream.rpartition("/")[2]
            if before is None or (bucket < bucket_of(before) and bucket not in kept):
                EventStream(self._core, stream).delete()

    def drop_generation(self, name: str, generation: int) -> None:
        """Remove what came late for a thread that was deleted."""
        for stream in self._streams(_begin(name, generation)):
            EventStream(self._core, stream).delete()

    def _streams(self, prefix: str) -> list[str]:
        found: list[str] = []
        after: str | None = None
        while page := self._core.backend.streams(self._core.space, prefix, after, _PAGE):
            found.extend(name for name, _ in page)
            after = page[-1][0]
        return found


def bucket_of(checkpoint_id: str) -> str:
    return checkpoint_id[:_BUCKET].replace("/", "_").replace("\0", "_")


def _begin(name: str, generation: int) -> str:
    return f"{name}#{generation}/"
