"""``store.restore()``: what happened after a backup was made has happened, whatever the backup says.

A restored ledger is an older one, whole, and would call what it doesn't know a second time. So what is known
of every ledger goes into the restored content, in the same transaction, as a lease that nobody holds: whoever
begins a run compares with it, and whoever began one before finds the lease gone. Afterwards the ledgers that
lack something get the mark that salvaging leaves as well, which forks and exports take along.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from everthread.errors import EverthreadError, VersionNotFoundError
from everthread.history.chain import version_id
from everthread.process import here
from everthread.stores.contract import Found, PutCell, StaleCell
from everthread.threads.sync.journals import (
    GONE,
    JOURNAL,
    LEASE,
    LOSSES,
    LOSSY_FORMAT,
    Lost,
    every_cell,
    is_companion,
    lost_records,
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
    """The ledgers of a store, of all namespaces, as they are before a backup is restored."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._known: dict[bytes, Known] = {}
        self._gone: list[PutCell] = []

    def look(self) -> None:
        """Gather what is known. Of what is damaged: what can be read."""
        spaces, names = {self.core.space}, {}
        with suppress(EverthreadError):
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
            with suppress(EverthreadError):
                self._look_in(space)
            with suppress(EverthreadError):
                self._compare_leases(space)
        for known in self._known.values():
            known.name = names.get(known.uid, "")
        begun_anew = {(known.space, known.name) for known in self._known.values()}
        for space in sorted(spaces):
            with suppress(EverthreadError):
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
            if known.deleted and not known.held:
                continue
            lease = {"run": "", "place": here(), "journal": known.id, "restored_us": now_us}
            self._keep(known.space, LEASE, known.uid.hex(), msgspec.msgpack.encode(lease))
            if known.name and known.seq and not known.deleted:
                lost = msgspec.msgpack.encode(Lost(known.uid, known.seq))
                self._keep(known.space, GONE, known.name, lost)
        return self._gone

    # ── afterwards ───────────────────────────────────────────────────────────────────────────

    def mark(self) -> tuple[str, ...]:
        """Mark the ledgers that know less than before; the names of their threads."""
        doubtful = []
        for known in self._known.values():
            with suppress(EverthreadError):
                line = self.core.backend.line_by_uid(known.uid)
                if line is None and not known.held:
                    self._remove(space_beside(known.space, LEASE), known.uid.hex())
                elif line is not None and not line.deleted and self._compare(known):
                    doubtful.append(line.name)
        with suppress(EverthreadError):
            for space in self._spaces():
                self._forget_present(space)
                self._free(space)
        return tuple(sorted(doubtful))

    def _compare(self, known: Known) -> bool:
        """Whether a ledger lacks records. One that doesn't, and that a run had, gets a version that this
        run doesn't know of: it must not go on writing."""
        from everthread.threads.sync.thread import Thread

        core = copy.copy(self.core)
        core.space = space_beside(known.space, JOURNAL)
        ledger = Thread(core, known.uid.hex())
        ledger.handle.load()
        why, now_us = _lacking(ledger, known), core.runtime.now_us()
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
        """Runs that only the backup knows hold nothing here: they were at work on another store, or are long
        over."""
        backend, now_us = self.core.backend, self.core.runtime.now_us()
        for name, cell in every_cell(self.core, space_beside(space, LEASE)):
            with suppress(ValueError, msgspec.DecodeError, StaleCell):
                holder = msgspec.msgpack.decode(cell.value)
                known = self._known.get(bytes.fromhex(name))
                if holder.get("run") and known is None:
                    value = msgspec.msgpack.encode({**holder, "run": "", "restored_us": now_us})
                    backend.swap(space_beside(space, LEASE), name, cell.revision, value, now_us)

    def _spaces(self) -> list[str]:
        found = {self.core.space}
        for line in self.core.backend.every_line():
            found.add(line.space.partition("\0")[0])
        return sorted(found)

    def _remove(self, space: str, name: str) -> None:
        backend, now_us = self.core.backend, self.core.runtime.now_us()
        cell = backend.cell(space, name, now_us)
        with suppress(StaleCell):
            if cell is not None:
                backend.swap(space, name, cell.revision, None, now_us, durable=False)


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
