# Generated from stores/postgres/aio/copies.py by tools/twin.py: change that, then run: make twin
"""Backups of a whole store, and bringing one back: through the connection, into one file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from everthread.errors import StorageWriteError
from everthread.stores.backup_file import folder_for, put_in_place, require_file
from everthread.stores.contract import ErasedKey, PutCell, erasure_after_restore, split_keys
from everthread.stores.postgres import copies_statements as copies
from everthread.stores.postgres import statements
from everthread.stores.postgres.copies_format import Writer, read_frames
from everthread.stores.postgres.sync.connections import Transaction
from everthread.stores.postgres.sync.erasing import Erasing
from everthread.stores.postgres.wire import in_schema

#: All tables as they were at one moment.
_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = 0"
_ALL_OR_NOTHING = (
    "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; SELECT everthread.durability(true)"
)
#: As many are put in by one statement.
_CELLS = 1000


class Copies(Erasing):
    """What :class:`PostgresBackend` does about backups."""

    def backup(self, path: str) -> None:
        """A complete copy at ``path``, which must not exist: there whole and on disk, or not at all."""
        folder = folder_for(path)
        partial = f"{path}.partial-{os.urandom(8).hex()}"
        try:
            self._write(partial)
            put_in_place(partial, path, folder)
        except OSError as error:
            raise StorageWriteError(
                f"the backup {path} couldn't be written ({error}); the store itself is as it was. "
                "Make room or choose another place, then back up again"
            ) from error
        finally:
            with suppress(OSError):
                os.unlink(partial)

    def _write(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            writer = Writer(file)
            with self.connections.transaction(_SNAPSHOT, hurried=False) as transaction:
                for table in copies.TABLES:
                    transaction.script(in_schema(table.read, self.connections.settings.quoted_schema))
                    while rows := transaction.run(copies.FETCH):
                        writer.add(table.name, rows)
                    transaction.script("CLOSE everthread_copy")
            writer.finish()

    def restore(self, path: str, cells: Sequence[PutCell] = ()) -> None:
        """Replace the whole content by that of a backup and ``cells``, all or nothing."""
        require_file(path)
        # Looked through to the end before anything is touched.
        restored = {
            row[0]: _entry(row) for table, rows in read_frames(path) if table == "erased" for row in rows
        }
        quoted = self.connections.settings.quoted_schema
        begin = in_schema(_ALL_OR_NOTHING, quoted)
        with self.connections.transaction(begin, hurried=False) as transaction:
            transaction.script(in_schema(copies.LOCK_ALL, quoted))
            present = [_entry(row) for row in transaction.run(statements.LEDGER)]
            transaction.script(in_schema(copies.BEGIN_RESTORE, quoted))
            ledger = dict(restored)
            for entry in present:
                ledger[entry.key_id] = erasure_after_restore(entry, restored.get(entry.key_id))
            _fill(transaction, path, ledger)
            for at in range(0, len(cells), _CELLS):
                transaction.run(copies.PUT_CELLS, _columns(cells[at : at + _CELLS]))
            transaction.script(in_schema(copies.END_RESTORE, quoted))
        self._stashed.clear()
        self._known.clear()
        self.signals.ring_all()


def _fill(transaction: Transaction, path: str, ledger: dict[bytes, ErasedKey]) -> None:
    """Put everything in, except what is sealed under a key of the ledger."""
    puts = {table.name: table.put for table in copies.TABLES}
    for table, rows in read_frames(path):
        if table == "sealed":
            rows = [row for row in rows if ledger.keys().isdisjoint(split_keys(row[2]))]
        if table in puts and rows:
            transaction.run(puts[table], [list(column) for column in zip(*rows, strict=True)])
    entries = list(ledger.values())
    columns: list[Any] = [
        [entry.key_id for entry in entries],
        [entry.erasure for entry in entries],
        [entry.phase for entry in entries],
        [entry.noted_us for entry in entries],
        [entry.note for entry in entries],
    ]
    transaction.run(copies.PUT_ERASED, columns)


def _columns(cells: Sequence[PutCell]) -> list[Any]:
    return [
        [cell.space.encode() for cell in cells],
        [cell.name.encode() for cell in cells],
        [cell.written_us for cell in cells],
        [cell.value for cell in cells],
    ]


def _entry(row: Any) -> ErasedKey:
    key_id, erasure, phase, noted_us, note = row
    return ErasedKey(key_id=key_id, erasure=erasure, phase=phase, noted_us=noted_us, note=note)
