"""What of a line goes into an archive, as bytes, and what stands in its place meanwhile. Pure.

A parcel holds rows and chunks exactly as the store had them. Sealed values aren't among them: they stay in
the store, so that erasing a person doesn't have to reach the archive.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from everthread.codec import records
from everthread.errors import SchemaVersionError, StateCorruptedError
from everthread.history.packs import Chunk
from everthread.stores.contract import COLD, Row

FORMAT = 1


class Parcel(msgspec.Struct, frozen=True, array_like=True):
    """The versions of a line from the first to one below its newest, and the items in its chunks."""

    format: int
    uid: bytes
    rows: tuple[Row, ...]
    chunks: tuple[Chunk, ...]


class Label(msgspec.Struct, frozen=True, array_like=True):
    """Where a parcel is, and how to know it: the body of the row that stands in its place."""

    format: int
    key: str
    digest: bytes
    size: int


def wrap(uid: bytes, rows: tuple[Row, ...], chunks: tuple[Chunk, ...], unique: bytes) -> tuple[bytes, Label]:
    """A parcel as bytes, and its label.

    Its key is one that nothing was ever kept under: two who move the same line are not in each other's way,
    and a parcel that nobody needs is never needed again, so that it may be removed at any time.
    """
    data = msgspec.msgpack.encode(Parcel(FORMAT, uid, rows, chunks))
    digest = sha256(data).digest()
    key = f"{uid.hex()}-{rows[-1].seq}-{digest[:12].hex()}-{unique.hex()}"
    return data, Label(FORMAT, key, digest, len(data))


def uid_of(key: str) -> bytes:
    """The line whose parcel has this key; nobody's if it isn't one of ours."""
    try:
        return bytes.fromhex(key.partition("-")[0])
    except ValueError:
        return b""


def stand_in(rows: tuple[Row, ...], label: Label, keyframe: bytes | None) -> Row:
    """The row that takes the place of the rows of a parcel."""
    body = records.compress(msgspec.msgpack.encode(label))
    return Row(rows[-1].seq, rows[0].first, COLD, rows[-1].hash, body, None, keyframe)


def read_label(row: Row) -> Label:
    """The label that a row holds. Raises :class:`StateCorruptedError`, :class:`SchemaVersionError`."""
    what = "a row of the cold tier"
    label: Label = _decoded(records.expand(row.body, what), Label, what)
    return label


def unwrap(data: bytes | None, label: Label, uid: bytes) -> Parcel:
    """The parcel, checked. Raises :class:`StateCorruptedError` if it is gone or isn't what it was."""
    if data is None:
        raise StateCorruptedError(
            f"the cold archive has no {label.key}: open the store with the archive that it was cooled into",
            where=label.key,
        )
    if sha256(data).digest() != label.digest:
        raise StateCorruptedError(f"{label.key} in the cold archive is damaged", where=label.key)
    parcel: Parcel = _decoded(data, Parcel, label.key)
    if parcel.uid != uid:
        raise StateCorruptedError(f"{label.key} in the cold archive is of another thread", where=label.key)
    return parcel


def _decoded(data: bytes, kind: Any, what: str) -> Any:
    try:
        # The format first: what is newer may look different.
        found = msgspec.msgpack.decode(data)[0]
        if type(found) is int and found > FORMAT:
            raise SchemaVersionError(
                f"{what} has format {found}, this Everthread reads up to {FORMAT}: upgrade it",
                found=found,
                supported=FORMAT,
            )
        return msgspec.convert(msgspec.msgpack.decode(data), kind)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError, TypeError, IndexError) as error:
        raise StateCorruptedError(f"{what} can't be read", where=what) from error
