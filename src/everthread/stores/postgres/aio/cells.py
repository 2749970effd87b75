"""Cells, and streams of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everthread.errors import LimitError
from everthread.stores.contract import Cell, NewEvent, SealedRow, StaleCell, StoredEvent
from everthread.stores.postgres.aio.erasure import run_sealing
from everthread.stores.postgres.aio.pool import AsyncPool
from everthread.stores.postgres.rows import name_bytes, space_bytes

_TIME_MIN, _TIME_MAX = -(1 << 63), (1 << 63) - 1


class Cells:
    """Cells and streams of :class:`AsyncPostgresBackend`. Times of cells are by the server's clock."""

    pool: AsyncPool

    async def cell(self, space: str, name: str, now_us: int) -> Cell | None:
        rows = await self.pool.read("cell", (space_bytes(space), name_bytes(name)))
        return Cell(*rows[0]) if rows else None

    async def swap(
        self,
        space: str,
        name: str,
        expected: int,
        value: bytes | None,
        now_us: int,
        durable: bool = True,
    ) -> int:
        durable = durable and self.pool.settings.durable
        values = space_bytes(space), name_bytes(name), expected, value, durable
        ((swapped, revision, held, held_us, read_us),) = await self.pool.run("swap", values)
        if not swapped:
            raise StaleCell(None if held is None else Cell(held, revision, held_us, read_us))
        return 0 if value is None else int(revision)

    async def cells(
        self, space: str, prefix: str, after: str | None, limit: int, now_us: int = 0
    ) -> list[tuple[str, Cell]]:
        rows = await self.pool.read("cells", _page(space, prefix, after, limit))
        found = [(name.decode(), Cell(*columns)) for name, *columns in rows]
        return [entry for entry in found if entry[0].startswith(prefix)]

    # ── streams ──────────────────────────────────────────────────────────────────────────────

    async def emit(
        self, space: str, stream: str, events: Sequence[NewEvent], sealed: Sequence[SealedRow] = ()
    ) -> int:
        assert events, "at least one event"
        values = (
            *(space_bytes(space), name_bytes(stream)),
            [name_bytes(event.type) for event in events],
            [None if event.agent is None else name_bytes(event.agent) for event in events],
            [event.at_us for event in events],
            [event.body for event in events],
            [value_id for value_id, _, _ in sealed],
            [keys for _, keys, _ in sealed],
            [data for _, _, data in sealed],
            self.pool.settings.durable,
        )
        ((first,),) = await run_sealing(self.pool, "emit", values, None, sealed)
        if not first:
            raise LimitError(f"the stream {stream!r} is full; go on in another one")
        return int(first)

    async def events(
        self,
        space: str,
        stream: str,
        after: int,
        limit: int,
        *,
        type: str | None = None,
        agent: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
    ) -> list[StoredEvent]:
        common = (
            *(space_bytes(space), name_bytes(stream), _in_range(after)),
            _TIME_MIN if since_us is None else _in_range(since_us),
            _TIME_MAX if until_us is None else _in_range(until_us),
            limit,
        )
        if type is not None and agent is not None:
            values = (*common, name_bytes(type), name_bytes(agent))
            rows = await self.pool.read("events_of_type_and_agent", values)
        elif type is not None:
            rows = await self.pool.read("events_of_type", (*common, name_bytes(type)))
        elif agent is not None:
            rows = await self.pool.read("events_of_agent", (*common, name_bytes(agent)))
        else:
            rows = await self.pool.read("events", common)
        return [
            StoredEvent(seq, at_us, kind.decode(), None if by is None else by.decode(), body)
            for seq, at_us, kind, by, body in rows
        ]

    async def streams(self, space: str, prefix: str, after: str | None, limit: int) -> list[tuple[str, int]]:
        rows = await self.pool.read("streams", _page(space, prefix, after, limit))
        found = [(name.decode(), last) for name, last in rows]
        return [entry for entry in found if entry[0].startswith(prefix)]

    async def drop_stream(self, space: str, stream: str) -> bool:
        values = space_bytes(space), name_bytes(stream), self.pool.settings.durable
        ((dropped,),) = await self.pool.run("drop_stream", values)
        return bool(dropped)

    async def rewrite_events(self, space: str, stream: str, bodies: Mapping[int, bytes]) -> int:
        if not bodies:
            return 0
        values = space_bytes(space), name_bytes(stream), list(bodies), list(bodies.values())
        return len(await self.pool.run("rewrite_events", values))


def _in_range(number: int) -> int:
    return min(max(number, _TIME_MIN), _TIME_MAX)


def _page(space: str, prefix: str, after: str | None, limit: int) -> tuple[bytes, bytes, bytes, int]:
    return space_bytes(space), name_bytes(prefix), name_bytes(after or ""), limit
