# Generated from src/everthread/threads/aio/undo.py by tools/twin.py: change that, then run: make twin
"""Taking back what one version of a thread changed, wherever the thread stands now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from everthread.codec import records
from everthread.history.diff import diff_documents
from everthread.history.logs import EMPTY_LOG, LogState
from everthread.history.merge import merge_documents, resolve
from everthread.history.ops import ADD
from everthread.history.snapshots import Snapshot
from everthread.threads.sync.merge import additions_kept

if TYPE_CHECKING:
    from everthread.codec.records import Change
    from everthread.threads.sync.handle import Handle


class _Edit(msgspec.Struct, frozen=True):
    """What the version did at one place of a log: the positions that it put there, the one before them, and
    the items that it took away."""

    put: range
    after: int | None
    taken: list[bytes]


class Undo:
    """The changes of one version, to be taken back through a handle, in one version with what comes instead.

    What others changed since stays as they left it.
    """

    def __init__(
        self,
        handle: Handle,
        change: Change,
        before: Snapshot,
        after: Snapshot,
        edits: dict[str, list[_Edit]],
    ) -> None:
        self._handle = handle
        self._change = change
        self._before = before
        self._after = after
        self._edits = edits
        #: The logs as :meth:`show` left them.
        self._shown: dict[str, Any] = {}

    @classmethod
    def of(cls, handle: Handle, seq: int) -> Undo:
        """Read what a version changed. Raises :class:`VersionPrunedError` if that isn't known any more."""
        line, _ = handle.require()
        reader = handle.core.reader
        owner = reader.owner(line, seq)
        change = reader.change(owner, seq)
        after = (reader.load(owner, seq)).snapshot
        before = (reader.load(owner, seq - 1, pruned=True)).snapshot
        edits: dict[str, list[_Edit]] = {}
        states: dict[str, LogState] = {}
        for log, at, remove, insert, position, *_ in change.logs:
            if "\0" in log:
                continue
            state = states.get(log, before.logs.get(log, EMPTY_LOG))
            taken: list[bytes] = []
            for start, stop in state.ranges(at, at + remove):
                taken += reader.raw_items(owner, log, start, stop)
            following = state.ranges(at - 1, at)[0][0] if at else None
            edits.setdefault(log, []).append(_Edit(range(position, position + insert), following, taken))
            states[log] = state.splice(at, remove, insert)
        return cls(handle, change, before, after, edits)

    def show(self) -> None:
        """Take it back in the handle, uncommitted: whoever looks sees the thread without it."""
        handle = self._handle
        added = {tuple(op[1]): -op[2] for op in self._change.ops if op[0] == ADD}
        current = handle.open_document().raw
        merged = merge_documents(
            self._after.document, self._before.document, current, increments=added, lift=handle.lift
        )
        # What others changed since is theirs, and stays.
        edits = diff_documents(current, resolve(merged, "theirs"))
        handle.open_document().apply(additions_kept(edits, current, added))
        self.apply()
        self._shown = {name: handle.log(name)._pending() for name in self._edits}

    def hide(self) -> None:
        """Take the logs, which are undone anew for each try to commit, as they were; the document, which a
        rebase takes along, stays. A log that was edited directly meanwhile stays as well."""
        handle = self._handle
        for name, shown in self._shown.items():
            log = handle.log(name)
            edited = log._pending() != shown
            if edited:
                del self._edits[name]
            else:
                log._take_back(None)
        handle.untouch()

    def apply(self) -> dict[str, int]:
        """Take back what was done to logs; where in each of them that was."""
        return {name: at for name in self._edits if (at := self._undo_log(name)) is not None}

    def _undo_log(self, name: str) -> int | None:
        log = self._handle.log(name)
        place: int | None = None
        for edit in reversed(self._edits[name]):
            at = None
            for position in reversed(edit.put):
                found = log._current.index_of(position)
                if found is not None:
                    log._splice(found, 1, [], [])
                    at = found if at is None else min(at, found)
            if at is None and edit.taken:
                before = -1 if edit.after is None else log._current.index_of(edit.after)
                at = log._current.length if before is None else before + 1
            if edit.taken and at is not None:
                log._splice(at, 0, list(edit.taken), [records.print_of(raw) for raw in edit.taken])
            elif at is not None:
                # Only what it had added has a place of its own; what it had replaced is found by its id.
                place = at if place is None else min(place, at)
        return place
