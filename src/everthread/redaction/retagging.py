"""Taking a text out of the index by which threads are found by their metadata.

The index keeps the newest value of each name, also of what a fork took along from a version of another line:
a version with the new value replaces it. That comes first. Once the versions that say what a value was are
rewritten, nobody who is to go on after a kill could tell what to look for.
"""

from __future__ import annotations

import copy
from typing import Any

from everthread.codec import records
from everthread.codec.values import decode, lift, same
from everthread.errors import ConflictError, StoreBusyError
from everthread.history import packs
from everthread.history.redaction import Needle
from everthread.history.retention import read_tombstone
from everthread.stores.contract import DAMAGED, PACK, PRUNED, Line, Row
from everthread.threads.colours import pause
from everthread.threads.lifetimes import has_expired
from everthread.threads.runtime import Runtime
from everthread.threads.sync.core import Core
from everthread.threads.sync.examining import Gap, rows_of
from everthread.threads.sync.folding import tag_value
from everthread.threads.sync.thread import Thread

_TRIES = 5
#: How often the index is asked for while others write, and the pause in between.
_TAG_TRIES, _TAG_PAUSE_S = 100, 0.05


class Retagging:
    """What stood in the metadata of some lines, and the threads that are found by it."""

    def __init__(self, core: Core, needle: Needle) -> None:
        self._core = core
        self._backend = core.backend
        self._needle = needle
        #: By space and name: what the index may hold, and the value that takes its place.
        self._known: dict[tuple[str, str], dict[bytes, Any]] = {}

    def look_at(self, line: Line) -> None:
        """Take note of the metadata of a line. What is damaged is told by whoever rewrites it."""
        for row in rows_of(self._core.reader, line):
            if not isinstance(row, Gap) and row.kind != DAMAGED:
                for head in _heads(row):
                    if self._needle.within(head):
                        self._note(line.space, records.read_head(head))

    def _note(self, space: str, head: records.Head) -> None:
        for name, value in (decode(head.metadata) if head.metadata is not None else {}).items():
            replaced = self._needle.replaced(value)
            if isinstance(name, str) and not same(replaced, value):
                self._known.setdefault((space, name), {})[tag_value(value)] = replaced

    def run(self) -> None:
        """Give every thread that is found by what was noted the new values."""
        new: dict[int, tuple[Line, dict[str, Any]]] = {}
        for (space, name), values in self._known.items():
            for old, value in values.items():
                for found in self._backend.lines_by_tags(space, {name: old}):
                    new.setdefault(found.line.id, (found.line, {}))[1][name] = value
        for line, metadata in new.values():
            self._replace(line, metadata)

    def _replace(self, line: Line, values: dict[str, Any]) -> None:
        metadata = {name: lift(value) for name, value in values.items()}
        for left in reversed(range(_TRIES)):
            core = self._awake(line)
            if core is None:
                return
            thread = Thread(core, line.name)
            thread._load()
            try:
                version = thread.commit(label="redacted", metadata=metadata)
            except ConflictError:
                if not left:
                    raise
                continue
            if version is not None:
                self._tag(line, version.seq, {name: tag_value(value) for name, value in values.items()})
            return

    def _awake(self, line: Line) -> Core | None:
        """The core to write to a line with; ``None`` if it isn't there any more. One that has expired is
        written to as of the moment of its newest version, so that it stays expired."""
        core = copy.copy(self._core)
        core.space = line.space
        core.memos.clear()
        found = self._backend.find(line.space, line.name)
        if found is None or found.line.id != line.id:
            return None
        version = (core.head(found)).version
        if version is not None and has_expired(found.line, version, core.runtime.now_us()):
            at_us = version.at_us
            core.runtime = Runtime(lambda: at_us, core.runtime.random_bytes)
        return core

    def _tag(self, line: Line, seq: int, tags: dict[str, bytes]) -> None:
        """The index must not keep the text, so that it is waited for."""
        for left in reversed(range(_TAG_TRIES)):
            try:
                self._backend.tag(line.id, seq, tags)
                return
            except StoreBusyError:
                if not left:
                    raise
                pause(_TAG_PAUSE_S)


def _heads(row: Row) -> list[bytes]:
    if row.kind == PRUNED:
        return list(read_tombstone(row.body).heads.values())
    return packs.read_pack(row.body).heads if row.kind == PACK else [records.read_record(row.body)[0]]
