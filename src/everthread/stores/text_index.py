"""An index of texts in a SQLite file of its own, for the stores that are files.

The file stands apart from the data: nothing waits for it, nothing is lost with it, and erasing it erases all
that it knew. What is damaged, or of another version, is made anew.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from everthread.errors import StorageWriteError, StoreBusyError
from everthread.stores.contract import Covered, TextFound, Wanted

if TYPE_CHECKING:
    import apsw

#: Of the tables below. Another number, and the file is made anew.
VERSION = 1
APPLICATION_ID = 0x45565448
_BUSY_MS = 10_000
#: How long a fork waits for a search of another thread.
_FORK_WAIT_S = 2.0
_OPEN: weakref.WeakSet[TextIndex] = weakref.WeakSet()

_TABLES = """
    CREATE TABLE covered (
        space TEXT NOT NULL, uid BLOB NOT NULL, mark BLOB NOT NULL, PRIMARY KEY (space, uid)
    );
    CREATE TABLE text (
        id INTEGER PRIMARY KEY, space TEXT NOT NULL, uid BLOB NOT NULL, key TEXT NOT NULL, kind TEXT NOT NULL,
        UNIQUE (space, uid, key)
    );
    CREATE VIRTUAL TABLE word USING fts5 (
        words, content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 0'
    );
"""
_COVERED = "SELECT uid, mark FROM covered WHERE space = ?1"
_KEYS = "SELECT key FROM text WHERE space = ?1 AND uid = ?2 AND kind IN (SELECT value FROM json_each(?3))"
_MARK = "SELECT mark FROM covered WHERE space = ?1 AND uid = ?2"
_SET_MARK = "INSERT OR REPLACE INTO covered (space, uid, mark) VALUES (?1, ?2, ?3)"
_ADD = "INSERT INTO text (space, uid, key, kind) VALUES (?1, ?2, ?3, ?4) RETURNING id"
_ADD_WORDS = "INSERT INTO word (rowid, words) VALUES (?1, ?2)"
_REMOVE = "DELETE FROM text WHERE space = ?1 AND uid = ?2 AND key = ?3 RETURNING id"
_REMOVE_WORDS = "DELETE FROM word WHERE rowid = ?1"
_FORGET = "DELETE FROM text WHERE space = ?1 AND uid = ?2 RETURNING id"
_FORGET_MARK = "DELETE FROM covered WHERE space = ?1 AND uid = ?2"
#: A smaller rank fits better. Without lines that are named, the third parameter is NULL.
_FIND = """
    SELECT t.uid, t.key, t.kind, -word.rank FROM word JOIN text t ON t.id = word.rowid
    WHERE word MATCH ?1 AND t.space = ?2 AND t.kind IN (SELECT value FROM json_each(?3))
    AND (?4 IS NULL OR hex(t.uid) IN (SELECT value FROM json_each(?4)))
    ORDER BY word.rank, t.id LIMIT ?5
"""

Answer = TypeVar("Answer")


class TextIndex:
    """The index in the file at ``path``. Safe for several threads and several processes at once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._mutex: Any = threading.RLock()
        self._db: apsw.Connection | None = None
        _OPEN.add(self)

    def covered(self, space: str) -> dict[bytes, bytes]:
        """For each line the mark that came with its texts."""
        found: list[Any] = self._run(lambda db: db.execute(_COVERED, (space,)).fetchall())
        return dict(found)

    def keys(self, space: str, uid: bytes, kinds: Sequence[str]) -> list[str]:
        """The keys of a line's texts of these kinds."""
        found: list[Any] = self._run(lambda db: db.execute(_KEYS, (space, uid, _json(kinds))).fetchall())
        return [key for (key,) in found]

    def cover(self, space: str, covered: Covered) -> bool:
        """Bring a line up to date. False, and nothing changed, if somebody else has done so meanwhile."""
        return self._run(lambda db: _cover(db, space, covered))

    def forget(self, space: str, uids: Sequence[bytes]) -> None:
        """Remove everything about these lines."""
        self._run(lambda db: _forget(db, space, uids))

    def find(self, space: str, wanted: Wanted) -> list[TextFound]:
        """The texts that fit best, best first."""
        # Words are letters and digits alone, so that nothing in them is part of the expression.
        expression = " AND ".join('"' + " ".join(term) + '"' for term in wanted.terms)
        uids = None if wanted.uids is None else _json([uid.hex().upper() for uid in wanted.uids])
        values = (expression, space, _json(wanted.kinds), uids, wanted.limit)
        rows: list[Any] = self._run(lambda db: db.execute(_FIND, values).fetchall())
        return [TextFound(*row) for row in rows]

    def drop(self) -> None:
        """Remove the index with all that it knew, whoever uses it."""
        if not os.path.exists(self._path):
            return

        def clear(db: apsw.Connection) -> None:
            # Overwritten, for what the file system may keep of a file that is unlinked; and by statements, so
            # that other processes which have it open see it too.
            db.execute("PRAGMA secure_delete = ON")
            _transact(db, lambda: [db.execute(f) for f in _CLEAR])
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        self._run(clear)

    def close(self) -> None:
        with self._mutex:
            self._close()

    # ── the file ─────────────────────────────────────────────────────────────────────────────

    def _run(self, work: Callable[[apsw.Connection], Answer]) -> Answer:
        import apsw

        if self._mutex._is_owned():
            raise StoreBusyError("this thread is in the middle of a search; search after it")
        with self._mutex:
            for last in (False, True):
                try:
                    return work(self._connection())
                except apsw.BusyError as error:
                    raise StoreBusyError(f"{self._path} is in use by others; search again") from error
                except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError) as error:
                    # Nothing is lost with it: the next search makes it again.
                    if last:
                        raise StorageWriteError(f"can't write {self._path}: {error}") from error
                    self._close()
                    self._unlink()
                except apsw.Error as error:
                    self._close()
                    raise StorageWriteError(
                        f"can't use the search index {self._path}: {error}; the data isn't concerned"
                    ) from error
        raise AssertionError("unreachable")

    def _connection(self) -> apsw.Connection:
        import apsw

        if self._db is not None:
            return self._db
        with suppress(FileExistsError):
            # Imported here: a store in a folder needs it only if somebody searches.
            from everthread.stores.sqlite.files import create_private

            create_private(self._path)
        db = apsw.Connection(self._path)
        self._db = db
        db.set_busy_timeout(_BUSY_MS)
        db.pragma("journal_mode", "wal")
        # What a power cut takes is indexed again.
        db.pragma("synchronous", 0)
        _transact(db, lambda: _set_up(db))
        return db

    def _close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close(True)

    def _unlink(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(self._path + suffix)


_CLEAR = ("DELETE FROM covered", "DELETE FROM text", "INSERT INTO word (word) VALUES ('delete-all')")


def _json(texts: Sequence[str]) -> str:
    return msgspec.json.encode(list(texts)).decode()


def _set_up(db: apsw.Connection) -> None:
    import apsw

    if db.pragma("user_version") == VERSION and db.pragma("application_id") == APPLICATION_ID:
        return
    if db.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]:
        raise apsw.CorruptError("another version made this index")
    db.execute(_TABLES)
    db.pragma("application_id", APPLICATION_ID)
    db.pragma("user_version", VERSION)


def _transact(db: apsw.Connection, work: Callable[[], Any]) -> Any:
    db.execute("BEGIN IMMEDIATE")
    try:
        answer = work()
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return answer


def _cover(db: apsw.Connection, space: str, covered: Covered) -> bool:
    uid = covered.uid

    def work() -> bool:
        found = db.execute(_MARK, (space, uid)).fetchone()
        if (None if found is None else found[0]) != covered.before:
            return False
        for key in covered.gone:
            _drop_words(db, db.execute(_REMOVE, (space, uid, key)).fetchall())
        for text in covered.texts:
            ((id_,),) = db.execute(_ADD, (space, uid, text.key, text.kind)).fetchall()
            db.execute(_ADD_WORDS, (id_, text.words))
        db.execute(_SET_MARK, (space, uid, covered.mark))
        return True

    return bool(_transact(db, work))


def _forget(db: apsw.Connection, space: str, uids: Sequence[bytes]) -> None:
    def work() -> None:
        for uid in uids:
            _drop_words(db, db.execute(_FORGET, (space, uid)).fetchall())
            db.execute(_FORGET_MARK, (space, uid))

    _transact(db, work)


def _drop_words(db: apsw.Connection, ids: list[Any]) -> None:
    for (id_,) in ids:
        db.execute(_REMOVE_WORDS, (id_,))


class IndexedTexts:
    """The contract's verbs for texts, on an index in a file; whoever has them sets and closes ``_texts``."""

    _texts: TextIndex

    def texts_covered(self, space: str) -> dict[bytes, bytes]:
        return self._texts.covered(space)

    def text_keys(self, space: str, uid: bytes, kinds: Sequence[str]) -> list[str]:
        return self._texts.keys(space, uid, kinds)

    def cover_texts(self, space: str, covered: Covered) -> bool:
        return self._texts.cover(space, covered)

    def forget_texts(self, space: str, uids: Sequence[bytes]) -> None:
        self._texts.forget(space, uids)

    def find_texts(self, space: str, wanted: Wanted) -> list[TextFound]:
        return self._texts.find(space, wanted)

    def drop_texts(self) -> None:
        self._texts.drop()


def _before_fork() -> None:
    # SQLite can't go through a fork: see stores/sqlite/connection.py. The next search opens it again.
    for index in list(_OPEN):
        if not index._mutex._is_owned() and index._mutex.acquire(timeout=_FORK_WAIT_S):
            index._close()
            index._mutex.release()


os.register_at_fork(before=_before_fork)
