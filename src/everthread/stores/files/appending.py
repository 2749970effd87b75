"""Rows on their way into journals: made ready before anybody waits, written together, synced together."""

from __future__ import annotations

import os

from msgspec import Struct

from everthread.stores.contract import NewRow, Row
from everthread.stores.files.disk import Disk
from everthread.stores.files.parsing import Entry, Spot, items_name
from everthread.stores.files.rendering import Part, render, render_items
from everthread.stores.files.sealed import SealedValues
from everthread.stores.files.track import Track


class Prepared(Struct):
    """A row on its way to the disk: its line of the journal, and the file of items that stand apart."""

    row: NewRow
    text: bytes
    items: bytes
    parts: list[Part]


def prepare(row: NewRow, *, durable: bool) -> Prepared:
    """Everything about a row that needs no disk."""
    items, parts = render_items(row.chunks) if row.chunks else (b"", [])
    return Prepared(row, render(row, durable=durable, parts=parts), items, parts)


def write_extras(folder: str, prepared: Prepared, sealed: SealedValues, disk: Disk) -> None:
    """What a row refers to is durable before the row is."""
    row = prepared.row
    if row.sealed:
        sealed.put(row.sealed)
    if prepared.items:
        disk.write_new(os.path.join(folder, items_name(row.seq, row.hash)), prepared.items)
        disk.sync_folder(folder)


class Batch:
    """Rows of one line that are written together."""

    def __init__(self, track: Track) -> None:
        self.track = track
        #: What the next row has to build on.
        self.hash = track.hash
        #: Which of the rows that were handed in these are.
        self.indices: list[int] = []
        self._prepared: list[Prepared] = []
        self._entries: list[Entry] = []
        self._end = track.journal.end
        self._text = b""

    def add(self, prepared: Prepared, index: int) -> None:
        row, length = prepared.row, len(prepared.text)
        entry = Entry(row.seq, row.kind, row.hash, row.key, self._end, length, prepared.parts, None, row.body)
        if prepared.parts:
            entry.items = items_name(row.seq, row.hash)
        self._entries.append(entry)
        self._end = Spot(self._end.segment, self._end.offset + length)
        self._prepared.append(prepared)
        self.indices.append(index)
        self.hash = row.hash

    def newest(self) -> Row | None:
        """The row that another one would have had to build on."""
        if self._entries:
            return self.track.row((self._entries[-1], None))
        return self.track.found().newest

    def write(self, sealed: SealedValues, disk: Disk) -> None:
        """The first half: in the files, but not durable."""
        for prepared in self._prepared:
            if prepared.items or prepared.row.sealed:
                write_extras(self.track.folder, prepared, sealed, disk)
        file = self.track.journal.file
        file.prepare()
        self._text = b"".join(prepared.text for prepared in self._prepared)
        file.write(self._text)

    def sync(self) -> None:
        """The second half: now they count."""
        self.track.journal.file.sync(self._text)
        for entry in self._entries:
            self.track.journal.add(entry)
