"""The format: the names of keys, and how records of the contract are written as their values.

``docs/internals/valkey-format.md`` says what stands where.

No name of a caller's stands in a key: what is looked up by a name is looked up by a digest of it. A key is
``prefix:{tag}:kind…``; what has the same tag is in the same slot, so that one script may touch it all.

- A *family* of lines (a line that isn't a fork, all its forks and theirs) has a tag made of the name of its
  first line. The number of a line is its tag and its place in it, so that it leads to its slot.
- A *space* has a tag for its lists of names and its cells, a *stream* of events one for its events.
- Registers of the whole store are cut into sixteen by the first digit of what they list.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any
from zlib import crc32

import msgspec

from everthread.codec.values import decode, encode
from everthread.errors import StateCorruptedError
from everthread.history.packs import Chunk
from everthread.stores.contract import COLD, DAMAGED, PACK, PRUNED, Found, Line, NewRow, Row

#: A line's number is its family's tag (32 bits) and its place in that family.
MEMBER_BITS = 31
MEMBER_MAX = (1 << MEMBER_BITS) - 1

SHARDS = "0123456789abcdef"

#: So long after its time the server removes a line by itself. Until then whoever looks finds it expired, by a
#: clock that may be behind the server's.
EXPIRY_GRACE_MS = 60_000


def digest(*parts: str | bytes) -> bytes:
    """Sixteen bytes that stand for these parts, each with its length, so that no two lists are alike."""
    found = sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        found.update(len(raw).to_bytes(8, "big"))
        found.update(raw)
    return found.digest()[:16]


@lru_cache(maxsize=4096)
def name_digest(space: str, name: str) -> bytes:
    return digest("name", space, name)


def name_tag(space: str, name: str) -> str:
    """The tag of the entry of a name, and of the family whose first line has it."""
    return name_digest(space, name)[:4].hex()


def line_id(tag: str, member: int) -> int:
    return int(tag, 16) << MEMBER_BITS | member


def split_id(line: int) -> tuple[str, int]:
    """The tag and the place of a line. Nobody has a line of a number that is too large."""
    return f"{line >> MEMBER_BITS:08x}"[-8:], line & MEMBER_MAX


class Keys:
    """The keys of one store."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.encode()

    def family(self, tag: str) -> bytes:
        return b"%b:{%b}:f" % (self.prefix, tag.encode())

    def rows(self, line: int) -> bytes:
        return b"%b:{%08x}:r:%d" % (self.prefix, line >> MEMBER_BITS, line & MEMBER_MAX)

    def line_of(self, rows: bytes) -> int:
        """The line whose rows a key holds."""
        tag, _, member = rows[len(self.prefix) + 2 :].partition(b"}:r:")
        return line_id(tag.decode(), int(member))

    def space(self, space: str) -> bytes:
        """The list of names of a space; its other keys begin like it."""
        return b"%b:{s%b}:N" % (self.prefix, digest("space", space).hex().encode())

    def stream(self, space: str, stream: str) -> bytes:
        return b"%b:{e%b}:e" % (self.prefix, digest("stream", space, stream).hex().encode())

    def shard(self, kind: str, first: str) -> bytes:
        """One of sixteen registers: ``u`` of lines by uid, ``t`` of tags, ``v`` of sealed values."""
        return b"%b:{%b%b}:%b" % (self.prefix, kind.encode(), first.encode(), kind.encode())

    @property
    def spaces(self) -> bytes:
        return b"%b:{root}:S" % self.prefix

    @property
    def info(self) -> bytes:
        return b"%b:{root}:i" % self.prefix

    @property
    def ledger(self) -> bytes:
        """The erasure ledger."""
        return b"%b:{root}:L" % self.prefix

    @property
    def unfinished(self) -> bytes:
        """The keys of the ledger whose erasure isn't finished."""
        return b"%b:{root}:U" % self.prefix

    @property
    def news(self) -> bytes:
        """The channel that tells of new lines."""
        return b"%b:news" % self.prefix


# ── values ───────────────────────────────────────────────────────────────────────────────────────

_HEAD = struct.Struct(">BI")
_SUM = struct.Struct(">I")
_CHUNK = struct.Struct(">QIIIII")
#: What becomes of damaged bytes when they are taken apart.
_MISFITS = (TypeError, ValueError, IndexError, OverflowError, struct.error, msgspec.DecodeError)

#: A line in a row's reply: seq, value, body, net, keyframe.
WIDTH = 5

#: Rows whose body stands beside them; the scripts know them by their numbers.
FOLDED = (PACK, PRUNED, COLD)

_encode = msgspec.msgpack.Encoder().encode


def pack(value: Any) -> bytes:
    """A value as scripts unpack it: MessagePack without its type for bytes, which they don't know."""
    out: list[bytes] = []
    _pack(value, out)
    return b"".join(out)


def _pack(value: Any, out: list[bytes]) -> None:
    kind = type(value)
    if kind is str:
        value, kind = value.encode(), bytes
    if kind is bytes:
        out.append(b"\xda%b" % len(value).to_bytes(2, "big") if len(value) < 1 << 16 else _long(value))
        out.append(value)
    elif kind is list or kind is tuple:
        out.append(b"\xdd" + len(value).to_bytes(4, "big"))
        for each in value:
            _pack(each, out)
    elif kind is dict:
        out.append(b"\xdf" + len(value).to_bytes(4, "big"))
        for name, each in value.items():
            _pack(name, out)
            _pack(each, out)
    else:
        out.append(_encode(value))


def _long(value: bytes) -> bytes:
    return b"\xdb" + len(value).to_bytes(4, "big")


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────


def row_sum(tag: str, seq: int, head: bytes, digest: bytes, key: bytes) -> int:
    return crc32(key, crc32(digest, crc32(head, crc32(b"%b %d" % (tag.encode(), seq)))))


def row_value(tag: str, seq: int, first: int, kind: int, digest: bytes, key: bytes | None) -> bytes:
    """A row without its content: kind, first, hash, key and their sum. That of a single record follows."""
    head = _HEAD.pack(48 + kind, first)
    key = key or b""
    sum_ = _SUM.pack(row_sum(tag, seq, head, digest, key))
    return b"%b%c%b%c%b%b" % (head, len(digest), digest, len(key), key, sum_)


def new_row_value(tag: str, row: NewRow) -> bytes:
    return row_value(tag, row.seq, row.seq, row.kind, row.hash, row.key) + row.body


def line_head(digest: bytes, before: bytes | None, seq: int) -> bytes:
    """What a line says about its newest row: alive, its hash, that of the row before, its seq."""
    before = before or b""
    return b"a%c%b%c%b%d" % (len(digest), digest, len(before), before, seq)


def expected_head(previous: bytes) -> bytes:
    """What the head of a line begins with that a row with this ``previous`` builds on."""
    return b"a%c%b" % (len(previous), previous)


def read_head(head: bytes) -> tuple[bool, bytes, bytes | None, int]:
    """Whether the line is alive, the hash of its newest row, that of the row before, its seq."""
    size = head[1]
    digest = head[2 : 2 + size]
    at = 2 + size
    before = head[at + 1 : at + 1 + head[at]]
    return head[:1] == b"a", digest, before or None, int(head[at + 1 + head[at] :])


def read_row(tag: str, parts: Sequence[Any]) -> tuple[Row, bytes | None]:
    """A row and its key, from what a script gives of it; of the kind DAMAGED if the sum doesn't fit."""
    seq, value, body, net, keyframe = parts
    seq = int(seq)
    try:
        kind, first = value[0] - 48, int.from_bytes(value[1:5], "big")
        at = 6 + value[5]
        digest = value[6:at]
        key = value[at + 1 : at + 1 + value[at]]
        end = at + 1 + len(key)
        (found,) = _SUM.unpack(value[end : end + 4])
        if row_sum(tag, seq, value[:5], digest, key) != found or kind == DAMAGED:
            return Row(seq, seq, DAMAGED, digest, b""), None
    except _MISFITS:
        return Row(seq, seq, DAMAGED, b"", b""), None
    if kind not in FOLDED:
        body = value[end + 4 :]
    return Row(seq, first, kind, digest, body or b"", net, keyframe), key or None


def read_rows(tag: str, flat: Sequence[Any]) -> list[tuple[Row, bytes | None]]:
    return [read_row(tag, flat[at : at + WIDTH]) for at in range(0, len(flat), WIDTH)]


def row_fields(tag: str, row: Row) -> list[Any]:
    """A row of any kind as scripts write it: seq, whether it is folded, value, body, net, keyframe."""
    value = row_value(tag, row.seq, row.first, row.kind, row.hash, None)
    folded = row.kind in FOLDED
    return [
        row.seq,
        folded,
        value if folded else value + row.body,
        row.body if folded else False,
        False if row.net is None else row.net,
        False if row.keyframe is None else row.keyframe,
    ]


# ── lines ────────────────────────────────────────────────────────────────────────────────────────


def line_value(line: Line) -> bytes:
    """Everything of a line that never changes, besides its number and root; with a sum in front."""
    parent = split_id(line.parent)[1] if line.parent else 0
    fields = [line.uid, line.space, line.name, parent, line.parent_seq, line.parent_segment]
    packed = _encode(
        [*fields, line.parent_hash, line.start_hash, encode(line.counts) if line.counts else b""]
    )
    return _SUM.pack(crc32(packed)) + packed


@lru_cache(maxsize=1024)
def read_line(tag: str, member: int, root: int, value: bytes, deleted: bool) -> Line:
    """A line. Raises :class:`StateCorruptedError` if it isn't what was written."""
    where = f"line {line_id(tag, member)}"
    try:
        if _SUM.unpack(value[:4])[0] != crc32(value[4:]):
            raise ValueError(where)
        uid, space, name, parent, seq, segment, parent_hash, start_hash, counts = msgspec.msgpack.decode(
            value[4:]
        )
        return Line(
            id=line_id(tag, member),
            uid=uid,
            space=space,
            name=name,
            root=line_id(tag, root),
            parent=line_id(tag, parent) if parent else 0,
            parent_seq=seq,
            parent_segment=segment,
            parent_hash=parent_hash,
            start_hash=start_hash,
            counts=decode(counts) if counts else {},
            deleted=deleted,
        )
    except _MISFITS as error:
        raise StateCorruptedError(
            f"the entry of {where} fails its checksum; restore a backup, or the server's own files",
            where=where,
        ) from error


def to_line(tag: str, parts: Sequence[Any]) -> Line:
    """From what scripts give of a line: its place, its root, its value, whether it is deleted."""
    member, root, value, deleted = parts
    return read_line(tag, int(member), int(root), value, bool(deleted))


def to_found(tag: str, parts: Sequence[Any]) -> Found:
    """From a line, its head, and its newest row if it has one."""
    line = to_line(tag, parts[:4])
    row = parts[5]
    if not row:
        return Found(line, None)
    newest = read_row(tag, row)[0]
    # The first row of a line builds on what isn't a row of it.
    before = read_head(parts[4])[2] if newest.first > line.parent_seq + 1 else None
    return Found(line, newest, before)


# ── chunks and tags ──────────────────────────────────────────────────────────────────────────────


def chunk_entry(tag: str, chunk: Chunk, seq: int) -> bytes:
    """A chunk in the index of its log: where it is, two sums, the row that brought it, its fingerprints."""
    place = _place(tag, chunk.log, chunk.position, chunk.count, seq)
    prints = crc32(chunk.fingerprints)
    head = _CHUNK.pack(chunk.position, chunk.count, len(chunk.data), place, prints, seq)
    return head + chunk.fingerprints


def _place(tag: str, log: str, position: int, count: int, seq: int) -> int:
    return crc32(log.encode(), crc32(b"%b %d %d %d " % (tag.encode(), position, count, seq)))


def read_chunk(tag: str, log: str, entry: bytes) -> tuple[int, int, int, bytes, bool] | None:
    """Position, count, size of the data, fingerprints, and whether these fit; ``None`` if it isn't one."""
    try:
        position, count, size, place, prints, seq = _CHUNK.unpack(entry[: _CHUNK.size])
    except struct.error:
        return None
    if _place(tag, log, position, count, seq) != place:
        return None
    found = entry[_CHUNK.size :]
    return position, count, size, found, crc32(found) == prints


def tag_values(tags: Mapping[str, bytes]) -> list[bytes]:
    """Tags as they are stored: names and values, one after the other, each value with its sum."""
    found = []
    for name, value in tags.items():
        raw = name.encode()
        found += [raw, _SUM.pack(crc32(value, crc32(raw))) + value]
    return found


def read_tags(flat: Sequence[bytes]) -> dict[str, bytes]:
    """The tags that are what was written."""
    found = {}
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        if value[:4] == _SUM.pack(crc32(value[4:], crc32(name))):
            found[name.decode("utf-8", "replace")] = value[4:]
    return found
