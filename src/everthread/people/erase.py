"""Erasing a person from a store: what ``store.erase()`` does, and what opening and restoring a store owes it.

An erasure goes through five phases. The ledger of the store records each one, so that whoever comes after a
crash can go on; every phase may be done twice.

    noted       the ids of the person's keys are in the ledger: the store takes nothing more of theirs, and
                there is no way back
    destroyed   the keys are gone from the keyring, and the surviving ones are wrapped anew
    deleted     sealed values and user data are deleted
    purged      the bytes are gone from the store's files, too
    finished    samples of the bytes were searched for everywhere, and none was found

One call at a time works on an erasure; whoever comes second waits for its report.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from everthread.errors import EverthreadError, StateCorruptedError
from everthread.maintenance.key_needs import count_keys
from everthread.people.holds import Holds, Scope
from everthread.people.kept import USER_VALUES, Carried, Stayed, carried, keep, put_back, stays
from everthread.people.kept import drop as drop_kept
from everthread.people.report import (
    DAMAGED,
    IN_PROGRESS,
    LEFT,
    NOT_LOOKED,
    ErasureReport,
    Finding,
    elsewhere_places,
    held_places,
    nothing_known,
    unopened_places,
    unreachable_copies,
)
from everthread.process import Place as Process
from everthread.process import here, is_gone
from everthread.sandboxes.folders import unreached_folders
from everthread.stores.contract import (
    DELETED,
    DESTROYED,
    FINISHED,
    NOTED,
    PURGED,
    Backend,
    Cell,
    ErasedKey,
    Line,
    Progress,
    Purged,
    Residues,
    SealedRow,
    StaleCell,
    split_keys,
)
from everthread.threads.sealing import PEOPLE
from everthread.threads.sync.thread import Thread
from everthread.threads.twins import pause

if TYPE_CHECKING:
    from everthread.keyring.keyring import Keyring
    from everthread.threads.sync.core import Core

#: How long a claim counts if its process is on another machine, where nobody can see whether it lives.
_SILENCE_US = 600_000_000
#: An erasure that waits for readers isn't tried again before this, however often the store is opened.
_AGAIN_US = 60_000_000
#: How often a call that waits for another one looks whether that is done.
_PAUSE_S = 0.02
#: The calls of this process that are at work. A claim of this process that isn't here was left by a failure.
_RUNNING: set[bytes] = set()
#: The length of a sample: too long to be found by chance, short enough to lie within one database page.
_SAMPLE_BYTES = 24
#: A long value gives a sample at every so many bytes: no database page holds more than that.
_SAMPLE_DISTANCE_BYTES = 1_000
#: The most samples to search for; of more, every second is chosen, every third …
SAMPLES_MAX = 20_000
#: The most samples kept in the ledger until the erasure is finished, in case this process dies.
KEPT_SAMPLES_MAX = 2_000
_MASK = 0xA5
_TABLE = bytes(byte ^ _MASK for byte in range(256))
#: The spaces of threads with user data end with this, in every namespace.
_USERS = "\0users"
_VALUES_PAGE = 500
T = TypeVar("T")
#: The cells in which reports are kept begin with this.
REPORTS = "report/"
_REPORTS_PAGE = 200
#: Ends the name of the first report of an erasure that a restored backup made run once more.
_FIRST = "/first"


def erase(
    core: Core,
    subject: str,
    timeout_s: float,
    progress: Progress | None = None,
    only: Collection[bytes] | None = None,
) -> ErasureReport:
    """Erase a person, or finish an erasure of theirs; with ``only``, just what is under those of their keys.
    If another call is erasing them, wait for its report. What a hold on some of their values covers stays.
    Raises :class:`LegalHoldError` if a hold covers all; then nothing was changed."""
    keyring = core.vault.keyring
    before = key_ids = keyring.key_ids(subject)
    report = _finish_begun(core, subject, before, timeout_s, progress)
    if report is not None:
        # The person may have come back since that erasure was begun.
        key_ids = keyring.key_ids(subject)
    chosen = [key_id for key_id in key_ids if only is None or key_id in only]
    if chosen:
        held = Holds(core).begin_erasing(key_ids, around=only is None)
        notes = Notes(token=keyring.token(subject))
        if held is not None and held.scope is not None and held.hold is not None:
            kept_under = keyring.rotate(subject)
            Holds(core).follow(key_ids, kept_under)
            notes = msgspec.structs.replace(
                notes, kept_under=kept_under, scope=held.scope, reason=held.hold.reason
            )
        again = _note(core, subject, chosen, notes)
        report = _finish_begun(core, subject, chosen, timeout_s, progress) or report
        if again:
            report = Erasure(core, _keys(core, again, NOTED), notes).run_phases(timeout_s, progress)
    if report is None and before:
        # Another call has erased them at the same time, and is done.
        report = _finish_begun(core, subject, before, timeout_s, progress)
        report = report or _finished(core, chosen or set(before).difference(key_ids))
    # This store may still have what is sealed under keys that were destroyed through another one: perhaps
    # those of this very person, whom the keyring knows nothing of any more.
    unnamed = settle(core, timeout_s, progress) if only is None else []
    if report is None:
        report = nothing_known(core.backend.url, keyring.where, unnamed)
    found = report.sealed_values or report.user_values or report.waiting
    if not found and (unopened := report.unopened or _unopened(core)):
        # Not signed, nor is a keyring made for it: perhaps it is the wrong one.
        places = report.places
        if not report.unopened:
            places = (*places, *unopened_places(core.backend.url, unopened))
        return msgspec.structs.replace(report, complete=False, places=places, public_key="", signature="")
    return report if report.signature else signed(core, report)


def _note(core: Core, subject: str, key_ids: list[bytes], notes: Notes) -> list[bytes]:
    """Note a person's keys in the ledger, except for those that another call has noted by now.

    Returns those that the ledger knows to be erased, and that the keyring has nevertheless: it is older.
    """
    known = core.backend.erased(key_ids)
    open_ = {key.key_id for key in core.backend.erasures(True)} if known else set()
    fresh = [key_id for key_id in key_ids if key_id not in known]
    if fresh:
        # With each of them: if one was noted by somebody else in between, the others are still known.
        note = notes.pack()
        keys = [msgspec.structs.replace(key, note=note) for key in _keys(core, fresh, NOTED)]
        core.backend.note_erasures(keys)
    core.vault.note_erased(key_ids)
    finished = known - open_
    # Asked last: what another call has just finished is gone from the keyring.
    return [k for k in core.vault.keyring.key_ids(subject) if k in finished] if finished else []


def _finish_begun(
    core: Core, subject: str, key_ids: Collection[bytes], timeout_s: float, progress: Progress | None
) -> ErasureReport | None:
    """Finish the erasures of a person that were begun, or wait for the calls at work on them; the report of
    the last one."""
    report = None
    for erasure in _begun(core, subject, key_ids):
        report = erasure.finish(timeout_s, progress)
    return report


def _finished(core: Core, key_ids: Collection[bytes]) -> ErasureReport | None:
    """The report of whoever has erased these keys."""
    if not key_ids:
        return None
    ids = {key.erasure for key in core.backend.erasures() if key.key_id in key_ids}
    found = [kept_report(core, each.hex()) for each in sorted(ids)]
    return next((report for report in found if report is not None), None)


def _begun(core: Core, subject: str, key_ids: Collection[bytes]) -> list[Erasure]:
    """The erasures of a person that aren't finished."""
    begun = unfinished(core)
    if not begun:
        return []
    token = core.vault.keyring.token(subject)
    return [each for each in begun if each.notes.token == token or not each.covers.isdisjoint(key_ids)]


def unfinished(core: Core) -> list[Erasure]:
    """The erasures that aren't finished, each with its keys."""
    together: dict[bytes, list[ErasedKey]] = {}
    for key in core.backend.erasures(True):
        together.setdefault(key.erasure, []).append(key)
    return [Erasure(core, keys) for keys in together.values()]


def _keys(core: Core, key_ids: list[bytes], phase: int) -> list[ErasedKey]:
    erasure, now_us = core.runtime.random_bytes(16), core.runtime.now_us()
    return [ErasedKey(key_id=k, phase=phase, erasure=erasure, noted_us=now_us) for k in key_ids]


def preview(core: Core, subject: str) -> ErasureReport:
    """What an erasure would come to. Changes nothing."""
    keyring, url = core.vault.keyring, core.backend.url
    alive = keyring.key_ids(subject)
    held = keyring.held()
    # Without any key there needn't be a keyring: asking for somebody's token would make one.
    begun = _begun(core, subject, alive) if held else []
    key_ids = list(dict.fromkeys((*alive, *(key_id for each in begun for key_id in each.key_ids))))
    counts = [each.counted for each in begun]
    values, size, users = (sum(count[at] for count in counts if count is not None) for at in range(3))
    counted = {key_id for each in begun if each.counted is not None for key_id in each.covers}
    left = [key_id for key_id in key_ids if key_id not in counted]
    for _, _, data in sealed_values(core.backend, left):
        values, size = values + 1, size + len(data)
    for line in user_lines(core.backend, left):
        users += count_values(core, line)
    standing, refusing = Holds(core).look(alive), Holds(core).refusing(alive)
    stayed: Stayed = ()
    if standing.hold is not None and standing.scope is not None and standing.scope.space == core.space:
        stayed, stayed_size = stays(core, alive, standing.scope)
        size = max(size - stayed_size, 0)
        values, users = _without(values, stayed), users - dict(stayed).get(USER_VALUES, 0)
    unopened = _unopened(core)
    others = elsewhere(core)
    return ErasureReport(
        erasure=begun[0].id if begun else "",
        dry_run=True,
        complete=False,
        store=url,
        keyring=keyring.where,
        key_ids=tuple(key_id.hex() for key_id in key_ids),
        sealed_values=values,
        sealed_bytes=size,
        user_values=users,
        survivors=max(keyring.alive() - len(alive), 0),
        master_rotated=keyring.rotates_master,
        places=(
            *unopened_places(url, unopened),
            *elsewhere_places(url, others.values, others.keys, "would be deleted"),
            *held_places(url, stayed, standing.hold.reason if standing.hold else "", "would stay"),
        ),
        unreached=(*unreached_folders(core), *unreachable_copies(keyring.rotates_master)),
        held=None if refusing is None else refusing.reason,
    )


# ── one erasure, phase by phase ─────────────────────────────────────────────────────────────────────────


class Erasure:
    """The keys that are erased together, as far as that has come."""

    def __init__(self, core: Core, keys: Sequence[ErasedKey], notes: Notes | None = None) -> None:
        self._core = core
        self._backend = core.backend
        self._keys = list(keys)
        self.notes = notes or _notes_of(keys)
        #: Whether this very call captured what is looked for, and not one that was cut short.
        self._captured_now = False
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

    def can_resume(self) -> bool:
        """Whether this keyring is the one to destroy the keys in: another one knows nothing of them."""
        if self._phase > NOTED:
            return True
        if self.notes.scope is not None and self.notes.scope.space != self._core.space:
            # What is held is in another namespace, and only a store that is open there can keep it.
            return False
        known = [self._keyring.key(k) is not None or self._keyring.is_destroyed(k) for k in self.key_ids]
        return any(known)

    def is_free(self) -> bool:
        """Whether nobody is at it, as far as can be told."""
        return Claim(self._core, self.id).is_free()

    def finish(self, timeout_s: float, progress: Progress | None = None) -> ErasureReport:
        """Go on from whatever phase was reached; what it came to. Who is at it already is waited for, and
        gives the report."""
        claim, finished = Claim(self._core, self.id), True
        taken = claim.take(timeout_s)
        try:
            if self._is_over():
                kept = kept_report(self._core, self.id)
                if kept is not None:
                    return kept
            if not taken:
                # Nothing is counted: that is for the report of whoever is at it.
                return signed(self._core, self._outline(waiting=(IN_PROGRESS,)))
            report = self.run_phases(timeout_s, progress)
            finished = self._phase == FINISHED
            return report
        finally:
            # Also if it failed: whoever tries next needn't wait until this process has ended.
            with suppress(EverthreadError):
                if taken:
                    claim.leave(waiting=not finished)
            claim.end()

    def _is_over(self) -> bool:
        """Learn from the ledger how far it has come since, and whether somebody else has finished it."""
        ours = self.covers
        found = [key for key in self._backend.erasures(True) if key.key_id in ours]
        found = [key for key in found if key.erasure == self._keys[0].erasure]
        if found:
            self._keys, self.notes = found, _notes_of(found)
        return not found

    def run_phases(self, timeout_s: float, progress: Progress | None = None) -> ErasureReport:
        """Go through the phases that are left, without a claim and whatever the ledger says by now."""
        if self._phase == NOTED and self.notes.scope is not None:
            _report_progress(progress, "keeping what is held")
            self._keep_held(self.notes.scope)
        if self._phase <= DESTROYED and not self.notes.captured:
            self._capture()
        if self._phase == NOTED:
            _report_progress(progress, "destroying the keys")
            self._destroy()
        if self._phase == DESTROYED:
            _report_progress(progress, "deleting what was sealed")
            self._delete()
        if self._phase == DELETED:
            self._purged = self._backend.purge(timeout_s, progress)
            if self._purged.waiting:
                return self._report()
            self._record_phase(PURGED, self.notes)
        self._search_bytes(progress)
        if self._found.hits:
            # A reader may have kept old rows alive meanwhile: purge and search once more.
            self._purged = self._backend.purge(timeout_s, progress)
            self._search_bytes(progress)
        if self._found.hits or self._purged.waiting:
            return self._report()
        # Kept before the last phase is recorded: after that nobody would write it any more.
        report = self._report(finished=True)
        self._record_phase(FINISHED, None)
        return report

    # ── the phases ───────────────────────────────────────────────────────────────────────────

    def _record_phase(self, phase: int, notes: Notes | None) -> None:
        """Note a phase in the ledger, and what whoever goes on from there needs; that with the first key."""
        texts = [b"" if notes is None else notes.pack(), *(b"" for _ in self._keys[1:])]
        noted = [
            msgspec.structs.replace(key, phase=max(phase, key.phase), note=text)
            for key, text in zip(self._keys, texts, strict=True)
        ]
        self._backend.note_erasures(noted)
        self._keys = noted

    def _keep_held(self, scope: Scope) -> None:
        """While the keys are there: nothing can be added under them any more, so this is all."""
        self._core.vault.note_erased(self.key_ids)
        stayed, size = keep(self._core, self.key_ids, scope, self.notes.kept_under)
        self.notes = msgspec.structs.replace(self.notes, stayed=stayed, stayed_size=size)

    def _capture(self) -> None:
        """Note the keys, then what to search for afterwards and how much there is. Nothing can be added from
        here on, and a call that goes on after a kill finds less of it."""
        self._record_phase(NOTED, self.notes)
        self._core.vault.note_erased(self.key_ids)
        pieces: list[bytes] = []
        values, size, users = 0, 0, 0
        for _, _, data in sealed_values(self._backend, self.key_ids):
            values, size = values + 1, size + len(data)
            pieces.extend(samples_of(data))
            if len(pieces) > 2 * SAMPLES_MAX:
                pieces = evenly_chosen(pieces, SAMPLES_MAX)
        for line in user_lines(self._backend, self.key_ids):
            users += count_values(self._core, line)
        keys = self._keyring.capture(self.key_ids)
        self.notes = msgspec.structs.replace(
            self.notes,
            captured=True,
            values=values,
            size=size,
            users=users,
            before=len(self._keys) if self._phase > NOTED else len(keys.destroyed),
            survivors=keys.alive,
            pieces=tuple(evenly_chosen(pieces, SAMPLES_MAX)),
            traces=tuple(keys.traces),
        )
        self._captured_now = True
        self._record_phase(NOTED, self.notes)

    def _destroy(self) -> None:
        done = self._keyring.erase(self.key_ids)
        # An earlier call that was cut short here may have destroyed them itself.
        before = len(self._keys) - len(done.key_ids) if self._captured_now else self.notes.before
        self.notes = msgspec.structs.replace(
            self.notes, before=before, survivors=done.survivors, rotated=done.master_rotated
        )
        self._record_phase(DESTROYED, self.notes)

    def _delete(self) -> None:
        users = 0
        for line in user_lines(self._backend, self.key_ids):
            users += count_values(self._core, line)
            self._backend.delete(line)
        drop_kept(self._core, self.key_ids)
        dropped = self._backend.drop_sealed(self.key_ids)
        self.notes = msgspec.structs.replace(
            self.notes, users=max(self.notes.users, users), values=max(self.notes.values, dropped)
        )
        self._record_phase(DELETED, self.notes)

    def _search_bytes(self, progress: Progress | None) -> None:
        """Search the files of the store and of the keyring for samples of what belonged to the person."""
        pieces, traces = self.notes.pieces, self.notes.traces
        store = self._backend.residues(pieces, progress)
        keys = self._keyring.residues(traces)
        self._found = Residues(
            # A search without samples proves nothing: don't list its places as searched.
            looked=(*(store.looked if pieces else ()), *(keys.looked if traces else ())),
            hits=(*store.hits, *keys.hits),
            unreached=(*store.unreached, *keys.unreached),
        )

    # ── the report ───────────────────────────────────────────────────────────────────────────

    def _report(self, *, finished: bool = False) -> ErasureReport:
        """Return what was done. It is complete if all phases are finished, and nothing in the store is sealed
        under keys that this keyring neither has nor destroyed: any of it may be the person's."""
        if not self.notes.captured:
            survivors = self._keyring.alive()
            self.notes = msgspec.structs.replace(self.notes, before=len(self._keys), survivors=survivors)
        notes, found, purged = self.notes, self._found, self._purged
        needs = count_keys(self._core)
        outline = self._outline(waiting=purged.waiting)
        unreached = outline.unreached if needs.complete else (*outline.unreached, DAMAGED)
        report = msgspec.structs.replace(
            outline,
            complete=finished and needs.complete and not needs.unopened,
            sealed_values=_without(notes.values, notes.stayed),
            sealed_bytes=max(notes.size - notes.stayed_size, 0),
            user_values=self._users_gone,
            survivors=notes.survivors,
            master_rotated=notes.rotated,
            needles=len(notes.pieces) + len(notes.traces),
            residues=sum(times for _, times in found.hits),
            places=(*self._places(), *unopened_places(outline.store, needs.unopened)),
            unreached=unreached,
        )
        report = signed(self._core, report)
        # For the caller who asked for the erasure: another process may have finished it.
        self._keep(msgspec.json.encode(report))
        return report

    def _outline(self, waiting: tuple[str, ...]) -> ErasureReport:
        """A report without what was done."""
        looked = () if self.notes.captured or self._phase < DELETED else (NOT_LOOKED,)
        folders = unreached_folders(self._core)
        unreached = (*self._purged.unreached, *self._found.unreached, *looked, *folders)
        return ErasureReport(
            erasure=self.id,
            complete=False,
            noted_us=self._keys[0].noted_us,
            store=self._backend.url,
            keyring=self._keyring.where,
            key_ids=tuple(key_id.hex() for key_id in self.key_ids),
            waiting=waiting,
            unreached=tuple(dict.fromkeys((*unreached, *unreachable_copies(self._keyring.rotates_master)))),
        )

    def _places(self) -> tuple[Finding, ...]:
        url, where, notes = self._backend.url, self._keyring.where, self.notes
        destroyed = len(self._keys) - notes.before
        keys = (
            Finding(where, "keys", destroyed, "destroyed"),
            Finding(where, "keys", notes.before, "destroyed before"),
        )
        return (
            *(place for place in keys if place.count),
            Finding(
                where, "surviving keys", notes.survivors, "wrapped anew" if destroyed else "left as they were"
            ),
            Finding(url, "sealed values", _without(notes.values, notes.stayed), "deleted"),
            Finding(url, "user values", self._users_gone, "deleted"),
            *held_places(url, notes.stayed, notes.reason, "kept"),
            *(Finding(url, what, 1, "done") for what in self._purged.done),
            *(Finding(path, "bytes", size, "looked through") for path, size in self._found.looked),
            *(Finding(path, "pieces of sealed bytes or keys", n, LEFT) for path, n in self._found.hits),
        )

    @property
    def _users_gone(self) -> int:
        return max(self.notes.users - dict(self.notes.stayed).get(USER_VALUES, 0), 0)

    def _keep(self, report: bytes) -> None:
        name, now_us = REPORTS + self.id, self._core.runtime.now_us()
        cell = self._backend.cell(PEOPLE, name, now_us)
        with suppress(StaleCell):
            revision = cell.revision if cell is not None else 0
            self._backend.swap(PEOPLE, name, revision, report, now_us)


def _without(values: int, stayed: Stayed) -> int:
    """How many of so many values went."""
    return max(values - sum(count for _, count in stayed), 0)


def _notes_of(keys: Sequence[ErasedKey]) -> Notes:
    found = (Notes.unpack(key.note) for key in keys if key.note)
    return next((each for each in found if each is not None), Notes())


def kept_report(core: Core, erasure: str) -> ErasureReport | None:
    """The report of an erasure that somebody has finished; ``None`` if it isn't there, or damaged."""
    cell = core.backend.cell(PEOPLE, REPORTS + erasure, core.runtime.now_us())
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


def _report_progress(progress: Progress | None, what: str) -> None:
    if progress is not None:
        progress(what, 0.0)


# ── what was interrupted, or came back with an archive or a backup ──────────────────────────────────────


def resume(core: Core, timeout_s: float = 0.0, progress: Progress | None = None) -> list[ErasureReport]:
    """Finish what was interrupted, unless somebody is at it. What can't be finished now is left for later.

    The reports of those that may be anybody's: their keys were destroyed through another store.
    """
    reports = []
    for erasure in unfinished(core):
        with suppress(EverthreadError):
            if erasure.is_free() and erasure.can_resume():
                report = erasure.finish(timeout_s, progress)
                if not erasure.notes.token:
                    reports.append(report)
    return reports


def settle(core: Core, timeout_s: float = 0.0, progress: Progress | None = None) -> list[ErasureReport]:
    """After other content came in, from a backup or an archive: nobody comes back with it.

    Whoever the ledger of the store or the keyring knows to be erased is erased from it. Returns what
    :func:`resume` does.
    """
    core.vault.forget_ledger()
    with suppress(EverthreadError):
        came = sorted(used_keys(core.backend, _destroyed_elsewhere(core)))
        # Looking for them takes its time: somebody else may be at it by now.
        known = core.backend.erased(came)
        came = [key_id for key_id in came if key_id not in known]
        if came:
            core.backend.note_erasures(_keys(core, came, DESTROYED))
            core.vault.forget_ledger()
    return resume(core, timeout_s, progress)


class Elsewhere(NamedTuple):
    """What a store holds of persons who were erased through another one: values, and their keys."""

    values: int = 0
    keys: int = 0

    def without(self, left: Elsewhere) -> Elsewhere:
        """What is gone, if that is ``left``."""
        return Elsewhere(max(self.values - left.values, 0), max(self.keys - left.keys, 0))


def elsewhere(core: Core) -> Elsewhere:
    """What :func:`settle` would delete of persons who were erased through another store on the same keyring.
    Changes nothing."""
    values, found = 0, set[bytes]()
    key_ids = _destroyed_elsewhere(core)
    for _, joined, _ in sealed_values(core.backend, sorted(key_ids)):
        values += 1
        found.update(key_ids.intersection(split_keys(joined)))
    return Elsewhere(values, len(found))


def _destroyed_elsewhere(core: Core) -> frozenset[bytes]:
    """The keys that are gone from the keyring, and of which the ledger of this store knows nothing."""
    destroyed = core.vault.keyring.destroyed()
    return destroyed - core.backend.erased(destroyed)


class CarriedOver(NamedTuple):
    """What of a store must outlive a restored backup, besides its ledger, as cells: holds, and receipts."""

    holds: list[tuple[str, bytes]]
    receipts: list[tuple[str, bytes]]
    #: The erasures that weren't finished.
    unfinished: set[bytes]
    #: What holds keep of persons who were erased otherwise.
    kept: list[Carried]


def before_restoring(core: Core) -> CarriedOver:
    """What must outlive a restored backup. Nothing, of what is damaged."""
    over = CarriedOver([], [], set(), [])
    with suppress(EverthreadError):
        over.holds.extend(Holds(core).in_force())
    with suppress(EverthreadError):
        over.receipts.extend(_receipts(core))
    with suppress(EverthreadError):
        over.unfinished.update(key.erasure for key in core.backend.erasures(True))
    with suppress(EverthreadError):
        over.kept.append(carried(core))
    return over


def after_restoring(core: Core, over: CarriedOver) -> int:
    """Put the holds back, let nobody come back who was erased, and keep the receipts of before. How many
    erasures the backup had to be held to."""
    Holds(core).put_back(over.holds)
    known = {key.erasure for key in core.backend.erasures()}
    again = {key.erasure for key in core.backend.erasures(True)} - over.unfinished
    settle(core)
    for kept in over.kept:
        put_back(core, kept)
    again |= {key.erasure for key in core.backend.erasures()} - known
    now = dict(_receipts(core))
    # First receipts come before the newest ones of the same erasure.
    for name, value in reversed(over.receipts):
        place = name if name not in now or name.endswith(_FIRST) else f"{name}{_FIRST}"
        if value not in now.values() and place not in now:
            Holds(core).put_back([(place, value)])
            now[place] = value
    return len(again)


# ── who works on an erasure ─────────────────────────────────────────────────────────────────────────────


class _Work(msgspec.Struct, frozen=True):
    """Who is at an erasure, in which call, and whether nobody is because it waits for readers."""

    who: Process
    waiting: bool = False
    run: bytes = b""


class Claim:
    """The right to go on with an erasure, in a cell that is changed by compare-and-set."""

    def __init__(self, core: Core, erasure: str) -> None:
        self._core = core
        self._name = f"erasing/{erasure}"
        self._run = b""

    def is_free(self) -> bool:
        """Whether nobody is at it, as far as can be told, nor was until a moment ago."""
        cell = self._cell()
        if cell is None:
            return True
        if msgspec.msgpack.decode(cell.value, type=_Work).waiting:
            return cell.read_us - cell.written_us >= _AGAIN_US
        return _is_left(cell)

    def take(self, timeout_s: float) -> bool:
        """Wait until nobody else is at it, and say that this call is. False if that takes too long."""
        until = time.monotonic() + timeout_s
        while not self._try():
            if time.monotonic() >= until:
                return False
            pause(_PAUSE_S)
        return True

    def leave(self, *, waiting: bool) -> None:
        """Let others go on with it, if it isn't done; at once, or not before a while."""
        cell = self._cell()
        if cell is not None and msgspec.msgpack.decode(cell.value, type=_Work).run == self._run:
            value = msgspec.msgpack.encode(_Work(here(), waiting=True)) if waiting else None
            self._swap(cell, value)

    def end(self) -> None:
        """Whatever became of it, this call isn't at it any more."""
        _RUNNING.discard(self._run)

    def _try(self) -> bool:
        cell = self._cell()
        if cell is not None and not _is_left(cell):
            return False
        self._run = self._core.runtime.random_bytes(16)
        # Before it is seen: another thread would take it for one that failed.
        _RUNNING.add(self._run)
        taken = False
        try:
            taken = self._swap(cell, msgspec.msgpack.encode(_Work(here(), run=self._run)))
        finally:
            if not taken:
                self.end()
        return taken

    def _cell(self) -> Cell | None:
        return self._core.backend.cell(PEOPLE, self._name, self._core.runtime.now_us())

    def _swap(self, cell: Cell | None, value: bytes | None) -> bool:
        revision, now_us = cell.revision if cell is not None else 0, self._core.runtime.now_us()
        try:
            self._core.backend.swap(PEOPLE, self._name, revision, value, now_us, False)
        except StaleCell:
            return False
        return True


def _is_left(cell: Cell) -> bool:
    """Whether whoever was at it isn't any more."""
    work = msgspec.msgpack.decode(cell.value, type=_Work)
    if work.waiting or is_gone(work.who) or cell.read_us - cell.written_us >= _SILENCE_US:
        return True
    return work.who == here() and work.run not in _RUNNING


# ── what is noted of an erasure, and what is searched for afterwards ────────────────────────────────────


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """What an erasure has to know of itself if another process finishes it. Kept in the ledger until then.

    Masked, so that looking for the pieces doesn't find the notes themselves.
    """

    token: bytes = b""
    captured: bool = False
    values: int = 0
    size: int = 0
    users: int = 0
    #: How many of the keys had been destroyed before, through another store or before a backup was restored.
    before: int = 0
    survivors: int = 0
    rotated: bool = False
    pieces: tuple[bytes, ...] = ()
    traces: tuple[bytes, ...] = ()
    #: What a hold covers, why, under which new key it is kept, and what that came to: places with counts,
    #: and sealed bytes.
    scope: Scope | None = None
    reason: str = ""
    kept_under: bytes = b""
    stayed: Stayed = ()
    stayed_size: int = 0

    def pack(self) -> bytes:
        kept = msgspec.structs.replace(self, pieces=tuple(evenly_chosen(self.pieces, KEPT_SAMPLES_MAX)))
        return masked(msgspec.msgpack.encode(kept))

    @classmethod
    def unpack(cls, data: bytes) -> Notes | None:
        """``None`` if there are none, or none that make sense."""
        try:
            return msgspec.msgpack.decode(masked(data), type=cls)
        except (msgspec.DecodeError, ValueError):
            return None


def samples_of(sealed: bytes) -> Iterator[bytes]:
    """Pieces of the sealed bytes of a value. The first one holds the nonce, which nobody else ever has."""
    last = len(sealed) - _SAMPLE_BYTES
    for start in (*range(1, max(last, 2), _SAMPLE_DISTANCE_BYTES), last):
        if 0 <= start <= last:
            yield sealed[start : start + _SAMPLE_BYTES]


def evenly_chosen(pieces: Iterable[bytes], most: int) -> list[bytes]:
    """At most so many of them, evenly chosen."""
    found = list(dict.fromkeys(pieces))
    step = -(-len(found) // most)
    return found[:: max(step, 1)]


def masked(data: bytes) -> bytes:
    """Every bit pattern another one; twice is none."""
    return data.translate(_TABLE)


# ── what a store holds of a person, by their keys ───────────────────────────────────────────────────────


def sealed_values(backend: Backend, key_ids: Sequence[bytes]) -> Iterator[SealedRow]:
    """All sealed values that need one of these keys."""
    after = b""
    while key_ids and (page := backend.sealed_under(key_ids, after, _VALUES_PAGE)):
        yield from page
        after = page[-1][0]


def used_keys(backend: Backend, key_ids: Collection[bytes]) -> set[bytes]:
    """Under which of these keys something is sealed here: in one go, because a store may have to look at all
    that it holds."""
    wanted = frozenset(key_ids)
    found: set[bytes] = set()
    for _, joined, _ in sealed_values(backend, sorted(wanted)):
        found.update(wanted.intersection(split_keys(joined)))
    return found


def user_lines(backend: Backend, key_ids: Sequence[bytes]) -> list[Line]:
    """The threads of user data that are called after these keys, in whichever namespace."""
    names = {key_id.hex() for key_id in key_ids}
    if not names:
        return []
    return [
        line
        for line in backend.every_line()
        if line.name in names and line.space.endswith(_USERS) and not line.deleted
    ]


def count_values(core: Core, line: Line) -> int:
    """How many values a thread of user data holds; none if it can't be read."""
    core = copy.copy(core)
    core.space = line.space
    with suppress(EverthreadError):
        thread = Thread(core, line.name)
        return len(thread.state)
    return 0


def _unopened(core: Core) -> int:
    """How many sealed values need a key that never was in this keyring: whose they are can't be told."""
    return count_keys(core, strict=True).unopened


# ── reports that were kept ──────────────────────────────────────────────────────────────────────────────


def reports(core: Core) -> list[ErasureReport]:
    """The newest report of each erasure of this store, the oldest erasure first; and the first one, too,
    where a restored backup made it go through once more. Raises :class:`StateCorruptedError`."""
    try:
        found = [msgspec.json.decode(value, type=ErasureReport) for _, value in _receipts(core)]
    except msgspec.MsgspecError as error:
        raise StateCorruptedError("the report of an erasure is damaged", where=PEOPLE) from error
    return sorted(found, key=lambda report: (report.noted_us, report.ended_us))


def _receipts(core: Core) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    after: str | None = None
    while page := core.backend.cells(PEOPLE, REPORTS, after, _REPORTS_PAGE):
        found += [(name, cell.value) for name, cell in page]
        after = page[-1][0]
    return found
