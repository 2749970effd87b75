"""A keyring in a SQLite file of its own: for several programs of one machine that share nothing else."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import apsw

from everthread import process
from everthread.codec.seal import RandomBytes
from everthread.errors import KeyringError, SchemaVersionError, StoreBusyError
from everthread.keyring.disk import check_file, make_directory
from everthread.keyring.lines import LineKeyring
from everthread.keyring.master import MasterKeeper, MasterKey
from everthread.stores.byte_scan import search
from everthread.stores.contract import Residues
from everthread.stores.sqlite import forking
from everthread.stores.sqlite.presence import create_private
from everthread.stores.sqlite.raw import RawFile

#: "EVKR": marks a database file as a keyring.
APPLICATION_ID = 0x45564B52
FORMAT = 1

#: ``start`` is where a line begins if all of them are put one after another.
TABLES = (
    "CREATE TABLE line (start INTEGER PRIMARY KEY, text BLOB NOT NULL) STRICT",
    """
    CREATE TABLE stand (
        id INTEGER PRIMARY KEY CHECK (id = 1), generation BLOB NOT NULL, size INTEGER NOT NULL
    ) STRICT
    """,
)
STAND = "SELECT generation, size FROM stand"
LINES = "SELECT text FROM line WHERE start >= ?1 ORDER BY start"
CUT = "DELETE FROM line WHERE start >= ?1"
ADD = "INSERT INTO line (start, text) VALUES (?1, ?2)"
GROW = "UPDATE stand SET size = ?1"
BEGIN_ANEW = "INSERT INTO stand (id, generation, size) VALUES (1, ?1, ?2)"
FORGET = "DELETE FROM stand"


class SqliteKeyring(forking.OneLock, LineKeyring):
    """Keys of subjects in the SQLite file ``path``; the master key, if it is a file, is beside it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        master: MasterKey | None = None,
        random_bytes: RandomBytes = os.urandom,
        *,
        lock_timeout_ms: int = 10_000,
    ) -> None:
        self.path = Path(os.path.abspath(path))
        masters = MasterKeeper(self.path.with_name(self.path.name + ".master"), master, str(self.path))
        self._file = _File(self.path, lock_timeout_ms)
        super().__init__(self._file, masters, random_bytes)
        self.file = str(self.path)
        forking.enter(self)

    def __repr__(self) -> str:
        return f"SqliteKeyring({str(self.path)!r})"

    # Around a fork

    def hold(self, until_s: float) -> bool:
        if not super().hold(until_s):
            return False
        # Most questions are asked without the mutex.
        if self._file.guard.acquire(timeout=max(until_s - monotonic(), 0.0)):
            return True
        super().free()
        return False

    def shut(self, until_s: float) -> bool:
        self._medium.forget(forked=self._generation != process.generation)
        return True

    def free(self) -> None:
        self._file.guard.release()
        super().free()

    def renew(self) -> None:
        """The first use in a child makes everything anew."""


class _File:
    """The lines in a table of a SQLite file."""

    def __init__(self, path: Path, lock_timeout_ms: int) -> None:
        self._path = path
        self._lock_timeout_ms = lock_timeout_ms
        self.where = str(path)
        self._connection: apsw.Connection | None = None
        self._depth = 0
        #: Held by who looks: a fork closes the connection, and keeps it closed.
        self.guard = threading.RLock()

    def look(self) -> tuple[object, int] | None:
        with self.guard:
            if self._connection is None and not self._path.exists():
                return None
            with self._told():
                found: list[Any] = self._open().execute(STAND).fetchall()
        return (found[0][0], found[0][1]) if found else None

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
            # Nobody may read either: the file of the master key belongs to the lines.
            db.execute("BEGIN EXCLUSIVE" if exclusive else "BEGIN")
        self._depth = 1
        try:
            yield
        finally:
            self._depth = 0
            # What was written has been committed where it was; whatever is left is not to be.
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def read(self, offset: int) -> bytes:
        check_file(self._path)
        with self._told():
            lines: list[Any] = self._open().execute(LINES, (offset,)).fetchall()
        return b"".join(line for (line,) in lines)

    def append(self, line: bytes, end: int) -> None:
        with self._told():
            db = self._open()
            db.execute(CUT, (end,))
            db.execute(ADD, (end, line))
            db.execute(GROW, (end + len(line),))
            db.execute("COMMIT")

    def replace(self, lines: Sequence[bytes]) -> Callable[[], None]:
        with self._told():
            db = self._open()
            db.execute(CUT, (0,))
            db.execute(FORGET)
            db.executemany(ADD, starting(lines))
            db.execute(BEGIN_ANEW, (os.urandom(16), sum(map(len, lines))))
            db.execute("COMMIT")
            # The master key is put in its place next. Should others come in between, they have done that.
            db.execute("BEGIN EXCLUSIVE")

        def wipe() -> None:
            # The pages that held the old lines are free now, overwritten; this lets go of them as well.
            with self._told():
                db.execute("ROLLBACK")
                db.execute("VACUUM")

        return wipe

    def sync(self) -> None:
        """What can be read here has been committed."""

    def create(self) -> None:
        make_directory(self._path.parent)
        with suppress(FileExistsError):
            create_private(self._path)
        self._open()

    def residues(self, needles: Sequence[bytes]) -> Residues:
        found = sorted(self._path.parent.glob("*"))
        ours = [str(path) for path in found if path.name.startswith(self._path.name) and path.is_file()]
        # Nobody but SQLite may open the -shm file; there are numbers and sums in it.
        return search([path for path in ours if not path.endswith("-shm")], needles, opened=RawFile)

    def forget(self, *, forked: bool = False) -> None:
        if forked:
            # SQLite forbids even closing what belongs to the parent.
            _ABANDONED.append(self._connection)
            self._connection = None
        elif self._depth == 0 and self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close(True)
        if forked:
            # Another thread of the parent may have been looking.
            self._depth, self.guard = 0, threading.RLock()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors of the engine as ours."""
        try:
            yield
        except apsw.BusyError as error:
            raise StoreBusyError(
                f"another process has kept {self._path} locked for {self._lock_timeout_ms:,} ms"
            ) from error
        except apsw.Error as error:
            raise KeyringError(f"the keyring {self._path} can't be used: {error}") from error

    def _open(self) -> apsw.Connection:
        if self._connection is not None:
            return self._connection
        forking.check(str(self._path))
        with self._told():
            db = apsw.Connection(str(self._path))
            try:
                db.set_busy_timeout(self._lock_timeout_ms)
                db.execute("PRAGMA synchronous = FULL")
                db.execute("PRAGMA secure_delete = ON").fetchall()
                db.execute("BEGIN IMMEDIATE")
                self._set_up(db)
                db.execute("COMMIT")
            except BaseException:
                db.close(True)
                raise
        self._connection = db
        return db

    def _set_up(self, db: apsw.Connection) -> None:
        found = db.pragma("application_id"), db.pragma("user_version")
        tables: Any = db.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]
        if found == (0, 0) and not tables:
            for statement in TABLES:
                db.execute(statement)
            db.pragma("application_id", APPLICATION_ID)
            db.pragma("user_version", FORMAT)
        elif found[0] != APPLICATION_ID:
            raise KeyringError(f"{self._path} is a database of something else; name another file")
        elif found[1] > FORMAT:
            raise SchemaVersionError(
                f"{self._path} has format {found[1]}; this Everthread reads up to {FORMAT}: upgrade it",
                found=found[1],
                supported=FORMAT,
            )


def starting(lines: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """Each line with the place where it begins."""
    start = 0
    for line in lines:
        yield start, line
        start += len(line)


_ABANDONED: list[Any] = []
