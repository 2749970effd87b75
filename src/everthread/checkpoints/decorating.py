"""The decorator that saves an object every few calls."""

from __future__ import annotations

import functools
import inspect
import itertools
import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from everthread.arguments import check_name
from everthread.checkpoints.objects import Checkpointable
from everthread.errors import InvalidValueError, UsageError

if TYPE_CHECKING:
    import asyncio

    from everthread.checkpoints.saving import CheckpointManager

F = TypeVar("F", bound=Callable[..., Any])

Key = str | Callable[[Any], str]


def checkpoint(manager: CheckpointManager, key: Key, every: int = 1) -> Callable[[F], F]:
    """Let every ``every``-th call of a function end with ``manager.save(key, object)``.

    The object is the first argument that is a :class:`Checkpointable`, ``self`` of a method included; a call
    without one raises :class:`UsageError`. ``key`` may be a function from that object to the key. All calls
    of the function count, those that raise too, but these save nothing. An async function is awaited and the
    write then made in a worker thread, so that the event loop goes on.
    """
    if type(every) is not int or every < 1:
        raise InvalidValueError(f"every must be a whole number from 1 on, not {every!r}", path="every")
    if not hasattr(manager, "save"):
        raise InvalidValueError(
            f"checkpoint() takes a CheckpointManager first, not {type(manager).__name__}", path="manager"
        )
    if not callable(key):
        check_name(key, "key")
    # The counter may be asked by several threads at once: next() of it is atomic.
    return lambda function: _wrap(function, manager, key, every, itertools.count(1))


def _wrap(
    function: Any, manager: CheckpointManager, key: Key, every: int, calls: itertools.count[int]
) -> Any:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError("a generator can't be checkpointed: when a call of it ends isn't known")
    if inspect.iscoroutinefunction(function):
        turns = _Turns()

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            agent = _subject(function, args, kwargs)
            due = next(calls) % every == 0
            result = await function(*args, **kwargs)
            if due:
                await turns.take(lambda: _save_apart(manager, _key_for(key, agent), agent))
            return result

        return awaited

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        agent = _subject(function, args, kwargs)
        due = next(calls) % every == 0
        result = function(*args, **kwargs)
        if due:
            manager.save(_key_for(key, agent), agent)
        return result

    return called


def _subject(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Checkpointable:
    for value in itertools.chain(args, kwargs.values()):
        if isinstance(value, Checkpointable):
            return value
    raise UsageError(f"{function.__qualname__}() was called without a Checkpointable to save")


def _key_for(key: Key, agent: Checkpointable) -> str:
    return key if isinstance(key, str) else key(agent)


async def _save_apart(manager: CheckpointManager, key: str, agent: Checkpointable) -> None:
    import asyncio

    from everthread.checkpoints.saving import state_of

    # Taken here, where nothing else of the loop can run meanwhile; only the write goes elsewhere.
    await asyncio.to_thread(manager._save_state, key, state_of(agent))


class _Turns:
    """Lets the saves of one function follow each other in the order of their states."""

    def __init__(self) -> None:
        # A lock belongs to one event loop, and the function may be called in several, one after another.
        self._locks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]
        self._locks = weakref.WeakKeyDictionary()

    async def take(self, save: Callable[[], Awaitable[None]]) -> None:
        import asyncio

        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            await save()
