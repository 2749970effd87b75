"""Documents of an older form, brought to the present one by functions that their owner has registered.

A document says in two of its fields what it is: ``schema``, a name, and ``schema_version``, a number.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar, overload

from everthread.arguments import check_count, check_function, check_name
from everthread.errors import InvalidStateError

SCHEMA = "schema"
VERSION = "schema_version"
#: In the metadata of the version that made a document newer: from what, to what.
MIGRATED = "migrated"

Migration = Callable[[dict[Any, Any]], Any]
M = TypeVar("M", bound=Migration)

_migrations: dict[str, dict[int, Migration]] = {}


@overload
def register_document_migration(schema: str, from_version: int, fn: M) -> M: ...
@overload
def register_document_migration(schema: str, from_version: int, fn: None = None) -> Callable[[M], M]: ...
def register_document_migration(schema: str, from_version: int, fn: Any = None) -> Any:
    """Let ``fn`` bring documents of threads a step forward whose ``state["schema"]`` is ``schema`` and whose
    ``state["schema_version"]`` is ``from_version``, to the next number.

    ``fn`` gets the document as a dictionary of its own and changes it, or returns another one. Whoever reads
    the newest version of such a thread then gets the new form; the next write stores it, and the metadata of
    that version say so (``migrated``). Versions before it stay as they are. Without ``fn`` this is a
    decorator. A second registration for the same schema and version replaces the first. Returns ``fn``.
    """
    check_name(schema, "schema")
    check_count(from_version, "from_version")
    if fn is None:
        return lambda decorated: register_document_migration(schema, from_version, decorated)
    check_function(fn, "fn")
    _migrations.setdefault(schema, {})[from_version] = fn
    return fn


def is_due(raw: dict[Any, Any]) -> bool:
    """Whether a migration was registered for a document."""
    return bool(_migrations) and _version(raw) in _steps(raw)


def migrated(document: dict[Any, Any], thread: str) -> dict[Any, Any]:
    """A document in its present form. Raises :class:`InvalidStateError` for a migration that fails."""
    while (version := _version(document)) in (steps := _steps(document)):
        schema = document[SCHEMA]
        given = copy.copy(document)
        try:
            made = steps[version](given)
        except Exception as error:
            raise InvalidStateError(
                f"the migration of {schema!r} from version {version} failed on the document of {thread!r}: "
                f"{type(error).__name__}: {error}; correct it, nothing was changed"
            ) from error
        made = given if made is None else made
        if not isinstance(made, dict):
            raise InvalidStateError(
                f"the migration of {schema!r} from version {version} must return a dictionary or None, "
                f"not {type(made).__name__}"
            )
        document = {**made, SCHEMA: made.get(SCHEMA, schema), VERSION: version + 1}
    return document


def may_be_due() -> bool:
    """Whether there are any migrations."""
    return bool(_migrations)


def note(ops: list[Any], raw: dict[Any, Any], before: Callable[[], dict[Any, Any]]) -> str | None:
    """What the metadata of a version say that makes these changes, if they migrate the document."""
    if not any(op[1] == (VERSION,) for op in ops) or not _steps(raw):
        return None
    old = before()
    return f"{raw[SCHEMA]} from {old[VERSION]} to {raw.get(VERSION)}" if is_due(old) else None


def _steps(document: dict[Any, Any]) -> dict[int, Migration]:
    schema = document.get(SCHEMA)
    return _migrations.get(schema, {}) if isinstance(schema, str) else {}


def _version(document: dict[Any, Any]) -> int:
    found = document.get(VERSION)
    return found if type(found) is int else -1
