"""A thread as it was at a version: the same shape, read only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from everthread.arguments import check_name
from everthread.codec import records
from everthread.codec.values import decode, same
from everthread.history.diff import Diff, LogChange
from everthread.history.logs import EMPTY_LOG, LogState, common_prefix
from everthread.history.snapshots import Snapshot
from everthread.stores.contract import Line
from everthread.threads.aio.log import AsyncLogView
from everthread.threads.document import Document, TrackedDict
from everthread.threads.twins import AwaitedFace
from everthread.versions import Version

if TYPE_CHECKING:
    from everthread.threads.aio.handle import Handle


class AsyncPast(AwaitedFace):
    """What ``thread.at(version)`` gives. It never moves."""

    def __init__(self, handle: Handle, line: Line, version: Version, snapshot: Snapshot) -> None:
        self._handle = handle
        self._line = line
        self.version = version
        self._snapshot = snapshot
        self._document: Document | None = None

    @property
    def uid(self) -> str:
        """The id of the thread that was looked at: what lies beside it is called after it."""
        line, _ = self._handle.require()
        return line.uid.hex()

    @property
    def state(self) -> TrackedDict:
        """The document as it was. ``.plain()`` gives plain data; changing it raises."""
        if self._document is None:
            handle = self._handle
            self._document = Document(
                self._snapshot.document, lower=handle.lower, lift=handle.lift, writable=False
            )
        return self._document.root

    @property
    def messages(self) -> AsyncLogView:
        return self._log("messages")

    def log(self, name: str) -> AsyncLogView:
        return self._log(check_name(name, "log name"))

    def hidden_log(self, name: str) -> AsyncLogView:
        """A log that no caller's name reaches, for what the library keeps in a thread."""
        return self._log(name)

    def _log(self, name: str) -> AsyncLogView:
        return AsyncLogView(self, name, self._snapshot.logs.get(name, EMPTY_LOG))

    @property
    def logs(self) -> list[str]:
        return sorted(name for name in self._snapshot.logs if "\0" not in name)

    async def fetch(self, log: str, start: int, stop: int) -> list[Any]:
        """Items by physical position, for the log views."""
        core = self._handle.core
        return await core.reader.items(self._line, log, start, stop, None, self._handle.open_seal)

    async def find(self, log: str, state: LogState, message_id: Any) -> int | None:
        """The index of an item by its id, for the log views."""
        handle = self._handle
        wanted = handle.lower(message_id, "id")
        for position in await handle.find_print(log, records.fingerprint(wanted), state.count):
            at = state.index_of(position)
            if at is not None:
                (raw,) = await handle.core.reader.raw_items(self._line, log, position, position + 1)
                item = decode(raw)
                if type(item) is dict and "id" in item and same(item["id"], wanted):
                    return at
        return None

    def __repr__(self) -> str:
        return f"<{self._handle.name!r} at {self.version}>"


async def compare(
    old: AsyncPast | None, new: AsyncPast, lift: Callable[[Any], Any], lower: Callable[[Any], Any]
) -> Diff:
    """What changed between two versions, of one thread or of two."""
    before = old._snapshot if old is not None else Snapshot.empty()
    after = new._snapshot
    logs = {}
    for name in sorted({*before.logs, *after.logs}):
        if "\0" not in name:
            change = await _compare_log(name, old, new)
            if change.added or change.removed:
                logs[name] = change
    return Diff.between(before.document, after.document, logs, lift=lift, lower=lower)


async def _compare_log(name: str, old: AsyncPast | None, new: AsyncPast) -> LogChange:
    was = old._log(name) if old is not None else None
    now = new._log(name)
    if was is None or old is None:
        return LogChange(added=len(now), added_items=tuple(await now.read()))
    if old._line.uid != new._line.uid:
        # Positions of two lines can't be compared: go by what the items say.
        there, here = await was.read(), await now.read()
        shared = 0
        for a, b in zip(there, here, strict=False):
            if a != b:
                break
            shared += 1
        return LogChange(
            added=len(here) - shared,
            removed=len(there) - shared,
            kept=shared,
            added_items=tuple(here[shared:]),
            removed_items=tuple(there[shared:]),
        )
    shared = common_prefix(was._state, now._state)
    before, after = _positions(was._state, shared), _positions(now._state, shared)
    added = [at for position, at in after.items() if position not in before]
    removed = [at for position, at in before.items() if position not in after]
    return LogChange(
        added=len(added),
        removed=len(removed),
        kept=len(now) - len(added),
        added_items=tuple(await _pick(now, added)),
        removed_items=tuple(await _pick(was, removed)),
    )


def _positions(state: LogState, start: int) -> dict[int, int]:
    """Physical position → index, from index ``start`` on."""
    flat = (p for first, last in state.ranges(start, state.length) for p in range(first, last))
    return {position: start + offset for offset, position in enumerate(flat)}


async def _pick(view: AsyncLogView, indices: list[int]) -> list[Any]:
    if not indices:
        return []
    low, high = indices[0], indices[-1]
    items = await view.read(low, high + 1)
    return [items[at - low] for at in indices]
