"""What differs between the async code and its blocking twin: the few things that can't be written once.

``threads/aio`` is written by hand; ``threads/sync`` is generated from it by ``tools/twin.py``, which drops
``async`` and ``await``, takes the branch that fits of every ``if ASYNC:``, and puts the second of each of
these pairs in place of the first.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from types import CoroutineType
from typing import Any, NoReturn, ParamSpec, TypeVar, overload

from everthread.errors import UsageError
from everthread.stores.colours import ASYNC, pause, pause_async

#: Found here too, by the async modules and by their twins.
__all__ = ["ASYNC", "pause", "pause_async"]

T = TypeVar("T")
P = ParamSpec("P")

#: Items fetched at a time while iterating: at first, and later if they are small.
_BATCH, _BATCH_MAX = 512, 2048
_SMALL_CHARACTERS = 8192


def _next_batch(size: int, items: list[Any]) -> int:
    """How many to fetch next; many at a time cost less each, and mustn't take much room."""
    if size >= _BATCH_MAX or any(len(str(items[at])) > _SMALL_CHARACTERS for at in (0, len(items) // 2, -1)):
        return size
    return 2 * size


def refuse_coroutine(made: Any, what: str, instead: str) -> None:
    """Raise :class:`UsageError` if a function that nobody awaits was async: nothing of it has run."""
    if isinstance(made, CoroutineType):
        made.close()
        raise UsageError(f"{what} is an async function, and nothing here awaits it; {instead}")


async def uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine to its end. If the caller is cancelled meanwhile, raise that afterwards."""
    import asyncio

    doing = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not doing.done():
        try:
            await asyncio.wait({doing})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not doing.cancelled():
            # Retrieved, so that asyncio doesn't log an error that the cancellation outranks.
            doing.exception()
        raise cancelled
    return doing.result()


class AwaitedFace:
    """What an object of an async store says to whoever takes it for a blocking one."""

    def __enter__(self) -> NoReturn:
        raise UsageError(
            "this belongs to an async store and is entered with: async with; "
            "everthread.open() is the blocking one"
        )

    def __exit__(self, *error: object) -> None:
        """Never reached."""


class Arriving(Coroutine[Any, Any, T]):
    """What an async verb gives until it is awaited. Whoever takes it for the object itself is told so."""

    def __init__(self, made: Coroutine[Any, Any, T], kind: type[T], call: str) -> None:
        self._made = made
        self._kind = kind
        self._call = call

    def __await__(self) -> Generator[Any, None, T]:
        return self._made.__await__()

    def send(self, value: Any) -> Any:
        return self._made.send(value)

    def throw(self, *error: Any) -> Any:
        return self._made.throw(*error)

    def close(self) -> None:
        self._made.close()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") or not hasattr(self._kind, name):
            # Python and event loops look for names of their own, and take absence for an answer.
            raise AttributeError(name)
        self.close()
        raise UsageError(f"await it first: … = await {self._call}; everthread.open() is the blocking one")


class BlockingFace:
    """What an object of a blocking store says to whoever takes it for an async one."""

    def __aenter__(self) -> NoReturn:
        raise UsageError(
            "this belongs to a blocking store and is entered with: with; "
            "everthread.open_async() is the async one"
        )

    def __aexit__(self, *error: object) -> NoReturn:
        raise UsageError("this belongs to a blocking store")

    def __await__(self) -> NoReturn:
        raise UsageError(
            "this belongs to a blocking store: leave out await, or open it with: "
            "async with everthread.open_async(…)"
        )


class _NotIterableError(UsageError, TypeError):
    """Also what Python raises there: many try whether they can iterate over something, and expect that."""


class StreamedFace:
    """The same for what is iterated: an async store's."""

    def __iter__(self) -> NoReturn:
        raise _NotIterableError(
            "this belongs to an async store and is read with: async for; "
            "everthread.open() is the blocking one"
        )


class IteratedFace:
    """The same for what is iterated: a blocking store's."""

    def __aiter__(self) -> NoReturn:
        raise _NotIterableError(
            "this belongs to a blocking store and is read with: for; everthread.open_async() is the async one"
        )


class Streamed(StreamedFace, AsyncIterator[T]):
    """What an async verb yields one by one. Who takes it for a list is told how it is read."""

    def __init__(self, made: AsyncIterator[T]) -> None:
        self._made = made

    def __aiter__(self) -> AsyncIterator[T]:
        # What is beneath: a loop doesn't come by here for each of them.
        return self._made

    def __anext__(self) -> Awaitable[T]:
        return self._made.__anext__()

    async def aclose(self) -> None:
        """Let it go before its end."""
        await self._made.aclose()  # type: ignore[attr-defined]


class Iterated(IteratedFace, Iterator[T]):
    """The same for a blocking verb."""

    def __init__(self, made: Iterator[T]) -> None:
        self._made = made

    def __iter__(self) -> Iterator[T]:
        return self._made

    def __next__(self) -> T:
        return next(self._made)

    def close(self) -> None:
        """Let it go before its end."""
        self._made.close()  # type: ignore[attr-defined]


def streamed(verb: Callable[P, AsyncIterator[T]]) -> Callable[P, AsyncIterator[T]]:
    """A verb that yields, with words for who takes what it gives for something else."""

    @functools.wraps(verb)
    def call(*args: P.args, **options: P.kwargs) -> AsyncIterator[T]:
        return Streamed(verb(*args, **options))

    return call


def iterated(verb: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """The same for a blocking verb."""

    @functools.wraps(verb)
    def call(*args: P.args, **options: P.kwargs) -> Iterator[T]:
        return Iterated(verb(*args, **options))

    return call


class StreamReads(StreamedFace):
    """How an async caller reads a log: ``await log.read(a, b)``, ``async for item in log``, ``len(log)``."""

    async def read(self, start: int = 0, stop: int | None = None) -> list[Any]:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Streams: holds a bounded number of items at a time."""
        start, size = 0, _BATCH
        while start < len(self):
            items = await self.read(start, min(start + size, len(self)))
            for item in items:
                yield item
            start += size
            size = _next_batch(size, items) if items else size

    def __getitem__(self, index: object) -> NoReturn:
        raise UsageError("a log of an async store is read with: await log.read(start, stop)")

    def __reversed__(self) -> NoReturn:
        raise UsageError("a log of an async store is read with: await log.read(start, stop)")


class SequenceReads(IteratedFace, Sequence[Any]):
    """How a blocking caller reads a log: as any sequence."""

    def read(self, start: int = 0, stop: int | None = None) -> list[Any]:
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice) and index.step is None:
            return self.read(0 if index.start is None else index.start, index.stop)
        length = len(self)
        if isinstance(index, slice):
            start, stop, step = index.indices(length)
            wanted = range(start, stop, step)
            if not wanted:
                return []
            low, high = min(wanted[0], wanted[-1]), max(wanted[0], wanted[-1])
            items = self.read(low, high + 1)
            return [items[at - low] for at in wanted]
        if not hasattr(index, "__index__"):
            raise TypeError(f"a log has integers and slices as indices, not {type(index).__name__}")
        at = index + length if index < 0 else index
        if not 0 <= at < length:
            raise IndexError(f"the log has {length} items, there is no index {index}")
        return self.read(at, at + 1)[0]

    def __iter__(self) -> Iterator[Any]:
        """Streams: holds a bounded number of items at a time."""
        start, size = 0, _BATCH
        while start < len(self):
            items = self.read(start, min(start + size, len(self)))
            yield from items
            start += size
            size = _next_batch(size, items) if items else size

    def __reversed__(self) -> Iterator[Any]:
        stop = len(self)
        while stop > 0:
            start = max(stop - _BATCH, 0)
            yield from reversed(self.read(start, stop))
            stop = start

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SequenceReads | list):
            return len(self) == len(other) and self[:] == list(other)
        return False

    __hash__ = None  # type: ignore[assignment]
