"""Opening the store behind a URL.

This is above the stores, because those that only hold bytes need the rules before a caller can use them.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from everthread.arguments import check_path, with_extra
from everthread.errors import (
    InvalidValueError,
    MissingDependencyError,
    StoreUnavailableError,
    UnsupportedError,
)
from everthread.stores.contract import Backend
from everthread.stores.urls import NETWORK, SCHEMES, Existing, file_options, unquoted

if TYPE_CHECKING:
    from everthread.stores.contract_async import AsyncBackend


def open_backend(url: str, durability: str) -> Backend:
    """Open the store behind a URL. Raises :class:`UnsupportedError` for an unknown scheme."""
    scheme, rest = _split(url, durability)
    if scheme == "memory":
        if rest not in ("", "//"):
            raise InvalidValueError(
                f"{url!r}: a store in memory has no name; write memory:, and hand the open store to who "
                "is to share it"
            )
        return open_memory()
    if scheme == "sqlite":
        return _open_sqlite(url, rest, durability)
    if scheme == "file":
        return _open_files(url, rest, durability)
    if scheme in NETWORK:
        backend: Backend = _opening(scheme, "sync").connect(url, durability, not isinstance(url, Existing))
        return backend
    raise UnsupportedError(f"no store has the scheme {scheme!r}; use one of {SCHEMES}")


def open_memory() -> Backend:
    """Return a new store in the memory of this process."""
    from everthread.records.backend import RecordsBackend
    from everthread.records.tables import TABLES
    from everthread.stores.memory_store import MemoryStore

    return RecordsBackend(MemoryStore(TABLES))


async def connect_async(url: str, durability: str) -> AsyncBackend:
    """Open the store behind a URL for which :func:`over_network` is true, with its async driver."""
    scheme, _ = _split(url, durability)
    create = not isinstance(url, Existing)
    backend: AsyncBackend = await _opening(scheme, "aio").connect(url, durability, create)
    return backend


def _split(url: str, durability: str) -> tuple[str, str]:
    """Return the scheme of a URL, and the rest."""
    if durability not in ("full", "process"):
        raise InvalidValueError(f'durability is "full" or "process", not {durability!r}', path="durability")
    if not isinstance(url, str) or "\0" in url:
        raise InvalidValueError("a store URL is text without NUL")
    scheme, colon, rest = url.partition(":")
    if not colon:
        raise UnsupportedError(f"{url!r} isn't a store URL; use one of {SCHEMES}")
    return scheme, rest


def _opening(scheme: str, colour: str) -> Any:
    """Return the module that opens a network store. Raises ``MissingDependencyError`` without its extra."""
    network = NETWORK[scheme]
    try:
        return import_module(f"everthread.stores.{network.package}.{colour}.store")
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in (network.driver, f"{network.driver}_pool"):
            raise
        raise MissingDependencyError(
            f"a store at {scheme}:// needs {network.driver}: {with_extra(network.package)}"
        ) from error


def _open_sqlite(url: str, rest: str, durability: str) -> Backend:
    from everthread.stores.sqlite.connection import Settings
    from everthread.stores.sqlite.store import SqliteBackend

    location = rest.partition("?")[0]
    if not location.startswith("///") or len(location) == 3:
        raise InvalidValueError(
            f"{url!r} names no file; write sqlite:///agent.db or sqlite:////absolute/agent.db"
        )
    options = file_options(url)
    path = os.path.abspath(check_path(unquoted(location[3:])))
    if path.encode("utf-8", "replace").decode() != path:
        raise StoreUnavailableError(
            f"SQLite opens files by names in UTF-8 only, and {path!a} isn't; use another"
        )
    return SqliteBackend(Settings(path, durability=durability, **options))


def _open_files(url: str, rest: str, durability: str) -> Backend:
    from everthread.stores.files.store import FileBackend

    location = rest.partition("?")[0]
    path = unquoted(location[2:])
    if not location.startswith("///") or not path.strip("/"):
        raise InvalidValueError(f"{url!r} names no folder; write file:///absolute/folder")
    options = file_options(url)
    return FileBackend(os.path.abspath(check_path(path)), durability=durability, **options)
