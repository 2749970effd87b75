# Generated from src/everthread/people/aio/phases.py by tools/twin.py: change that, then run: make twin
"""One erasure, phase by phase, so that whoever comes after a crash can go on.

    noted       the ids of the person's keys are in the ledger of the store: from here on it takes nothing
                more of theirs, and there is no way back
    destroyed   the keys are gone from the keyring, the survivors wrapped anew
    deleted     sealed values and user data are deleted
    purged      the bytes are gone from the store's files, too
    finished    somebody has looked for them everywhere, and found none

Every phase may be done twice, and by two processes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from everthread.people.needles import PIECES_MAX, Notes, pieces_of, thinned
from everthread.people.reports import LEFT, ErasureReport, Place, beyond
from everthread.people.sync.holding import SPACE
from everthread.people.sync.owned import count_values, sealed_values, user_lines
from everthread.stores.contract import StaleCell
from everthread.stores.erasures import (
    DELETED,
    DESTROYED,
    FINISHED,
    NOTED,
    PURGED,
    ErasedKey,
    Progress,
    Purged,
    Residues,
)
from everthread.threads.process import Place as Process
from everthread.threads.process import here, is_gone

if TYPE_CHECKING:
    from everthread.stores.keyring import Keyring
    from everthread.threads.sync.core import Core

T = TypeVar("T")

#: The cells in which reports are kept begin with this.
REPORTS = "report/"

#: Another process that is at it, on a machine that can't be looked at, is given so long.
_SILENCE_US = 600_000_000
#: What waits for readers isn't tried again at every open.
_AGAIN_US = 60_000_000


def apart(call: Callable[..., T], *args: Any) -> T:
    """A call that takes its time."""
    return call(*args)


class _Work(msgspec.Struct, frozen=True):
    """Who is at an erasure, and whether they wait for somebody."""

    who: Process
    waiting: bool = False


class Erasure:
    """The keys that are erased together, as far as that has come."""

    def __init__(self, core: Core, keys: Sequence[ErasedKey], notes: Notes | None = None) -> None:
        self._core = core
        self._backend = core.backend
        self._keys = list(keys)
        found = (Notes.unpack(key.note) for key in keys if key.note)
        self.notes = notes or next((each for each in found if each is not None), Notes())
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
    def deleted(self) -> tuple[int, int, int]:
        """What was deleted already, and can't be counted in the store any more: sealed values, how many bytes
        these were, user values."""
        notes = self.notes if self._phase >= DELETED else Notes()
        return notes.values, notes.size, notes.users

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

    def finish(self, timeout_s: float, progress: Progress | None = None) -> ErasureReport:
        """Go on from whatever phase was reached; what it came to."""
        self._claim()
        if self._phase == NOTED:
            if not self.notes.captured:
                self._capture()
            _tell(progress, "destroying the keys")
            self._destroy()
        if self._phase == DESTROYED:
            _tell(progress, "deleting what was sealed")
            self._delete()
        if self._phase == DELETED:
            self._purged = self._backend.purge(timeout_s, progress)
            if self._purged.waiting:
                self._claim(waiting=True)
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
        self._put(None, durable=False)
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
        """Note the keys, and then what will be looked for: nothing is added to it any more."""
        self._reach(NOTED, self.notes)
        self._core.vault.note_erased(self.key_ids)
        pieces: list[bytes] = []
        values, size = 0, 0
        for _, _, data in sealed_values(self._backend, self.key_ids):
            values, size = values + 1, size + len(data)
            pieces.extend(pieces_of(data))
            if len(pieces) > 2 * PIECES_MAX:
                pieces = thinned(pieces, PIECES_MAX)
        traces = apart(self._keyring.traces, self.key_ids)
        self.notes = msgspec.structs.replace(
            self.notes,
            captured=True,
            values=values,
            size=size,
            pieces=tuple(thinned(pieces, PIECES_MAX)),
            traces=tuple(traces),
        )
        self._reach(NOTED, self.notes)

    def _destroy(self) -> None:
        apart(self._keyring.destroy_keys, self.key_ids)
        survivors = apart(self._keyring.alive)
        rotated = self._keyring.rotates_master
        self.notes = msgspec.structs.replace(self.notes, survivors=survivors, rotated=rotated)
        self._reach(DESTROYED, self.notes)

    def _delete(self) -> None:
        users = 0
        for line in user_lines(self._backend, self.key_ids):
            users += count_values(self._core, line)
            self._backend.delete(line)
        dropped = self._backend.drop_sealed(self.key_ids)
        self.notes = msgspec.structs.replace(
            self.notes, users=self.notes.users + users, values=max(self.notes.values, dropped)
        )
        self._reach(DELETED, self.notes)

    def _look(self, progress: Progress | None) -> None:
        """Look for what belonged to the person, in the files of the store and of the keyring."""
        store = self._backend.residues(self.notes.pieces, progress)
        keys = apart(self._keyring.residues, self.notes.traces)
        self._found = Residues(
            looked=(*store.looked, *keys.looked),
            hits=(*store.hits, *keys.hits),
            unreached=(*store.unreached, *keys.unreached),
        )

    # ── who is at it ─────────────────────────────────────────────────────────────────────────

    @property
    def _cell(self) -> str:
        return f"erasing/{self.id}"

    def is_free(self) -> bool:
        """Whether nobody is at it, as far as can be told."""
        cell = self._backend.cell(SPACE, self._cell, self._core.runtime.now_us())
        if cell is None:
            return True
        work = msgspec.msgpack.decode(cell.value, type=_Work)
        silent_us = cell.read_us - cell.written_us
        if work.waiting:
            return silent_us >= _AGAIN_US
        return is_gone(work.who) or silent_us >= _SILENCE_US

    def _claim(self, *, waiting: bool = False) -> None:
        """Say that this process is at it. It only keeps others from doing the same work."""
        self._put(msgspec.msgpack.encode(_Work(here(), waiting)), durable=False)

    def _put(self, value: bytes | None, name: str = "", *, durable: bool = True) -> None:
        name, now_us = name or self._cell, self._core.runtime.now_us()
        cell = self._backend.cell(SPACE, name, now_us)
        with suppress(StaleCell):
            revision = cell.revision if cell is not None else 0
            self._backend.swap(SPACE, name, revision, value, now_us, durable)

    # ── the report ───────────────────────────────────────────────────────────────────────────

    def _report(self, *, complete: bool = False) -> ErasureReport:
        url, where, notes = self._backend.url, self._keyring.where, self.notes
        found, purged = self._found, self._purged
        places = [
            Place(where, "keys", len(self._keys), "destroyed"),
            Place(where, "surviving keys", notes.survivors, "wrapped anew"),
            Place(url, "sealed values", notes.values, "deleted"),
            Place(url, "user values", notes.users, "deleted"),
            *(Place(url, what, 1, "done") for what in purged.done),
            *(Place(path, "bytes", size, "looked through") for path, size in found.looked),
            *(Place(path, "pieces of sealed bytes or keys", n, LEFT) for path, n in found.hits),
        ]
        report = ErasureReport(
            erasure=self.id,
            complete=complete,
            noted_us=self._keys[0].noted_us,
            store=url,
            keyring=where,
            key_ids=tuple(key_id.hex() for key_id in self.key_ids),
            sealed_values=notes.values,
            sealed_bytes=notes.size,
            user_values=notes.users,
            survivors=notes.survivors,
            master_rotated=notes.rotated,
            needles=len(notes.pieces) + len(notes.traces),
            residues=sum(times for _, times in found.hits),
            places=tuple(places),
            waiting=purged.waiting,
            unreached=tuple(dict.fromkeys((*purged.unreached, *found.unreached, *beyond(notes.rotated)))),
        )
        report = signed(self._core, report)
        # Whoever asked for it may be dead, and somebody else has gone on.
        self._put(msgspec.json.encode(report), f"{REPORTS}{report.erasure}")
        return report


def signed(core: Core, report: ErasureReport) -> ErasureReport:
    """The report with the signature of the keyring."""
    keyring = core.vault.keyring
    # The key that signs is part of what is signed.
    public, _ = apart(keyring.sign, b"")
    report = msgspec.structs.replace(report, ended_us=core.runtime.now_us(), public_key=public.hex())
    _, signature = apart(keyring.sign, report.message())
    return msgspec.structs.replace(report, signature=signature.hex())


def _tell(progress: Progress | None, what: str) -> None:
    if progress is not None:
        progress(what, 0.0)
