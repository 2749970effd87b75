"""Cells and streams of events, in files.

A cell is a small register: one JSON file, replaced whole. A stream is a file of records; a record holds the
events that were emitted together:

    {"everthread":"events","format":1,"space":"","stream":"tasks","after":0,"sum":…}
    {"seq":1,"events":[{"at":…,"type":"task_created","agent":"a","data":{"framed":[{"id":7},…]}}],"sum":…}

What stands beside the data of an event in its frame is the checksum of its stream, type, agent and time.

Emitting reads the end of the file only. The first read of a process goes through the whole file and keeps in
memory where each event is, also by type and agent. Later reads fetch only what is asked for.
"""

from __future__ import annotations

import bisect
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from everthread.errors import LimitError, StateCorruptedError
from everthread.stores.contract import EVENT_SEQ_MAX, Cell, NewEvent, PutCell, StaleCell, StoredEvent
from everthread.stores.files.disk import (
    Disk,
    RecordFile,
    Replaced,
    encode_json,
    files_in,
    first_torn,
    intact,
    read_at,
    read_file,
    record_of,
    with_sum,
)
from everthread.stores.files.json_form import Value, at_us, read_value, time_text, write_value
from everthread.stores.files.layout import hashed_name, space_folder

CELLS = "cells"
_FLOOR = "revisions.json"
#: Spaces with this ending hold leases, which neither git nor a clone should keep.
_LEASES = "\0lease"


class _File(Struct, omit_defaults=True):
    """What a cell's file holds."""

    space: str
    name: str
    revision: int
    written_us: int
    value: Value


class _Floor(Struct):
    """The highest revision of any removed cell: new cells begin above it."""

    revisions_above: int


_decode_cell = msgspec.json.Decoder(_File).decode
_decode_floor = msgspec.json.Decoder(_Floor).decode


class Cells:
    """The cells of a content. Writers hold the store's lock."""

    def __init__(self, content: str, disk: Disk) -> None:
        self._folder = os.path.join(content, CELLS)
        self._disk = disk
        #: Which name a file belongs to, which never changes.
        self._names: dict[str, str] = {}

    def _path(self, space: str, name: str) -> str:
        return os.path.join(self._folder, space_folder(space), f"{hashed_name(space, name)}.json")

    def read(self, space: str, name: str, now_us: int) -> Cell | None:
        found = _read(self._path(space, name))
        return None if found is None else _cell(found, now_us)

    def list(
        self, space: str, prefix: str, after: str | None, limit: int, now_us: int
    ) -> list[tuple[str, Cell]]:
        folder = os.path.join(self._folder, space_folder(space))
        paths = {name: path for path in files_in(folder, ".json") if (name := self._name(path)) is not None}
        found: list[tuple[str, Cell]] = []
        for name in sorted(paths):
            if len(found) >= limit:
                break
            if name.startswith(prefix) and (after is None or name > after):
                cell = _read(paths[name])
                if cell is not None:
                    found.append((name, _cell(cell, now_us)))
        return found

    def _name(self, path: str) -> str | None:
        if path not in self._names:
            found = _read(path)
            if found is None:
                return None
            self._names[path] = found.name
        return self._names[path]

    # ── writing: the caller holds the store's lock ───────────────────────────────────────────

    def swap(
        self, space: str, name: str, expected: int, value: bytes | None, now_us: int, durable: bool
    ) -> int:
        path = self._path(space, name)
        found = _read(path)
        if (0 if found is None else found.revision) != expected:
            raise StaleCell(None if found is None else _cell(found, now_us))
        if value is None:
            if found is not None:
                self._raise_floor(expected)
                os.unlink(path)
                self._disk.sync_folder(os.path.dirname(path))
            return 0
        revision = (expected if found is not None else self._floor()) + 1
        self._make_folder(space, os.path.dirname(path))
        self._write(path, _File(space, name, revision, now_us, write_value(value)), durable)
        return revision

    def _make_folder(self, space: str, folder: str) -> None:
        self._disk.make_folder(folder)
        ignore = os.path.join(folder, ".gitignore")
        if space.endswith(_LEASES) and not os.path.lexists(ignore):
            self._disk.write_new(ignore, b"*\n")

    def _write(self, path: str, file: _File, durable: bool) -> None:
        self._disk.replace(path, with_sum(encode_json(file)), durable=durable)

    def _floor(self) -> int:
        path = os.path.join(self._folder, _FLOOR)
        try:
            record = read_file(path)
        except FileNotFoundError:
            return 0
        try:
            return _decode_floor(record if intact(record) else b"").revisions_above
        except msgspec.MsgspecError as error:
            raise StateCorruptedError(f"{path} is damaged", where=path) from error

    def _raise_floor(self, revision: int) -> None:
        if revision > self._floor():
            record = with_sum(encode_json(_Floor(revision)))
            self._disk.replace(os.path.join(self._folder, _FLOOR), record)

    # ── the whole ────────────────────────────────────────────────────────────────────────────

    def highest(self) -> int:
        """The highest revision that any cell has or had."""
        return max([self._floor(), *(found.revision for path in self._every() if (found := _read(path)))])

    def raise_all(self, above: int) -> None:
        """Raise all revisions, so that no cell gets one again that it had before a restore."""
        above = max(above, self.highest())
        self._disk.make_folder(self._folder)
        for path in self._every():
            found = _read(path)
            if found is not None:
                found.revision = above + 1
                self._write(path, found, True)
        self._raise_floor(above + 1)

    def put(self, cell: PutCell) -> None:
        """Write a cell, after :meth:`raise_all`."""
        path = self._path(cell.space, cell.name)
        found = _read(path)
        revision = found.revision if found is not None else self._floor() + 1
        self._make_folder(cell.space, os.path.dirname(path))
        value = write_value(cell.value)
        self._write(path, _File(cell.space, cell.name, revision, cell.written_us, value), True)

    def _every(self) -> Iterator[str]:
        with suppress(FileNotFoundError, NotADirectoryError):
            for space in sorted(os.listdir(self._folder)):
                yield from files_in(os.path.join(self._folder, space), ".json")

    def check(self) -> Iterator[str]:
        """What is wrong with the files."""
        try:
            self._floor()
        except StateCorruptedError as error:
            yield str(error)
        for path in self._every():
            try:
                found = _read(path)
                if found is not None:
                    read_value(found.value)
            except StateCorruptedError as error:
                yield str(error)


def _read(path: str) -> _File | None:
    try:
        record = read_file(path)
    except FileNotFoundError:
        return None
    try:
        return _decode_cell(record if intact(record) else b"")
    except msgspec.MsgspecError as error:
        raise StateCorruptedError(f"the cell {path} is damaged", where=path) from error


def _cell(file: _File, now_us: int) -> Cell:
    return Cell(read_value(file.value), file.revision, file.written_us, now_us)


# ── streams of events ──────────────────────────────────────────────────────────────────────────────


_EVENTS = "events"
_EVENTS_FORMAT = 1
_TAIL_BYTES = 64 * 1024
#: How many streams stay in memory, each with its file open.
_INDEXES_MAX = 64


class _Event(Struct, omit_defaults=True):
    at: str | int
    type: str
    agent: str | None = None
    data: Value = Value()


class _Record(Struct, omit_defaults=True):
    """The header of a stream, or events that were emitted together."""

    everthread: str = ""
    stream: str = ""
    after: int = 0
    seq: int = 0
    events: list[_Event] = []

    @property
    def last(self) -> int:
        """The last seq up to this record."""
        return self.seq + len(self.events) - 1 if self.seq else self.after


_decode_events = msgspec.json.Decoder(_Record).decode


class _Index:
    """Where the events of a stream are; the one at index ``i`` has the seq ``after + 1 + i``."""

    def __init__(self, path: str, disk: Disk) -> None:
        self.file = RecordFile(path, disk)
        self.after = 0
        self._offsets = array("q")
        self._lengths = array("q")
        self._times = array("q")
        #: The latest time up to each event, which only grows, and how far a time has lain below it.
        self._peaks = array("q")
        self._late_us = 0
        self._types: dict[str, array[int]] = {}
        self._agents: dict[str, array[int]] = {}

    def grow(self) -> None:
        while found := self.file.grow():
            for offset, record, good in found:
                if not good:
                    raise self.file.damage(offset)
                parsed = _parsed(record, self.file.path)
                if parsed.seq:
                    if parsed.seq != self.after + len(self._offsets) + 1:
                        raise StateCorruptedError(f"{self.file.path} has a gap before {parsed.seq}")
                    self._take(parsed.events, offset, len(record))
                else:
                    self.after = parsed.after

    def _take(self, events: list[_Event], offset: int, length: int) -> None:
        for event in events:
            index, at = len(self._offsets), at_us(event.at)
            peak = max(self._peaks[-1], at) if index else at
            self._late_us = max(self._late_us, peak - at)
            self._offsets.append(offset)
            self._lengths.append(length)
            self._times.append(at)
            self._peaks.append(peak)
            self._types.setdefault(event.type, array("q")).append(index)
            if event.agent is not None:
                self._agents.setdefault(event.agent, array("q")).append(index)

    def find(
        self, after: int, type_: str | None, agent: str | None, since_us: int | None, until_us: int | None
    ) -> Iterator[int]:
        """The indices of the events that fit, in order."""
        start, stop = max(0, after - self.after), len(self._offsets)
        if since_us is not None:
            start = max(start, bisect.bisect_left(self._peaks, since_us))
        if until_us is not None:
            stop = bisect.bisect_right(self._peaks, until_us + self._late_us)
        indices: Sequence[int] = range(start, stop)
        others: Sequence[int] | None = None
        if type_ is not None:
            indices = self._types.get(type_, array("q"))
        if agent is not None:
            mine = self._agents.get(agent, array("q"))
            indices, others = (mine, None) if type_ is None else (indices, mine)
        for index in _between(indices, start, stop):
            fits = (since_us is None or self._times[index] >= since_us) and (
                until_us is None or self._times[index] <= until_us
            )
            if fits and (others is None or _contains(others, index)):
                yield index

    def read(self, indices: Iterable[int]) -> list[StoredEvent]:
        found: list[StoredEvent] = []
        known: tuple[int, _Record] = (-1, _Record())
        for index in indices:
            offset = self._offsets[index]
            if known[0] != offset:
                known = (offset, _parsed(self.file.record_at(offset, self._lengths[index]), self.file.path))
            seq = self.after + 1 + index
            event = known[1].events[seq - known[1].seq]
            found.append(
                StoredEvent(seq, self._times[index], event.type, event.agent, read_value(event.data))
            )
        return found


def _between(indices: Sequence[int], start: int, stop: int) -> Iterator[int]:
    for place in range(bisect.bisect_left(indices, start), bisect.bisect_left(indices, stop)):
        yield indices[place]


def _contains(indices: Sequence[int], index: int) -> bool:
    place = bisect.bisect_left(indices, index)
    return place < len(indices) and indices[place] == index


def _parsed(record: bytes, path: str) -> _Record:
    try:
        return _decode_events(record)
    except msgspec.MsgspecError as error:
        raise StateCorruptedError(f"{path} holds a record that isn't one of events", where=path) from error


class EventStreams:
    """The streams of a content. Not for two threads at once."""

    def __init__(self, content: str, disk: Disk) -> None:
        self._folder = os.path.join(content, _EVENTS)
        self._disk = disk
        self._indexes: dict[str, _Index] = {}
        #: Which stream a file belongs to, which never changes.
        self._names: dict[str, str] = {}

    def _path(self, space: str, stream: str) -> str:
        return os.path.join(self._folder, space_folder(space), f"{hashed_name(space, stream)}.jsonl")

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def read(self, space: str, stream: str, after: int, limit: int, **query: Any) -> list[StoredEvent]:
        path = self._path(space, stream)
        for _ in range(5):
            index = self._indexes.get(path)
            if index is None:
                if len(self._indexes) >= _INDEXES_MAX:
                    self._forget(next(iter(self._indexes)))
                index = self._indexes[path] = _Index(path, self._disk)
            try:
                index.grow()
                return index.read(islice(index.find(after, **query), max(limit, 0)))
            except Replaced:
                self._forget(path)
            except FileNotFoundError:
                self._forget(path)
                return []
        return []

    def list(self, space: str, prefix: str, after: str | None, limit: int) -> list[tuple[str, int]]:
        folder = os.path.join(self._folder, space_folder(space))
        paths = {self._name(path): path for path in files_in(folder, ".jsonl")}
        found: list[tuple[str, int]] = []
        for name in sorted(paths):
            if len(found) >= limit:
                break
            if name and name.startswith(prefix) and (after is None or name > after):
                with suppress(FileNotFoundError):
                    _, record = _end(paths[name])
                    if record is not None and record.seq:
                        found.append((name, record.last))
        return found

    def _name(self, path: str) -> str:
        if path not in self._names:
            with suppress(OSError), open(path, "rb") as file:
                header = file.readline()
                if intact(header):
                    self._names[path] = _parsed(header, path).stream
        return self._names.get(path, "")

    # ── writing: the caller holds the store's lock ───────────────────────────────────────────

    def emit(self, space: str, stream: str, events: Sequence[NewEvent]) -> int:
        assert events, "at least one event"
        path = self._path(space, stream)
        durable = self._disk.durable
        try:
            end, record = _end(path)
        except FileNotFoundError:
            end, record = 0, None
        if record is None:
            self._create(path, space, stream)
            end, record = _end(path)
        assert record is not None
        if record.last + len(events) > EVENT_SEQ_MAX:
            raise LimitError(f"the stream {stream!r} is full; go on in another one")
        first = record.last + 1
        found = [
            _Event(time_text(event.at_us), event.type, event.agent, write_value(event.body))
            for event in events
        ]
        file = RecordFile(path, self._disk, end)
        try:
            file.grow()
            file.prepare()
            file.append(with_sum(encode_json(_Record(seq=first, events=found)), durable=durable))
        finally:
            file.close()
        return first

    def _create(self, path: str, space: str, stream: str) -> None:
        """A file without events."""
        self._disk.make_folder(os.path.dirname(path))
        self._disk.replace(path, _header(space, stream, 0))

    def rewrite(self, space: str, stream: str, bodies: Mapping[int, bytes]) -> int:
        """Other bodies for events that are there; how many these were. The file is replaced whole."""
        path = self._path(space, stream)
        rewritten = 0
        parts: list[bytes] = []
        if not os.path.lexists(path):
            return 0
        for parsed, record in self._records(path):
            changed = {seq for seq in range(parsed.seq, parsed.last + 1) if seq in bodies}
            if not parsed.seq or not changed:
                parts.append(record)
                continue
            for seq in changed:
                parsed.events[seq - parsed.seq].data = write_value(bodies[seq])
            parts.append(with_sum(encode_json(parsed), durable=self._disk.durable))
            rewritten += len(changed)
        if rewritten:
            self._disk.replace(path, b"".join(parts))
            self._forget(path)
        return rewritten

    def _whole(self, path: str) -> bytes:
        """All records of a stream, after a torn end was put aside."""
        end, _ = _end(path)
        file = RecordFile(path, self._disk, end)
        try:
            file.grow()
            file.prepare()
            return file.read(0, file.end)
        finally:
            file.close()

    def trim(self, space: str, stream: str, up_to: int) -> int:
        """Without the events up to this seq; how many these were. The file is replaced whole."""
        path = self._path(space, stream)
        try:
            _, record = _end(path)
        except FileNotFoundError:
            return 0
        if record is None or not record.seq:
            return 0
        up_to = min(up_to, record.last)
        parts, trimmed = [_header(space, stream, up_to)], 0
        for parsed, text in self._records(path) if up_to < record.last else ():
            gone = min(max(up_to + 1 - parsed.seq, 0), len(parsed.events)) if parsed.seq else 0
            trimmed += gone
            if gone < len(parsed.events):
                rest = _Record(seq=parsed.seq + gone, events=parsed.events[gone:])
                parts.append(with_sum(encode_json(rest), durable=self._disk.durable) if gone else text)
        if up_to == record.last:
            trimmed = up_to - self._after(path)
        if trimmed:
            self._disk.replace(path, b"".join(parts))
            self._forget(path)
        return trimmed

    def _after(self, path: str) -> int:
        """The seq before the first event of a stream."""
        with open(path, "rb") as file:
            header = file.readline()
        if not intact(header):
            raise StateCorruptedError(f"{path} is damaged; see store.verify()", where=path)
        return _parsed(header, path).after

    def _records(self, path: str) -> Iterator[tuple[_Record, bytes]]:
        """All records of a stream, the header first, parsed and as they are."""
        for record in self._whole(path).splitlines(keepends=True):
            if not intact(record):
                raise StateCorruptedError(f"{path} is damaged; see store.verify()", where=path)
            yield _parsed(record, path), record

    # ── the whole ────────────────────────────────────────────────────────────────────────────

    def check(self) -> Iterator[str]:
        """What is wrong with the files."""
        with suppress(FileNotFoundError):
            for space in sorted(os.listdir(self._folder)):
                for path in files_in(os.path.join(self._folder, space), ".jsonl"):
                    index = _Index(path, self._disk)
                    try:
                        index.grow()
                        index.read(range(len(index._offsets)))
                    except StateCorruptedError as error:
                        yield str(error)
                    except (Replaced, FileNotFoundError):
                        continue
                    finally:
                        index.file.close()

    def _forget(self, path: str) -> None:
        index = self._indexes.pop(path, None)
        if index is not None:
            index.file.close()

    def close(self) -> None:
        for path in list(self._indexes):
            self._forget(path)


def _header(space: str, stream: str, after: int) -> bytes:
    """The first record of a stream whose events begin after this seq."""
    fields = {
        "everthread": "events",
        "format": _EVENTS_FORMAT,
        "space": space,
        "stream": stream,
        "after": after,
    }
    return record_of(fields)


def _end(path: str) -> tuple[int, _Record | None]:
    """Where the sound part of a stream ends, and its last record; read from the end of the file."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(file).st_size
        length = _TAIL_BYTES
        while True:
            start = max(0, size - length)
            records = read_at(file, start, size - start).splitlines(keepends=True)
            if start:
                # The first one may be only the end of a record.
                start += len(records.pop(0))
            torn = first_torn(records, [intact(record) for record in records])
            if torn:
                return start + sum(map(len, records[:torn])), _parsed(records[torn - 1], path)
            if not start:
                return 0, None
            length *= 4
    finally:
        os.close(file)
