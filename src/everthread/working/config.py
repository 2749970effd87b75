"""Settings of a working state."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from everthread.arguments import check_name
from everthread.codec.schema import CURRENT_SCHEMA_VERSION
from everthread.errors import InvalidValueError, SchemaVersionError
from everthread.hooks import SessionLifecycle

#: Entries of the context unless a Config says otherwise.
CONTEXT_ENTRIES_MAX = 1_000


class StorageBackend(StrEnum):
    """Where states live.

    ``SQLITE``: one file. ``JSON``: a folder with one readable ``<uuid>.json`` per state; these are views, the
    states with all their versions are in a file store in its subfolder ``history``. ``MEMORY``: this process
    only.
    """

    SQLITE = "sqlite"
    JSON = "json"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of a working state. Checked when made; raises :class:`InvalidValueError`.

    ``session_id``: what the state belongs to; ``resume()`` with it looks among that session's states only.
    ``storage_path``: a file for SQLite, a folder for JSON, a name to tell several apart in memory, or any
    store URL; by default the default store (for JSON ``states`` beside it). ``schema_version``: the newest
    schema that the caller knows; a stored state that is newer raises :class:`SchemaVersionError`.
    ``auto_save``: every change is durable when the call returns. ``max_context_entries``: a new key beyond
    it is refused. ``migrations``: functions of your own, each from a snapshot to the next shape of it. A
    state remembers how many have been applied; the others are when it is loaded. Append to them only.
    """

    session_id: str | None = None
    storage_backend: StorageBackend = StorageBackend.SQLITE
    storage_path: str | os.PathLike[str] | None = None
    schema_version: int = CURRENT_SCHEMA_VERSION
    auto_save: bool = False
    max_context_entries: int = CONTEXT_ENTRIES_MAX
    hooks: SessionLifecycle | None = None
    migrations: Sequence[Callable[[dict[str, Any]], dict[str, Any]]] = ()

    def __post_init__(self) -> None:
        if self.session_id is not None:
            check_name(self.session_id, "session id")
        try:
            backend = StorageBackend(self.storage_backend)
        except ValueError:
            names = ", ".join(f"StorageBackend.{each.name}" for each in StorageBackend)
            raise InvalidValueError(
                f"storage_backend is one of {names}, not {self.storage_backend!r}", path="storage_backend"
            ) from None
        # So that "json" does as well.
        object.__setattr__(self, "storage_backend", backend)
        if self.storage_path is not None and not isinstance(self.storage_path, str | os.PathLike):
            raise InvalidValueError("storage_path is a path or a store URL", path="storage_path")
        _check_schema(self.schema_version)
        limit = self.max_context_entries
        if type(limit) is not int or limit < 0:
            raise InvalidValueError(
                f"max_context_entries is a whole number from 0 on, not {limit!r}", path="max_context_entries"
            )
        check_hooks(self.hooks)
        migrations = self.migrations
        if not isinstance(migrations, Sequence) or not all(callable(each) for each in migrations):
            raise InvalidValueError("migrations is a list of functions", path="migrations")
        object.__setattr__(self, "migrations", tuple(migrations))


def _check_schema(version: object) -> None:
    if type(version) is not int or version < 1:
        raise InvalidValueError(
            f"schema_version is a whole number from 1 on, not {version!r}", path="schema_version"
        )
    if version > CURRENT_SCHEMA_VERSION:
        raise SchemaVersionError(
            f"this Everthread writes and reads schema {CURRENT_SCHEMA_VERSION}, not {version}; upgrade it",
            found=version,
            supported=CURRENT_SCHEMA_VERSION,
        )


def checked_config(config: object) -> Config:
    """A default one for ``None``; anything else than a :class:`Config` is refused."""
    if config is None:
        return Config()
    if not isinstance(config, Config):
        raise InvalidValueError(f"config is an everthread.Config, not {type(config).__name__}", path="config")
    return config


def check_hooks(hooks: object) -> None:
    """Refuse what isn't a :class:`SessionLifecycle`."""
    if hooks is not None and not isinstance(hooks, SessionLifecycle):
        raise InvalidValueError(
            f"hooks is an everthread.hooks.SessionLifecycle, not {type(hooks).__name__}", path="hooks"
        )
