# Generated from stores/postgres/aio/registers.py by tools/twin.py: change that, then run: make twin
"""Cells, streams of events, sealed values and the erasure ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from everthread.errors import LimitError
from everthread.stores.contract import (
    Cell,
    ErasedKey,
    NewEvent,
    SealedRow,
    StaleCell,
    StoredEvent,
    merged_erasure,
)
from everthread.stores.postgres import statements
from everthread.stores.postgres.sync.writing import Writing

_TIME_MIN, _TIME_MAX = -(1 << 63), (1 << 63) - 1


class Registers(Writing):
    """What :class:`PostgresBackend` keeps besides lines. Times of cells are by the server's clock."""

    def cell(self, space: str, name: str, now_us: int) -> Cell | None:
        rows = self.connections.read(statements.CELL, (space, name))
        return Cell(*rows[0]) if rows else None

    def swap(
        self,
        space: str,
        name: str,
        expected: int,
        value: bytes | None,
        now_us: int,
        durable: bool = True,
    ) -> int:
        durable = durable and self.connections.settings.durable
        values = space, name, expected, value, durable
        ((swapped, revision, held, held_us, read_us),) = self.connections.run(statements.SWAP, values)
        if not swapped:
            raise StaleCell(None if held is None else Cell(held, revision, held_us, read_us))
        return 0 if value is None else int(revision)

    def cells(
        self, space: str, prefix: str, after: str | None, limit: int, now_us: int = 0
    ) -> list[tuple[str, Cell]]:
        rows = self.connections.read(statements.CELLS, (space, prefix, after or "", limit))
        found = [(name.decode(), Cell(*columns)) for name, *columns in rows]
        return [entry for entry in found if entry[0].startswith(prefix)]

    # ── streams ──────────────────────────────────────────────────────────────────────────────

    def emit(
        self, space: str, stream: str, events: Sequence[NewEvent], sealed: Sequence[SealedRow] = ()
    ) -> int:
        assert events, "at least one event"
        values = (
            *(space, stream),
            [event.type for event in events],
            [event.agent for event in events],
            [event.at_us for event in events],
            [event.body for event in events],
            [value_id for value_id, _, _ in sealed],
            [keys for _, keys, _ in sealed],
            [data for _, _, data in sealed],
            self.connections.settings.durable,
        )
        ((first,),) = self._sealing(statements.EMIT, values, None, sealed)
        if not first:
            raise LimitError(f"the stream {stream!r} is full; go on in another one")
        return int(first)

    def events(
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
            *(space, stream, _in_range(after)),
            _TIME_MIN if since_us is None else _in_range(since_us),
            _TIME_MAX if until_us is None else _in_range(until_us),
            limit,
        )
        if type is not None and agent is not None:
            rows = self.connections.read(statements.EVENTS_OF_TYPE_AND_AGENT, (*common, type, agent))
        elif type is not None:
            rows = self.connections.read(statements.EVENTS_OF_TYPE, (*common, type))
        elif agent is not None:
            rows = self.connections.read(statements.EVENTS_OF_AGENT, (*common, agent))
        else:
            rows = self.connections.read(statements.EVENTS, common)
        return [
            StoredEvent(seq, at_us, kind.decode(), None if by is None else by.decode(), body)
            for seq, at_us, kind, by, body in rows
        ]

    def streams(self, space: str, prefix: str, after: str | None, limit: int) -> list[tuple[str, int]]:
        rows = self.connections.read(statements.STREAMS, (space, prefix, after or "", limit))
        found = [(name.decode(), last) for name, last in rows]
        return [entry for entry in found if entry[0].startswith(prefix)]

    def drop_stream(self, space: str, stream: str) -> bool:
        values = space, stream, self.connections.settings.durable
        ((dropped,),) = self.connections.run(statements.DROP_STREAM, values)
        return bool(dropped)

    def rewrite_events(self, space: str, stream: str, bodies: Mapping[int, bytes]) -> int:
        if not bodies:
            return 0
        values = space, stream, list(bodies), list(bodies.values())
        return len(self.connections.run(statements.REWRITE_EVENTS, values))

    # ── the erasure ledger ───────────────────────────────────────────────────────────────────

    def note_erasures(self, keys: Sequence[ErasedKey]) -> None:
        entries: dict[bytes, ErasedKey] = {}
        for entry in keys:
            entries[entry.key_id] = merged_erasure(entries.get(entry.key_id), entry)
        if not entries:
            return
        noted = list(entries.values())
        values = (
            [entry.key_id for entry in noted],
            [entry.erasure for entry in noted],
            [entry.phase for entry in noted],
            [entry.noted_us for entry in noted],
            [entry.note for entry in noted],
        )
        self.connections.read(statements.NOTE_ERASURES, values)

    def erasures(self, unfinished: bool = False) -> list[ErasedKey]:
        rows = self.connections.read(statements.UNFINISHED if unfinished else statements.LEDGER, ())
        return [
            ErasedKey(key_id=key_id, erasure=erasure, phase=phase, noted_us=noted_us, note=note)
            for key_id, erasure, phase, noted_us, note in rows
        ]

    def erased(self, key_ids: Iterable[bytes]) -> set[bytes]:
        rows = self.connections.read(statements.ERASED, (list(key_ids),))
        return {key_id for (key_id,) in rows}

    def sealed_under(self, key_ids: Sequence[bytes], after: bytes, limit: int) -> list[SealedRow]:
        values = list(key_ids), after, limit
        rows: list[Any] = self.connections.read(statements.SEALED_UNDER, values)
        return rows

    def drop_sealed(self, key_ids: Sequence[bytes]) -> int:
        values = list(key_ids), self.connections.settings.durable
        ((removed,),) = self.connections.run(statements.DROP_SEALED, values)
        return int(removed)


def _in_range(number: int) -> int:
    return min(max(number, _TIME_MIN), _TIME_MAX)
