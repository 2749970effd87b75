"""The logs of a handle: long, append-only sequences beside the document, read in slices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from everthread.codec import records
from everthread.codec.values import decode, decode_plain, encode, is_plain, lower, same
from everthread.errors import InvalidStateError, InvalidValueError
from everthread.history.logs import EMPTY_LOG, LogState, Prints
from everthread.threads.document import CUT, WHOLE
from everthread.threads.nodes import READ_ONLY, clone
from everthread.threads.sealing import same_content
from everthread.threads.twins import ASYNC, StreamReads

if TYPE_CHECKING:
    import datetime

    from everthread.threads.aio.handle import Handle


# ── a log at one version ──


class AsyncLogView(StreamReads):
    """A log at one version, read only. Items come as plain copies."""

    def __init__(self, source: Any, name: str, state: LogState) -> None:
        self._source = source
        self.name = name
        self._state = state

    def _now(self) -> LogState:
        return self._state

    async def _fetch(self, start: int, stop: int) -> list[Any]:
        fetched: list[Any] = await self._source.fetch(self.name, start, stop)
        return fetched

    def __len__(self) -> int:
        return self._now().length

    async def read(self, start: int = 0, stop: int | None = None) -> list[Any]:
        """The items from ``start`` up to, not including, ``stop``; negative numbers count from the end."""
        state = self._now()
        start, stop, _ = slice(start, stop).indices(state.length)
        if stop <= start:
            return []
        ranges = state.ranges(start, stop)
        items = await self._fetch(*ranges[0])
        for first, last in ranges[1:]:
            items.extend(await self._fetch(first, last))
        return items

    async def find(self, message_id: Any) -> int | None:
        """The index of the item with this id, or ``None``."""
        found: int | None = await self._source.find(self.name, self._now(), message_id)
        return found

    def append(self, item: Any) -> Any:
        """Refused: the past is read only."""
        raise InvalidStateError(READ_ONLY)

    def extend(self, items: Any) -> Any:
        """Refused: the past is read only."""
        raise InvalidStateError(READ_ONLY)

    def truncate_from(self, message_id: Any) -> Any:
        """Refused: the past is read only."""
        raise InvalidStateError(READ_ONLY)

    def __repr__(self) -> str:
        return f"<log {self.name!r}: {len(self)} items>"


#: The state of a log with its uncommitted changes: the log, how many new items, the splices.
_Pending = tuple[LogState, int, list[list[Any]]]

#: Stands for "truncate" where an edit that waits for the store would hold an item.
_TRUNCATE: Any = object()
_NONE_SOUGHT = Prints()


class AsyncLog(AsyncLogView):
    """A log of a handle: committed items and, after them, what this handle has not committed yet."""

    # What every log begins with stands here: that makes one sooner.
    _base = _current = EMPTY_LOG
    #: The same as ``_prints``, for whoever looks for one.
    _sought = _NONE_SOUGHT
    _cut: int = WHOLE
    #: The state that the last record held.
    _recorded_state = EMPTY_LOG

    def __init__(self, handle: Handle, name: str) -> None:
        self._handle = handle
        self.name = name
        #: Encoded items not committed yet, at the physical positions from ``_base.count`` on.
        self._new: list[bytes] = []
        #: Their fingerprints.
        self._prints = bytearray()
        self._splices: list[list[Any]] = []
        if handle.core.screen is not None:
            # Only then: stores without detectors don't pay for a look.
            self._prepare = self._screened  # type: ignore[method-assign]
        if ASYNC:
            #: Edits that wait for the store, and the state before them; shown as if nothing hindered them.
            self._deferred: list[tuple[Any, Any]] = []
            self._before_deferred: _Pending | None = None

    # ── state, driven by the thread ──────────────────────────────────────────────────────────

    def _settle(self, state: LogState) -> None:
        """Stand on a committed state and forget what was pending."""
        self._base = self._current = state
        if self._new:
            self._new, self._prints = [], bytearray()
        if self._splices:
            self._splices = []
        self._cut = WHOLE
        if ASYNC:
            self._deferred = []

    @property
    def _dirty(self) -> bool:
        if ASYNC:
            return bool(self._splices) or self._cut == CUT or bool(self._deferred)
        return bool(self._splices) or self._cut == CUT

    def _now(self) -> LogState:
        handle = self._handle
        if handle.moving or not handle.pinned:
            handle.ensure_loaded()
        return self._current

    if ASYNC:

        def __len__(self) -> int:
            if any(lowered is _TRUNCATE for lowered, _ in self._deferred):
                raise InvalidStateError(
                    f"how long {self.name!r} is after truncate_from() shows when it is read or committed"
                )
            return self._now().length

        def __repr__(self) -> str:
            waiting = ", some wait for the store" if self._deferred else ""
            return f"<log {self.name!r}: {self._current.length} items{waiting}>"

        async def read(self, start: int = 0, stop: int | None = None) -> list[Any]:
            """The items from ``start`` up to, not including, ``stop``; negative numbers count from the end.

            Does first what ``truncate_from()`` and ids of the caller's had left to be done.
            """
            await self._handle.load()
            await self._settle_deferred()
            return await super().read(start, stop)

    async def times(self, start: int = 0, stop: int | None = None) -> list[datetime.datetime | None]:
        """Return for each item from ``start`` up to, not including, ``stop`` when its version was committed,
        by the clock of the process that did so; ``None`` for an item that isn't committed yet, or whose
        version was deleted by ``gc()``."""
        from everthread.threads.aio.item_times import times_at

        await self._handle.load()
        if ASYNC:
            await self._settle_deferred()
        state, edge = self._now(), self._base.count
        first, last, _ = slice(start, stop).indices(state.length)
        ranges = state.ranges(first, last) if first < last else []
        stored = [at for low, high in ranges for at in range(low, high)]
        known = [at for at in stored if at < edge]
        found = dict(zip(known, await times_at(self._handle, self.name, known), strict=True))
        return [found.get(at) for at in stored]

    async def _fetch(self, start: int, stop: int) -> list[Any]:
        edge = self._base.count
        # Taken before the store is asked: a commit may end meanwhile, and then nothing is pending any more.
        pending = self._new[max(start - edge, 0) : stop - edge] if stop > edge else []
        items = await self._handle.fetch(self.name, start, min(stop, edge)) if start < edge else []
        if pending:
            items.extend(decode_plain(raw, self._handle.open_seal) for raw in pending)
        return items

    def _splice(self, at: int, remove: int, raws: list[bytes], prints: list[bytes]) -> None:
        self._handle.touch()
        # Still set afterwards, this was interrupted half done, and must not be committed.
        self._cut = CUT
        position = self._current.count
        self._current = self._current.splice(at, remove, len(raws))
        self._new.extend(raws)
        self._prints += b"".join(prints)
        last = self._splices[-1] if self._splices else None
        if last is not None and not remove and raws and at == last[1] + last[3] and last[3]:
            last[3] += len(raws)
        else:
            self._splices.append([self.name, at, remove, len(raws), position])
        self._cut = WHOLE

    def _print_slice(self, position: int, count: int) -> bytes:
        start = 4 * (position - self._base.count)
        return bytes(self._prints[start : start + 4 * count])

    def _record(self, splices: list[list[Any]], blocks: list[bytes]) -> None:
        """Add what is pending as a record holds it: splices with fingerprints, and a block for each."""
        if self._cut == CUT:
            raise InvalidStateError(
                f"a change of log {self.name!r} was interrupted half done: discard() what is uncommitted"
            )
        start, new = self._base.count, self._new
        for splice in self._splices:
            insert, position = splice[3], splice[4]
            if insert == len(new):
                # Nearly always: all that is new in one splice.
                splices.append([*splice, bytes(self._prints)])
                if insert:
                    blocks.append(records.array(new))
                continue
            splices.append([*splice, self._print_slice(position, insert)])
            if insert:
                blocks.append(records.array(new[position - start : position - start + insert]))
        self._recorded_state = self._current

    def _new_items(self) -> list[bytes]:
        """The items, encoded, that the next commit adds, without those that were truncated since."""
        edge, found = self._base.count, []
        for start, stop in self._current.ranges(0, self._current.length):
            found += self._new[max(start - edge, 0) : max(stop - edge, 0)]
        return found

    def _pending(self) -> _Pending:
        """What is uncommitted, to come back to."""
        return self._current, len(self._new), [list(splice) for splice in self._splices]

    def _take_back(self, before: _Pending | None) -> None:
        """Forget what was changed since; ``None``: since the last commit."""
        self._current, kept, self._splices = before or (self._base, 0, [])
        self._new = self._new[:kept]
        self._prints = self._prints[: 4 * kept]
        self._cut = WHOLE

    async def _raw_range(self, state: LogState, start: int, stop: int) -> list[bytes]:
        """Encoded items by their index in a state of this log, pending ones included."""
        raws: list[bytes] = []
        # The same for all ranges, whatever ends while the store is asked.
        edge, pending = self._base.count, self._new
        for first, last in state.ranges(start, stop):
            if first < edge:
                raws.extend(await self._handle.fetch_raw(self.name, first, min(last, edge)))
            raws.extend(pending[max(first - edge, 0) : max(last - edge, 0)])
        return raws

    # ── changing ─────────────────────────────────────────────────────────────────────────────

    def append(self, item: Any) -> Any:
        """Add one item and return its id (``None`` for an item that isn't a dictionary).

        A dictionary without an ``"id"`` gets one. The same id again: nothing happens if the content is the
        same, :class:`InvalidValueError` if it differs.
        """
        handle = self._handle
        if handle.moving or handle.deleted or handle.writing or not handle.pinned:
            handle.require_writable()
        lowered, item_id, print_ = self._prepare(item)
        if item_id is None or print_:
            if ASYNC and self._deferred:
                self._defer(lowered, item_id)
            self._add(lowered, item_id, print_=print_)
            return item_id
        if ASYNC:
            # Whether the store holds this id already is asked at the commit, or by the next read.
            self._defer(lowered, item_id)
            self._add(lowered, item_id)
        else:
            self._append_once(lowered, item_id)
        return item["id"]

    async def _append_once(self, lowered: Any, item_id: Any) -> None:
        """Append an item with an id of the caller's, unless the log holds it."""
        print_ = records.fingerprint(item_id)
        at = await self._find(item_id, print_)
        if at is None:
            self._add(lowered, item_id, print_=print_)
        elif not await self._same_at(at, lowered):
            raise InvalidValueError(
                f"{self.name} already holds an item with the id {self._handle.lift(item_id)!r} and other "
                "content; give the new one another id, or replace it within a step",
                path=f"{self.name}[{at}]",
            )

    def extend(self, items: Iterable[Any]) -> list[Any]:
        """Append several, all or none; their ids."""
        if isinstance(items, str | bytes | dict) or not isinstance(items, Iterable):
            raise InvalidValueError(f"{self.name}.extend() takes several items; use append() for one")
        self._handle.require_writable()
        before = self._pending()
        if ASYNC:
            deferred = len(self._deferred)
        try:
            return [self.append(item) for item in items]
        except BaseException:
            # All or nothing: a batch that is refused in its middle leaves no beginning behind.
            self._take_back(before)
            if ASYNC:
                del self._deferred[deferred:]
            self._handle.untouch()
            raise

    if ASYNC:

        def truncate_from(self, message_id: Any) -> None:
            """Remove the item with this id and all after it, when the commit or the next read looks for it.

            An absent id removes nothing.
            """
            self._handle.require_writable()
            self._defer(_TRUNCATE, self._handle.lower(message_id, "id"))
            self._handle.touch()

        def _defer(self, lowered: Any, item_id: Any) -> None:
            """Note an edit that only the store can settle. ``lowered``: the item, or a truncation."""
            if not self._deferred:
                self._before_deferred = self._pending()
            self._deferred.append((clone(lowered), clone(item_id)))

        async def _settle_deferred(self) -> None:
            """Do what was noted, in its order, now that the store can be asked.

            On a copy, which takes effect when all of it is done: a refusal or a cancellation changes nothing,
            and what another task edits meanwhile is noted like the rest.
            """
            while deferred := self._deferred:
                settled = self._before_edits()
                done = 0
                try:
                    while self._deferred is deferred and done < len(deferred):
                        await settled._edit(*deferred[done])
                        done += 1
                    # Another list: what was noted has been discarded, or settled by another task.
                    if self._deferred is deferred:
                        self._current, self._splices = settled._current, settled._splices
                        self._new, self._prints = settled._new, settled._prints
                        self._deferred = []
                finally:
                    self._handle.untouch()

        async def _edit(self, lowered: Any, item_id: Any) -> None:
            if lowered is _TRUNCATE:
                await self._truncate(item_id)
            elif item_id is None:
                self._add(lowered, None)
            else:
                await self._append_once(lowered, item_id)

        def _before_edits(self) -> AsyncLog:
            """A copy of this log without the edits that wait for the store."""
            assert self._before_deferred is not None
            state, kept, splices = self._before_deferred
            copy = AsyncLog(self._handle, self.name)
            copy._base, copy._current = self._base, state
            copy._new, copy._prints = self._new[:kept], self._prints[: 4 * kept]
            copy._splices = [list(splice) for splice in splices]
            return copy

        @property
        def _firm(self) -> LogState:
            """The state without the edits that wait for the store."""
            return self._before_deferred[0] if self._deferred and self._before_deferred else self._current

        def _defer_again(self, deferred: list[tuple[Any, Any]]) -> None:
            """Note edits that waited for the store, now that this log stands elsewhere."""
            for lowered, item_id in deferred:
                self._defer(lowered, item_id)
                if lowered is not _TRUNCATE:
                    self._add(lowered, item_id)
                self._handle.touch()

    else:

        def truncate_from(self, message_id: Any) -> int:
            """Remove the item with this id and all after it; how many went. An absent id removes nothing."""
            self._handle.require_writable()
            return self._truncate(self._handle.lower(message_id, "id"))

    async def _truncate(self, item_id: Any) -> int:
        at = await self._find(item_id)
        if at is None:
            return 0
        removed = self._current.length - at
        self._splice(at, removed, [], [])
        return removed

    async def find(self, message_id: Any) -> int | None:
        """The index of the item with this id, or ``None``."""
        if ASYNC:
            await self._settle_deferred()
        self._now()
        return await self._find(self._handle.lower(message_id, "id"))

    async def _find(self, wanted: Any, print_: bytes = b"") -> int | None:
        """The index of the item whose lowered id this is."""
        print_ = print_ or records.fingerprint(wanted)
        state, edge = self._current, self._base.count
        # The newest first: what is pending, then what is committed.
        positions = await self._handle.find_print(self.name, print_, edge)
        if self._new:
            if self._sought.row is not self._prints:
                self._sought = Prints(self._prints)
            positions[:0] = self._sought.search(print_, edge)
        for position in positions:
            at = state.index_of(position)
            if at is not None:
                for raw in await self._raw_range(state, at, at + 1):
                    item = decode(raw)
                    if type(item) is dict and "id" in item and same(item["id"], wanted):
                        return at
        return None

    def _screened(self, item: Any, new_id: Any = None) -> tuple[Any, Any, bytes]:
        screen = self._handle.core.screen
        assert screen is not None
        return AsyncLog._prepare(self, screen(item, self.name), new_id)

    def _prepare(self, item: Any, new_id: Any = None) -> tuple[Any, Any, bytes]:
        """The lowered item, its id, and the fingerprint of an id that was made just now, else nothing.

        Its inside may still be the caller's: it is to be encoded, or copied, before the caller goes on.
        """
        handle = self._handle
        if type(item) is dict and is_plain(item, handle.limits):
            lowered = item.copy()
        else:
            try:
                lowered = lower(item, limits=handle.limits, seal=handle.seal, root=self.name)
            except InvalidValueError:
                # Refused: only now is it worth saying where in the log it would have stood.
                lowered = handle.lower(item, f"{self.name}[{self._now().length}]")
        if type(lowered) is not dict:
            return lowered, None, b""
        item_id = lowered.get("id")
        if item_id is not None:
            return lowered, item_id, b""
        item_id, print_ = (new_id, b"") if new_id is not None else handle.runtime.item_id()
        lowered["id"] = item_id
        return lowered, item_id, print_

    def _add(
        self, lowered: Any, item_id: Any, at: int | None = None, remove: int = 0, print_: bytes = b""
    ) -> None:
        raw = encode(lowered, self._handle.limits, self.name)
        if not print_:
            print_ = records.NO_FINGERPRINT if item_id is None else records.fingerprint(item_id)
        state = self._current
        if at is not None and (remove or at != state.length):
            self._splice(at, remove, [raw], [print_])
            return
        # What every append runs: the same as a splice at the end, with less ado.
        self._handle.logs_touched = True
        self._cut = CUT
        self._new.append(raw)
        self._prints += print_
        splices = self._splices
        if splices and splices[-1][3] and splices[-1][1] + splices[-1][3] == state.length:
            splices[-1][3] += 1
        else:
            splices.append([self.name, state.length, 0, 1, state.count])
        self._current = state.appended()
        self._cut = WHOLE

    async def _same_at(self, at: int, lowered: Any) -> bool:
        """Whether the item there has this content; sealed parts are compared by what they hold."""
        ((first, last),) = self._current.ranges(at, at + 1)
        edge = self._base.count
        raws = (
            self._new[first - edge :]
            if first >= edge
            else await self._handle.fetch_raw(self.name, first, last)
        )
        return same_content(decode(raws[0]), lowered, self._handle.open_seal)

    async def _upsert(self, item: Any, new_id: Any, at: int | None) -> Any:
        """Within a step: replace the item with this id where it stands, else insert at ``at``."""
        lowered, item_id, _ = self._prepare(item, new_id)
        if ASYNC:
            await self._settle_deferred()
        found = await self._find(item_id) if item_id is not None else None
        if found is None:
            self._add(lowered, item_id, at)
        elif not await self._same_at(found, lowered):
            self._add(lowered, item_id, found, 1)
        return item_id
