"""From a URL to an open store."""

from __future__ import annotations

import warnings
from typing import Any

from everthread.errors import NotFoundError, SchemaVersionError, UnsupportedError
from everthread.stores.valkey.aio.backend import AsyncValkeyBackend
from everthread.stores.valkey.aio.calls import AsyncCalls
from everthread.stores.valkey.failing import translated
from everthread.stores.valkey.keys import Keys
from everthread.stores.valkey.lasting import ADVICE, FULL, UNKNOWN, Keeping, read_info, read_keeping, worst
from everthread.stores.valkey.resp import ReplyError
from everthread.stores.valkey.settings import Settings, read_url

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
    calls = AsyncCalls(settings)
    try:
        keeping = await _begin(calls)
        # Before anything is written there.
        _check_keeping(settings, keeping)
        await _check_format(calls, create)
        return AsyncValkeyBackend(calls, keeping)
    except BaseException:
        calls.close()
        raise


async def _begin(calls: AsyncCalls) -> Keeping:
    info, *config = await calls.once(("INFO",), *_CONFIG)
    if isinstance(info, ReplyError):
        if info.code != "NOPERM":
            raise translated(info, calls.settings.url)
        told: dict[str, str] = {}
    else:
        told = read_info(info)
    _check_version(told)
    clustered = (
        told.get("cluster_enabled") == "1" if calls.settings.cluster is None else calls.settings.cluster
    )
    keeping = [read_keeping(_config(config), told)]
    if clustered:
        await calls.follow_cluster()
        for server in calls.servers:
            try:
                info, *config = await calls.on_server(server, ("INFO",), *_CONFIG)
                keeping.append(read_keeping(_config(config), read_info(info)))
            except UnsupportedError:
                raise
    return worst(keeping)


def _config(answers: list[Any]) -> dict[str, str] | None:
    if any(isinstance(answer, ReplyError) for answer in answers):
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


async def _check_format(calls: AsyncCalls, create: bool) -> None:
    """Mark a new store, if there may be one, and refuse one that a newer Everthread has made."""
    place = Keys(calls.settings.prefix).info
    if create:
        await calls.command(place, "HSETNX", place, "format", FORMAT)
    found = await calls.command(place, "HGET", place, "format")
    if found is None and not create:
        raise NotFoundError(
            f"there is no store at {calls.settings.url}: nothing has the prefix {calls.settings.prefix}. "
            "An agent makes it when it opens it; nothing was made now"
        )
    if found is not None and int(found) > FORMAT:
        raise SchemaVersionError(
            f"{calls.settings.url} was written by a newer Everthread; upgrade it",
            found=int(found),
            supported=FORMAT,
        )


def _check_keeping(settings: Settings, keeping: Keeping) -> None:
    if settings.durability != FULL:
        return
    if keeping.evicts.startswith("allkeys"):
        raise UnsupportedError(
            f'{settings.url} can\'t keep what durability="full" promises: {keeping}, or accept it with '
            'durability="process"'
        )
    if keeping.level == FULL:
        return
    if keeping.level == UNKNOWN:
        warnings.warn(
            f"{settings.url}: {keeping}. Whether acknowledged commits survive a power cut can't be told",
            stacklevel=2,
        )
        return
    raise UnsupportedError(
        f'{settings.url} can\'t keep what durability="full" promises: {keeping}. Let the server do it '
        f'({ADVICE}), or accept it with durability="process"'
    )
