"""Names as they are stored, rows of the contract from columns, and checksums of what no frame covers.

Bodies, nets, keyframes and chunk data are frames with a checksum of their own; the columns beside them are
covered by the column ``sum``. ``docs/internals/postgres-format.md`` says what each sum is made of.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from zlib import crc32

from everthread.codec.values import decode
from everthread.errors import StateCorruptedError
from everthread.history.packs import Chunk
from everthread.stores.contract import DAMAGED, Found, Line, Row

#: A line's id is root | number within the family: the root is found without asking.
FAMILY_BITS = 24
FAMILY_MASK = (1 << FAMILY_BITS) - 1

_pack_row = struct.Struct("<qq").pack
_pack_line = struct.Struct("<qqq").pack
_pack_place = struct.Struct("<qq").pack


def root_of(line: int) -> int:
    return line & ~FAMILY_MASK


#: What a function that appends answers: see functions.sql.
STALE, LANDED, KEY_KNOWN, VERSION_GONE, SOURCE_GONE, IN_DOUBT, LOCKED = 0, 1, 2, 3, 4, 5, 6

# ── names ────────────────────────────────────────────────────────────────────────────────────────

_SHORT_MAX = 256


def name_bytes(name: str) -> bytes:
    """A name as it is stored: its UTF-8 bytes. Their order is that of code points."""
    # A name with a lone surrogate can't be stored, but may still be asked for, and isn't found.
    return name.encode("utf-8", "surrogatepass")


def short_name(name: str) -> bytes:
    """A name that is only ever compared: a long one by its digest, so that it fits into an index."""
    data = name_bytes(name)
    # No UTF-8 has this byte: it can't be taken for a name.
    return data if len(data) <= _SHORT_MAX else b"\xff" + sha256(data).digest()


def space_bytes(space: str) -> bytes:
    """The same for a space: what stands behind the namespace stays, so that its tenant is recognised."""
    namespace, mark, kind = space.partition("\0")
    return short_name(namespace) + (mark + kind).encode()


# ── sums ─────────────────────────────────────────────────────────────────────────────────────────


def row_sum(seq: int, kind: int, first: int, digest: bytes, key: bytes | None) -> int:
    """The sum of a record: its number, what it is, its hash and its key."""
    return crc32(digest if key is None else digest + key, crc32(_pack_row(seq, first * 8 + kind)))


def line_sum(
    uid: bytes, space: bytes, name: bytes, parents: tuple[int, int, int], *hashes_and_counts: bytes
) -> int:
    """The sum of a line: everything that never changes, without the numbers that the store gives it."""
    found = crc32(_pack_line(*parents))
    for part in (uid, space, name, *hashes_and_counts):
        found = crc32(part, crc32(len(part).to_bytes(4, "little"), found))
    return found


def chunk_sum(log: bytes, position: int, count: int, fingerprints: bytes) -> int:
    """The two sums of a chunk in one number: where it belongs, and its fingerprints."""
    return (crc32(log, crc32(_pack_place(position, count))) << 32 | crc32(fingerprints)) - (1 << 63)


def chunk_fits(log: bytes, position: int, count: int, fingerprints: bytes, found: int) -> tuple[bool, bool]:
    """Whether a chunk is where it belongs, and whether its fingerprints are those that were written."""
    wrong = chunk_sum(log, position, count, fingerprints) ^ found
    return wrong >> 32 == 0, wrong & 0xFFFFFFFF == 0


def chunk_columns(chunks: tuple[Chunk, ...] | list[Chunk]) -> tuple[list[Any], ...]:
    """Chunks as they are handed to a function: a list for each column."""
    logs = [chunk.log.encode() for chunk in chunks]
    return (
        logs,
        [chunk.position for chunk in chunks],
        [chunk.count for chunk in chunks],
        [
            chunk_sum(log, chunk.position, chunk.count, chunk.fingerprints)
            for log, chunk in zip(logs, chunks, strict=True)
        ],
        [chunk.fingerprints for chunk in chunks],
        [chunk.data for chunk in chunks],
    )


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────

#: How many columns a line, a row have in the statements that read them.
LINE_COLUMNS = 13
ROW_COLUMNS = 9


@functools.lru_cache(maxsize=1024)
def to_line(columns: tuple[Any, ...]) -> Line:
    """A line, from its columns. Raises if its sum doesn't fit."""
    id_, root, uid, space, name, parent, seq, segment, parent_hash, start_hash, counts, deleted, sum_ = (
        columns
    )
    if line_sum(uid, space, name, (parent, seq, segment), parent_hash, start_hash, counts) != sum_:
        raise StateCorruptedError(
            f"the entry of line {id_} in the table of threads fails its checksum; "
            "everthread.salvage() brings what can be saved into a new store",
            where=f"line {id_}",
        )
    return Line(
        id=id_,
        uid=uid,
        space=space.decode(),
        name=name.decode(),
        root=root,
        parent=parent,
        parent_seq=seq,
        parent_segment=segment,
        parent_hash=parent_hash,
        start_hash=start_hash,
        counts=decode(counts) if counts else {},
        deleted=deleted,
    )


def to_row(columns: tuple[Any, ...]) -> Row:
    """A row, from its columns, its key and its sum; one of the kind DAMAGED if these don't fit."""
    seq, first, kind, digest, body, net, keyframe, key, sum_ = columns
    if row_sum(seq, kind, first, digest, key) != sum_:
        return Row(seq, seq, DAMAGED, digest, b"")
    return Row(seq, first, kind, digest, body, net, keyframe)


def to_found(columns: tuple[Any, ...]) -> Found:
    """A line with its newest row and the hash of the row before that."""
    line = to_line(columns[:LINE_COLUMNS])
    row = columns[LINE_COLUMNS : LINE_COLUMNS + ROW_COLUMNS]
    return Found(line, None if row[0] is None else to_row(row), columns[LINE_COLUMNS + ROW_COLUMNS])


# ── words ────────────────────────────────────────────────────────────────────────────────────────

#: What a vector can hold. Of longer texts the first words are found; of longer words none.
_POSITION_MAX = 16_383
_POSITIONS_MAX = 255
_WORD_BYTES_MAX = 2_000
_VECTOR_BYTES_MAX = 700_000


def text_vector(words: str) -> str:
    """A ``tsvector`` of words that are divided by spaces, with their positions."""
    places: dict[str, list[int]] = {}
    size = 0
    for position, word in enumerate(words.split(), 1):
        if word not in places:
            length = len(word.encode()) + 16
            size += length
            if size > _VECTOR_BYTES_MAX:
                break
            if length > _WORD_BYTES_MAX:
                continue
            places[word] = []
        if len(places[word]) < _POSITIONS_MAX:
            places[word].append(min(position, _POSITION_MAX))
    return " ".join(f"{_quoted(word)}:{','.join(map(str, at))}" for word, at in places.items())


def text_query(terms: Sequence[Sequence[str]]) -> str:
    """A ``tsquery`` for terms that must all occur, each of words that follow each other."""
    return " & ".join("(" + " <-> ".join(_quoted(word) for word in term) + ")" for term in terms)


def _quoted(word: str) -> str:
    return "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"
