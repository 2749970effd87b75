"""A keyring in a PostgreSQL database of its own: for a fleet."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from everthread.codec.seal import RandomBytes
from everthread.errors import KeyringError, StoreBusyError
from everthread.keyring.lines import LineKeyring
from everthread.keyring.master import MasterKeeper, MasterKey
from everthread.keyring.sqlite import starting
from everthread.stores.contract import Residues

SCHEMA = "CREATE SCHEMA IF NOT EXISTS everthread_keyring"
TABLES = """
    CREATE TABLE IF NOT EXISTS everthread_keyring.line (start bigint PRIMARY KEY, text bytea NOT NULL);
    CREATE TABLE IF NOT EXISTS everthread_keyring.stand (
        id integer PRIMARY KEY CHECK (id = 1), generation bytea NOT NULL, size bigint NOT NULL
    )
"""
#: Two processes that make the tables at once would be in each other's way.
ALONE = "SELECT pg_advisory_xact_lock(6504418091042431571)"
STAND = "SELECT generation, size FROM everthread_keyring.stand"
LINES = "SELECT text FROM everthread_keyring.line WHERE start >= %s ORDER BY start"
CUT = "DELETE FROM everthread_keyring.line WHERE start >= %s"
ADD = "COPY everthread_keyring.line (start, text) FROM STDIN (FORMAT BINARY)"
GROW = "UPDATE everthread_keyring.stand SET size = %s"
BEGIN_ANEW = "INSERT INTO everthread_keyring.stand (id, generation, size) VALUES (1, %s, %s)"
FORGET = "DELETE FROM everthread_keyring.stand"
SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
#: Readers go on with what there was; writers wait.
LOCK = "LOCK TABLE everthread_keyring.line IN EXCLUSIVE MODE"
#: A key that was handed out is on disk, and a destroyed one stays so, whatever the server's default is.
DURABLY = """
    SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'
"""
#: For this transaction only: a pooler may hand the session to others afterwards.
PATIENCE = "SELECT set_config('lock_timeout', %s, true)"
WIPE = "VACUUM (FULL, ANALYZE) everthread_keyring.line"

_UNREACHED = "the write-ahead log, replicas and backups of the keyring's database server"


class PostgresKeyring(LineKeyring):
    """Keys of subjects in a database. The master key comes from the environment or from ``master``."""

    def __init__(
        self,
        url: str,
        master: MasterKey | None = None,
        random_bytes: RandomBytes = os.urandom,
        *,
        lock_timeout_ms: int = 10_000,
    ) -> None:
        medium = _Database(url, lock_timeout_ms)
        super().__init__(medium, MasterKeeper(None, master, medium.where), random_bytes)

    def __repr__(self) -> str:
        return f"PostgresKeyring({self.where!r})"


class _Database:
    """The lines in a table. One connection, opened when it is needed, and again when it was lost."""

    def __init__(self, url: str, lock_timeout_ms: int) -> None:
        self._url = url
        self._lock_timeout_ms = lock_timeout_ms
        self.where = _without_secrets(url)
        self._connection: psycopg.Connection[Any] | None = None
        self._depth = 0

    def look(self) -> tuple[object, int] | None:
        with self._told():
            try:
                found = self._open().execute(STAND).fetchone()
            except errors.UndefinedTable:
                return None
        return (bytes(found[0]), found[1]) if found else None

    def grown(self, size: int) -> bool:
        # It takes the same to ask for everything.
        return True

    def stays(self, generation: object, size: int) -> bool:
        return self.look() == (generation, size)

    @contextmanager
    def held(self, *, exclusive: bool = False) -> Iterator[None]:
        if self._depth:
            yield
            return
        with self._told():
            db = self._open()
            db.execute("BEGIN" if exclusive else SNAPSHOT)
            db.execute(PATIENCE, (str(self._lock_timeout_ms),))
            if exclusive:
                db.execute(LOCK)
        self._depth = 1
        try:
            yield
        finally:
            self._depth = 0
            # What was written has been committed where it was; whatever is left is not to be.
            if self._connection is not None and not self._connection.closed:
                with self._told():
                    self._connection.execute("ROLLBACK")

    def read(self, offset: int) -> bytes:
        with self._told():
            return b"".join(bytes(line) for (line,) in self._open().execute(LINES, (offset,)))

    def append(self, line: bytes, end: int) -> None:
        with self._told():
            db = self._open()
            db.execute(CUT, (end,))
            self._add(db, [(end, line)])
            db.execute(GROW, (end + len(line),))
            db.execute(DURABLY)
            db.execute("COMMIT")

    def replace(self, lines: Sequence[bytes]) -> Callable[[], None]:
        with self._told():
            db = self._open()
            db.execute(CUT, (0,))
            db.execute(FORGET)
            self._add(db, starting(lines))
            db.execute(BEGIN_ANEW, (os.urandom(16), sum(map(len, lines))))
            db.execute(DURABLY)
            db.execute("COMMIT")

        def wipe() -> None:
            with self._told():
                db.execute(WIPE)

        return wipe

    def _add(self, db: psycopg.Connection[Any], lines: Iterable[tuple[int, bytes]]) -> None:
        with db.cursor() as cursor, cursor.copy(ADD) as copy:
            copy.set_types(["int8", "bytea"])
            for row in lines:
                copy.write_row(row)

    def sync(self) -> None:
        """What can be read here has been committed."""

    def create(self) -> None:
        with self._told():
            db = self._open()
            db.execute("BEGIN")
            db.execute(ALONE)
            db.execute(SCHEMA)
            db.execute(TABLES)
            db.execute("COMMIT")

    def residues(self, needles: Sequence[bytes]) -> Residues:
        return Residues(unreached=(_UNREACHED,))

    def forget(self, *, forked: bool = False) -> None:
        if forked:
            # Closing it would end the session of the parent.
            _ABANDONED.append(self._connection)
            self._connection, self._depth = None, 0
        elif not self._depth:
            self._drop()

    # Nothing is lost by dropping a keyring that was not closed, so it may happen without a warning.
    def __del__(self) -> None:
        self._drop()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors of the driver as ours. After one the connection isn't used again."""
        try:
            yield
        except errors.LockNotAvailable as error:
            self._drop()
            raise StoreBusyError(
                f"others have kept the keyring {self.where} locked for {self._lock_timeout_ms:,} ms"
            ) from error
        except psycopg.Error as error:
            self._drop()
            raise KeyringError(f"the keyring {self.where} can't be used: {error}") from error

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _open(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> psycopg.Connection[Any]:
        given = conninfo_to_dict(self._url).get("options") or ""
        options = f"-c lock_timeout={self._lock_timeout_ms} {given}".strip()
        try:
            # Nothing is prepared: behind a pooler the next statement may find another session.
            return psycopg.connect(self._url, autocommit=True, prepare_threshold=None, options=options)
        except psycopg.OperationalError as error:
            if "startup parameter" not in str(error):
                raise
            return psycopg.connect(self._url, autocommit=True, prepare_threshold=None)


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


_ABANDONED: list[Any] = []
