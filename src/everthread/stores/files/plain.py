"""The line of a row that holds nothing but what JSON has: what nearly every save writes.

:mod:`rendering` reads each line back before it trusts it. Here that isn't needed, because of what is known
beforehand. The decoders take nothing but null, booleans, 64-bit integers, finite floats, text, lists, and
dictionaries with text keys, and JSON gives each of these back as it was. What was decoded, encoded again,
gives the bytes that it came from, so whoever reads the line gets these bytes too; this is tried, except with
bytes that the encoder has just made. Everything else, and whatever is doubtful, is left to :mod:`rendering`;
both write the same line where both can.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NewType

import msgspec
from msgspec import Meta, Struct

from everthread.codec import records
from everthread.stores.contract import DELTA, NewRow
from everthread.stores.files.escaping import marked
from everthread.stores.files.jsonl import encode_json, stamp
from everthread.stores.files.rendering import KINDS, Record, Step, time_text
from everthread.stores.files.rendering import Splice as Shown

Decode = Callable[[bytes], Any]

#: Nested deeper than this is left to those who read lines back: each level doubles the decoders.
_DEPTH = 6


def _nested(depth: int) -> Any:
    """The type of what JSON has, nested so deep at most."""
    finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
    leaf: Any = bool | int | finite | str | None
    tree: Any = leaf
    named: Any = NewType
    for level in range(depth):
        # A new type is hashed as one thing; a union anew with all that it is made of, each time it is used.
        tree = named(f"tree{level}", leaf | list[tree] | dict[str, tree])
    return tree


class _Splice(Struct, array_like=True):
    """As it stands in a change."""

    log: str
    at: int
    remove: int
    insert: int
    position: int
    fingerprints: bytes


_decode_body = msgspec.msgpack.Decoder(tuple[bytes, bytes, list[bytes]]).decode
_decode_head = msgspec.msgpack.Decoder(
    tuple[int, int, str | None, bytes | None, str | None, None, tuple[str, int, int] | None, int | None]
).decode
_encode = msgspec.msgpack.Encoder().encode


_made: tuple[dict[int, Decode], Decode, Decode] | None = None


def _decoders() -> tuple[dict[int, Decode], Decode, Decode]:
    """For changes, for items, for metadata. Made when they are needed: it takes longer than a save.

    Changes go by their first byte: an array of edits alone, or of edits and splices. Others have more.
    """
    global _made  # noqa: PLW0603 - one assignment of one tuple, from whichever thread
    tree: Any = _nested(_DEPTH)
    edits: Any = list[list[tree]]
    changes: dict[int, Decode] = {
        0x91: msgspec.msgpack.Decoder(tuple[edits]).decode,
        0x92: msgspec.msgpack.Decoder(tuple[edits, list[_Splice]]).decode,
    }
    _made = changes, msgspec.msgpack.Decoder(list[tree]).decode, msgspec.msgpack.Decoder(tree).decode
    return _made


_EDITS = ("set", "delete", "splice", "add")


def render_plain(row: NewRow, *, durable: bool) -> bytes | None:
    """The line of a row, or ``None`` if it takes more than this. See :func:`rendering.render`."""
    try:
        text = None if row.kind != DELTA or row.chunks else _text(row)
    except (msgspec.MsgspecError, ValueError, LookupError, RecursionError):
        return None
    return None if text is None or marked(text) else stamp(text, durable=durable)


def _taken_apart(body: bytes) -> tuple[tuple[Any, ...], bytes, list[bytes]] | None:
    """The fields of the head, the change and the blocks of a record, if the fields make the same head."""
    if body[0] != records.FORMAT:
        return None
    encoded_head, encoded, blocks = _decode_body(memoryview(body)[5:])
    head = _decode_head(encoded_head)
    return (head, encoded, blocks) if _encode(head) == encoded_head else None


def _text(row: NewRow) -> bytes | None:
    parts = row.parts or _taken_apart(row.body)
    if parts is None:
        return None
    # Of what comes in parts all but the items has just been encoded: these may be as another store had them.
    made = row.parts is not None
    (kind, at_us, label, metadata, key, source, step, ttl), encoded, blocks = parts
    changes, decode_items, decode_tree = _made or _decoders()
    change = changes[encoded[0]](encoded)
    if not made and _encode(change) != encoded:
        return None
    edits, logs = change[0], change[1] if len(change) == 2 else ()
    # What has a source isn't everyday.
    if source is not None or not 0 <= kind < len(KINDS) or kind == records.REWIND:
        return None
    for edit in edits:
        code = edit[0]
        if type(code) is not int or code < 0:
            return None
        edit[0] = _EDITS[code]
    record = Record(
        seq=row.seq, at=time_text(at_us), kind=KINDS[kind], label=label, key=key, ttl_us=ttl, document=edits,
        hash=row.hash.hex(),
    )  # fmt: skip
    if metadata is not None:
        record.metadata = shown = decode_tree(metadata)
        if not made and _encode(shown) != metadata:
            return None
    if step is not None:
        record.step = Step(*step)
    if row.key is not None:
        record.keyed = row.key.hex()
    if logs or blocks:
        splices = _splices(logs, blocks, decode_items)
        if splices is None:
            return None
        record.logs = splices
    return encode_json(record)


def _splices(logs: Sequence[_Splice], blocks: list[bytes], decode_items: Decode) -> list[Shown] | None:
    """The splices with their items; ``None`` if these aren't all there, one block for each that inserts."""
    found, used = [], 0
    for splice in logs:
        at, insert, items = splice.at, splice.insert, None
        if insert:
            if used == len(blocks):
                return None
            items = decode_items(blocks[used])
            if len(items) != insert or _encode(items) != blocks[used]:
                return None
            used += 1
        position = None if splice.position == at else splice.position
        found.append(Shown(splice.log, at, splice.remove, position, items, 0, splice.fingerprints.hex()))
    return found if used == len(blocks) else None
