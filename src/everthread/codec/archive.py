"""What an archive of a store consists of, and how each piece becomes bytes.

An archive is one line of text that says what it is, then records: four bytes length (little endian) and a
compressed frame. Its payload is packed ``[number, entry]``; records are numbered from 0, so that none can be
missing, doubled or out of place without being noticed. ``docs/internals/archive.md`` describes every entry;
these bytes are a promise.
"""

from __future__ import annotations

import msgspec

from everthread.codec import records
from everthread.errors import SchemaVersionError, StateCorruptedError

FORMAT = 1
MAGIC = b"everthread archive\n"
#: Of a record: more than any legal one has.
RECORD_BYTES_MAX = records.UNPACKED_BYTES_MAX + 1024

#: (value id, the key ids one after another, sealed bytes).
Sealed = tuple[bytes, bytes, bytes]
#: (head, change, blocks) of one version, each still encoded.
Parts = tuple[bytes, bytes, list[bytes]]


class Header(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """What the archive holds. ``namespaces`` is empty if it holds all; ``versions`` and ``events`` are what
    was counted before, about."""

    format: int
    id: bytes
    at_us: int
    writer: str
    namespaces: list[str]
    versions: int
    events: int


class LineEntry(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A line, before any version of it. What it was forked from came before it."""

    uid: bytes
    space: str
    name: str
    deleted: bool
    start_hash: bytes
    parent_uid: bytes = b""
    parent_seq: int = 0
    parent_segment: int = 0
    parent_hash: bytes = b""
    counts: dict[str, int] = {}


class VersionsEntry(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Versions ``first``, ``first + 1``, … of a line; ``hash`` is that of the last of them, ``before`` that
    of the version before them."""

    uid: bytes
    first: int
    before: bytes
    hash: bytes
    versions: list[Parts]


class PrunedEntry(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A row for versions that were pruned, as a store keeps it, and what is left of their items: (log,
    position, count, compressed block), the block empty for items that are gone."""

    uid: bytes
    first: int
    last: int
    before: bytes
    hash: bytes
    body: bytes
    net: bytes | None
    keyframe: bytes | None
    items: list[tuple[str, int, int, bytes]]


class SealedEntry(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Personal values, encrypted; they come before the first entry that refers to them."""

    rows: list[Sealed]


class EventsEntry(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Events ``first``, ``first + 1``, … of a stream: (at_us, type, agent, body)."""

    space: str
    stream: str
    first: int
    events: list[tuple[int, str, str | None, bytes]]


class CellEntry(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """A register that holds a fact which lasts, such as the position of a consumer of events."""

    space: str
    name: str
    value: bytes


class GoneEntry(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """A line that was deleted while it was being exported: what came of it doesn't count."""

    uid: bytes


class KeysEntry(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Keys of persons, encrypted under a secret of whoever exported them: see ``keyring/parcel.py``."""

    kdf: int
    salt: bytes
    cost: int
    nonce: bytes
    data: bytes


class EndEntry(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The last record: how many came before it, and the SHA-256 of all bytes before it."""

    count: int
    digest: bytes


class ErasedEntry(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Ids of keys that were destroyed: (key id, id of the erasure, when it was noted). They come first."""

    keys: list[tuple[bytes, bytes, int]]


Entry = (
    Header
    | LineEntry
    | VersionsEntry
    | PrunedEntry
    | SealedEntry
    | EventsEntry
    | CellEntry
    | GoneEntry
    | KeysEntry
    | EndEntry
    | ErasedEntry
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, Entry]).decode
_decode_kind = msgspec.msgpack.Decoder(tuple[int, list[msgspec.Raw]]).decode
_decode_number = msgspec.msgpack.Decoder(int).decode
_KINDS = 11


def write_entry(number: int, entry: Entry) -> bytes:
    """One record, ready to be written."""
    data = records.compress(_encode((number, entry)))
    return len(data).to_bytes(4, "little") + data


def read_entry(data: bytes, number: int) -> Entry:
    """The entry of a record, of which ``data`` is all but the length.

    Raises :class:`StateCorruptedError` if it is damaged or not the record of this number, and
    :class:`SchemaVersionError` if a newer Everthread wrote it.
    """
    what = f"record {number} of the archive"
    payload = records.expand(data, what)
    try:
        found, entry = _decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _unknown(payload, what) or StateCorruptedError(
            f"{what} can't be decoded", where=what
        ) from error
    if found != number:
        raise StateCorruptedError(f"{what} is the one of number {found}: something is missing", where=what)
    if isinstance(entry, Header) and entry.format > FORMAT:
        raise SchemaVersionError(
            f"this archive has format {entry.format}, this Everthread reads up to {FORMAT}: upgrade it",
            found=entry.format,
            supported=FORMAT,
        )
    return entry


def _unknown(payload: bytes, what: str) -> SchemaVersionError | None:
    """An entry of a kind that isn't known here: whole, but of a later Everthread."""
    try:
        kind = _decode_number(_decode_kind(payload)[1][0])
    except (msgspec.DecodeError, ValueError, IndexError, RecursionError):
        return None
    if kind < _KINDS:
        return None
    return SchemaVersionError(
        f"{what} is of a kind ({kind}) that this Everthread doesn't know: upgrade it",
        found=kind,
        supported=_KINDS - 1,
    )
