"""The contract on Valkey, and from a URL to an open store."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from everthread.errors import NotFoundError, SchemaVersionError, UnsupportedError
from everthread.stores.colours import ASYNC
from everthread.stores.contract import Capabilities, Covered, PutCell, TextFound, Wanted
from everthread.stores.valkey.aio.client import AsyncClient
from everthread.stores.valkey.aio.erasure import Erasure
from everthread.stores.valkey.errors import code_of, translated
from everthread.stores.valkey.layout import Keys
from everthread.stores.valkey.server_info import (
    ADVICE,
    FULL,
    UNKNOWN,
    Durability,
    read_durability,
    read_info,
    worst,
)
from everthread.stores.valkey.settings import Settings, read_url

if ASYNC:
    from collections.abc import Callable

    from everthread.stores.contract import Backend
    from everthread.stores.offload import run_in_thread

#: The layout of keys and values. A higher one is left alone.
FORMAT = 1
#: Before these a script could not both look at the clock and write.
_OLDEST = 7

_CONFIG = (
    ("CONFIG", "GET", "appendonly"),
    ("CONFIG", "GET", "appendfsync"),
    ("CONFIG", "GET", "save"),
    ("CONFIG", "GET", "maxmemory-policy"),
)


async def connect(url: str, durability: str, create: bool = True) -> AsyncValkeyBackend:
    """The store at a URL, opened. Without ``create`` none is made: raises :class:`NotFoundError`.

    Raises :class:`UnsupportedError` if ``durability`` is ``"full"`` and the server is known to keep less,
    :class:`StoreUnavailableError`, :class:`AccessError`.
    """
    settings = read_url(url, durability)
    client = AsyncClient(settings)
    try:
        found = await _ask_durability(client)
        # Before anything is written there.
        _check_durability(settings, found)
        await _check_format(client, create)
        return AsyncValkeyBackend(client, found)
    except BaseException:
        await client.close()
        raise


async def _ask_durability(client: AsyncClient) -> Durability:
    info, *config = await client.first_answer(("INFO",), *_CONFIG)
    if isinstance(info, ResponseError):
        if code_of(info) != "NOPERM":
            raise translated(info, client.settings.url)
        facts: dict[str, str] = {}
    else:
        facts = read_info(info)
    _check_version(facts)
    clustered = (
        facts.get("cluster_enabled") == "1" if client.settings.cluster is None else client.settings.cluster
    )
    found = [read_durability(_config(config), facts)]
    if clustered:
        await client.follow_cluster()
        for server in client.servers:
            info, *config = await client.on_server(server, ("INFO",), *_CONFIG)
            found.append(read_durability(_config(config), read_info(info)))
    return worst(found)


def _config(answers: list[Any]) -> dict[str, str] | None:
    if any(isinstance(answer, ResponseError) for answer in answers):
        return None
    found: dict[str, str] = {}
    for answer in answers:
        flat = [each.decode("utf-8", "replace") for each in answer]
        found.update(zip(flat[::2], flat[1::2], strict=True))
    return found


def _check_version(info: dict[str, str]) -> None:
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version", "")
    first = version.partition(".")[0]
    if first.isdigit() and int(first) < _OLDEST:
        raise UnsupportedError(f"the server is {name} {version}; Everthread needs {_OLDEST} or newer")


async def _check_format(client: AsyncClient, create: bool) -> None:
    """Mark a new store, if there may be one, and refuse one that a newer Everthread has made."""
    place = Keys(client.settings.prefix).info
    if create:
        await client.command(place, "HSETNX", place, "format", FORMAT)
    found = await client.command(place, "HGET", place, "format")
    if found is None and not create:
        raise NotFoundError(
            f"there is no store at {client.settings.url}: nothing has the prefix {client.settings.prefix}. "
            "An agent makes it when it opens it; nothing was made now"
        )
    if found is not None and int(found) > FORMAT:
        raise SchemaVersionError(
            f"{client.settings.url} was written by a newer Everthread; upgrade it",
            found=int(found),
            supported=FORMAT,
        )


def _check_durability(settings: Settings, found: Durability) -> None:
    if settings.durability != FULL:
        return
    if found.evicts.startswith("allkeys"):
        raise UnsupportedError(
            f'{settings.url} can\'t keep what durability="full" promises: {found}, or accept it with '
            'durability="process"'
        )
    if found.level == FULL:
        return
    if found.level == UNKNOWN:
        warnings.warn(
            f"{settings.url}: {found}. Whether acknowledged commits survive a power cut can't be told",
            stacklevel=2,
        )
        return
    raise UnsupportedError(
        f'{settings.url} can\'t keep what durability="full" promises: {found}. Let the server do it '
        f'({ADVICE}), or accept it with durability="process"'
    )


class AsyncValkeyBackend(Erasure):
    """One server, or a cluster. Safe for several threads, tasks, processes and hosts at once."""

    #: The server does nothing else while it takes rows: so many bytes keep it busy for a quarter of a second.
    capabilities = Capabilities(
        durable=True, multi_process=True, backup=False, cold=True, cold_rows_max=1 << 26
    )

    def __init__(self, client: AsyncClient, keeping: Durability) -> None:
        super().__init__(client)
        self.keeping = keeping
        if ASYNC:
            self._blocking: Backend | None = None

    @property
    def url(self) -> str:
        return self._settings.url

    if ASYNC:

        @property
        def blocking(self) -> Backend:
            """The blocking driver, for the one read that can't be awaited. Connects when it is first used."""
            if self._blocking is None:
                from everthread.stores.valkey.sync.client import Client
                from everthread.stores.valkey.sync.store import ValkeyBackend

                client = Client(self._settings)
                client.follow(self._client.places)
                self._blocking = ValkeyBackend(client, self.keeping)
            return self._blocking

        async def aside(self, call: Callable[..., Any], *args: Any) -> Any:
            return await run_in_thread(call, *args)

    async def close(self) -> None:
        await self._client.close()
        if ASYNC and self._blocking is not None:
            self._blocking.close()
        self.signals.close()

    # ── what this store doesn't do ───────────────────────────────────────────────────────────

    async def backup(self, path: str) -> None:
        raise _no_backups()

    async def restore(self, path: str, cells: Sequence[PutCell] = ()) -> None:
        raise _no_backups()

    async def check(self) -> list[str]:
        """Nothing that only the store as a whole could be asked."""
        return []

    async def texts_covered(self, space: str) -> dict[bytes, bytes]:
        raise _no_texts()

    async def text_keys(self, space: str, uid: bytes, kinds: Sequence[str]) -> list[str]:
        raise _no_texts()

    async def cover_texts(self, space: str, covered: Covered) -> bool:
        raise _no_texts()

    async def forget_texts(self, space: str, uids: Sequence[bytes]) -> None:
        raise _no_texts()

    async def find_texts(self, space: str, wanted: Wanted) -> list[TextFound]:
        raise _no_texts()

    async def drop_texts(self) -> None:
        """There is nothing to drop."""


def _no_backups() -> UnsupportedError:
    return UnsupportedError(
        "a store on a server isn't backed up or restored from here: copy its RDB snapshot or append-only "
        "files with the server's own tools, or write an archive with store.export() and read it with "
        "store.import_from()"
    )


def _no_texts() -> UnsupportedError:
    return UnsupportedError("this store keeps no index of texts")
