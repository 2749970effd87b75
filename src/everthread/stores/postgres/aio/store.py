"""The store contract on PostgreSQL, and opening such a store: its tables are made or brought up to date."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import psycopg

from everthread.errors import NotFoundError, SchemaVersionError, UnsupportedError
from everthread.stores.colours import ASYNC
from everthread.stores.contract import Backend, Capabilities, PutCell
from everthread.stores.postgres import schema
from everthread.stores.postgres.aio.cells import Cells
from everthread.stores.postgres.aio.erasure import Erasure
from everthread.stores.postgres.aio.pool import AsyncLink, AsyncPool
from everthread.stores.postgres.aio.texts import Texts
from everthread.stores.postgres.aio.upkeep import Upkeep
from everthread.stores.postgres.durability import PROCESS, Keeping
from everthread.stores.postgres.settings import Settings, read_settings
from everthread.stores.signals import Probe, Signals

if ASYNC:
    from collections.abc import Callable
    from typing import Any

    from everthread.stores.offload import run_in_thread

#: The oldest server that all of this was written for.
_SERVER_MIN = 150_000


class AsyncPostgresBackend(Upkeep, Cells, Erasure, Texts):
    """Tables in one schema of a database. Safe for any number of tasks, processes and hosts at once.

    Making one connects to nothing: that happens when something is asked.
    """

    capabilities = Capabilities(durable=True, multi_process=True, backup=False, texts=True, cold=True)

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.pool = AsyncPool(settings)
        self.signals = Signals(lambda: _watcher(settings))
        #: What the server said about how it keeps what it acknowledges, when the store was opened.
        self.keeping: Keeping | None = None
        if ASYNC:
            self._blocking: Backend | None = None

    @property
    def url(self) -> str:
        return self.settings.shown

    async def backup(self, path: str) -> None:
        raise _no_backups(self.settings)

    async def restore(self, path: str, cells: Sequence[PutCell] = ()) -> None:
        raise _no_backups(self.settings)

    if ASYNC:

        @property
        def blocking(self) -> Backend:
            """For the one read that can't be awaited; it connects when that is done for the first time."""
            if self._blocking is None:
                from everthread.stores.postgres.sync.store import PostgresBackend

                self._blocking = PostgresBackend(self.settings._replace(pool_max=2))
            return self._blocking

        async def aside(self, call: Callable[..., Any], *args: Any) -> Any:
            return await run_in_thread(call, *args)

    async def close(self) -> None:
        await self.pool.close()
        if ASYNC and self._blocking is not None:
            self._blocking.close()
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


async def connect(url: str, durability: str, create: bool = True) -> AsyncPostgresBackend:
    """The store behind a URL. Its tables are made if they aren't there and the role may do so.

    Without ``create`` none are made: raises :class:`NotFoundError`. Warns if ``durability`` is ``"full"`` and
    the server's settings are known to keep less.
    """
    settings = read_settings(url, durability)
    backend = AsyncPostgresBackend(settings)
    try:
        async with backend.pool.connection() as link:
            backend.keeping = await _check_server(link, settings)
            await _bring_up_to_date(link, settings, create)
    except BaseException:
        await backend.close()
        raise
    return backend


async def _check_server(link: AsyncLink, settings: Settings) -> Keeping:
    sql = schema.statements(settings.quoted_schema)
    ((number, said, fsync, pages, waiting, standbys),) = await link.run(sql["server"])
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


async def _bring_up_to_date(link: AsyncLink, settings: Settings, create: bool) -> None:
    version = await _version(link, settings)
    if version == 0 and not create:
        raise NotFoundError(
            f"there is no store at {settings.shown}: the schema {settings.schema} isn't there or is empty. "
            "An agent makes it when it opens it; nothing was made now"
        )
    if version < schema.SCHEMA_VERSION:
        await _migrate(link, settings)
    elif version > schema.SCHEMA_VERSION:
        raise _newer(version, settings)


def _newer(version: int, settings: Settings) -> SchemaVersionError:
    return SchemaVersionError(
        f"the store at {settings.shown} has schema version {version}, this release knows up to "
        f"{schema.SCHEMA_VERSION}; upgrade everthread. Nothing was changed"
    )


async def _version(link: AsyncLink, settings: Settings) -> int:
    try:
        ((version,),) = await link.run(schema.statements(settings.quoted_schema)["version"])
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return 0
    return int(version)


async def _migrate(link: AsyncLink, settings: Settings) -> None:
    """One instance at a time, in one transaction: it is seen whole or not at all.

    It waits for locks only shortly, so that writers never queue behind it for long.
    """
    sql = schema.statements(settings.quoted_schema)
    async with link.transaction():
        await link.run(sql["lock_schema"], (schema.MIGRATION_LOCK, settings.schema))
        await link.script(sql["impatient"])
        if not await link.run(sql["schema_exists"], (settings.schema,)):
            await link.script(sql["make_schema"])
        await link.script(sql["make_format"])
        ((version,),) = await link.run(sql["version"])
        if version > schema.SCHEMA_VERSION:
            raise _newer(version, settings)
        for number in range(version, schema.SCHEMA_VERSION):
            await link.run(sql["set_partitions"], (str(settings.partitions),))
            for text in schema.migration(number, settings.quoted_schema, settings.partitions):
                await link.script(text)
            await link.run(sql["note_version"], (number + 1,))
