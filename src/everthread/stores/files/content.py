"""What a store holds: one content folder with its lines, sealed values, cells and streams."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from msgspec import Struct

from everthread.codec import records
from everthread.errors import StateCorruptedError
from everthread.history import packs
from everthread.history.chain import link, record_digest
from everthread.history.retention import read_tombstone
from everthread.stores.contract import (
    PRUNED,
    REWIND,
    Found,
    KeyErased,
    KeyKnown,
    Line,
    NameTaken,
    NewRow,
    Prune,
    Row,
    SealedRow,
    SourceGone,
    StaleWrite,
    VersionGone,
    split_keys,
)
from everthread.stores.files import line_files
from everthread.stores.files.catalog import Catalog
from everthread.stores.files.cells_and_events import Cells, EventStreams
from everthread.stores.files.disk import Disk, RecordFile, Replaced, fields_of
from everthread.stores.files.journal import Entry, Spot, header, items_name, segment_name, segments_in
from everthread.stores.files.json_form import Part, read_body, read_pruned, read_record, render, render_items
from everthread.stores.files.layout import thread_folder
from everthread.stores.files.line_files import LineFiles, state_at
from everthread.stores.files.pack_files import remove_folds
from everthread.stores.files.prune import JournalPruner, JournalRedactor, finish_pruning
from everthread.stores.files.sealed import ErasureLedger, SealedValues
from everthread.stores.files.views import VIEW, Views, edited_views

#: How many lines stay in memory, each with its files open.
OPEN_LINES_MAX = 128


class Content:
    """One content folder. Not for two threads at once."""

    def __init__(self, folder: str, disk: Disk) -> None:
        self.folder = folder
        self._disk = disk
        self.catalog = Catalog(folder, disk)
        self.sealed = SealedValues(folder, disk)
        self.ledger = ErasureLedger(folder, disk)
        self.cells = Cells(folder, disk)
        self.streams = EventStreams(folder, disk)
        self.views = Views(self, self._known_files, disk)
        self._open_lines: dict[int, LineFiles] = {}
        #: The lines that were read since this was last cleared, to tell whether they stayed as they were.
        self.visited: list[LineFiles] = []
        # Upkeep that is due: folders whose folds are damaged, lines whose folds are missing, lines that are
        # sealed but not deleted in the catalog, and lines whose pruning was interrupted.
        self._damaged_folds: set[str] = set()
        self._unfolded: set[int] = set()
        self._half_deleted: set[int] = set()
        self._half_pruned: set[int] = set()
        self._deletions_checked = False

    # ── reading lines ────────────────────────────────────────────────────────────────────────

    def line(self, line: int) -> Line | None:
        return self.catalog.lines.get(line)

    def line_by_uid(self, uid: bytes) -> Line | None:
        found = self.catalog.uids.get(uid)
        return None if found is None else self.catalog.lines[found]

    def path(self, line: int) -> str:
        return os.path.join(self.folder, "threads", self.catalog.folders[line])

    def files(self, line: int) -> LineFiles | None:
        """The files of a line, as of now; ``None`` if there never was one, or nothing of it is left."""
        known = self.catalog.lines.get(line)
        if known is None or line in self.catalog.purged:
            return None
        files = self._open_lines.get(line)
        if files is not None:
            try:
                files.refresh()
            except (Replaced, FileNotFoundError):
                self.forget(line)
                files = None
        if files is None:
            files = self._open_lines[line] = self._load(known)
        elif files.line is not known:
            files.line = known
        self.visited.append(files)
        return files

    @property
    def moved(self) -> bool:
        """Whether a visited line was pruned meanwhile."""
        return any(files.moved for files in self.visited)

    def _load(self, line: Line) -> LineFiles:
        while len(self._open_lines) >= OPEN_LINES_MAX:
            self.forget(next(iter(self._open_lines)))
        files = LineFiles(line, self.path(line.id), self.catalog.tags[line.id], self._disk)
        files.load(derived=files.folder not in self._damaged_folds)
        if files.half_pruned:
            self._half_pruned.add(line.id)
        elif line_files.needs_folding(files):
            self._unfolded.add(line.id)
        if not line.deleted and not files.journal.sealed:
            self.views.note_stale(files)
        elif not line.deleted:
            self._half_deleted.add(line.id)
        return files

    def _known_files(self, line: int) -> LineFiles:
        files = self._open_lines.get(line) or self.files(line)
        if files is None:
            raise FileNotFoundError(line)
        return files

    def replay(self, line: int, seq: int, floor: int) -> list[Row]:
        files = self.files(line)
        return [] if files is None else files.replay(seq, floor)

    def found(self, line: Line) -> Found | None:
        """A live line and its newest row."""
        files = self.files(line.id)
        # An interrupted deletion counts: the journal is sealed, and nothing follows.
        return None if files is None or files.journal.sealed else files.found()

    def keyed(self, root: int, key: bytes) -> list[tuple[int, int]]:
        """(line, seq) of the versions in a family of lines that carry a key."""
        found: list[tuple[int, int]] = []
        for id_ in self.catalog.families.get(root, ()):
            files = self.files(id_)
            if files is not None:
                found.extend((id_, seq) for seq in files.keyed(key))
        return found

    def tagged(self, space: str, tags: Mapping[str, bytes]) -> list[Found]:
        """Live lines whose tags have these values, by name. Looks at every line of the namespace."""
        found = []
        for line in self._living(space):
            files = self.files(line.id)
            if files is not None and not files.journal.sealed:
                has = files.tags()[0]
                if all(has.get(name) == value for name, value in tags.items()):
                    found.append(files.found())
        return found

    def untagged(self, space: str) -> list[tuple[Line, int]]:
        found = []
        for line in self._living(space):
            files = self.files(line.id)
            if files is not None and files.newest is not None and not files.journal.sealed:
                covered = files.tags()[1]
                if files.last_seq > covered:
                    found.append((line, covered))
        return found

    def _living(self, space: str) -> list[Line]:
        names = self.catalog.names(space, "", None)
        return [line for name in names if (line := self.catalog.find(space, name)) is not None]

    def forget(self, line: int) -> None:
        """Read it anew the next time."""
        files = self._open_lines.pop(line, None)
        self.views.forget(line)
        if files is not None:
            files.close()

    def forget_all(self) -> None:
        for line in list(self._open_lines):
            self.forget(line)

    # ── writing: the caller holds the store's lock ───────────────────────────────────────────

    def create(self, line: Line, prepared: Prepared | None, source: int, tags: Mapping[str, bytes]) -> Line:
        if source and not self._can_fork(line, source):
            raise SourceGone
        self._free(line.space, line.name)
        if prepared is not None:
            self.check_keys(prepared.row.sealed)
        if line.uid in self.catalog.uids:
            raise NameTaken
        line = self.catalog.next_line(line)
        folder = os.path.join(self.folder, "threads", thread_folder(line.name, line.uid))
        # What is there was left by a writer that was interrupted before the line existed.
        shutil.rmtree(folder, ignore_errors=True)
        self._disk.make_folder(folder)
        first = line.parent_seq + 1
        text = header(line, first, durable=self._disk.durable)
        if prepared is not None:
            write_extras(folder, prepared, self.sealed, self._disk)
            text += prepared.text
        self._disk.write_new(os.path.join(folder, segment_name(first)), text)
        self._disk.sync_folder(folder)
        self.catalog.add(line, tags)
        files = self.files(line.id)
        assert files is not None
        self.views.touch(files)
        return self.catalog.lines[line.id]

    def _can_fork(self, line: Line, source: int) -> bool:
        found = self.line(source)
        if found is None or self.found(found) is None or found.deleted:
            return False
        parent = self.files(line.parent)
        if parent is not None and parent.is_pruned(line.parent_seq):
            raise VersionGone
        return parent is not None and parent.last_seq >= line.parent_seq

    def _free(self, space: str, name: str) -> None:
        """Raise :class:`NameTaken` unless the name is free; finish a deletion that was interrupted."""
        taken = self.catalog.find(space, name)
        if taken is not None:
            if self.found(taken) is not None:
                raise NameTaken
            self._finish_deletion(taken)

    def append(self, rows: list[tuple[int, Prepared]]) -> list[Exception | None]:
        """Append rows, with a sync for each line at its end; what went wrong with each.

        An :class:`OSError` stands for a row whose line couldn't be written.
        """
        outcomes: list[Exception | None] = []
        waiting: dict[int, Batch] = {}
        for line, prepared in rows:
            if line not in self.catalog.lines:
                self.catalog.refresh()
            outcomes.append(self._plan(line, prepared, waiting, len(outcomes)))
        for step in (lambda batch: batch.write(self.sealed, self._disk), Batch.sync):
            for line, batch in list(waiting.items()):
                try:
                    step(batch)
                except (OSError, Replaced) as error:
                    for index in batch.indices:
                        outcomes[index] = error if isinstance(error, OSError) else OSError(str(error))
                    self.forget(line)
                    del waiting[line]
        for line, batch in waiting.items():
            self.views.touch(batch.files)
            if self._open_lines.get(line) is not batch.files:
                # More lines at once than stay open: this one was dropped from memory meanwhile.
                batch.files.close()
        return outcomes

    def _plan(self, line: int, prepared: Prepared, waiting: dict[int, Batch], index: int) -> Exception | None:
        """Add a row to what is written next, unless it may not be appended."""
        batch = waiting.get(line)
        if batch is None:
            files = self.files(line)
            if files is None or files.line.deleted or files.journal.sealed:
                return StaleWrite(None if files is None else files.found().newest, sealed=True)
            batch = Batch(files)
        if prepared.row.previous != batch.hash:
            return StaleWrite(batch.newest())
        if erased := self._erased_keys(prepared.row.sealed):
            return KeyErased(erased)
        source = prepared.row.source
        found = None if source is None else self.files(source[0])
        if source is not None and found is not None and found.is_pruned(source[1]):
            return VersionGone()
        if prepared.row.guard and self._knows_key(batch.files.line, prepared.row.key):
            return KeyKnown()
        batch.add(prepared, index)
        waiting[line] = batch
        return None

    def _erased_keys(self, rows: Iterable[SealedRow]) -> frozenset[bytes]:
        used = {key_id for _, keys, _ in rows for key_id in split_keys(keys)}
        return frozenset(used & self.ledger.read().keys()) if used else frozenset()

    def check_keys(self, rows: Iterable[SealedRow]) -> None:
        """Raise :class:`KeyErased` if any of these is sealed under a key that was erased."""
        if erased := self._erased_keys(rows):
            raise KeyErased(erased)

    def _knows_key(self, line: Line | None, key: bytes | None) -> bool:
        """Whether a folded version of a line, or of one that it was forked from, carries the key."""
        while line is not None and key is not None:
            files = self._open_lines.get(line.id) or self.files(line.id)
            if files is not None and files.keyed_before(key):
                return True
            line = self.line(line.parent) if line.parent else None
        return False

    def delete(self, line: Line, newest: bytes | None = None) -> bool:
        files = self.files(line.id)
        found = self.line(line.id)
        if files is None or found is None or found.deleted or found.uid != line.uid:
            return False
        if newest not in (None, files.hash):
            return False
        sealed_before = files.journal.sealed
        if not sealed_before:
            # From here on nothing can follow, even if the rest fails.
            files.journal.seal()
        self._finish_deletion(found)
        return not sealed_before

    def _finish_deletion(self, line: Line) -> None:
        if not self.catalog.lines[line.id].deleted:
            self.catalog.delete(line.id)
        self._purge(line.id)

    def _purge(self, line: int) -> None:
        """Remove what no living thread reaches any more: this deleted line, then perhaps its ancestors."""
        while line and self.catalog.lines[line].deleted and not self._is_needed(line):
            if line not in self.catalog.purged:
                self.catalog.purge(line)
            self.forget(line)
            shutil.rmtree(self.path(line), ignore_errors=True)
            line = self.catalog.lines[line].parent

    def _is_needed(self, line: int) -> bool:
        """Whether a fork still needs it: one that lives, or that is needed itself."""
        return any(
            not self.catalog.lines[child].deleted or child not in self.catalog.purged
            for child in self.catalog.children.get(line, ())
        )

    def prune(self, line: Line, prune: Prune) -> bool:
        self._finish_pruning(line.id)
        files = self.files(line.id)
        if files is None or not self._as_seen(prune.seen):
            return False
        rewriting = bool(prune.records or prune.chunks)
        work = JournalRedactor if rewriting else JournalPruner
        shown = self._showing(line.id) if rewriting else []
        for each in shown:
            # First of all: a kill after this leaves no view that shows what was redacted.
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.path(each), VIEW))
        try:
            return work(files, lambda seq: state_at(self, line, seq), self._disk).run(prune)
        finally:
            self.forget(line.id)
            for each in shown:
                self.forget(each)
                renewed = None if self.catalog.lines[each].deleted else self.files(each)
                if renewed is not None:
                    self.views.touch(renewed)

    def _showing(self, line: int) -> list[int]:
        """The line and all its forks: their views may show what is in it."""
        further = [each for child in self.catalog.children.get(line, ()) for each in self._showing(child)]
        return [line, *further]

    def _as_seen(self, seen: tuple[tuple[int, int], ...]) -> bool:
        """Whether none of these lines was rewound, forked or pruned since."""
        known = {line for line, _ in seen}
        for line, seq in seen:
            if any(child not in known for child in self.catalog.children.get(line, ())):
                return False
            files = self.files(line)
            for found, _ in files.down(files.last_seq) if files is not None else ():
                if (found.seq if isinstance(found, Entry) else found.last) <= seq:
                    break
                if found.kind in (REWIND, PRUNED):
                    return False
        return True

    def _finish_pruning(self, line: int) -> None:
        """Finish a pruning that was interrupted."""
        files = self.files(line)
        if files is not None and files.half_pruned:
            finish_pruning(files, self._disk)
            self.forget(line)

    # ── upkeep ───────────────────────────────────────────────────────────────────────────────

    def distrust(self, folder: str) -> None:
        """Do without the folds there until they have been made again."""
        self._damaged_folds.add(folder)
        self._forget_folder(folder)

    def _forget_folder(self, folder: str) -> None:
        for line in [line for line, files in self._open_lines.items() if files.folder == folder]:
            self.forget(line)

    @property
    def _busy(self) -> bool:
        """Whether upkeep is due, besides views."""
        waiting = self._damaged_folds or self._unfolded or self._half_deleted or self._half_pruned
        return not self._deletions_checked or bool(waiting)

    @property
    def has_chores(self) -> bool:
        return self._busy or self.views.waiting

    def chore(self) -> bool:
        """Do upkeep that nobody waits for; whether there is more. The caller holds the lock."""
        for folder in list(self._damaged_folds):
            with suppress(FileNotFoundError):
                remove_folds(folder)
            self._damaged_folds.discard(folder)
            self._forget_folder(folder)
        while self._half_pruned:
            self._finish_pruning(self._half_pruned.pop())
        while self._half_deleted:
            self._finish_deletion(self.catalog.lines[self._half_deleted.pop()])
        if not self._deletions_checked:
            self._deletions_checked = True
            self._finish_deletions()
        for line in list(self._unfolded):
            found = self.files(line)
            fold = None if found is None else line_files.next_fold(found)
            if found is None or fold is None or not line_files.fold(found, fold):
                self._unfolded.discard(line)
            return True
        self.views.flush()
        return False

    def _finish_deletions(self) -> None:
        """Remove deleted lines that no fork needs, where that was interrupted."""
        for line in list(self.catalog.lines.values()):
            if line.deleted and (line.id not in self.catalog.purged or os.path.isdir(self.path(line.id))):
                self._purge(line.id)

    def close(self) -> None:
        self.forget_all()
        self.catalog.close()
        self.streams.close()
        self.ledger.close()


# ── rows on their way into journals ──────────────────────────────────────────────────────────────


class Prepared(Struct):
    """A row ready to be written: its record, and the file for the items of a large commit."""

    row: NewRow
    text: bytes
    items: bytes
    parts: list[Part]


def prepare(row: NewRow, *, durable: bool) -> Prepared:
    """Render a row. Needs neither the lock nor the disk."""
    items, parts = render_items(row.chunks) if row.chunks else (b"", [])
    return Prepared(row, render(row, durable=durable, parts=parts), items, parts)


def write_extras(folder: str, prepared: Prepared, sealed: SealedValues, disk: Disk) -> None:
    """Write sealed values and items, durably, before the row that refers to them."""
    row = prepared.row
    if row.sealed:
        sealed.put(row.sealed)
    if prepared.items:
        disk.write_new(os.path.join(folder, items_name(row.seq, row.hash)), prepared.items)
        disk.sync_folder(folder)


class Batch:
    """Rows of one line that are written together."""

    def __init__(self, files: LineFiles) -> None:
        self.files = files
        #: What the next row has to build on.
        self.hash = files.hash
        #: The indices of these rows among all that were passed to :meth:`Content.append`.
        self.indices: list[int] = []
        self._prepared: list[Prepared] = []
        self._entries: list[Entry] = []
        self._end = files.journal.end
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
        """The newest row, for the error that a stale row gets."""
        if self._entries:
            return self.files.row((self._entries[-1], None))
        return self.files.found().newest

    def write(self, sealed: SealedValues, disk: Disk) -> None:
        """The first half: write the records, without a sync."""
        for prepared in self._prepared:
            if prepared.items or prepared.row.sealed:
                write_extras(self.files.folder, prepared, sealed, disk)
        file = self.files.journal.file
        file.prepare()
        self._text = b"".join(prepared.text for prepared in self._prepared)
        file.write(self._text)

    def sync(self) -> None:
        """The second half: make them durable."""
        self.files.journal.file.sync(self._text)
        for entry in self._entries:
            self.files.journal.add(entry)


# ── the check of everything in it ──────────────────────────────────────────────────────────────────


def check_content(content: Content, *, views: bool = True) -> list[str]:
    """What isn't as it was written, in words; with or without ``views``. Changes nothing."""
    catalog = content.catalog
    catalog.refresh()
    problems = catalog.unreadable()
    for line in list(catalog.lines.values()):
        if line.id not in catalog.purged:
            # Check twice: a write at this very moment may look like damage.
            found = _check_line(content, line) and _check_line(content, line)
            if found:
                # It may have been deleted meanwhile.
                catalog.refresh()
                found = [] if line.id in catalog.purged else found
            problems.extend(found)
            if views:
                problems.extend(_check_views(content, line))
    for part in (content.sealed, content.ledger, content.cells, content.streams):
        problems.extend(part.check())
    return problems


def _check_line(content: Content, line: Line) -> list[str]:
    folder = content.path(line.id)
    try:
        return list(_JournalCheck(line, folder, content).problems())
    except FileNotFoundError as error:
        return [f"{error.filename or folder} is missing"]
    except (StateCorruptedError, Replaced) as error:
        return [str(error)]


def _check_views(content: Content, line: Line) -> list[str]:
    try:
        return edited_views(content.path(line.id))
    except FileNotFoundError:
        return []


class _JournalCheck:
    """Checks a journal from its first record: checksums, order, and the chain of hashes."""

    def __init__(self, line: Line, folder: str, content: Content) -> None:
        self._line = line
        self._folder = folder
        self._content = content
        self._before = line.start_hash
        self._seq = line.parent_seq
        self._where = ""
        self._hashes: dict[int, bytes] = {}

    def problems(self) -> Iterator[str]:
        segments = segments_in(os.listdir(self._folder))
        if not segments:
            yield f"the journal in {self._folder} is missing"
            return
        following = segment_name(segments[0])
        while following:
            path = os.path.join(self._folder, following)
            following = ""
            file = RecordFile(path, self._content._disk)
            number = 0
            try:
                while records_ := file.grow():
                    for _, text, good in records_:
                        number += 1
                        self._where = f"{path}:{number}"
                        fields = fields_of(text) if good else None
                        if fields is None:
                            yield f"{self._where} doesn't fit its checksum"
                            self._before = b""
                        elif fields.get("kind") == "pruned":
                            yield from self._pruned(text)
                        elif "seq" in fields:
                            yield from self._version(text)
                        elif "everthread" in fields and fields.get("uid") != self._line.uid.hex():
                            yield f"{self._where} says that this journal belongs to another thread"
                        following = fields.get("continues", "") if fields else self._after(path, segments)
            finally:
                file.close()
        yield from self._folds()

    def _after(self, path: str, segments: list[int]) -> str:
        """The next segment after one whose last record, which would name it, can't be read."""
        names = [segment_name(segment) for segment in segments]
        later = names[names.index(os.path.basename(path)) + 1 :]
        return later[0] if later else ""

    def _version(self, text: bytes) -> Iterator[str]:
        try:
            record = read_record(text, self._where)
            digest = bytes.fromhex(record.hash)
            body = self._whole(read_body(text, self._where), record.apart, record.seq, digest)
        except (StateCorruptedError, ValueError) as error:
            yield str(error)
            self._before = b""
            return
        if record.seq != self._seq + 1 and self._before:
            yield f"{self._where} holds version {record.seq} where {self._seq + 1} was expected"
        elif self._before and link(self._before, record_digest(body)) != digest:
            yield f"{self._where}: the chain of hashes is broken here"
        self._before, self._seq = digest, record.seq
        self._hashes[record.seq] = digest

    def _pruned(self, text: bytes) -> Iterator[str]:
        """Versions that are gone: the chain goes on over their digests."""
        try:
            pruned = read_pruned(text, self._where)
            row = pruned.row()
            files = LineFiles(self._line, self._folder, {}, self._content._disk)
            for part in pruned.apart:
                files.items(pruned.items, part.start, part.length)
        except StateCorruptedError as error:
            yield str(error)
            self._before = b""
            return
        before = self._before
        if row.first != self._seq + 1 and before:
            yield f"{self._where} begins with version {row.first} where {self._seq + 1} was expected"
        elif before:
            for digest in read_tombstone(row.body).digests:
                before = link(before, digest)
            if before != row.hash:
                yield f"{self._where}: the chain of hashes is broken here"
        self._before, self._seq = row.hash, row.seq
        self._hashes[row.seq] = row.hash

    def _whole(self, body: bytes, parts: list[Part], seq: int, digest: bytes) -> bytes:
        """The record with its items from a file of their own."""
        if not parts:
            return body
        files = LineFiles(self._line, self._folder, {}, self._content._disk)
        items: dict[str, dict[int, bytes]] = {}
        for part in parts:
            block, _ = files.items(items_name(seq, digest), part.start, part.length)
            items.setdefault(part.log, {}).update(enumerate(records.split(block), part.position))
        head, encoded, _ = records.read_record(body)
        try:
            found = [
                [items[log][position] for position in range(start, stop)]
                for log, start, stop in packs.inserted_ranges(encoded)
            ]
        except KeyError as error:
            raise StateCorruptedError(f"{self._where}: an item that stands apart is missing") from error
        return packs.whole(head, encoded, found)

    def _folds(self) -> Iterator[str]:
        """The folds must be those of this journal."""
        files = self._content.files(self._line.id)
        if files is None:
            return
        for pack, _ in files.folds.down(self._seq):
            if self._hashes.get(pack.last, pack.hash) != pack.hash:
                yield f"{self._folder}: what was folded up to version {pack.last} isn't what the journal says"
