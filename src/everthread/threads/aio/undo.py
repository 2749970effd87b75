"""Taking back what versions of a thread changed, wherever the thread stands now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from everthread.codec import records
from everthread.codec.records import Change
from everthread.codec.values import decode, encode_stored
from everthread.history.diff import diff_documents
from everthread.history.logs import EMPTY_LOG, LogState
from everthread.history.merge import merge_documents, resolve
from everthread.history.ops import ADD
from everthread.history.snapshots import Snapshot
from everthread.threads.aio.merge import additions_kept
from everthread.threads.twins import ASYNC

if TYPE_CHECKING:
    from everthread.stores.contract import Line
    from everthread.threads.aio.handle import Handle


class _Made(msgspec.Struct, frozen=True):
    """What one version changed, and the state before and after it."""

    line: Line
    change: Change
    before: Snapshot
    after: Snapshot


class _Edits(msgspec.Struct):
    """What a step did to one log."""

    #: The positions that its newest version put there, and the ids of these items.
    put: list[tuple[int, bytes]] = []
    #: Items of others that it has replaced, by their ids.
    replaced: dict[bytes, bytes] = {}
    #: Items of others that its newest version cut off, and the position before them.
    cut: list[tuple[int | None, list[bytes]]] = []


class Undo:
    """The changes of a step's versions, to be taken back through a handle, in one version with what comes
    instead. What others changed since stays as they left it."""

    def __init__(self, handle: Handle, made: list[_Made], edits: dict[str, _Edits]) -> None:
        self._handle = handle
        self._made = made
        self._edits = edits
        #: The logs as :meth:`show` left them.
        self._shown: dict[str, Any] = {}

    @classmethod
    async def of(cls, handle: Handle, places: list[tuple[Line, int]]) -> Undo:
        """Read what versions changed, the newest first; each has taken back what the one before it did.

        Raises :class:`VersionPrunedError` if that isn't known any more.
        """
        reader, made = handle.core.reader, []
        for line, seq in places:
            change = await reader.change(line, seq)
            after = (await reader.load(line, seq)).snapshot
            before = (await reader.load(line, seq - 1, pruned=True)).snapshot
            made.append(_Made(line, change, before, after))
        own = {
            (log, position + offset)
            for each in made
            for log, _, _, insert, position, *_ in each.change.logs
            for offset in range(insert)
        }
        edits: dict[str, _Edits] = {}
        for each in reversed(made):
            await _note_edits(handle, each, own, edits, newest=each is made[0])
        return cls(handle, made, edits)

    async def show(self) -> None:
        """Take it back in the handle, uncommitted: whoever looks sees the thread without it."""
        handle = self._handle
        if ASYNC:
            await handle.settle_logs()
        document = handle.open_document()
        for each in self._made:
            added = {tuple(op[1]): -op[2] for op in each.change.ops if op[0] == ADD}
            merged = merge_documents(
                each.after.document, each.before.document, document.raw, increments=added, lift=handle.lift
            )
            # What others changed since is theirs, and stays.
            edits = diff_documents(document.raw, resolve(merged, "theirs"))
            document.apply(additions_kept(edits, document.raw, added))
        self.apply()
        self._shown = {name: handle.log(name)._pending() for name in self._edits}

    def hide(self) -> None:
        """Take the logs, which are undone anew for each try to commit, as they were; the document, which a
        rebase takes along, stays. A log that was edited directly meanwhile stays as well."""
        handle = self._handle
        for name, shown in self._shown.items():
            log = handle.log(name)
            edited = log._pending() != shown
            if ASYNC:
                edited = edited or bool(log._deferred)
            if edited:
                del self._edits[name]
            else:
                log._take_back(None)
        handle.untouch()

    def apply(self) -> dict[str, int]:
        """Take back what was done to logs; where in each of them something had been added."""
        return {name: at for name in self._edits if (at := self._undo_log(name)) is not None}

    def _undo_log(self, name: str) -> int | None:
        log, edits = self._handle.log(name), self._edits[name]
        place: int | None = None
        here = [(at, id_) for p, id_ in edits.put if (at := log._current.index_of(p)) is not None]
        for at, id_ in sorted(here, reverse=True):
            raw = edits.replaced.get(id_)
            if raw is None:
                log._splice(at, 1, [], [])
                place = at
            else:
                log._splice(at, 1, [raw], [records.print_of(raw)])
        for after, raws in edits.cut:
            before = -1 if after is None else log._current.index_of(after)
            at = log._current.length if before is None else before + 1
            log._splice(at, 0, list(raws), [records.print_of(raw) for raw in raws])
        return place


async def _note_edits(
    handle: Handle, made: _Made, own: set[tuple[str, int]], edits: dict[str, _Edits], *, newest: bool
) -> None:
    """Add what a version did to logs. ``own`` are the positions that the step itself has put anywhere."""
    reader = handle.core.reader
    states: dict[str, LogState] = {}
    for log, at, remove, insert, position, *_ in made.change.logs:
        if "\0" in log:
            continue
        state = states.get(log, made.before.logs.get(log, EMPTY_LOG))
        found = edits.setdefault(log, _Edits())
        taken: list[bytes] = []
        for start, stop in state.ranges(at, at + remove):
            raws = await reader.raw_items(made.line, log, start, stop)
            taken += [raw for place, raw in enumerate(raws, start) if (log, place) not in own]
        found.replaced.update({id_: raw for raw in taken if (id_ := _id(raw))})
        if newest:
            raws = await reader.raw_items(made.line, log, position, position + insert) if insert else []
            found.put += [(place, _id(raw)) for place, raw in enumerate(raws, position)]
            if taken and not insert:
                found.cut.append((state.ranges(at - 1, at)[0][0] if at else None, taken))
        states[log] = state.splice(at, remove, insert)


def _id(raw: bytes) -> bytes:
    """The id of an item, encoded; nothing if it has none."""
    item = decode(raw)
    return encode_stored(item["id"]) if type(item) is dict and "id" in item else b""
