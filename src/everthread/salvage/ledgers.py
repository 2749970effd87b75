"""Journals of sessions in the new store: those that may lack records say so.

An effect that its journal doesn't know any more would be taken for one that never happened, and run again.
So a journal counts as whole only if that can be shown; otherwise it gets a mark (see ``sessions/journal``).
"""

from __future__ import annotations

import msgspec

from everthread.salvage.copying import Target
from everthread.sessions.journal import FORMAT
from everthread.sessions.lease import Holder
from everthread.stores.contract import Line
from everthread.stores.salvage_source import SalvageSource
from everthread.threads.sync.journals import JOURNAL, LEASE, LOSSES, lost_records, shorter
from everthread.threads.sync.thread import Thread


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
