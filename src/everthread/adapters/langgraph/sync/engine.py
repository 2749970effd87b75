# Generated from adapters/langgraph/aio/engine.py by tools/twin.py: change that, then run: make twin
"""Checkpoints in a store of one colour: what the saver does when a graph asks for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from langgraph.checkpoint.base import CheckpointTuple

from everthread.adapters.langgraph.naming import (
    PREFIX,
    family_prefix,
    is_hashed,
    parse_name,
    thread_name,
)
from everthread.adapters.langgraph.notes import note_of
from everthread.adapters.langgraph.sync.lane import (
    Lane,
    Lanes,
    find_checkpoint,
    find_place,
    list_checkpoints,
    read_state,
)
from everthread.adapters.langgraph.sync.putting import Put
from everthread.adapters.langgraph.sync.registry import Entry, Registry
from everthread.adapters.langgraph.sync.writes import Writes
from everthread.adapters.langgraph.values import Values
from everthread.errors import ThreadDeletedError
from everthread.threads.colours import pause

if TYPE_CHECKING:
    from everthread.threads.sync.store import ThreadStore
    from everthread.threads.sync.thread import Thread
    from everthread.versions import Version

_REFUSED_MAX: Final = 1024
#: How often, and after which pause, the checkpoint that a subgraph belongs to is looked for.
_ROOT_TRIES: Final = 40
_ROOT_PAUSE_S: Final = 0.005


class Engine:
    """Shared by all callers of a saver, and by the copies of it that LangGraph makes."""

    def __init__(self, store: ThreadStore, prefix: str = PREFIX) -> None:
        self.store = store
        self.prefix = prefix
        self.registry = Registry(store)
        self.writes = Writes(store)
        self._lanes = Lanes(store)
        #: Threads of which a checkpoint came late: what subgraphs of that run store comes late too. A new
        #: run begins with looking for the latest checkpoint.
        self._refused: OrderedDict[str, None] = OrderedDict()

    def name(self, thread_id: str, namespace: str = "") -> str:
        return thread_name(thread_id, namespace, self.prefix)

    def lane(self, name: str) -> Lane:
        return self._lanes.lane(name)

    def entry(self, thread_id: str) -> Entry:
        return self.registry.entry(self.name(thread_id))

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def get(
        self, thread_id: str, namespace: str, checkpoint_id: str | None, values: Values
    ) -> CheckpointTuple | None:
        """A checkpoint, or the latest one of a namespace."""
        lane = self.lane(self.name(thread_id, namespace))
        entry = self.entry(thread_id)
        gone = frozenset(entry.gone.get(namespace, ()))
        if not namespace:
            self._refused.pop(thread_id, None)
        with lane.lock:
            lane.generation = entry.generation
            thread = lane.newest()
            if checkpoint_id is None:
                version = latest_version(thread, gone)
            else:
                lane.memory.name(checkpoint_id)
                version = find_checkpoint(thread, checkpoint_id) if checkpoint_id not in gone else None
            if version is None or version.key is None:
                return None
            state = read_state(thread, version, values, lane.memory.shadow(version.key))
            if state is None:
                return None
            lane.memory.keep(version.key, state[2])
        self._lanes.make_room(lane)
        writes = self.writes.of(lane.name, entry.generation, version.key, values)
        return _told(thread_id, namespace, version, state[0], state[1], writes, values)

    def listed(
        self,
        thread_id: str | None,
        namespace: str | None,
        values: Values,
        *,
        checkpoint_id: str | None = None,
        before: str | None = None,
        filter: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints by falling id, read one by one: of one namespace, of all, or of all threads."""
        left = -1 if limit is None else max(limit, 0)
        if not left:
            return
        if thread_id is None:
            places = self.places()
        elif namespace is None:
            places = [(thread_id, each) for each in self.namespaces(thread_id)]
        else:
            places = [(thread_id, namespace)]
        for place, thread, version in self._versions(places, checkpoint_id):
            if before is not None and (version.key or "") >= before:
                continue
            if filter and not _matches(version, filter, values):
                continue
            state = read_state(thread, version, values)
            if state is None:
                continue
            generation = (self.entry(place[0])).generation
            writes = self.writes.of(thread.name, generation, version.key or "", values)
            yield _told(*place, version, state[0], state[1], writes, values)
            left -= 1
            if not left:
                return

    def _versions(
        self, places: Sequence[tuple[str, str]], checkpoint_id: str | None
    ) -> Iterator[tuple[tuple[str, str], Thread, Version]]:
        """The versions that are checkpoints, by falling id. One namespace is read lazily, of several the
        heads are collected first."""
        found = []
        for place in places:
            thread = self.store.thread(self.name(*place))
            entry = self.entry(place[0])
            gone = frozenset(entry.gone.get(place[1], ()))
            if checkpoint_id is not None:
                one = find_checkpoint(thread, checkpoint_id) if checkpoint_id not in gone else None
                if one is not None:
                    found.append((place, thread, one))
                continue
            where = find_place(thread)
            for version in list_checkpoints(thread, mixed=where.mixed):
                if version.key in gone:
                    continue
                if len(places) == 1:
                    yield place, thread, version
                else:
                    found.append((place, thread, version))
        yield from sorted(found, key=lambda each: each[2].key or "", reverse=True)

    def namespaces(self, thread_id: str) -> list[str]:
        """The namespaces of a thread that hold checkpoints, the graph's own first."""
        root = self.name(thread_id)
        found = ["" for info in self.store.threads(prefix=root, limit=1) if info.name == root]
        family = family_prefix(thread_id, self.prefix)
        if family is not None:
            for info in self.store.threads(prefix=family):
                parsed = parse_name(info.name, self.prefix)
                if parsed is not None:
                    found.append(parsed[1])
        found.extend([place[1] for place in self._hashed() if place[0] == thread_id])
        return found

    def _hashed(self) -> Iterator[tuple[str, str]]:
        for info in self.store.threads(prefix=f"{self.prefix}%~"):
            if is_hashed(info.name, self.prefix):
                place = self.registry.stands_for(info.name)
                if place is not None:
                    yield place

    def places(self) -> list[tuple[str, str]]:
        """Every (thread, namespace) that holds checkpoints."""
        found = []
        for info in self.store.threads(prefix=self.prefix):
            if is_hashed(info.name, self.prefix):
                place = self.registry.stands_for(info.name)
            else:
                place = parse_name(info.name, self.prefix)
            if place is not None:
                found.append(place)
        return found

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    def put(
        self,
        thread_id: str,
        namespace: str,
        parent: str | None,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any],
        values: Values,
        *,
        exclusive: bool,
        strict: bool,
    ) -> None:
        """Store a checkpoint, durably. Raises :class:`ThreadDeletedError` for one that comes late, after its
        thread was deleted, and :class:`ConflictError` for one of two that follow the same checkpoint."""
        lane = self.lane(self.name(thread_id, namespace))
        put = Put(
            lane, values, checkpoint, metadata, new_versions, parent, exclusive=exclusive, strict=strict
        )
        with lane.lock:
            for again in (False, True):
                if not lane.begun:
                    self._begin(lane, thread_id, namespace, parent, metadata)
                try:
                    if not put.run(allow_orphan=False):
                        entry = self.entry(thread_id)
                        if entry.deleted is not None:
                            raise _late(thread_id)
                        # Of a thread that is being copied here, say.
                        put.run(allow_orphan=True)
                    self._lanes.make_room(lane)
                    return
                except ThreadDeletedError:
                    if parent is not None or again:
                        self._refuse(thread_id)
                        raise

    def _refuse(self, thread_id: str) -> None:
        self._refused[thread_id] = None
        if len(self._refused) > _REFUSED_MAX:
            self._refused.popitem(last=False)

    def _begin(
        self, lane: Lane, thread_id: str, namespace: str, parent: str | None, metadata: Mapping[str, Any]
    ) -> None:
        """Before the first checkpoint that this saver stores in a namespace."""
        entry = self.entry(thread_id)
        if entry.deleted is not None and namespace and parent is None:
            # The first one of a subgraph has no parent: then what its graph stood on tells.
            root = (metadata.get("parents") or {}).get("")
            if type(root) is str and not self._stands(thread_id, root, entry.deleted):
                raise _late(thread_id)
        if is_hashed(lane.name, self.prefix):
            self.registry.explain(lane.name, thread_id, namespace)
        lane.generation = entry.generation
        lane.begun = True

    def _stands(self, thread_id: str, root: str, deleted: str) -> bool:
        """Whether the checkpoint that a subgraph belongs to isn't one of a deleted thread.

        It may be on its way here at this very moment, so it is waited for. If it doesn't come (a run that
        stores at its end only) its id tells when it was made.
        """
        for _ in range(_ROOT_TRIES):
            thread = self.store.thread(self.name(thread_id))
            if find_checkpoint(thread, root) is not None:
                return True
            if root <= deleted or thread_id in self._refused:
                return False
            pause(_ROOT_PAUSE_S)
        return True

    def put_writes(
        self,
        thread_id: str,
        namespace: str,
        checkpoint_id: str,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
        values: Values,
    ) -> None:
        """Store what a task returned, durably. The checkpoint itself may still be on its way here."""
        lane = self.lane(self.name(thread_id, namespace))
        # First of all, so that whoever stores the next checkpoint knows of it.
        lane.memory.touch(checkpoint_id, [value for _, value in writes])
        with lane.lock:
            generation = lane.generation
            if lane.memory.shadow(checkpoint_id) is None or generation is None:
                entry = self.entry(thread_id)
                generation = entry.generation
                if entry.deleted is not None and checkpoint_id <= entry.deleted:
                    thread = lane.newest()
                    if find_checkpoint(thread, checkpoint_id) is None:
                        raise _late(thread_id)
        self.writes.add(lane.name, generation, checkpoint_id, writes, task_id, task_path, values)
        if (self.entry(thread_id)).generation != generation:
            # Deleted at this very moment: whoever did so may have looked for writes before these were there.
            self.writes.drop_generation(lane.name, generation)
            raise _late(thread_id)


def latest_version(thread: Thread, gone: frozenset[str]) -> Version | None:
    """The version of the latest checkpoint that wasn't taken out."""
    place = find_place(thread)
    if place.latest is None:
        return None
    if place.latest not in gone:
        version = find_checkpoint(thread, place.latest)
        if version is not None:
            return version
    for version in list_checkpoints(thread, mixed=place.mixed):
        if version.key not in gone:
            return version
    return None


def _late(thread_id: str) -> ThreadDeletedError:
    return ThreadDeletedError(
        f"the thread {thread_id!r} was deleted while this run was under way; nothing was stored. "
        "Invoke the graph again to begin a new one"
    )


def _matches(version: Version, filter: Mapping[str, Any], values: Values) -> bool:
    metadata = values.unpack_fields((note_of(version) or {}).get("metadata"))
    return all(metadata.get(key) == value for key, value in filter.items())


def _config(thread_id: str, namespace: str, checkpoint_id: str) -> dict[str, Any]:
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": namespace,
            "checkpoint_id": checkpoint_id,
        }
    }


def _told(
    thread_id: str,
    namespace: str,
    version: Version,
    fields: dict[str, Any],
    channels: dict[str, Any],
    writes: list[tuple[str, str, Any]],
    values: Values,
) -> CheckpointTuple:
    note = note_of(version) or {}
    parent = note.get("parent")
    return CheckpointTuple(
        config=_config(thread_id, namespace, version.key or ""),  # type: ignore[arg-type]
        checkpoint={**fields, "id": version.key, "channel_values": channels},  # type: ignore[typeddict-item]
        metadata=values.unpack_fields(note.get("metadata")),  # type: ignore[arg-type]
        parent_config=_config(thread_id, namespace, parent) if parent else None,  # type: ignore[arg-type]
        pending_writes=writes,
    )
