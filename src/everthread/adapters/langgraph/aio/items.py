"""The items of ``EverthreadStore``: a cell each, so that storing one costs the same among many."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.store.base import GetOp, Item, ListNamespacesOp, PutOp, SearchItem, SearchOp

from everthread.adapters.langgraph.memories import (
    Finder,
    Memory,
    cell_name,
    cell_prefix,
    expiry,
    is_under,
    read_memory,
    write_memory,
)
from everthread.adapters.langgraph.values import Values
from everthread.stores.contract import StaleCell

if TYPE_CHECKING:
    from everthread.threads.aio.store import AsyncThreadStore

PREFIX: Final = "langgraph-store/"
#: A page is what fits into so many bytes, judging by the one before: few pages where items are small, since
#: some stores look at all names for each of them, and bounded memory where they are large.
_PAGE_BYTES: Final = 8 * 1024 * 1024
_PAGE_ITEMS: Final = 20_000
_FIRST_PAGE_ITEMS: Final = 100


class AsyncItems:
    """All items of one store."""

    def __init__(self, store: AsyncThreadStore, prefix: str = PREFIX) -> None:
        self._core = store.core
        self._prefix = prefix
        self._values = Values(JsonPlusSerializer())

    async def run(
        self, ops: Sequence[Any], vectors: Sequence[tuple[bytes, ...]], queries: Sequence[bytes | None]
    ) -> list[Any]:
        """Do what the ops say, in their order; ``vectors`` and ``queries`` belong to them one by one."""
        results: list[Any] = []
        for op, packed, query in zip(ops, vectors, queries, strict=True):
            if isinstance(op, GetOp):
                results.append(await self.get(op))
            elif isinstance(op, SearchOp):
                results.append(await self.search(op, query))
            elif isinstance(op, ListNamespacesOp):
                results.append(await self.namespaces(op))
            elif isinstance(op, PutOp):
                await self.put(op, packed)
                results.append(None)
            else:
                raise ValueError(f"unknown operation {type(op).__name__}")
        return results

    async def get(self, op: GetOp) -> Item | None:
        name = cell_name(self._prefix, op.namespace, op.key)
        found = await self._read(name)
        if found is None:
            return None
        memory, revision = found
        if op.refresh_ttl and memory.ttl is not None:
            await self._refresh(name, memory, revision)
        return memory.item()

    async def put(self, op: PutOp, vectors: tuple[bytes, ...]) -> None:
        """Store an item, durably; ``None`` deletes it."""
        core = self._core
        name = cell_name(self._prefix, op.namespace, op.key)
        while True:
            now_us = core.runtime.now_us()
            cell = await core.backend.cell(core.space, name, now_us)
            value: bytes | None = None
            if op.value is None:
                if cell is None:
                    return
            else:
                created_us = now_us
                if cell is not None:
                    before = read_memory(cell.value, self._values)
                    created_us = now_us if before.is_over(now_us) else before.created_us
                memory = Memory(
                    namespace=tuple(op.namespace),
                    key=op.key,
                    value=op.value,  # type: ignore[arg-type]
                    created_us=created_us,
                    updated_us=now_us,
                    ttl=op.ttl,
                    expires_us=expiry(op.ttl, now_us),
                    vectors=vectors,
                )
                value = write_memory(memory, self._values, core.limits)
            try:
                await core.backend.swap(core.space, name, cell.revision if cell else 0, value, now_us)
            except StaleCell:
                # Somebody else stored it at the same moment: the last one stands.
                continue
            return

    async def search(self, op: SearchOp, query: bytes | None) -> list[SearchItem]:
        """The nearest items, or the newest. Reads every item under the prefix."""
        finder = Finder(op.filter, op.offset + op.limit, query)
        async for _, memory, _ in self._all(cell_prefix(self._prefix, op.namespace_prefix)):
            finder.show(memory)
        found = finder.found(op.offset)
        if op.refresh_ttl:
            for memory, _ in found:
                if memory.ttl is not None:
                    name = cell_name(self._prefix, memory.namespace, memory.key)
                    current = await self._read(name)
                    if current is not None:
                        await self._refresh(name, *current)
        return [memory.found(score) for memory, score in found]

    async def namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        conditions = op.match_conditions or ()
        found: set[tuple[str, ...]] = set()
        async for _, memory, _ in self._all(self._prefix):
            if all(is_under(memory.namespace, condition) for condition in conditions):
                found.add(memory.namespace[: op.max_depth] if op.max_depth else memory.namespace)
        return sorted(found)[op.offset : op.offset + op.limit]

    async def sweep(self) -> int:
        """Remove the items whose time is over; how many."""
        gone = 0
        async for name, memory, revision in self._all(self._prefix, over=True):
            if memory.is_over(self._core.runtime.now_us()):
                gone += await self._swap(name, revision, None)
        return gone

    async def _read(self, name: str) -> tuple[Memory, int] | None:
        core = self._core
        now_us = core.runtime.now_us()
        cell = await core.backend.cell(core.space, name, now_us)
        if cell is None:
            return None
        memory = read_memory(cell.value, self._values)
        if memory.is_over(now_us):
            await self._swap(name, cell.revision, None)
            return None
        return memory, cell.revision

    async def _all(self, prefix: str, *, over: bool = False) -> AsyncIterator[tuple[str, Memory, int]]:
        """The items whose cells begin so, those whose time is over only if asked for."""
        core = self._core
        after: str | None = None
        now_us = core.runtime.now_us()
        wanted = _FIRST_PAGE_ITEMS
        while page := await core.backend.cells(core.space, prefix, after, wanted, now_us):
            for name, cell in page:
                memory = read_memory(cell.value, self._values)
                if over or not memory.is_over(now_us):
                    yield name, memory, cell.revision
            if len(page) < wanted:
                return
            after = page[-1][0]
            average = sum(len(cell.value) for _, cell in page) // len(page) + 1
            wanted = max(1, min(_PAGE_ITEMS, 8 * wanted, _PAGE_BYTES // average))

    async def _refresh(self, name: str, memory: Memory, revision: int) -> None:
        fresh = memory.refreshed(self._core.runtime.now_us())
        await self._swap(name, revision, write_memory(fresh, self._values, self._core.limits), durable=False)

    async def _swap(self, name: str, revision: int, value: bytes | None, *, durable: bool = True) -> bool:
        core = self._core
        try:
            await core.backend.swap(core.space, name, revision, value, core.runtime.now_us(), durable)
        except StaleCell:
            # Stored anew meanwhile: then that counts.
            return False
        return True
