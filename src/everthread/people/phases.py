"""One erasure, phase by phase, so that whoever comes after a crash can go on.

    noted       the ids of the person's keys are in the ledger of the store: from here on it takes nothing
                more of theirs, and there is no way back
    destroyed   the keys are gone from the keyring, the survivors wrapped anew
    deleted     sealed values and user data are deleted
    purged      the bytes are gone from the store's files, too
    finished    somebody has looked for them everywhere, and found none

Every phase may be done twice. One process at a time is at it; whoever comes second waits for its report.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec

from everthread.errors import EverthreadError
from everthread.people.claiming import Claim
from everthread.people.holding import SPACE
from everthread.people.needles import PIECES_MAX, Notes, pieces_of, thinned
from everthread.people.owned import count_values, sealed_values, user_lines
from everthread.people.reports import AT_IT, LEFT, NOT_LOOKED, ErasureReport, Place, beyond
from everthread.stores.contract import (
    DELETED,
    DESTROYED,
    FINISHED,
    NOTED,
    PURGED,
    ErasedKey,
    Progress,
    Purged,
    Residues,
    StaleCell,
)

if TYPE_CHECKING:
    from everthread.keyring.keyring import Keyring
    from everthread.threads.sync.core import Core

T = TypeVar("T")

#: The cells in which reports are kept begin with this.
REPORTS = "report/"


class Erasure:
    """The keys that are erased together, as far as that has come."""

    def __init__(self, core: Core, keys: Sequence[ErasedKey], notes: Notes | None = None) -> None:
        self._core = core
        self._backend = core.backend
        self._keys = list(keys)
        self.notes = notes or _notes_of(keys)
        #: Whether this very call captured what is looked for, and not one that was cut short.
        self._fresh = False
        self._purged = Purged()
        self._found = Residues()

    @property
    def key_ids(self) -> list[bytes]:
        return [key.key_id for key in self._keys]

    @property
    def id(self) -> str:
        """What its report is called by."""
        return self._keys[0].erasure.hex()

    @property
    def covers(self) -> frozenset[bytes]:
        return frozenset(self.key_ids)

    @property
    def counted(self) -> tuple[int, int, int] | None:
        """Sealed values, how many bytes these are, and user values, if they were counted: some may be deleted
        by now, and can't be counted in the store any more."""
        notes = self.notes
        return (notes.values, notes.size, notes.users) if notes.captured or self._phase >= DELETED else None

    @property
    def _phase(self) -> int:
        return min(key.phase for key in self._keys)

    @property
    def _keyring(self) -> Keyring:
        return self._core.vault.keyring

    def may_go_on(self) -> bool:
        """Whether this keyring is the one to destroy the keys in: another one knows nothing of them."""
        if self._phase > NOTED:
            return True
        known = [self._keyring.key(k) is not None or self._keyring.is_destroyed(k) for k in self.key_ids]
        return any(known)

    def is_free(self) -> bool:
        """Whether nobody is at it, as far as can be told."""
        return Claim(self._core, self.id).is_free()

    def finish(self, timeout_s: float, progress: Progress | None = None) -> ErasureReport:
        """Go on from whatever phase was reached; what it came to. Who is at it already is waited for, and
        gives the report."""
        claim, complete = Claim(self._core, self.id), True
        taken = claim.take(timeout_s)
        try:
            if self._is_over():
                kept = kept_report(self._core, self.id)
                if kept is not None:
                    return kept
            if not taken:
                # Nothing is counted: that is for the report of whoever is at it.
                return signed(self._core, self._outline(waiting=(AT_IT,)))
            report = self.go_on(timeout_s, progress)
            complete = report.complete
            return report
        finally:
            # Also if it failed: whoever tries next needn't wait until this process has ended.
            with suppress(EverthreadError):
                if taken:
                    claim.leave(waiting=not complete)
            claim.end()

    def _is_over(self) -> bool:
        """Learn from the ledger how far it has come since, and whether somebody else has finished it."""
        ours = self.covers
        found = [key for key in self._backend.erasures(True) if key.key_id in ours]
        found = [key for key in found if key.erasure == self._keys[0].erasure]
        if found:
            self._keys, self.notes = found, _notes_of(found)
        return not found

    def go_on(self, timeout_s: float, progress: Progress | None = None) -> ErasureReport:
        """The same, whoever else is at it, and whatever the ledger says by now."""
        if self._phase <= DESTROYED and not self.notes.captured:
            self._capture()
        if self._phase == NOTED:
            _tell(progress, "destroying the keys")
            self._destroy()
        if self._phase == DESTROYED:
            _tell(progress, "deleting what was sealed")
            self._delete()
        if self._phase == DELETED:
            self._purged = self._backend.purge(timeout_s, progress)
            if self._purged.waiting:
                return self._report()
            self._reach(PURGED, self.notes)
        self._look(progress)
        if self._found.hits:
            # Whoever read meanwhile kept old rows alive: once more, in this call and in each that follows.
            self._purged = self._backend.purge(timeout_s, progress)
            self._look(progress)
        if self._found.hits or self._purged.waiting:
            return self._report()
        # Kept before it is finished: after that nobody would write it any more.
        report = self._report(complete=True)
        self._reach(FINISHED, None)
        return report

    # ── the phases ───────────────────────────────────────────────────────────────────────────

    def _reach(self, phase: int, notes: Notes | None) -> None:
        """Note a phase in the ledger, and what whoever goes on from there needs; that with the first key."""
        texts = [b"" if notes is None else notes.pack(), *(b"" for _ in self._keys[1:])]
        noted = [
            msgspec.structs.replace(key, phase=max(phase, key.phase), note=text)
            for key, text in zip(self._keys, texts, strict=True)
        ]
        self._backend.note_erasures(noted)
        self._keys = noted

    def _capture(self) -> None:
        """Note the keys, and then what will be looked for, and how much there is: nothing is added to it any
        more, and whoever goes on after a kill finds less."""
        self._reach(NOTED, self.notes)
        self._core.vault.note_erased(self.key_ids)
        pieces: list[bytes] = []
        values, size, users = 0, 0, 0
        for _, _, data in sealed_values(self._backend, self.key_ids):
            values, size = values + 1, size + len(data)
            pieces.extend(pieces_of(data))
            if len(pieces) > 2 * PIECES_MAX:
                pieces = thinned(pieces, PIECES_MAX)
        for line in user_lines(self._backend, self.key_ids):
            users += count_values(self._core, line)
        traces = self._keyring.traces(self.key_ids)
        gone = self.covers & self._keyring.destroyed()
        self.notes = msgspec.structs.replace(
            self.notes,
            captured=True,
            values=values,
            size=size,
            users=users,
            before=len(self._keys) if self._phase > NOTED else len(gone),
            survivors=self._keyring.alive(),
            pieces=tuple(thinned(pieces, PIECES_MAX)),
            traces=tuple(traces),
        )
        self._fresh = True
        self._reach(NOTED, self.notes)

    def _destroy(self) -> None:
        alive = self._keyring.destroy_keys(self.key_ids)
        # If one was cut short here before, it may have been that one who destroyed them.
        before = len(self._keys) - len(alive) if self._fresh else self.notes.before
        survivors = self._keyring.alive()
        rotated = self._keyring.rotates_master
        self.notes = msgspec.structs.replace(self.notes, before=before, survivors=survivors, rotated=rotated)
        self._reach(DESTROYED, self.notes)

    def _delete(self) -> None:
        users = 0
        for line in user_lines(self._backend, self.key_ids):
            users += count_values(self._core, line)
            self._backend.delete(line)
        dropped = self._backend.drop_sealed(self.key_ids)
        self.notes = msgspec.structs.replace(
            self.notes, users=max(self.notes.users, users), values=max(self.notes.values, dropped)
        )
        self._reach(DELETED, self.notes)

    def _look(self, progress: Progress | None) -> None:
        """Look for what belonged to the person, in the files of the store and of the keyring."""
        pieces, traces = self.notes.pieces, self.notes.traces
        store = self._backend.residues(pieces, progress)
        keys = self._keyring.residues(traces)
        self._found = Residues(
            # Who has nothing to look for hasn't looked.
            looked=(*(store.looked if pieces else ()), *(keys.looked if traces else ())),
            hits=(*store.hits, *keys.hits),
            unreached=(*store.unreached, *keys.unreached),
        )

    # ── the report ───────────────────────────────────────────────────────────────────────────

    def _report(self, *, complete: bool = False) -> ErasureReport:
        if not self.notes.captured:
            survivors = self._keyring.alive()
            self.notes = msgspec.structs.replace(self.notes, before=len(self._keys), survivors=survivors)
        notes, found, purged = self.notes, self._found, self._purged
        report = msgspec.structs.replace(
            self._outline(waiting=purged.waiting),
            complete=complete,
            sealed_values=notes.values,
            sealed_bytes=notes.size,
            user_values=notes.users,
            survivors=notes.survivors,
            master_rotated=notes.rotated,
            needles=len(notes.pieces) + len(notes.traces),
            residues=sum(times for _, times in found.hits),
            places=self._places(),
        )
        report = signed(self._core, report)
        # Whoever asked for it may be dead, and somebody else has gone on.
        self._keep(msgspec.json.encode(report))
        return report

    def _outline(self, waiting: tuple[str, ...]) -> ErasureReport:
        """A report without what was done."""
        looked = () if self.notes.captured or self._phase < DELETED else (NOT_LOOKED,)
        unreached = (*self._purged.unreached, *self._found.unreached, *looked)
        return ErasureReport(
            erasure=self.id,
            complete=False,
            noted_us=self._keys[0].noted_us,
            store=self._backend.url,
            keyring=self._keyring.where,
            key_ids=tuple(key_id.hex() for key_id in self.key_ids),
            waiting=waiting,
            unreached=tuple(dict.fromkeys((*unreached, *beyond(self._keyring.rotates_master)))),
        )

    def _places(self) -> tuple[Place, ...]:
        url, where, notes = self._backend.url, self._keyring.where, self.notes
        destroyed = len(self._keys) - notes.before
        keys = (
            Place(where, "keys", destroyed, "destroyed"),
            Place(where, "keys", notes.before, "destroyed before"),
        )
        return (
            *(place for place in keys if place.count),
            Place(
                where, "surviving keys", notes.survivors, "wrapped anew" if destroyed else "left as they were"
            ),
            Place(url, "sealed values", notes.values, "deleted"),
            Place(url, "user values", notes.users, "deleted"),
            *(Place(url, what, 1, "done") for what in self._purged.done),
            *(Place(path, "bytes", size, "looked through") for path, size in self._found.looked),
            *(Place(path, "pieces of sealed bytes or keys", n, LEFT) for path, n in self._found.hits),
        )

    def _keep(self, report: bytes) -> None:
        name, now_us = REPORTS + self.id, self._core.runtime.now_us()
        cell = self._backend.cell(SPACE, name, now_us)
        with suppress(StaleCell):
            revision = cell.revision if cell is not None else 0
            self._backend.swap(SPACE, name, revision, report, now_us)


def _notes_of(keys: Sequence[ErasedKey]) -> Notes:
    found = (Notes.unpack(key.note) for key in keys if key.note)
    return next((each for each in found if each is not None), Notes())


def kept_report(core: Core, erasure: str) -> ErasureReport | None:
    """The report of an erasure that somebody has finished; ``None`` if it isn't there, or damaged."""
    cell = core.backend.cell(SPACE, REPORTS + erasure, core.runtime.now_us())
    try:
        return None if cell is None else msgspec.json.decode(cell.value, type=ErasureReport)
    except msgspec.MsgspecError:
        return None


def signed(core: Core, report: ErasureReport) -> ErasureReport:
    """The report with the signature of the keyring."""
    keyring = core.vault.keyring
    # The key that signs is part of what is signed.
    public, _ = keyring.sign(b"")
    report = msgspec.structs.replace(report, ended_us=core.runtime.now_us(), public_key=public.hex())
    _, signature = keyring.sign(report.message())
    return msgspec.structs.replace(report, signature=signature.hex())


def _tell(progress: Progress | None, what: str) -> None:
    if progress is not None:
        progress(what, 0.0)
