"""Whose file it is, and bringing its tables up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everthread.errors import NotAStoreError, SchemaVersionError
from everthread.stores.sqlite import schema
from everthread.stores.sqlite.failing import unknown
from everthread.stores.sqlite.turns import Turn

if TYPE_CHECKING:
    import apsw


def identify(connection: apsw.Connection, path: str) -> int:
    """The schema version of the file; 0 for a new one. Raises unless it is new or ours."""
    import apsw

    try:
        empty = False
        application_id = connection.pragma("application_id")
        if application_id != schema.APPLICATION_ID:
            # In one snapshot: another process may be creating the tables right now.
            connection.execute("BEGIN")
            empty = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0] == 0
            application_id = connection.pragma("application_id")
        version: int = connection.pragma("user_version")
        if connection.in_transaction:
            connection.execute("COMMIT")
    except apsw.NotADBError as error:
        raise unknown(path) from error
    if application_id == schema.APPLICATION_ID:
        if version > schema.SCHEMA_VERSION:
            raise SchemaVersionError(
                f"{path} was written by a newer Everthread (schema {version}, this one knows "
                f"{schema.SCHEMA_VERSION}); upgrade Everthread. Nothing was touched",
                found=version,
                supported=schema.SCHEMA_VERSION,
            )
        return version
    if application_id == 0 and version == 0 and empty:
        return 0
    raise NotAStoreError(f"{path} is a SQLite database of another program; it was left as it is")


def set_up(connection: apsw.Connection, path: str, busy_timeout_ms: int) -> None:
    """Make a new file a store, or bring an older one up to date, one process at a time."""
    turn = Turn(path, busy_timeout_ms)
    turn.take()
    try:
        # WAL first: it can't be set inside the transaction that makes the tables.
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        migrate(connection)
    finally:
        turn.close()


def migrate(connection: apsw.Connection) -> None:
    """Bring the tables up to date, in one transaction; another process may be doing the same."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.pragma("user_version")
        for migration in schema.MIGRATIONS[version:]:
            for statement in migration:
                connection.execute(statement)
        connection.pragma("application_id", schema.APPLICATION_ID)
        connection.pragma("user_version", schema.SCHEMA_VERSION)
        connection.execute("COMMIT")
    except BaseException:
        rollback(connection)
        raise


def rollback(connection: apsw.Connection) -> None:
    """End a transaction, if there is one."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
