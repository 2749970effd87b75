"""Migrations of a program's own for its working states: the functions of ``Config(migrations=…)``.

The document notes how many of them have been applied. A state that was saved with fewer is brought up to date
when it is loaded, and stored so with its next save; its older versions stay as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everthread.errors import InvalidStateError, SchemaVersionError, StateCorruptedError
from everthread.working.compare import edits_between
from everthread.working.document import Edit
from everthread.working.items import APPLIED_FIELD
from everthread.working.reads import StateReads

Migration = Callable[[dict[str, Any]], dict[str, Any]]


def migrated(payload: Mapping[str, Any], migrations: Sequence[Migration]) -> dict[str, Any]:
    """A snapshot after all the migrations that haven't been applied to it; the functions get it to change.

    Raises :class:`SchemaVersionError` if more have been applied than are known here, and
    :class:`InvalidStateError` for a migration that fails or doesn't return the state.
    """
    payload = dict(payload)
    for number in range(_applied(payload, migrations), len(migrations)):
        migration = migrations[number]
        name = getattr(migration, "__qualname__", None) or type(migration).__name__
        try:
            made = migration(payload)
        except Exception as error:
            raise InvalidStateError(
                f"migration {number}, {name}, failed ({type(error).__name__}: {error}); nothing was changed"
            ) from error
        if not isinstance(made, dict):
            raise InvalidStateError(
                f"migration {number}, {name}, gave a {type(made).__name__}, and must return the state"
            )
        payload = made
    payload[APPLIED_FIELD] = len(migrations)
    return payload


def pending_edits(state: StateReads, migrations: Sequence[Migration]) -> list[Edit]:
    """What the migrations that haven't been applied change in a state; nothing if there is none."""
    if not migrations or state.read_only:
        return []
    before = state.snapshot()
    if _applied(before, migrations) == len(migrations):
        return []
    # Another copy: the functions may change what they get.
    after = migrated(state.snapshot(), migrations)
    return [*edits_between(before, after), (None, APPLIED_FIELD, len(migrations))]


def _applied(payload: Mapping[str, Any], migrations: Sequence[Migration]) -> int:
    found = payload.get(APPLIED_FIELD, 0)
    if type(found) is not int or found < 0:
        raise StateCorruptedError(f"{APPLIED_FIELD} is {found!r}, which is no number", where=APPLIED_FIELD)
    if found > len(migrations):
        raise SchemaVersionError(
            f"{found} migrations of your own have been applied to this state, and {len(migrations)} are "
            "known here: load it with the newer program. Nothing was touched",
            found=found,
            supported=len(migrations),
        )
    return found
