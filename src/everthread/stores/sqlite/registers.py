"""Cells and streams of the SQLite store: the verbs, on the statements of ``cells`` and ``events``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everthread.stores.contract import Cell, NewEvent, SealedRow, StoredEvent
from everthread.stores.sqlite import cells as cell_table
from everthread.stores.sqlite import events as event_table
from everthread.stores.sqlite.connecting import Settings, synchronous
from everthread.stores.sqlite.connections import Connections
from everthread.stores.sqlite.reading import Reading
from everthread.stores.sqlite.sealed import add_sealed, refusal


class Registers:
    """What :class:`SqliteBackend` keeps besides lines."""

    _settings: Settings
    _connections: Connections

    def cell(self, space: str, name: str, now_us: int) -> Cell | None:
        with Reading(self._connections, False, False) as db:
            return cell_table.read_cell(db, space, name, now_us)

    def swap(
        self,
        space: str,
        name: str,
        expected: int,
        value: bytes | None,
        now_us: int,
        durable: bool = True,
    ) -> int:
        with self._connections as db:
            if durable:
                return cell_table.swap_cell(db, space, name, expected, value, now_us)
            synchronous(db, "process")
            try:
                return cell_table.swap_cell(db, space, name, expected, value, now_us)
            finally:
                if not db.in_transaction:
                    synchronous(db, self._settings.durability)

    def cells(
        self, space: str, prefix: str, after: str | None, limit: int, now_us: int = 0
    ) -> list[tuple[str, Cell]]:
        with Reading(self._connections, False, False) as db:
            return cell_table.list_cells(db, space, prefix, after, limit, now_us)

    def emit(
        self, space: str, stream: str, events: Sequence[NewEvent], sealed: Sequence[SealedRow] = ()
    ) -> int:
        with self._connections as db:
            db.execute("BEGIN IMMEDIATE")
            if erased := refusal(db, sealed):
                raise erased
            first = event_table.add_events(db, space, stream, events)
            add_sealed(db, sealed)
            db.execute("COMMIT")
        return first

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
        with Reading(self._connections, False, False) as db:
            return event_table.read_events(
                db, space, stream, after, limit, type=type, agent=agent, since_us=since_us, until_us=until_us
            )

    def streams(self, space: str, prefix: str, after: str | None, limit: int) -> list[tuple[str, int]]:
        with Reading(self._connections, False, False) as db:
            return event_table.list_streams(db, space, prefix, after, limit)

    def drop_stream(self, space: str, stream: str) -> bool:
        with self._connections as db:
            db.execute("BEGIN IMMEDIATE")
            dropped = event_table.empty_stream(db, space, stream)
            db.execute("COMMIT")
        return dropped

    def rewrite_events(self, space: str, stream: str, bodies: Mapping[int, bytes]) -> int:
        with self._connections as db:
            db.execute("BEGIN IMMEDIATE")
            rewritten = event_table.rewrite(db, space, stream, bodies)
            db.execute("COMMIT")
        return rewritten
