"""``everthread.salvage()``: from a damaged store to a new one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from everthread.arguments import check_path, check_progress
from everthread.codec import records
from everthread.codec.records import frame
from everthread.codec.values import encode_stored
from everthread.errors import EverthreadError, StoreUnavailableError, UsageError
from everthread.history.chain import HASH_KEPT, branch, genesis
from everthread.history.snapshots import Snapshot
from everthread.records.opening import open_backend
from everthread.salvager.reader import DamagedLines, Strand
from everthread.salvager.report import Progress, SalvagedThread, SalvageReport
from everthread.salvager.writer import Made, Remaker, Spans, Target, Writer, forked, joined
from everthread.sessions.journal import FORMAT
from everthread.sessions.lease import Holder
from everthread.stores.contract import NO_TAGS, Backend, Line, NewEvent, Row
from everthread.stores.salvage_source import FoundStream, LineHint, SalvageSource
from everthread.stores.urls import real_path, store_url, unquoted
from everthread.threads.sync.journals import COMPANIONS, JOURNAL, LEASE, LOSSES, lost_records, shorter
from everthread.threads.sync.thread import Thread

# Journals of sessions in the new store: those that may lack records say so.
#
# An effect that its journal doesn't know any more would be taken for one that never happened, and run
# again. So a journal counts as whole only if that can be shown; otherwise it gets a mark (see
# ``sessions/journal``).


class _Seen(msgspec.Struct, frozen=True):
    """A line of the damaged store: its number there, and whether all of it came over as it was."""

    id: int
    whole: bool


class Ledgers:
    """Takes note of what becomes of lines and leases, and marks journals in the end."""

    def __init__(self, remains: SalvageSource, target: Target) -> None:
        self._remains = remains
        self._target = target
        self._lines: dict[tuple[str, str], _Seen] = {}
        #: By uid in the new store: the uid in the damaged one, and whether sessions may have run there.
        self._origins: dict[bytes, tuple[bytes, bool]] = {}
        self._leases: dict[tuple[str, str], Holder] = {}

    def saw_line(self, line: Line, whole: bool) -> None:
        self._lines[line.space, line.name] = _Seen(line.id, whole)

    def made_line(self, made: Line, old: Line, ran: bool) -> None:
        """``ran``: whether something tells of a session, or there is no telling."""
        before = self._origins.get(made.uid, (b"", False))[1]
        self._origins[made.uid] = (old.uid, ran or before)

    def saw_cell(self, space: str, name: str, value: bytes) -> None:
        if space.endswith(f"\0{LEASE}"):
            try:
                holder = msgspec.msgpack.decode(value, type=Holder)
            except (msgspec.DecodeError, ValueError):
                return
            self._leases[space.partition("\0")[0], name] = holder

    def mark(self) -> tuple[str, ...]:
        """Mark the journals that may lack records; the names of their threads."""
        found = []
        for line in list(self._target.backend.every_line()):
            if not line.deleted and "\0" not in line.space:
                why = self._doubt(line)
                if why is not None:
                    self._write(line, why)
                    found.append(line.name)
        return tuple(found)

    def _journal(self, line: Line) -> Thread:
        return Thread(self._target.core(f"{line.space}\0{JOURNAL}"), line.uid.hex())

    def _doubt(self, line: Line) -> str | None:
        """Why the journal of a line may lack records; ``None`` if it is whole, or there never was one."""
        old, ran = self._origins.get(line.uid, (line.uid, True))
        seen = self._lines.get((f"{line.space}\0{JOURNAL}", old.hex()))
        lease = self._leases.get((line.space, old.hex()))
        head = self._journal(line).head
        seq = head.seq if head is not None else 0
        if lease is not None and lease.journal:
            known = int(lease.journal.partition("-")[0] or 0)
            if known > seq:
                return shorter(seq, known)
            proven = not lease.run and head is not None and head.id == lease.journal
            if proven and not self._remains.outdated:
                return None
        if seen is not None and not seen.whole:
            return "not all of its versions were found as they had been"
        if not old:
            return "the entry of its thread is damaged, so that nobody knows which journal is its own"
        if (seen is not None or ran) and self._remains.unaccounted(seen.id if seen is not None else 0):
            return "what is damaged in the store may have been part of it"
        return None

    def _write(self, line: Line, why: str) -> None:
        journal = self._journal(line)
        if LOSSES not in journal.state:
            now_us = self._target.runtime.now_us()
            journal.state[LOSSES] = lost_records(f"found when the store was salvaged: {why}", now_us)
            journal.state["format"] = FORMAT
            journal.commit()


_LOST_EVENT = "everthread.lost"
_REASONS_MAX = 20


def salvage(
    source: str | os.PathLike[str], destination: str, progress: Progress | None = None
) -> SalvageReport:
    """Bring everything that can be read of a damaged store into a new one, and say what couldn't be.

    ``source`` is a path or a URL of a SQLite or file store that nobody has open; it is only read, never
    changed. ``destination`` is the URL of a store that is empty or doesn't exist yet. Versions that the chain
    of hashes vouches for come over as they are, ids included. What comes after a hole is made anew in a
    thread of its own, ``name (recovered)``. ``progress(done, total)`` is called as it goes, with numbers of
    rows.
    """
    check_progress(progress)
    path = path_of(check_path(source, "source"))
    remains = open_remains(path)
    try:
        backend = open_backend(store_url(destination), "process")
        try:
            if next(iter(backend.every_line()), None) is not None:
                raise UsageError(f"{destination} holds threads already; salvage into a new store")
            return _Salvage(remains, backend, progress).run()
        finally:
            backend.close()
    finally:
        remains.close()


def path_of(source: str) -> str:
    """The file or folder of a store that is named by its path or URL."""
    scheme, found, rest = source.partition(":///")
    path = unquoted(rest.partition("?")[0]) if found and scheme in ("sqlite", "file") else source
    return "/" + path.lstrip("/") if scheme == "file" and found else path


def open_remains(path: str) -> SalvageSource:
    """What is left of the store at a path."""
    from everthread.stores.sqlite.pages import SqliteSalvageSource

    if os.path.isdir(path):
        from everthread.stores.files.salvage import FileSalvageSource

        return FileSalvageSource(path)
    if not os.path.isfile(path):
        raise StoreUnavailableError(f"there is no store at {path}")
    # SQLite keeps the log beside the file itself.
    return SqliteSalvageSource(real_path(path))


class _Base(msgspec.Struct, frozen=True):
    """Where a line of the new store goes on from: a line there, a version of it, the state at it, with the
    positions of the damaged store, and the versions that this lacks."""

    line: Line | None
    seq: int
    state: Snapshot
    without: Spans = ()


class _Salvage:
    """One run."""

    def __init__(self, remains: SalvageSource, backend: Backend, progress: Progress | None) -> None:
        self._remains = remains
        self._backend = backend
        self._lines_found = DamagedLines(remains)
        ledger = remains.erasures()
        # First of all: whoever was erased doesn't come back with what was found.
        backend.note_erasures(ledger)
        self._erased = {entry.key_id for entry in ledger}
        self._target = Target(backend)
        self._progress = progress
        self._rows = self._done = 0
        self._threads: list[tuple[Line, SalvagedThread]] = []
        #: By line of the damaged store: the same line in the new one and how far it goes; where each later
        #: version went.
        self._kept: dict[int, tuple[Line, int]] = {}
        self._made: dict[int, tuple[Line, Remaker]] = {}
        self._ledgers = Ledgers(remains, self._target)
        #: Threads that were made anew apart from their line, which their journals have to follow.
        self._apart: list[tuple[Line, Line]] = []

    def run(self) -> SalvageReport:
        sealed = self._target.bring_sealed(self._remains.sealed(), self._erased)
        entries = self._remains.lines()
        self._rows = sum(len(self._remains.rows(entry.id)) for entry in entries)
        needed = _needed(entries)
        for entry in entries:
            if entry.id in needed:
                self._line(entry)
            self._done += len(self._remains.rows(entry.id))
            if self._progress is not None:
                self._progress(self._done, self._rows)
        for line, made in self._apart:
            self._take_along(line, made)
        self._target.finish()
        cells = self._cells()
        doubtful = self._ledgers.mark()
        events, events_lost = self._events()
        return SalvageReport(
            tuple(self._told()),
            sealed,
            cells,
            events,
            events_lost,
            tuple(self._remains.problems),
            doubtful,
        )

    def _told(self) -> Iterator[SalvagedThread]:
        """What became of each line, journals under the names of their threads."""
        names = {line.uid.hex(): line.name for line, _ in self._threads if line.uid}
        uncertain = bool(self._remains.problems)
        for line, report in self._threads:
            space, _, kind = line.space.partition("\0")
            yield msgspec.structs.replace(
                report,
                name=names.get(report.name, report.name) if kind in COMPANIONS else report.name,
                namespace=space if kind in COMPANIONS else report.namespace,
                beside=kind if kind in COMPANIONS else "",
                open_ended=uncertain and self._remains.unaccounted(line.id),
            )

    # ── one line ─────────────────────────────────────────────────────────────────────────────

    def _line(self, entry: Line | LineHint) -> None:
        known = entry if isinstance(entry, Line) else self._adopt(entry)
        strand = self._lines_found.add(known)
        if isinstance(entry, LineHint):
            strand.reasons["its entry in the table of threads is damaged"] = None
        kept, writer = self._copy(strand, known) if known.uid else (0, None)
        reached = known.parent_seq + kept
        remade, remade_as, items_lost, incomplete, lost = 0, None, 0, 0, list[int]()
        if strand.newest > reached:
            made = self._remake(strand, writer, reached)
            if made is not None:
                remaker, line = made
                self._made[known.id] = (line, remaker)
                remade, remade_as = remaker.made, line.name
                items_lost, incomplete, lost = remaker.items_lost, remaker.incomplete, remaker.lost
            else:
                lost = list(range(reached + 1, strand.newest + 1))
        elif writer is None and (base := self._base(strand, None)).line is not None:
            # A fork without versions of its own, whose beginning was made anew.
            made_as = self._named(known, known.uid or self._new_uid())
            remade_as = Writer(self._target, *forked(self._target, base.line, base.seq, *made_as)).line.name
        elif writer is None and not known.deleted:
            strand.reasons["nothing is left of its versions"] = None
            lost = [known.parent_seq + 1]
        if not known.deleted:
            report = SalvagedThread(
                known.name,
                known.space,
                kept,
                remade,
                remade_as,
                tuple(joined((seq, seq) for seq in lost)),
                items_lost,
                incomplete,
                tuple(strand.reasons)[:_REASONS_MAX],
            )
            self._threads.append((known, report))
            whole = report.whole and not report.reasons and isinstance(entry, Line)
            self._ledgers.saw_line(known, whole)
            for new in filter(None, (self._kept.get(known.id), self._made.get(known.id))):
                ran = not whole or bool(known.parent) or writer is None or writer.ran
                self._ledgers.made_line(new[0], known, ran)

    def _copy(self, strand: Strand, line: Line) -> tuple[int, Writer | None]:
        """Copy what the chain vouches for; how many versions, and the line they are in."""
        new, start = line, genesis(line.uid)
        tags: Mapping[str, bytes] = NO_TAGS
        if line.parent:
            base = self._kept.get(line.parent)
            if base is None or base[1] < line.parent_seq:
                return 0, None
            new, tags = forked(self._target, base[0], line.parent_seq, line.uid, line.name)
            start = new.start_hash
            if line.parent_hash and new.parent_hash != line.parent_hash:
                strand.reasons["it was forked from another version than the one that is there"] = None
                return 0, None
        first = line.parent_seq + 1
        if not line.parent and not _goes_on(strand, start, first):
            return 0, None
        self._target.make_way(line.space, line.name)
        taken = (line.space, line.name) in self._target.taken
        plain = msgspec.structs.replace(
            new,
            id=0,
            root=new.root if line.parent else 0,
            name=self._target.free_name(line.space, line.name) if taken else line.name,
            start_hash=start,
            deleted=False,
        )
        writer = Writer(self._target, plain, tags)
        used: Mapping[str, int] = {}
        while True:
            if (found := strand.follow(writer.hash, writer.seq + 1)) is not None:
                piece, blocks, digest = found
                writer.add(digest, piece.head, piece.change, blocks)
            elif _goes_on(strand, writer.hash, writer.seq + 1) and (
                tomb := strand.tomb(writer.hash, writer.seq + 1)
            ):
                used = self._over_a_tomb(strand, writer, used, *tomb)
            else:
                break
        writer.flush()
        self._kept[line.id] = (writer.line, writer.seq)
        if line.deleted:
            self._target.doom(writer.line)
        return writer.seq - line.parent_seq, writer

    def _over_a_tomb(
        self, strand: Strand, writer: Writer, used: Mapping[str, int], tomb: Row, digest: bytes
    ) -> Mapping[str, int]:
        """Copy the row for pruned versions; how many positions each log has used up to there."""
        try:
            before: Mapping[str, int] = writer.used()
        except EverthreadError:
            # The state there is known to nobody: it is another such row.
            before = used
        state, after = self._lines_found.state(strand.line.id, tomb.seq), before
        if state is not None:
            after = {log: found.count for log, found in state.logs.items()}
        elif (piece := strand.piece(tomb.seq + 1)) is not None:
            after = {**before, **records.read_change(piece.change).counts}
        writer.add_tomb(tomb, digest, strand.held(before, after))
        return after

    def _remake(self, strand: Strand, writer: Writer | None, reached: int) -> tuple[Remaker, Line] | None:
        """Make the versions after ``reached`` anew; ``None`` if nothing of them is left."""
        line, last = strand.line, strand.newest
        if not any(strand.telling(seq) for seq in range(reached + 1, last + 1)):
            return None
        base = self._base(strand, writer)
        inside = "\0" in line.space
        # Where nothing could be kept, what is made anew takes the place of the line itself.
        uid, name = self._named(line, self._new_uid() if writer is not None or not line.uid else line.uid)
        if writer is not None and inside:
            # Nobody could ask for a companion under another name: it goes on where it is.
            remaking = writer
        elif base.line is not None:
            remaking = Writer(self._target, *forked(self._target, base.line, base.seq, uid, name))
        else:
            own = Line(id=0, uid=uid, space=line.space, name=name, root=0, start_hash=genesis(uid))
            remaking = Writer(self._target, own)
        counts = dict(remaking.line.counts)
        if remaking is writer:
            counts = {log: state.count for log, state in base.state.logs.items()}
        remaker = Remaker(self._lines_found, strand, remaking, base.state, counts, base.without, self._found)
        remaker.run(reached + 1, last)
        if not remaking.born:
            return None
        if not inside and uid != line.uid:
            self._apart.append((line, remaking.line))
        if line.deleted:
            self._target.doom(remaking.line)
        return remaker, remaking.line

    def _new_uid(self) -> bytes:
        return self._target.runtime.random_bytes(16)

    def _named(self, line: Line, uid: bytes) -> tuple[bytes, str]:
        """The name of a line in the new store, and its uid."""
        self._target.make_way(line.space, line.name)
        taken = (line.space, line.name) in self._target.taken
        return uid, self._target.free_name(line.space, line.name) if taken else line.name

    def _base(self, strand: Strand, writer: Writer | None) -> _Base:
        """What versions that are made anew go on from."""
        line = strand.line
        if writer is not None:
            state = self._target.core(line.space).reader.load(writer.line, writer.seq).snapshot
            return _Base(writer.line, writer.seq, state)
        made, kept = self._made.get(line.parent), self._kept.get(line.parent)
        if kept is not None and kept[1] >= line.parent_seq:
            reader = self._target.core(line.space).reader
            return _Base(kept[0], line.parent_seq, reader.load(kept[0], line.parent_seq).snapshot)
        if made is not None and (found := made[1].at(line.parent_seq)) is not None:
            return _Base(made[0], found[0], found[1], found[2])
        first = strand.oldest
        return _Base(None, 0, Snapshot.empty(), ((1, max(line.parent_seq, first - 1)),) if first > 1 else ())

    def _found(self, uid: bytes, seq: int) -> Made | None:
        """A version of any line that was made anew."""
        strand = self._lines_found.by_uid(uid)
        made = self._made.get(strand.line.id) if strand is not None else None
        return made[1].at(seq) if made is not None else None

    def _take_along(self, line: Line, made: Line) -> None:
        """What no rewind moves goes along with a thread that was made anew, as with any fork."""
        core = self._target.core(f"{line.space}\0{JOURNAL}")
        if self._backend.find(core.space, line.uid.hex()) is not None:
            Thread(core, line.uid.hex()).fork(made.uid.hex())

    # ── lines whose entry is damaged ─────────────────────────────────────────────────────────

    def _adopt(self, hint: LineHint) -> Line:
        """The line that a damaged entry stands for, found out by what its first version builds on."""
        space, name = hint.names[0] if hint.names else ("", f"line {hint.id}")
        plain = Line(id=hint.id, uid=b"", space=space, name=name, root=hint.id, deleted=hint.deleted)
        strand = Strand(self._remains, plain, self._lines_found)
        oldest = strand.oldest
        for uid in hint.uids:
            if oldest == 1 and strand.follow(genesis(uid), 1) is not None:
                return msgspec.structs.replace(plain, uid=uid)
            for parent in (*hint.parents, *sorted(self._kept, reverse=True)):
                kept = self._kept.get(parent)
                if oldest <= 1 or kept is None or kept[1] < oldest - 1:
                    continue
                reader = self._target.core(kept[0].space).reader
                start = reader.version(kept[0], oldest - 1)[1][:HASH_KEPT]
                if strand.follow(branch(start, uid), oldest) is not None:
                    counts = reader.load(kept[0], oldest - 1).snapshot.logs
                    return msgspec.structs.replace(
                        plain,
                        uid=uid,
                        root=kept[0].root,
                        parent=parent,
                        parent_seq=oldest - 1,
                        parent_hash=start,
                        counts={log: state.count for log, state in counts.items()},
                    )
        return plain

    # ── what isn't threads ───────────────────────────────────────────────────────────────────

    def _cells(self) -> int:
        count = 0
        for space, name, value, written_us in self._remains.cells():
            self._ledgers.saw_cell(space, name, value)
            if self._backend.cell(space, name, written_us) is None:
                self._backend.swap(space, name, 0, value, written_us, durable=False)
                count += 1
        return count

    def _events(self) -> tuple[int, int]:
        kept = lost = 0
        for stream in self._remains.streams():
            batch: list[NewEvent] = []
            for event, there in _without_gaps(stream):
                kept, lost = kept + there, lost + (not there)
                batch.append(event)
                if len(batch) == 500:
                    self._backend.emit(stream.space, stream.name, batch)
                    batch = []
            if batch:
                self._backend.emit(stream.space, stream.name, batch)
            # What stands for events that were trimmed goes again: it was there only for the seqs.
            self._backend.trim_stream(stream.space, stream.name, stream.first - 1)
        return kept, lost


def _without_gaps(stream: FoundStream) -> Iterator[tuple[NewEvent, bool]]:
    """The events of a stream; where some are lost, one that says so stands for each, so that seqs hold."""
    expected, at_us = 1, 0
    body = frame(encode_stored([{"lost": True}, 0]))
    for event in stream.events:
        while expected < event.seq:
            yield NewEvent(at_us, _LOST_EVENT, None, body), expected < stream.first
            expected += 1
        if event.seq == expected:
            yield NewEvent(event.at_us, event.type, event.agent, event.body), True
            expected, at_us = expected + 1, event.at_us


def _needed(entries: Sequence[Line | LineHint]) -> set[int]:
    """The lines that are alive, and those that these were forked from."""
    parents = {entry.id: entry.parent for entry in entries if isinstance(entry, Line)}
    parents.update({e.id: e.parents[0] for e in entries if isinstance(e, LineHint) and e.parents})
    needed: set[int] = set()
    for entry in entries:
        number = entry.id
        while not entry.deleted and number and number not in needed:
            needed.add(number)
            number = parents.get(number, 0)
    return needed


def _goes_on(strand: Strand, before: bytes, seq: int) -> bool:
    """Whether a version builds on the hash ``before``, be it after some that were pruned: no thread may end
    with those, because nobody would know what they came to."""
    while strand.follow(before, seq) is None:
        tomb = strand.tomb(before, seq)
        if tomb is None:
            return False
        before, seq = tomb[1], tomb[0].seq + 1
    return True
