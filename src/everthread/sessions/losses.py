"""Journals that lost records: what they don't know any more counts as in doubt.

A ledger that merely lacks an effect can't be told from one in which it never happened. So whoever notices
that records are lost writes it down in the journal itself, where forks, copies and exports take it along:
salvaging, a run that begins, a fork. From then on a key that the journal doesn't know may stand for something
that has happened, until somebody accepts that.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from everthread.errors import StateCorruptedError
from everthread.sessions.beside import core_under, is_unheard_of
from everthread.stores.contract import StaleCell
from everthread.threads.sync.companions import (
    GONE,
    LOSSES,
    lost_records,
    read_lost,
    shorter,
    space_beside,
)

if TYPE_CHECKING:
    from everthread.sessions.held import HeldThread
    from everthread.stores.witness import Noted
    from everthread.threads.sync.core import Core
    from everthread.threads.sync.thread import Thread

__all__ = [
    "CLEARED",
    "LOSSES",
    "UNREADABLE",
    "Losses",
    "accept",
    "forget_a_namesake",
    "go_on",
    "losses_in",
    "losses_of",
    "losses_of_a_namesake",
    "lost_records",
]

#: Keys that are known not to have happened although records are lost: begun since, or settled.
CLEARED: Final = "cleared"
#: In the document of a journal: records of effects can't be read, which has been told. Stays when that was
#: accepted: they can't be read then either.
UNREADABLE: Final = "unreadable"


class Losses(msgspec.Struct, frozen=True):
    """That records of a journal were lost, why that is known, and since when."""

    why: str
    since_us: int


def losses_in(document: Mapping[str, Any]) -> Losses | None:
    """What a journal's document says."""
    stored = document.get(LOSSES)
    if stored is None:
        return None
    if not isinstance(stored, Mapping):
        return Losses("it says so, and not why", 0)
    since = stored.get("since_us")
    return Losses(str(stored.get("why")), since if type(since) is int else 0)


def losses_of(journal: Thread, witness: str, noted: Noted | None, uid: bytes) -> Losses | None:
    """What the journal of a line says of itself, or shows. ``witness`` is the id of the newest version that a
    lease knew of, "" if none did; ``noted`` what was noted beside the store. Both were read before it."""
    core = core_under(journal)
    now_us = core.runtime.now_us()
    known = losses_in(journal.state)
    if known is not None:
        return known
    head = journal.head
    if journal.recovered is not None:
        return Losses(str(journal.recovered), now_us)
    if head is not None and head.kind == "rewind":
        # Nothing else rewinds a journal: somebody went on over the damage and died before saying so.
        return Losses(f"it went on from {head.source}, because the versions after that are damaged", now_us)
    number = witness.partition("-")[0]
    seq = head.seq if head is not None else 0
    newest = int(number) if number.isdecimal() else 0
    if noted is not None and noted.uid == uid:
        newest = max(newest, noted.seq)
    if newest > seq:
        return Losses(shorter(seq, newest), now_us)
    if noted is not None and noted.uid != uid and is_unheard_of(core, noted.uid):
        return Losses("there was another thread of this name, of which nothing is left", now_us)
    return None


def losses_of_a_namesake(thread: Thread) -> Losses | None:
    """For a thread without a journal: whether a restored backup left nothing of one that had this name."""
    core = core_under(thread)
    lost = read_lost(core.backend.cell(space_beside(core.space, GONE), thread.name, core.runtime.now_us()))
    if lost is None or not is_unheard_of(core, lost.uid):
        return None
    why = "there was another thread of this name, of which a backup that was restored knows nothing"
    return Losses(why, core.runtime.now_us())


def forget_a_namesake(core: Core, name: str) -> None:
    """What is lost is written down in the journal of the thread that has the name now."""
    space, now_us = space_beside(core.space, GONE), core.runtime.now_us()
    cell = core.backend.cell(space, name, now_us)
    with suppress(StaleCell):
        if cell is not None:
            core.backend.swap(space, name, cell.revision, None, now_us)


def go_on(journal: HeldThread, thread: str) -> None:
    """Let a journal whose newest versions are damaged go on from the last good one; they stay as they are.

    Raises :class:`StateCorruptedError` if nothing can follow them.
    """
    if journal.recovered is None or journal.head is None:
        return
    try:
        journal.rewind(journal.head)
    except StateCorruptedError as error:
        raise StateCorruptedError(
            f"the effects of {thread!r} can't be written down, because its journal is damaged ({error}); "
            "everthread.salvage() brings what is sound into a new store",
            where=error.where,
        ) from error


def accept(journal: Thread) -> bool:
    """Take the mark away, within a write of the caller's; whether there was one."""
    return journal.state.pop(LOSSES, None) is not None
