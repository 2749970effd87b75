"""Checking a whole store against itself, and against heads that were signed and kept elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.codec import records
from everthread.codec.records import unframe
from everthread.errors import EverthreadError, StateCorruptedError, UsageError
from everthread.events.event import read_event
from everthread.history import packs
from everthread.history.chain import SignedHead
from everthread.history.retention import read_tombstone
from everthread.history.snapshots import read_keyframe
from everthread.maintenance.examine import CanOpen, Examination, Gap, SealedValues, rows_of
from everthread.maintenance.redaction_record import Redactions, read_redactions, redactions_space
from everthread.maintenance.reports import Affected, Damage, VerifyReport, What
from everthread.maintenance.unfinished import Work, cut_short
from everthread.stores.contract import DAMAGED, PACK, PRUNED, REWIND, SEAL_SEQ, Line, Row
from everthread.threads.reports import Progress
from everthread.threads.sync.fallback import newest_seq
from everthread.threads.sync.journals import COMPANIONS, in_words, is_companion, told_as
from everthread.threads.sync.reader import Reader
from everthread.threads.tombstones import AwayError
from everthread.values import Opaque

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core


# Which versions, of which threads, need something that is damaged.


#: A place where something is damaged: the line and the version.
Cause = tuple[int, int]
#: A line, and the first and last of some versions of it.
Versions = tuple[Line, int, int]


class Stretch(msgspec.Struct):
    """Versions of a line that can't be rebuilt, because of the same cause."""

    first: int
    last: int
    cause: Cause


class Touched:
    """The lines of one family, parents before their forks, and what can't be rebuilt of each."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lines: dict[int, Line] = {}
        self._by_uid: dict[bytes, int] = {}
        self._lost: dict[int, list[Stretch]] = {}
        self._newest: dict[int, int] = {}

    def add(self, line: Line) -> None:
        """Walk one line; those that it was forked from have been walked before."""
        self._lines[line.id], self._by_uid[line.uid] = line, line.id
        self._lost[line.id] = []
        self._newest[line.id] = line.parent_seq
        # The reason why the state before the row at hand is lost, if it is.
        inherited = cause = self._cause(line.parent, line.parent_seq) if line.parent else None
        expected = line.parent_seq + 1
        for row in rows_of(self._reader, line):
            if row.first > expected:
                cause = cause or (line.id, expected)
                self._lose(line, expected, row.first - 1, cause)
            if isinstance(row, Gap) or row.kind == DAMAGED:
                last = row.last if isinstance(row, Gap) else row.seq
                cause = cause or (line.id, row.first)
                if last == expected or isinstance(row, Gap):
                    self._lose(line, row.first, last, cause)
                    expected = last + 1
                continue
            expected = row.seq + 1
            self._newest[line.id] = row.seq
            cause = self._walk(line, row, cause)
        bare = expected == line.parent_seq + 1 and not line.deleted
        if inherited is not None and bare and is_companion(line):
            # The journal that a fork took along, and that has nothing of its own yet.
            self._lose(line, line.parent_seq, line.parent_seq, inherited)

    def _walk(self, line: Line, row: Row, cause: Cause | None) -> Cause | None:
        """Note what of a row can't be rebuilt; the reason why the state after it is lost, if it is."""
        readable, source = _readable(row)
        own = (line.id, row.first)
        if source is not None:
            known = self._by_uid.get(source[0])
            cause = self._cause(known, source[1]) if known is not None else own
        if not readable or cause is not None:
            self._lose(line, row.first, row.seq, cause or own)
        if row.keyframe is not None and _works(read_keyframe, row.keyframe):
            if readable and self._lost[line.id] and self._lost[line.id][-1].last == row.seq:
                # The state at the end of the row is told by the keyframe.
                self._lost[line.id][-1].last -= 1
            return None
        if not readable and not (row.kind == PACK and _works(packs.read_net, row.net or b"")):
            cause = cause or own
        return cause

    def _lose(self, line: Line, first: int, last: int, cause: Cause) -> None:
        lost = self._lost[line.id]
        if lost and lost[-1].cause == cause and lost[-1].last == first - 1:
            lost[-1].last = last
        elif last >= first:
            lost.append(Stretch(first, last, cause))

    def _cause(self, line: int, seq: int) -> Cause | None:
        """Why a version of a line can't be rebuilt."""
        while line in self._lines and seq <= self._lines[line].parent_seq and self._lines[line].parent:
            line = self._lines[line].parent
        found = (s.cause for s in self._lost.get(line, ()) if s.first <= seq <= s.last)
        return next(found, None)

    def hurt_by_source(self, line: Line) -> bool:
        """Whether the version that a line was forked from is among those that can't be rebuilt."""
        return bool(line.parent) and self._cause(line.parent, line.parent_seq) is not None

    def by(self, line: Line, damage: Damage) -> list[Versions]:
        """What a damage of a line touches."""
        if damage.what == "items":
            return self._from(line, damage.first)
        return [
            (self._lines[number], stretch.first, stretch.last)
            for number, stretches in self._lost.items()
            for stretch in stretches
            if stretch.last >= stretch.first
            and stretch.cause[0] == line.id
            and damage.first <= stretch.cause[1] <= damage.last
        ]

    def _from(self, line: Line, seq: int) -> list[Versions]:
        """Every version that comes after one of a line: items stay in a log until they are cut off."""
        found = [(line, seq, max(self._newest.get(line.id, seq), seq))]
        for fork in self._lines.values():
            if fork.parent == line.id and fork.parent_seq >= seq:
                found.extend(self._from(fork, fork.parent_seq + 1))
        return [(each, first, last) for each, first, last in found if last >= first]


def _readable(row: Row) -> tuple[bool, tuple[bytes, int] | None]:
    """Whether the versions of a row can be read, and where a rewind goes back to."""
    try:
        if row.kind == PRUNED:
            read_tombstone(row.body)
            return True, None
        if row.kind == PACK:
            for encoded in packs.read_pack(row.body).changes:
                records.read_change(encoded)
            return True, None
        head, encoded, _ = records.read_record(row.body)
        records.read_change(encoded)
        source = records.read_head(head).source if row.kind == REWIND else None
    except EverthreadError:
        return False, None
    return True, None if source is None else source[:2]


def _works(read: object, data: bytes) -> bool:
    try:
        read(data)  # type: ignore[operator]
    except EverthreadError:
        return False
    return True


_STORE = "(the whole store)"
#: What seems damaged is looked at again: a fold by somebody else meanwhile looks like it.
_LOOKS = 8
_TOLD_EVERY = 256
_PAGE = 200


class _Telling:
    """Tells how far it is, not more often than is worth it."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._settled = self._told = 0

    def __call__(self, versions: int) -> None:
        done = self._settled + versions
        if done - self._told >= _TOLD_EVERY:
            self._tell(done)

    def settle(self, versions: int) -> None:
        """So many versions are done with."""
        self._settled = versions
        self._tell(versions)

    def _tell(self, done: int) -> None:
        self._told = done
        self._total = max(self._total, done)
        self._progress(done, self._total)


class StoreCheck:
    """Reads everything once and recomputes what can be recomputed. Changes nothing."""

    def __init__(
        self,
        reader: Reader,
        space: str,
        can_open: CanOpen,
        anchors: Iterable[SignedHead] = (),
        public_key: Any = None,
    ) -> None:
        self._reader = reader
        self._can_open = can_open
        self._backend = reader.backend
        self._space = space
        self._anchors = list(anchors)
        self._public_key = public_key
        self._store: list[Damage] = []
        self._found: list[tuple[Line, Damage]] = []
        self._confirmed: set[tuple[str, int, bytes]] = set()
        self._newest: dict[str, int] = {}
        #: Lines whose source can't be read where they were forked from it.
        self._orphaned: set[int] = set()
        self._redacted = 0
        self._recorded: dict[str, Redactions] = {}
        if self._anchors and public_key is None:
            raise UsageError("anchors are checked against a key you trust: pass public_key as well")

    def run(self, progress: Progress | None, clock: Callable[[], int]) -> VerifyReport:
        threads = companions = versions = 0
        spaces = {self._space: None}
        self._check_engine()
        telling = _Telling(progress, self._count()) if progress is not None else None
        try:
            for line in self._backend.every_line():
                if not line.deleted:
                    threads += not is_companion(line)
                    companions += is_companion(line)
                spaces[line.space.partition("\0")[0]] = None
                versions += self._line(line, telling)
                if telling is not None:
                    telling.settle(versions)
        except AwayError:
            # Somewhere else: no verdict can be given.
            raise
        except EverthreadError as error:
            self._store.append(Damage(_STORE, 0, 0, str(error), "store"))
        begun: list[tuple[str, Work]] = []
        try:
            for space in spaces:
                self._events(space)
            begun = cut_short(self._backend, self._space, clock)
        except EverthreadError as error:
            self._store.append(Damage(_STORE, 0, 0, str(error), "store"))
        damage = [*self._store, *self._touched()]
        for anchor in self._anchors:
            damage.extend(self._anchored(anchor))
        told = tuple(str(work) for _, work in begun)
        return VerifyReport(threads, versions, tuple(damage), self._redacted, companions, told)

    def _events(self, space: str) -> None:
        """Personal values that events refer to; the events themselves are the engine's to check."""
        after: str | None = None
        while page := self._backend.streams(space, "", after, _PAGE):
            for stream, _ in page:

                def note(first: int, last: int, problem: object, what: What, stream: str = stream) -> None:
                    self._store.append(Damage(f"events of {stream}", first, last, str(problem), what))

                sealed, seq = SealedValues(self._backend, self._can_open, note), 0
                while events := self._backend.events(space, stream, seq, _PAGE):
                    for event in events:
                        with suppress(StateCorruptedError):
                            sealed.look(event.seq, event.seq, (unframe(event.body, "an event"),))
                    seq = events[-1].seq
            after = page[-1][0]

    def _check_engine(self) -> None:
        try:
            problems: Sequence[str] = self._backend.check()
        except EverthreadError as error:
            problems = [str(error)]
        self._store.extend(Damage(_STORE, 0, 0, problem, "store") for problem in problems)

    def _count(self) -> int:
        """How many versions there are to look at, about."""
        total = 0
        try:
            for line in self._backend.every_line():
                if not line.deleted:
                    total += newest_seq(self._backend, line) - line.parent_seq
        except EverthreadError:
            # The same will be met, and told, while verifying.
            pass
        return total

    def _line(self, line: Line, tick: Callable[[int], None] | None) -> int:
        """Check one line; how many versions were looked at."""
        anchored: dict[int, set[bytes]] = {}
        if line.space == self._space:
            for anchor in self._anchors:
                if anchor.thread == line.name:
                    anchored.setdefault(anchor.seq, set()).add(anchor.hash)
        known = self._redactions(line)
        examined = Examination(self._reader, line, self._can_open, anchored, tick, known)
        before: list[Damage] = []
        for look in range(_LOOKS):
            try:
                if line.deleted and not self._backend.scan(line.id, SEAL_SEQ - 1, 1):
                    # Deleted and purged: nothing is left to check, nor perhaps what it was forked from.
                    return 0
                examined.run()
            except AwayError:
                raise
            except EverthreadError as error:
                examined.damage.append(Damage(line.name, 0, 0, str(error), "thread"))
            if not examined.damage or examined.damage == before or look + 1 == _LOOKS:
                break
            before = examined.damage
            now = self._now(line)
            if now is None or now.deleted != line.deleted:
                # Deleted meanwhile.
                return 0
            known = self._redactions(line, again=True)
            examined = Examination(self._reader, line, self._can_open, anchored, None, known)
        self._found.extend((line, damage) for damage in examined.damage)
        if examined.orphaned:
            self._orphaned.add(line.id)
        self._redacted += examined.redacted
        self._confirmed.update((line.name, *entry) for entry in examined.confirmed)
        if line.space == self._space and not line.deleted and anchored:
            self._newest[line.name] = examined.newest
        return examined.versions

    def _redactions(self, line: Line, *, again: bool = False) -> Redactions:
        """What was redacted in the namespace of a line, as the store has recorded it."""
        space = redactions_space(line.space)
        if space not in self._recorded or again:
            try:
                self._recorded[space] = read_redactions(self._reader, line.space)
            except EverthreadError:
                # The record is a thread as well: what is wrong with it is told there.
                self._recorded[space] = {}
        return self._recorded[space]

    def _now(self, line: Line) -> Line | None:
        try:
            return self._backend.line(line.id)
        except EverthreadError:
            return line

    def _touched(self) -> list[Damage]:
        """The damage of all lines, with what each touches."""
        roots = {line.root for line, damage in self._found if damage.what in ("version", "items")}
        families = {root: Touched(self._reader) for root in roots}
        if roots:
            try:
                for line in self._backend.every_line():
                    if line.root in families:
                        families[line.root].add(line)
            except EverthreadError as error:
                self._store.append(Damage(_STORE, 0, 0, str(error), "store"))
        found = []
        for line, damage in self._found:
            family = families.get(line.root)
            if family is not None and self._is_repeated(line, damage) and family.hurt_by_source(line):
                # Told where the damage is, which touches this line.
                continue
            affected: list[Affected] = []
            if damage.what in ("version", "items"):
                for each, first, last in families[line.root].by(line, damage):
                    affected.append(Affected(*self._called(each, first, last)))
            name, first, last, beside = self._called(line, damage.first, damage.last)
            problem = in_words(self._backend, damage.problem) if beside else damage.problem
            found.append(Damage(name, first, last, problem, damage.what, tuple(affected), beside))
        return found

    def _is_repeated(self, line: Line, damage: Damage) -> bool:
        """Whether a journal that a fork took along only says that its source can't be read."""
        at_source = damage.what == "thread" and damage.first == line.parent_seq
        return at_source and is_companion(line) and line.id in self._orphaned

    def _called(self, line: Line, first: int, last: int) -> tuple[str, int, int, str]:
        """Versions of a line as a report names them."""
        name, kind = told_as(self._backend, line)
        deleted = " (deleted)" if line.deleted else ""
        return name + deleted, first, last, kind if kind in COMPANIONS else ""

    def _anchored(self, anchor: SignedHead) -> list[Damage]:
        """What a signed head shows to be wrong."""
        if not anchor.verify(self._public_key):
            problem = "this head wasn't signed with that key"
        elif (anchor.thread, anchor.seq, anchor.hash) in self._confirmed:
            return []
        elif anchor.thread not in self._newest:
            problem = "there is no such thread any more: it was deleted, or taken out"
        elif self._newest[anchor.thread] < anchor.seq:
            newest = self._newest[anchor.thread]
            problem = f"history was cut off: version {anchor.seq} was signed, version {newest} is the newest"
        else:
            problem = f"history was rewritten: {anchor.version_id} was signed and isn't version {anchor.seq}"
        return [Damage(anchor.thread, anchor.seq, anchor.seq, problem, "anchor")]


# Checking every event of a store.


_EVENTS_PAGE = 500


def damaged_events(core: Core) -> Iterator[Damage]:
    """What isn't as it was written, in all streams of this store's namespace. Reads everything."""
    after: str | None = None
    while streams := core.backend.streams(core.space, "", after, _EVENTS_PAGE):
        for name, _ in streams:
            yield from _damaged(core, name)
        after = streams[-1][0]


def _damaged(core: Core, stream: str) -> Iterator[Damage]:
    what = f"events {stream}"
    seq = None
    while page := core.backend.events(core.space, stream, seq or 0, _EVENTS_PAGE):
        for stored in page:
            if seq is not None and stored.seq != seq + 1 and not _trimmed(core, stream, seq + 1):
                yield Damage(what, seq + 1, stored.seq - 1, "events are missing")
            seq = stored.seq
            try:
                # Sealed values stay sealed: whether they are sound is their keys' business.
                read_event(stream, stored, Opaque)
            except EverthreadError as error:
                yield Damage(what, seq, seq, str(error))
    # Asked now, when nothing more came: what was added or removed meanwhile is no damage.
    for name, last in core.backend.streams(core.space, stream, None, 1):
        behind = name == stream and (seq or 0) < last
        if behind and not core.backend.events(core.space, stream, seq or 0, 1):
            yield Damage(what, (seq or 0) + 1, last, "events are missing")


def _trimmed(core: Core, stream: str, seq: int) -> bool:
    """Whether a stream begins after this seq: others may trim it while it is read."""
    page = core.backend.events(core.space, stream, 0, 1)
    return bool(page) and page[0].seq > seq
