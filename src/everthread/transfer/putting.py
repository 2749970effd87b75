"""Putting into a store what was taken out of another: version by version, as they were.

Everything goes through the verbs of the contract, so that any store takes it. What is there already is
recognised by the uid of its line and by its hashes, and skipped: putting the same in again changes nothing,
and putting in what was cut short goes on where that ended.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Literal, get_args

import msgspec

from everthread.arguments import check_name
from everthread.codec.archive import (
    CellEntry,
    Entry,
    ErasedEntry,
    EventsEntry,
    GoneEntry,
    LineEntry,
    PrunedEntry,
    SealedEntry,
    VersionsEntry,
)
from everthread.errors import InvalidValueError, StateCorruptedError, ThreadExistsError
from everthread.events.saved import read_position
from everthread.people.owned import used_keys
from everthread.stores.contract import DELETED, DESTROYED, FINISHED, ErasedKey, Line, StaleCell
from everthread.threads.reports import Progress
from everthread.threads.sync.core import Core
from everthread.transfer import spaces
from everthread.transfer.growing import DELETED_HERE, Growing
from everthread.transfer.incoming import Incoming, Origin
from everthread.transfer.reports import JOURNAL, PERSON, ImportReport, shown
from everthread.transfer.streaming import DIVERGED, StreamPutting
from everthread.transfer.taking import last_seq

#: What to do about a name that is taken by something else.
OnConflict = Literal["error", "rename", "skip"]
_NAMED_MAX = 20


def check_conflict(rule: str) -> OnConflict:
    if rule not in get_args(OnConflict):
        raise InvalidValueError(
            f"on_conflict is 'error', 'rename' or 'skip', not {rule!r}", path="on_conflict"
        )
    return rule  # type: ignore[return-value]


class Putter:
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
        dry: Putter | None = None,
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
        self._growing: Growing | None = None
        self._stream: StreamPutting | None = None
        self._values = Incoming(core.backend, origin)
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
        if self._namespaces and spaces.namespace_of(space) not in self._namespaces:
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
            called = self._called(spaces.JOURNALS, uid.hex())
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
                elif not spaces.is_gone(line.space):
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
            space = spaces.gone_space(space, entry.uid)
        elif space.endswith(spaces.LIFETIMES):
            # Beside those that are here: all of them count.
            if self._backend.find(space, name) is not None:
                name = self._free_name(space, name)
        elif self._backend.find(space, name) is not None:
            if self._rule != "rename" or space.endswith(spaces.USERS):
                person = "there is other data of the same person here"
                why = person if space.endswith(spaces.USERS) else "another thread has this name"
                self._left_out[entry.uid] = called = self._called(space, name)
                self._conflict(called, why)
                return
            name = self._free_name(space, name)
            self.renamed[entry.name] = name
        self._begin(entry, self._new(entry, space, name), None)

    def _belongs_to_left_out(self, entry: LineEntry) -> bool:
        """Whether it is a fork or the journal of something that is left out; then it is as well. A fork that
        is here goes on: it has all that it needs."""
        journal = entry.space.endswith(spaces.JOURNALS) and spaces.uid_of(entry.name) in self._left_out
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
        if space.endswith(spaces.JOURNALS):
            self._journals_out[spaces.uid_of(name)] = why
        else:
            self.skipped[called] = why

    def _called(self, space: str, name: str) -> str:
        """How people know a line: what stands beside threads is called after ids."""
        if space.endswith(spaces.USERS):
            # Whose key it is only the keyring could tell, and only who knows the name could ask.
            return f"{PERSON} (key {name})"
        if not space.endswith(spaces.JOURNALS):
            return name
        owner = self._backend.line_by_uid(spaces.uid_of(name))
        return f"{JOURNAL} {owner.name!r}" if owner is not None else f"{JOURNAL} the thread {name}"

    def _begin(self, entry: LineEntry, line: Line, found: Line | None) -> None:
        if entry.deleted and not line.deleted and spaces.is_gone(line.space):
            # Made for its forks, now or by an import that was cut short. What is in its own place here was
            # deleted by nobody here, and may hold what only this store has.
            self._doomed.append(entry.uid)
        hidden = line.deleted or "\0" in line.space
        self._growing = Growing(self._core_of(line.space), line, found, hidden=hidden, dry=self._dry)
        self._growing.begin()

    def _free_name(self, space: str, name: str) -> str:
        number = 1
        while self._backend.find(space, spaces.free_name(name, number)) is not None:
            number += 1
        return spaces.free_name(name, number)

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
            growing = self._growing = Growing(
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
            stream = self._stream = StreamPutting(self._core_of(entry.space), *place, under, dry=self._dry)
            stream.begin()
        stream.add(entry, self._values)
        self._tell(len(entry.events))

    def _free_stream(self, space: str, name: str) -> str:
        number = 1
        while last_seq(self._backend, space, spaces.free_name(name, number)):
            number += 1
        return spaces.free_name(name, number)

    def _cell(self, entry: CellEntry) -> None:
        """A position of a consumer. One that is here already knows better."""
        space, stream = self._check_space(entry.space), spaces.consumed_stream(entry.name)
        under = self._streams_named.get((space, stream), stream)
        if self._dry or not stream or ((space, stream) in self._streams_out and under == stream):
            return
        name, now_us = spaces.renamed_consumer(entry.name, under), self._core.runtime.now_us()
        if self._backend.cell(space, name, now_us) is not None:
            return
        putting = StreamPutting(self._core_of(space), space, stream, under, dry=False)
        putting.begin()
        putting.catch_up(read_position(entry.value, f"the cell {entry.name!r}"))
        with suppress(StaleCell):
            self._backend.swap(space, name, 0, entry.value, now_us)


def _in_the_way(conflicts: dict[str, str], so: str) -> ThreadExistsError:
    told = [f"{shown(name)} ({why})" for name, why in list(conflicts.items())[:_NAMED_MAX]]
    more = f" and {len(conflicts) - _NAMED_MAX} more" if len(conflicts) > _NAMED_MAX else ""
    return ThreadExistsError(
        f"{so}, because of {', '.join(told)}{more}; "
        "on_conflict='skip' leaves these out, 'rename' brings those whose name is taken under another one"
    )
