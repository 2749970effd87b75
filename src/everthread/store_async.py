"""The way in for async callers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from everthread.arguments import check_options
from everthread.errors import UsageError
from everthread.limits import DEFAULT_LIMITS, Limits
from everthread.people.aio.store import AsyncPeopleStore
from everthread.sessions.awaiting import Aside, BeginningSession
from everthread.store import Store, archive_of, observed
from everthread.stores.contract import Backend
from everthread.stores.offloaded import Offloaded
from everthread.stores.urls import connect_async, default_url, open_backend, over_network
from everthread.stores.workers import Worker
from everthread.threads.colours import Arriving, streamed
from everthread.threads.runtime import Runtime

if TYPE_CHECKING:
    from everthread.briefing.selecting import Briefing
    from everthread.detectors import Detector
    from everthread.events.aio.stream import AsyncEventStream
    from everthread.events.event import Upcast
    from everthread.history.chain import SignedHead
    from everthread.knowledge.aio.knowledge import AsyncKnowledge
    from everthread.people.aio.users import AsyncUserStore
    from everthread.redaction.places import Place, RedactionReport
    from everthread.search.hits import Hits
    from everthread.sessions.records import SessionRecords
    from everthread.sessions.resuming import ResumeReport
    from everthread.stores.contract_async import AsyncBackend
    from everthread.threads.aio.thread import AsyncThread
    from everthread.threads.lifetimes import Lifetime
    from everthread.threads.reports import Progress, VerifyReport
    from everthread.transfer.reports import ExportReport, ImportReport


class AsyncStore(AsyncPeopleStore):
    """An open store for async callers. Close it, or use it with ``async with``."""

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
        return AsyncEventStream(self._core, name, upcast)

    #: How to get at a blocking store over the same data, for sessions.
    _aside: Aside[Store] | None = None

    def session(self, name: str | None = None, **options: Any) -> BeginningSession:
        """Begin a run of an agent on the thread of this name: ``async with store.session(name) as s``.

        Takes what :meth:`Store.session` takes, and gives the same :class:`AgentSession`: its calls are plain,
        durable when they return; ``await s.acall(…)`` awaits tools. Beginning and ending don't hold up the
        event loop.
        """
        from everthread.threads.aio.thread import AsyncThread

        self._check()
        source = options.get("source")
        if isinstance(source, AsyncThread):
            # The blocking code of a session knows threads by name and version.
            options["source"], options["at"] = source.name, options.get("at") or source.head
        return BeginningSession(self._blocking(), name, options)

    async def session_records(self, name: str) -> SessionRecords:
        """As :meth:`Store.session_records`. What it hands out is read without being awaited."""
        self._check()
        return await self._blocking().run(lambda store: store.session_records(name))

    async def accept_losses(self, thread: str) -> bool:
        """Accept that the journal of a thread lost records; as :meth:`Store.accept_losses`."""
        self._check()
        return await self._blocking().run(lambda store: store.accept_losses(thread))

    async def resume(self, thread: str, **options: Any) -> ResumeReport:
        """What a new run would find on a thread, checked against reality; as :meth:`Store.resume`."""
        self._check()
        return await self._blocking().run(lambda store: store.resume(thread, **options))

    async def briefing(self, thread: str, max_tokens: int = 1_500, **options: Any) -> Briefing:
        """The text that a new run on a thread needs, within a token budget; as :meth:`Store.briefing`."""
        self._check()
        return await self._blocking().run(lambda store: store.briefing(thread, max_tokens, **options))

    def _blocking(self) -> Aside[Store]:
        if self._aside is None:
            raise UsageError("this store was made by hand; everthread.open_async() gives one with sessions")
        return self._aside

    async def close(self) -> None:
        """Release files and keys. Everything committed is durable already. May be called twice."""
        if self._aside is not None:
            self._aside.stop()
        await super().close()

    @property
    def users(self) -> AsyncUserStore:
        """Key/value data of persons, apart from the threads."""
        from everthread.people.aio.users import AsyncUserStore

        return AsyncUserStore(self)

    @property
    def knowledge(self) -> AsyncKnowledge:
        """Texts with embeddings, in PostgreSQL with pgvector. Raises :class:`UnsupportedError` elsewhere."""
        from everthread.knowledge.aio.knowledge import AsyncKnowledge

        self._check()
        return AsyncKnowledge(self._core)

    async def refresh_documents(self) -> int:
        """Bring the JSON documents up to date that PostgreSQL shows; as :meth:`Store.refresh_documents`."""
        from everthread.knowledge.aio.documents import refresh_documents

        self._check()
        return await refresh_documents(self)

    async def search(
        self,
        text: str,
        *,
        kinds: Collection[str] | None = None,
        prefix: str = "",
        limit: int = 20,
        progress: Progress | None = None,
    ) -> Hits:
        """Find words in what agents keep, in the newest version of each thread; as :meth:`Store.search`."""
        from everthread.search.aio.finding import search

        self._check()
        return await search(self._core, text, kinds=kinds, prefix=prefix, limit=limit, progress=progress)

    async def verify(
        self,
        progress: Progress | None = None,
        *,
        anchors: Iterable[SignedHead] = (),
        public_key: Any = None,
    ) -> VerifyReport:
        """Check every record of every thread against its checksum and the chain, what is derived from them
        against themselves, and every event; as :meth:`Store.verify`."""
        from everthread.events.aio.verifying import damaged_events

        report = await super().verify(progress, anchors=anchors, public_key=public_key)
        damage = [*report.damage, *[each async for each in damaged_events(self._core)]]
        return msgspec.structs.replace(report, damage=tuple(damage))

    @streamed
    def scan(self, text: str, *, progress: Progress | None = None) -> AsyncIterator[Place]:
        """As :meth:`Store.scan`: ``async for place in store.scan(text)``."""
        from everthread.redaction.aio.scanning import Scanner, check_text

        self._check()
        return Scanner(self._core, check_text(text), progress).run()

    async def redact(
        self,
        text: str,
        *,
        replacement: str = "[redacted]",
        reason: str = "",
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> RedactionReport:
        """As :meth:`Store.redact`."""
        from everthread.redaction.aio.redacting import redact
        from everthread.redaction.aio.scanning import check_text

        self._check()
        needle = check_text(text, replacement, reason)
        return await redact(self._core, needle, reason, dry_run=dry_run, progress=progress)

    async def export(
        self,
        path: str | os.PathLike[str],
        *,
        every_namespace: bool = False,
        keys: str | bytes | None = None,
        progress: Progress | None = None,
    ) -> ExportReport:
        """As :meth:`Store.export`."""
        from everthread.transfer.aio.archives import export

        self._check()
        return await export(self._core, path, every=every_namespace, progress=progress, keys=keys)

    async def import_from(
        self,
        path: str | os.PathLike[str],
        *,
        on_conflict: str = "error",
        every_namespace: bool = False,
        keys: str | bytes | None = None,
        progress: Progress | None = None,
    ) -> ImportReport:
        """As :meth:`Store.import_from`."""
        from everthread.transfer.aio.archives import import_from
        from everthread.transfer.aio.putting import check_conflict

        self._check()
        rule = check_conflict(on_conflict)
        every, settle, told = every_namespace, self._settle, progress
        return await import_from(
            self._core, path, rule=rule, every=every, progress=told, settle=settle, keys=keys
        )

    async def copy_to(
        self,
        target: AsyncStore,
        *,
        on_conflict: str = "error",
        every_namespace: bool = False,
        progress: Progress | None = None,
    ) -> ImportReport:
        """As :meth:`Store.copy_to`, to another open async store."""
        from everthread.transfer.aio.archives import copy
        from everthread.transfer.aio.putting import check_conflict

        self._check()
        if not isinstance(target, AsyncStore):
            raise UsageError("copy_to() takes an open store of the same colour: everthread.open_async(url)")
        target._check()
        rule = check_conflict(on_conflict)
        told, settle, here = progress, target._settle, self._core
        return await copy(here, target._core, rule=rule, every=every_namespace, progress=told, settle=settle)


class _Opening:
    """A store that is about to be opened: awaited, or entered with ``async with``."""

    def __init__(
        self, url: str | None, durability: str, telemetry: bool, archive: Any, **options: Any
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
            await store._finish_erasures()
        except BaseException:
            await store.close()
            raise
        return store

    async def _opened(self) -> AsyncStore:
        url = self._url if self._url is not None else default_url()
        if over_network(url):
            return await self._connect(url)
        opener = Worker("everthread-opener", 1)
        opened: list[Backend] = []
        try:
            await opener.run(lambda: opened.append(open_backend(url, self._durability)))
            store = AsyncStore(self._observed(Offloaded(opened[0])), **self._options)
            store._aside = Aside(lambda: self._lent(opened[0], store))
            return store
        except BaseException:
            # Cancelled while it was opened: then it is open now, and nobody will ever close it.
            for backend in opened:
                await opener.run_surely(backend.close)
            raise
        finally:
            opener.stop()

    async def _connect(self, url: str) -> AsyncStore:
        """A store whose driver is async itself: no thread stands in between."""
        backend = await connect_async(url, self._durability)
        try:
            store = AsyncStore(self._observed(backend), **self._options)
        except BaseException:
            await backend.close()
            raise
        store._aside = Aside(lambda: self._lent(backend.blocking, store))
        return store

    def _lent(self, backend: Backend, store: AsyncStore) -> Store:
        """A blocking store on the driver of an async one, which closes it."""
        if self._telemetry:
            backend = observed(backend)
        if self._archive is not None:
            from everthread.stores.cold.sync.thawing import Thawing

            backend = Thawing(backend, self._archive)
        lent = Store(backend, **self._options)
        # One vault for both: keys that one of them has dropped are gone for the other as well.
        lent._core.vault = store._core.vault
        return lent

    def _observed(self, backend: AsyncBackend) -> AsyncBackend:
        found: Any = backend
        if self._telemetry:
            from everthread.stores.traced import traced

            found = traced(found)
        if self._archive is not None:
            from everthread.stores.cold.aio.thawing import AsyncThawing
            from everthread.stores.cold.archive import no_cold

            if not found.capabilities.cold:
                raise no_cold()
            found = AsyncThawing(found, self._archive)
        opened: AsyncBackend = found
        return opened

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
    url: str | None = None,
    *,
    durability: str = "full",
    keyring: Any = None,
    namespace: str = "",
    limits: Limits = DEFAULT_LIMITS,
    runtime: Runtime | None = None,
    telemetry: bool = False,
    cold: Any = None,
    detectors: Sequence[Detector] = (),
) -> _Opening:
    """Open a store for async callers: ``async with open_async(url) as store`` or ``await open_async(url)``.

    Takes what :func:`open` takes.
    """
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
