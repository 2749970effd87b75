"""What a store holds, on its way out: ``store.export()``, and the reading half of ``copy_to()``.

A namespace is a space, and so is what belongs to it and no public name reaches: its name, NUL, and what it is
for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from everthread.arguments import check_path, check_progress
from everthread.codec import archive, records
from everthread.codec.archive import (
    CellEntry,
    Entry,
    ErasedEntry,
    EventsEntry,
    GoneEntry,
    Header,
    KeysEntry,
    LineEntry,
    PrunedEntry,
    SealedEntry,
    VersionsEntry,
)
from everthread.codec.seal import SealedRef, references
from everthread.errors import EverthreadError, StateCorruptedError, StoreBusyError, VersionPrunedError
from everthread.events.saved import CONSUMERS, TRIMS
from everthread.keyring.parcel import KeyParcel, ParcelSecret
from everthread.maintenance.key_needs import KeyCounter
from everthread.maintenance.redaction_record import NAME as REDACTIONS
from everthread.maintenance.redaction_record import redactions_space
from everthread.stores.contract import SEAL_SEQ, Backend, Line, split_keys
from everthread.threads.reports import Progress
from everthread.threads.sync.core import Core
from everthread.threads.sync.fallback import newest_seq
from everthread.transfer.archive_file import ArchiveWriter
from everthread.transfer.report import ExportReport
from everthread.transfer.thread_reader import Changed, ThreadReader

#: Where a deleted line lives in a store that it was brought to: its forks need it, nobody finds it.
_GONE = "\0gone\0"
#: Named after the keys of persons: under another name nobody would find these.
USERS = "\0users"
JOURNALS = "\0journal"
INBOXES = "\0inbox"
FILES = "\0files"
#: What is called after the uid of its thread.
COMPANIONS = (JOURNALS, INBOXES, FILES)
#: When persons are to be erased: each store's own, and those that came to it.
LIFETIMES = "\0lifetimes"
#: Cells that hold facts which last; leases and heartbeats speak of processes here and now, and what
#: projections keep is made again.
#: How much goes into one record, about.
_BATCH_BYTES = 256 * 1024
_BATCH_VERSIONS = 64
_BATCH_EVENTS = 256
_PAGE = 200
#: Value ids that are remembered, so that what is referred to again and again goes along once.
REMEMBERED = 100_000
#: A line that is folded, pruned or deleted while it is read is read again so often.
_LOOKS = 5


def export(
    core: Core,
    path: str | os.PathLike[str],
    *,
    every: bool,
    progress: Progress | None,
    keys: str | bytes | None = None,
) -> ExportReport:
    """Write what a store holds into an archive at ``path``, which must not exist; with ``keys``, a secret,
    also the keys that it needs, under that."""
    place = check_path(path)
    check_progress(progress)
    secret = None if keys is None else ParcelSecret(keys)
    lent = 0
    file = ArchiveWriter(place)
    exporter = Exporter(core, every=every, progress=progress)
    counter = KeyCounter(core)
    try:
        header = exporter.header()
        file.add(header)
        for entry in exporter.entries():
            file.add(entry)
            for _, joined, _ in entry.rows if isinstance(entry, SealedEntry) else ():
                counter.add(split_keys(joined))
        if secret is not None and exporter.key_ids:
            parcels = core.vault.keyring.lend(exporter.key_ids)
            lent = sum(len(parcel.keys) for parcel in parcels)
            for parcel in parcels:
                for closed in _closed(secret, parcel, header.id):
                    file.add(closed)
        file.finish()
    finally:
        file.abandon()
    taken = exporter.taken
    return ExportReport(
        path=place,
        bytes=file.bytes,
        threads=taken.threads,
        versions=taken.versions,
        streams=taken.streams,
        events=taken.events,
        sealed=taken.sealed,
        keys=lent,
        skipped=tuple(taken.skipped),
        needs=counter.needs(),
    )


def _closed(secret: ParcelSecret, parcel: KeyParcel, archive: bytes) -> list[KeysEntry]:
    return list(secret.close([parcel], archive))


class Counts(msgspec.Struct):
    """What was taken out so far."""

    threads: int = 0
    versions: int = 0
    streams: int = 0
    events: int = 0
    sealed: int = 0
    skipped: list[str] = []


class Exporter:
    """Reads a store from its first line to its last event. Others may go on writing meanwhile: each thread
    comes as it stood at some moment, forks with all that they share."""

    def __init__(self, core: Core, *, every: bool, progress: Progress | None = None) -> None:
        self._core = core
        self._backend = core.backend
        self._every = every
        self._progress = progress
        self._total = 0
        self.taken = Counts()
        #: By line, up to which version it has gone out: a fork may have begun after that.
        self._tops: dict[int, int] = {}
        self._spaces: dict[str, None] = {core.space: None}
        self._sealed_before: dict[bytes, None] = {}
        #: The keys that what went out is sealed under.
        self.key_ids: set[bytes] = set()

    def _wanted(self, space: str) -> bool:
        return self._every or namespace_of(space) == self._core.space

    def header(self) -> Header:
        """What comes first; counts what there is to do."""
        if unreadable := self._backend.unreadable_lines():
            raise StateCorruptedError(
                f"threads are missing from the list of all threads, because it is damaged ({unreadable[0]}); "
                "nothing was taken out. verify() tells more, everthread.salvage() brings what is sound "
                "into a new store",
                where=self._backend.url,
            )
        versions = events = 0
        for line in self._backend.every_line():
            if self._wanted(line.space):
                self._spaces[line.space] = None
                if not line.deleted:
                    versions += newest_seq(self._backend, line) - line.parent_seq
        for space in self._spaces:
            for _, last in self._streams(space):
                events += last
        self._total = versions + events
        return Header(
            archive.FORMAT,
            self._core.runtime.random_bytes(16),
            self._core.runtime.now_us(),
            "everthread",
            [] if self._every else [self._core.space],
            versions,
            events,
        )

    def _tell(self) -> None:
        if self._progress is not None:
            done = self.taken.versions + self.taken.events
            self._total = max(self._total, done)
            self._progress(done, self._total)

    def entries(self) -> Iterator[Entry]:
        """Everything but the header and the end."""
        yield from self._erased()
        for line in self._backend.every_line():
            if self._wanted(line.space):
                self._spaces[line.space] = None
                if _is_record(line):
                    continue
                for entry in self._line(line):
                    yield entry
        for space in self._spaces:
            for name, last in self._streams(space):
                for entry in self._stream(space, name, last):
                    yield entry
        # A redaction is recorded before it is made: the record goes last, so that nothing goes without it.
        for namespace in dict.fromkeys(map(namespace_of, self._spaces)):
            found = self._backend.find(redactions_space(namespace), REDACTIONS)
            if found is not None:
                for entry in self._line(found.line):
                    yield entry
        for space in self._spaces:
            for entry in self._cells(space):
                yield entry
        # What there is to do was counted before, about.
        self._total = 0
        self._tell()

    def outline(self, target: Backend) -> Iterator[Entry]:
        """What there is, without the content of what the target doesn't have: so that conflicts are known
        before anything is moved."""
        for line in self._backend.every_line():
            if not self._wanted(line.space) or (line.deleted and not self._top(line)):
                continue
            yield self._told(line)
            if not target.capabilities.prune or target.line_by_uid(line.uid) is not None:
                for entry in self._versions(line, self._top(line)):
                    yield entry
        for space in self._spaces:
            for name, last in self._streams(space):
                if last_seq(target, space, name):
                    for entry in self._stream(space, name, last):
                        yield entry

    # ── lines ────────────────────────────────────────────────────────────────────────────────

    def _top(self, line: Line) -> int:
        """The newest version of its own; 0 if it has none."""
        rows = self._backend.scan(line.id, SEAL_SEQ - 1, 1)
        return rows[0].seq if rows else 0

    def _told(self, line: Line) -> LineEntry:
        parent = self._core.reader.parent(line) if line.parent else None
        return LineEntry(
            line.uid,
            line.space,
            line.name,
            line.deleted,
            line.start_hash,
            parent.uid if parent is not None else b"",
            line.parent_seq,
            line.parent_segment,
            line.parent_hash,
            line.counts,
        )

    def _line(self, line: Line) -> Iterator[Entry]:
        top = self._top(line)
        line = self._backend.line(line.id) or line
        if not top and (line.deleted or not line.parent):
            # Nothing is left of it, and nobody needs it.
            return
        if line.parent and line.parent_seq > self._tops.get(line.parent, 0):
            parent = self._core.reader.parent(line)
            if line.parent_seq > parent.parent_seq:
                # Forked after its parent went out: the rest of that first.
                for entry in self._versions(parent, line.parent_seq):
                    yield entry
        yield self._told(line)
        shown = not line.deleted and "\0" not in line.space
        self.taken.threads += shown
        for entry in self._versions(line, top):
            yield entry

    def _versions(self, line: Line, top: int) -> Iterator[Entry]:
        """The versions of a line up to ``top`` that haven't gone out yet."""
        for look in range(_LOOKS):
            try:
                sent = self._tops.get(line.id, 0)
                for entry in ThreadReader(self._core, line, sent, top, self.sealed).run():
                    self._note(line, entry)
                    yield entry
                return
            except (Changed, VersionPrunedError, StateCorruptedError) as error:
                now = self._backend.line(line.id)
                if now is None or (now.deleted and not line.deleted and not self._top(now)):
                    if "\0" not in line.space:
                        self.taken.skipped.append(line.name)
                        self.taken.threads -= 1
                    yield GoneEntry(line.uid)
                    return
                if look + 1 == _LOOKS:
                    raise _unreadable(line, error) from error

    def _erased(self) -> list[ErasedEntry]:
        """Who was erased here is to stay erased there."""
        ledger = [(each.key_id, each.erasure, each.noted_us) for each in self._backend.erasures()]
        return [ErasedEntry(ledger[at : at + _PAGE]) for at in range(0, len(ledger), _PAGE)]

    def _note(self, line: Line, entry: Entry) -> None:
        """What went out of a line counts, and needn't go out again."""
        if isinstance(entry, VersionsEntry | PrunedEntry):
            count = len(entry.versions) if isinstance(entry, VersionsEntry) else entry.last - entry.first + 1
            self.taken.versions += count
            self._tops[line.id] = entry.first + count - 1
            self._tell()

    # ── sealed values ────────────────────────────────────────────────────────────────────────

    def sealed(self, parts: Iterable[bytes]) -> list[SealedEntry]:
        """The personal values that are referred to here and didn't go out before."""
        found = references(parts)
        wanted = {value_id: ref for value_id, ref in found.items() if value_id not in self._sealed_before}
        if not wanted:
            return []
        entries: list[SealedEntry] = []
        rows: list[archive.Sealed] = []
        size = 0
        for row in self.again(wanted):
            rows.append(row)
            size += len(row[2])
            if size >= _BATCH_BYTES:
                entries.append(SealedEntry(rows))
                rows, size = [], 0
        if rows:
            entries.append(SealedEntry(rows))
        self.taken.sealed += sum(len(entry.rows) for entry in entries)
        for value_id in wanted:
            if len(self._sealed_before) >= REMEMBERED:
                self._sealed_before.pop(next(iter(self._sealed_before)))
            self._sealed_before[value_id] = None
        return entries

    def again(self, wanted: Mapping[bytes, SealedRef]) -> list[archive.Sealed]:
        """Personal values, whether they went out before or not; none of people who were erased."""
        dead = self._backend.erased({key for ref in wanted.values() for key in ref.key_ids})
        dead |= self._core.vault.over()
        alive = {value_id: ref for value_id, ref in wanted.items() if dead.isdisjoint(ref.key_ids)}
        rows: list[archive.Sealed] = []
        for value_id, data in (self._backend.sealed(alive)).items():
            self.key_ids.update(alive[value_id].key_ids)
            rows.append((value_id, b"".join(alive[value_id].key_ids), data))
        return rows

    # ── events and cells ─────────────────────────────────────────────────────────────────────

    def _streams(self, space: str) -> Iterator[tuple[str, int]]:
        after: str | None = None
        while page := self._backend.streams(space, "", after, _PAGE):
            yield from page
            after = page[-1][0]

    def _stream(self, space: str, name: str, last: int) -> Iterator[Entry]:
        self.taken.streams += 1
        after, size = 0, _BATCH_EVENTS
        while after < last:
            page = self._backend.events(space, name, after, size)
            page = [event for event in page if event.seq <= last]
            if not page:
                return
            payloads = [
                records.unframe(event.body, f"event {event.seq} of the stream {name!r}") for event in page
            ]
            yield from self.sealed(payloads)
            told = [(event.at_us, event.type, event.agent, event.body) for event in page]
            yield EventsEntry(space, name, page[0].seq, told)
            after = page[-1].seq
            self.taken.events += len(page)
            self._tell()
            average = sum(map(len, payloads)) // len(page) + 1
            size = max(1, min(_BATCH_EVENTS, _BATCH_BYTES // average))

    def _cells(self, space: str) -> Iterator[Entry]:
        # The positions of consumers, and what was trimmed of streams, with their retention.
        for kind in (CONSUMERS, TRIMS):
            after: str | None = None
            while page := self._backend.cells(space, kind, after, _PAGE):
                for name, cell in page:
                    yield CellEntry(space, name, cell.value)
                after = page[-1][0]


def last_seq(backend: Backend, space: str, stream: str) -> int:
    """The newest event of a stream; 0 if it holds none."""
    # A name comes before all longer ones that begin with it.
    found = backend.streams(space, stream, None, 1)
    return found[0][1] if found and found[0][0] == stream else 0


def _unreadable(line: Line, error: Exception) -> EverthreadError:
    if isinstance(error, Changed):
        # Versions of which some had gone out were pruned in between, as a rule: those can't be taken back.
        return StoreBusyError(
            f"{line.name!r} was pruned or rewritten while it was exported, so that what went out doesn't fit "
            "what is there now; run it again, when nothing is pruned meanwhile"
        )
    return StateCorruptedError(
        f"{line.name!r} can't be exported as it is: {error}. See store.verify(); everthread.salvage() brings "
        "what is left into a new store",
        where=line.name,
    )


def _is_record(line: Line) -> bool:
    """Whether this is the record of what was redacted in a namespace."""
    return not line.deleted and line.name == REDACTIONS and line.space == redactions_space(line.space)


# ── spaces and names ────────────────────────────────────────────────────────────────────────────────────


def namespace_of(space: str) -> str:
    return space.partition("\0")[0]


def gone_space(space: str, uid: bytes) -> str:
    """The space of a deleted line, in which nothing else is."""
    return space if is_gone(space) else f"{space}{_GONE}{uid.hex()}"


def is_gone(space: str) -> bool:
    """Whether a line is there for its forks only."""
    return _GONE in space


def uid_of(name: str) -> bytes:
    """The uid of the line that a journal is named after."""
    try:
        return bytes.fromhex(name)
    except ValueError:
        return b""


def free_name(name: str, number: int) -> str:
    """A name like this one, short enough: the ``number``-th that is tried."""
    suffix = " (imported)" if number == 1 else f" (imported {number})"
    return name.encode()[: 1024 - len(suffix)].decode(errors="ignore") + suffix
