# Generated from adapters/langgraph/aio/engine.py by tools/twin.py: change that, then run: make twin
"""Checkpoints in a store of one colour: what the saver does when a graph asks for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple
from langgraph.checkpoint.base.id import uuid6

from everthread.adapters.langgraph.names import (
    PREFIX,
    Place,
    branch_note,
    family_prefix,
    id_of,
    is_hashed,
    note_of,
    parse_name,
    thread_name,
)
from everthread.adapters.langgraph.sync.lane import (
    Lane,
    Lanes,
    Put,
    find_checkpoint,
    find_place,
    list_checkpoints,
    read_state,
)
from everthread.adapters.langgraph.values import Values, is_erased
from everthread.codec import records
from everthread.errors import (
    InvalidValueError,
    StateCorruptedError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadNotFoundError,
    VersionNotFoundError,
)
from everthread.events.sync.stream import EventStream
from everthread.maintenance.gc import remove_versions
from everthread.stores.contract import StaleCell
from everthread.threads.sync.keys import rewind_noted
from everthread.threads.twins import pause

if TYPE_CHECKING:
    from everthread.history.diff import Diff
    from everthread.threads.lifetimes import Lifetime
    from everthread.threads.sync.store import ThreadStore
    from everthread.threads.sync.thread import Thread
    from everthread.versions import Version


# Pending writes: what tasks returned at a checkpoint before the next one was stored.
#
# They are events, one for each call: many writers, no conflicts, durable when the call returns. A stream
# holds those of the checkpoints of a few minutes, so that old ones can be dropped together.


#: So much of a checkpoint's id names its stream: about seven minutes by the clock in it.
_BUCKET: Final = 7
_PAGE: Final = 200

PendingWrite = tuple[str, str, Any]


class Writes:
    """The pending writes of one store."""

    def __init__(self, store: ThreadStore, ttl: Lifetime = None) -> None:
        self._core = store.core
        self._ttl = ttl
        #: The stream whose retention was set last.
        self._retained: str | None = None

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
        if self._ttl is not None and self._retained != stream.name:
            stream.retain(ttl=self._ttl)
            self._retained = stream.name

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


# What is known of a LangGraph thread besides its checkpoints: how often it was deleted, and when last;
# which checkpoints were taken out; what a name that is a digest stands for. One small cell each.


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """``generation``: how often the thread was deleted. ``deleted``: a checkpoint id of the moment when it
    was last; older ones belong to what is gone. ``gone``: ids that were taken out, by namespace."""

    generation: int = 0
    deleted: str | None = None
    gone: dict[str, list[str]] = {}


_decode = msgspec.msgpack.Decoder(Entry).decode
_decode_pair = msgspec.msgpack.Decoder(tuple[str, str]).decode
NOTHING = Entry()


class Registry:
    """The cells of one store."""

    def __init__(self, store: ThreadStore) -> None:
        self._core = store.core

    def entry(self, name: str) -> Entry:
        """What is known of the thread whose root namespace has this name."""
        return (self._read(name))[0]

    def change(self, name: str, change: Callable[[Entry], Entry]) -> Entry:
        """Replace it, whoever else does so at the same moment."""
        core = self._core
        while True:
            entry, revision = self._read(name)
            entry = change(entry)
            value = records.compress(msgspec.msgpack.encode(entry))
            try:
                core.backend.swap(core.space, _cell(name), revision, value, core.runtime.now_us())
            except StaleCell:
                continue
            return entry

    def _read(self, name: str) -> tuple[Entry, int]:
        core = self._core
        cell = core.backend.cell(core.space, _cell(name), core.runtime.now_us())
        if cell is None:
            return NOTHING, 0
        try:
            return _decode(records.expand(cell.value, "a cell")), cell.revision
        except msgspec.DecodeError as error:
            raise StateCorruptedError(f"the cell {_cell(name)!r} can't be decoded", where="cell") from error

    def stands_for(self, name: str) -> tuple[str, str] | None:
        """(thread_id, namespace) behind a name that is a digest."""
        core = self._core
        cell = core.backend.cell(core.space, _meaning(name), core.runtime.now_us())
        if cell is None:
            return None
        try:
            return _decode_pair(records.expand(cell.value, "a cell"))
        except msgspec.DecodeError as error:
            raise StateCorruptedError(
                f"the cell {_meaning(name)!r} can't be decoded", where="cell"
            ) from error

    def explain(self, name: str, thread_id: str, namespace: str) -> None:
        """Note what a digest stands for. Doing so again changes nothing."""
        core = self._core
        if self.stands_for(name) is None:
            value = records.compress(msgspec.msgpack.encode((thread_id, namespace)))
            try:
                core.backend.swap(core.space, _meaning(name), 0, value, core.runtime.now_us())
            except StaleCell:
                return


def _cell(name: str) -> str:
    return f"adapter:{name}"


def _meaning(name: str) -> str:
    return f"adapter-name:{name}"


_REFUSED_MAX: Final = 1024
#: How often, and after which pause, the checkpoint that a subgraph belongs to is looked for.
_ROOT_TRIES: Final = 40
_ROOT_PAUSE_S: Final = 0.005


class Engine:
    """Shared by all callers of a saver, and by the copies of it that LangGraph makes."""

    def __init__(self, store: ThreadStore, prefix: str = PREFIX, ttl: Lifetime = None) -> None:
        self.store = store
        self.prefix = prefix
        self.ttl = ttl
        self.registry = Registry(store)
        self.writes = Writes(store, ttl)
        self._lanes = Lanes(store, ttl)
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
            if version is None:
                return None
            found = id_of(version)
            place = find_place(thread)
            state = read_state(thread, version, values, lane.memory.shadow(found), place=place)
            if state is None:
                return None
            lane.memory.keep(found, state[2])
        self._lanes.make_room(lane)
        writes = self.writes.of(lane.name, entry.generation, found, values)
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
            found = id_of(version)
            if before is not None:
                if found >= before:
                    continue
                # Whoever asks for one of that time means to branch off from it, as replays of subgraphs do.
                self.lane(thread.name).memory.name(found)
            if filter and not _matches(version, filter, values):
                continue
            state = read_state(thread, version, values, place=find_place(thread))
            if state is None:
                continue
            generation = (self.entry(place[0])).generation
            writes = self.writes.of(thread.name, generation, found, values)
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
        yield from sorted(found, key=lambda each: id_of(each[2]), reverse=True)

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

    def thread_ids(self) -> list[str]:
        """Return the ids of all threads that hold checkpoints."""
        return sorted({thread_id for thread_id, _ in self.places()})

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
    metadata = _metadata(version, values)
    return all(metadata.get(key) == value for key, value in filter.items())


def _metadata(version: Version, values: Values) -> dict[str, Any]:
    note = note_of(version)
    if note is None:
        # Another framework's, as if its messages had been put in by update_state().
        return {"source": "update", "step": -1, "parents": {}}
    return values.unpack_fields(note.get("metadata"))


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
        config=_config(thread_id, namespace, id_of(version)),  # type: ignore[arg-type]
        checkpoint={**fields, "id": id_of(version), "channel_values": channels},  # type: ignore[typeddict-item]
        metadata=_metadata(version, values),  # type: ignore[arg-type]
        parent_config=_config(thread_id, namespace, parent) if parent else None,  # type: ignore[arg-type]
        pending_writes=writes,
    )


# Deleting, copying and pruning LangGraph threads, and the history that delta channels are rebuilt from.


class Keeper(Engine):
    """The engine, with what concerns whole threads."""

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with its namespaces and writes, for good; a late write doesn't bring it back."""
        root = self.name(thread_id)
        namespaces = self.namespaces(thread_id)
        if not namespaces and (self.registry.entry(root)).generation == 0:
            self.writes.drop(root)
            return
        latest = str(uuid6())
        for namespace in namespaces:
            place = find_place(self.store.thread(self.name(thread_id, namespace)))
            latest = max(latest, place.latest or "")
        # First of all: from here on, whatever follows a checkpoint that is gone is refused.
        self.registry.change(root, lambda entry: Entry(generation=entry.generation + 1, deleted=latest))
        for namespace in {"", *namespaces, *self.namespaces(thread_id)}:
            name = self.name(thread_id, namespace)
            lane = self.lane(name)
            with lane.lock:
                _delete(self.store.thread(name))
                lane.forget()
            self.writes.drop(name)

    def delete_for_runs(self, run_ids: Iterable[str], values: Values) -> None:
        """Take out the checkpoints that these runs made. Looks at the metadata of all there are."""
        wanted = frozenset(run_ids)
        if not wanted:
            return
        found: dict[str, dict[str, set[str]]] = {}
        for thread_id, namespace in self.places():
            thread = self.store.thread(self.name(thread_id, namespace))
            for version in list_checkpoints(thread, mixed=False):
                metadata = values.unpack_fields((note_of(version) or {}).get("metadata"))
                if metadata.get("run_id") in wanted and version.key is not None:
                    found.setdefault(thread_id, {}).setdefault(namespace, set()).add(version.key)
        for thread_id, gone in found.items():
            self._take_out(thread_id, gone, values)

    def prune(self, thread_ids: Sequence[str], strategy: str, values: Values) -> None:
        """Keep only the latest checkpoint of each namespace, or none."""
        if strategy not in ("keep_latest", "delete"):
            raise InvalidValueError(
                f'strategy is "keep_latest" or "delete", not {strategy!r}', path="strategy"
            )
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
                continue
            entry = self.entry(thread_id)
            gone: dict[str, set[str]] = {}
            for namespace in self.namespaces(thread_id):
                thread = self.store.thread(self.name(thread_id, namespace))
                kept = latest_version(thread, frozenset(entry.gone.get(namespace, ())))
                gone[namespace] = {
                    version.key
                    for version in list_checkpoints(thread, mixed=False)
                    if version.key is not None and (kept is None or version.key != kept.key)
                }
            self._take_out(thread_id, gone, values)

    def _take_out(self, thread_id: str, gone: Mapping[str, set[str]], values: Values) -> None:
        """Hide checkpoints, durably, then remove their content as far as nothing stands on it."""
        gone = {namespace: ids for namespace, ids in gone.items() if ids}
        if not gone:
            return

        def hide(entry: Entry) -> Entry:
            hidden = dict(entry.gone)
            for namespace, ids in gone.items():
                hidden[namespace] = sorted(ids.union(hidden.get(namespace, ())))
            return msgspec.structs.replace(entry, gone=hidden)

        root = self.name(thread_id)
        entry = self.registry.change(root, hide)
        emptied = {
            namespace
            for namespace in gone
            if not self._settle(thread_id, namespace, frozenset(entry.gone[namespace]), values)
        }
        if emptied.issuperset(self.namespaces(thread_id)):
            self.delete_thread(thread_id)

    def _settle(self, thread_id: str, namespace: str, gone: frozenset[str], values: Values) -> bool:
        """Stand on the latest checkpoint that stays, and remove what is gone. False if none stays."""
        name = self.name(thread_id, namespace)
        lane = self.lane(name)
        with lane.lock:
            thread = lane.newest()
            kept = latest_version(thread, gone)
            if kept is None or kept.key is None:
                _delete(thread)
                lane.forget()
                self.writes.drop(name)
                return False
            place = find_place(thread)
            if place.standing != kept.key or place.latest != kept.key:
                here = Place(kept.key, kept.key, place.mixed)
                rewind_noted(thread, kept, branch_note(kept.key, here))
            if not _needs_writes(kept, values) and self._remove(name, gone):
                lane.forget()
                self._clean_up(thread_id, namespace, kept.key, gone)
        return True

    def _remove(self, name: str, gone: frozenset[str]) -> bool:
        """Remove the content of these checkpoints; on a worker thread, if the store is async."""
        return remove_versions(self.store, name, gone)

    def _clean_up(self, thread_id: str, namespace: str, latest: str, gone: frozenset[str]) -> None:
        """Once versions are removed: drop the writes of that time, and forget what needn't be hidden."""
        name = self.name(thread_id, namespace)
        thread = self.store.thread(name)
        visible = {each.key for each in list_checkpoints(thread, mixed=False) if each.key is not None}
        self.writes.drop(name, latest, frozenset(visible - gone))

        def show(entry: Entry) -> Entry:
            hidden = {key: ids for key, ids in entry.gone.items() if key != namespace}
            left = [each for each in entry.gone.get(namespace, ()) if each in visible]
            return msgspec.structs.replace(entry, gone={**hidden, namespace: left} if left else hidden)

        self.registry.change(self.name(thread_id), show)

    def fork(self, source: str, target: str, checkpoint_id: str | None, values: Values) -> None:
        """As :meth:`copy_thread`; with a checkpoint the new thread goes on from there."""
        self.copy_thread(source, target, checkpoint_id, must=True)
        if checkpoint_id is not None:
            self.rewind(target, "", checkpoint_id, values)

    def copy_thread(
        self, source: str, target: str, checkpoint_id: str | None = None, *, must: bool = False
    ) -> None:
        """Make ``target`` a thread with all checkpoints of ``source``, which both share, and its writes.

        With a checkpoint the copy ends there. Raises :class:`ThreadExistsError` if the target has any.
        """
        namespaces = self.namespaces(source)
        if not namespaces:
            if must:
                raise ThreadNotFoundError(f"there is no thread {source!r}")
            return
        if self.namespaces(target):
            raise ThreadExistsError(f"the thread {target!r} has checkpoints already; choose another id")
        entry = self.entry(source)
        copied = self.registry.change(
            self.name(target), lambda old: msgspec.structs.replace(old, gone=entry.gone)
        )
        # The graph's own namespace last: with it the copy is complete.
        for namespace in sorted(namespaces, key=lambda each: each == ""):
            name, to = self.name(source, namespace), self.name(target, namespace)
            thread = self.store.thread(name)
            at = None
            if checkpoint_id is not None and namespace == "":
                at = _existing(thread, source, checkpoint_id)
            self.writes.copy(name, entry.generation, to, copied.generation)
            copy = thread.fork(to, at=at)
            if self.ttl is not None:
                copy.expire(after=self.ttl)
            self.lane(to).forget()

    def delta_history(
        self,
        thread_id: str,
        namespace: str,
        checkpoint_id: str | None,
        values: Values,
        channels: Sequence[str],
    ) -> dict[str, dict[str, Any]]:
        """For each channel the writes since its nearest stored value, oldest first, and that value."""
        collected: dict[str, list[Any]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        remaining = set(channels)
        generation = (self.entry(thread_id)).generation
        thread = self.store.thread(self.name(thread_id, namespace))
        if checkpoint_id is None:
            version = latest_version(thread, frozenset())
        else:
            version = find_checkpoint(thread, checkpoint_id)
        parent = _parent(version)
        seen = set() if version is None else {id_of(version)}
        while parent is not None and remaining:
            if parent in seen:
                raise StateCorruptedError(
                    f"the thread {thread_id!r} can't be read: its checkpoint {parent} is its own ancestor; "
                    "go on from another checkpoint, or delete the thread",
                    where="checkpoint",
                )
            seen.add(parent)
            version = find_checkpoint(thread, parent)
            if version is None:
                break
            for write in reversed(self.writes.of(thread.name, generation, parent, values)):
                if write[1] in remaining:
                    collected[write[1]].append(write)
            document = (thread.at(version)).state
            stored = {*document["channels"], *document["logs"]}
            if not stored.isdisjoint(remaining):
                state = read_state(thread, version, values)
                assert state is not None
                for channel in stored.intersection(remaining):
                    if channel in state[1]:
                        seeds[channel] = state[1][channel]
                    remaining.discard(channel)
            parent = _parent(version)
        return {
            channel: {
                "writes": collected[channel][::-1],
                **({"seed": seeds[channel]} if channel in seeds else {}),
            }
            for channel in channels
        }

    def rewind(self, thread_id: str, namespace: str, checkpoint_id: str, values: Values) -> str:
        """Store a copy of a checkpoint as the latest one; its id. Raises :class:`VersionNotFoundError`.

        The copy stands beside the checkpoint, without what tasks had returned at it: they run again.
        """
        found = self.get(thread_id, namespace, checkpoint_id, values)
        if found is None:
            raise _unknown(thread_id, checkpoint_id)
        step = found.metadata.get("step", -1) + 1
        copied = {**found.checkpoint, "id": str(uuid6(clock_seq=step)), "ts": datetime.now(UTC).isoformat()}
        metadata = {**found.metadata, "source": "fork", "step": step}
        parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
        self.put(thread_id, namespace, parent, copied, metadata, {}, values, exclusive=False, strict=False)
        return str(copied["id"])

    def diff(self, thread_id: str, namespace: str, old: str, new: str) -> Diff:
        """What changed from one checkpoint to another."""
        thread = self.store.thread(self.name(thread_id, namespace))
        return thread.diff(_existing(thread, thread_id, old), _existing(thread, thread_id, new))


def _delete(thread: Thread) -> None:
    with suppress(ThreadNotFoundError, ThreadDeletedError):
        thread.delete()


def _needs_writes(version: Version, values: Values) -> bool:
    metadata = values.unpack_fields((note_of(version) or {}).get("metadata"))
    return bool(metadata.get("counters_since_delta_snapshot"))


def _parent(version: Version | None) -> str | None:
    note = note_of(version) if version is not None else None
    found = note.get("parent") if note is not None else None
    return found if type(found) is str else None


def _existing(thread: Thread, thread_id: str, checkpoint_id: str) -> Version:
    version = find_checkpoint(thread, checkpoint_id)
    if version is None:
        raise _unknown(thread_id, checkpoint_id)
    return version


def _unknown(thread_id: str, checkpoint_id: str) -> VersionNotFoundError:
    return VersionNotFoundError(f"the thread {thread_id!r} has no checkpoint {checkpoint_id!r}")
