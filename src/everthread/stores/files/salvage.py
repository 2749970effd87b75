"""What can still be read of a damaged file store: its journals, record by record, around the damage.

Folds and views are derived and aren't looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from everthread.codec import records
from everthread.errors import EverthreadError, StateCorruptedError, StoreUnavailableError
from everthread.stores.contract import ErasedKey, Line, Row, SealedRow, StoredEvent
from everthread.stores.files.catalog import Catalog
from everthread.stores.files.disk import Disk, intact, read_file
from everthread.stores.files.journal import check_items_name, items_name, segment_name, segments_in, was_used
from everthread.stores.files.json_form import (
    Part,
    Value,
    at_us,
    base64_bytes,
    read_body,
    read_items,
    read_pruned,
    read_record,
    read_value,
    row_kind,
)
from everthread.stores.files.layout import CATALOG, CONTENT, is_content_name, read_format
from everthread.stores.files.sealed import ErasureLedger
from everthread.stores.salvage_source import ChunkPlace, FoundRow, FoundStream, LineHint

_UID = re.compile(r".*-([0-9a-f]{32})")
#: A file, and where in it something begins and how long it is.
_Place = tuple[str, int, int]


class FileSalvageSource:
    """The journals of a store, its cells, events, sealed values and erasure ledger."""

    def __init__(self, root: str) -> None:
        self.problems: list[str] = []
        self._content = os.path.join(root, self._content_name(root))
        if not os.path.isdir(self._content):
            raise StoreUnavailableError(f"there is no store at {root}")
        self._catalog = Catalog(self._content, Disk(durable=False))
        with suppress(FileNotFoundError):
            # Unlike the store itself, this goes on after a record that may be the torn end of the file.
            for number, text in enumerate(read_file(self._catalog.path).splitlines(keepends=True), 1):
                self._catalog.take(number, text if intact(text) else b"")
        for number in self._catalog.damaged:
            self.problems.append(f"{self._catalog.path}:{number} doesn't fit its checksum")
        self._folders = dict(self._catalog.folders)
        self._rows: dict[int, list[tuple[int, _Place]]] = {}
        self._chunks: dict[int, list[ChunkPlace]] = {}
        #: Lines in whose journals something can't be read.
        self._holed: set[int] = set()
        self._adrift = bool(self.problems)

    def _content_name(self, root: str) -> str:
        """The folder of the content, by what the store says, else by what there is."""
        try:
            return read_format(root).content
        except (EverthreadError, OSError) as error:
            self.problems.append(str(error))
        try:
            names = [name for name in os.listdir(root) if is_content_name(name)]
        except OSError as error:
            raise StoreUnavailableError(f"{root} can't be read: {error.strerror}") from error
        names = [name for name in names if os.path.exists(os.path.join(root, name, CATALOG))]
        return max(names, key=lambda name: int(name.partition("-")[2] or 1), default=CONTENT)

    def close(self) -> None:
        self._catalog.close()

    # ── lines ────────────────────────────────────────────────────────────────────────────────

    def lines(self) -> Sequence[Line | LineHint]:
        catalog = self._catalog
        known = [line for number, line in sorted(catalog.lines.items()) if number not in catalog.purged]
        return sorted([*known, *self._unlisted()], key=lambda entry: entry.id)

    def _unlisted(self) -> Iterator[LineHint]:
        """Lines whose entry is damaged, found by their folders and the headers of their journals."""
        listed = set(self._folders.values())
        folders: list[str] = []
        with suppress(FileNotFoundError):
            folders = sorted({*os.listdir(os.path.join(self._content, "threads"))} - listed)
        missing = [n for n in range(1, self._catalog.ids + 1) if n not in self._catalog.lines]
        number = self._catalog.ids
        threads = os.path.join(self._content, "threads")
        if not self._catalog.damaged:
            folders = [folder for folder in folders if was_used(os.path.join(threads, folder))]
        for folder in folders:
            found = _UID.fullmatch(folder)
            if found is not None:
                # If only one id is missing, it is this line's: its forks name it by that.
                number = missing[0] if len(missing) == len(folders) == 1 else number + 1
                self._folders[number] = folder
                header = self._header(folder)
                names: tuple[tuple[str, str], ...] = ()
                if isinstance(header.get("space"), str) and isinstance(header.get("name"), str):
                    names = ((header["space"], header["name"]),)
                self._adrift = True
                yield LineHint(number, (bytes.fromhex(found[1]),), names)

    def _header(self, folder: str) -> dict[str, Any]:
        path = os.path.join(self._content, "threads", folder)
        for first in segments_in(os.listdir(path)):
            with open(os.path.join(path, segment_name(first)), "rb") as file:
                fields = _fields(file.readline())
            if fields.get("everthread") == "journal":
                return fields
        return {}

    # ── versions ─────────────────────────────────────────────────────────────────────────────

    def rows(self, line: int) -> Sequence[tuple[int, object]]:
        if line not in self._rows:
            self._read(line)
        return self._rows[line]

    def chunks(self, line: int) -> Sequence[ChunkPlace]:
        self.rows(line)
        return self._chunks[line]

    def _read(self, line: int) -> None:
        """Look through the journal of a line once."""
        rows: list[tuple[int, _Place]] = []
        chunks: list[ChunkPlace] = []
        self._rows[line], self._chunks[line] = rows, chunks
        folder = os.path.join(self._content, "threads", self._folders.get(line, ""))
        try:
            segments = segments_in(os.listdir(folder))
        except OSError as error:
            self.problems.append(f"{folder} can't be read: {error.strerror}")
            self._holed.add(line)
            return
        for first in segments:
            path = os.path.join(folder, segment_name(first))
            offset = 0
            for number, text in enumerate(read_file(path).splitlines(keepends=True), 1):
                fields = _fields(text)
                if not fields:
                    self.problems.append(f"{path}:{number} doesn't fit its checksum")
                    self._holed.add(line)
                elif "seq" in fields:
                    with suppress(StateCorruptedError, ValueError):
                        seq, named, parts, gone = _outline(text, path)
                        rows.append((seq, (path, offset, len(text))))
                        apart = os.path.join(folder, named)
                        for part in parts:
                            place = (apart, part.start, part.length)
                            chunks.append(ChunkPlace(part.log, part.position, part.count, place))
                        chunks += [ChunkPlace(*each, None, stub=True) for each in gone]
                offset += len(text)
        rows.sort()

    def relic(self, place: Any) -> FoundRow | None:
        text = _piece(place)
        try:
            if not intact(text):
                return None
            if _fields(text).get("kind") == "pruned":
                return FoundRow(read_pruned(text, place[0]).row())
            record = read_record(text, place[0])
            body, digest = read_body(text, place[0]), bytes.fromhex(record.hash)
        except (StateCorruptedError, ValueError):
            return None
        return FoundRow(Row(record.seq, record.seq, row_kind(record), digest, body))

    def chunk(self, place: Any) -> bytes:
        text = _piece(place)
        try:
            return records.compress(read_items(text, place[0])[0]) if intact(text) else b""
        except StateCorruptedError:
            return b""

    @property
    def outdated(self) -> bool:
        # No older copy of a damaged file is ever read in its place.
        return False

    def unaccounted(self, line: int) -> bool:
        # A damaged journal affects its own line, a damaged catalog all of them.
        return self._adrift or line in self._holed

    # ── what isn't threads ───────────────────────────────────────────────────────────────────

    def _files(self, folder: str, ending: str) -> Iterator[tuple[str, bytes]]:
        for path, _, names in os.walk(os.path.join(self._content, folder)):
            for name in sorted(names):
                if name.endswith(ending) and not name.startswith("."):
                    whole = os.path.join(path, name)
                    try:
                        yield whole, read_file(whole)
                    except OSError as error:
                        self.problems.append(f"{whole} can't be read: {error.strerror}")

    def erasures(self) -> Sequence[ErasedKey]:
        ledger = ErasureLedger(self._content, Disk(durable=False))
        try:
            return ledger.sound()
        except OSError as error:
            self.problems.append(f"{ledger.path} can't be read: {error.strerror}")
            return []
        finally:
            ledger.close()

    def sealed(self) -> Iterator[SealedRow]:
        for path, text in self._files("sealed", ".json"):
            fields = _fields(text)
            try:
                yield (
                    bytes.fromhex(fields["value"]),
                    base64_bytes(fields["keys"]),
                    base64_bytes(fields["data"]),
                )
            except (KeyError, TypeError, ValueError):
                self.problems.append(f"the personal value {path} is damaged")

    def cells(self) -> Iterator[tuple[str, str, bytes, int]]:
        for path, text in self._files("cells", ".json"):
            fields = _fields(text)
            if fields and "name" not in fields:
                continue
            try:
                value = read_value(msgspec.convert(fields["value"], Value))
                yield fields["space"], fields["name"], value, fields["written_us"]
            except (KeyError, msgspec.ValidationError, StateCorruptedError):
                self.problems.append(f"the cell {path} is damaged")

    def streams(self) -> Iterator[FoundStream]:
        for path, text in self._files("events", ".jsonl"):
            header: dict[str, Any] = {}
            events: list[StoredEvent] = []
            for number, line in enumerate(text.splitlines(keepends=True), 1):
                fields = _fields(line)
                try:
                    if fields.get("everthread") == "events":
                        header = fields
                    elif fields:
                        events.extend(_events(fields))
                    else:
                        raise ValueError(path)
                except (KeyError, TypeError, ValueError, msgspec.ValidationError, StateCorruptedError):
                    self.problems.append(f"{path}:{number} doesn't fit its checksum")
            if not header:
                self.problems.append(f"{path} doesn't say which stream it is")
                continue
            yield FoundStream(header["space"], header["stream"], header["after"] + 1, events)


def _outline(text: bytes, path: str) -> tuple[int, str, list[Part], list[tuple[str, int, int]]]:
    """Of a journal's record: seq, file of items, what that holds, and what was dropped."""
    if _fields(text).get("kind") == "pruned":
        pruned = read_pruned(text, path)
        return pruned.seq, check_items_name(pruned.items) if pruned.items else "", pruned.apart, pruned.gone
    record = read_record(text, path)
    return record.seq, items_name(record.seq, bytes.fromhex(record.hash)), record.apart, []


def _fields(text: bytes) -> dict[str, Any]:
    """What a record holds; nothing if it doesn't match its checksum."""
    if not intact(text):
        return {}
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _piece(place: _Place) -> bytes:
    path, start, length = place
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(length)
    except OSError:
        return b""


def _events(fields: dict[str, Any]) -> Iterator[StoredEvent]:
    for seq, event in enumerate(fields["events"], fields["seq"]):
        body = read_value(msgspec.convert(event.get("data", {}), Value))
        yield StoredEvent(seq, at_us(event["at"]), event["type"], event.get("agent"), body)
