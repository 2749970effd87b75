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

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from everthread.errors import EverthreadError
from everthread.people.aio.claiming import Claim
from everthread.people.aio.holding import SPACE
from everthread.people.aio.owned import count_values, sealed_values, user_lines
from everthread.people.needles import PIECES_MAX, Notes, pieces_of, thinned
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
from everthread.threads.colours import ASYNC

if TYPE_CHECKING:
    from everthread.keyring.keyring import Keyring
    from everthread.threads.aio.core import Core

T = TypeVar("T")

#: The cells in which reports are kept begin with this.
REPORTS = "report/"


if ASYNC:

    async def apart(call: Callable[..., T], *args: Any) -> T:
        """A call that takes its time and can't be awaited."""
        import asyncio

        return await asyncio.to_thread(call, *args)

else:

    async def apart(call: Callable[..., T], *args: Any) -> T:
        """A call that takes its time."""
        return call(*args)


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

    async def may_go_on(self) -> bool:
        """Whether this keyring is the one to destroy the keys in: another one knows nothing of them."""
        if self._phase > NOTED:
            return True
        known = [self._keyring.key(k) is not None or self._keyring.is_destroyed(k) for k in self.key_ids]
        return any(known)

    async def is_free(self) -> bool:
        """Whether nobody is at it, as far as can be told."""
        return await Claim(self._core, self.id).is_free()

    async def finish(self, timeout_s: float, progress: Progress | None = None) -> ErasureReport:
        """Go on from whatever phase was reached; what it came to. Who is at it already is waited for, and
        gives the report."""
        claim, complete = Claim(self._core, self.id), True
        taken = await claim.take(timeout_s)
        try:
            if await self._is_over():
                kept = await kept_report(self._core, self.id)
                if kept is not None:
                    return kept
            if not taken:
                # Nothing is counted: that is for the report of whoever is at it.
                return await signed(self._core, self._outline(waiting=(AT_IT,)))
            report = await self.go_on(timeout_s, progress)
            complete = report.complete
            return report
        finally:
            # Also if it failed: whoever tries next needn't wait until this process has ended.
            with suppress(EverthreadError):
                if taken:
                    await claim.leave(waiting=not complete)
            claim.end()

    async def _is_over(self) -> bool:
        """Learn from the ledger how far it has come since, and whether somebody else has finished it."""
        ours = self.covers
        found = [key for key in await self._backend.erasures(True) if key.key_id in ours]
        found = [key for key in found if key.erasure == self._keys[0].erasure]
        if found:
            self._keys, self.notes = found, _notes_of(found)
        return not found

    async def go_on(self, timeout_s: float, progress: Progress | None = None) -> ErasureReport:
        """The same, whoever else is at it, and whatever the ledger says by now."""
        if self._phase <= DESTROYED and not self.notes.captured:
            await self._capture()
        if self._phase == NOTED:
            _tell(progress, "destroying the keys")
            await self._destroy()
        if self._phase == DESTROYED:
            _tell(progress, "deleting what was sealed")
            await self._delete()
        if self._phase == DELETED:
            self._purged = await self._backend.purge(timeout_s, progress)
            if self._purged.waiting:
                return await self._report()
            await self._reach(PURGED, self.notes)
        await self._look(progress)
        if self._found.hits:
            # Whoever read meanwhile kept old rows alive: once more, in this call and in each that follows.
            self._purged = await self._backend.purge(timeout_s, progress)
            await self._look(progress)
        if self._found.hits or self._purged.waiting:
            return await self._report()
        # Kept before it is finished: after that nobody would write it any more.
        report = await self._report(complete=True)
        await self._reach(FINISHED, None)
        return report

    # ── the phases ───────────────────────────────────────────────────────────────────────────

    async def _reach(self, phase: int, notes: Notes | None) -> None:
        """Note a phase in the ledger, and what whoever goes on from there needs; that with the first key."""
        texts = [b"" if notes is None else notes.pack(), *(b"" for _ in self._keys[1:])]
        noted = [
            msgspec.structs.replace(key, phase=max(phase, key.phase), note=text)
            for key, text in zip(self._keys, texts, strict=True)
        ]
        await self._backend.note_erasures(noted)
        self._keys = noted

    async def _capture(self) -> None:
        """Note the keys, and then what will be looked for, and how much there is: nothing is added to it any
        more, and whoever goes on after a kill finds less."""
        await self._reach(NOTED, self.notes)
        self._core.vault.note_erased(self.key_ids)
        pieces: list[bytes] = []
        values, size, users = 0, 0, 0
        async for _, _, data in sealed_values(self._backend, self.key_ids):
            values, size = values + 1, size + len(data)
            pieces.extend(pieces_of(data))
            if len(pieces) > 2 * PIECES_MAX:
                pieces = thinned(pieces, PIECES_MAX)
        for line in await user_lines(self._backend, self.key_ids):
            users += await count_values(self._core, line)
        traces = await apart(self._keyring.traces, self.key_ids)
        gone = self.covers & await apart(self._keyring.destroyed)
        self.notes = msgspec.structs.replace(
            self.notes,
            captured=True,
            values=values,
            size=size,
            users=users,
            before=len(self._keys) if self._phase > NOTED else len(gone),
            survivors=await apart(self._keyring.alive),
            pieces=tuple(thinned(pieces, PIECES_MAX)),
            traces=tuple(traces),
        )
        self._fresh = True
        await self._reach(NOTED, self.notes)

    async def _destroy(self) -> None:
        alive = await apart(self._keyring.destroy_keys, self.key_ids)
        # If one was cut short here before, it may have been that one who destroyed them.
        before = len(self._keys) - len(alive) if self._fresh else self.notes.before
        survivors = await apart(self._keyring.alive)
        rotated = self._keyring.rotates_master
        self.notes = msgspec.structs.replace(self.notes, before=before, survivors=survivors, rotated=rotated)
        await self._reach(DESTROYED, self.notes)

    async def _delete(self) -> None:
        users = 0
        for line in await user_lines(self._backend, self.key_ids):
            users += await count_values(self._core, line)
            await self._backend.delete(line)
        dropped = await self._backend.drop_sealed(self.key_ids)
        self.notes = msgspec.structs.replace(
            self.notes, users=max(self.notes.users, users), values=max(self.notes.values, dropped)
        )
        await self._reach(DELETED, self.notes)

    async def _look(self, progress: Progress | None) -> None:
        """Look for what belonged to the person, in the files of the store and of the keyring."""
        pieces, traces = self.notes.pieces, self.notes.traces
        store = await self._backend.residues(pieces, progress)
        keys = await apart(self._keyring.residues, traces)
        self._found = Residues(
            # Who has nothing to look for hasn't looked.
            looked=(*(store.looked if pieces else ()), *(keys.looked if traces else ())),
            hits=(*store.hits, *keys.hits),
            unreached=(*store.unreached, *keys.unreached),
        )

    # ── the report ───────────────────────────────────────────────────────────────────────────

    async def _report(self, *, complete: bool = False) -> ErasureReport:
        if not self.notes.captured:
            survivors = await apart(self._keyring.alive)
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
        report = await signed(self._core, report)
        # Whoever asked for it may be dead, and somebody else has gone on.
        await self._keep(msgspec.json.encode(report))
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

    async def _keep(self, report: bytes) -> None:
        name, now_us = REPORTS + self.id, self._core.runtime.now_us()
        cell = await self._backend.cell(SPACE, name, now_us)
        with suppress(StaleCell):
            revision = cell.revision if cell is not None else 0
            await self._backend.swap(SPACE, name, revision, report, now_us)


def _notes_of(keys: Sequence[ErasedKey]) -> Notes:
    found = (Notes.unpack(key.note) for key in keys if key.note)
    return next((each for each in found if each is not None), Notes())


async def kept_report(core: Core, erasure: str) -> ErasureReport | None:
    """The report of an erasure that somebody has finished; ``None`` if it isn't there, or damaged."""
    cell = await core.backend.cell(SPACE, REPORTS + erasure, core.runtime.now_us())
    try:
        return None if cell is None else msgspec.json.decode(cell.value, type=ErasureReport)
    except msgspec.MsgspecError:
        return None


async def signed(core: Core, report: ErasureReport) -> ErasureReport:
    """The report with the signature of the keyring."""
    keyring = core.vault.keyring
    # The key that signs is part of what is signed.
    public, _ = await apart(keyring.sign, b"")
    report = msgspec.structs.replace(report, ended_us=core.runtime.now_us(), public_key=public.hex())
    _, signature = await apart(keyring.sign, report.message())
    return msgspec.structs.replace(report, signature=signature.hex())


def _tell(progress: Progress | None, what: str) -> None:
    if progress is not None:
        progress(what, 0.0)
