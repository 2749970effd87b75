"""Records as JSON that a person can read, and back to the very bytes that were committed.

The contract says that a store never decodes a value: it would cost time and know too much. This store is the
exception, because its reason to be is that people read it. What keeps it honest: each record is read back
from its JSON before it is written, and one that doesn't come back byte for byte is written as base64 instead.
Hashes and the chain are those of the bytes, so that they hold across stores.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from everthread.codec import records
from everthread.codec.records import Head
from everthread.codec.values import decode, encode_stored
from everthread.errors import EverthreadError, StateCorruptedError
from everthread.history import ops
from everthread.history.packs import Chunk
from everthread.stores.contract import DELTA, REWIND, NewRow
from everthread.stores.files.escaping import base64_bytes, base64_text, escape, marked, unescape
from everthread.stores.files.jsonl import encode_json, stamp
from everthread.values import Tagged

KINDS = ("commit", "rewind", "merge", "fork", "fence")
_KIND_CODES = {name: code for code, name in enumerate(KINDS)}
_EDITS = {ops.SET: "set", ops.DELETE: "delete", ops.SPLICE: "splice", ops.ADD: "add"}
_EDIT_CODES = {name: code for code, name in _EDITS.items()}

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)

Form = Callable[[Any], Any]

#: What can go wrong where bytes aren't what the format says: then they are kept as they are.
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


# ── what a line holds ────────────────────────────────────────────────────────────────────────────


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
#: As `codec.values.decode`, without a look for what nobody writes: reading back would show that.
_decode = msgspec.msgpack.Decoder(ext_hook=Tagged).decode

# ── writing ──────────────────────────────────────────────────────────────────────────────────────


def render(row: NewRow, *, durable: bool, parts: Sequence[Part] = ()) -> bytes:
    """The line of a row. ``durable`` says that it will be synced before it is acknowledged."""
    # As it is, which nearly always will do, or with escapes.
    for form in (_same, escape):
        try:
            text = _text(row, form, parts)
        except _UNREADABLE:
            continue
        if text is not None:
            return stamp(text, durable=durable)
    key = None if row.key is None else row.key.hex()
    body = base64_text(row.body)
    record = Record(seq=row.seq, body=body, row=row.kind, keyed=key, apart=list(parts), hash=row.hash.hex())
    return stamp(encode_json(record), durable=durable)


def _same(node: Any) -> Any:
    return node


def _text(row: NewRow, form: Form, parts: Sequence[Part]) -> bytes | None:
    """The JSON of a row; ``None`` if that wouldn't give back its bytes. What every save runs."""
    if row.body[0] != records.FORMAT:
        return None
    encoded_head, encoded, blocks = _decode_body(memoryview(row.body)[5:])
    head = records.read_head(encoded_head)
    edits, *rest = _decode(encoded)
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
        record.metadata = form(_decode(head.metadata))
    if head.source is not None:
        uid, seq, segment, version = head.source
        record.source = Source(uid.hex(), seq, segment, version)
    if head.step is not None:
        record.step = Step(*head.step)
    if edits:
        record.document = [[_EDITS[code], *form(rest_)] for code, *rest_ in edits]
    if rest:
        record.logs = _describe_splices(rest[0], [_decode(block) for block in blocks], form)
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


def read_record(line: bytes, where: str) -> Record:
    """What an intact line holds, its values still escaped."""
    try:
        return _decode_record(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise StateCorruptedError(f"{where} isn't the line of a version: {error}", where=where) from error


def read_body(line: bytes, where: str) -> bytes:
    """The body of an intact line. Raises :class:`StateCorruptedError` if it makes no sense."""
    try:
        return _body(_decode_record(line), marked(line))
    except _UNREADABLE as error:
        raise StateCorruptedError(f"{where} can't be read: {error}", where=where) from error


def row_kind(record: Record) -> int:
    """Whether this is the line of a DELTA or of a REWIND."""
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


# ── items that stand apart ───────────────────────────────────────────────────────────────────────


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
    """The file for the items of a large commit, a line for each chunk, and where in it they are."""
    lines: list[bytes] = []
    parts: list[Part] = []
    start = 0
    for chunk in chunks:
        line = _items_line(chunk, chunk.fingerprints.hex() if fingerprints else "")
        parts.append(Part(chunk.log, chunk.position, chunk.count, start, len(line)))
        lines.append(line)
        start += len(line)
    return b"".join(lines), parts


def _items_line(chunk: Chunk, prints: str) -> bytes:
    block = chunk.block()
    for form in (_same, escape):
        try:
            text = encode_json(Items(chunk.log, chunk.position, form(decode(block)), None, prints))
            if not (form is _same and marked(text)) and _block(_decode_items(text), form is escape) == block:
                return stamp(text)
        except _UNREADABLE:
            continue
    return stamp(encode_json(Items(chunk.log, chunk.position, None, base64_text(block), prints)))


def _block(items: Items, marked: bool) -> bytes:
    if items.block is not None:
        return base64_bytes(items.block)
    return encode_stored(unescape(items.items) if marked else items.items)


def read_items(line: bytes, where: str) -> tuple[bytes, bytes]:
    """The block of an intact line of such a file, and the fingerprints if it has them."""
    try:
        found = _decode_items(line)
        return _block(found, marked(line)), bytes.fromhex(found.fingerprints)
    except _UNREADABLE as error:
        raise StateCorruptedError(f"{where} can't be read: {error}", where=where) from error
