"""``EverthreadSaver``: a LangGraph checkpointer on a store of either colour."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)

from everthread.adapters.langgraph.aio.engine import AsyncKeeper
from everthread.adapters.langgraph.names import PREFIX, thread_id_of, thread_name
from everthread.adapters.langgraph.sync.engine import Keeper
from everthread.adapters.langgraph.values import Values
from everthread.errors import InvalidValueError, ThreadExistsError, UsageError
from everthread.store import Store
from everthread.store_async import AsyncStore
from everthread.threads.lifetimes import Lifetime, ttl_us

if TYPE_CHECKING:
    from everthread.history.diff import Diff

_END: Any = object()

#: Whose data a thread is: ``lambda config: config["configurable"].get("user_id")``.
Subject = str | Callable[[RunnableConfig], "str | None"] | None


class EverthreadSaver(BaseCheckpointSaver[Any]):
    """Keeps the checkpoints of graphs in an open Everthread store: ``builder.compile(checkpointer=saver)``.

    With a store of ``everthread.open()`` the blocking methods are the native ones and the async ones run on
    threads; with one of ``everthread.open_async()`` it is the other way round, and a blocking method works
    from any thread but that of the event loop, where it raises :class:`UsageError`.

    ``serde``: LangGraph's serializer, for values that aren't plain data or messages. ``on_conflict``:
    ``"raise"`` a :class:`ConflictError` when two runs go on from the same latest checkpoint, or ``"fork"``
    as LangGraph's own savers do. ``check="all"`` looks into every item of a long list at every step for
    changes made in place; ``"returned"`` into those that a node returned, and the last few. ``prefix``
    begins the names of the Everthread threads. With a ``subject`` (a name, or a function of the config) the
    values of all channels and pending writes are sealed under that person's key, until
    ``store.erase(subject)``; then they are missing. With a ``ttl`` (a ``timedelta`` or seconds) a thread, and
    each of its namespaces, expires that long after its last checkpoint. The store is the caller's: the saver
    never closes it.
    """

    def __init__(
        self,
        store: Store | AsyncStore,
        *,
        serde: Any = None,
        on_conflict: Literal["raise", "fork"] = "raise",
        check: Literal["returned", "all"] = "returned",
        prefix: str = PREFIX,
        subject: Subject = None,
        ttl: Lifetime = None,
    ) -> None:
        super().__init__(serde=serde)
        if ttl is not None:
            ttl_us(ttl)
        if on_conflict not in ("raise", "fork"):
            raise InvalidValueError('on_conflict is "raise" or "fork"', path="on_conflict")
        if check not in ("returned", "all"):
            raise InvalidValueError('check is "returned" or "all"', path="check")
        self._exclusive = on_conflict == "raise"
        self._strict = check == "all"
        self._prefix = prefix
        self._subject = subject
        self._store = store
        self._engine: Keeper | None = None
        self._aengine: AsyncKeeper | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        if isinstance(store, Store):
            self._engine = Keeper(store, prefix, ttl)
        elif isinstance(store, AsyncStore):
            self._aengine = AsyncKeeper(store, prefix, ttl)
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:
                self._loop = None
        else:
            raise UsageError(
                f"EverthreadSaver takes an open store, not {type(store).__name__}: "
                "everthread.open(…), or await everthread.open_async(…)"
            )

    @property
    def _values(self) -> Values:
        # Made anew: LangGraph copies a saver and gives the copy another serializer. For what has no config:
        # sealed values are handed on as they are.
        return Values(self.serde, keep=True)

    def _values_to_write(self, config: RunnableConfig) -> Values:
        # Only who writes has to know whose it is: what is sealed says so itself.
        return Values(self.serde, self._subject(config) if callable(self._subject) else self._subject)

    # ── either colour on either store ────────────────────────────────────────────────────────

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        """What the engine does, for a blocking caller."""
        if self._engine is not None:
            return getattr(self._engine, name)(*args, **options)
        work = getattr(self._aengine, name)
        loop = self._foreign_loop(name)
        return asyncio.run_coroutine_threadsafe(work(*args, **options), loop).result()

    async def _acall(self, name: str, *args: Any, **options: Any) -> Any:
        """The same for an async caller."""
        if self._aengine is None:
            return await asyncio.to_thread(getattr(self._engine, name), *args, **options)
        self._loop = asyncio.get_running_loop()
        return await getattr(self._aengine, name)(*args, **options)

    def _foreign_loop(self, name: str) -> asyncio.AbstractEventLoop:
        """The event loop of the async store, if it runs in another thread."""
        loop = self._loop
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if loop is None or not loop.is_running() or here is loop:
            raise UsageError(
                "this saver is on an async store: use ainvoke(), astream() and the other async methods, "
                f"or give EverthreadSaver a store of everthread.open() ({name} was called without await)"
            )
        return loop

    # ── checkpoints ──────────────────────────────────────────────────────────────────────────

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """A checkpoint, or the latest one, with what tasks have returned at it."""
        found: CheckpointTuple | None = self._call("get", *self._wanted(config))
        return found

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As :meth:`get_tuple`."""
        found: CheckpointTuple | None = await self._acall("get", *self._wanted(config))
        return found

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints by falling id, read one by one; without a namespace those of all namespaces."""
        if self._engine is not None:
            yield from self._engine.listed(**self._query(config, filter, before, limit))
            return
        loop = self._foreign_loop("list")
        listed = self.alist(config, filter=filter, before=before, limit=limit)
        while (one := asyncio.run_coroutine_threadsafe(_next(listed), loop).result()) is not _END:
            yield one

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As :meth:`list`."""
        if self._aengine is not None:
            async for found in self._aengine.listed(**self._query(config, filter, before, limit)):
                yield found
            return
        listed = self.list(config, filter=filter, before=before, limit=limit)
        while (one := await asyncio.to_thread(next, listed, _END)) is not _END:
            yield cast("CheckpointTuple", one)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, durably; what it shares with the one before costs nothing."""
        self._call("put", **self._given(config, checkpoint, metadata, new_versions))
        return _stored(config, checkpoint)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As :meth:`put`."""
        await self._acall("put", **self._given(config, checkpoint, metadata, new_versions))
        return _stored(config, checkpoint)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task returned at a checkpoint, durably."""
        wanted, values = self._wanted(config)[:-1], self._values_to_write(config)
        self._call("put_writes", *wanted, writes, task_id, task_path, values)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As :meth:`put_writes`."""
        wanted, values = self._wanted(config)[:-1], self._values_to_write(config)
        await self._acall("put_writes", *wanted, writes, task_id, task_path, values)

    def _wanted(self, config: RunnableConfig) -> tuple[str, str, str | None, Values]:
        return (*_place(config), get_checkpoint_id(config) or None, Values(self.serde))

    def _query(
        self, config: RunnableConfig | None, filter: Any, before: RunnableConfig | None, limit: int | None
    ) -> dict[str, Any]:
        configurable = config["configurable"] if config is not None else {}
        return {
            "thread_id": thread_id_of(configurable) if config is not None else None,
            "namespace": configurable.get("checkpoint_ns"),
            "values": Values(self.serde),
            "checkpoint_id": configurable.get("checkpoint_id"),
            "filter": filter,
            "before": get_checkpoint_id(before) if before is not None else None,
            "limit": limit,
        }

    def _given(
        self, config: RunnableConfig, checkpoint: Any, metadata: CheckpointMetadata, versions: ChannelVersions
    ) -> dict[str, Any]:
        thread_id, namespace = _place(config)
        return {
            "thread_id": thread_id,
            "namespace": namespace,
            "parent": get_checkpoint_id(config) or None,
            "checkpoint": checkpoint,
            "metadata": get_checkpoint_metadata(config, metadata),
            "new_versions": versions,
            "values": self._values_to_write(config),
            "exclusive": self._exclusive,
            "strict": self._strict,
        }

    # ── threads ──────────────────────────────────────────────────────────────────────────────

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread for good. What an unfinished run still stores of it is refused; a run that starts
        afresh under the same id is a new thread."""
        self._call("delete_thread", str(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """As :meth:`delete_thread`."""
        await self._acall("delete_thread", str(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Take out the checkpoints of these runs. Looks at the metadata of every checkpoint of the store."""
        self._call("delete_for_runs", run_ids, self._values)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As :meth:`delete_for_runs`."""
        await self._acall("delete_for_runs", run_ids, self._values)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """A new thread with all checkpoints of another, which both share. Raises
        :class:`ThreadExistsError` if the target has any."""
        self._call("copy_thread", str(source_thread_id), str(target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As :meth:`copy_thread`."""
        await self._acall("copy_thread", str(source_thread_id), str(target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep the latest checkpoint of each namespace, or with ``strategy="delete"`` nothing."""
        self._call("prune", thread_ids, strategy, self._values)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """As :meth:`prune`."""
        await self._acall("prune", thread_ids, strategy, self._values)

    # ── channels ─────────────────────────────────────────────────────────────────────────────

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, Any]:
        """For channels of the class ``DeltaChannel``: the writes that rebuild them."""
        found: Mapping[str, Any] = self._call("delta_history", *self._wanted(config), channels)
        return found

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, Any]:
        """As :meth:`get_delta_channel_history`."""
        found: Mapping[str, Any] = await self._acall("delta_history", *self._wanted(config), channels)
        return found

    def get_next_version(self, current: Any, channel: Any = None) -> Any:
        """The next version of a channel: a number, or the text that other savers use where one began it."""
        if current is None:
            return 1
        if isinstance(current, str):
            number, _, rest = current.partition(".")
            return f"{int(number) + 1:032}.{rest or '0'}"
        return int(current) + 1

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> EverthreadSaver:
        """The same saver, with more classes that its serializer may build."""
        made = super().with_allowlist(extra_allowlist)
        assert isinstance(made, EverthreadSaver)
        return made

    # ── what Everthread adds ─────────────────────────────────────────────────────────────────

    def thread_name(self, thread_id: str, checkpoint_ns: str = "") -> str:
        """The name of the Everthread thread behind a LangGraph thread, for ``store.thread()``,
        ``store.briefing()`` and the command line."""
        return thread_name(str(thread_id), checkpoint_ns, self._prefix)

    def thread(self, thread_id: str, checkpoint_ns: str = "") -> Any:
        """The Everthread thread behind a LangGraph thread: its history, diffs, forks, messages.

        A thread of the store's own colour: with an async store this is to be awaited.
        """
        return self._store.thread(self.thread_name(thread_id, checkpoint_ns))

    def thread_ids(self) -> builtins.list[str]:
        """Return the ids of all threads that hold checkpoints."""
        found: builtins.list[str] = self._call("thread_ids")
        return found

    async def athread_ids(self) -> builtins.list[str]:
        """As :meth:`thread_ids`."""
        found: builtins.list[str] = await self._acall("thread_ids")
        return found

    def import_from(self, other: BaseCheckpointSaver[Any], thread_ids: Iterable[str] | None = None) -> int:
        """Copy the checkpoints of another saver, with what tasks returned at them: all of its threads, or
        these. Return how many were copied.

        What is here already is not copied again, so an import that was interrupted can be repeated. Raises
        :class:`ThreadExistsError`, before anything of a thread is copied, if this saver has a checkpoint of
        it that the other one hasn't.
        """
        ids = _ids_of(other.list(None)) if thread_ids is None else [*map(str, thread_ids)]
        count = 0
        for thread_id in ids:
            config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
            theirs = sorted(map(_key_of, other.list(config)), key=_by_age)
            for key in _missing(thread_id, theirs, map(_key_of, self.list(config))):
                if (found := other.get_tuple(_config_of(thread_id, key))) is not None:
                    self._call("put", **self._imported(found))
                    for task_id, writes in _by_task(found):
                        self.put_writes(found.config, writes, task_id)
                    count += 1
        return count

    async def aimport_from(
        self, other: BaseCheckpointSaver[Any], thread_ids: Iterable[str] | None = None
    ) -> int:
        """As :meth:`import_from`."""
        if thread_ids is None:
            ids = _ids_of([each async for each in other.alist(None)])
        else:
            ids = [*map(str, thread_ids)]
        count = 0
        for thread_id in ids:
            config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
            theirs = sorted([_key_of(each) async for each in other.alist(config)], key=_by_age)
            ours = [_key_of(each) async for each in self.alist(config)]
            for key in _missing(thread_id, theirs, ours):
                if (found := await other.aget_tuple(_config_of(thread_id, key))) is not None:
                    await self._acall("put", **self._imported(found))
                    for task_id, writes in _by_task(found):
                        await self.aput_writes(found.config, writes, task_id)
                    count += 1
        return count

    def _imported(self, found: CheckpointTuple) -> dict[str, Any]:
        parent = get_checkpoint_id(found.parent_config) if found.parent_config is not None else None
        thread_id, namespace = _place(found.config)
        return {
            "thread_id": thread_id,
            "namespace": namespace,
            "parent": parent,
            "checkpoint": found.checkpoint,
            "metadata": found.metadata,
            "new_versions": found.checkpoint["channel_versions"],
            "values": self._values_to_write(found.config),
            # Branches are part of what is imported.
            "exclusive": False,
            "strict": True,
        }

    def fork(self, thread_id: str, new_thread_id: str, checkpoint_id: str | None = None) -> None:
        """A new thread that shares the checkpoints of another, all or those up to one.

        Raises :class:`ThreadExistsError`, :class:`ThreadNotFoundError`, :class:`VersionNotFoundError`.
        """
        self._call("fork", str(thread_id), str(new_thread_id), checkpoint_id, self._values)

    async def afork(self, thread_id: str, new_thread_id: str, checkpoint_id: str | None = None) -> None:
        """As :meth:`fork`."""
        await self._acall("fork", str(thread_id), str(new_thread_id), checkpoint_id, self._values)

    def rewind(self, thread_id: str, checkpoint_id: str, checkpoint_ns: str = "") -> str:
        """Make an earlier state the latest one again: a copy of its checkpoint, whose id is returned.

        What tasks had returned at it doesn't count: they run again. Nothing is lost, a later checkpoint can
        be rewound to as well. Raises :class:`VersionNotFoundError`.
        """
        return str(self._call("rewind", str(thread_id), checkpoint_ns, checkpoint_id, self._values))

    async def arewind(self, thread_id: str, checkpoint_id: str, checkpoint_ns: str = "") -> str:
        """As :meth:`rewind`."""
        return str(await self._acall("rewind", str(thread_id), checkpoint_ns, checkpoint_id, self._values))

    def diff(self, thread_id: str, old: str, new: str, checkpoint_ns: str = "") -> Diff:
        """What changed from one checkpoint to another: channels, and items of long lists."""
        found: Diff = self._call("diff", str(thread_id), checkpoint_ns, old, new)
        return found

    async def adiff(self, thread_id: str, old: str, new: str, checkpoint_ns: str = "") -> Diff:
        """As :meth:`diff`."""
        found: Diff = await self._acall("diff", str(thread_id), checkpoint_ns, old, new)
        return found


#: A checkpoint of a thread: its namespace and id.
_Key = tuple[str, str]


def _key_of(found: CheckpointTuple) -> _Key:
    configurable = found.config["configurable"]
    return configurable.get("checkpoint_ns") or "", configurable["checkpoint_id"]


def _by_age(key: _Key) -> _Key:
    return key[1], key[0]


def _config_of(thread_id: str, key: _Key) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": key[0], "checkpoint_id": key[1]}}


def _ids_of(found: Iterable[CheckpointTuple]) -> builtins.list[str]:
    return sorted({str(each.config["configurable"]["thread_id"]) for each in found})


def _missing(thread_id: str, theirs: Sequence[_Key], ours: Iterable[_Key]) -> builtins.list[_Key]:
    """Return the checkpoints of another saver that aren't here, oldest first."""
    here = set(ours)
    if others := here.difference(theirs):
        raise ThreadExistsError(
            f"the thread {thread_id!r} can't be imported: {len(others)} checkpoints here aren't in the "
            "other saver; delete the thread here, or import into another store"
        )
    return [key for key in theirs if key not in here]


def _by_task(found: CheckpointTuple) -> builtins.list[tuple[str, builtins.list[tuple[str, Any]]]]:
    """Return what tasks returned at a checkpoint, by task."""
    tasks: dict[str, builtins.list[tuple[str, Any]]] = {}
    for task_id, channel, value in found.pending_writes or ():
        tasks.setdefault(task_id, []).append((channel, value))
    return [*tasks.items()]


async def _next(listed: AsyncIterator[Any]) -> Any:
    async for found in listed:
        return found
    return _END


def _place(config: RunnableConfig) -> tuple[str, str]:
    configurable = config["configurable"]
    return thread_id_of(configurable), configurable.get("checkpoint_ns") or ""


def _stored(config: RunnableConfig, checkpoint: Checkpoint) -> RunnableConfig:
    configurable = config["configurable"]
    return {
        "configurable": {
            "thread_id": configurable["thread_id"],
            "checkpoint_ns": configurable.get("checkpoint_ns", ""),
            "checkpoint_id": checkpoint["id"],
        }
    }
