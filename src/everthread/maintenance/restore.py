"""``store.restore()``: what happened after a backup was made has happened, whatever the backup says.

A restored ledger is an older one, whole, and would call what it doesn't know a second time. So what is known
of every ledger goes into the restored content, in the same transaction, as a lease that nobody holds: whoever
begins a run compares with it, and whoever began one before finds the lease gone. Afterwards the ledgers that
lack something get the mark that salvaging leaves as well, which forks and exports take along.

That comparison is enough only if this store is the one that the backup was made of. A store that is new,
empty, damaged or another one knows nothing of what happened after the backup: then a doubt
(``threads/doubts``) is recorded for all ledgers, in the same transaction.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from everthread.errors import ConflictError, EverthreadError, VersionNotFoundError
from everthread.history.chain import version_id
from everthread.maintenance.reports import RestoreReport
from everthread.process import here
from everthread.stores.contract import Cell, Found, Line, PutCell, StaleCell
from everthread.threads.doubts import Doubt, Origin, moment, read_origin, unacknowledged
from everthread.threads.sync.journals import (
    DOUBT,
    GONE,
    JOURNAL,
    LEASE,
    LOSSES,
    LOSSY_FORMAT,
    ORIGIN,
    Lost,
    every_cell,
    is_companion,
    lost_records,
    put_doubts,
    read_doubts,
    read_lost,
    shorter,
    space_beside,
)

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core
    from everthread.threads.sync.thread import Thread

_PAGE = 500
_DELETED = "its thread was deleted after the backup had been made"
_OTHER_WAY = "a backup was restored that doesn't know all of it"
_ELSEWHERE = "a backup was restored, and nothing here knows what happened after it was made"
_STORE, _BACKUP = "store", "backup"


class Known(msgspec.Struct):
    """What a store knows of a ledger before its content is replaced."""

    space: str
    uid: bytes
    name: str = ""
    seq: int = 0
    id: str = ""
    deleted: bool = False
    #: Whether a run has it that may go on.
    held: bool = False


class Ledgers:
    """The ledgers of a store, of all namespaces, as they are before a backup is restored.

    ``nothing_since``: the caller knows that no effect was called after the backup was made.
    """

    def __init__(self, core: Core, nothing_since: bool = False) -> None:
        self.core = core
        self._known: dict[bytes, Known] = {}
        self._gone: list[PutCell] = []
        self._doubt: Doubt | None = None if nothing_since else new_doubt(core, 0, _ELSEWHERE)
        self._store_id: str | None = None
        #: Whether something of this store can't be read, so that comparing with it proves nothing.
        self._unreadable = False

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except EverthreadError:
            self._unreadable = True

    def look(self) -> None:
        """Gather what is known. Of what is damaged: what can be read."""
        spaces, names = {self.core.space}, {}
        with self._readable():
            self._store_id = _store_id(self.core)
            for name, cell in every_cell(self.core, DOUBT):
                self._gone.append(PutCell(DOUBT, name, cell.value, self.core.runtime.now_us()))
        with self._readable():
            for line in self.core.backend.every_line():
                space, _, kind = line.space.partition("\0")
                spaces.add(space)
                if not is_companion(line):
                    names[line.uid] = line.name
                elif kind == JOURNAL and line.deleted:
                    with suppress(ValueError):
                        uid = bytes.fromhex(line.name)
                        self._known[uid] = Known(space, uid, deleted=True)
        for space in sorted(spaces):
            with self._readable():
                self._look_in(space)
            with self._readable():
                self._compare_leases(space)
        for known in self._known.values():
            known.name = names.get(known.uid, "")
        begun_anew = {(known.space, known.name) for known in self._known.values()}
        for space in sorted(spaces):
            with self._readable():
                for name, cell in every_cell(self.core, space_beside(space, GONE)):
                    if (space, name) not in begun_anew:
                        self._keep(space, GONE, name, cell.value)

    def _look_in(self, space: str) -> None:
        after: str | None = None
        while page := self.core.backend.lines(space_beside(space, JOURNAL), "", after, _PAGE):
            after = page[-1].line.name
            for found in page:
                with suppress(ValueError):
                    uid = bytes.fromhex(found.line.name)
                    seq, made = _newest(found)
                    self._known[uid] = Known(space, uid, seq=seq, id=made)

    def _compare_leases(self, space: str) -> None:
        for name, cell in every_cell(self.core, space_beside(space, LEASE)):
            with suppress(ValueError, msgspec.DecodeError):
                holder = msgspec.msgpack.decode(cell.value)
                known = self._known.setdefault(bytes.fromhex(name), Known(space, bytes.fromhex(name)))
                known.held = bool(holder.get("run"))
                known.deleted = known.deleted or bool(holder.get("deleted"))
                number = str(holder.get("journal")).partition("-")[0]
                if number.isdecimal() and int(number) > known.seq:
                    known.seq, known.id = int(number), holder["journal"]

    def _keep(self, space: str, kind: str, name: str, value: bytes) -> None:
        now_us = self.core.runtime.now_us()
        self._gone.append(PutCell(space_beside(space, kind), name, value, now_us))

    def cells(self) -> list[PutCell]:
        """What has to stand in the restored content from its first moment on."""
        now_us = self.core.runtime.now_us()
        for known in self._known.values():
            lease = {"run": "", "place": here(), "journal": known.id, "restored_us": now_us}
            if known.deleted:
                lease["deleted"] = True
            self._keep(known.space, LEASE, known.uid.hex(), msgspec.msgpack.encode(lease))
            if known.name and known.seq and not known.deleted:
                lost = msgspec.msgpack.encode(Lost(known.uid, known.seq))
                self._keep(known.space, GONE, known.name, lost)
        if self._doubt is not None:
            self._gone.append(PutCell(DOUBT, self._doubt.id, msgspec.msgpack.encode(self._doubt), now_us))
        # Another store, until the backup turns out to be one of this store.
        self._gone.append(PutCell(ORIGIN, _STORE, _new_id(self.core), now_us))
        return self._gone

    # ── afterwards ───────────────────────────────────────────────────────────────────────────

    def mark(self) -> RestoreReport:
        """Mark the ledgers that know less than before. If the backup isn't one of this store, the doubt that
        came with it stays."""
        doubtful = set()
        for known in self._known.values():
            # What is known of a thread that the backup doesn't have stays: another backup may have it.
            with suppress(EverthreadError):
                line = self.core.backend.line_by_uid(known.uid)
                if line is not None and not line.deleted and self._compare(known):
                    doubtful.add(line.name)
        with suppress(EverthreadError):
            for space in self._spaces():
                self._forget_present(space)
                self._free(space)
                doubtful.update(name for name, _ in every_cell(self.core, space_beside(space, GONE)))
        since_us = self._judge_doubt()
        with suppress(EverthreadError):
            doubts = read_doubts(self.core)
            for line in self.core.backend.every_line() if doubts else ():
                if not (line.deleted or is_companion(line)):
                    doubtful.update([line.name] if _is_doubtful(self.core, line, doubts) else [])
        return RestoreReport(doubtful=tuple(sorted(doubtful)), since=moment(since_us) if since_us else None)

    def _judge_doubt(self) -> int:
        """Take the doubt back if the backup was made of this store, which then is the same one as before.
        Else record since when effects are unknown. Returns that time, 0 for none.

        A process that is killed on the way leaves a doubt too many, never one too few.
        """
        origin, since_us = None, 0
        with suppress(EverthreadError):
            origin = _origin(self.core)
            if origin is not None and origin.id == self._store_id and not self._unreadable:
                _put(self.core, ORIGIN, _STORE, self._store_id.encode())
                if self._doubt is not None:
                    self._remove(DOUBT, self._doubt.id)
                return 0
        if self._doubt is not None:
            since_us = origin.at_us if origin is not None else self._newest_us()
            with suppress(EverthreadError):
                doubt = msgspec.structs.replace(self._doubt, since_us=since_us)
                _put(self.core, DOUBT, doubt.id, msgspec.msgpack.encode(doubt))
        return since_us

    def _newest_us(self) -> int:
        """Return when a thread was last written to; 1, the beginning of time, if there is none."""
        newest_us = 1
        for space in self._spaces():
            after: str | None = None
            while page := self.core.backend.lines(space, "", after, _PAGE):
                after = page[-1].line.name
                for found in page:
                    with suppress(EverthreadError):
                        if found.newest is not None:
                            head = self.core.reader.head(found.newest, found.newest.seq)
                            newest_us = max(newest_us, head.at_us)
        return newest_us

    def fence_runs(self) -> None:
        """Take every lease from its run, so that none goes on with what it has read before."""
        for space in self._spaces():
            self._compare_leases(space)
        held = [known for known in self._known.values() if known.held]
        self._known.clear()
        for space in self._spaces():
            self._free(space)
        for known in held:
            while True:
                with suppress(ConflictError):
                    self._compare(known)
                    break

    def _compare(self, known: Known) -> bool:
        """Whether a ledger lacks records. One that doesn't, and that a run had, gets a version that this
        run doesn't know of: it must not go on writing."""
        ledger = _ledger(self.core, known.space, known.uid)
        why, now_us = _lacking(ledger, known), self.core.runtime.now_us()
        if why is not None:
            # Also one that has a mark: what was cleared there isn't any more.
            ledger.state[LOSSES] = lost_records(f"a backup was restored: {why}", now_us)
            ledger.state["format"] = LOSSY_FORMAT
            ledger.commit()
        elif known.held and ledger.head is not None:
            ledger.state["restored_us"] = now_us
            ledger.commit()
        return LOSSES in ledger.state

    def _forget_present(self, space: str) -> None:
        """What was kept in case that a thread isn't in the backup, and it is."""
        gone = space_beside(space, GONE)
        for name, cell in every_cell(self.core, gone):
            lost = read_lost(cell)
            if lost is None or self.core.backend.line_by_uid(lost.uid) is not None:
                self._remove(gone, name)

    def _free(self, space: str) -> None:
        """Take the leases of runs that this store doesn't know: they were at work on another store, or ended
        long ago."""
        leases = space_beside(space, LEASE)
        for name, cell in every_cell(self.core, leases):
            found: Cell | None = cell
            while found is not None and not self._is_freed(leases, name, found):
                # The run has renewed it in between.
                found = self.core.backend.cell(leases, name, self.core.runtime.now_us())

    def _is_freed(self, leases: str, name: str, cell: Cell) -> bool:
        with suppress(ValueError, msgspec.DecodeError):
            holder, now_us = msgspec.msgpack.decode(cell.value), self.core.runtime.now_us()
            if not holder.get("run") or bytes.fromhex(name) in self._known:
                return True
            value = msgspec.msgpack.encode({**holder, "run": "", "restored_us": now_us})
            try:
                self.core.backend.swap(leases, name, cell.revision, value, now_us)
            except StaleCell:
                return False
        return True

    def _spaces(self) -> list[str]:
        found = {self.core.space, *(known.space for known in self._known.values())}
        for line in self.core.backend.every_line():
            found.add(line.space.partition("\0")[0])
        return sorted(found)

    def _remove(self, space: str, name: str) -> None:
        backend, now_us = self.core.backend, self.core.runtime.now_us()
        cell = backend.cell(space, name, now_us)
        with suppress(StaleCell):
            if cell is not None:
                backend.swap(space, name, cell.revision, None, now_us, durable=False)


# ── doubts of a whole store ──────────────────────────────────────────────────────────────────────────


def new_doubt(core: Core, since_us: int, why: str) -> Doubt:
    now_us = core.runtime.now_us()
    return Doubt(id=core.runtime.random_bytes(8).hex(), why=why, since_us=since_us, recorded_us=now_us)


def record_origin(core: Core) -> None:
    """Record, for a backup that is about to be made, of which store it is, and when."""
    id_ = _store_id(core)
    while id_ is None:
        with suppress(StaleCell):
            core.backend.swap(ORIGIN, _STORE, 0, _new_id(core), core.runtime.now_us())
        id_ = _store_id(core)
    _put(core, ORIGIN, _BACKUP, msgspec.msgpack.encode(Origin(id=id_, at_us=core.runtime.now_us())))


def _store_id(core: Core) -> str | None:
    """Return what tells this store from others; None if no backup was ever made of it."""
    cell = core.backend.cell(ORIGIN, _STORE, core.runtime.now_us())
    return None if cell is None else cell.value.decode("utf-8", "replace")


def _new_id(core: Core) -> bytes:
    return core.runtime.random_bytes(16).hex().encode()


def _origin(core: Core) -> Origin | None:
    """Return of which store the backup was made that was restored here, or the last one that was made."""
    cell = core.backend.cell(ORIGIN, _BACKUP, core.runtime.now_us())
    return None if cell is None else read_origin(cell.value)


def record_doubt(core: Core, since_us: int, why: str) -> Doubt:
    """Record that no ledger of the store knows the effects called since then, and fence off all runs.

    The doubt is stored first. A run that begins afterwards reads it, once it has the lease; a run that began
    before is among the leases.
    """
    doubt = new_doubt(core, since_us, why)
    _put(core, DOUBT, doubt.id, msgspec.msgpack.encode(doubt))
    Ledgers(core).fence_runs()
    return doubt


def end_doubts(core: Core) -> int:
    """Write the doubts into the ledger of every thread, then remove them. Returns their number."""
    cells = every_cell(core, DOUBT)
    write_doubts(core)
    for name, cell in cells:
        with suppress(StaleCell):
            core.backend.swap(DOUBT, name, cell.revision, None, core.runtime.now_us())
    return len(cells)


def write_doubts(core: Core, namespace: str | None = None) -> None:
    """Write the doubts of the store into the ledger of every thread, in one namespace or in all, as a run
    does that begins."""
    doubts = read_doubts(core)
    if not doubts:
        return
    for line in list(core.backend.every_line()):
        if not line.deleted and not is_companion(line) and namespace in (None, line.space):
            _write_doubts(core, line, doubts)


def _write_doubts(core: Core, line: Line, doubts: Sequence[Doubt]) -> None:
    while True:
        journal = _ledger(core, line.space, line.uid)
        missing = unacknowledged(doubts, journal.state, line.uid.hex())
        if not missing:
            return
        put_doubts(journal, line.uid.hex(), missing)
        with suppress(ConflictError):
            journal.commit()
            return


def _ledger(core: Core, space: str, uid: bytes) -> Thread:
    from everthread.threads.sync.thread import Thread

    other = copy.copy(core)
    other.space = space_beside(space, JOURNAL)
    ledger = Thread(other, uid.hex())
    ledger.handle.load()
    return ledger


def _put(core: Core, space: str, name: str, value: bytes) -> None:
    while True:
        now_us = core.runtime.now_us()
        cell = core.backend.cell(space, name, now_us)
        with suppress(StaleCell):
            core.backend.swap(space, name, 0 if cell is None else cell.revision, value, now_us)
            return


def _is_doubtful(core: Core, line: Line, doubts: Sequence[Doubt]) -> bool:
    state = _ledger(core, line.space, line.uid).state
    return LOSSES in state or bool(unacknowledged(doubts, state, line.uid.hex()))


def _lacking(ledger: Thread, known: Known) -> str | None:
    """Why a restored ledger must lack records, if it does."""
    head = ledger.head
    if known.deleted:
        return _DELETED
    seq = head.seq if head is not None else 0
    if seq < known.seq:
        return shorter(seq, known.seq)
    try:
        if known.seq and not known.id.endswith("-"):
            ledger.at(known.id)
    except VersionNotFoundError:
        return _OTHER_WAY
    return None


def _newest(found: Found) -> tuple[int, str]:
    line, row = found.line, found.newest
    seq, digest = (line.parent_seq, line.parent_hash) if row is None else (row.seq, row.hash)
    return seq, version_id(seq, digest)
