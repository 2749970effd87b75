"""Deleting, copying and pruning LangGraph threads, and the history that delta channels are rebuilt from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from langgraph.checkpoint.base.id import uuid6

from everthread.adapters.langgraph.aio.engine import AsyncEngine, latest_version
from everthread.adapters.langgraph.aio.lane import (
    find_checkpoint,
    find_place,
    list_checkpoints,
    read_state,
)
from everthread.adapters.langgraph.aio.registry import Entry
from everthread.adapters.langgraph.notes import Place, branch_note, note_of
from everthread.adapters.langgraph.values import Values
from everthread.errors import (
    InvalidValueError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadNotFoundError,
    VersionNotFoundError,
)
from everthread.threads.aio.keys import rewind_noted
from everthread.threads.aio.removing import remove_versions

if TYPE_CHECKING:
    from everthread.history.diff import Diff
    from everthread.threads.aio.thread import AsyncThread
    from everthread.versions import Version


class AsyncKeeper(AsyncEngine):
    """The engine, with what concerns whole threads."""

    async def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with its namespaces and writes, for good; a late write doesn't bring it back."""
        root = self.name(thread_id)
        namespaces = await self.namespaces(thread_id)
        if not namespaces and (await self.registry.entry(root)).generation == 0:
            await self.writes.drop(root)
            return
        latest = str(uuid6())
        for namespace in namespaces:
            place = await find_place(await self.store.thread(self.name(thread_id, namespace)))
            latest = max(latest, place.latest or "")
        # First of all: from here on, whatever follows a checkpoint that is gone is refused.
        await self.registry.change(root, lambda entry: Entry(generation=entry.generation + 1, deleted=latest))
        for namespace in {"", *namespaces, *await self.namespaces(thread_id)}:
            name = self.name(thread_id, namespace)
            lane = self.lane(name)
            async with lane.lock:
                await _delete(await self.store.thread(name))
                lane.forget()
            await self.writes.drop(name)

    async def delete_for_runs(self, run_ids: Iterable[str], values: Values) -> None:
        """Take out the checkpoints that these runs made. Looks at the metadata of all there are."""
        wanted = frozenset(run_ids)
        if not wanted:
            return
        found: dict[str, dict[str, set[str]]] = {}
        for thread_id, namespace in await self.places():
            thread = await self.store.thread(self.name(thread_id, namespace))
            async for version in list_checkpoints(thread, mixed=False):
                metadata = values.unpack_fields((note_of(version) or {}).get("metadata"))
                if metadata.get("run_id") in wanted and version.key is not None:
                    found.setdefault(thread_id, {}).setdefault(namespace, set()).add(version.key)
        for thread_id, gone in found.items():
            await self._take_out(thread_id, gone, values)

    async def prune(self, thread_ids: Sequence[str], strategy: str, values: Values) -> None:
        """Keep only the latest checkpoint of each namespace, or none."""
        if strategy not in ("keep_latest", "delete"):
            raise InvalidValueError(
                f'strategy is "keep_latest" or "delete", not {strategy!r}', path="strategy"
            )
        for thread_id in thread_ids:
            if strategy == "delete":
                await self.delete_thread(thread_id)
                continue
            entry = await self.entry(thread_id)
            gone: dict[str, set[str]] = {}
            for namespace in await self.namespaces(thread_id):
                thread = await self.store.thread(self.name(thread_id, namespace))
                kept = await latest_version(thread, frozenset(entry.gone.get(namespace, ())))
                gone[namespace] = {
                    version.key
                    async for version in list_checkpoints(thread, mixed=False)
                    if version.key is not None and (kept is None or version.key != kept.key)
                }
            await self._take_out(thread_id, gone, values)

    async def _take_out(self, thread_id: str, gone: Mapping[str, set[str]], values: Values) -> None:
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
        entry = await self.registry.change(root, hide)
        emptied = {
            namespace
            for namespace in gone
            if not await self._settle(thread_id, namespace, frozenset(entry.gone[namespace]), values)
        }
        if emptied.issuperset(await self.namespaces(thread_id)):
            await self.delete_thread(thread_id)

    async def _settle(self, thread_id: str, namespace: str, gone: frozenset[str], values: Values) -> bool:
        """Stand on the latest checkpoint that stays, and remove what is gone. False if none stays."""
        name = self.name(thread_id, namespace)
        lane = self.lane(name)
        async with lane.lock:
            thread = await lane.newest()
            kept = await latest_version(thread, gone)
            if kept is None or kept.key is None:
                await _delete(thread)
                lane.forget()
                await self.writes.drop(name)
                return False
            place = await find_place(thread)
            if place.standing != kept.key or place.latest != kept.key:
                here = Place(kept.key, kept.key, place.mixed)
                await rewind_noted(thread, kept, branch_note(kept.key, here))
            if not _needs_writes(kept, values) and await remove_versions(thread, gone):
                lane.forget()
                await self._clean_up(thread_id, namespace, kept.key, gone)
        return True

    async def _clean_up(self, thread_id: str, namespace: str, latest: str, gone: frozenset[str]) -> None:
        """Once versions are removed: drop the writes of that time, and forget what needn't be hidden."""
        name = self.name(thread_id, namespace)
        thread = await self.store.thread(name)
        visible = {each.key async for each in list_checkpoints(thread, mixed=False) if each.key is not None}
        await self.writes.drop(name, latest, frozenset(visible - gone))

        def show(entry: Entry) -> Entry:
            hidden = {key: ids for key, ids in entry.gone.items() if key != namespace}
            left = [each for each in entry.gone.get(namespace, ()) if each in visible]
            return msgspec.structs.replace(entry, gone={**hidden, namespace: left} if left else hidden)

        await self.registry.change(self.name(thread_id), show)

    async def fork(self, source: str, target: str, checkpoint_id: str | None, values: Values) -> None:
        """As :meth:`copy_thread`; with a checkpoint the new thread goes on from there."""
        await self.copy_thread(source, target, checkpoint_id, must=True)
        if checkpoint_id is not None:
            await self.rewind(target, "", checkpoint_id, values)

    async def copy_thread(
        self, source: str, target: str, checkpoint_id: str | None = None, *, must: bool = False
    ) -> None:
        """Make ``target`` a thread with all checkpoints of ``source``, which both share, and its writes.

        With a checkpoint the copy ends there. Raises :class:`ThreadExistsError` if the target has any.
        """
        namespaces = await self.namespaces(source)
        if not namespaces:
            if must:
                raise ThreadNotFoundError(f"there is no thread {source!r}")
            return
        if await self.namespaces(target):
            raise ThreadExistsError(f"the thread {target!r} has checkpoints already; choose another id")
        entry = await self.entry(source)
        copied = await self.registry.change(
            self.name(target), lambda old: msgspec.structs.replace(old, gone=entry.gone)
        )
        # The graph's own namespace last: with it the copy is complete.
        for namespace in sorted(namespaces, key=lambda each: each == ""):
            name, to = self.name(source, namespace), self.name(target, namespace)
            thread = await self.store.thread(name)
            at = None
            if checkpoint_id is not None and namespace == "":
                at = await _existing(thread, source, checkpoint_id)
            await self.writes.copy(name, entry.generation, to, copied.generation)
            await thread.fork(to, at=at)
            self.lane(to).forget()

    async def delta_history(
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
        generation = (await self.entry(thread_id)).generation
        thread = await self.store.thread(self.name(thread_id, namespace))
        if checkpoint_id is None:
            version = await latest_version(thread, frozenset())
        else:
            version = await find_checkpoint(thread, checkpoint_id)
        parent = _parent(version)
        while parent is not None and remaining:
            version = await find_checkpoint(thread, parent)
            if version is None:
                break
            for write in reversed(await self.writes.of(thread.name, generation, parent, values)):
                if write[1] in remaining:
                    collected[write[1]].append(write)
            document = (await thread.at(version)).state
            stored = {*document["channels"], *document["logs"]}
            if not stored.isdisjoint(remaining):
                state = await read_state(thread, version, values)
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

    async def rewind(self, thread_id: str, namespace: str, checkpoint_id: str, values: Values) -> str:
        """Store a copy of a checkpoint as the latest one; its id. Raises :class:`VersionNotFoundError`.

        The copy stands beside the checkpoint, without what tasks had returned at it: they run again.
        """
        found = await self.get(thread_id, namespace, checkpoint_id, values)
        if found is None:
            raise _unknown(thread_id, checkpoint_id)
        step = found.metadata.get("step", -1) + 1
        copied = {**found.checkpoint, "id": str(uuid6(clock_seq=step)), "ts": datetime.now(UTC).isoformat()}
        metadata = {**found.metadata, "source": "fork", "step": step}
        parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
        await self.put(
            thread_id, namespace, parent, copied, metadata, {}, values, exclusive=False, strict=False
        )
        return str(copied["id"])

    async def diff(self, thread_id: str, namespace: str, old: str, new: str) -> Diff:
        """What changed from one checkpoint to another."""
        thread = await self.store.thread(self.name(thread_id, namespace))
        return await thread.diff(
            await _existing(thread, thread_id, old), await _existing(thread, thread_id, new)
        )


async def _delete(thread: AsyncThread) -> None:
    with suppress(ThreadNotFoundError, ThreadDeletedError):
        await thread.delete()


def _needs_writes(version: Version, values: Values) -> bool:
    metadata = values.unpack_fields((note_of(version) or {}).get("metadata"))
    return bool(metadata.get("counters_since_delta_snapshot"))


def _parent(version: Version | None) -> str | None:
    note = note_of(version) if version is not None else None
    found = note.get("parent") if note is not None else None
    return found if type(found) is str else None


async def _existing(thread: AsyncThread, thread_id: str, checkpoint_id: str) -> Version:
    version = await find_checkpoint(thread, checkpoint_id)
    if version is None:
        raise _unknown(thread_id, checkpoint_id)
    return version


def _unknown(thread_id: str, checkpoint_id: str) -> VersionNotFoundError:
    return VersionNotFoundError(f"the thread {thread_id!r} has no checkpoint {checkpoint_id!r}")
