"""What an archive or another store holds, on its way in: ``store.import_from()`` and ``store.copy_to()``.

Everything is looked through once before anything is written; then it is written, the oldest version of each
thread first. What is here already is skipped, so that an import that was cut short is finished by running it
again.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any, Literal, get_args

import msgspec

from everthread.arguments import check_name, check_path, check_progress
from everthread.codec import records
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
from everthread.codec.seal import SealedRef
from everthread.codec.values import decode, encode_stored
from everthread.errors import (
    ConflictError,
    InvalidValueError,
    KeyringError,
    StateCorruptedError,
    ThreadExistsError,
    UsageError,
)
from everthread.events.event import event_sum, pack_event
from everthread.events.saved import TRIMS, read_position, read_trimming, renamed_cell, stream_of
from everthread.keyring.parcel import KeyParcel, ParcelSecret
from everthread.maintenance.unfinished import COPY, IMPORT, begin, end, work
from everthread.people.erase import used_keys
from everthread.stores.contract import (
    DELETED,
    DESTROYED,
    EVENT_SEQ_MAX,
    FINISHED,
    ErasedKey,
    Line,
    NewEvent,
    SealedRow,
    StaleCell,
    StoredEvent,
    split_keys,
)
from everthread.threads.reports import Progress
from everthread.threads.sync.core import Core
from everthread.transfer import exporter
from everthread.transfer.archive_file import ArchiveReader
from everthread.transfer.exporter import REMEMBERED, Exporter, last_seq
from everthread.transfer.report import FILES, INBOX, JOURNAL, PERSON, ImportReport, shown
from everthread.transfer.thread_writer import DELETED_HERE, IncomingValues, Origin, ThreadWriter

#: What holds the place of events that were deleted, for the moment that it takes to delete it as well.
_GAP = "everthread.gap"
_GAP_EVENTS = 4096
#: What an archive says of an event.
Told = tuple[int, str, str | None, bytes]
DIVERGED = "another stream has this name"
#: What to do about a name that is taken by something else.
OnConflict = Literal["error", "rename", "skip"]
_NAMED_MAX = 20


def import_from(
    core: Core,
    path: str | os.PathLike[str],
    *,
    rule: OnConflict,
    every: bool,
    progress: Progress | None,
    settle: Callable[[], Any],
    keys: str | bytes | None = None,
) -> ImportReport:
    """Bring what an archive holds into a store. The whole archive is checked before anything is written, and
    whether ``keys`` opens the keys in it. ``settle`` is called when all is there; until after that a mark
    says that this was begun."""
    place = check_path(path)
    check_progress(progress)
    opener = KeyImporter(core, None if keys is None else ParcelSecret(keys))
    header, looking = _pass(core, place, rule, every, None, None, opener)
    opener.check()
    total = header.versions + header.events
    mark = f"{IMPORT}/{header.id.hex()}"
    begin(core, mark, work(core, IMPORT, os.path.abspath(place)))
    report = (_pass(core, place, rule, every, looking, progress, opener, total))[1].report
    taken = opener.take_in()
    missing = opener.missing()
    settle()
    end(core, mark)
    return msgspec.structs.replace(report, keys=taken, keys_missing=missing)


def copy_store(
    core: Core,
    target: Core,
    *,
    rule: OnConflict,
    every: bool,
    progress: Progress | None,
    settle: Callable[[], Any],
) -> ImportReport:
    """Bring what a store holds into another one, without a file between them."""
    if core.space != target.space:
        raise UsageError(
            "both stores must be opened with the same namespace: what is sealed opens nowhere else"
        )
    looking = Exporter(core, every=every)
    header = looking.header()
    dry = Importer(target, rule, namespaces=header.namespaces)
    for entry in looking.outline(target.backend):
        dry.put(entry)
    dry.finish()
    exporter = Exporter(core, every=every)
    exporter.header()
    total = header.versions + header.events
    mark = f"{COPY}/{sha256(core.backend.url.encode()).hexdigest()}"
    begin(target, mark, work(target, COPY, core.backend.url))
    importer = Importer(
        target,
        rule,
        namespaces=header.namespaces,
        dry=dry,
        origin=exporter,
        progress=progress,
        total=total,
    )
    opener = KeyImporter(target, None)
    for entry in exporter.entries():
        if isinstance(entry, SealedEntry):
            opener.note(entry)
        importer.put(entry)
    report = importer.finish()
    missing = opener.missing()
    settle()
    end(target, mark)
    return msgspec.structs.replace(report, keys_missing=missing)


def _pass(
    core: Core,
    path: str,
    rule: OnConflict,
    every: bool,
    dry: Importer | None,
    progress: Progress | None,
    keys: KeyImporter,
    total: int = 0,
) -> tuple[Header, _ReportingImporter]:
    """Go through the archive once: without ``dry`` to look, with it to write."""
    file = ArchiveReader(path)
    try:
        header = file.header
        check_namespaces(header, core.space, every)
        origin = None if dry is None else _EarlierValues(file)
        importer = _ReportingImporter(
            core,
            rule,
            namespaces=header.namespaces,
            dry=dry,
            origin=origin,
            progress=progress,
            total=total,
        )
        while (entry := file.next()) is not None:
            if isinstance(entry, KeysEntry):
                if dry is None:
                    keys.add(entry, header.id)
                continue
            if isinstance(entry, SealedEntry):
                if origin is None:
                    keys.note(entry)
                else:
                    origin.note(entry)
            importer.put(entry)
            if origin is not None and not isinstance(entry, SealedEntry):
                origin.trim()
        importer.report = importer.finish()
        return header, importer
    finally:
        file.close()


def check_namespaces(header: Header, namespace: str, every: bool) -> None:
    """What an archive holds goes where it came from: its sealed values open nowhere else."""
    if header.namespaces == [namespace] or every:
        return
    if not header.namespaces:
        raise UsageError("this archive holds every namespace; say so: import_from(…, every_namespace=True)")
    theirs = ", ".join(map(repr, header.namespaces))
    raise UsageError(f"this archive holds the namespace {theirs}; open the store with that namespace")


def check_conflict(rule: str) -> OnConflict:
    if rule not in get_args(OnConflict):
        raise InvalidValueError(
            f"on_conflict is 'error', 'rename' or 'skip', not {rule!r}", path="on_conflict"
        )
    return rule  # type: ignore[return-value]


# ── threads, journals and cells ─────────────────────────────────────────────────────────────────────────


class Importer:
    """Takes entries in the order in which they were taken out.

    A ``dry`` one writes nothing and gathers what stands in the way; the one that writes is then told what it
    has to leave out.
    """

    def __init__(
        self,
        core: Core,
        rule: OnConflict,
        *,
        namespaces: list[str],
        dry: Importer | None = None,
        origin: Origin | None = None,
        progress: Progress | None = None,
        total: int = 0,
    ) -> None:
        self._core = core
        self._backend = core.backend
        self._rule = rule
        self._namespaces = frozenset(namespaces)
        self._dry = dry is None
        self._progress = progress
        self._total = total
        self._done = 0
        self._cores: dict[str, Core] = {}
        self._growing: ThreadWriter | None = None
        self._stream: StreamWriter | None = None
        self._values = IncomingValues(core.backend, origin)
        #: Uids of lines that are left out: their forks and journals are as well. Streams likewise.
        self._left_out: dict[bytes, str] = dict(dry._left_out) if dry is not None else {}
        #: Journals that are left out, by the uids of their threads, and why.
        self._journals_out: dict[bytes, str] = dict(dry._journals_out) if dry is not None else {}
        self._streams_out: set[tuple[str, str]] = set(dry._streams_out) if dry is not None else set()
        self._streams_named: dict[tuple[str, str], str] = {}
        self._doomed: list[bytes] = []
        self.conflicts: dict[str, str] = {}
        self.skipped: dict[str, str] = dict(dry.skipped) if dry is not None else {}
        self.renamed: dict[str, str] = {}
        self.threads = self.versions = self.streams = self.events = self.present = 0

    def _core_of(self, space: str) -> Core:
        """The same store, in another space of it."""
        if space not in self._cores:
            other = self._cores[space] = copy.copy(self._core)
            other.space = space
        return self._cores[space]

    def _check_space(self, space: str) -> str:
        if self._namespaces and exporter.namespace_of(space) not in self._namespaces:
            raise StateCorruptedError("the archive holds something of a namespace that it doesn't name")
        return space

    def _tell(self, more: int) -> None:
        self._done += more
        if self._progress is not None:
            self._total = max(self._total, self._done)
            self._progress(self._done, self._total)

    def put(self, entry: Entry) -> None:
        """Put in one entry; what is pending of the one before may be written now."""
        if isinstance(entry, SealedEntry):
            self._values.add(entry.rows)
        elif isinstance(entry, VersionsEntry | PrunedEntry):
            self._versions(entry)
            self._values.next()
        elif isinstance(entry, EventsEntry):
            self._events(entry)
            self._values.next()
        elif isinstance(entry, LineEntry):
            self._settle()
            self._line(entry)
        elif isinstance(entry, GoneEntry):
            self._gone(entry)
        elif isinstance(entry, CellEntry):
            self._settle()
            self._cell(entry)
        elif isinstance(entry, ErasedEntry) and not self._dry:
            self._erase(entry)

    def finish(self) -> ImportReport:
        """When everything has been put in: lines that only their forks need are deleted again."""
        self._settle()
        for uid in [] if self._dry else reversed(self._doomed):
            line = self._backend.line_by_uid(uid)
            if line is not None and not line.deleted:
                self._backend.delete(line)
        for uid in [] if self._dry else self._journals_out.keys() - self._left_out.keys():
            called = self._called(exporter.JOURNALS, uid.hex())
            self.skipped[called] = self._journals_out[uid]
        self._total = 0
        self._tell(0)
        if self._dry and self._rule == "error" and self.conflicts:
            raise _in_the_way(self.conflicts, "nothing was brought here")
        return ImportReport(
            threads=self.threads,
            versions=self.versions,
            streams=self.streams,
            events=self.events,
            sealed=self._values.count,
            present=self.present,
            renamed=self.renamed,
            skipped=self.skipped,
        )

    def _settle(self) -> None:
        """Be done with the line or stream that was being put in."""
        growing, self._growing = self._growing, None
        stream, self._stream = self._stream, None
        self._values.forget()
        if growing is not None:
            growing.finish()
            self.versions += growing.made
            if growing.diverged is not None:
                line = growing.line
                self._left_out[line.uid] = called = self._called(line.space, line.name)
                if not growing.final:
                    self._conflict(called, growing.diverged)
                elif not exporter.is_gone(line.space):
                    why = DELETED_HERE if line.deleted else growing.diverged
                    self._leave_out(line.space, line.name, called, why)
            elif not growing.hidden:
                self.threads += growing.fresh or growing.made > 0
                self.present += not (growing.fresh or growing.made)
        if stream is not None:
            self.events += stream.made
            self.streams += stream.made > 0
            if stream.diverged:
                self._conflict(stream.name, DIVERGED)
                self._streams_out.add((stream.space, stream.name))

    def _conflict(self, name: str, why: str) -> None:
        """Something stands in the way that isn't put right by another name."""
        self.conflicts[name] = self.skipped[name] = why
        if not self._dry and self._rule == "error":
            # It came up since the look.
            raise _in_the_way({name: why}, "it was stopped half way")

    # ── lines ────────────────────────────────────────────────────────────────────────────────

    def _line(self, entry: LineEntry) -> None:
        self._check_space(entry.space)
        check_name(entry.name, "thread name")
        if entry.uid in self._left_out or self._belongs_to_left_out(entry):
            return
        found = self._backend.line_by_uid(entry.uid)
        if found is not None:
            if found.deleted and not entry.deleted:
                self._left_out[entry.uid] = called = self._called(entry.space, entry.name)
                self._leave_out(entry.space, entry.name, called, DELETED_HERE)
                return
            self._begin(entry, found, found)
            return
        name, space = entry.name, entry.space
        if entry.deleted:
            space = exporter.gone_space(space, entry.uid)
        elif space.endswith(exporter.LIFETIMES):
            # Beside those that are here: all of them count.
            if self._backend.find(space, name) is not None:
                name = self._free_name(space, name)
        elif self._backend.find(space, name) is not None:
            if self._rule != "rename" or space.endswith(exporter.USERS):
                person = "there is other data of the same person here"
                why = person if space.endswith(exporter.USERS) else "another thread has this name"
                self._left_out[entry.uid] = called = self._called(space, name)
                self._conflict(called, why)
                return
            name = self._free_name(space, name)
            self.renamed[entry.name] = name
        self._begin(entry, self._new(entry, space, name), None)

    def _belongs_to_left_out(self, entry: LineEntry) -> bool:
        """Whether it is a fork or the journal of something that is left out; then it is as well. A fork that
        is here goes on: it has all that it needs."""
        journal = entry.space.endswith(exporter.COMPANIONS) and exporter.uid_of(entry.name) in self._left_out
        if entry.parent_uid in self._left_out:
            if not journal and self._backend.line_by_uid(entry.uid) is not None:
                return False
            why = f"a fork of {shown(self._left_out[entry.parent_uid])}, which was left out"
            self._leave_out(entry.space, entry.name, entry.name, why)
        elif not journal:
            return False
        self._left_out[entry.uid] = entry.name
        return True

    def _leave_out(self, space: str, name: str, called: str, why: str) -> None:
        """Tell of what is left out; of a journal only if its thread isn't, which may come later."""
        if space.endswith(exporter.COMPANIONS):
            self._journals_out[exporter.uid_of(name)] = why
        else:
            self.skipped[called] = why

    def _called(self, space: str, name: str) -> str:
        """How people know a line: what stands beside threads is called after ids."""
        if space.endswith(exporter.USERS):
            # Whose key it is only the keyring could tell, and only who knows the name could ask.
            return f"{PERSON} (key {name})"
        if not space.endswith(exporter.COMPANIONS):
            return name
        kinds = {exporter.INBOXES: INBOX, exporter.FILES: FILES}
        kind = next((kind for ending, kind in kinds.items() if space.endswith(ending)), JOURNAL)
        owner = self._backend.line_by_uid(exporter.uid_of(name))
        return f"{kind} {owner.name!r}" if owner is not None else f"{kind} the thread {name}"

    def _begin(self, entry: LineEntry, line: Line, found: Line | None) -> None:
        if entry.deleted and not line.deleted and exporter.is_gone(line.space):
            # Made for its forks, now or by an import that was cut short. What is in its own place here was
            # deleted by nobody here, and may hold what only this store has.
            self._doomed.append(entry.uid)
        hidden = line.deleted or "\0" in line.space
        self._growing = ThreadWriter(self._core_of(line.space), line, found, hidden=hidden, dry=self._dry)
        self._growing.begin()

    def _free_name(self, space: str, name: str) -> str:
        number = 1
        while self._backend.find(space, exporter.free_name(name, number)) is not None:
            number += 1
        return exporter.free_name(name, number)

    def _new(self, entry: LineEntry, space: str, name: str) -> Line:
        """The line as it is about to be made."""
        line = Line(id=0, uid=entry.uid, space=space, name=name, root=0, start_hash=entry.start_hash)
        if not entry.parent_uid:
            return line
        parent = self._backend.line_by_uid(entry.parent_uid)
        if parent is None and self._dry:
            # It will have been made when this is written.
            return msgspec.structs.replace(line, parent_seq=entry.parent_seq)
        if parent is None:
            raise StateCorruptedError(f"what {entry.name!r} was forked from is neither here nor there")
        return msgspec.structs.replace(
            line,
            root=parent.root,
            parent=parent.id,
            parent_seq=entry.parent_seq,
            parent_segment=entry.parent_segment,
            parent_hash=entry.parent_hash,
            counts=entry.counts,
        )

    def _erase(self, entry: ErasedEntry) -> None:
        """Who was erased there is erased here as well: nothing of theirs is taken from now on, and what is
        here goes. What that leaves on the disk is purged by the erasure that goes on from here."""
        keys = [
            ErasedKey(key_id=key_id, phase=DESTROYED, erasure=erasure, noted_us=at_us)
            for key_id, erasure, at_us in entry.keys
        ]
        known = self._backend.erased(key.key_id for key in keys)
        fresh = [key for key in keys if key.key_id not in known]
        used = used_keys(self._backend, [key.key_id for key in fresh])
        held = [key for key in fresh if key.key_id in used]
        # Where there is nothing to delete there is nothing to purge either.
        self._backend.note_erasures(
            [key if key in held else msgspec.structs.replace(key, phase=FINISHED) for key in fresh]
        )
        if held:
            self._backend.drop_sealed([key.key_id for key in held])
            self._backend.note_erasures([msgspec.structs.replace(key, phase=DELETED) for key in held])

    def _versions(self, entry: VersionsEntry | PrunedEntry) -> None:
        growing = self._growing
        if growing is None or growing.line.uid != entry.uid:
            # Of a line that is left out, or the rest of one that has been forked again since.
            self._settle()
            line = self._backend.line_by_uid(entry.uid)
            if entry.uid in self._left_out or (line is None and self._dry):
                return
            if line is None:
                raise StateCorruptedError("the archive has versions of a line that it doesn't have")
            growing = self._growing = ThreadWriter(
                self._core_of(line.space), line, line, hidden=True, dry=self._dry
            )
            growing.begin()
        if isinstance(entry, VersionsEntry):
            growing.add(entry, self._values)
            self._tell(len(entry.versions))
        else:
            growing.add_pruned(entry, self._values)
            self._tell(entry.last - entry.first + 1)

    def _gone(self, entry: GoneEntry) -> None:
        """Deleted while it was taken out: what is here of it, from this time, goes as well."""
        growing, self._growing = self._growing, None
        self._values.forget()
        if growing is not None and growing.line.uid == entry.uid and growing.fresh and not self._dry:
            line = self._backend.line_by_uid(entry.uid)
            if line is not None and not line.deleted:
                self._backend.delete(line)

    # ── events and cells ─────────────────────────────────────────────────────────────────────

    def _events(self, entry: EventsEntry) -> None:
        place = (self._check_space(entry.space), check_name(entry.stream, "stream name"))
        stream = self._stream
        if stream is None or (stream.space, stream.name) != place:
            self._settle()
            if place in self._streams_out and self._rule != "rename":
                return
            under = entry.stream
            if place in self._streams_out and not self._dry:
                under = self._streams_named[place] = self._free_stream(*place)
                self.renamed[entry.stream] = under
                self.skipped.pop(entry.stream, None)
            stream = self._stream = StreamWriter(self._core_of(entry.space), *place, under, dry=self._dry)
            stream.begin()
        stream.add(entry, self._values)
        self._tell(len(entry.events))

    def _free_stream(self, space: str, name: str) -> str:
        number = 1
        while last_seq(self._backend, space, exporter.free_name(name, number)):
            number += 1
        return exporter.free_name(name, number)

    def _cell(self, entry: CellEntry) -> None:
        """A position of a consumer, or what was trimmed of a stream. One that is here already knows
        better."""
        space, stream = self._check_space(entry.space), stream_of(entry.name)
        under = self._streams_named.get((space, stream), stream)
        if self._dry or not stream or ((space, stream) in self._streams_out and under == stream):
            return
        name, now_us = renamed_cell(entry.name, under), self._core.runtime.now_us()
        if self._backend.cell(space, name, now_us) is not None:
            return
        writer = StreamWriter(self._core_of(space), space, stream, under, dry=False)
        writer.begin()
        where = f"the cell {entry.name!r}"
        is_trim = entry.name.startswith(TRIMS)
        writer.catch_up(
            read_trimming(entry.value, where).up_to if is_trim else read_position(entry.value, where)
        )
        with suppress(StaleCell):
            self._backend.swap(space, name, 0, entry.value, now_us)


class _ReportingImporter(Importer):
    """A importer that remembers its report."""

    report: ImportReport


class _EarlierValues:
    """Finds personal values again that came before in an archive: as far back as those lie that whoever wrote
    it took for granted."""

    def __init__(self, file: ArchiveReader) -> None:
        self._file = file
        self._places: dict[bytes, tuple[int, int]] = {}

    def note(self, entry: SealedEntry) -> None:
        """This has just been read."""
        for value_id, *_ in entry.rows:
            self._places.pop(value_id, None)
            self._places[value_id] = self._file.place

    def trim(self) -> None:
        """What these came for has been read as well: those that lie too far back come again when needed."""
        while len(self._places) > REMEMBERED:
            self._places.pop(next(iter(self._places)))

    def again(self, wanted: Mapping[bytes, SealedRef]) -> list[SealedRow]:
        rows: list[SealedRow] = []
        for place in sorted({self._places[value_id] for value_id in wanted if value_id in self._places}):
            entry = self._file.look_back(place)
            if isinstance(entry, SealedEntry):
                rows.extend(row for row in entry.rows if row[0] in wanted)
        return rows


def _in_the_way(conflicts: dict[str, str], so: str) -> ThreadExistsError:
    told = [f"{shown(name)} ({why})" for name, why in list(conflicts.items())[:_NAMED_MAX]]
    more = f" and {len(conflicts) - _NAMED_MAX} more" if len(conflicts) > _NAMED_MAX else ""
    return ThreadExistsError(
        f"{so}, because of {', '.join(told)}{more}; "
        "on_conflict='skip' leaves these out, 'rename' brings those whose name is taken under another one"
    )


# ── events ──────────────────────────────────────────────────────────────────────────────────────────────


class StreamWriter:
    """One stream. ``name`` is its own, ``under`` the name that it gets here."""

    def __init__(self, core: Core, space: str, name: str, under: str, *, dry: bool) -> None:
        self._core = core
        self._backend = core.backend
        self._dry = dry
        self._first = self._last = 0
        self.space = space
        self.name = name
        self.under = under
        self.made = 0
        self.diverged = False

    def begin(self) -> None:
        self._last = last_seq(self._backend, self.space, self.under)
        found = self._backend.events(self.space, self.under, 0, 1) if self._last else []
        self._first = found[0].seq if found else 0
        if self._last and not self._dry:
            page = self._backend.events(self.space, self.under, self._last - 1, 1)
            if page and page[0].type == _GAP:
                # Cut short in the middle of :meth:`_skip`.
                self._backend.trim_stream(self.space, self.under, EVENT_SEQ_MAX)
                self._last = 0

    def add(self, entry: EventsEntry, values: IncomingValues) -> None:
        """Go on with these events; those that are here already must be the same."""
        if self.diverged:
            return
        known = max(0, min(self._last - entry.first + 1, len(entry.events)))
        if known:
            # What was trimmed here doesn't come again, and can't be compared.
            trimmed = min(max(self._first - entry.first, 0), known)
            after = entry.first - 1 + trimmed
            there = self._backend.events(self.space, self.under, after, known - trimmed)
            if [_told(event) for event in there] != [
                self._named(each) for each in entry.events[trimmed:known]
            ]:
                self.diverged = True
                return
        if 0 < self._last < entry.first - 1 and not self._is_try(entry.events[0]):
            self.diverged = True
            return
        new = entry.events[known:]
        self.made += len(new)
        if not new or self._dry:
            return
        first = entry.first + known
        what = f"an event of {self.name!r}"
        sealed = values.needed([records.unframe(body, what) for *_, body in new])
        events = [NewEvent(*self._named(each)) for each in new]
        if self._last < first - 1:
            self._line_up(first, events[0], sealed)
            # The one that was tried may have found its place.
            known, first = (1, first + 1) if self._last == first else (0, first)
            new, events = new[known:], events[known:]
        got = self._backend.emit(self.space, self.under, events, sealed) if events else first
        if got != first:
            raise ConflictError(
                f"somebody wrote to the stream {self.under!r} while it was being brought here; run it again"
            )
        self._last = first + len(new) - 1

    def _named(self, told: Told) -> Told:
        """An event as it is stored here: its checksum covers the name of the stream."""
        if self.under == self.name:
            return told
        at_us, type_, agent, body = told
        parts = decode(records.unframe(body, f"an event of {self.name!r}"))
        if type(parts) is not list or len(parts) < 2:
            raise StateCorruptedError(f"an event of the stream {self.name!r} can't be decoded")
        parts[1] = event_sum(self.under, type_, agent, at_us)
        return at_us, type_, agent, records.frame(encode_stored(parts))

    def _is_try(self, first: Told) -> bool:
        """Whether all that is here is what :meth:`_line_up` tried when it was cut short."""
        there = self._backend.events(self.space, self.under, 0, 2)
        return [_told(event) for event in there] == [self._named(first)]

    def _line_up(self, first: int, event: NewEvent, sealed: tuple[SealedRow, ...]) -> None:
        """Let the next event get the number ``first``, in a stream that begins later than with 1.

        How far the numbering of an empty stream has come is seen only by writing to it: so the first event
        itself is tried, and taken back if it gets another number.
        """
        if self._last:
            # Such a try, cut short.
            self._backend.trim_stream(self.space, self.under, EVENT_SEQ_MAX)
        got = self._backend.emit(self.space, self.under, [event], sealed)
        if got == first:
            self._last = got
            return
        self._backend.trim_stream(self.space, self.under, EVENT_SEQ_MAX)
        self._last = 0
        if got > first:
            raise ConflictError(
                f"there was a longer stream {self.under!r} here, which was deleted or trimmed; "
                "bring it under another name: on_conflict='rename'"
            )
        self._skip(got, first - 1)

    def _skip(self, reached: int, seq: int) -> None:
        """Let the numbering of a stream that holds nothing go on after ``seq``."""
        gap = pack_event(self.under, _GAP, None, None, 0, self._core.limits)
        while reached < seq:
            count = min(seq - reached, _GAP_EVENTS)
            reached = self._backend.emit(self.space, self.under, [gap] * count) + count - 1
            self._backend.trim_stream(self.space, self.under, EVENT_SEQ_MAX)

    def catch_up(self, position: int) -> None:
        """Let a stream that holds nothing go on after what a consumer of it has seen, or later."""
        if not self._last and position > 0 and not self._dry:
            self._skip(0, position)


def _told(event: StoredEvent) -> Told:
    return event.at_us, event.type, event.agent, event.body


# ── keys ────────────────────────────────────────────────────────────────────────────────────────────────


class KeyImporter:
    """What an import does about keys. Without a secret those in the archive are left where they are."""

    def __init__(self, core: Core, secret: ParcelSecret | None) -> None:
        self._core = core
        self._secret = secret
        self._parcels: list[KeyParcel] = []
        self._needed: set[bytes] = set()

    def add(self, entry: KeysEntry, archive: bytes) -> None:
        """Open keys. Raises :class:`KeyringError` if the secret isn't the one that they are under."""
        if self._secret is not None:
            self._parcels.append(self._secret.open(entry, archive))

    def note(self, entry: SealedEntry) -> None:
        """Which keys are needed by what comes."""
        for _, joined, _ in entry.rows:
            self._needed.update(split_keys(joined))

    def check(self) -> None:
        """When all of the archive was looked at, and nothing was written."""
        if self._secret is not None and self._needed and not self._parcels:
            raise KeyringError(
                "this archive holds no keys: export(…, keys=…) puts them in. Import it without keys=; what "
                "is sealed opens where the keyring has its keys. Nothing was changed"
            )

    def take_in(self) -> int:
        """Put them into the keyring; how many are new there."""
        vault, backend = self._core.vault, self._core.backend
        key_ids = [key_id for parcel in self._parcels for key_id, _, _ in parcel.keys]
        if not key_ids:
            return 0
        dead = backend.erased(key_ids)
        alive = [
            msgspec.structs.replace(parcel, keys=[key for key in parcel.keys if key[0] not in dead])
            for parcel in self._parcels
        ]
        taken = vault.keyring.take_in(alive)
        # Somebody may have been erased in this very moment.
        late = backend.erased(key_ids) - dead
        if late:
            vault.keyring.destroy_keys(late)
        return taken - len(late)

    def missing(self) -> int:
        """How many of the keys that are needed aren't in the keyring, nor known to be destroyed."""
        gone = self._core.backend.erased(self._needed) if self._needed else set()
        return self._missing(self._needed - gone) if self._needed - gone else 0

    def _missing(self, needed: set[bytes]) -> int:
        with suppress(KeyringError):
            keyring = self._core.vault.keyring
            return sum(keyring.key(k) is None and not keyring.is_destroyed(k) for k in needed)
        return len(needed)
