"""Erasing persons from a store: what ``store.erase()`` does, and what opening and restoring one has to do."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from everthread.errors import EverthreadError, StateCorruptedError
from everthread.people.holding import SPACE, Holds
from everthread.people.needles import Notes
from everthread.people.owned import count_values, sealed_values, used_keys, user_lines
from everthread.people.phases import REPORTS, Erasure, kept_report, signed
from everthread.people.reports import (
    ErasureReport,
    beyond,
    elsewhere_places,
    nothing_known,
    unopened_places,
)
from everthread.stores.contract import DESTROYED, NOTED, ErasedKey, Progress, split_keys

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core

_PAGE = 200
#: What the first receipt of an erasure is called by, after a restored backup made it go through once more.
_FIRST = "/first"


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
    hold = (Holds(core).look(alive)).hold
    unopened = 0 if values or users else _unopened(core)
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
        ),
        unreached=beyond(keyring.rotates_master),
        held=None if hold is None else hold.reason,
    )


def erase(
    core: Core,
    subject: str,
    timeout_s: float,
    progress: Progress | None = None,
    only: Collection[bytes] | None = None,
) -> ErasureReport:
    """Erase somebody, or go on with it; with ``only`` what is under those of their keys, and nothing of
    anybody else. If somebody else is at it, their report. Raises :class:`LegalHoldError`; nothing was changed
    then."""
    keyring = core.vault.keyring
    before = keyring.key_ids(subject)
    report = _finish_begun(core, subject, before, timeout_s, progress)
    # Also who came back since then.
    key_ids = keyring.key_ids(subject)
    chosen = [key_id for key_id in key_ids if only is None or key_id in only]
    if chosen:
        Holds(core).begin_erasing(key_ids)
        again = _note(core, subject, chosen)
        report = _finish_begun(core, subject, chosen, timeout_s, progress) or report
        if again:
            notes = Notes(token=keyring.token(subject))
            report = Erasure(core, _keys(core, again, NOTED), notes).go_on(timeout_s, progress)
    if report is None and before:
        # Somebody else has erased them at the same time, and is done.
        report = _finish_begun(core, subject, before, timeout_s, progress)
        report = report or _finished(core, chosen or set(before).difference(key_ids))
    # This store may still have what is sealed under keys that were destroyed through another one: perhaps
    # those of this very person, whom the keyring knows nothing of any more.
    unnamed = settle(core, timeout_s, progress) if only is None else []
    if report is None:
        report = nothing_known(core.backend.url, keyring.where, unnamed)
    found = report.sealed_values or report.user_values or report.waiting
    if not found and (unopened := _unopened(core)):
        # Not signed, nor is a keyring made for it: perhaps it is the wrong one.
        places = (*report.places, *unopened_places(core.backend.url, unopened))
        return msgspec.structs.replace(report, complete=False, places=places, public_key="", signature="")
    return report if report.signature else signed(core, report)


def _note(core: Core, subject: str, key_ids: list[bytes]) -> list[bytes]:
    """Note keys of somebody in the ledger, but for those that somebody else has noted by now.

    Returns those that the ledger knows to be erased, and that the keyring has nevertheless: it is older.
    """
    known = core.backend.erased(key_ids)
    open_ = {key.key_id for key in core.backend.erasures(True)} if known else set()
    fresh = [key_id for key_id in key_ids if key_id not in known]
    if fresh:
        # With each of them: if one was noted by somebody else in between, the others are still known.
        note = Notes(token=core.vault.keyring.token(subject)).pack()
        keys = [msgspec.structs.replace(key, note=note) for key in _keys(core, fresh, NOTED)]
        core.backend.note_erasures(keys)
    core.vault.note_erased(key_ids)
    # Asked last: what somebody has just finished is gone from the keyring.
    return [key_id for key_id in core.vault.keyring.key_ids(subject) if key_id in known - open_]


def _finish_begun(
    core: Core, subject: str, key_ids: Collection[bytes], timeout_s: float, progress: Progress | None
) -> ErasureReport | None:
    """Finish what is begun of somebody, or wait for who is at it; the report of the last one."""
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
    """The erasures of somebody that aren't finished."""
    begun = unfinished(core)
    if not begun:
        return []
    token = core.vault.keyring.token(subject)
    return [each for each in begun if each.notes.token == token or not each.covers.isdisjoint(key_ids)]


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


def resume(core: Core, timeout_s: float = 0.0, progress: Progress | None = None) -> list[ErasureReport]:
    """Finish what was interrupted, unless somebody is at it. What can't be finished now is left for later.

    The reports of those that may be anybody's: their keys were destroyed through another store.
    """
    reports = []
    for erasure in unfinished(core):
        with suppress(EverthreadError):
            if erasure.is_free() and erasure.may_go_on():
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


def reports(core: Core) -> list[ErasureReport]:
    """The newest report of each erasure of this store, the oldest erasure first; and the first one, too,
    where a restored backup made it go through once more. Raises :class:`StateCorruptedError`."""
    try:
        found = [msgspec.json.decode(value, type=ErasureReport) for _, value in _receipts(core)]
    except msgspec.MsgspecError as error:
        raise StateCorruptedError("the report of an erasure is damaged", where=SPACE) from error
    return sorted(found, key=lambda report: (report.noted_us, report.ended_us))


def _receipts(core: Core) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    after: str | None = None
    while page := core.backend.cells(SPACE, REPORTS, after, _PAGE):
        found += [(name, cell.value) for name, cell in page]
        after = page[-1][0]
    return found


class Kept(NamedTuple):
    """What of a store must outlive a restored backup, besides its ledger, as cells: holds, and receipts."""

    holds: list[tuple[str, bytes]]
    receipts: list[tuple[str, bytes]]
    #: The erasures that weren't finished.
    unfinished: set[bytes]


def before_restoring(core: Core) -> Kept:
    """What must outlive a restored backup. Nothing, of what is damaged."""
    kept = Kept([], [], set())
    with suppress(EverthreadError):
        kept.holds.extend(Holds(core).in_force())
    with suppress(EverthreadError):
        kept.receipts.extend(_receipts(core))
    with suppress(EverthreadError):
        kept.unfinished.update(key.erasure for key in core.backend.erasures(True))
    return kept


def after_restoring(core: Core, kept: Kept) -> int:
    """Put the holds back, let nobody come back who was erased, and keep the receipts of before. How many
    erasures the backup had to be held to."""
    Holds(core).put_back(kept.holds)
    known = {key.erasure for key in core.backend.erasures()}
    again = {key.erasure for key in core.backend.erasures(True)} - kept.unfinished
    settle(core)
    again |= {key.erasure for key in core.backend.erasures()} - known
    now = dict(_receipts(core))
    # First receipts come before the newest ones of the same erasure.
    for name, value in reversed(kept.receipts):
        place = name if name not in now or name.endswith(_FIRST) else f"{name}{_FIRST}"
        if value not in now.values() and place not in now:
            Holds(core).put_back([(place, value)])
            now[place] = value
    return len(again)


def _unopened(core: Core) -> int:
    """How many sealed values need a key that never was in this keyring: whose they are can't be told."""
    before, _ = (core.backend.totals()).sealed
    if not before:
        return 0
    held = core.vault.keyring.held()
    seen = partly = 0
    for _, joined, _ in sealed_values(core.backend, sorted(held)):
        seen += 1
        partly += not held.issuperset(split_keys(joined))
    # What others remove or add in the meantime isn't taken for it.
    after, _ = (core.backend.totals()).sealed
    return partly + max(min(before, after) - seen, 0)


def unfinished(core: Core) -> list[Erasure]:
    """The erasures that aren't finished, each with its keys."""
    together: dict[bytes, list[ErasedKey]] = {}
    for key in core.backend.erasures(True):
        together.setdefault(key.erasure, []).append(key)
    return [Erasure(core, keys) for keys in together.values()]


def _keys(core: Core, key_ids: list[bytes], phase: int) -> list[ErasedKey]:
    erasure, now_us = core.runtime.random_bytes(16), core.runtime.now_us()
    return [ErasedKey(key_id=k, phase=phase, erasure=erasure, noted_us=now_us) for k in key_ids]
