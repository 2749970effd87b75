"""From the columns of a query to the rows of the contract, and the checksums of what no frame covers.

Bodies, nets, keyframes and chunk data are frames with a checksum of their own. The columns beside them say
where those belong and are covered by the column ``sum``: a flipped bit there must not move a record to
another place. ``docs/internals/format.md`` says what each sum is made of.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any
from zlib import crc32

import apsw

from everthread.codec.values import decode
from everthread.errors import StateCorruptedError
from everthread.history.packs import Chunk
from everthread.stores.contract import DAMAGED, DELTA, REWIND, SEAL_SEQ, Found, Line, NewRow, Row
from everthread.stores.sqlite.schema import SEQ_BITS, SEQ_MASK, SQL, row_id

_pack_row = struct.Struct("<qq").pack
_pack_line = struct.Struct("<qqqqq").pack
_pack_place = struct.Struct("<qqq").pack
#: What a column of the wrong type makes of packing it.
_MISFITS = (TypeError, AttributeError, ValueError, OverflowError, struct.error)


# ── sums ─────────────────────────────────────────────────────────────────────────────────────────


def row_sum(row: int, kind: int, first: int, digest: bytes, key: bytes | None) -> int:
    """The sum of a record: where it stands, what it is, its hash and its key."""
    return crc32(digest if key is None else digest + key, crc32(_pack_row(row, first * 4 + kind)))


def record_columns(line: int, row: NewRow) -> tuple[Any, ...]:
    """What SQL["append"] takes."""
    seq, kind, digest, key = row.seq, row.kind, row.hash, row.key
    id_ = line << SEQ_BITS | seq
    return id_, kind, digest, key, row.body, row.previous, row_sum(id_, kind, seq, digest, key)


def line_sum(fields: tuple[Any, ...]) -> int:
    """The sum of a line: everything that never changes, in the order of the table."""
    number, uid, space, name, root, parent, parent_seq, parent_segment, *hashes, counts = fields
    found = crc32(_pack_line(number, root, parent, parent_seq, parent_segment))
    for part in (uid, space.encode(), name.encode(), *hashes, counts):
        found = crc32(part, crc32(len(part).to_bytes(4, "little"), found))
    return found


def chunk_sum(line: int, log: str, position: int, count: int, fingerprints: bytes) -> int:
    """The two sums of a chunk in one number: where it belongs, and its fingerprints."""
    place = crc32(log.encode(), crc32(_pack_place(line, position, count)))
    return (place << 32 | crc32(fingerprints)) - (1 << 63)


def chunk_columns(line: int, chunk: Chunk) -> tuple[Any, ...]:
    """A chunk as it is inserted."""
    place = line, chunk.log, chunk.position, chunk.count
    return (*place, chunk_sum(*place, chunk.fingerprints), chunk.fingerprints, chunk.data)


def chunk_fits(line: int, log: str, columns: tuple[Any, ...]) -> tuple[bool, bool]:
    """Whether a chunk is where it belongs, and whether its fingerprints are those that were written.

    ``columns`` begin with position, count and fingerprints and end with the sum.
    """
    position, count, fingerprints, *_, found = columns
    try:
        wrong = chunk_sum(line, log, position, count, fingerprints) ^ found
    except _MISFITS:
        return False, False
    return wrong >> 32 == 0, wrong & 0xFFFFFFFF == 0


def to_chunk(log: str, columns: tuple[Any, ...]) -> Chunk:
    """A chunk that is where it belongs. Data of another type is data that fails its checksum, not none."""
    position, count, fingerprints, data, *_ = columns
    return Chunk(log, position, count, fingerprints, data if type(data) is bytes else b"\0")


def tag_sum(line: int, name: str, value: bytes) -> int:
    return crc32(value, crc32(name.encode(), crc32(line.to_bytes(8, "little"))))


def tag_fits(line: Any, name: Any, value: Any, found: Any) -> bool:
    """Whether a tag is one that was written. On a damaged page any column may come with any type."""
    try:
        return bool(tag_sum(line, name, value) == found)
    except _MISFITS:
        return False


def tag_columns(line: int, tags: Mapping[str, bytes]) -> list[tuple[int, str, bytes, int]]:
    """Tags as they are inserted."""
    return [(line, name, value, tag_sum(line, name, value)) for name, value in tags.items()]


def tagged(line: int, seq: int) -> int:
    """Up to which version the tags of a line are complete, with a checksum in the lower half."""
    return seq << 32 | crc32(_pack_row(line, seq))


def tagged_seq(line: int, found: int) -> int:
    """The version that :func:`tagged` was made of; 0, so that they are gathered anew, if it is damaged."""
    try:
        return found >> 32 if tagged(line, found >> 32) == found else 0
    except _MISFITS:
        return 0


_LINE_FIELDS = (
    "id",
    "uid",
    "space",
    "name",
    "root",
    "parent",
    "parent_seq",
    "parent_segment",
    "parent_hash",
    "start_hash",
)


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────


@functools.lru_cache(maxsize=512)
def to_line(columns: tuple[Any, ...]) -> Line:
    """A line, from its columns, whether it is deleted, and its sum. Raises if that doesn't fit."""
    fields, deleted, found = columns[:11], columns[11], columns[12]
    try:
        fits = line_sum(fields) == found
    except _MISFITS:
        fits = False
    if not fits:
        raise StateCorruptedError(
            f"the entry of line {columns[0]} in the table of threads fails its checksum; "
            "everthread.salvage() brings what can be saved into a new store",
            where=f"line {columns[0]}",
        )
    *named, counts = fields
    return Line(
        **dict(zip(_LINE_FIELDS, named, strict=True)),
        counts=decode(counts) if counts else {},
        deleted=bool(deleted),
    )


def to_row(line: int, columns: tuple[Any, ...]) -> Row:
    """A row of a line for replaying, from its columns, its key and its sum.

    The sum of a single record isn't looked at: where it belongs follows from its neighbours.
    """
    row = Row(columns[0] & SEQ_MASK, *columns[1:7])
    if row.kind != DELTA and row.kind != REWIND:
        return checked_row(line, (*columns[:7], None, columns[8]))
    return row if columns[0] >> SEQ_BITS == line and _typed(row) else damaged_row(row)


def checked_row(line: int, columns: tuple[Any, ...]) -> Row:
    """A row of a line, from its columns, its key and its sum; one of the kind DAMAGED if these don't fit.

    On a damaged page a search may come across rows that it didn't ask for.
    """
    id_, first, kind, digest, body, net, keyframe, key, found = columns
    row = Row(id_ & SEQ_MASK, first, kind, digest, body, net, keyframe)
    try:
        # As row_sum() and _typed(): the first read of every handle runs this.
        told = crc32(digest if key is None else digest + key, crc32(_pack_row(id_, first * 4 + kind)))
        if (
            told == found
            and type(body) is bytes
            and (net is None or type(net) is bytes)
            and (keyframe is None or type(keyframe) is bytes)
            and id_ >> SEQ_BITS == line
        ):
            return row
    except _MISFITS:
        pass
    return damaged_row(row)


def _typed(row: Row) -> bool:
    return (
        type(row.body) is bytes
        and (row.net is None or type(row.net) is bytes)
        and (row.keyframe is None or type(row.keyframe) is bytes)
    )


def damaged_row(row: Row) -> Row:
    """That something stands there is all that can be said; the hash is what a writer has to build on."""
    return Row(row.seq, row.seq, DAMAGED, row.hash if type(row.hash) is bytes else b"", b"")


def to_found(columns: tuple[Any, ...]) -> Found:
    line = to_line(columns[:13])
    newest = None if columns[13] is None else checked_row(line.id, columns[13:22])
    return Found(line, newest, columns[22])


# ── the rows a version is rebuilt from ──


def replay(db: apsw.Connection, line: int, seq: int, floor: int) -> list[Row]:
    """As the contract says."""
    wanted, last = row_id(line, seq), row_id(line, floor)
    cursor: Any = db.execute(SQL["replay_from"], (wanted, last))
    newest = cursor.fetchone()
    if newest is None or newest[0] != wanted:
        # No row ends there: which one holds it has to be found.
        cursor.close(True)
        cursor = db.execute(SQL["replay_within"], (wanted, row_id(line, SEAL_SEQ - 1), last))
        rows = _to_rows(line, seq, cursor)
    else:
        rows = _to_rows(line, seq, chain((newest,), cursor))
    cursor.close(True)
    return rows


def _to_rows(line: int, seq: int, found: Iterator[tuple[Any, ...]]) -> list[Row]:
    """The rows for replaying version ``seq``, as far as that needs them."""
    rows: list[Row] = []
    for columns in found:
        id_, first, kind, digest, body, net, keyframe, _, _ = columns
        if kind == DELTA and keyframe is None and net is None and type(body) is bytes:
            # As to_row(), of what there is most of.
            row = Row(id_ & SEQ_MASK, first, kind, digest, body)
            rows.append(row if id_ >> SEQ_BITS == line else damaged_row(row))
            continue
        row = to_row(line, columns)
        rows.append(row)
        if (row.keyframe is not None and row.seq <= seq) or row.kind == REWIND:
            break
    return rows
