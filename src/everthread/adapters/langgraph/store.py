"""``EverthreadStore``: what LangGraph's agents remember beyond a thread, on a store of either colour."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from langgraph.store.base import (
    BaseStore,
    IndexConfig,
    InvalidNamespaceError,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchOp,
    TTLConfig,
    ensure_embeddings,
    get_text_at_path,
)

from everthread.adapters.langgraph.aio.items import PREFIX, AsyncItems
from everthread.adapters.langgraph.memories import pack_vector
from everthread.adapters.langgraph.sync.items import Items
from everthread.errors import EverthreadError, StoreClosedError, UsageError
from everthread.store import Store
from everthread.store_async import AsyncStore

_LOGGER = logging.getLogger(__name__)


class _Sweeper:
    """Calls a function again and again until it is stopped, or its future is cancelled."""

    def __init__(self, sweep: Callable[[], int], interval_s: float) -> None:
        self._sweep = sweep
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="everthread-ttl")
        self.future: Future[None] = Future()
        self.future.add_done_callback(lambda _: self._ended.set())

    @property
    def runs(self) -> bool:
        return self._thread.is_alive() and not self._ended.is_set()

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float | None) -> bool:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            try:
                self._sweep()
            except StoreClosedError:
                break
            except EverthreadError:
                # The next round may find the store in reach again.
                _LOGGER.exception("items whose time is over couldn't be removed")
        if not self.future.done():
            self.future.set_result(None)


class EverthreadStore(BaseStore):
    """Items by namespace and key: ``builder.compile(store=EverthreadStore(store))``.

    ``index={"dims": …, "embed": …, "fields": […]}`` lets ``search(query=…)`` rank by meaning; every item
    under the prefix is compared, which is quick for thousands and slow for millions. ``ttl`` is LangGraph's
    ``TTLConfig``; an item whose time is over is never shown, and removed when it is next met or by
    :meth:`sweep`. Storing an item costs the same however many there are; a search without a query gives
    the newest first and reads every item under its prefix. The store is the caller's.
    """

    supports_ttl = True

    def __init__(
        self,
        store: Store | AsyncStore,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        prefix: str = PREFIX,
    ) -> None:
        self.ttl_config = ttl
        self._dims = index.get("dims") if index else None
        self._embeddings = ensure_embeddings(index["embed"]) if index else None
        self._fields: list[str] = list((index.get("fields") if index else None) or ["$"])
        self._items: Items | None = None
        self._aitems: AsyncItems | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeper: _Sweeper | None = None
        if isinstance(store, Store):
            self._items = Items(store, prefix)
        elif isinstance(store, AsyncStore):
            self._aitems = AsyncItems(store, prefix)
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:
                self._loop = None
        else:
            raise UsageError(
                f"EverthreadStore takes an open store, not {type(store).__name__}: "
                "everthread.open(…), or await everthread.open_async(…)"
            )

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Do several things, in their order, and return what each of them answers.

        Raises LangGraph's ``InvalidNamespaceError``, before anything is done, for the labels that
        ``put()``, ``get()`` and ``search()`` refuse: those that are empty, no text, or hold a period or NUL.
        """
        todo = _checked(ops)
        texts = self._texts(todo)
        embedded: list[list[float]] = []
        if self._embeddings is not None and (flat := _flat(texts)):
            embedded = self._embeddings.embed_documents(flat)
        packed = self._pack(texts, embedded)
        if self._items is not None:
            return self._items.run(todo, *_by_op(todo, packed))
        work = self._aitems_run(todo, packed)
        loop = self._loop
        if loop is None or not loop.is_running() or _running() is loop:
            work.close()
            raise UsageError(
                "this is on an async store: use aput(), aget(), asearch(), or give EverthreadStore "
                "a store of everthread.open()"
            )
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As :meth:`batch`."""
        todo = _checked(ops)
        texts = self._texts(todo)
        embedded: list[list[float]] = []
        if self._embeddings is not None and (flat := _flat(texts)):
            embedded = await self._embeddings.aembed_documents(flat)
        packed = self._pack(texts, embedded)
        if self._items is not None:
            return await asyncio.to_thread(self._items.run, todo, *_by_op(todo, packed))
        self._loop = asyncio.get_running_loop()
        return await self._aitems_run(todo, packed)

    async def _aitems_run(self, todo: list[Op], packed: list[tuple[bytes, ...]]) -> list[Result]:
        assert self._aitems is not None
        return await self._aitems.run(todo, *_by_op(todo, packed))

    def setup(self) -> None:
        """Nothing is to be prepared; stores of LangGraph have it."""

    async def asetup(self) -> None:
        """As :meth:`setup`."""

    def sweep_ttl(self) -> int:
        """As :meth:`sweep`, by the name that stores of LangGraph have for it."""
        return self.sweep()

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Sweep again and again, on a thread of its own; by default every five minutes, or as ``ttl`` says.

        Without a ``ttl`` nothing is started. The future ends when it is cancelled, or by
        :meth:`stop_ttl_sweeper`; a sweeper that runs already goes on. Raises :class:`UsageError` on an async
        store, whose :meth:`asweep` is awaited instead.
        """
        if self._items is None:
            raise UsageError("this is on an async store: await asweep() from time to time")
        if self._sweeper is not None and self._sweeper.runs:
            return self._sweeper.future
        minutes = sweep_interval_minutes or (self.ttl_config or {}).get("sweep_interval_minutes") or 5
        self._sweeper = _Sweeper(self.sweep, minutes * 60)
        if self.ttl_config is None:
            self._sweeper.future.set_result(None)
        else:
            self._sweeper.start()
        return self._sweeper.future

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop sweeping and wait for the sweep under way; whether it has ended within ``timeout`` seconds."""
        return self._sweeper is None or self._sweeper.stop(timeout)

    def sweep(self) -> int:
        """Remove the items whose time is over; how many. Reads all items."""
        if self._items is None:
            raise UsageError("this is on an async store: await asweep()")
        return self._items.sweep()

    async def asweep(self) -> int:
        """As :meth:`sweep`."""
        if self._items is not None:
            return await asyncio.to_thread(self._items.sweep)
        assert self._aitems is not None
        return await self._aitems.sweep()

    # ── meaning ──────────────────────────────────────────────────────────────────────────────

    def _texts(self, ops: Sequence[Op]) -> list[list[str]]:
        """What is to be embedded for each op."""
        found: list[list[str]] = []
        for op in ops:
            texts: list[str] = []
            if self._embeddings is not None:
                if isinstance(op, PutOp) and op.value is not None and op.index is not False:
                    for path in op.index or self._fields:
                        texts.extend(get_text_at_path(op.value, path))
                elif isinstance(op, SearchOp) and op.query:
                    texts.append(op.query)
            found.append(texts)
        return found

    def _pack(self, texts: list[list[str]], embedded: list[list[float]]) -> list[tuple[bytes, ...]]:
        vectors = iter(embedded)
        return [tuple(pack_vector(next(vectors), self._dims) for _ in each) for each in texts]


def _checked(ops: Iterable[Op]) -> list[Op]:
    todo = list(ops)
    for op in todo:
        if isinstance(op, SearchOp):
            paths = [op.namespace_prefix]
        elif isinstance(op, ListNamespacesOp):
            paths = [each.path for each in op.match_conditions or ()]
        else:
            paths = [op.namespace]
        for label in (label for path in paths for label in path):
            if not isinstance(label, str) or not label or "." in label or "\0" in label:
                raise InvalidNamespaceError(
                    f"the namespace label {label!r} is invalid: labels must be text, not empty, and without "
                    "periods and NUL"
                )
    return todo


def _flat(texts: list[list[str]]) -> list[str]:
    return [text for each in texts for text in each]


def _by_op(
    ops: Sequence[Op], packed: list[tuple[bytes, ...]]
) -> tuple[list[tuple[bytes, ...]], list[bytes | None]]:
    """The vectors of items, and those of queries."""
    queries = [
        vectors[0] if isinstance(op, SearchOp) and vectors else None
        for op, vectors in zip(ops, packed, strict=True)
    ]
    return packed, queries


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
