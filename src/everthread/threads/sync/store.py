# Generated from src/everthread/threads/aio/store.py by tools/twin.py: change that, then run: make twin
"""The store as its user sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from everthread.arguments import (
    check_count,
    check_mapping,
    check_name,
)
from everthread.codec import records
from everthread.codec.values import lower
from everthread.errors import StateCorruptedError, StoreBusyError, StoreClosedError
from everthread.history.chain import version_id
from everthread.history.metadata import encoded_index_values, index_value
from everthread.limits import DEFAULT_LIMITS, Limits
from everthread.process import check_not_in_workflow
from everthread.stores.contract import Backend, Capabilities, Found, Line
from everthread.threads.lifetimes import Lifetime, left_s, ttl_us
from everthread.threads.runtime import Runtime
from everthread.threads.sealing import read_metadata
from everthread.threads.sync.core import Core
from everthread.threads.sync.fallback import last_good, remaining_lines
from everthread.threads.twins import BlockingFace, iterated
from everthread.type_names import type_names
from everthread.versions import NO_METADATA, ThreadInfo, Version

if TYPE_CHECKING:
    from everthread.detectors import Detector
    from everthread.threads.sync.thread import Thread
else:
    _HOMES = {
        "everthread.detectors": "Detector",
        "everthread.threads.sync.thread": "Thread",
    }
    globals().update(type_names(_HOMES))


# What only some verbs need is loaded by them: that opens a store sooner.
_PAGE = 200


class ThreadStore(BlockingFace):
    """An open store. Close it, or use it as a context manager. Safe to share between threads."""

    #: What handles are made of, as soon as there was one in this process.
    _made: type[Thread] | None = None
    #: Find the run that a step is part of, and what a merge brings along: see ``Core``.
    _join_run: Any = None
    _compare_ledgers: Any = None
    #: Gives what opens the working folders of threads: see ``Core``.
    _open_workspaces: Any = None

    def __init__(
        self,
        backend: Backend,
        *,
        namespace: str = "",
        keyring: Any = None,
        limits: Limits = DEFAULT_LIMITS,
        runtime: Runtime | None = None,
        detectors: Iterable[Detector] = (),
    ) -> None:
        self.core = Core(backend, namespace, limits, keyring, runtime or Runtime())
        self.core.join_run = self._join_run
        self.core.compare_ledgers = self._compare_ledgers
        self.core.open_workspaces = self._open_workspaces
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
        check_not_in_workflow()
        if self._closed:
            raise StoreClosedError("this store is closed; open it again")

    def thread(
        self,
        name: str,
        *,
        schema: Any = None,
        ttl: Lifetime = None,
        strict: bool = False,
        partial: bool = False,
    ) -> Thread:
        """An independent handle on the thread of this name, which exists from its first commit.

        With a ``schema`` (a JSON Schema, a pydantic model, or a function that raises) every commit through
        this handle is checked first. If the newest version is damaged, the handle stands on the last good
        one and ``thread.recovered`` says so; with ``strict`` this raises :class:`StateCorruptedError` at
        once. With ``partial`` the handle only reads, and gives a :class:`Corrupt` for what is damaged.
        With a ``ttl`` (a ``timedelta`` or seconds) the thread expires that long after the last write through
        this handle; see :meth:`Thread.expire`.
        """
        self._check()
        if partial:
            from everthread.threads.sync.partial_thread import PartialThread

            thread: Thread = PartialThread(self.core, name)
        else:
            validate = None
            if schema is not None:
                from everthread.threads.validation import validator

                validate = validator(schema)
            made = self._made
            if made is None:
                from everthread.threads.sync.thread import Thread

                made = ThreadStore._made = Thread
            thread = made(self.core, name, validate)
        if strict:
            thread.handle.strict = True
        if ttl is not None:
            thread.handle.ttl_us = ttl_us(ttl)
        now = strict
        if now:
            thread.handle.load()
        return thread

    @iterated
    def threads(
        self,
        prefix: str = "",
        metadata: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> Iterator[ThreadInfo]:
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

    def _list(
        self, prefix: str, metadata: Mapping[str, Any] | None, limit: int | None
    ) -> Iterator[ThreadInfo]:
        left = -1 if limit is None else limit
        if left == 0:
            return
        for entry in self._tagged(prefix, metadata) if metadata else self._named(prefix, limit):
            if left_s(entry, self.core.runtime.now_us()) <= 0:
                continue
            yield self._info(entry)
            left -= 1
            if left == 0:
                return

    def _named(self, prefix: str, limit: int | None) -> Iterator[Found]:
        after: str | None = None
        size = _PAGE if limit is None else max(1, min(limit, _PAGE))
        while True:
            try:
                entries = self.core.backend.lines(self.core.space, prefix, after, size)
            except StateCorruptedError as error:
                # First all that can be told, then that this may not be all.
                for entry in remaining_lines(self.core, prefix, after):
                    yield entry
                raise error
            if not entries:
                return
            for entry in entries:
                yield entry
            after = entries[-1].line.name

    def _tagged(self, prefix: str, metadata: Mapping[str, Any]) -> Iterator[Found]:
        for entry in _find_tagged(self.core, metadata):
            if entry.line.name.startswith(prefix):
                yield entry

    def _info(self, entry: Found) -> ThreadInfo:
        line, newest = entry.line, entry.newest
        try:
            if newest is None:
                return _info_of(line, (self.core.reader.version(line, line.parent_seq))[0])
            head = self.core.reader.head(newest, newest.seq)
            if entry.holed:
                # The newest version may need what can't be read, or not.
                self.core.reader.load(line, newest.seq)
        except StateCorruptedError:
            top = newest.seq if newest is not None else line.parent_seq
            good = last_good(self.core.reader, line, top)
            if good is None:
                return ThreadInfo(name=line.name, seq=0, version_id="", updated_at_us=0, damaged=True)
            return _info_of(line, good.version, damaged=True)
        shown = read_metadata(head.metadata, self.core.reader.open) if head.metadata else NO_METADATA
        return ThreadInfo(
            name=line.name,
            seq=newest.seq,
            version_id=version_id(newest.seq, newest.hash),
            updated_at_us=head.at_us,
            metadata=shown,
            label=head.label,
        )

    def close(self) -> None:
        """Release files and keys. Everything committed is durable already. May be called twice."""
        if not self._closed:
            self._closed = True
            self.core.vault.close()
            self.core.backend.close()
            for end in self._at_close:
                end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<store {self.url}{' closed' if self._closed else ''}>"


def _info_of(line: Line, version: Version, *, damaged: bool = False) -> ThreadInfo:
    return ThreadInfo(
        name=line.name,
        seq=version.seq,
        version_id=version.id,
        updated_at_us=version.at_us,
        metadata=version.metadata,
        label=version.label,
        damaged=damaged,
    )


# ── threads by their metadata ──


def _find_tagged(core: Core, metadata: Mapping[str, Any]) -> list[Found]:
    """Live lines whose metadata have all of these values, by name."""
    backend, space = core.backend, core.space
    wanted = {
        name: index_value(value)
        for name, value in lower(dict(metadata), limits=core.limits, root="metadata").items()
    }
    newer = _bring_up_to_date(core)
    found = [each for each in backend.lines_by_tags(space, wanted) if each.line.id not in newer]
    for line, tags in newer.values():
        if _has(core, line, tags, wanted):
            now = backend.find(space, line.name)
            if now is not None and now.line.id == line.id:
                found.append(now)
    return sorted(found, key=lambda each: each.line.name) if newer else found


def _bring_up_to_date(core: Core) -> dict[int, tuple[Line, dict[str, bytes]]]:
    """The index is brought up to date by who searches, rather than at every commit: it costs a save nothing.

    Who reads doesn't wait for others who write: returns what couldn't be put into the index, by line.
    """
    backend = core.backend
    left: dict[int, tuple[Line, dict[str, bytes]]] = {}
    for line, seq in backend.untagged(core.space):
        tags: dict[str, bytes] = {}
        newest = seq
        for row, _ in backend.tail(line.id):
            if row.seq > seq:
                with suppress(StateCorruptedError):
                    head = records.read_head(records.read_record(row.body)[0])
                    tags.update(encoded_index_values(head.metadata))
                newest = row.seq
        if not left:
            try:
                backend.tag(line.id, newest, tags)
                continue
            except StoreBusyError:
                pass
        left[line.id] = line, tags
    return left


def _has(core: Core, line: Line, tags: dict[str, bytes], wanted: dict[str, bytes]) -> bool:
    """Whether a line has the values: by its newer versions, and for the rest by the index."""
    if any(tags.get(name, value) != value for name, value in wanted.items()):
        return False
    rest = {name: value for name, value in wanted.items() if name not in tags}
    if not rest:
        return True
    return any(each.line.id == line.id for each in core.backend.lines_by_tags(core.space, rest))
