"""Tables, statements and migrations of the SQLite store: ``schema.sql`` and ``statements.sql``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from everthread.errors import NotAStoreError, SchemaVersionError
from everthread.stores.resources import read_sections
from everthread.stores.sqlite.errors import unknown

if TYPE_CHECKING:
    import apsw

#: "EVTH": marks a database file as ours.
APPLICATION_ID = 0x45565448


class Schema(NamedTuple):
    """A layout of tables and its versions, which SQLite's user_version holds."""

    #: The version that the first migration results in. Files of lower versions have another layout.
    first: int
    #: Each brings a database from one version to the next.
    migrations: tuple[str, ...]

    @property
    def version(self) -> int:
        return self.first + len(self.migrations) - 1


MIGRATIONS: tuple[str, ...] = tuple(read_sections(__package__, "schema.sql").values())
SCHEMA_VERSION = len(MIGRATIONS)
LINES = Schema(1, MIGRATIONS)

#: Every statement, by name, without the comments around it.
SQL = {
    name: "\n".join(line for line in text.splitlines() if line and not line.startswith("--"))
    for name, text in read_sections(__package__, "statements.sql").items()
}

#: A record's id is line << 32 | seq.
SEQ_BITS = 32
SEQ_MASK = (1 << SEQ_BITS) - 1


def row_id(line: int, seq: int) -> int:
    return line << SEQ_BITS | seq


def identify(connection: apsw.Connection, path: str, schema: Schema = LINES) -> int:
    """The schema version of the file; 0 for a new one. Raises unless it is new or ours."""
    import apsw

    try:
        empty = False
        application_id = connection.pragma("application_id")
        if application_id != APPLICATION_ID:
            # In one snapshot: another process may be creating the tables right now.
            connection.execute("BEGIN")
            empty = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0] == 0
            application_id = connection.pragma("application_id")
        version: int = connection.pragma("user_version")
        if connection.in_transaction:
            connection.execute("COMMIT")
    except apsw.NotADBError as error:
        raise unknown(path) from error
    if application_id == APPLICATION_ID:
        if version > schema.version:
            raise SchemaVersionError(
                f"{path} was written by a newer Everthread (schema {version}, this one knows "
                f"{schema.version}); upgrade Everthread. Nothing was touched",
                found=version,
                supported=schema.version,
            )
        if 0 < version < schema.first:
            raise SchemaVersionError(
                f"{path} was written by an Everthread before its first release (schema {version}, this one "
                f"knows {schema.first} and later); export it with that one. Nothing was touched",
                found=version,
                supported=schema.version,
            )
        return version
    if application_id == 0 and version == 0 and empty:
        return 0
    raise NotAStoreError(f"{path} is a SQLite database of another program; it was left as it is")


def migrate(
    connection: apsw.Connection, migrations: tuple[str, ...] = MIGRATIONS, first: int = LINES.first
) -> None:
    """Bring the tables up to date, in one transaction; another process may be doing the same."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.pragma("user_version")
        for migration in migrations[max(version + 1 - first, 0) :]:
            connection.execute(migration)
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", first + len(migrations) - 1)
        connection.execute("COMMIT")
    except BaseException:
        rollback(connection)
        raise


def rollback(connection: apsw.Connection) -> None:
    """End a transaction, if there is one."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
