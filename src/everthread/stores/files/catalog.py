"""The list of all lines that there are or were: ``lines.jsonl``.

    {"line":1,"uid":…,"space":"","name":"invoice-bot","folder":…,"start":…,"sum":…}
    {"deleted":1,"sum":…}

A line exists from the moment its entry is here, whole. Entries are only added. If the end of the list is
missing, the folders show it: one that was written to after it was created had an entry.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import msgspec
from msgspec import Struct

from everthread.errors import StateCorruptedError
from everthread.stores.contract import Line
from everthread.stores.files.disk import Disk, RecordFile, Replaced, encode_json, with_sum
from everthread.stores.files.journal import first_header, was_used
from everthread.stores.files.json_form import base64_bytes, base64_text
from everthread.stores.files.layout import CATALOG, check_folder_name, thread_folder


class _Parent(Struct):
    """The version that a line was forked from."""

    line: int
    seq: int
    segment: int
    hash: str


class _Entry(Struct, omit_defaults=True):
    """One record of the file: a new line, or what became of one."""

    line: int = 0
    uid: str = ""
    space: str | None = None
    name: str = ""
    folder: str = ""
    start: str = ""
    root: int = 0
    parent: _Parent | None = None
    counts: dict[str, int] = {}
    tags: dict[str, str] = {}
    #: This line was deleted; what it held is removed; ids begin above this one.
    deleted: int = 0
    purged: int = 0
    ids: int = 0


_decode = msgspec.json.Decoder(_Entry).decode


class Catalog:
    """The file, read as far as it goes. Not for two threads at once."""

    def __init__(self, content: str, disk: Disk) -> None:
        self.path = os.path.join(content, CATALOG)
        self._disk = disk
        self._clear()

    def _clear(self) -> None:
        self._file = RecordFile(self.path, self._disk)
        self.lines: dict[int, Line] = {}
        self.folders: dict[int, str] = {}
        self.tags: dict[int, dict[str, bytes]] = {}
        self.uids: dict[bytes, int] = {}
        self.children: dict[int, list[int]] = {}
        #: Lines by their root.
        self.families: dict[int, list[int]] = {}
        self.purged: set[int] = set()
        #: The numbers of records that can't be read.
        self.damaged: list[int] = []
        self._names: dict[tuple[str, str], int] = {}
        self._sorted: dict[str, list[str]] = {}
        self._ids = 0
        self._number = 0
        #: How much was torn at the end of the list when the folders were last compared with it.
        self._torn_checked = -1

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def refresh(self) -> None:
        """Read what was added since. Raises :class:`FileNotFoundError` if the file was removed."""
        for _ in range(3):
            try:
                self._grow()
                if self._torn_checked != self._file.torn_bytes:
                    self._check_folders()
                return
            except Replaced:
                self.close()
                self._clear()
            except FileNotFoundError:
                # Nothing was ever created here, or this content has been replaced by a backup, or the list is
                # lost: then the folders tell.
                if self._file.end or not os.path.isdir(os.path.dirname(self.path)):
                    raise
                if self._torn_checked < 0:
                    self._check_folders()
                return

    def _grow(self) -> None:
        while found := self._file.grow():
            for _, record, good in found:
                self._number += 1
                self._take(record if good else b"")

    def _check_folders(self) -> None:
        """Whether all threads that were ever written to are in the list."""
        unlisted = self._unlisted()
        if len(unlisted) > len(self.damaged):
            # Read on first: another process may have added them meanwhile.
            with suppress(FileNotFoundError):
                self._grow()
            unlisted.difference_update(self.folders.values())
            for _ in range(len(unlisted) - len(self.damaged)):
                self._number += 1
                self.damaged.append(self._number)
                self._ids += 1
                if self._file.torn_bytes:
                    self._file.keep_torn()
        self._torn_checked = self._file.torn_bytes

    def _unlisted(self) -> set[str]:
        """Folders that were written to after their line was created, but have no entry."""
        threads = os.path.join(os.path.dirname(self.path), "threads")
        names: set[str] = set()
        with suppress(FileNotFoundError):
            names = set(os.listdir(threads)).difference(self.folders.values())
        return {name for name in names if was_used(os.path.join(threads, name))}

    def take(self, number: int, record: bytes) -> None:
        """Add a record that the caller has read; a damaged one is empty."""
        self._number = number
        self._take(record)

    def _take(self, record: bytes) -> None:
        try:
            entry = _decode(record)
            if entry.line:
                self._note(_line(entry), entry)
            elif entry.deleted:
                self._note_deleted(entry.deleted)
            elif entry.purged:
                self.purged.add(entry.purged)
            self._ids = max(self._ids, entry.line, entry.ids)
        except (msgspec.MsgspecError, ValueError, KeyError, StateCorruptedError):
            self.damaged.append(self._number)
            # It may have been the entry of a line: don't give its id to another one.
            self._ids += 1

    def _note(self, line: Line, entry: _Entry) -> None:
        self.folders[line.id] = check_folder_name(entry.folder)
        self.tags[line.id] = {name: base64_bytes(value) for name, value in entry.tags.items()}
        self.lines[line.id] = line
        self.uids[line.uid] = line.id
        self.families.setdefault(line.root, []).append(line.id)
        if line.parent:
            self.children.setdefault(line.parent, []).append(line.id)
        self._names[line.space, line.name] = line.id
        if line.space in self._sorted:
            bisect.insort(self._sorted[line.space], line.name)

    def _note_deleted(self, id_: int) -> None:
        line = self.lines[id_]
        self.lines[id_] = msgspec.structs.replace(line, deleted=True)
        if self._names.get((line.space, line.name)) == id_:
            del self._names[line.space, line.name]
            names = self._sorted.get(line.space)
            if names is not None:
                del names[bisect.bisect_left(names, line.name)]

    def find(self, space: str, name: str) -> Line | None:
        """The live line of this name. Raises :class:`StateCorruptedError` if its entry may be damaged."""
        found = self._names.get((space, name))
        if found is None and self.damaged and self._may_hide(lambda found: found == (space, name)):
            raise self.damage()
        return None if found is None else self.lines[found]

    def _may_hide(self, wanted: Callable[[tuple[str, str]], bool]) -> bool:
        """Whether a folder without an entry may belong to such a line."""
        threads = os.path.join(os.path.dirname(self.path), "threads")
        claimed = set(self.folders.values())
        for folder in os.listdir(threads):
            if folder not in claimed:
                found = first_header(os.path.join(threads, folder))
                if found is None or wanted(found):
                    return True
        return False

    def names(self, space: str, prefix: str, after: str | None) -> Iterator[str]:
        """The names of live lines in code point order, from the first one > ``after`` that has the prefix."""
        names = self._sorted.get(space)
        if names is None:
            names = self._sorted[space] = sorted(name for owner, name in self._names if owner == space)
        start = bisect.bisect_left(names, prefix)
        if after is not None:
            start = max(start, bisect.bisect_right(names, after))
        for name in names[start:]:
            if not name.startswith(prefix):
                return
            yield name

    def hides(self, space: str, prefix: str) -> bool:
        """Whether a line whose name has this prefix may be missing from the list."""
        return bool(self.damaged) and self._may_hide(
            lambda found: found[0] == space and found[1].startswith(prefix)
        )

    def unreadable(self) -> list[str]:
        """What is damaged here, in words."""
        if self.damaged and not os.path.exists(self.path):
            return [f"{self.path} is missing, and there are {len(self.damaged)} threads that stood in it"]
        return [f"{self.path}:{number} doesn't fit its checksum" for number in self.damaged]

    def damage(self) -> StateCorruptedError:
        where = f"{self.path}:{self.damaged[0]}"
        return StateCorruptedError(
            f"{where} can't be read, and may have been the entry of this thread; keep a copy of the file, "
            "and see what store.verify() says",
            where=where,
        )

    # ── writing: the caller holds the store's lock, and has refreshed ────────────────────────

    def next_line(self, line: Line) -> Line:
        """The line with an id of its own."""
        id_ = self._ids + 1
        return msgspec.structs.replace(line, id=id_, root=line.root or id_)

    def add(self, line: Line, tags: Mapping[str, bytes]) -> None:
        """From now on the line exists."""
        parent = None
        if line.parent:
            parent = _Parent(line.parent, line.parent_seq, line.parent_segment, line.parent_hash.hex())
        self._append(
            _Entry(
                line=line.id,
                uid=line.uid.hex(),
                space=line.space,
                name=line.name,
                folder=thread_folder(line.name, line.uid),
                start=line.start_hash.hex(),
                root=0 if line.root == line.id else line.root,
                parent=parent,
                counts=line.counts,
                tags={name: base64_text(value) for name, value in tags.items()},
            )
        )

    def delete(self, line: int) -> None:
        """From now on the name is free."""
        self._append(_Entry(deleted=line))

    def purge(self, line: int) -> None:
        """From now on nobody looks for what the line held."""
        self._append(_Entry(purged=line))

    def reserve(self, ids: int) -> None:
        """Lines made from now on have higher ids."""
        self._append(_Entry(ids=ids))

    @property
    def ids(self) -> int:
        """The highest id that was ever given."""
        return self._ids

    def _append(self, entry: _Entry) -> None:
        new = not os.path.exists(self.path)
        if new:
            self._disk.write_new(self.path, b"")
            self._disk.sync_folder(os.path.dirname(self.path))
            self._file.grow()
        self._file.prepare()
        record = with_sum(encode_json(entry), durable=self._disk.durable)
        self._file.append(record)
        self._number += 1
        self._take(record)

    def close(self) -> None:
        self._file.close()


def _line(entry: _Entry) -> Line:
    parent = entry.parent
    if entry.space is None:
        raise ValueError("no namespace")
    return Line(
        id=entry.line,
        uid=bytes.fromhex(entry.uid),
        space=entry.space,
        name=entry.name,
        root=entry.root or entry.line,
        parent=parent.line if parent else 0,
        parent_seq=parent.seq if parent else 0,
        parent_segment=parent.segment if parent else 0,
        parent_hash=bytes.fromhex(parent.hash) if parent else b"",
        start_hash=bytes.fromhex(entry.start),
        counts=entry.counts,
    )
