"""Searching with an index: bringing it up to date first, then asking it, then looking at what it found."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from everthread.errors import DamageError, InvalidValueError, NotFoundError
from everthread.history.chain import parse_version_id, version_id
from everthread.history.logs import EMPTY_LOG
from everthread.history.spans import Spans
from everthread.search.gathering import BATCH, Gathering
from everthread.search.lending import Lending
from everthread.search.marks import Mark, entry_key, parted, plain_words, position_key, read_mark, spans_of
from everthread.search.texts import DOCUMENT_KINDS, item_text, kind_of_log
from everthread.stores.contract import Covered, Text

if TYPE_CHECKING:
    from everthread.stores.contract import Found, Line
    from everthread.threads.sync.core import Core

#: How often a thread is begun anew because another process indexes it too.
_TRIES = 5


class Overtaken(Exception):  # noqa: N818 - a signal inside this module
    """Another process has indexed this thread meanwhile."""


class Indexer:
    """Keeps the index of a namespace up to date."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._known: dict[bytes, bytes] = {}
        #: Up to which version threads were found to be indexed, or were indexed here.
        self._seen: dict[bytes, str] = {}
        self.lending = Lending(core)

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
        memo = self._core.head(found)
        version = memo.version.id
        if current and mark.version == version:
            self._note(line, mark)
            return
        if packed is not None and not self._leads_here(line, mark.version):
            self._core.backend.forget_texts(self._core.space, [line.uid])
            packed, mark = None, Mark()
        gathered = Gathering(self._core, line, memo)
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

    def _cover_log(self, update: Update, gathered: Gathering, line: Line, log: str) -> None:
        wanted, held = spans_of(gathered.logs.get(log, EMPTY_LOG)), update.held.get(log, Spans())
        borrowed, wanted = self.lending.borrow(line, log, wanted)
        for lender, spans in borrowed.items():
            update.borrowed.setdefault(lender, {})[log] = list(spans)
        update.held[log], gone = parted(held, wanted)
        update.gone.extend(position_key(log, position) for span in gone for position in span)
        for span in parted(wanted, held)[1]:
            for position, item in gathered.items(log, span.start, span.stop):
                words = plain_words(item_text(item))
                if words:
                    update.texts.append(Text(position_key(log, position), kind_of_log(log), words))
                update.held[log].add(position, position)
                if len(update.texts) >= BATCH:
                    # What is done stays done, however long the thread is and whenever this is interrupted.
                    update.write(complete=False)

    def _cover_document(self, update: Update, gathered: Gathering) -> None:
        here = {entry_key(entry): entry for entry in gathered.entries}
        there: set[str] = set()
        if update.before is not None:
            keys = self._core.backend.text_keys(self._core.space, update.uid, DOCUMENT_KINDS)
            there.update(keys)
        update.gone.extend(there - here.keys())
        update.texts.extend(
            Text(key, entry.kind, plain_words(entry.text)) for key, entry in here.items() if key not in there
        )


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
