"""What runs in activities: ``step``, the store that the plugin has opened, and the activities behind the
verbs of workflow code."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError

from everthread.arguments import check_function
from everthread.engines.aio import steps
from everthread.engines.either_step import EitherStep
from everthread.engines.pointers import Execution, ThreadRef
from everthread.engines.sync import steps as blocking_steps
from everthread.errors import FencedError, NotFoundError, StoreClosedError, UsageError
from everthread.store import Store
from everthread.store import open as open_blocking
from everthread.store_async import AsyncStore, open_async

T = TypeVar("T")

#: What :class:`EverthreadPlugin` takes: where a store is, what ``open_async()`` is called with, or an open
#: one.
AnyStore = str | os.PathLike[str] | Mapping[str, Any] | AsyncStore | None

#: What the names of our own activities begin with.
PREFIX = "everthread."
#: Heartbeats of an activity without a time-out for them.
_HEARTBEAT_S = 5.0


class StoreSource:
    """The store of a plugin: opened while one of its workers runs, in either colour."""

    def __init__(self, given: AnyStore, fork_hooks: Sequence[Callable[..., Any]] = ()) -> None:
        if isinstance(given, Store):
            raise UsageError(
                "the plugin takes a URL, a dictionary with the options of open_async(), or an async store; "
                "this one is blocking"
            )
        if not isinstance(given, str | os.PathLike | Mapping | AsyncStore | None):
            raise UsageError(f"the plugin takes a URL, options or an async store, not {type(given).__name__}")
        for each in fork_hooks:
            check_function(each, "fork_hooks")
        self._fork_hooks = {each.__name__: each for each in fork_hooks}
        #: What the plugin was given, for whoever opens it too.
        self.given = given
        self._options = dict(given) if isinstance(given, Mapping) else {"url": given}
        self._users = 0
        self._turn = asyncio.Lock()
        self._blocking_turn = threading.Lock()
        self._store: AsyncStore | None = None
        self._blocking: Store | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Around the life of a worker."""
        async with self._turn:
            if self._users == 0:
                given = self.given
                self._store = given if isinstance(given, AsyncStore) else await open_async(**self._options)
            self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0:
                await self._close()

    async def _close(self) -> None:
        store, self._store = self._store, None
        blocking, self._blocking = self._blocking, None
        if blocking is not None:
            await asyncio.to_thread(blocking.close)
        if store is not None and store is not self.given:
            await store.close()

    def fork_hook(self, name: str) -> Callable[..., Any]:
        """Return the function of this name that the plugin was given."""
        if name not in self._fork_hooks:
            known = ", ".join(sorted(self._fork_hooks)) or "none"
            raise UsageError(
                f"the fork hook {name!r} is unknown to this worker: it has {known}; "
                f"pass EverthreadPlugin(store, fork_hooks=[{name}])"
            )
        return self._fork_hooks[name]

    def store(self) -> AsyncStore:
        if self._store is None:
            raise StoreClosedError("the worker of this plugin doesn't run (any more), so its store is closed")
        return self._store

    def blocking_store(self) -> Store:
        """Opened at first use: most workers have no blocking activities."""
        self.store()
        with self._blocking_turn:
            if self._blocking is None:
                url = self._options.get("url")
                if isinstance(self.given, AsyncStore) or str(url).startswith("memory:"):
                    raise UsageError(
                        "a blocking activity needs a store of its own: give the plugin the URL of one "
                        "on disk or on a server, not an open store"
                    )
                self._blocking = open_blocking(**self._options)
            return self._blocking


@dataclass(frozen=True)
class Scheduled:
    """What a worker knows of the activity that it runs: the store, and the run whose code scheduled it, with
    the one that this run was made of by resets."""

    source: StoreSource
    run: str = ""
    origin: str = ""
    #: The run that the execution began with: continue-as-new and resets keep it.
    execution: str = ""


#: Set by the plugin's interceptor around each activity.
scheduled: contextvars.ContextVar[Scheduled] = contextvars.ContextVar("everthread.scheduled")


#: Set by the plugin's interceptor around the code of workflows.
has_plugin: contextvars.ContextVar[bool] = contextvars.ContextVar("everthread.has_plugin", default=False)


def _require_no_workflow() -> None:
    if workflow.in_workflow():
        raise UsageError(
            "step() and store() can't be used in the code of a workflow, which is replayed: use them in an "
            "activity, and pass the workflow the ThreadRef that step.ref gives"
        )


def _here() -> Scheduled:
    _require_no_workflow()
    found = scheduled.get(None)
    if found is None or not activity.in_activity():
        raise UsageError(
            "this belongs into an activity, of a worker or client with plugins=[EverthreadPlugin(store)]; "
            "a blocking activity runs in a ThreadPoolExecutor"
        )
    return found


def store() -> AsyncStore:
    """The store of the plugin, in an async activity. Raises :class:`UsageError` anywhere else."""
    return _here().source.store()


def blocking_store() -> Store:
    """The same in a blocking activity."""
    return _here().source.blocking_store()


def execution() -> Execution:
    """Where this activity runs. A later ``started`` means a newer run: it is the server's clock, read when
    the activity was handed out. Neither ids of runs nor scheduled times are in an order."""
    by, info = _here(), activity.info()
    if info.workflow_run_id is None:
        raise UsageError("a step belongs to a workflow: this activity was started by none")
    return Execution(
        run=info.workflow_run_id,
        attempt=info.attempt,
        started=info.started_time.timestamp(),
        scheduler=by.run,
        origin=by.origin,
        owner=info.workflow_id or "",
        task=info.activity_id,
        execution=by.execution,
    )


class ActivityStep(EitherStep):
    """A step of an activity: entered with ``async with`` or, in a blocking activity, ``with``."""

    @asynccontextmanager
    async def _enter_async(self) -> AsyncIterator[steps.AsyncEngineStep]:
        with final_failures():
            entered = steps.enter_step(store(), *self._arguments, execution(), **self._options)
            async with heartbeats(), entered as step:
                yield step

    @contextmanager
    def _enter_blocking(self) -> Iterator[blocking_steps.EngineStep]:
        with final_failures():
            entered = blocking_steps.enter_step(
                blocking_store(), *self._arguments, execution(), **self._options
            )
            with _heartbeats_beside(), _shielded(entered) as step:
                yield step


@contextmanager
def _shielded(entered: AbstractContextManager[T]) -> Iterator[T]:
    """A cancellation is raised in the thread of a blocking activity, wherever that is: not inside the
    store."""
    with activity.shield_thread_cancel_exception():
        step = entered.__enter__()
    try:
        yield step
    except BaseException as error:
        with activity.shield_thread_cancel_exception():
            entered.__exit__(type(error), error, error.__traceback__)
        raise
    with activity.shield_thread_cancel_exception():
        entered.__exit__(None, None, None)


def step(
    ref: ThreadRef,
    *key: str | int,
    slot: int | None = None,
    resolve: Any = None,
    label: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> ActivityStep:
    """A step of the workflow that stands at ``ref``, in one of its activities: ``async with step(ref, "turn",
    1) as s``, or ``with`` in a blocking activity. It gives what ``thread.step()`` gives, and ``s.ref``:
    return that.

    The key is unique in a run of the workflow. What runs in parallel from one pointer are slots of one key.
    Heartbeats are sent meanwhile. Whoever must stop, because a newer run, a later attempt or a rewind has
    come, fails for good and writes nothing."""
    _require_no_workflow()
    options = {"slot": slot, "resolve": resolve, "label": label, "metadata": metadata}
    return ActivityStep(ref, key, options)


@contextmanager
def final_failures() -> Iterator[None]:
    """What no retry puts right is told to Temporal as such."""
    try:
        yield
    except (FencedError, NotFoundError, UsageError) as error:
        if isinstance(error, StoreClosedError):
            # Another worker may have its store open.
            raise
        raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from error


def _interval_s() -> float:
    timeout = activity.info().heartbeat_timeout
    return _HEARTBEAT_S if timeout is None else timeout.total_seconds() / 3


@asynccontextmanager
async def heartbeats() -> AsyncIterator[None]:
    """Tell Temporal that this activity is alive; its answer says whether it was cancelled."""
    if activity.info().is_local:
        yield
        return
    interval_s = _interval_s()

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(interval_s)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()


@contextmanager
def _heartbeats_beside() -> Iterator[None]:
    """The same in a blocking activity, from a thread of its own."""
    if activity.info().is_local:
        yield
        return
    over, interval_s = threading.Event(), _interval_s()

    def beat() -> None:
        while True:
            activity.heartbeat()
            if over.wait(interval_s):
                return

    beside = threading.Thread(
        target=contextvars.copy_context().run, args=(beat,), name="everthread-heartbeats", daemon=True
    )
    beside.start()
    try:
        yield
    finally:
        over.set()


# ── the activities behind the verbs of workflow code ─────────────────────────────────────────


def _pointer(ref: Any) -> Any:
    """Return the pointer of an activity that an older release scheduled, with fewer arguments: Temporal then
    passes plain data."""
    return ThreadRef(**ref) if isinstance(ref, dict) else ref


@activity.defn(name="everthread.open_thread")
async def open_activity(
    name: str,
    mode: str,
    source: ThreadRef | None,
    system: str | None,
    more: dict[str, Any] | None = None,
) -> ThreadRef:
    options: dict[str, Any] = {"name": name, "source": _pointer(source), "system": system, **(more or {})}
    with final_failures():
        for hook in ("prepare", "transform"):
            if hook in options:
                options[hook] = _here().source.fork_hook(options[hook])
        where = replace(execution(), guest_of=options.pop("guest_of", ""))
        return await steps.open_thread(store(), where, mode=mode, **options)  # type: ignore[arg-type]


@activity.defn(name="everthread.append")
async def append_activity(ref: ThreadRef, messages: list[dict[str, Any]]) -> ThreadRef:
    with final_failures():
        return await steps.append(store(), ref, messages, execution())


@activity.defn(name="everthread.append_at")
async def append_at_activity(
    ref: ThreadRef, messages: list[dict[str, Any]], key: list[Any], slot: int | None
) -> ThreadRef:
    # One of its own: Temporal knows the types of arguments only where all of them are given.
    with final_failures():
        return await steps.append(store(), ref, messages, execution(), key=key, slot=slot)


@activity.defn(name="everthread.rewind")
async def rewind_activity(ref: ThreadRef, to: ThreadRef) -> ThreadRef:
    with final_failures():
        return await steps.rewind(store(), ref, to, execution())


@activity.defn(name="everthread.end")
async def end_activity(ref: ThreadRef, reason: str, about: dict[str, Any] | None = None) -> ThreadRef:
    with final_failures():
        return await steps.end(store(), _pointer(ref), execution(), reason, **(about or {}))


@activity.defn(name="everthread.end_with_error")
async def end_with_error_activity(
    ref: ThreadRef, reason: str, name: str, message: str, about: dict[str, Any] | None = None
) -> ThreadRef:
    error = (name, message)
    with final_failures():
        return await steps.end(store(), _pointer(ref), execution(), reason, error, **(about or {}))


ACTIVITIES: list[Callable[..., Any]] = [
    open_activity,
    append_activity,
    append_at_activity,
    rewind_activity,
    end_activity,
    end_with_error_activity,
]
