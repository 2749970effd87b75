"""What every adapter stands on: a store of either colour for frameworks that await, names of threads made
from a framework's keys, values sealed under their person's key, items of a log that are a framework's own,
and frameworks that may be missing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from everthread import arguments
from everthread.arguments import check_name
from everthread.errors import (
    InvalidNameError,
    InvalidValueError,
    StoreClosedError,
    UsageError,
)
from everthread.messages.shapes import is_enclosed
from everthread.store import Store
from everthread.store import open as open_store
from everthread.store_async import AsyncStore
from everthread.stores.offloaded import Offloaded
from everthread.threads.aio.store import AsyncThreadStore
from everthread.threads.sync.store import ThreadStore
from everthread.values import Erased, Personal

T = TypeVar("T")

#: What a caller may hand over as a store: one of either colour, a URL, or nothing for the default place.
AnyStore = Store | AsyncStore | str | None

_AWAITED: WeakKeyDictionary[ThreadStore, AsyncStore] = WeakKeyDictionary()


class StoreInUse:
    """The store that an adapter works on; closed with it only if the adapter has opened it itself."""

    def __init__(self, store: AnyStore) -> None:
        self._own: Store | None = None
        if store is None or isinstance(store, str):
            store = self._own = open_store(store)
        #: What was handed over, or opened.
        self.given: Store | AsyncStore = store
        self._store = awaited(store)
        self._closed = False

    @property
    def store(self) -> AsyncThreadStore:
        """The store, to be awaited. Raises :class:`StoreClosedError` after a close."""
        if self._closed or self.given._closed:
            raise StoreClosedError("this store is closed; open it again")
        return self._store

    def close(self) -> None:
        """Use it no more. May be called twice."""
        self._closed = True
        if self._own is not None:
            self._own.close()


def awaited(store: Any) -> AsyncThreadStore:
    """The store as async code uses it. A blocking store keeps its files and keys, and is closed by itself."""
    if isinstance(store, AsyncThreadStore):
        return store
    if not isinstance(store, ThreadStore):
        raise UsageError(
            f"a store is what everthread.open() or open_async() gives, or a URL, not {type(store).__name__}; "
            "async stores are awaited, or entered with async with, before they are handed over"
        )
    if (made := _AWAITED.get(store)) is None:
        core = store.core
        threads = Offloaded(core.backend)
        made = AsyncStore(threads, namespace=core.space, limits=core.limits, runtime=core.runtime)
        store._at_close.append(threads.stop)
        # One vault for both: keys that one of them has dropped are gone for the other as well.
        made.core.vault = core.vault
        _AWAITED[store] = made
    return made


async def surely(work: Coroutine[Any, Any, T]) -> T:
    """Wait until a write has come to its end, also if the caller is cancelled meanwhile: then it is known
    whether it happened before anybody goes on."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        if not task.cancelled():
            # Looked at, so that nobody is told of an error that the cancellation outranks.
            task.exception()
        raise cancelled
    return task.result()


# Names of threads made from several keys of a framework: readable, and no two pairs of keys share one.


def joined(*parts: str) -> str:
    """One name for all of these. A part may hold anything; ``/`` and ``%`` in it are escaped."""
    return check_name("/".join(map(_escaped, parts)), "name of a thread")


def named(prefix: str, *keys: str) -> str:
    """The name of the thread that a framework's keys stand for: the prefix, then the keys, escaped."""
    return check_name(prefix + "/".join(map(_escaped, keys)), "name of a thread")


def keys_of(prefix: str, name: str) -> tuple[str, ...]:
    """The keys of a name that :func:`named` made."""
    return split(name.removeprefix(prefix))


def below(*parts: str) -> str:
    """What all names begin with that have these parts first, and no other name does."""
    return joined(*parts) + "/"


def split(name: str) -> tuple[str, ...]:
    """The parts of a name that :func:`joined` made."""
    return tuple(part.replace("%2F", "/").replace("%25", "%") for part in name.split("/"))


def _escaped(part: str) -> str:
    if not isinstance(part, str):
        raise InvalidNameError(f"a key is text, not {type(part).__name__}")
    return part.replace("%", "%25").replace("/", "%2F")


# Whose data a framework's records are: sealed on their way in; opened, or missing, on their way out.


def sealed(subject: str | None, value: Any) -> Any:
    """The value as it is kept: under that person's key, until ``store.erase(subject)``."""
    if subject is None or isinstance(value, Personal | Erased):
        return value
    return Personal(subject, value)


def sealed_values(subject: str | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """Each value by itself, so that a change costs no more than what changed."""
    return {key: sealed(subject, value) for key, value in values.items()}


def opened(value: Any) -> Any:
    """The value itself; ``None`` if it was erased."""
    return value.value if isinstance(value, Personal | Erased) else value


def opened_record(value: Any) -> dict[str, Any] | None:
    """The same for what was sealed as a dictionary; ``None`` if it isn't one any more."""
    value = opened(value)
    return value if isinstance(value, dict) else None


def opened_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values that were sealed one by one; erased ones are left out."""
    return {key: opened(value) for key, value in values.items() if not isinstance(value, Erased)}


# Items of a log that several frameworks write: ``everthread.messages.view`` shows the others' converted.


def own_records(shape: str) -> Callable[[Any], list[Any] | None]:
    """What tells the items that a framework of this shape wrote: the record in each; of an erased one none;
    ``None`` for an item that isn't its own."""

    def own(item: Any) -> list[Any] | None:
        if not (is_enclosed(item) and item.get("shape") == shape):
            return None
        record = opened_record(item["message"])
        return [] if record is None else [record]

    return own


def id_of(item: Any) -> Any:
    """The id under which an item can be removed. Raises :class:`InvalidValueError` for one without."""
    if not isinstance(item, dict) or "id" not in item:
        raise InvalidValueError("the log holds something that isn't a message and can't be removed alone")
    return item["id"]


#: Around the imports of a framework.
framework = arguments.framework
