"""Work that takes long and was begun: so that whoever comes after a crash knows of it.

A mark is a cell in a space that no public name reaches, written before the first change and removed after the
last one. What it is about can't always be finished without whoever began it: an import needs its archive.
Persons' data that has a time is such work, too, which ends when nobody has a time any more: a store that is
opened finds all that there is to do with one question.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from everthread.errors import StateCorruptedError
from everthread.process import Place, here, is_gone
from everthread.stores.contract import Cell, StaleCell

if TYPE_CHECKING:
    from collections.abc import Callable

    from everthread.stores.contract import Backend
    from everthread.threads.sync.core import Core

IMPORT, COPY, REDACTION, LIFETIMES = "import", "copy", "redaction", "lifetimes"
_PAGE = 100
#: A process on a machine that can't be looked at is given so long.
_SILENCE_US = 3_600_000_000
#: So long after it was given up nobody needs to be told any more.
_FORGOTTEN_US = 30 * 86_400_000_000


class Work(msgspec.Struct, frozen=True):
    """What was begun, from which archive or store, when, by whom; and what is needed to go on with it."""

    what: str
    source: str
    since_us: int
    who: Place
    note: bytes = b""

    def __str__(self) -> str:
        since = datetime.datetime.fromtimestamp(self.since_us / 1e6, datetime.UTC)
        began = f"that began at {since:%Y-%m-%d %H:%M} UTC"
        if self.what == IMPORT:
            return (
                f"the import of the archive {self.source} {began} was cut short: a part of it is here, each "
                "version whole. import_from() it again: that goes on where it ended, and brings nothing twice"
            )
        if self.what == COPY:
            return (
                f"the copy from {self.source} {began} was cut short: a part of it is here, each version "
                "whole. Copy again: that goes on where it ended, and brings nothing twice"
            )
        return f"the redaction {began} was cut short: opening the store goes on with it"


def unfinished_space(space: str) -> str:
    """Where a namespace keeps the marks of work that was begun."""
    return f"{space.partition(chr(0))[0]}\0unfinished"


def work(core: Core, what: str, source: str = "", note: bytes = b"") -> Work:
    """Work that this process is at."""
    return Work(what, source, core.runtime.now_us(), here(), note)


def begin(core: Core, name: str, told: Work) -> None:
    """Mark it, durably; once more under the same name changes the mark."""
    _put(core, name, msgspec.msgpack.encode(told))


def end(core: Core, name: str) -> None:
    """It is done."""
    _put(core, name, None)


def _put(core: Core, name: str, value: bytes | None) -> None:
    space, now_us = unfinished_space(core.space), core.runtime.now_us()
    cell = core.backend.cell(space, name, now_us)
    while cell is not None or value is not None:
        try:
            core.backend.swap(space, name, cell.revision if cell is not None else 0, value, now_us)
            return
        except StaleCell as stale:
            cell = stale.actual


def left(backend: Backend, space: str, clock: Callable[[], int]) -> list[tuple[str, Work]]:
    """All that there may be to do, but for what another process is at."""
    found: list[tuple[str, Work]] = []
    if not backend.cells(unfinished_space(space), "", None, 1, 0):
        # Nearly always. Marks don't expire: no clock is asked.
        return found
    now_us = clock()
    after: str | None = None
    while page := backend.cells(unfinished_space(space), "", after, _PAGE, now_us):
        found += [(name, told) for name, cell in page if _given_up(told := _read(cell), cell)]
        if len(page) < _PAGE:
            break
        after = page[-1][0]
    return found


def cut_short(backend: Backend, space: str, clock: Callable[[], int]) -> list[tuple[str, Work]]:
    """What was begun by a process that has ended, or hasn't been heard of for long."""
    return [each for each in left(backend, space, clock) if each[1].what != LIFETIMES]


def note_lifetimes(core: Core) -> None:
    """Somebody's data has a time."""
    if core.backend.cell(unfinished_space(core.space), LIFETIMES, core.runtime.now_us()) is None:
        begin(core, LIFETIMES, work(core, LIFETIMES))


def forget_old(core: Core) -> None:
    """Imports that nobody took up again."""
    now_us = core.runtime.now_us()
    for name, told in cut_short(core.backend, core.space, core.runtime.now_us):
        if told.what != REDACTION and now_us - told.since_us > _FORGOTTEN_US:
            end(core, name)


def _read(cell: Cell) -> Work:
    try:
        return msgspec.msgpack.decode(cell.value, type=Work)
    except msgspec.MsgspecError as error:
        raise StateCorruptedError("a mark of work that was begun is damaged", where="unfinished") from error


def _given_up(told: Work, cell: Cell) -> bool:
    return told.what == LIFETIMES or is_gone(told.who) or cell.read_us - cell.written_us >= _SILENCE_US
