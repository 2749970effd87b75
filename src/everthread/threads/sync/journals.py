# Generated from src/everthread/threads/aio/journals.py by tools/twin.py: change that, then run: make twin
"""Journals: a thread beside a thread, which no rewind moves, a fork takes along and a delete removes.

It holds what must outlive every rewind, such as the ledger of effects. It lives in a space of its own that no
public name reaches, under the uid of the line it belongs to. So does its inbox, which no fork takes along:
what was sent to a thread is meant for that one.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.errors import EverthreadError, StateCorruptedError
from everthread.stores.contract import Cell, Found, Line
from everthread.threads.doubts import DOUBTS, Doubt, read_doubt
from everthread.threads.lifetimes import left_s

if TYPE_CHECKING:
    from everthread.stores.contract import Backend
    from everthread.threads.sync.core import Core
    from everthread.threads.sync.thread import Thread


_PAGE = 500
JOURNAL = "journal"
#: Messages from outside on their way to the thread.
INBOX = "inbox"
#: The versions of its working folder.
FILES = "files"
#: What is called after the uid of the thread it belongs to, and goes with it.
COMPANIONS = (JOURNAL, INBOX, FILES)
#: Beside threads, too, but cells: who may write to a session; threads that a restored backup doesn't know.
LEASE = "lease"
GONE = "gone"
#: Cells of the whole store, in no namespace: doubts by id, and the origin that its backups carry.
DOUBT = "\0doubt"
ORIGIN = "\0origin"
#: In the document of a companion: that records of it were lost, and why that is known.
LOSSES = "losses"
#: What such a document says its format is, so that code which knows nothing of that leaves it alone.
LOSSY_FORMAT = 2
#: A companion in words: it is called after the uid of its line.
_UID = re.compile(r"'([0-9a-f]{32})'")


class Lost(msgspec.Struct, frozen=True):
    """What is kept of a thread of which a restored backup knows nothing: its uid, how long its ledger was."""

    uid: bytes
    seq: int


def read_lost(cell: Cell | None) -> Lost | None:
    """What a cell beside threads says of one that was lost."""
    with suppress(msgspec.DecodeError, ValueError):
        return None if cell is None else msgspec.msgpack.decode(cell.value, type=Lost)
    return None


def lost_records(why: str, now_us: int) -> dict[str, Any]:
    """What stands there. What the companion doesn't know any more is to be doubted from then on."""
    return {"why": why, "since_us": now_us, "cleared": {}}


def put_doubts(journal: Thread, uid: str, doubts: Sequence[Doubt]) -> None:
    """Take doubts over into the mark of a journal, within a write of the caller's. Nothing that was cleared
    before them is clear any more."""
    since_us, whys = min(each.since_us for each in doubts), [str(each) for each in doubts]
    marked = journal.state.get(LOSSES)
    if isinstance(marked, Mapping) and type(marked.get("since_us")) is int:
        since_us = min(since_us, marked["since_us"])
        whys = [str(marked.get("why")), *whys]
    journal.state[LOSSES] = lost_records("; ".join(dict.fromkeys(whys)), since_us)
    journal.state["format"] = LOSSY_FORMAT
    known = journal.state.setdefault(DOUBTS, {})
    for each in doubts:
        known[each.id] = uid


def read_doubts(core: Core) -> list[Doubt]:
    """Return the doubts that hold for every ledger of the store, the oldest time first."""
    found = [read_doubt(cell.value) for _, cell in every_cell(core, DOUBT)]
    return sorted(found, key=lambda each: (each.since_us, each.id))


def shorter(seq: int, known: int) -> str:
    """Why records of a companion that ends with version ``seq`` must be lost."""
    return f"it ends with version {seq}, and had {known}"


def beside(core: Core, kind: str = JOURNAL) -> Core:
    """The same store, in the space of the companions of this kind."""
    other = copy.copy(core)
    other.space = _space(core, kind)
    return other


def space_beside(space: str, kind: str) -> str:
    """Where the companions of this kind are."""
    # NUL keeps public names out.
    return f"{space}\0{kind}"


def _space(core: Core, kind: str) -> str:
    return space_beside(core.space, kind)


def every_cell(core: Core, space: str, prefix: str = "") -> list[tuple[str, Cell]]:
    """The cells of a space whose names begin so, as they are now, by name."""
    found: list[tuple[str, Cell]] = []
    while True:
        after, now_us = found[-1][0] if found else None, core.runtime.now_us()
        page = core.backend.cells(space, prefix, after, _PAGE, now_us)
        if not page:
            return found
        found += page


def is_companion(line: Line) -> bool:
    """Whether a line is kept beside threads rather than being one."""
    return "\0" in line.space


def told_as(backend: Backend, line: Line) -> tuple[str, str]:
    """How people know a line: the name of the thread, for a companion of the one it belongs to, and what it
    is beside that (``""``: the thread itself)."""
    kind = line.space.partition("\0")[2]
    name = _owner(backend, line.name) if kind in COMPANIONS else None
    return line.name if name is None else name, kind


def in_words(backend: Backend, words: str) -> str:
    """What is said of journals, whose names nobody knows, with the names of their threads."""
    for uid in dict.fromkeys(_UID.findall(words)):
        name = _owner(backend, uid)
        if name is not None:
            words = words.replace(repr(uid), f"the journal of {name!r}")
    return words


def _owner(backend: Backend, uid: str) -> str | None:
    """The name of the thread that a companion belongs to, if the store can tell."""
    with suppress(ValueError, StateCorruptedError):
        owner = backend.line_by_uid(bytes.fromhex(uid))
        return None if owner is None else owner.name
    return None


def take_along(core: Core, line: Line, uid: bytes, kind: str = JOURNAL) -> Thread | None:
    """Fork the companion of ``line`` for the line ``uid``, which isn't there yet.

    Before the fork itself, so that no fork is ever without what its source had: a crash in between leaves a
    companion that nobody reaches, nothing worse.
    """
    if core.backend.find(_space(core, kind), line.uid.hex()) is None:
        return None
    core = beside(core, kind)
    companion = _open(core, line.uid.hex())
    made = companion.fork(uid.hex())
    why = None if companion.recovered is None else str(companion.recovered)
    if kind == JOURNAL and why is not None and LOSSES not in made.state:
        # Before the fork is there: nobody may take the older companion for all there was.
        made.state[LOSSES] = lost_records(why, core.runtime.now_us())
        made.commit()
    return made


def remove(core: Core, line: Line) -> None:
    """Delete the companions of a line that has been deleted."""
    for kind in COMPANIONS:
        other = beside(core, kind)
        if other.backend.find(other.space, line.uid.hex()) is not None:
            with suppress(EverthreadError):
                (_open(other, line.uid.hex())).delete()


def _open(core: Core, name: str) -> Thread:
    # Threads are made of this module, among others.
    from everthread.threads.sync.thread import Thread

    companion = Thread(core, name)
    companion.handle.load()
    return companion


# Threads whose time is over: absent for everybody, and removed by whoever needs the name.


def bury(core: Core, name: str) -> bool:
    """Delete the thread of this name if it has expired; whether the name may be free now."""
    found = core.backend.find(core.space, name)
    if found is None:
        return True
    if left_s(found, core.runtime.now_us()) > 0:
        return False
    remove_expired(core, found)
    return True


def remove_expired(core: Core, found: Found) -> bool:
    """Delete an expired thread, unless somebody has written to it meanwhile (by another clock)."""
    assert found.newest is not None
    line = found.line
    if not core.backend.delete(line, found.newest.hash):
        return False
    remove(core, line)
    core.head_cache.slot(line.uid).forget()
    return True
