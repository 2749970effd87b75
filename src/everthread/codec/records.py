"""How versions, packs, chunks and keyframes become bytes.

Everything stored is a *frame*: one byte format version, four bytes CRC-32 (little endian) of that byte and
the payload, then the payload. What the payload holds is documented in ``docs/internals/format.md``; these
bytes are a promise.
"""

from __future__ import annotations

import functools
import json
import struct
import threading
import zlib
from collections.abc import Sequence
from hashlib import sha256
from itertools import repeat
from typing import Annotated, Any, Literal

import msgspec

from everthread.arguments import format_path
from everthread.codec.values import decode, decode_as, encode, encode_stored
from everthread.errors import LimitError, SchemaVersionError, StateCorruptedError
from everthread.limits import DEFAULT_LIMITS, Limits
from everthread.values import Tagged

# What the change of a record looks like: whether everything is of the type that those who apply it rely on.
# Values may be anything.
#
# Said twice: of anything, and for a decoder of those that are just as nearly all are.


#: The least length of an op, by its code.
_OP_LENGTHS = (3, 2, 5, 3)


def are_ops(ops: Any) -> bool:
    if type(ops) is not list:
        return False
    for op in ops:
        if type(op) is not list or len(op) < 2 or type(op[1]) is not list:
            return False
        code = op[0]
        if type(code) is not int or not 0 <= code <= 3 or len(op) < _OP_LENGTHS[code]:
            return False
    return True


def are_splices(splices: Any) -> bool:
    if type(splices) is not list:
        return False
    for splice in splices:
        if type(splice) is not list or len(splice) < 5 or type(splice[0]) is not str:
            return False
        _, at, remove, insert, position, *rest = splice
        if not type(at) is type(remove) is type(insert) is type(position) is int:
            return False
        if at < 0 or remove < 0 or insert < 0 or position < 0:
            return False
        if rest and type(rest[0]) is not bytes:
            return False
    return True


def is_merged(merged: Any) -> bool:
    """Whether this maps uids of lines to [seq, segment]."""
    return type(merged) is dict and all(
        type(uid) is bytes
        and type(place) is list
        and len(place) == 2
        and all(type(number) is int for number in place)
        for uid, place in merged.items()
    )


def are_counts(counts: Any) -> bool:
    return type(counts) is dict and all(
        type(log) is str and type(used) is int and used >= 0 for log, used in counts.items()
    )


# ── many at once ─────────────────────────────────────────────────────────────────────────────────

_Count = Annotated[int, msgspec.Meta(ge=0)]


class Plain(msgspec.Struct, array_like=True):
    """A change as nearly all are: its ops set or add. The decoder checks it, which takes no time at all."""

    ops: list[tuple[Literal[0, 3], list[Any], Any]]
    logs: list[tuple[str, _Count, _Count, _Count, _Count, bytes]] = []
    merged: dict[bytes, tuple[int, int]] = {}
    counts: dict[str, _Count] = {}


FORMAT = 1
#: More than any legal payload: a larger frame can only be damage or malice.
UNPACKED_BYTES_MAX = 256 * 1024 * 1024

COMMIT = 0
REWIND = 1
MERGE = 2
FORK = 3
FENCE = 4

_encode = msgspec.msgpack.Encoder().encode
_Ext = msgspec.msgpack.Ext
_decode_parts = msgspec.msgpack.Decoder(tuple[bytes, bytes, list[bytes]]).decode
_decode_plain_changes = msgspec.msgpack.Decoder(list[Plain], ext_hook=Tagged).decode
_decode_raws = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
#: What msgspec raises for bytes that aren't what they should be; text that isn't UTF-8 is a ValueError.
_UNREADABLE = (msgspec.DecodeError, msgspec.ValidationError, ValueError, RecursionError)
_unpack_prefix = struct.Struct("<BI").unpack_from
_PREFIX = bytes([FORMAT])
_PREFIX_SUM = zlib.crc32(_PREFIX)


def frame(payload: bytes) -> bytes:
    """Payload with its format version and checksum in front."""
    return _PREFIX + zlib.crc32(payload, _PREFIX_SUM).to_bytes(4, "little") + payload


def unframe(data: bytes, what: str) -> bytes:
    """The payload of a frame. Raises if it is damaged or of a newer format."""
    if len(data) < 5:
        raise StateCorruptedError(f"{what} is cut short ({len(data)} bytes)", where=what)
    payload = data[5:]
    # The format byte is part of the sum, so that a flipped bit there is damage rather than the future:
    # a writer of a newer format frames it the same way.
    begun = _PREFIX_SUM if data[0] == FORMAT else zlib.crc32(data[:1])
    if zlib.crc32(payload, begun).to_bytes(4, "little") != data[1:5]:
        raise StateCorruptedError(f"{what} fails its checksum", where=what)
    if data[0] != FORMAT:
        if data[0] > FORMAT:
            raise SchemaVersionError(
                f"{what} has format {data[0]}, this Everthread reads up to {FORMAT}: upgrade it",
                found=data[0],
                supported=FORMAT,
            )
        raise StateCorruptedError(f"{what} has no known format ({data[0]})", where=what)
    return payload


class Head(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a version says about itself, besides what it changed.

    ``source`` is set on a rewind, a merge and a forked first version: [line uid, seq, segment, version id].
    ``step`` is [key, attempt, position of the result in the step log or -1]. ``ttl``: so many microseconds
    after this version the name expires, unless another one follows.
    """

    kind: int
    at_us: int
    label: str | None = None
    metadata: bytes | None = None
    key: str | None = None
    source: tuple[bytes, int, int, str] | None = None
    step: tuple[str, int, int] | None = None
    ttl: int | None = None
    #: Of a record in which something was redacted: the digest of what was committed.
    redacted: bytes | None = None


_decode_head = msgspec.msgpack.Decoder(Head).decode


def step_text(key: str | Sequence[str | int], slot: int | None) -> str:
    """One text per key and slot of a step. NUL, which no name may hold, keeps every form apart."""
    text = key if isinstance(key, str) else "\0" + json.dumps(list(key))
    return text if slot is None else f"{text}\0{slot}"


def step_key(text: str) -> tuple[str | tuple[str | int, ...], int | None]:
    """The key and slot that :func:`step_text` made a text of."""
    listed = text.startswith("\0")
    key, _, slot = text[listed:].partition("\0")
    try:
        return (tuple(json.loads(key)) if listed else key), (int(slot) if slot else None)
    except _UNREADABLE as error:
        raise StateCorruptedError("the step of a record can't be decoded") from error


def read_head(data: bytes) -> Head:
    """Decode a head. Fields that a later version appended are ignored here and kept in the bytes."""
    try:
        return _decode_head(data)
    except _UNREADABLE as error:
        raise StateCorruptedError("the head of a record can't be decoded") from error


def redacted_digest(head: bytes) -> bytes | None:
    """The digest of what was committed, if the record with this head was redacted since."""
    # An array of nine elements at least: no other head is that long.
    return read_head(head).redacted if head[:1] >= b"\x99" else None


def write_head(head: Head) -> bytes:
    if head.redacted is None:
        # One form for one head: a record is told by its bytes, wherever it is written again.
        return _encode(
            (head.kind, head.at_us, head.label, head.metadata, head.key, head.source, head.step, head.ttl)
        )
    return _encode(head)


#: As :func:`write_head`, from a tuple of all its fields but the last.
encode_head = _encode


class Change(msgspec.Struct, array_like=True, omit_defaults=True):
    """What a version changes: document ops, log splices, merges taken in.

    A log splice is [log, at, remove, insert, position, fingerprints]; its items stand in the record's
    blocks and take the physical positions from ``position`` on. ``merged`` maps the uid of a line to
    [seq, segment] of the newest version of it that this one contains. ``counts`` (a rewind only) says how
    many positions each log has used, because a rewind never frees one.
    """

    ops: list[Any] = []
    logs: list[list[Any]] = []
    merged: dict[bytes, list[int]] = {}
    counts: dict[str, int] = {}


def encode_change(
    ops: list[Any], logs: list[list[Any]], merged: dict[bytes, list[int]] | None, limits: Limits
) -> bytes:
    """As :func:`write_change`, from its parts. Raises :class:`LimitError` with the place that takes most."""
    try:
        if merged:
            return encode([ops, logs, merged, {}], limits)
        if len(ops) == 1 and type(value := ops[0][-1]) is Tagged and type(value.code) is int:
            # A sealed value, mostly. What the encoder would ask for, without its asking.
            ops = [(*ops[0][:-1], _Ext(value.code, value.data))]
        return encode([ops, logs] if logs else [ops], limits)
    except LimitError as error:
        where = _largest(ops)
        raise LimitError(f"what is changed is too much, {where} most of all: {error}", path=where) from None


def _largest(ops: list[Any]) -> str:
    """The place in the document that takes up most of what ops set."""
    sizes = [len(encode_stored(op)) for op in ops]
    _, path, *rest = ops[sizes.index(max(sizes))] if ops else (0, ())
    found, value = list(path), rest[-1] if rest else None
    while type(value) is dict or type(value) is list:
        items = list(value.items()) if type(value) is dict else list(enumerate(value))
        size, at = max(((len(encode_stored(item)), at) for at, (_, item) in enumerate(items)), default=(0, 0))
        if 2 * size < len(encode_stored(value)):
            break
        key, value = items[at]
        found.append(key)
    return format_path(found, "state")


def write_change(change: Change, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Encode a change; document values are lowered trees. Raises :class:`LimitError` if it is too large."""
    if change.merged or change.counts:
        return encode([change.ops, change.logs, change.merged, change.counts], limits)
    if change.logs:
        return encode([change.ops, change.logs], limits)
    return encode([change.ops], limits)


def read_change(data: bytes) -> Change:
    return _to_change(decode(data))


def read_each(encoded: list[bytes]) -> list[Change]:
    """Several changes; takes less time than :func:`read_change` on each."""
    return [_to_change(parts) for parts in decode(array(encoded))]


def read_plain(encoded: list[bytes]) -> list[Plain]:
    """Several changes; none if one of them isn't of the plainest kind, doesn't make sense or says nothing.

    Takes a fraction of the time of :func:`read_each`.
    """
    try:
        found: list[Plain] = decode_as(_decode_plain_changes, array(encoded))
    except StateCorruptedError:
        return []
    for change in found:
        if change.merged or change.counts or not (change.ops or change.logs):
            return []
    return found


def read_changes(encoded: list[bytes]) -> Change:
    """Several changes, one after another, as one; takes less time than reading each."""
    joined = Change()
    ops, splices = joined.ops, joined.logs
    for parts in decode(array(encoded)):
        if type(parts) is list and 0 < len(parts) <= 2 and all(type(part) is list for part in parts):
            ops += parts[0]
            splices += parts[1] if len(parts) == 2 else ()
        else:
            change = _to_change(parts)
            ops += change.ops
            splices += change.logs
            joined.merged.update(change.merged)
    return _checked(joined)


def _to_change(parts: Any) -> Change:
    if type(parts) is not list or not parts:
        raise StateCorruptedError("the change of a record isn't a list")
    return _checked(Change(*parts[:4]))


def _checked(change: Change) -> Change:
    if not (are_ops(change.ops) and are_splices(change.logs) and _is_rest(change)):
        raise StateCorruptedError("the change of a record makes no sense")
    return change


def _is_rest(change: Change) -> bool:
    if not change.merged and not change.counts:
        return type(change.merged) is dict and type(change.counts) is dict
    return is_merged(change.merged) and are_counts(change.counts)


def write_record(head: bytes, change: bytes, blocks: list[bytes]) -> bytes:
    """The framed body of one version. ``blocks``: the items of each inserting splice, as an array."""
    payload = _encode((head, change, blocks))
    # As frame(): this is on the way of every commit.
    return _PREFIX + zlib.crc32(payload, _PREFIX_SUM).to_bytes(4, "little") + payload


#: A record taken apart: its head, its change and its blocks, all still encoded.
Parts = tuple[bytes, bytes, list[bytes]]


def read_record(body: bytes) -> Parts:
    """Head, change and blocks of a framed body, still encoded."""
    payload = unframe(body, "a record")
    try:
        return _decode_parts(payload)
    except _UNREADABLE as error:
        raise StateCorruptedError("a record can't be decoded") from error


def read_records(bodies: list[bytes]) -> list[Parts]:
    """As :func:`read_record` of each; takes less time."""
    payloads = [body[5:] for body in bodies]
    sums = map(zlib.crc32, payloads, repeat(_PREFIX_SUM))
    try:
        if list(map(_unpack_prefix, bodies)) == list(zip(repeat(FORMAT), sums, strict=False)):
            return list(map(_decode_parts, payloads))
    except (struct.error, *_UNREADABLE):
        pass
    # Something is wrong: one by one, which tells what.
    return [read_record(body) for body in bodies]


def array(items: list[bytes]) -> bytes:
    """A MessagePack array (a *block*) of items that are encoded already."""
    if len(items) == 1:
        return b"\x91" + items[0]
    return _array_prefix(len(items)) + b"".join(items)


def join(blocks: list[tuple[int, bytes]]) -> bytes:
    """One block of the items of several; each comes with its number of items."""
    if len(blocks) == 1:
        return blocks[0][1]
    parts = [block[1 if n < 16 else len(_array_prefix(n)) :] for n, block in blocks]
    return _array_prefix(sum([n for n, _ in blocks])) + b"".join(parts)


def join_run(blocks: list[tuple[int, int, bytes]], total: int) -> bytes:
    """As :func:`join`, of blocks that come with their position too and have ``total`` items together."""
    if len(blocks) == 1:
        return blocks[0][2]
    parts = [block[1:] if n < 16 else block[3 if n < 0x10000 else 5 :] for _, n, block in blocks]
    prefix = b"\xdc" + total.to_bytes(2, "big") if 16 <= total < 0x10000 else _array_prefix(total)
    return prefix + b"".join(parts)


def _array_prefix(n: int) -> bytes:
    if n < 16:
        return bytes([0x90 | n])
    if n < 0x10000:
        return b"\xdc" + n.to_bytes(2, "big")
    return b"\xdd" + n.to_bytes(4, "big")


def split(block: bytes) -> list[bytes]:
    """The encoded items of a block, one by one."""
    try:
        return [bytes(raw) for raw in _decode_raws(block)]
    except _UNREADABLE as error:
        raise StateCorruptedError("a block of log items can't be decoded") from error


class _Zstd(threading.local):
    """Compression contexts, one pair per thread: they may not be shared while in use."""

    def __init__(self) -> None:
        import zstandard

        self.error = zstandard.ZstdError
        self.size = zstandard.frame_content_size
        self.compress_large = zstandard.ZstdCompressor(level=3).compress
        # As level 3, with tables that are small beside what a fold compresses: bringing large ones into the
        # caches took a third of the time and saved less than a hundredth of the bytes.
        small = zstandard.ZstdCompressionParameters.from_level(3, window_log=18, hash_log=14, chain_log=14)
        self.compress = zstandard.ZstdCompressor(compression_params=small).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


@functools.cache
def _zstd() -> _Zstd:
    return _Zstd()


#: Below this, compressing costs more than it saves.
_COMPRESS_FROM = 512
#: From here on more is found with larger tables.
_LARGE_FROM = 512 * 1024
_PLAIN, _ZSTD = b"\0", b"\1"


def compress(payload: bytes) -> bytes:
    """A frame that holds the payload as it is or, where that is smaller, as one zstd frame."""
    if len(payload) >= _COMPRESS_FROM:
        zstd = _zstd()
        packed = (zstd.compress if len(payload) < _LARGE_FROM else zstd.compress_large)(payload)
        if len(packed) < len(payload):
            return frame(_ZSTD + packed)
    return frame(_PLAIN + payload)


def expand(data: bytes, what: str) -> bytes:
    """The inverse of :func:`compress`, with a cap on the size it may unfold to."""
    payload = unframe(data, what)
    how, payload = payload[:1], payload[1:]
    if how == _PLAIN:
        return payload
    if how != _ZSTD:
        raise StateCorruptedError(f"{what} is compressed in an unknown way", where=what)
    zstd = _zstd()
    try:
        size = zstd.size(payload)
        if not 0 <= size <= UNPACKED_BYTES_MAX:
            raise StateCorruptedError(f"{what} claims to unfold to {size} bytes", where=what)
        return zstd.decompress(payload, max_output_size=UNPACKED_BYTES_MAX)
    except zstd.error as error:
        raise StateCorruptedError(f"{what} can't be decompressed", where=what) from error


#: The fingerprint of an item without an id.
NO_FINGERPRINT = b"\0\0\0\0"


#: Copied, because making one anew takes longer.
_NOTHING_HASHED = sha256()


def fingerprint(item_id: Any) -> bytes:
    """Four bytes that stand for an item's id in the search for it; collisions are checked by reading.

    From a cryptographic hash, so that nobody makes ids collide on purpose; never that of no id.
    """
    text = item_id.encode("utf-8", "surrogatepass") if type(item_id) is str else encode(item_id)
    hashing = _NOTHING_HASHED.copy()
    hashing.update(text)
    found = hashing.digest()[:4]
    return found if found != NO_FINGERPRINT else b"\0\0\0\1"


def print_of(raw: bytes) -> bytes:
    """The fingerprint of an encoded item."""
    return item_print(decode(raw))


def item_print(item: Any) -> bytes:
    """The fingerprint of an item."""
    item_id = item.get("id") if type(item) is dict else None
    return NO_FINGERPRINT if item_id is None else fingerprint(item_id)
