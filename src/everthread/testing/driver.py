"""An async store that looks blocking, so that one suite of tests serves both colours.

    store = drive(everthread.open_async("sqlite:///agent.db"))
    thread = store.thread("a")              # an AsyncThread beneath
    thread.state["x"] = 1
    thread.commit()                         # runs an event loop until the awaited verb is done

What comes back is wrapped in its turn. Every call runs on an event loop that nobody else uses meanwhile, so
that calls from several threads are calls from several loops. What goes wrong in a loop and reaches nobody
(the exception of a task that isn't awaited, say) is raised by the call that finds it.

Where the async contract differs from the blocking one, this bridges it:

- ``await store.thread(name)`` reads the head at once. Here a handle is made at its first use, so that it is
  pinned when a blocking one would be.
- ``append()`` with an id of the caller's and ``truncate_from()`` wait for the commit or the next read before
  they ask the store. Here that next read follows at once: what the store refuses is raised by the call itself
  and taken back, and ``truncate_from()`` tells how many items went.
- ``log.read(a, b)`` and ``async for`` stand behind indexing, slicing, iterating and comparing.
- A session begins when ``store.session()`` is called, and ends as ``async with`` would end it. What it calls
  is called outside of the loop.
- A function handed to ``update()`` is called outside of the loop and gets a draft that looks blocking too.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import functools
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, cast

from everthread.arguments import check_name
from everthread.events.aio.consumer import AsyncConsumer
from everthread.events.aio.group import AsyncConsumerGroup
from everthread.events.aio.projection import AsyncProjection
from everthread.events.aio.stream import AsyncEventStream
from everthread.knowledge import AsyncKnowledge
from everthread.people.users import AsyncUserStore
from everthread.sessions.aio.decisions import AsyncPendingDecision
from everthread.sessions.aio.orders import AsyncConstraints
from everthread.sessions.aio.session import AsyncAgentSession
from everthread.sessions.aio.status import AsyncSessionRecords
from everthread.sessions.aio.tasks import AsyncTasks
from everthread.sessions.aio.turns import AsyncMessages, AsyncTurn
from everthread.sessions.locks import Entering
from everthread.store import Store
from everthread.store_async import AsyncStore
from everthread.threads.aio.lock import AsyncThreadLock
from everthread.threads.aio.log import AsyncLog, AsyncLogView
from everthread.threads.aio.past import AsyncPast
from everthread.threads.aio.step import AsyncStep, AsyncStepLog
from everthread.threads.aio.thread import AsyncThread
from everthread.threads.aio.update import AsyncDraft
from everthread.threads.twins import SequenceReads
from everthread.threads.validation import validator

__all__ = ["aside", "drive", "open_driven", "run"]


# Event loops for blocking callers: each call runs on one that nobody else uses meanwhile.


T = TypeVar("T")

Request = tuple[Callable[[], Any], asyncio.Future[Any]]

_requests: contextvars.ContextVar[list[Request]] = contextvars.ContextVar("requests")


class _Loop:
    """An event loop, and what went wrong in it without reaching anybody."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.problems: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.problems.append(context))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        requests: list[Request] = []
        context = contextvars.copy_context()
        context.run(_requests.set, requests)
        task = self.loop.create_task(coroutine, context=context)
        task.add_done_callback(lambda _: self.loop.stop())
        try:
            while not task.done():
                self.loop.run_forever()
                while requests:
                    _answer(*requests.pop())
        finally:
            self._leave(task)
        if self.problems:
            problems, self.problems = self.problems, []
            raise AssertionError(f"went wrong in an event loop, and nobody was told: {problems}")
        return task.result()

    def _leave(self, task: asyncio.Task[Any]) -> None:
        """Whatever interrupted this call: let nothing of it be left in the loop."""
        if not task.done():
            task.cancel()
            while not task.done():
                self.loop.run_forever()
        if not task.cancelled():
            task.exception()

    def close(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


def _answer(function: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
    try:
        result = function()
    except BaseException as error:
        answer.set_exception(error)
    else:
        answer.set_result(result)


class _Pool:
    """The loops that nobody uses at the moment."""

    def __init__(self) -> None:
        self._idle: list[_Loop] = []
        self._abandoned: list[_Loop] = []
        self._pid = os.getpid()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._pid != os.getpid():
            # After fork(2): those are the parent's. Closing them here would disturb it.
            self._pid, self._abandoned, self._idle = os.getpid(), self._idle, []
        try:
            loop = self._idle.pop()
        except IndexError:
            loop = _Loop()
        try:
            return loop.run(coroutine)
        finally:
            self._idle.append(loop)

    def close(self) -> None:
        while self._pid == os.getpid() and self._idle:
            self._idle.pop().close()


_pool = _Pool()
atexit.register(_pool.close)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return what it returns, from any thread.

    Raises :class:`AssertionError` if something went wrong in the loop that reached nobody.
    """
    return _pool.run(coroutine)


async def aside(function: Callable[[], T]) -> T:
    """Within a coroutine that :func:`run` runs: call a function outside of the loop, where it may block or
    run coroutines in its turn."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    _requests.get().append((function, answer))
    loop.stop()
    return await answer


def open_driven(url: str, **options: Any) -> Store:
    """As :func:`everthread.open`, but what works beneath is the store of :func:`everthread.open_async`."""
    from everthread.store_async import open_async

    return drive(open_async(url, **options))


def drive(store: AsyncStore | Awaitable[AsyncStore]) -> Store:
    """``store``, or the one that is awaited, as a blocking caller would see it."""
    real = store if isinstance(store, AsyncStore) else run(_awaited(store))
    return cast("Store", DrivenStore(real))


async def _awaited(store: Awaitable[AsyncStore]) -> AsyncStore:
    return await store


class Driven:
    """Hands on every attribute; what must be awaited is run, what comes back looks blocking."""

    def __init__(self, store: DrivenStore, real: Any) -> None:
        self._store = store
        self._object = real

    @property
    def _real(self) -> Any:
        return self._object

    @property
    def core(self) -> Any:
        return self._store.core

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if inspect.iscoroutine(found):
            # A property that reads the store.
            return self._store._shown(run(found))
        if inspect.ismethod(found):
            return lambda *args, **options: self._call(found, args, options)
        return self._store._shown(found)

    def _call(self, method: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        given = [_real(arg) for arg in args]
        answer = method(*given, **{name: _real(option) for name, option in options.items()})
        if inspect.iscoroutine(answer):
            answer = run(answer)
        return self._store._shown(answer)

    def __repr__(self) -> str:
        return f"<driven {self._real!r}>"


def _real(value: Any) -> Any:
    return value._real if isinstance(value, Driven | DrivenLogView) else value


class DrivenStore(Driven):
    """What :func:`drive` gives."""

    def __init__(self, store: AsyncStore) -> None:
        super().__init__(self, store)
        self._driven_core = _DrivenCore(self, store.core)

    @property
    def core(self) -> Any:
        return self._driven_core

    def thread(self, name: str, **options: Any) -> DrivenThread:
        # What a blocking store looks at before it makes a handle; the handle itself comes at its first use.
        self._real._check()
        check_name(name, "thread name")
        validator(options.get("schema"))
        thread = DrivenThread(self, name, lambda: self._real.thread(name, **options))
        if options.get("strict"):
            thread._real  # noqa: B018 - a strict handle reads at once
        return thread

    def _shown(self, value: Any) -> Any:
        """``value`` as a blocking caller sees it."""
        for kind, driven in _DRIVEN.items():
            if isinstance(value, kind):
                return driven(self, value)
        if isinstance(value, AsyncIterator):
            return _iterate(self, value)
        return value

    def __enter__(self) -> DrivenStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _iterate(store: DrivenStore, items: Any) -> Iterator[Any]:
    nothing = object()

    async def following() -> Any:
        return await anext(items, nothing)

    try:
        while (item := run(following())) is not nothing:
            yield store._shown(item)
    finally:
        if inspect.isasyncgen(items):
            run(items.aclose())


class DrivenThread(Driven):
    """A handle, made when it is first used."""

    def __init__(self, store: DrivenStore, name: str, make: Callable[[], Any] | None) -> None:
        super().__init__(store, None)
        self.name = name
        self._make = make

    @classmethod
    def of(cls, store: DrivenStore, thread: AsyncThread) -> DrivenThread:
        made = cls(store, thread.name, None)
        made._object = thread
        return made

    @property
    def _real(self) -> Any:
        if self._object is None:
            assert self._make is not None
            self._object = run(self._make())
        return self._object

    @property
    def dirty(self) -> bool:
        return self._object is not None and self._object.dirty

    def update(self, fn: Callable[[Any], Any], **options: Any) -> Any:
        async def outside(draft: AsyncDraft) -> None:
            await aside(lambda: fn(DrivenDraft(self._store, draft)))

        return run(self._real.update(outside, **options))


class DrivenLogView(SequenceReads):
    """A log that is indexed and iterated."""

    def __init__(self, store: DrivenStore, real: Any) -> None:
        self._store = store
        self._real = real

    @property
    def name(self) -> Any:
        return self._real.name

    def read(self, start: int = 0, stop: int | None = None) -> list[Any]:
        return cast("list[Any]", run(self._real.read(start, stop)))

    def find(self, message_id: Any) -> int | None:
        return cast("int | None", run(self._real.find(message_id)))

    def append(self, item: Any) -> Any:
        return self._real.append(item)

    def extend(self, items: Any) -> Any:
        return self._real.extend(items)

    def truncate_from(self, message_id: Any) -> Any:
        return self._real.truncate_from(message_id)

    def __len__(self) -> int:
        return len(self._real)

    def __repr__(self) -> str:
        return f"<driven {self._real!r}>"


class DrivenLog(DrivenLogView):
    """A log of a handle: what waits for the store is settled at once."""

    def append(self, item: Any) -> Any:
        return self._settled(lambda: self._real.append(item))

    def extend(self, items: Any) -> list[Any]:
        return cast("list[Any]", self._settled(lambda: self._real.extend(items)))

    def truncate_from(self, message_id: Any) -> int:
        before = len(self)
        self._settled(lambda: self._real.truncate_from(message_id))
        return before - len(self)

    def _settled(self, edit: Callable[[], Any]) -> Any:
        log: AsyncLog = self._real
        before = log._pending()
        answer = edit()
        if log._deferred:
            try:
                run(log.read(0, 0))
            except BaseException:
                log._take_back(before)
                log._deferred = []
                log._handle.untouch()
                raise
        return answer


class DrivenEntered(Driven):
    """What is entered with ``async with``."""

    def __enter__(self) -> Any:
        return self._store._shown(run(self._real.__aenter__()))

    def __exit__(self, *error: Any) -> Any:
        return run(self._real.__aexit__(*error))


class DrivenSession(DrivenEntered):
    """A run that has begun, and what ends it. Functions that it calls are called outside of the loop."""

    def __init__(self, store: DrivenStore, session: AsyncAgentSession) -> None:
        self.__dict__.update(_store=store, _object=session)
        run(session.__aenter__())

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)

    def __enter__(self) -> DrivenSession:
        return self

    def call(self, key: str, fn: Any, /, *args: Any, verify: Any = None, **options: Any) -> Any:
        called = self._real.call(key, _outside(fn), *args, verify=_outside(verify), **options)
        return run(called)


def _outside(fn: Any) -> Any:
    """A function that is called outside of the loop, so that it may use what is driven."""
    if not callable(fn):
        return fn

    @functools.wraps(fn, updated=())
    async def call(*args: Any, **options: Any) -> Any:
        return await aside(lambda: fn(*args, **options))

    return call


class DrivenTasks(Driven):
    """Tasks, looked at as they are."""

    def __getitem__(self, task_id: str) -> Any:
        return self._real[task_id]

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._real

    def __iter__(self) -> Iterator[Any]:
        return iter(self._real)

    def __len__(self) -> int:
        return len(self._real)


class DrivenMessages(DrivenLogView):
    """The messages of a session: each change is awaited."""

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._real, name)
        return lambda *args, **options: run(method(*args, **options))

    def slice(self) -> dict[str, Any]:
        told: dict[str, Any] = self._real.slice()
        return told

    def append(self, item: Any, shape: str | None = None) -> Any:
        return run(self._real.append(item, shape))

    def extend(self, items: Any, shape: str | None = None) -> Any:
        return run(self._real.extend(items, shape))

    def truncate_from(self, message_id: Any) -> int:
        return cast("int", run(self._real.truncate_from(message_id)))

    def find(self, message_id: Any) -> int | None:
        return cast("int | None", run(self._real.find(message_id)))


async def _arrived(entering: Entering[Any]) -> Any:
    return await entering


class DrivenStep(Driven):
    """A step to be entered with ``with``."""

    @property
    def result(self) -> Any:
        return self._real.result

    @result.setter
    def result(self, value: Any) -> None:
        self._real.result = value

    def call(self, key: str, fn: Any, /, *args: Any, verify: Any = None, **options: Any) -> Any:
        return run(self._real.call(key, _outside(fn), *args, verify=_outside(verify), **options))

    def __enter__(self) -> DrivenStep:
        run(self._real.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        run(self._real.__aexit__(*error))


class DrivenLock(Driven):
    """A lock to be entered with ``with``."""

    def __enter__(self) -> DrivenDraft:
        return DrivenDraft(self._store, run(self._real.__aenter__()))

    def __exit__(self, *error: Any) -> None:
        run(self._real.__aexit__(*error))


class DrivenStepLog(Driven):
    """A step's log that is indexed."""

    def __len__(self) -> int:
        return len(self._real)

    def __getitem__(self, index: Any) -> Any:
        return run(self._real.read())[index]


class DrivenDraft(Driven, MutableMapping[Any, Any]):
    """What a function gets from ``update()``."""

    def __getitem__(self, key: Any) -> Any:
        return self._real[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._real[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._real[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._real)

    def __len__(self) -> int:
        return len(self._real)


class DrivenStream(Driven):
    """A stream of events that is iterated and has a length."""

    @property
    def last(self) -> Any:
        return run(self._real.last())

    @property
    def retention(self) -> Any:
        return run(self._real.retention())

    def __iter__(self) -> Iterator[Any]:
        return _iterate(self._store, self._real.replay())

    def __len__(self) -> int:
        return cast("int", run(self._real.count()))

    def __bool__(self) -> bool:
        return bool(self._real)


class _DrivenCore:
    """The inside of a store, for tests that look there: its backend looks blocking, the rest is as it is."""

    def __init__(self, store: DrivenStore, core: Any) -> None:
        self.__dict__.update(backend=Driven(store, core.backend), _own=core)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._own, name, value)


#: The first that fits counts.
_DRIVEN: dict[type, Callable[[DrivenStore, Any], Any]] = {
    AsyncThread: DrivenThread.of,
    AsyncLog: DrivenLog,
    AsyncLogView: DrivenLogView,
    AsyncStep: DrivenStep,
    AsyncThreadLock: DrivenLock,
    AsyncStepLog: DrivenStepLog,
    AsyncPast: Driven,
    AsyncEventStream: DrivenStream,
    AsyncConsumer: Driven,
    AsyncConsumerGroup: Driven,
    AsyncProjection: Driven,
    AsyncKnowledge: Driven,
    AsyncUserStore: Driven,
    AsyncAgentSession: DrivenSession,
    AsyncSessionRecords: Driven,
    AsyncTasks: DrivenTasks,
    AsyncConstraints: Driven,
    AsyncMessages: DrivenMessages,
    AsyncTurn: DrivenEntered,
    AsyncPendingDecision: DrivenEntered,
    Entering: lambda store, entering: store._shown(run(_arrived(entering))),
    AbstractAsyncContextManager: DrivenEntered,
}
