# Generated from stores/postgres/aio/store.py by tools/twin.py: change that, then run: make twin
"""The store contract on PostgreSQL, and opening such a store: its tables are made or brought up to date."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import psycopg

from everthread.errors import NotFoundError, SchemaVersionError, UnsupportedError
from everthread.stores.contract import Capabilities, PutCell
from everthread.stores.postgres import schema
from everthread.stores.postgres.durability import PROCESS, Keeping
from everthread.stores.postgres.settings import Settings, read_settings
from everthread.stores.postgres.sync.cells import Cells
from everthread.stores.postgres.sync.erasure import Erasure
from everthread.stores.postgres.sync.pool import Link, Pool
from everthread.stores.postgres.sync.texts import Texts
from everthread.stores.postgres.sync.upkeep import Upkeep
from everthread.stores.signals import Probe, Signals

#: The oldest server that all of this was written for.
_SERVER_MIN = 150_000


class PostgresBackend(Upkeep, Cells, Erasure, Texts):
    """Tables in one schema of a database. Safe for any number of tasks, processes and hosts at once.

    Making one connects to nothing: that happens when something is asked.
    """

    capabilities = Capabilities(durable=True, multi_process=True, backup=False, texts=True, cold=True)

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.pool = Pool(settings)
        self.signals = Signals(lambda: _watcher(settings))
        #: What the server said about how it keeps what it acknowledges, when the store was opened.
        self.keeping: Keeping | None = None

    @property
    def url(self) -> str:
        return self.settings.shown

    def backup(self, path: str) -> None:
        raise _no_backups(self.settings)

    def restore(self, path: str, cells: Sequence[PutCell] = ()) -> None:
        raise _no_backups(self.settings)

    def close(self) -> None:
        self.pool.close()
        self.signals.close()


def _watcher(settings: Settings) -> Probe:
    # Only a store that waits for others pays for the import.
    from everthread.stores.postgres.notifications import Watcher

    return Watcher(settings)


def _no_backups(settings: Settings) -> UnsupportedError:
    return UnsupportedError(
        f"backup() and restore() don't serve {settings.shown}: use the server's own tools (pg_dump and "
        "pg_restore, continuous archiving), or export(), whose archives any store can import"
    )


# ── opening ──────────────────────────────────────────────────────────────────────────────────────


def connect(url: str, durability: str, create: bool = True) -> PostgresBackend:
    """The store behind a URL. Its tables are made if they aren't there and the role may do so.

    Without ``create`` none are made: raises :class:`NotFoundError`. Warns if ``durability`` is ``"full"`` and
    the server's settings are known to keep less.
    """
    settings = read_settings(url, durability)
    backend = PostgresBackend(settings)
    try:
        with backend.pool.connection() as link:
            backend.keeping = _check_server(link, settings)
            _bring_up_to_date(link, settings, create)
    except BaseException:
        backend.close()
        raise
    return backend


def _check_server(link: Link, settings: Settings) -> Keeping:
    sql = schema.statements(settings.quoted_schema)
    ((number, said, fsync, pages, waiting, standbys),) = link.run(sql["server"])
    if number < _SERVER_MIN:
        raise UnsupportedError(f"{settings.shown} is PostgreSQL {said}; version 15 or newer is needed")
    keeping = Keeping(
        fsync=fsync,
        full_page_writes=pages,
        synchronous_commit=waiting,
        standbys=standbys,
        durable=settings.durable,
    )
    if settings.durable and keeping.level == PROCESS:
        warnings.warn(
            f'{settings.shown} can\'t keep what durability="full" promises: {keeping}. {keeping.advice}',
            stacklevel=2,
        )
    return keeping


def _bring_up_to_date(link: Link, settings: Settings, create: bool) -> None:
    version = _version(link, settings)
    if version == 0 and not create:
        raise NotFoundError(
            f"there is no store at {settings.shown}: the schema {settings.schema} isn't there or is empty. "
            "An agent makes it when it opens it; nothing was made now"
        )
    if version < schema.SCHEMA_VERSION:
        _migrate(link, settings)
    elif version > schema.SCHEMA_VERSION:
        raise _newer(version, settings)


def _newer(version: int, settings: Settings) -> SchemaVersionError:
    return SchemaVersionError(
        f"the store at {settings.shown} has schema version {version}, this release knows up to "
        f"{schema.SCHEMA_VERSION}; upgrade everthread. Nothing was changed"
    )


def _version(link: Link, settings: Settings) -> int:
    try:
        ((version,),) = link.run(schema.statements(settings.quoted_schema)["version"])
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return 0
    return int(version)


def _migrate(link: Link, settings: Settings) -> None:
    """One instance at a time, in one transaction: it is seen whole or not at all.

    It waits for locks only shortly, so that writers never queue behind it for long.
    """
    sql = schema.statements(settings.quoted_schema)
    with link.transaction():
        link.run(sql["lock_schema"], (schema.MIGRATION_LOCK, settings.schema))
        link.script(sql["impatient"])
        if not link.run(sql["schema_exists"], (settings.schema,)):
            link.script(sql["make_schema"])
        link.script(sql["make_format"])
        ((version,),) = link.run(sql["version"])
        if version > schema.SCHEMA_VERSION:
            raise _newer(version, settings)
        for number in range(version, schema.SCHEMA_VERSION):
            link.run(sql["set_partitions"], (str(settings.partitions),))
            for text in schema.migration(number, settings.quoted_schema, settings.partitions):
                link.script(text)
            link.run(sql["note_version"], (number + 1,))
