"""The way in for async callers."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NoReturn

from everthread.errors import UsageError
from everthread.model.limits import DEFAULT_LIMITS, Limits
from everthread.opening import check_options
from everthread.stores.offloaded import Offloaded
from everthread.stores.urls import default_url, open_backend
from everthread.stores.workers import Worker
from everthread.threads.aio.store import AsyncThreadStore
from everthread.threads.runtime import Runtime


class AsyncStore(AsyncThreadStore):
    """An open store for async callers. Close it, or use it with ``async with``."""


class _Opening:
    """A store that is about to be opened: awaited, or entered with ``async with``."""

    def __init__(self, url: str | None, durability: str, **options: Any) -> None:
        self._url = url
        self._durability = durability
        self._options = options
        self._store: AsyncStore | None = None

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._open().__await__()

    async def _open(self) -> AsyncStore:
        url = self._url if self._url is not None else default_url()
        opener = Worker("everthread-opener", 1)
        try:
            backend = await opener.run(open_backend, url, self._durability)
        finally:
            opener.stop()
        return AsyncStore(Offloaded(backend), **self._options)

    async def __aenter__(self) -> AsyncStore:
        self._store = await self._open()
        return self._store

    async def __aexit__(self, *error: object) -> None:
        if self._store is not None:
            await self._store.close()

    def __enter__(self) -> NoReturn:
        raise UsageError("open_async() is entered with: async with; everthread.open() is the blocking one")

    def __exit__(self, *error: object) -> None:
        """Never reached."""

    def __getattr__(self, name: str) -> NoReturn:
        raise UsageError(f"await everthread.open_async(…) first; it has no {name!r} before it is open")


def open_async(
    url: str | None = None,
    *,
    durability: str = "full",
    keyring: Any = None,
    namespace: str = "",
    limits: Limits = DEFAULT_LIMITS,
    runtime: Runtime | None = None,
) -> _Opening:
    """Open a store for async callers: ``async with open_async(url) as store`` or ``await open_async(url)``.

    Takes what :func:`open` takes.
    """
    check_options(namespace, limits)
    return _Opening(url, durability, namespace=namespace, keyring=keyring, limits=limits, runtime=runtime)
