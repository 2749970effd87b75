"""From the errors of the driver to those of Everthread, and what may be tried again."""

from __future__ import annotations

import re

import psycopg

from everthread.errors import (
    AccessError,
    EverthreadError,
    InvalidValueError,
    StateCorruptedError,
    StorageWriteError,
    StoreBusyError,
    StoreUnavailableError,
)

#: What a server says to whom it lets nothing do, and what to do then. While connecting the driver knows no
#: code of these; a server that speaks another language than English gets the words for all the rest.
_TURNED_AWAY = (
    (
        re.compile(r'role "[^"]*" does not exist'),
        (
            "The server is up and has no such role: let the URL name one that there is, as in "
            "postgresql://role@host/database, or let who runs it make this one (createuser)"
        ),
    ),
    (
        re.compile(r'database "[^"]*" does not exist'),
        (
            "The server is up and has no such database: let the URL name one that there is, or make it "
            "(createdb); Everthread makes its tables in it, not the database"
        ),
    ),
    (
        re.compile(r"password authentication failed|no password supplied"),
        "The server is up: correct role and password in the URL (or in PGPASSWORD, or ~/.pgpass)",
    ),
    (
        re.compile(r"no pg_hba\.conf entry|is not permitted to log in|authentication failed for user"),
        "The server is up and doesn't admit this role from here: ask who runs it",
    ),
)

#: Said by our own functions: rows that can't be folded, a value sealed under an erased key.
NOT_FOLDABLE, KEY_ERASED = "EV001", "EV002"

#: The server rolled it back and says: try again.
_ROLLED_BACK = frozenset({"40001", "40P01", "55006"})
#: The prepared statement isn't there, or isn't what it was: nothing was run.
_UNPREPARED = frozenset({"26000", "42P05", "0A000"})
#: The server goes down, comes up, or ends this session.
_GOING = frozenset({"57P01", "57P02", "57P03", "57P05"})


class Overdue(psycopg.OperationalError):
    """The server didn't answer in time; the connection is given up."""


def lost(error: psycopg.Error) -> bool:
    """Whether the connection is gone: what was under way may have been done or not."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state.startswith("08") or state in _GOING


def sqlstate(error: Exception) -> str | None:
    """What the server called the cause of an error of ours."""
    return getattr(error.__cause__, "sqlstate", None)


def rolled_back(error: psycopg.Error) -> bool:
    """Whether nothing was done, and trying again at once makes sense."""
    return error.sqlstate in _ROLLED_BACK


def unprepared(error: psycopg.Error) -> bool:
    return error.sqlstate in _UNPREPARED


def read_only(error: psycopg.Error) -> bool:
    """Whether the server takes no writes any more: it has become a standby. Nothing was done."""
    return error.sqlstate == "25006"


def in_doubt(place: str) -> EverthreadError:
    """The answer was lost, and others have folded meanwhile what would tell whether it was done."""
    return StoreUnavailableError(
        f"the connection to {place} was lost, and others went on since; whether the last call was carried "
        "out isn't known yet. Commit again: a commit that did land is recognised"
    )


def unreachable(error: psycopg.Error, place: str) -> StoreUnavailableError:
    """Why no connection could be made, and what to do."""
    said = " ".join(str(error).split())
    for words, advice in _TURNED_AWAY:
        if words.search(said):
            return StoreUnavailableError(f"{place} lets nobody in: {said}. {advice}")
    return StoreUnavailableError(
        f"{place} can't be reached: {said}. Is the server up, and are host, port, role and database of the "
        "URL right?"
    )


def translated(error: psycopg.Error, place: str) -> EverthreadError:
    """What a caller gets to see of it, with what to do."""
    state = error.sqlstate or ""
    said = " ".join(str(error).split())
    if isinstance(error, Overdue):
        return StoreUnavailableError(
            f"{place} didn't answer in time; whether it did what it was asked isn't known. "
            "Commit again: a commit that did land is recognised"
        )
    if not state and isinstance(error, psycopg.ProgrammingError):
        return InvalidValueError(
            f"the URL of {place} isn't understood: {said}. Besides libpq's options it may have schema, "
            "pool_max, pool_wait_ms, statement_timeout_ms, lock_timeout_ms, retry_ms, partitions and listen"
        )
    if state == "55P03":
        return StoreBusyError(f"another transaction at {place} keeps a lock for too long; try again")
    if state == "57014":
        return StoreBusyError(
            f"{place} took longer than statement_timeout allows and gave up; nothing was changed. Try again, "
            "or raise statement_timeout_ms in the URL"
        )
    if state == "53300":
        return StoreUnavailableError(
            f"{place} takes no more connections ({said}); lower pool_max in the URL, raise max_connections, "
            "or put a pooler such as PgBouncer in between"
        )
    if state in ("53100", "53200", "53400"):
        return StorageWriteError(
            f"{place} is out of room ({said}); nothing was changed. Make room, try again"
        )
    if state == "25006":
        return StoreUnavailableError(
            f"{place} is read-only ({said}): a standby? Name the primary, or add "
            "target_session_attrs=read-write to the URL"
        )
    if state == "42501":
        return AccessError(
            f"the role isn't allowed to do that at {place}: {said}. Let the store's owner grant it, or open "
            "the store once with a role that may make its tables"
        )
    if state in ("XX001", "XX002"):
        return StateCorruptedError(f"{place} is damaged: {said}", where=place)
    if state in ("42P01", "42883", "3F000"):
        return StoreUnavailableError(
            f"tables or functions of the store at {place} are gone ({said}); open it again to have them "
            "made, or bring a backup back"
        )
    if state.startswith("28") or state == "3D000":
        return StoreUnavailableError(f"{place} lets nobody in: {said}. Correct the URL, or ask who runs it")
    if lost(error):
        return StoreUnavailableError(
            f"the connection to {place} is lost ({said}); whether the last call was carried out isn't known. "
            "Is the server up? Then call again: a commit that did land is recognised"
        )
    return StorageWriteError(f"{place} refused: {said}")
