"""``everthread.open_async()`` and ``AsyncStore``.

Verbs of threads, events and sessions are async down to the driver. What a person or a scheduled job starts
(erase, export, verify, …) is written once, as blocking code: :class:`WorkerStore` runs it on a thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import threading
import time
import weakref
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

from everthread import process
from everthread.arguments import check_options
from everthread.errors import EverthreadError, StoreClosedError, ThreadNotFoundError, UsageError
from everthread.limits import DEFAULT_LIMITS, Limits
from everthread.maintenance.unfinished import unfinished_space
from everthread.records.opening import connect_async, open_backend
from everthread.store import Store, archive_of, with_archive
from everthread.stores.contract import Backend
from everthread.stores.offload import Worker
from everthread.stores.offloaded import Offloaded
from everthread.stores.tracing import VERBS
from everthread.stores.urls import chosen_keyring, chosen_namespace, default_url, over_network, store_url
from everthread.threads.aio.store import AsyncThreadStore
from everthread.threads.lifetimes import Lifetime
from everthread.threads.reports import Progress
from everthread.threads.runtime import Runtime
from everthread.threads.twins import Arriving, streamed
from everthread.type_names import type_names
from everthread.versions import RunToken

if TYPE_CHECKING:
    from everthread.briefing.selection import Briefing
    from everthread.detectors import Detector
    from everthread.events.aio.stream import AsyncEventStream
    from everthread.events.event import Upcast
    from everthread.knowledge import AsyncKnowledge
    from everthread.people.users import AsyncUserStore
    from everthread.redaction.report import Place
    from everthread.sandboxes.aio import AsyncWorkspaces
    from everthread.sessions.aio.joined_run import AsyncJoinedRun
    from everthread.sessions.aio.ledger_merge import LedgerMerge
    from everthread.sessions.aio.orders import AsyncConstraints
    from everthread.sessions.aio.session import AsyncAgentSession
    from everthread.sessions.aio.status import AsyncSessionRecords
    from everthread.sessions.resume import ResumeReport
    from everthread.stores.contract_async import AsyncBackend
    from everthread.threads.aio.core import Core
    from everthread.threads.aio.thread import AnyVersion, AsyncThread, Effects
    from everthread.transfer.report import ImportReport
    from everthread.verifiers.specs import AllowCommands
else:
    _HOMES = {
        "everthread.briefing.selection": "Briefing",
        "everthread.detectors": "Detector",
        "everthread.events.aio.stream": "AsyncEventStream",
        "everthread.events.event": "Upcast",
        "everthread.knowledge": "AsyncKnowledge",
        "everthread.people.users": "AsyncUserStore",
        "everthread.redaction.report": "Place",
        "everthread.sandboxes.aio": "AsyncWorkspaces",
        "everthread.sessions.aio.orders": "AsyncConstraints",
        "everthread.sessions.aio.session": "AsyncAgentSession",
        "everthread.sessions.aio.status": "AsyncSessionRecords",
        "everthread.sessions.resume": "ResumeReport",
        "everthread.stores.contract_async": "AsyncBackend",
        "everthread.threads.aio.core": "Core",
        "everthread.threads.aio.thread": "AnyVersion AsyncThread Effects",
        "everthread.transfer.report": "ImportReport",
        "everthread.verifiers.specs": "AllowCommands",
    }
    globals().update(type_names(_HOMES))


T = TypeVar("T")
P = ParamSpec("P")

#: Threads for blocking verbs, per store; more calls than these wait their turn.
_THREADS_MAX = 4
#: What a stream hands over at a time: so many items, or those found within this time.
_BATCH_MAX, _BATCH_S = 64, 0.02
#: How often a thread that waits for a progress callback looks whether the event loop still exists.
_LOOP_CHECK_S = 1.0

#: How long closing a store waits for calls that it aborts, and how often it looks.
_STOP_MAX_S, _STOP_CHECK_S = 5.0, 0.002

#: The call that the current worker thread is busy with, if it can be aborted.
_current = threading.local()


class WorkerStore:
    """The blocking store behind an async one, on the same driver and keys, used on worker threads."""

    def __init__(self, make: Callable[[], Store]) -> None:
        self._make = make
        self._worker = Worker("everthread-worker", _THREADS_MAX)
        self._lock = process.ProcessLock()
        self._made: Store | None = None
        self._calls: weakref.WeakSet[_Call] = weakref.WeakSet()
        # If nobody closes the store, its threads end when it is collected.
        weakref.finalize(self, self._worker.stop).atexit = False

    async def run(self, verb: Callable[Concatenate[Store, P], T], *args: P.args, **options: P.kwargs) -> T:
        """Call ``verb`` with the blocking store on a worker thread, and give what it returns or raises.

        Cancelling the caller aborts the work before the next verb of the driver (a read, one transaction):
        it leaves what a killed process would leave, never half a transaction, and nothing goes on behind the
        caller's back. An option ``progress`` is called on the event loop's thread while the work waits for
        it; what it raises is raised in the work, and ends it as it ends the blocking form. Closing the store
        ends the work with :class:`StoreClosedError`.
        """
        if options.get("progress") is not None:
            options["progress"] = _on_loop(options["progress"])
        call = _Call(lambda: verb(self.blocking(), *args, **options))
        self._calls.add(call)
        running: asyncio.Future[T] = asyncio.ensure_future(self._worker.run(call.do))
        cancelled: asyncio.CancelledError | None = None
        while not running.done():
            try:
                await asyncio.wait({running})
            except asyncio.CancelledError as error:
                cancelled = error
                call.abort(asyncio.CancelledError())
                # Withdrawn, if no thread has begun with it.
                running.cancel()
        if cancelled is not None:
            if not running.cancelled():
                # Retrieved, so that asyncio doesn't log an error that the cancellation outranks.
                running.exception()
            raise cancelled
        return running.result()

    async def stream(
        self, verb: Callable[Concatenate[Store, P], Iterable[T]], *args: P.args, **options: P.kwargs
    ) -> AsyncIterator[T]:
        """What ``verb`` yields, fetched in batches of bounded size; between them nothing runs."""
        if options.get("progress") is not None:
            options["progress"] = _on_loop(options["progress"])
        batches = _Batches(lambda store: verb(store, *args, **options))
        try:
            while batch := await self.run(batches.fetch):
                for item in batch:
                    yield item
        finally:
            if batches.begun:
                await self._worker.run_surely(batches.close)

    def blocking(self) -> Store:
        """The blocking store itself. Its verbs hold up whoever calls them."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    async def stop(self) -> None:
        """Take no more calls, abort those at work, and wait a moment until they have left the driver; then
        the store closes it."""
        self._worker.stop()
        for call in list(self._calls):
            call.abort(StoreClosedError("this store is closed; open it again"))
        until = time.monotonic() + _STOP_MAX_S
        # An event wouldn't do: the calls may belong to other event loops.
        while any(call.is_running for call in list(self._calls)) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(_STOP_CHECK_S)


class _Call:
    """A call on a worker thread that can be aborted, and what it needs to know of its caller."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        # As in a task: spans and other context of the caller are there.
        self._context = contextvars.copy_context()
        self._callback_context = self._context.copy()
        self._error: BaseException | None = None
        self.is_running = False

    def do(self) -> Any:
        _current.call, self.is_running = self, True
        try:
            return self._context.run(self._call)
        finally:
            _current.call, self.is_running = None, False

    def abort(self, error: BaseException) -> None:
        self._error = error

    def check(self) -> None:
        """Raise what aborts this call, once: cleaning up after it may use the store."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def on_loop(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Call it on the event loop's thread, and wait for it."""
        self.check()
        done, raised = threading.Event(), list[BaseException]()

        def call() -> None:
            try:
                callback(*args)
            except BaseException as error:
                raised.append(error)
            finally:
                done.set()

        try:
            self._loop.call_soon_threadsafe(call, context=self._callback_context)
        except RuntimeError:
            raise asyncio.CancelledError("the event loop is closed") from None
        while not done.wait(_LOOP_CHECK_S):
            if self._loop.is_closed():
                raise asyncio.CancelledError("the event loop is closed")
        if raised:
            raise raised[0]
        self.check()


def _on_loop(callback: Any) -> Any:
    """A progress callback that a worker thread may call; it runs on the event loop's thread."""

    def call(*args: Any) -> None:
        _current.call.on_loop(callback, args)

    return call if callable(callback) else callback


class _Batches:
    """What a blocking verb yields, some items at a time."""

    def __init__(self, make: Callable[[Store], Iterable[Any]]) -> None:
        self._make = make
        self._items: Iterator[Any] | None = None
        self._error: BaseException | None = None

    @property
    def begun(self) -> bool:
        return self._items is not None

    def fetch(self, store: Store) -> list[Any]:
        """The next items; none at the end. What was found before an error is given before the error."""
        if self._error is not None:
            raise self._error
        if self._items is None:
            self._items = iter(self._make(store))
        batch: list[Any] = []
        until = time.monotonic() + _BATCH_S
        try:
            for item in self._items:
                batch.append(item)
                if len(batch) >= _BATCH_MAX or time.monotonic() > until:
                    break
        except Exception as error:
            if not batch:
                raise
            self._error = error
        return batch

    def close(self) -> None:
        close = getattr(self._items, "close", None)
        if close is not None:
            close()


class _Abortable:
    """The store contract on a blocking driver: before each verb the call on this thread may be aborted."""

    def __init__(self, backend: Any) -> None:
        self._beneath = backend

    def __getattr__(self, name: str) -> Any:
        if name not in VERBS:
            return getattr(self._beneath, name)
        beneath = self._beneath

        def verb(*args: Any, **options: Any) -> Any:
            call = getattr(_current, "call", None)
            if call is not None:
                call.check()
            return getattr(beneath, name)(*args, **options)

        # Found without this detour from now on.
        self.__dict__[name] = verb
        return verb


def on_worker(
    verb: Callable[Concatenate[Store, P], T], *, rewrites_history: bool = False
) -> Callable[Concatenate[AsyncStore, P], Coroutine[Any, Any, T]]:
    """A verb of :class:`Store` as :class:`AsyncStore` has it: awaited, see :meth:`WorkerStore.run`."""

    @functools.wraps(verb)
    async def call(self: AsyncStore, /, *args: P.args, **options: P.kwargs) -> T:
        try:
            return await self._run(verb, *args, **options)
        finally:
            if rewrites_history:
                # Cached heads may show what is no longer stored under the same hash.
                self.core.head_cache.clear()

    return call


class AsyncStore(AsyncThreadStore):
    """An open store for async callers. Close it, or use it with ``async with``."""

    def __init__(self, backend: AsyncBackend, **options: Any) -> None:
        super().__init__(backend, **options)
        self._worker = WorkerStore(functools.partial(self._make_blocking, options))
        self.core.run_blocking = self._run

    def _make_blocking(self, options: dict[str, Any]) -> Store:
        backend: Any = _Abortable(self.core.backend.blocking)
        made = Store(backend, **options)
        # One vault for both: keys that one of them has dropped are gone for the other as well.
        made.core.vault = self.core.vault
        return made

    async def _run(self, verb: Callable[Concatenate[Store, P], T], *args: P.args, **options: P.kwargs) -> T:
        """Run a verb of :class:`Store` on a worker thread: see :meth:`WorkerStore.run`."""
        self._check()
        return await self._worker.run(verb, *args, **options)

    def thread(
        self,
        name: str,
        *,
        schema: Any = None,
        ttl: Lifetime = None,
        strict: bool = False,
        partial: bool = False,
    ) -> Arriving[AsyncThread]:
        """A handle on the thread of this name, as :meth:`Store.thread` gives one: await it. It has read the
        newest version then."""
        from everthread.threads.aio.thread import AsyncThread

        made = super().thread(name, schema=schema, ttl=ttl, strict=strict, partial=partial)
        return Arriving(made, AsyncThread, "store.thread(…)")

    def events(self, name: str, *, upcast: Mapping[str, Upcast] | None = None) -> AsyncEventStream:
        """The stream of events of this name, which exists from its first event.

        ``upcast`` maps a type of event to a function that brings the data of old ones up to date on reading.
        """
        from everthread.events.aio.stream import AsyncEventStream

        self._check()
        return AsyncEventStream(self.core, name, upcast)

    @staticmethod
    async def _join_run(thread: AsyncThread, run: str | RunToken, *, ends: bool = False) -> AsyncJoinedRun:
        from everthread.sessions.aio.joined_run import join_run

        return await join_run(thread, run, ends=ends)

    @staticmethod
    async def _compare_ledgers(core: Core, uid: str, other: str) -> LedgerMerge | None:
        from everthread.sessions.aio.ledger_merge import compare_ledgers

        return await compare_ledgers(core, uid, other)

    @staticmethod
    def _open_workspaces() -> AsyncWorkspaces:
        from everthread.sandboxes.aio import AsyncWorkspaces

        return AsyncWorkspaces()

    def session(
        self,
        name: str | None = None,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        max_turns: int | None = None,
        hooks: Any = None,
        mode: str = "continue",
        source: str | AsyncThread | None = None,
        at: AnyVersion | None = None,
        key: str | None = None,
        effects: Effects = "inherit",
        prepare: Callable[..., Any] | None = None,
        transform: Callable[..., Any] | None = None,
        system: Any = None,
        replace_system: bool = False,
        initial: Mapping[str, Any] | None = None,
        lease_ttl: float = 300.0,
        wait_s: float = 0,
        parent: AsyncAgentSession | None = None,
        run: str | RunToken | None = None,
    ) -> AsyncAgentSession:
        """Begin a run of an agent on the thread of this name: ``async with store.session(name) as s``, or
        await it, and close it.

        See :class:`AgentSession` for what the options mean; what is durable when a call returns is awaited
        here. Raises :class:`SessionBusyError` if another live run holds the thread, and still does after
        ``wait_s`` seconds.
        """
        from everthread.sessions.aio.session import AsyncAgentSession

        self._check()
        return AsyncAgentSession(
            name,
            user_id,
            store=self,
            agent=agent,
            max_turns=max_turns,
            hooks=hooks,
            mode=mode,
            source=source,
            at=at,
            key=key,
            effects=effects,
            prepare=prepare,
            transform=transform,
            system=system,
            replace_system=replace_system,
            initial=initial,
            lease_ttl=lease_ttl,
            wait_s=wait_s,
            parent=parent,
            run=run,
        )

    async def send(
        self, thread: str | AsyncThread, message: Any, *, key: str | None = None, shape: str | None = None
    ) -> Any:
        """Send a message to a thread, from any process: see :meth:`Store.send`."""
        from everthread.sessions.aio.inbox import send

        self._check()
        return await send(self.core, thread, message, key, shape)

    async def session_records(self, name: str) -> AsyncSessionRecords:
        """What is known of the session on a thread, running or not: see :meth:`Store.session_records`. What
        its calls read is awaited."""
        from everthread.sessions.aio.status import read_session

        self._check()
        found = await read_session(self, name)
        if found is None:
            raise ThreadNotFoundError(f"there is no thread {name!r}; it exists from its first commit")
        return found

    async def resume(
        self,
        thread: str,
        *,
        max_age_s: float | None = 86_400.0,
        allow_commands: AllowCommands = False,
        allow_network: bool = True,
    ) -> ResumeReport:
        """What a new run would find on a thread, checked against reality: see :meth:`Store.resume`."""
        from everthread.sessions.aio.resume import resume_report

        return await resume_report(
            await self.session_records(thread),
            now_us=self.core.runtime.now_us(),
            max_age_s=max_age_s,
            allow_commands=allow_commands,
            allow_network=allow_network,
        )

    async def briefing(
        self,
        thread: str,
        max_tokens: int = 1_500,
        *,
        tokenizer: Any = None,
        max_age_s: float | None = 86_400.0,
        allow_commands: AllowCommands = False,
        allow_network: bool = True,
        reveal: bool = False,
    ) -> Briefing:
        """The text that a new run on a thread needs, within a token budget: see :meth:`Store.briefing`."""
        from everthread.sessions.aio.briefing import session_briefing

        return await session_briefing(
            await self.session_records(thread),
            now_us=self.core.runtime.now_us(),
            max_tokens=max_tokens,
            tokenizer=tokenizer,
            max_age_s=max_age_s,
            allow_commands=allow_commands,
            allow_network=allow_network,
            reveal=reveal,
        )

    async def accept_loss(self, thread: str) -> bool:
        """Accept that the journal of a thread lost records; as :meth:`Store.accept_loss`."""
        if (await self.session_records(thread)).losses is None:
            return False
        session = await self.session(thread, agent="accept_loss")
        try:
            return await session.accept_loss()
        finally:
            await session.close()

    # ── one colour beneath: on a worker thread ───────────────────────────────────────────────

    search = on_worker(Store.search)
    verify = on_worker(Store.verify)
    gc = on_worker(Store.gc)
    cool = on_worker(Store.cool)
    stats = on_worker(Store.stats)
    backup = on_worker(Store.backup)
    restore = on_worker(Store.restore, rewrites_history=True)
    doubt = on_worker(Store.doubt)
    doubts = on_worker(Store.doubts)
    end_doubt = on_worker(Store.end_doubt)
    erase = on_worker(Store.erase)
    erasure_reports = on_worker(Store.erasure_reports)
    hold = on_worker(Store.hold)
    holds = on_worker(Store.holds)
    release_hold = on_worker(Store.release_hold)
    rotate_keys = on_worker(Store.rotate_keys)
    redact = on_worker(Store.redact, rewrites_history=True)
    export = on_worker(Store.export)
    import_from = on_worker(Store.import_from)
    refresh_documents = on_worker(Store.refresh_documents)

    @streamed
    def scan(self, text: str, *, progress: Progress | None = None) -> AsyncIterator[Place]:
        """As :meth:`Store.scan`: ``async for place in store.scan(text)``."""
        from everthread.redaction.scan import check_text

        self._check()
        check_text(text)
        return self._worker.stream(Store.scan, text, progress=progress)

    async def copy_to(
        self,
        target: AsyncStore,
        *,
        on_conflict: str = "error",
        every_namespace: bool = False,
        progress: Progress | None = None,
    ) -> ImportReport:
        """As :meth:`Store.copy_to`, to another open async store."""
        self._check()
        if not isinstance(target, AsyncStore):
            raise UsageError("copy_to() takes an open store of the same colour: everthread.open_async(url)")
        target._check()
        blocking = target._worker.blocking()
        return await self._run(
            Store.copy_to,
            blocking,
            on_conflict=on_conflict,
            every_namespace=every_namespace,
            progress=progress,
        )

    async def close(self) -> None:
        """Release files and keys. Everything committed is durable already. May be called twice."""
        try:
            await self._worker.stop()
        finally:
            await super().close()

    @property
    def constraints(self) -> AsyncConstraints:
        """Standing orders for all agents of this namespace, which every briefing shows first. Set here and
        by ``everthread constraint``, never by what a model is given."""
        from everthread.sessions.aio.orders import AsyncConstraints

        self._check()
        return AsyncConstraints(self.core)

    @property
    def users(self) -> AsyncUserStore:
        """Key/value data of persons, apart from the threads."""
        from everthread.people.users import AsyncUserStore

        return AsyncUserStore(self)

    @property
    def knowledge(self) -> AsyncKnowledge:
        """Texts with embeddings, in PostgreSQL with pgvector. Raises :class:`UnsupportedError` elsewhere."""
        from everthread.knowledge import AsyncKnowledge

        self._check()
        return AsyncKnowledge(self)

    async def _finish_erasures(self) -> None:
        """As that of :class:`Store`; without a thread if there is nothing to do, as nearly always."""
        core, is_needed = self.core, True
        with suppress(EverthreadError):
            begun = await core.backend.erasures(True)
            is_needed = bool(begun or await core.backend.cells(unfinished_space(core.space), "", None, 1, 0))
        if is_needed:
            await self._run(Store._finish_erasures)

    async def _warn_of_new_keyring(self) -> None:
        """As that of :class:`Store`, which looks at the keyring on a thread of its own."""
        if over_network(self.url):
            with suppress(EverthreadError):
                if await self.core.backend.sealed_under(None, b"", 1):
                    await self._run(Store._warn_of_new_keyring)


class _Opening:
    """A store that is about to be opened: awaited, or entered with ``async with``."""

    def __init__(
        self,
        url: str | os.PathLike[str] | None,
        durability: str,
        telemetry: bool,
        archive: Any,
        **options: Any,
    ) -> None:
        self._url = url
        self._archive = archive
        self._telemetry = telemetry
        self._durability = durability
        self._options = options
        self._store: AsyncStore | None = None

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._open().__await__()

    async def _open(self) -> AsyncStore:
        store = await self._opened()
        try:
            await store.core.backend.aside(store.core.vault.check_keyring)
            await store._warn_of_new_keyring()
            await store._finish_erasures()
        except BaseException:
            await store.close()
            raise
        return store

    async def _opened(self) -> AsyncStore:
        url = default_url() if self._url is None else store_url(self._url)
        if over_network(url) and self._archive is None:
            return await self._connect(url)
        opener = Worker("everthread-opener", 1)
        opened: list[Backend] = []
        try:
            await opener.run(lambda: opened.append(self._open_blocking(url)))
            return AsyncStore(self._observed(Offloaded(opened[0])), **self._options)
        except BaseException:
            # Cancelled while it was opened: then it is open now, and nobody will ever close it.
            for backend in opened:
                await opener.run_surely(backend.close)
            raise
        finally:
            opener.stop()

    def _open_blocking(self, url: str) -> Backend:
        """A blocking driver, used on threads. Threads in an archive are brought back by it."""
        backend = open_backend(url, self._durability)
        return backend if self._archive is None else with_archive(backend, self._archive)

    async def _connect(self, url: str) -> AsyncStore:
        """A store whose driver is async itself: no thread stands in between."""
        backend = await connect_async(url, self._durability)
        try:
            return AsyncStore(self._observed(backend), **self._options)
        except BaseException:
            await backend.close()
            raise

    def _observed(self, backend: AsyncBackend) -> AsyncBackend:
        if not self._telemetry:
            return backend
        from everthread.stores.tracing import traced

        found: AsyncBackend = traced(backend)
        return found

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
        if name.startswith("__"):
            # Python itself looks for these, and takes absence for an answer.
            raise AttributeError(name)
        raise UsageError(f"await everthread.open_async(…) first; it has no {name!r} before it is open")


def open_async(
    url: str | os.PathLike[str] | None = None,
    *,
    durability: str = "full",
    keyring: Any = None,
    namespace: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    runtime: Runtime | None = None,
    telemetry: bool = False,
    cold: Any = None,
    detectors: Sequence[Detector] = (),
) -> _Opening:
    """Open a store for async callers: ``async with open_async(url) as store`` or ``await open_async(url)``.

    Takes what :func:`open` takes.
    """
    process.check_not_in_workflow()
    namespace, keyring = chosen_namespace(namespace), chosen_keyring(keyring)
    check_options(namespace, limits, keyring)
    options: dict[str, Any] = {
        "namespace": namespace,
        "keyring": keyring,
        "limits": limits,
        "runtime": runtime,
    }
    options["detectors"] = detectors
    archive = None if cold is None else archive_of(cold)
    return _Opening(url, durability, telemetry, archive, **options)
