"""The store as its user sees it."""

from __future__ import annotations

import datetime
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

import msgspec

from everthread.arguments import (
    check_count,
    check_mapping,
    check_name,
    check_path,
    check_progress,
    check_several,
)
from everthread.errors import (
    InvalidValueError,
    NotAStoreError,
    StateCorruptedError,
    StoreClosedError,
    StoreUnavailableError,
    UnsupportedError,
    UsageError,
)
from everthread.history.chain import SignedHead, version_id
from everthread.limits import DEFAULT_LIMITS, Limits
from everthread.stores.contract import Capabilities, Found, Line
from everthread.stores.contract_async import AsyncBackend
from everthread.threads.aio.core import Core
from everthread.threads.aio.damage import last_good, remaining_lines
from everthread.threads.colours import ASYNC, AwaitedFace, streamed
from everthread.threads.lifetimes import Lifetime, left_s, ttl_us
from everthread.threads.runtime import Runtime
from everthread.threads.sealing import read_metadata
from everthread.versions import NO_METADATA, ThreadInfo, Version

if TYPE_CHECKING:
    from types import TracebackType

    from everthread.detectors import Detector
    from everthread.history.retention import Retention
    from everthread.threads.aio.thread import AsyncThread
    from everthread.threads.cleanup import CoolReport, GcReport
    from everthread.threads.reports import Progress, RestoreReport, VerifyReport
    from everthread.threads.sizes import StoreStats

# What only some verbs need is loaded by them: that opens a store sooner.
_PAGE = 200


class AsyncThreadStore(AwaitedFace):
    """An open store. Close it, or use it as a context manager. Safe to share between threads."""

    #: What handles are made of, as soon as there was one in this process.
    _made: type[AsyncThread] | None = None

    def __init__(
        self,
        backend: AsyncBackend,
        *,
        namespace: str = "",
        keyring: Any = None,
        limits: Limits = DEFAULT_LIMITS,
        runtime: Runtime | None = None,
        detectors: Iterable[Detector] = (),
    ) -> None:
        self.core = Core(backend, namespace, limits, keyring, runtime or Runtime())
        if detectors:
            from everthread.detectors import Screen

            self.core.screen = Screen(detectors)
        self._closed = False
        #: What else ends with this store.
        self._at_close: list[Callable[[], None]] = []

    @property
    def url(self) -> str:
        """Where this store is."""
        return self.core.backend.url

    @property
    def namespace(self) -> str:
        return self.core.space

    @property
    def capabilities(self) -> Capabilities:
        return self.core.backend.capabilities

    def _check(self) -> None:
        if self._closed:
            raise StoreClosedError("this store is closed; open it again")

    async def thread(
        self,
        name: str,
        *,
        schema: Any = None,
        ttl: Lifetime = None,
        strict: bool = False,
        partial: bool = False,
    ) -> AsyncThread:
        """An independent handle on the thread of this name, which exists from its first commit.

        With a ``schema`` (a JSON Schema, a pydantic model, or a function that raises) every commit through
        this handle is checked first. If the newest version is damaged, the handle stands on the last good
        one and ``thread.recovered`` says so; with ``strict`` this raises :class:`StateCorruptedError` at
        once. With ``partial`` the handle only reads, and gives a :class:`Corrupt` for what is damaged.
        With a ``ttl`` (a ``timedelta`` or seconds) the thread expires that long after the last write through
        this handle; see :meth:`AsyncThread.expire`.
        """
        self._check()
        if partial:
            from everthread.threads.aio.partial_thread import AsyncPartialThread

            thread: AsyncThread = AsyncPartialThread(self.core, name)
        else:
            validate = None
            if schema is not None:
                from everthread.threads.validation import validator

                validate = validator(schema)
            made = self._made
            if made is None:
                from everthread.threads.aio.thread import AsyncThread

                made = AsyncThreadStore._made = AsyncThread
            thread = made(self.core, name, validate)
        if strict:
            thread._strict = True
        if ttl is not None:
            thread._ttl_us = ttl_us(ttl)
        now = strict
        if ASYNC:
            # So that looking at the document and at lengths needn't wait later.
            now = True
        if now:
            await thread._load()
        return thread

    @streamed
    def threads(
        self,
        prefix: str = "",
        metadata: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[ThreadInfo]:
        """The threads by name, lazily.

        ``metadata`` keeps those whose newest value of each of these keys is the given one.
        """
        self._check()
        if prefix != "":
            prefix = check_name(prefix, "prefix")
        if limit is not None:
            limit = check_count(limit, "limit")
        if metadata is not None:
            check_mapping(metadata, "metadata")
        return self._list(prefix, metadata, limit)

    async def _list(
        self, prefix: str, metadata: Mapping[str, Any] | None, limit: int | None
    ) -> AsyncIterator[ThreadInfo]:
        left = -1 if limit is None else limit
        if left == 0:
            return
        async for entry in self._tagged(prefix, metadata) if metadata else self._named(prefix, limit):
            if left_s(entry, self.core.runtime.now_us()) <= 0:
                continue
            yield await self._info(entry)
            left -= 1
            if left == 0:
                return

    async def _named(self, prefix: str, limit: int | None) -> AsyncIterator[Found]:
        after: str | None = None
        size = _PAGE if limit is None else max(1, min(limit, _PAGE))
        while True:
            try:
                entries = await self.core.backend.lines(self.core.space, prefix, after, size)
            except StateCorruptedError as error:
                # First all that can be told, then that this may not be all.
                for entry in await remaining_lines(self.core, prefix, after):
                    yield entry
                raise error
            if not entries:
                return
            for entry in entries:
                yield entry
            after = entries[-1].line.name

    async def _tagged(self, prefix: str, metadata: Mapping[str, Any]) -> AsyncIterator[Found]:
        from everthread.threads.aio.tags import find_tagged

        for entry in await find_tagged(self.core, metadata):
            if entry.line.name.startswith(prefix):
                yield entry

    async def _info(self, entry: Found) -> ThreadInfo:
        line, newest = entry.line, entry.newest
        try:
            if newest is None:
                return _told(line, (await self.core.reader.version(line, line.parent_seq))[0])
            head = self.core.reader.head(newest, newest.seq)
            if entry.holed:
                # The newest version may need what can't be read, or not.
                await self.core.reader.load(line, newest.seq)
        except StateCorruptedError:
            top = newest.seq if newest is not None else line.parent_seq
            good = await last_good(self.core.reader, line, top)
            if good is None:
                return ThreadInfo(name=line.name, seq=0, version_id="", updated_at_us=0, damaged=True)
            return _told(line, good.version, damaged=True)
        shown = read_metadata(head.metadata, self.core.reader.open) if head.metadata else NO_METADATA
        return ThreadInfo(
            name=line.name,
            seq=newest.seq,
            version_id=version_id(newest.seq, newest.hash),
            updated_at_us=head.at_us,
            metadata=shown,
            label=head.label,
        )

    async def verify(
        self,
        progress: Progress | None = None,
        *,
        anchors: Iterable[SignedHead] = (),
        public_key: Any = None,
    ) -> VerifyReport:
        """Check every record of every thread against its checksum and the chain, and what is derived from
        them against themselves. Reads everything; changes nothing; goes on after damage.

        ``progress(done, total)`` is called as it goes, with numbers of versions. ``anchors`` are heads that
        were signed with :meth:`Thread.sign` and kept elsewhere: with the ``public_key`` they show whether
        history was rewritten or cut off since.
        """
        self._check()
        check_progress(progress)
        check_several(anchors, "anchors", "signed heads")
        from everthread.threads.aio.verifying import Verifier

        core = self.core
        verifier = Verifier(core.reader, core.space, core.vault.can_open, anchors, public_key)
        return await verifier.run(progress, core.runtime.now_us)

    async def gc(
        self,
        retention: Retention | None = None,
        *,
        dry_run: bool = False,
        compact: bool = False,
        progress: Progress | None = None,
    ) -> GcReport:
        """Remove what nobody needs: expired threads, what belonged to deleted ones and, with ``retention``,
        the content of versions that it doesn't keep.

        What threads and forks stand on always stays, and so do keys, results of steps and the chain of
        hashes. With ``dry_run`` nothing is changed. ``compact`` gives the space back to the operating system,
        which takes as long as writing the store once. Others may go on writing meanwhile.
        """
        self._check()
        check_progress(progress)
        from everthread.history.retention import Retention

        rule = Retention() if retention is None else retention
        if not isinstance(rule, Retention):
            raise InvalidValueError(
                "retention is a Retention, or None to keep all versions", path="retention"
            )
        if rule.takes and not self.capabilities.prune:
            raise UnsupportedError(f"{self.url} keeps all versions; gc() without retention does the rest")
        from everthread.threads.aio.cleaning import Cleaner

        return await Cleaner(self.core, rule, dry_run=dry_run, progress=progress).run(compact=compact)

    async def cool(
        self, idle_for: Lifetime, *, sweep_after: Lifetime = None, progress: Progress | None = None
    ) -> CoolReport:
        """Move threads that nobody has written to for so long (a ``timedelta`` or seconds) to the archive
        that the store was opened with (``open(…, cold=…)``).

        They stay listed and can be committed to; whoever reads their past brings them back, exactly as they
        were. With ``sweep_after`` parcels of this store are removed that are older than that (an hour at
        least) and that no thread needs any more: a backup from before then may need them. Raises
        :class:`UsageError` without an archive, :class:`UnsupportedError` if the store can't do it.
        """
        self._check()
        check_progress(progress)
        backend: Any = self.core.backend
        if not self.capabilities.cold:
            raise UnsupportedError(f"{self.url} can't move threads to an archive")
        if not hasattr(backend, "thaw"):
            raise UsageError("open the store with cold=… (a folder, or an archive) to move threads there")
        if idle_for is None:
            raise InvalidValueError(
                "idle_for is a timedelta or seconds; 0 is for all threads", path="idle_for"
            )
        idle_us = 0 if idle_for in (0, datetime.timedelta(0)) else ttl_us(idle_for)
        from everthread.threads.aio.cooling import YOUNG_US, Cooling

        cooling = Cooling(self.core, backend, idle_us, progress)
        report = await cooling.run()
        if sweep_after is not None:
            moment_us = self.core.runtime.now_us() - max(ttl_us(sweep_after), YOUNG_US)
            try:
                report = msgspec.structs.replace(report, swept=await cooling.sweep(moment_us / 1e6))
            except UnsupportedError as error:
                problems = (*report.problems, f"nothing was swept: {error}")
                report = msgspec.structs.replace(report, problems=problems)
        return report

    async def stats(self, *, limit: int = 1000, progress: Progress | None = None) -> StoreStats:
        """What this namespace takes up: bytes by thread (the ``limit`` largest), by kind and by age.

        Reads no content; takes a moment per thread.
        """
        self._check()
        limit = check_count(limit, "limit", least=1)
        check_progress(progress)
        from everthread.threads.aio.measuring import measure

        return await measure(self.core, limit, progress)

    async def backup(self, path: str | os.PathLike[str]) -> None:
        """Write a complete copy to ``path``, which must not exist. Others may go on writing meanwhile."""
        self._check()
        await self.core.backend.backup(check_path(path))

    async def restore(self, path: str | os.PathLike[str]) -> RestoreReport:
        """Replace everything in this store by a backup, all or nothing. Get new handles afterwards.

        Effects that were called since the backup was made aren't forgotten: see ``RestoreReport.doubtful``.
        """
        from everthread.threads.aio.restoring import Ledgers
        from everthread.threads.reports import RestoreReport

        self._check()
        place = check_path(path)
        ledgers = Ledgers(self.core)
        await ledgers.look()
        try:
            await self.core.backend.restore(place, ledgers.cells())
        except (NotAStoreError, StoreUnavailableError) as error:
            from everthread.stores.backup_file import wrong_kind_message

            if (words := wrong_kind_message(self.core.backend.url, place)) is None:
                raise
            raise NotAStoreError(words) from error
        finally:
            # Also if the answer doesn't come: it may have been done.
            self.core.memos.clear()
        return RestoreReport(doubtful=await ledgers.mark())

    async def close(self) -> None:
        """Release files and keys. Everything committed is durable already. May be called twice."""
        if not self._closed:
            self._closed = True
            self.core.vault.close()
            await self.core.backend.close()
            for end in self._at_close:
                end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<store {self.url}{' closed' if self._closed else ''}>"


def _told(line: Line, version: Version, *, damaged: bool = False) -> ThreadInfo:
    return ThreadInfo(
        name=line.name,
        seq=version.seq,
        version_id=version.id,
        updated_at_us=version.at_us,
        metadata=version.metadata,
        label=version.label,
        damaged=damaged,
    )
