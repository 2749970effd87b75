# Generated from src/everthread/threads/aio/keys.py by tools/twin.py: change that, then run: make twin
"""Finding the versions that carry a commit key or a step key, in a thread and its ancestry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from everthread.arguments import check_name
from everthread.codec import records
from everthread.errors import ConflictError, KeyReusedError, VersionPrunedError
from everthread.history.retention import read_tombstone
from everthread.stores.contract import PRUNED, REWIND, Line
from everthread.threads.head_cache import CachedHead
from everthread.threads.sync.commit import write, write_rewind
from everthread.threads.sync.core import Core, key_hash
from everthread.threads.sync.lost_ack import Landed
from everthread.versions import Version

if TYPE_CHECKING:
    from everthread.threads.sync.thread import Thread


class KeyFinder:
    """Looks in the index of folded versions and in the tails that aren't folded yet."""

    def __init__(self, core: Core, line: Line, head: CachedHead) -> None:
        self.core = core
        self._line = line
        self._head = head

    def version(self, hashed: bytes) -> tuple[Version | None, Version | None]:
        """The version that carries the key, and the rewind that went back before it, if one did."""
        entries = self.entries(hashed)
        for line, seq in entries:
            if self._led_here(line, seq):
                return (self.core.reader.version(line, seq, gone=True))[0], None
        if not entries:
            return None, None
        line, seq = entries[0]
        version = (self.core.reader.version(line, seq, gone=True))[0]
        return version, self._rewind_past(line, seq)

    def steps(self, hashed: bytes) -> list[tuple[tuple[Line, int], tuple[str, int, int]]]:
        """The versions that carry the key of a step and led to this one, newest first: where each is, and
        what it says of the step."""
        found = []
        for line, seq in self.entries(hashed):
            if self._led_here(line, seq):
                row = self.core.reader.row(line, seq)
                step = self.core.reader.head(row, seq).step
                if step is not None:
                    found.append(((line, seq), step))
        return found

    def entries(self, hashed: bytes) -> list[tuple[Line, int]]:
        """(line, seq) of the versions that carry the key, on whatever branch, newest first."""
        line, last = self._line, self._head.seq
        root = line.root
        # The tails first: folding moves keys from there into the index, never back, so that in this
        # order a key is seen at least once whatever happens in between.
        found: set[tuple[int, int]] = set()
        lines: dict[int, tuple[Line, int]] = {}
        while True:
            lines[line.id] = (line, last)
            found.update((line.id, seq) for seq in (self.core.tail_keys(line, last)).get(hashed, ()))
            if not line.parent:
                break
            line, last = self.core.reader.parent(line), line.parent_seq
        for id_, seq in self.core.backend.keyed(root, hashed):
            if id_ in lines and seq <= lines[id_][1]:
                found.add((id_, seq))
        entries = ((lines[id_][0], seq) for id_, seq in found)
        return sorted(entries, key=lambda entry: entry[1], reverse=True)

    def _led_here(self, line: Line, seq: int) -> bool:
        head = self._head
        return self.core.reader.contains(self._line, head.seq, head.segment, line, seq)

    def _rewind_past(self, line: Line, seq: int) -> Version:
        """The rewind that went back before the version: the past that it left still holds it."""
        reader, head = self.core.reader, self._head
        waiting = [(self._line, head.seq, head.segment)]
        seen: set[tuple[int, int]] = set()
        while waiting:
            stretches = list(reader.ancestry(*waiting.pop()))
            for stretch in reversed(stretches):
                rewind = stretch.line.id, stretch.segment
                if not stretch.segment or rewind in seen:
                    continue
                seen.add(rewind)
                before = stretch.segment - 1
                segment = self._segment(stretch.line, before)
                if reader.contains(stretch.line, before, segment, line, seq):
                    return (reader.version(stretch.line, stretch.segment, gone=True))[0]
                # What it left had perhaps been rewound itself.
                waiting.append((stretch.line, before, segment))
        return head.version

    def _segment(self, line: Line, seq: int) -> int:
        """The rewind that began the stretch in which a version lies, pruned or not; 0 if none did."""
        try:
            return (self.core.reader.load(line, seq)).snapshot.segment
        except VersionPrunedError:
            pass
        while seq > line.parent_seq:
            row = self.core.reader.row(line, seq)
            heads = read_tombstone(row.body).heads if row.kind == PRUNED else {}
            for index in sorted(heads, reverse=True):
                if row.first + index <= seq and records.read_head(heads[index]).kind == records.REWIND:
                    return row.first + index
            if row.kind == REWIND:
                return row.seq
            seq = row.first - 1
        return 0


def committed_under(thread: Thread, key: str, hashed: bytes | None = None) -> Version | None:
    """The version that a commit key made before; ``None``, and nothing changed, if it made none. The handle
    then stands on the newest version, without what was pending.

    Raises :class:`KeyReusedError` if that version was rewound past.
    """
    handle = thread.handle
    found = thread.core.find(thread.name)
    line = found.line if found else handle.line
    head = thread.core.head(found) if found else handle.head
    if line is None or head is None:
        return None
    version, rewind = KeyFinder(thread.core, line, head).version(hashed or key_hash(b"key", key))
    if version is None:
        return None
    if rewind is not None:
        raise KeyReusedError(
            f"the key {key!r} made {version}, which {rewind} went back before; use another key",
            key=key,
            version=version,
            rewind=rewind,
        )
    handle.drop_changes()
    thread.refresh()
    return version


# ── versions named by a framework, for adapters ──
# A framework may write a state of the same name again, on any branch: the newest version with the key counts.


def version_under(thread: Thread, key: str) -> Version | None:
    """The newest version of a thread, on whatever branch, that carries a key; ``None`` if none does, or if
    it has been pruned."""
    handle = thread.handle
    handle.load()
    line, head = handle.line, handle.head
    if line is None or head is None:
        return None
    if head.version.key == key:
        return head.version
    for owner, seq in KeyFinder(thread.core, line, head).entries(key_hash(b"key", key)):
        try:
            return (thread.core.reader.version(owner, seq))[0]
        except VersionPrunedError:
            continue
    return None


def commit_under(thread: Thread, key: str, metadata: Mapping[str, Any]) -> Version:
    """Make what is pending a version that carries a key, whether or not another one does.

    Raises :class:`ConflictError` if another writer was first.
    """
    handle = thread.handle
    handle.load()
    key = check_name(key, "key")
    try:
        return write(handle, metadata=metadata, key=key, key_hash=key_hash(b"key", key))
    except Landed as landed:
        made = landed.version
        if made.key == key and not handle.dirty:
            return made
        raise ConflictError(
            f"{thread.name!r} stands on {made}, whose answer had been lost; do it again from there",
            expected=None,
            actual=made,
        ) from None


def rewind_noted(thread: Thread, version: Version, metadata: Mapping[str, Any]) -> Version:
    """Go back to an earlier version, as ``rewind()`` does, with metadata that say what for."""
    handle = thread.handle
    handle.require_clean("rewind()")
    line, head = handle.require()
    reader = thread.core.reader
    owner = reader.owner(line, version.seq)
    loaded = reader.load(owner, version.seq)
    try:
        return write_rewind(handle, line, head, owner, version, loaded, metadata)
    except Landed as landed:
        raise ConflictError(
            f"{thread.name!r} stands on {landed.version}, whose answer had been lost; do it again from there",
            expected=None,
            actual=landed.version,
        ) from None
