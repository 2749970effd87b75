"""The index of texts: made when somebody searches, and brought up to date thread by thread.

A fork shares the texts of its source: a text is indexed once, under the thread that it first stood in.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.codec.values import lift
from everthread.errors import DamageError, InvalidValueError, NotFoundError
from everthread.history.chain import parse_version_id, version_id
from everthread.history.logs import EMPTY_LOG, LogState
from everthread.history.retention import Spans
from everthread.search.text import DOCUMENT_KINDS, Entry, document_entries, item_text, kind_of_log, words_of
from everthread.stores.contract import Covered, Text

if TYPE_CHECKING:
    from everthread.stores.contract import Found, Line
    from everthread.threads.head_cache import CachedHead
    from everthread.threads.sync.core import Core

#: Items that are read at a time.
BATCH = 256
#: Of what is indexed, and how. Another number, and everything is indexed anew.
FORMAT = 2
#: From a position up to another, whose own they are: the thread's that wrote them.
Stretch = tuple[int, int, bytes]
#: How often a thread is begun anew because another process indexes it too.
_TRIES = 5


class Indexer:
    """Keeps the index of a namespace up to date."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._known: dict[bytes, bytes] = {}
        #: Up to which version threads were found to be indexed, or were indexed here.
        self._seen: dict[bytes, str] = {}
        self.lending = SharedTexts(core)

    def begin(self) -> None:
        self._known = self._core.backend.texts_covered(self._core.space)

    def forget_others(self, living: set[bytes]) -> None:
        """Remove what the index knows of threads that are gone."""
        gone = [uid for uid in self._known if uid not in living]
        if gone:
            self._core.backend.forget_texts(self._core.space, gone)

    def still_covers(self, uids: Collection[bytes]) -> bool:
        """Whether the index still knows all of these threads as they were seen here: an erasure empties it,
        whoever searches just then, and who fills it again may have seen them before."""
        known = self._core.backend.texts_covered(self._core.space)
        marks = {uid: read_mark(known.get(uid)) for uid in uids}
        for uid, mark in marks.items():
            if not mark.complete or mark.version is None or uid not in self._seen:
                return False
            if not mark.stands(marks):
                return False
            if parse_version_id(mark.version)[0] < parse_version_id(self._seen[uid])[0]:
                return False
        return True

    def cover(self, found: Found) -> None:
        """Index what is new in a thread, and remove what it no longer holds. For one thread after the other,
        the oldest first."""
        for _ in range(_TRIES):
            try:
                return self._cover(found)
            except Overtaken:
                self.begin()
        return None

    def _cover(self, found: Found) -> None:
        line, newest = found.line, found.newest
        packed = self._known.get(line.uid)
        mark = read_mark(packed)
        current = mark.complete and self.lending.stands(mark)
        if newest is not None and current and mark.version == version_id(newest.seq, newest.hash):
            self._note(line, mark)
            return
        head = self._core.head(found)
        version = head.version.id
        if current and mark.version == version:
            self._note(line, mark)
            return
        if packed is not None and not self._leads_here(line, mark.version):
            self._core.backend.forget_texts(self._core.space, [line.uid])
            packed, mark = None, Mark()
        gathered = TextReader(self._core, line, head)
        update = Update(self._core, line.uid, version, packed, mark)
        for log in sorted({*gathered.logs, *mark.logs}):
            self._cover_log(update, gathered, line, log)
        self._cover_document(update, gathered)
        self._note(line, update.write(complete=True))

    def _note(self, line: Line, mark: Mark) -> None:
        assert mark.version is not None
        self._seen[line.uid] = mark.version
        self.lending.note(line, mark)

    def _leads_here(self, line: Line, version: str | None) -> bool:
        """Whether what is indexed was of this past. A restored backup, or an older state out of version
        control, goes on differently, with other items at the same positions."""
        if version is None:
            return False
        try:
            found, _ = self._core.reader.version(line, parse_version_id(version)[0], gone=True)
        except (NotFoundError, InvalidValueError, DamageError):
            return False
        return found.id == version

    def _cover_log(self, update: Update, gathered: TextReader, line: Line, log: str) -> None:
        wanted, held = spans_of(gathered.logs.get(log, EMPTY_LOG)), update.held.get(log, Spans())
        borrowed, wanted = self.lending.borrow(line, log, wanted)
        for lender, spans in borrowed.items():
            update.borrowed.setdefault(lender, {})[log] = list(spans)
        update.held[log], gone = parted(held, wanted)
        update.gone.extend(position_key(log, position) for span in gone for position in span)
        for span in parted(wanted, held)[1]:
            for position, item in gathered.items(log, span.start, span.stop):
                words = plain_words(item_text(item, log))
                if words:
                    update.texts.append(Text(position_key(log, position), kind_of_log(log), words))
                update.held[log].add(position, position)
                if len(update.texts) >= BATCH:
                    # What is done stays done, however long the thread is and whenever this is interrupted.
                    update.write(complete=False)

    def _cover_document(self, update: Update, gathered: TextReader) -> None:
        here = {entry_key(entry): entry for entry in gathered.entries}
        there: set[str] = set()
        if update.before is not None:
            keys = self._core.backend.text_keys(self._core.space, update.uid, DOCUMENT_KINDS)
            there.update(keys)
        update.gone.extend(there - here.keys())
        update.texts.extend(
            Text(key, entry.kind, plain_words(entry.text)) for key, entry in here.items() if key not in there
        )


class Overtaken(Exception):  # noqa: N818 - a signal inside this module
    """Another process has indexed this thread meanwhile."""


class Update:
    """What of a thread is to be written to the index."""

    def __init__(self, core: Core, uid: bytes, version: str, before: bytes | None, mark: Mark) -> None:
        self._core = core
        self.uid = uid
        self._version = version
        self.before = before
        self.held = {log: Spans(spans) for log, spans in mark.logs.items()}
        self.borrowed: dict[bytes, dict[str, list[tuple[int, int]]]] = {}
        self.gone: list[str] = []
        self.texts: list[Text] = []

    def write(self, *, complete: bool) -> Mark:
        """Write what has gathered; raises :class:`Overtaken` if another process was first."""
        logs = {log: list(spans) for log, spans in self.held.items() if len(spans)}
        mark = Mark(version=self._version, complete=complete, logs=logs, borrowed=self.borrowed)
        packed = msgspec.msgpack.encode(mark)
        covered = Covered(self.uid, self.before, packed, tuple(self.gone), tuple(self.texts))
        if not self._core.backend.cover_texts(self._core.space, covered):
            raise Overtaken
        self.before = packed
        self.gone, self.texts = [], []
        return mark


# ── texts that threads share ────────────────────────────────────────────────────────────────────────────


class SharedTexts:
    """Who of a family has which texts in the index. Threads are noted the oldest first."""

    def __init__(self, core: Core) -> None:
        self._owners = Owners(core)
        self._families: dict[int, list[tuple[Line, Mark]]] = {}
        self._lines: dict[bytes, Line] = {}
        self._marks: dict[bytes, Mark] = {}

    def note(self, line: Line, mark: Mark) -> None:
        """The index is up to date with a thread."""
        self._families.setdefault(line.root, []).append((line, mark))
        self._lines[line.uid], self._marks[line.uid] = line, mark

    def stands(self, mark: Mark) -> bool:
        """Whether what a thread has borrowed is still there."""
        return mark.stands(self._marks)

    def lenders(self, uid: bytes) -> Iterable[bytes]:
        """From whom a thread has borrowed."""
        return self._marks[uid].borrowed

    def owner(self, uid: bytes, log: str, position: int) -> bytes:
        """Whose own the item is that a thread has there."""
        return self._owner(self._lines[uid], log, position) if uid in self._lines else uid

    def holders(self, uid: bytes, log: str, position: int) -> Iterator[bytes]:
        """The threads that have the same item there as this one, the oldest first."""
        if uid not in self._lines:
            return
        line = self._lines[uid]
        owner = self._owner(line, log, position)
        for other, mark in self._families[line.root]:
            if mark.holds(log, position) and self._owner(other, log, position) == owner:
                yield other.uid

    def _owner(self, line: Line, log: str, position: int) -> bytes:
        stretches = self._owners.of(line, log)
        return next(owner for start, _, owner in stretches if start <= position)

    def borrow(self, line: Line, log: str, wanted: Spans) -> tuple[dict[bytes, Spans], Spans]:
        """From whom which positions are borrowed, and which are left to be indexed."""
        borrowed: dict[bytes, Spans] = {}
        if not line.parent:
            return borrowed, wanted
        own = line.counts.get(log, 0)
        shared, left = parted(wanted, Spans([(0, own - 1)]))
        rest = Spans((each.start, each.stop - 1) for each in left)
        for other, mark in self._families.get(line.root, ()):
            if not len(shared):
                break
            if log in mark.logs:
                lent, missing = parted(shared, self._lendable(line, other, mark, log))
                if len(lent):
                    borrowed[other.uid] = lent
                    shared = Spans((each.start, each.stop - 1) for each in missing)
        for first, last in shared:
            rest.add(first, last)
        return borrowed, rest

    def _lendable(self, line: Line, other: Line, mark: Mark, log: str) -> Spans:
        """The positions that another thread has in the index, as far as they are the same items."""
        theirs = self._owners.of(other, log)
        same = Spans()
        for start, stop, uid in self._owners.of(line, log):
            for first, last, whose in theirs:
                if uid == whose:
                    same.add(max(start, first), min(stop, last) - 1)
        return parted(Spans(mark.logs[log]), same)[0]


class Owners:
    """Whose own the items of threads are."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lines: dict[int, Line] = {}

    def of(self, line: Line, log: str) -> list[Stretch]:
        """The positions of a log by whose own they are, the last ones first."""
        found: list[Stretch] = []
        stop = sys.maxsize
        while True:
            start = line.counts.get(log, 0) if line.parent else 0
            if start < stop:
                found.append((start, stop, line.uid))
            stop = min(start, stop)
            if not stop:
                return found
            line = self._parent(line)

    def _parent(self, line: Line) -> Line:
        if line.parent not in self._lines:
            self._lines[line.parent] = self._core.reader.parent(line)
        return self._lines[line.parent]


# ── the texts of one thread ─────────────────────────────────────────────────────────────────────────────


class TextReader:
    """A thread at its newest version, to be read from."""

    def __init__(self, core: Core, line: Line, head: CachedHead) -> None:
        self._core = core
        self._line = line
        self._head = head

    @property
    def logs(self) -> dict[str, LogState]:
        """The logs that are the caller's, by name."""
        return {name: state for name, state in self._head.logs.items() if "\0" not in name}

    @cached_property
    def entries(self) -> list[Entry]:
        """The texts of the document."""
        document = lift(self._head.build_document())
        return list(document_entries(document)) if isinstance(document, dict) else []

    def items(self, log: str, first: int, last: int) -> Iterator[tuple[int, Any]]:
        """The items at the positions ``[first, last)`` of a log, each with its position."""
        recent = self._head.recent.get(log)
        for start in range(first, last, BATCH):
            stop = min(start + BATCH, last)
            items = self._core.reader.items(self._line, log, start, stop, recent, None)
            yield from enumerate(items, start)


# ── how far a thread is indexed ─────────────────────────────────────────────────────────────────────────


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """The version that is covered, whether all of it is, the positions of each log that stand in the index
    for this thread, and those that it has borrowed, by whose they are there."""

    format: int = FORMAT
    version: str | None = None
    complete: bool = False
    logs: dict[str, list[tuple[int, int]]] = {}
    borrowed: dict[bytes, dict[str, list[tuple[int, int]]]] = {}

    def holds(self, log: str, position: int) -> bool:
        """Whether the thread has an item there, by itself or borrowed."""
        every = (self.logs, *self.borrowed.values())
        return any(first <= position <= last for logs in every for first, last in logs.get(log, ()))

    def stands(self, marks: Mapping[bytes, Mark]) -> bool:
        """Whether the others still have what was borrowed from them."""
        for uid, logs in self.borrowed.items():
            lender = marks.get(uid)
            for log, spans in logs.items():
                held = Spans(lender.logs.get(log, ())) if lender is not None else Spans()
                if not all(held.covers(*span) for span in spans):
                    return False
        return True


def read_mark(packed: bytes | None) -> Mark:
    """What is covered; nothing, if that is all that can be said."""
    if packed is not None:
        try:
            mark = msgspec.msgpack.decode(packed, type=Mark)
        except (msgspec.DecodeError, ValueError):
            return Mark()
        if mark.format == FORMAT:
            return mark
    return Mark()


def spans_of(state: LogState) -> Spans:
    """The positions that a log holds."""
    return Spans((first, last - 1) for first, last in state.pieces)


def parted(spans: Spans, others: Spans) -> tuple[Spans, list[range]]:
    """What both hold, and what only the first one does."""
    shared = Spans()
    alone = []
    for span in spans:
        for first, last, inside in others.split(*span):
            if inside:
                shared.add(first, last)
            else:
                alone.append(range(first, last + 1))
    return shared, alone


def position_key(log: str, position: int) -> str:
    return f"{position}:{log}"


def read_position(key: str) -> tuple[str, int]:
    position, _, log = key.partition(":")
    return log, int(position)


def entry_key(entry: Entry) -> str:
    digest = sha256(entry.text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{entry.kind}:{digest}:{entry.id}"


def plain_words(text: str) -> str:
    """A text as the index takes it."""
    return " ".join(word.plain for word in words_of(text))
