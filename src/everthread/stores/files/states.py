"""The state at a version, for who needs it below the threads: views, and keyframes that are made again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from everthread.codec import records
from everthread.codec.records import Change
from everthread.errors import StateCorruptedError
from everthread.history import packs
from everthread.history.snapshots import Snapshot, read_keyframe
from everthread.stores.contract import PACK, PRUNED, REWIND, Line, Row

_Doing = Callable[[Snapshot], None]


class StateGone(StateCorruptedError):  # noqa: N818 - a signal inside the store
    """The version was pruned, and nothing goes on from it."""


class Rows(Protocol):
    """What is needed of a store."""

    def line(self, line: int) -> Line | None: ...

    def line_by_uid(self, uid: bytes) -> Line | None: ...

    def replay(self, line: int, seq: int, floor: int) -> list[Row]: ...


def state_at(store: Rows, line: Line, seq: int) -> Snapshot:
    """The state at version ``seq``: back to a keyframe, then forward again."""
    steps: list[_Doing] = []
    base: Snapshot | None = None
    while base is None:
        if seq > line.parent_seq:
            rows = store.replay(line.id, seq, line.parent_seq)
            if not rows:
                raise _missing(line, seq)
            base, line, seq = _walk(store, line, seq, rows, steps)
        elif line.parent:
            steps.append(Snapshot.branch)
            seq, line = min(seq, line.parent_seq), _known(store.line(line.parent), line)
        else:
            base = Snapshot.empty()
    for step in reversed(steps):
        step(base)
    return base


def _walk(
    store: Rows, line: Line, seq: int, rows: list[Row], steps: list[_Doing]
) -> tuple[Snapshot | None, Line, int]:
    """Down the rows of one line: the state it begins with, or where to go on."""
    top = seq
    for row in rows:
        if not row.first <= seq <= row.seq:
            raise _missing(line, seq)
        if row.keyframe is not None and row.seq <= top:
            return read_keyframe(row.keyframe), line, seq
        seq = row.first - 1
        if row.kind == PRUNED and (row.seq > top or row.net is None):
            if row is rows[0]:
                raise StateGone(f"version {top} of {line.name!r} was pruned", where=line.name)
            raise _missing(line, top)
        if row.kind in (PACK, PRUNED):
            steps.extend(_advance(change) for change in reversed(_changes(row, top)))
            continue
        head, encoded, _ = records.read_record(row.body)
        change = records.read_change(encoded)
        if row.kind != REWIND:
            steps.append(_advance(change))
            continue
        source = records.read_head(head).source
        if source is None:
            raise _missing(line, row.seq)
        steps.append(_jump(row.seq, change))
        return None, _known(store.line_by_uid(source[0]), line), source[1]
    return None, line, seq


def _changes(row: Row, top: int) -> list[Change]:
    """What a pack does up to version ``top``, oldest first."""
    if row.seq <= top:
        return [packs.read_net(row.net or b"")]
    return [records.read_change(each) for each in packs.read_pack(row.body).changes[: top - row.first + 1]]


def _advance(change: Change) -> _Doing:
    return lambda snapshot: snapshot.advance(change)


def _jump(seq: int, change: Change) -> _Doing:
    return lambda snapshot: snapshot.jump(seq, change.counts)


def _known(found: Line | None, line: Line) -> Line:
    if found is None:
        raise StateCorruptedError(f"a line in the past of {line.name!r} is missing", where=line.name)
    return found


def _missing(line: Line, seq: int) -> StateCorruptedError:
    return StateCorruptedError(f"version {seq} of {line.name!r} is missing", where=f"{line.name} {seq}")
