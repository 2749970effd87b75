# Generated from src/everthread/threads/aio/pins.py by tools/twin.py: change that, then run: make twin
"""Pins: versions that stay until their owner lets go of them, whatever retention says.

A pin is a cell beside the threads, so that no rewind moves it. Pruning announces itself in a cell of its own
before it reads the pins of a family of threads: whoever pins a version writes the pin first and then looks
for such announcements, so that of the two at least one sees the other.
"""

from __future__ import annotations

import datetime
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from everthread.errors import InvalidValueError, StateCorruptedError, StoreBusyError, VersionPrunedError
from everthread.stores.contract import PRUNED, Cell, Line, StaleCell
from everthread.threads.lifetimes import ttl_us
from everthread.threads.sync.journals import space_beside
from everthread.threads.tombstones import pruned
from everthread.threads.twins import pause
from everthread.versions import Pin, Version

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core

PINS = "pins"
#: Cells whose names begin like this announce that versions of a family are being pruned.
PRUNING = "gc/"
#: An announcement that is older is left over from a process that was killed.
PRUNING_US = 300 * 1_000_000
_PAGE = 500
#: How long a pin waits for pruning that was under way when it was made.
_PATIENCE_S = 5.0
_PAUSE_S = 0.01
_TRIES = 100
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)

Until = datetime.datetime | datetime.timedelta | float | None


class StoredPin(msgspec.Struct, frozen=True, array_like=True):
    """What a cell holds: the line that holds the version, the version, and until when it is pinned."""

    owner: bytes
    seq: int
    version_id: str
    until_us: int | None


def read_pin(cell: Cell, name: str) -> StoredPin:
    try:
        return msgspec.msgpack.decode(cell.value, type=StoredPin)
    except (msgspec.DecodeError, ValueError) as error:
        raise StateCorruptedError(f"the pin {name!r} can't be read", where=name) from error


def shown(stored: StoredPin, thread: str) -> Pin:
    return Pin(thread=thread, seq=stored.seq, version_id=stored.version_id, until_us=stored.until_us)


def moment_us(until: Until, now_us: int) -> int | None:
    """A moment, or a time from now on, in microseconds; ``None`` for ever."""
    if until is None:
        return None
    if isinstance(until, datetime.datetime):
        if until.tzinfo is None:
            raise InvalidValueError(
                f"until needs a time zone, such as datetime.UTC; {until!r} has none", path="until"
            )
        moment = (until - _EPOCH) // _MICROSECOND
        if moment <= now_us:
            raise InvalidValueError(f"until must be in the future, and {until} isn't", path="until")
        return moment
    return now_us + ttl_us(until)


def pin(core: Core, line: Line, version: Version, until_us: int | None) -> Pin:
    """Let a version of a thread stay. Once this returns, no pruning takes it before its time."""
    owner = core.reader.owner(line, version.seq)
    stored = StoredPin(owner.uid, version.seq, version.id, until_us)
    name = _name(line, version.seq)
    _put(core, name, msgspec.msgpack.encode(stored))
    try:
        _outwait(core, owner)
        if (core.reader.row(owner, version.seq)).kind == PRUNED:
            raise pruned(version.seq, line.name)
    except (VersionPrunedError, StoreBusyError):
        _put(core, name, None)
        raise
    return shown(stored, line.name)


def unpin(core: Core, line: Line, seq: int) -> bool:
    """Let go of a version; whether it was pinned."""
    return _put(core, _name(line, seq), None)


def pins_of(core: Core, line: Line) -> list[StoredPin]:
    """The pins of a thread whose time isn't over, by version."""
    now_us = core.runtime.now_us()
    found = [read_pin(cell, name) for name, cell in _cells(core, f"{line.uid.hex()}/")]
    return [each for each in found if each.until_us is None or each.until_us > now_us]


def _name(line: Line, seq: int) -> str:
    return f"{line.uid.hex()}/{seq:020}"


def _cells(core: Core, prefix: str) -> list[tuple[str, Cell]]:
    space, found = space_beside(core.space, PINS), list[tuple[str, Cell]]()
    while page := core.backend.cells(
        space, prefix, found[-1][0] if found else None, _PAGE, core.runtime.now_us()
    ):
        found += page
    return found


def _put(core: Core, name: str, value: bytes | None) -> bool:
    """Make this the value of a cell, or remove it; whether there was one."""
    space = space_beside(core.space, PINS)
    for _ in range(_TRIES):
        now_us = core.runtime.now_us()
        cell = core.backend.cell(space, name, now_us)
        if cell is None and value is None:
            return False
        try:
            core.backend.swap(space, name, cell.revision if cell else 0, value, now_us)
            return cell is not None
        except StaleCell:
            continue
    raise StoreBusyError("others pin and unpin this version all the time; try again")


def _outwait(core: Core, owner: Line) -> None:
    """Wait for all pruning of a family that may not have seen a pin."""
    waiting = _pruning(core, owner)
    until_s = monotonic() + _PATIENCE_S
    while waiting:
        if monotonic() > until_s:
            raise StoreBusyError(
                f"gc() is pruning the family of {owner.name!r}; the version isn't pinned, try again"
            )
        pause(_PAUSE_S)
        waiting &= _pruning(core, owner)


def _pruning(core: Core, owner: Line) -> set[str]:
    cells = _cells(core, f"{PRUNING}{owner.root}/")
    return {name for name, cell in cells if cell.read_us - cell.written_us < PRUNING_US}
