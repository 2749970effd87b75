# Generated from stores/postgres/aio/opening.py by tools/twin.py: change that, then run: make twin
"""Opening a store in PostgreSQL: connecting, and making or bringing up to date its tables."""

from __future__ import annotations

import warnings
from typing import Any

import psycopg

from everthread.errors import NotFoundError, SchemaVersionError, UnsupportedError
from everthread.stores.postgres import schema
from everthread.stores.postgres.lasting import PROCESS, Keeping
from everthread.stores.postgres.settings import Settings, read_settings
from everthread.stores.postgres.sync.backend import PostgresBackend
from everthread.stores.postgres.sync.connections import Link
from everthread.stores.postgres.wire import Statement, in_schema

#: The oldest server that all of this was written for.
_SERVER_MIN = 150_000

_SERVER = Statement(
    "",
    """
    SELECT current_setting('server_version_num')::bigint, current_setting('server_version'),
        current_setting('fsync', true), current_setting('full_page_writes', true),
        current_setting('synchronous_commit', true), current_setting('synchronous_standby_names', true)
    """,
)
_LOCK = Statement("qt", "SELECT pg_advisory_xact_lock($1::int, hashtext($2))")
_NOTE_VERSION = Statement("q", "INSERT INTO everthread.format VALUES ($1, now())")
_VERSION = Statement("", schema.VERSION)
_PARTITIONS = Statement("t", "SELECT set_config('everthread_setup.partitions', $1, true)")


def connect(url: str, durability: str, create: bool = True) -> PostgresBackend:
    """The store behind a URL. Its tables are made if they aren't there and the role may do so.

    Without ``create`` none are made: raises :class:`NotFoundError`. Warns if ``durability`` is ``"full"`` and
    the server's settings are known to keep less.
    """
    settings = read_settings(url, durability)
    backend = PostgresBackend(settings)
    try:
        with backend.connections.apart() as link:
            backend.keeping = _check_server(link, settings)
            _bring_up_to_date(link, settings, create)
    except BaseException:
        backend.close()
        raise
    return backend


def _check_server(link: Link, settings: Settings) -> Keeping:
    ((number, said, fsync, pages, waiting, standbys),) = link.run(_SERVER, ())
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
        try:
            _migrate(link, settings)
        except BaseException:
            _end(link)
            raise
    elif version > schema.SCHEMA_VERSION:
        raise _newer(version, settings)


def _newer(version: int, settings: Settings) -> SchemaVersionError:
    return SchemaVersionError(
        f"the store at {settings.shown} has schema version {version}, this release knows up to "
        f"{schema.SCHEMA_VERSION}; upgrade everthread. Nothing was changed"
    )


def _version(link: Link, settings: Settings) -> int:
    try:
        ((version,),) = link.run(_VERSION.within(settings.quoted_schema), ())
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return 0
    return int(version)


def _migrate(link: Link, settings: Settings) -> None:
    """One instance at a time, in one transaction: it is seen whole or not at all.

    It waits for locks only shortly, so that writers never queue behind it for long.
    """

    def mine(text: str) -> str:
        return in_schema(text, settings.quoted_schema)

    link.script("BEGIN")
    link.run(_LOCK, (schema.MIGRATION_LOCK, settings.schema))
    link.script("SET LOCAL lock_timeout = '3s'; SET LOCAL client_min_messages = warning")
    if not _exists(link, settings):
        link.script(mine(schema.MAKE_SCHEMA))
    link.script(mine(schema.FORMAT))
    ((version,),) = link.run(_VERSION.within(settings.quoted_schema), ())
    if version > schema.SCHEMA_VERSION:
        raise _newer(version, settings)
    for number in range(version, schema.SCHEMA_VERSION):
        link.run(_PARTITIONS, (str(settings.partitions),))
        for text in schema.migration(number, settings.partitions):
            link.script(mine(text))
        link.run(_NOTE_VERSION.within(settings.quoted_schema), (number + 1,))
    link.script("COMMIT")


_EXISTS = Statement("t", "SELECT 1::bigint FROM pg_namespace WHERE nspname = $1")


def _exists(link: Link, settings: Settings) -> bool:
    # Asked first: who may not create schemas may still use one that is there.
    found: list[Any] = link.run(_EXISTS, (settings.schema,))
    return bool(found)


def _end(link: Link) -> None:
    try:
        link.script("ROLLBACK")
    except psycopg.Error:
        # Then the connection isn't clean, and nobody gets it.
        return
