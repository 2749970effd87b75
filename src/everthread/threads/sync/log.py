# Generated from src/everthread/threads/aio/log.py by tools/twin.py: change that, then run: make twin
"""The logs of a handle: long, append-only sequences beside the document, read in slices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from everthread.codec import records
from everthread.codec.values import decode, decode_plain, encode, is_plain, lower, same
from everthread.errors import InvalidStateError, InvalidValueError
from everthread.history.logs import EMPTY_LOG, LogState, Prints
from everthread.threads.document import CUT, WHOLE
from everthread.threads.nodes import READ_ONLY
from everthread.threads.sealing import same_content
from everthread.threads.twins import SequenceReads

if TYPE_CHECKING:
    import datetime

    from everthread.threads.sync.handle import Handle


# ── a log at one version ──


class LogView(SequenceReads):
    """A log at one version, read only. Items come as plain copies."""

    def __init__(self, source: Any, name: str, state: LogState) -> None:
        self._source = source
        self.name = name
        self._state = state

    def _now(self) -> LogState:
        return self._state

    def _fetch(self, start: int, stop: int) -> list[Any]:
        fetched: list[Any] = self._source.fetch(self.name, start, stop)
        return fetched

    def __len__(self) -> int:
        return self._now().length

    def read(self, start: int = 0, stop: int | None = None) -> list[Any]:
        """The items from ``start`` up to, not including, ``stop``; negative numbers count from the end."""
        state = self._now()
        start, stop, _ = slice(start, stop).indices(state.length)
        if stop <= start:
            return []
        ranges = state.ranges(start, stop)
        items = self._fetch(*ranges[0])
        for first, last in ranges[1:]:
            items.extend(self._fetch(first, last))
        return items

    def find(self, message_id: Any) -> int | None:
        """The index of the item with this id, or ``None``."""
        found: int | None = self._source.find(self.name, self._now(), message_id)
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


class Log(LogView):
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

    # ── state, driven by the thread ──────────────────────────────────────────────────────────

    def _settle(self, state: LogState) -> None:
        """Stand on a committed state and forget what was pending."""
        self._base = self._current = state
        if self._new:
            self._new, self._prints = [], bytearray()
        if self._splices:
            self._splices = []
        self._cut = WHOLE

    @property
    def _dirty(self) -> bool:
        return bool(self._splices) or self._cut == CUT

    def _now(self) -> LogState:
        handle = self._handle
        if handle.moving or not handle.pinned:
            handle.ensure_loaded()
        return self._current

    def times(self, start: int = 0, stop: int | None = None) -> list[datetime.datetime | None]:
        """Return for each item from ``start`` up to, not including, ``stop`` when its version was committed,
        by the clock of the process that did so; ``None`` for an item that isn't committed yet, or whose
        version was deleted by ``gc()``."""
        from everthread.threads.sync.item_times import times_at

        self._handle.load()
        state, edge = self._now(), self._base.count
        first, last, _ = slice(start, stop).indices(state.length)
        ranges = state.ranges(first, last) if first < last else []
        stored = [at for low, high in ranges for at in range(low, high)]
        known = [at for at in stored if at < edge]
        found = dict(zip(known, times_at(self._handle, self.name, known), strict=True))
        return [found.get(at) for at in stored]

    def _fetch(self, start: int, stop: int) -> list[Any]:
        edge = self._base.count
        # Taken before the store is asked: a commit may end meanwhile, and then nothing is pending any more.
        pending = self._new[max(start - edge, 0) : stop - edge] if stop > edge else []
        items = self._handle.fetch(self.name, start, min(stop, edge)) if start < edge else []
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

    def _raw_range(self, state: LogState, start: int, stop: int) -> list[bytes]:
        """Encoded items by their index in a state of this log, pending ones included."""
        raws: list[bytes] = []
        # The same for all ranges, whatever ends while the store is asked.
        edge, pending = self._base.count, self._new
        for first, last in state.ranges(start, stop):
            if first < edge:
                raws.extend(self._handle.fetch_raw(self.name, first, min(last, edge)))
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
            self._add(lowered, item_id, print_=print_)
            return item_id
        self._append_once(lowered, item_id)
        return item["id"]

    def _append_once(self, lowered: Any, item_id: Any) -> None:
        """Append an item with an id of the caller's, unless the log holds it."""
        print_ = records.fingerprint(item_id)
        at = self._find(item_id, print_)
        if at is None:
            self._add(lowered, item_id, print_=print_)
        elif not self._same_at(at, lowered):
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
        try:
            return [self.append(item) for item in items]
        except BaseException:
            # All or nothing: a batch that is refused in its middle leaves no beginning behind.
            self._take_back(before)
            self._handle.untouch()
            raise

    def truncate_from(self, message_id: Any) -> int:
        """Remove the item with this id and all after it; how many went. An absent id removes nothing."""
        self._handle.require_writable()
        return self._truncate(self._handle.lower(message_id, "id"))

    def _truncate(self, item_id: Any) -> int:
        at = self._find(item_id)
        if at is None:
            return 0
        removed = self._current.length - at
        self._splice(at, removed, [], [])
        return removed

    def find(self, message_id: Any) -> int | None:
        """The index of the item with this id, or ``None``."""
        self._now()
        return self._find(self._handle.lower(message_id, "id"))

    def _find(self, wanted: Any, print_: bytes = b"") -> int | None:
        """The index of the item whose lowered id this is."""
        print_ = print_ or records.fingerprint(wanted)
        state, edge = self._current, self._base.count
        # The newest first: what is pending, then what is committed.
        positions = self._handle.find_print(self.name, print_, edge)
        if self._new:
            if self._sought.row is not self._prints:
                self._sought = Prints(self._prints)
            positions[:0] = self._sought.search(print_, edge)
        for position in positions:
            at = state.index_of(position)
            if at is not None:
                for raw in self._raw_range(state, at, at + 1):
                    item = decode(raw)
                    if type(item) is dict and "id" in item and same(item["id"], wanted):
                        return at
        return None

    def _screened(self, item: Any, new_id: Any = None) -> tuple[Any, Any, bytes]:
        screen = self._handle.core.screen
        assert screen is not None
        return Log._prepare(self, screen(item, self.name), new_id)

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

    def _same_at(self, at: int, lowered: Any) -> bool:
        """Whether the item there has this content; sealed parts are compared by what they hold."""
        ((first, last),) = self._current.ranges(at, at + 1)
        edge = self._base.count
        raws = self._new[first - edge :] if first >= edge else self._handle.fetch_raw(self.name, first, last)
        return same_content(decode(raws[0]), lowered, self._handle.open_seal)

    def _upsert(self, item: Any, new_id: Any, at: int | None) -> Any:
        """Within a step: replace the item with this id where it stands, else insert at ``at``."""
        lowered, item_id, _ = self._prepare(item, new_id)
        found = self._find(item_id) if item_id is not None else None
        if found is None:
            self._add(lowered, item_id, at)
        elif not self._same_at(found, lowered):
            self._add(lowered, item_id, found, 1)
        return item_id
