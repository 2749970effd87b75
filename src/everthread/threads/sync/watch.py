# Generated from src/everthread/threads/aio/watch.py by tools/twin.py: change that, then run: make twin
"""Watching a thread: its versions as they come, whoever commits them.

Signals only wake: what is handed out is read from the line, in its order, from one version to the next. So
nothing is missed or seen twice, whatever is folded or rewound meanwhile, and a watch can go on after any
version, in another process, after a restart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from everthread.errors import (
    InvalidValueError,
    StateCorruptedError,
    ThreadDeletedError,
    UsageError,
    VersionNotFoundError,
    VersionPrunedError,
)
from everthread.history.chain import version_id
from everthread.stores.contract import DAMAGED, PRUNED, Found, Line, Row
from everthread.threads.lifetimes import left_s
from everthread.threads.sync.reader import hash_below
from everthread.versions import Version, parse_version_name

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core

#: Versions read at a time.
_BATCH = 64
#: Without a signal the line is looked at again after so long all the same; sooner while it doesn't exist yet.
_WAIT_S = 30.0
_WAIT_UNBORN_S = 0.25


class Watcher:
    """Where one watch has come to."""

    def __init__(
        self,
        core: Core,
        name: str,
        uid: bytes | None,
        after: Version | int | str,
        find: Callable[[str], Version],
    ) -> None:
        self.core = core
        self._name = name
        #: Which incarnation of the name it is; the first one that comes, if there was none.
        self._uid = uid
        self._id: str | None = None
        #: A version that is to be looked up when it begins, by its label or its distance from the head.
        self._named: str | None = None
        self._find = find
        if isinstance(after, Version):
            self._last, self._id = after.seq, after.id
        elif isinstance(after, str):
            named = parse_version_name(after)
            self._last, self._id = named.seq or 0, named.id
            self._named = after if named.seq is None else None
        elif isinstance(after, int) and not isinstance(after, bool):
            self._last = after
        else:
            raise UsageError(f"a version is a Version, its seq or its id, not {type(after).__name__}")
        if self._last < 0:
            raise InvalidValueError(
                "after must not be negative; 0 means from the first version on", path="after"
            )

    def run(self, timeout_s: float | None) -> Iterator[Version]:
        """The versions after that one, as they come; ends when none has come for ``timeout_s``."""
        if self._named is not None:
            version = self._find(self._named)
            self._last, self._id = version.seq, version.id
        idle_s = 0.0
        while True:
            found = self._found()
            newest = 0 if found is None else found.newest.seq if found.newest else found.line.parent_seq
            if found is not None and newest > self._last:
                for version in self._read(found.line, newest):
                    idle_s = 0.0
                    yield version
                continue
            if found is not None:
                self._check_position(found, newest)
            if timeout_s is not None and idle_s >= timeout_s:
                return
            wait_s = self._wait_s(found)
            if timeout_s is not None:
                wait_s = min(wait_s, timeout_s - idle_s)
            began = time.monotonic()
            self.core.backend.wait(found.line.id if found else 0, self._last, wait_s)
            idle_s += time.monotonic() - began

    def _found(self) -> Found | None:
        found = self.core.find(self._name)
        if found is None and self._uid is None:
            return None
        if found is None or self._uid not in (None, found.line.uid):
            raise ThreadDeletedError(
                f"the thread {self._name!r} was deleted; watch a new handle for the next one of this name"
            )
        self._uid = found.line.uid
        return found

    def _wait_s(self, found: Found | None) -> float:
        if found is None:
            return _WAIT_UNBORN_S
        return min(_WAIT_S, left_s(found, self.core.runtime.now_us()))

    def _check_position(self, found: Found, newest: int) -> None:
        """Nothing is newer: then the version to go on from must be the newest."""
        row = found.newest
        newest_id = None if row is None or row.kind == DAMAGED else version_id(row.seq, row.hash)
        if newest < self._last or (self._id is not None and newest_id not in (None, self._id)):
            raise VersionNotFoundError(
                f"{self._name!r} has no version {self._id or self._last}: its newest is {newest}. "
                "If a backup was restored, watch a new handle"
            )

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def _read(self, line: Line, newest: int) -> Iterator[Version]:
        """The versions up to ``newest``, in order; a bounded number is held at a time."""
        reader = self.core.reader
        while self._last < newest:
            owner, last = line, newest
            while self._last < owner.parent_seq and owner.parent:
                last, owner = owner.parent_seq, reader.parent(owner)
            top = min(self._last + _BATCH, last)
            rows = self.core.backend.scan(owner.id, top, _BATCH + 1)
            wanted = [index for index, row in enumerate(rows) if row.seq > self._last]
            if not wanted or rows[wanted[-1]].first > self._last + 1:
                raise reader.missing(owner, self._last + 1)
            for index in reversed(wanted):
                row = rows[index]
                self._check_row(row)
                if row.first > self._last + 1:
                    raise reader.missing(owner, self._last + 1)
                for version in reversed(reader.versions(owner, row, hash_below(rows, index))):
                    if self._last < version.seq <= last:
                        self._check_order(version)
                        yield version

    def _check_row(self, row: Row) -> None:
        if row.kind == PRUNED:
            raise VersionPrunedError(
                f"versions {self._last + 1} to {row.seq} of {self._name!r} were pruned; "
                f"watch(after={row.seq}) goes on after them"
            )
        if row.kind == DAMAGED:
            raise StateCorruptedError(
                f"version {row.seq} of {self._name!r} is damaged; see what store.verify() says",
                where=f"{self._name} {row.seq}",
            )

    def _check_order(self, version: Version) -> None:
        if self._id is not None and version.parent is not None and version.parent != self._id:
            raise VersionNotFoundError(
                f"{self._name!r} has no version {self._id}: {version} follows {version.parent}. "
                "If a backup was restored, watch a new handle"
            )
        self._last, self._id = version.seq, version.id
