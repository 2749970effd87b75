"""The JSON form of everything the file store writes, and the way back, without losing a bit.

What JSON has is written as it is. Everything else is an object with one key that begins with a dollar sign:

    {"$bytes": "aGk="}   {"$float": "nan"}   {"$tuple": [1, 2]}   {"$map": [[1, "a"], [2, "b"]]}   …

A dictionary of the caller may have such keys as well: each of them gets one dollar sign more, so that nothing
a caller writes can be taken for a typed value.
"""

from __future__ import annotations

import binascii
import datetime as dt
import math
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from everthread.codec import records
from everthread.codec.lowering import pack
from everthread.codec.records import Head
from everthread.codec.scalars import DUMPERS, LOADERS
from everthread.codec.types import Code
from everthread.codec.values import decode, encode_stored
from everthread.errors import EverthreadError, StateCorruptedError
from everthread.history import ops
from everthread.history.chain import HASH_BYTES
from everthread.history.packs import Chunk, pruned_chunks
from everthread.history.retention import read_tombstone, tombstone
from everthread.limits import DEFAULT_LIMITS
from everthread.stores.contract import DELTA, PRUNED, REWIND, NewRow, Row
from everthread.stores.files.disk import encode_json, with_sum
from everthread.values import Tagged

#: What marks a key. A text without it in quotes needs no unescaping.
MARK = b'"$'

_float_bits = struct.Struct(">d")
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def marked(text: bytes) -> bool:
    """Whether there may be marks in a text."""
    # One byte is found many times faster than two.
    return b"$" in text and MARK in text


def escape(node: Any) -> Any:
    """The JSON form of a lowered tree, for an encoder of plain JSON."""
    kind = type(node)
    if kind is dict:
        if all(type(key) is str for key in node):
            return {f"${key}" if key[:1] == "$" else key: escape(item) for key, item in node.items()}
        return {"$map": [[escape(key), escape(item)] for key, item in node.items()]}
    if kind is list or kind is tuple:
        return [escape(item) for item in node]
    if kind is bytes:
        return {"$bytes": base64_text(node)}
    if kind is float and not math.isfinite(node):
        return {"$float": _float_text(node)}
    if kind is Tagged:
        return _escape_tagged(node)
    return node


def unescape(node: Any) -> Any:
    """The lowered tree that :func:`escape` made this of; :class:`StateCorruptedError` for anything else."""
    kind = type(node)
    if kind is list:
        return [unescape(item) for item in node]
    if kind is not dict:
        return node
    tree = {}
    for key, item in node.items():
        if key[:1] != "$":
            tree[key] = unescape(item)
        elif key[:2] == "$$":
            tree[key[1:]] = unescape(item)
        elif len(node) == 1 and key in _READERS:
            return _special(key, item)
        else:
            raise StateCorruptedError(f"{key!r} stands where no typed value can be")
    return tree


def _special(key: str, item: Any) -> Any:
    try:
        return _READERS[key](item)
    except EverthreadError:
        raise
    except Exception as error:
        raise StateCorruptedError(f"the {key} of a value can't be read") from error


def base64_text(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def base64_bytes(text: str) -> bytes:
    """Raises :class:`ValueError` for what isn't base64."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, TypeError) as error:
        raise ValueError(text) from error


# ── floats and maps ──────────────────────────────────────────────────────────────────────────────


def _float_text(value: float) -> str:
    bits = _float_bits.pack(value)
    for text, known in _FLOATS.items():
        if _float_bits.pack(known) == bits:
            return text
    return bits.hex()


def _read_float(text: str) -> float:
    if text in _FLOATS:
        return _FLOATS[text]
    (value,) = _float_bits.unpack(bytes.fromhex(text))
    return float(value)


def _read_map(pairs: list[list[Any]]) -> dict[Any, Any]:
    tree = {unescape(key): unescape(item) for key, item in pairs}
    if len(tree) != len(pairs):
        raise ValueError("a key stands twice")
    return tree


# ── typed values ─────────────────────────────────────────────────────────────────────────────────


def _escape_tagged(node: Tagged) -> dict[str, Any]:
    """By its name if that gives back the very same bytes; else its content, else its bytes."""
    named = _NAMED.get(node.code)
    if named is not None:
        key, write, read = named
        try:
            item = write(node.data)
            if read(item) == node:
                return {key: item}
        except Exception:  # noqa: S110 - whatever it is, it can't be told by its name
            pass
    try:
        content = decode(node.data)
        if pack(content) == node.data:
            return {"$packed": [node.code, escape(content)]}
    except EverthreadError:
        pass
    return {"$ext": [node.code, base64_text(node.data)]}


def _packed(code: int) -> tuple[Callable[[bytes], Any], Callable[[Any], Tagged]]:
    return (lambda data: escape(decode(data))), (lambda item: Tagged(code, pack(unescape(item))))


def _sequence(code: int) -> tuple[Callable[[bytes], Any], Callable[[Any], Tagged]]:
    def read(item: Any) -> Tagged:
        if type(item) is not list:
            raise TypeError(type(item))
        return Tagged(code, pack(unescape(item)))

    return _packed(code)[0], read


def _iso(code: int, kind: Any) -> tuple[Callable[[bytes], Any], Callable[[Any], Tagged]]:
    def read(text: str) -> Tagged:
        found: Tagged = DUMPERS[kind](kind.fromisoformat(text), DEFAULT_LIMITS)
        return found

    return (lambda data: LOADERS[code](data).isoformat()), read


def _write_integer(data: bytes) -> str:
    return str(int.from_bytes(data, "big", signed=True))


def _read_integer(text: str) -> Tagged:
    value = int(text)
    return Tagged(Code.BIGINT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _write_surrogates(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass").encode("unicode_escape").decode("ascii")


def _read_surrogates(text: str) -> Tagged:
    value = text.encode("ascii").decode("unicode_escape")
    return Tagged(Code.SURROGATE_TEXT, value.encode("utf-8", "surrogatepass"))


def _read_erased(item: Any) -> Tagged:
    if item is not True:
        raise ValueError(item)
    return Tagged(Code.ERASED, b"")


_NAMED: dict[int, tuple[str, Callable[[bytes], Any], Callable[[Any], Tagged]]] = {
    Code.BIGINT: ("$integer", _write_integer, _read_integer),
    Code.TUPLE: ("$tuple", *_sequence(Code.TUPLE)),
    Code.SET: ("$set", *_sequence(Code.SET)),
    Code.FROZENSET: ("$frozenset", *_sequence(Code.FROZENSET)),
    Code.DATETIME: ("$datetime", *_iso(Code.DATETIME, dt.datetime)),
    Code.DATE: ("$date", *_iso(Code.DATE, dt.date)),
    Code.TIME: ("$time", *_iso(Code.TIME, dt.time)),
    Code.TIMEDELTA: ("$timedelta", *_packed(Code.TIMEDELTA)),
    Code.DECIMAL: (
        "$decimal",
        lambda data: data.decode("ascii"),
        lambda text: Tagged(Code.DECIMAL, text.encode("ascii")),
    ),
    Code.UUID: (
        "$uuid",
        lambda data: str(uuid.UUID(bytes=data)),
        lambda text: Tagged(Code.UUID, uuid.UUID(text).bytes),
    ),
    Code.SURROGATE_TEXT: ("$text", _write_surrogates, _read_surrogates),
    Code.OBJECT: ("$object", *_sequence(Code.OBJECT)),
    Code.SEALED: ("$sealed", base64_text, lambda text: Tagged(Code.SEALED, base64_bytes(text))),
    Code.ERASED: ("$erased", lambda data: not data, _read_erased),
}

_READERS: dict[str, Callable[[Any], Any]] = {
    "$bytes": base64_bytes,
    "$float": _read_float,
    "$map": _read_map,
    "$packed": lambda item: Tagged(_code(item[0]), pack(unescape(item[1]))),
    "$ext": lambda item: Tagged(_code(item[0]), base64_bytes(item[1])),
    **{key: read for key, _, read in _NAMED.values()},
}


def _code(value: Any) -> int:
    if type(value) is not int or not -128 <= value <= 127 or value == -1:
        raise ValueError(value)
    return value


# ── values of cells, events and keyframes ──────────────────────────────────────────────────────────


class Value(Struct, frozen=True, omit_defaults=True):
    """What was given: as a value, as one that comes in a frame (whose checksum is made again), as text, or
    its bytes in base64."""

    json: Any = UNSET
    framed: Any = UNSET
    text: str | None = None
    base64: str | None = None


def write_value(data: bytes) -> Value:
    """A form from which the very same bytes come back."""
    for form in (_write_plain, _write_framed):
        try:
            found = form(data)
            if read_value(found) == data:
                return found
        except (EverthreadError, RecursionError):
            pass
    if data.isascii() and data.decode("ascii").isprintable():
        return Value(text=data.decode("ascii"))
    return Value(base64=base64_text(data))


def _write_plain(data: bytes) -> Value:
    return Value(json=escape(decode(data)))


def _write_framed(data: bytes) -> Value:
    return Value(framed=escape(decode(records.unframe(data, "a value"))))


def read_value(value: Value) -> bytes:
    """The inverse of :func:`write_value`. Raises :class:`StateCorruptedError`."""
    try:
        if value.json is not UNSET:
            return encode_stored(unescape(value.json))
        if value.framed is not UNSET:
            return records.frame(encode_stored(unescape(value.framed)))
        if value.text is not None:
            return value.text.encode("ascii")
        return base64_bytes(value.base64 or "")
    except (EverthreadError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise StateCorruptedError("a value can't be read") from error


# ── versions ───────────────────────────────────────────────────────────────────────────────────────
# The contract says that a store never decodes a value. This store is the exception, because people read it.
# To be safe, each record is read back from its JSON before it is written, and one that doesn't come back byte
# for byte is written as base64 instead. Hashes and the chain are those of the bytes, so they hold across
# stores.


KINDS = ("commit", "rewind", "merge", "fork", "fence")
_KIND_CODES = {name: code for code, name in enumerate(KINDS)}
_EDITS = {ops.SET: "set", ops.DELETE: "delete", ops.SPLICE: "splice", ops.ADD: "add"}
_EDIT_CODES = {name: code for code, name in _EDITS.items()}

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)

Form = Callable[[Any], Any]

#: Errors of bytes that don't follow the format: these are kept as base64.
_UNREADABLE = (
    EverthreadError,
    msgspec.MsgspecError,
    RecursionError,
    TypeError,
    ValueError,
    LookupError,
    OverflowError,
    AttributeError,
)


# ── the members of a record ──────────────────────────────────────────────────────────────────────


class Splice(Struct, omit_defaults=True):
    """One edit of a log. ``position`` is that of the first item where it isn't ``at``."""

    log: str
    at: int
    remove: int = 0
    position: int | None = None
    items: list[Any] | None = None
    insert: int = 0
    fingerprints: str = ""


class Source(Struct):
    """The version that was rewound to, merged in or forked from."""

    line: str
    seq: int
    segment: int
    version: str


class Step(Struct):
    """A step, and the position of its result in the log of results."""

    key: str
    attempt: int
    result: int


class Part(Struct, frozen=True, array_like=True):
    """Items of a large commit that stand in a file of their own: which ones, and where in that file."""

    log: str
    position: int
    count: int
    start: int
    length: int


class Record(Struct, omit_defaults=True, kw_only=True):
    """One version. ``document`` lists its edits: what is done, the path, and what that needs.

    ``body`` holds the whole record in base64 where JSON can't give back its bytes.
    """

    seq: int
    at: str | int = 0
    kind: str = ""
    label: str | None = None
    metadata: Any = UNSET
    key: str | None = None
    source: Source | None = None
    step: Step | None = None
    ttl_us: int | None = None
    document: list[list[Any]] = []
    logs: list[Splice] = []
    merged: dict[str, list[int]] = {}
    counts: Any = UNSET
    body: str | None = None
    row: int | None = None
    keyed: str | None = None
    apart: list[Part] = []
    hash: str


_decode_record = msgspec.json.Decoder(Record).decode
_decode_body = msgspec.msgpack.Decoder(tuple[bytes, bytes, list[bytes]]).decode
#: Like `codec.values.decode`, but unchecked: reading the record back would show bad bytes.
_decode_tree = msgspec.msgpack.Decoder(ext_hook=Tagged).decode

# ── writing ──────────────────────────────────────────────────────────────────────────────────────


def render(row: NewRow, *, durable: bool, parts: Sequence[Part] = ()) -> bytes:
    """The record of a row. ``durable`` says that it will be synced before it is acknowledged."""
    # Without escapes, which is nearly always enough, or with them.
    for form in (_same, escape):
        try:
            text = _text(row, form, parts)
        except _UNREADABLE:
            continue
        if text is not None:
            return with_sum(text, durable=durable)
    key = None if row.key is None else row.key.hex()
    body = base64_text(row.body)
    record = Record(seq=row.seq, body=body, row=row.kind, keyed=key, apart=list(parts), hash=row.hash.hex())
    return with_sum(encode_json(record), durable=durable)


def _same(node: Any) -> Any:
    return node


def _text(row: NewRow, form: Form, parts: Sequence[Part]) -> bytes | None:
    """The JSON of a row; ``None`` if that wouldn't give back its bytes."""
    if row.body[0] != records.FORMAT:
        return None
    encoded_head, encoded, blocks = _decode_body(memoryview(row.body)[5:])
    head = records.read_head(encoded_head)
    edits, *rest = _decode_tree(encoded)
    record = Record(
        seq=row.seq,
        at=time_text(head.at_us),
        kind=KINDS[head.kind],
        label=head.label,
        key=head.key,
        ttl_us=head.ttl,
        hash=row.hash.hex(),
    )
    if head.metadata is not None:
        record.metadata = form(_decode_tree(head.metadata))
    if head.source is not None:
        uid, seq, segment, version = head.source
        record.source = Source(uid.hex(), seq, segment, version)
    if head.step is not None:
        record.step = Step(*head.step)
    if edits:
        record.document = [[_EDITS[code], *form(rest_)] for code, *rest_ in edits]
    if rest:
        record.logs = _describe_splices(rest[0], [_decode_tree(block) for block in blocks], form)
    if len(rest) > 1:
        record.merged = {uid.hex(): place for uid, place in rest[1].items()}
        record.counts = form(rest[2])
    if row.key is not None:
        record.keyed = row.key.hex()
    if parts:
        record.apart = list(parts)
    text = encode_json(record)
    if (form is _same and marked(text)) or row_kind(record) != row.kind:
        return None
    again, back = _decode_record(text), unescape if form is escape else _same
    sound = _change(again, back) == (encoded, blocks) and _head(again, back) == encoded_head
    return text if sound else None


def _describe_splices(logs: list[list[Any]], blocks: list[list[Any]], form: Form) -> list[Splice]:
    found = []
    waiting = iter(blocks)
    for log, at, remove, insert, position, prints in logs:
        found.append(
            Splice(
                log,
                at,
                remove,
                None if position == at else position,
                form(next(waiting)) if insert and blocks else None,
                0 if blocks else insert,
                prints.hex(),
            )
        )
    return found


def time_text(at_us: int) -> str | int:
    """A moment as people write it; the number itself where it is beyond the calendar."""
    try:
        moment = _EPOCH + dt.timedelta(microseconds=at_us)
    except OverflowError:
        return at_us
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


def read_record(record: bytes, where: str) -> Record:
    """What an intact record holds, its values still escaped."""
    try:
        return _decode_record(record)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise StateCorruptedError(f"{where} isn't the record of a version: {error}", where=where) from error


def read_body(record: bytes, where: str) -> bytes:
    """The body of an intact record. Raises :class:`StateCorruptedError` if it makes no sense."""
    try:
        return _body(_decode_record(record), marked(record))
    except _UNREADABLE as error:
        raise StateCorruptedError(f"{where} can't be read: {error}", where=where) from error


def row_kind(record: Record) -> int:
    """Whether this is the record of a DELTA or of a REWIND."""
    if record.row is None:
        return REWIND if record.kind == "rewind" else DELTA
    return REWIND if record.row == REWIND else DELTA


def _body(record: Record, marked: bool) -> bytes:
    """The framed bytes of a record."""
    if record.body is not None:
        return base64_bytes(record.body)
    back: Form = unescape if marked else _same
    return records.write_record(_head(record, back), *_change(record, back))


def _change(record: Record, back: Form) -> tuple[bytes, list[bytes]]:
    """The encoded change of a record, and its blocks."""
    blocks: list[bytes] = []
    parts: list[Any] = [[[_EDIT_CODES[name], *back(rest)] for name, *rest in record.document]]
    if record.logs:
        parts.append([_splice(splice, back, blocks) for splice in record.logs])
    if record.counts is not UNSET:
        merged = {bytes.fromhex(uid): place for uid, place in record.merged.items()}
        parts = [parts[0], parts[1] if record.logs else [], merged, back(record.counts)]
    return encode_stored(parts), blocks


def _head(record: Record, back: Form) -> bytes:
    source, step = record.source, record.step
    return records.write_head(
        Head(
            _KIND_CODES[record.kind],
            at_us(record.at),
            record.label,
            None if record.metadata is UNSET else encode_stored(back(record.metadata)),
            record.key,
            None
            if source is None
            else (bytes.fromhex(source.line), source.seq, source.segment, source.version),
            None if step is None else (step.key, step.attempt, step.result),
            record.ttl_us,
        )
    )


def _splice(splice: Splice, back: Form, blocks: list[bytes]) -> list[Any]:
    insert, at = splice.insert, splice.at
    if splice.items is not None:
        items = back(splice.items)
        insert = len(items)
        blocks.append(encode_stored(items))
    position = at if splice.position is None else splice.position
    return [splice.log, at, splice.remove, insert, position, bytes.fromhex(splice.fingerprints)]


def at_us(text: str | int) -> int:
    """The inverse of :func:`time_text`."""
    if type(text) is int:
        return text
    return (dt.datetime.fromisoformat(str(text)) - _EPOCH) // _MICROSECOND


# ── items in files of their own ──────────────────────────────────────────────────────────────────


class Items(Struct, omit_defaults=True):
    """Consecutive items of a log; ``block`` holds them in base64 where JSON can't give back their bytes.

    Fingerprints are there for items whose versions are gone: else these have them.
    """

    log: str
    position: int
    items: list[Any] | None = None
    block: str | None = None
    fingerprints: str = ""


_decode_items = msgspec.json.Decoder(Items).decode


def render_items(chunks: Sequence[Chunk], *, fingerprints: bool = False) -> tuple[bytes, list[Part]]:
    """The file for the items of a large commit, a record for each chunk, and where in it they are."""
    lines: list[bytes] = []
    parts: list[Part] = []
    start = 0
    for chunk in chunks:
        line = _items_record(chunk, chunk.fingerprints.hex() if fingerprints else "")
        parts.append(Part(chunk.log, chunk.position, chunk.count, start, len(line)))
        lines.append(line)
        start += len(line)
    return b"".join(lines), parts


def _items_record(chunk: Chunk, prints: str) -> bytes:
    block = chunk.block()
    for form in (_same, escape):
        try:
            text = encode_json(Items(chunk.log, chunk.position, form(decode(block)), None, prints))
            if not (form is _same and marked(text)) and _block(_decode_items(text), form is escape) == block:
                return with_sum(text)
        except _UNREADABLE:
            continue
    return with_sum(encode_json(Items(chunk.log, chunk.position, None, base64_text(block), prints)))


def _block(items: Items, marked: bool) -> bytes:
    if items.block is not None:
        return base64_bytes(items.block)
    return encode_stored(unescape(items.items) if marked else items.items)


def read_items(record: bytes, where: str) -> tuple[bytes, bytes]:
    """The block of an intact record of such a file, and the fingerprints if it has them."""
    try:
        found = _decode_items(record)
        return _block(found, marked(record)), bytes.fromhex(found.fingerprints)
    except _UNREADABLE as error:
        raise StateCorruptedError(f"{where} can't be read: {error}", where=where) from error


# ── pruned versions ────────────────────────────────────────────────────────────────────────────────
# One record of the journal stands for them, and a file holds the items that other versions still need. The
# digests continue the chain of hashes, heads answer questions about keys, steps and sources, and later
# versions go on from the keyframe or the net change.


class PrunedRecord(Struct, omit_defaults=True, kw_only=True):
    """The record of pruned versions. ``keys`` are (hash, seq), ``gone`` (log, position, count) of items."""

    seq: int
    kind: str
    first: int
    digests: str
    heads: dict[str, str] = {}
    net: Value | None = None
    keyframe: Value | None = None
    keys: list[tuple[str, int]] = []
    tags: dict[str, str] = {}
    items: str = ""
    apart: list[Part] = []
    gone: list[tuple[str, int, int]] = []
    hash: str

    def row(self) -> Row:
        """The row of the contract. Raises :class:`StateCorruptedError`."""
        try:
            joined = base64_bytes(self.digests)
            digests = [joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES)]
            heads = {int(index): base64_bytes(head) for index, head in self.heads.items()}
            if len(digests) != self.seq - self.first + 1:
                raise ValueError(self.first)
            return Row(
                self.seq,
                self.first,
                PRUNED,
                bytes.fromhex(self.hash),
                tombstone(digests, heads),
                _frame(self.net),
                _frame(self.keyframe),
            )
        except (ValueError, EverthreadError) as error:
            raise StateCorruptedError(
                f"the tombstone of versions {self.first} to {self.seq} makes no sense"
            ) from error

    def key_hashes(self) -> list[tuple[bytes, int]]:
        return [(bytes.fromhex(key), seq) for key, seq in self.keys]

    def newest_tags(self) -> dict[str, bytes]:
        return {name: base64_bytes(value) for name, value in self.tags.items()}

    def stubs(self) -> list[Chunk]:
        """Empty chunks in place of the items that are gone."""
        return [Chunk(log, position, count, b"", b"") for log, position, count in self.gone]


_decode_pruned = msgspec.json.Decoder(PrunedRecord).decode


def _frame(value: Value | None) -> bytes | None:
    return None if value is None else records.compress(read_value(value))


def read_pruned(record: bytes, where: str) -> PrunedRecord:
    """What an intact record holds. Raises :class:`StateCorruptedError`."""
    try:
        return _decode_pruned(record)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise StateCorruptedError(
            f"{where} isn't the record of pruned versions: {error}", where=where
        ) from error


def render_pruned(
    row: Row,
    keys: Iterable[tuple[bytes, int]],
    tags: Mapping[str, bytes],
    chunks: Sequence[Chunk],
    *,
    durable: bool,
) -> tuple[bytes, str, bytes]:
    """The record of a PRUNED row, and the name and content of the file for its items, if there are any."""
    pruned = read_tombstone(row.body)
    ordered = sorted(chunks, key=lambda chunk: (chunk.log, chunk.position))
    items, parts = render_items([chunk for chunk in ordered if not chunk.pruned], fingerprints=True)
    name = f"items-{row.seq:010}-{sha256(items).hexdigest()[:16]}.jsonl" if items else ""
    line = PrunedRecord(
        seq=row.seq,
        kind="pruned",
        first=row.first,
        digests=base64_text(b"".join(pruned.digests)),
        heads={str(index): base64_text(head) for index, head in sorted(pruned.heads.items())},
        net=_readable(row.net, "a net change"),
        keyframe=_readable(row.keyframe, "a keyframe"),
        keys=[(key.hex(), seq) for key, seq in keys],
        tags={name: base64_text(value) for name, value in tags.items()},
        items=name,
        apart=parts,
        gone=_gone(ordered),
        hash=row.hash.hex(),
    )
    return with_sum(encode_json(line), durable=durable), name, items


def _readable(frame: bytes | None, what: str) -> Value | None:
    return None if frame is None else write_value(records.expand(frame, what))


def _gone(ordered: list[Chunk]) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    for log in dict.fromkeys(chunk.log for chunk in ordered):
        spans = ((chunk.position, chunk.count) for chunk in ordered if chunk.log == log and chunk.pruned)
        found.extend((log, stub.position, stub.count) for stub in pruned_chunks(log, spans))
    return found


def without_items(chunk: Chunk, dropped: Iterable[tuple[str, int, int]]) -> list[Chunk]:
    """A chunk cut up: positions that nobody holds any more become empty chunks."""
    if chunk.pruned:
        return [chunk]
    edges = {chunk.position, chunk.end}
    holes = []
    for log, start, stop in dropped:
        start, stop = max(start, chunk.position), min(stop, chunk.end)
        if log == chunk.log and start < stop:
            holes.append((start, stop))
            edges |= {start, stop}
    if not holes:
        return [chunk]
    items = records.split(chunk.block())
    found = []
    cuts = sorted(edges)
    for start, stop in pairwise(cuts):
        low, high = start - chunk.position, stop - chunk.position
        if any(first <= start < last for first, last in holes):
            found.append(Chunk(chunk.log, start, stop - start, b"", b""))
        else:
            block = records.compress(records.array(items[low:high]))
            prints = chunk.fingerprints[4 * low : 4 * high]
            found.append(Chunk(chunk.log, start, stop - start, prints, block))
    return found
