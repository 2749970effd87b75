"""The keys of a keyring in one file, under a passphrase: to take along, and in case that the keyring is lost.

A line of text that says what it is, the packed envelope, and a checksum of both. Inside, encrypted: the keys
as they travel in archives, and what a keyring must not forget about keys: which were destroyed, which are
held.
``docs/internals/sealing.md`` describes the bytes.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from everthread.arguments import check_path, counted
from everthread.codec.archive import KeysEntry
from everthread.codec.seal import ID_BYTES
from everthread.errors import (
    NotAStoreError,
    NotFoundError,
    SchemaVersionError,
    StateCorruptedError,
    StorageWriteError,
    StoreUnavailableError,
    UsageError,
)
from everthread.keyring.file import sync_directory, write_file
from everthread.keyring.parcel import KeyParcel, ParcelSecret, check_parcel

if TYPE_CHECKING:
    from everthread.keyring.keyring import Keyring

FORMAT = 1
MAGIC = b"everthread keyring\n"
_AD_LABEL = b"everthread keyring backup\x00" + bytes([FORMAT])
_SUM_BYTES = 32
#: More than any keyring that fits into memory would take.
_BYTES_MAX = 1 << 30
_WHAT = "keyring backup"


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    format: int
    id: bytes
    closed: KeysEntry


class KeyringContent(msgspec.Struct, frozen=True, array_like=True):
    """What a backup holds, in clear. ``destroyed``: ids of keys that never come back. ``holds``: by key."""

    parcels: list[KeyParcel]
    destroyed: list[bytes]
    holds: dict[bytes, list[bytes]]

    def __repr__(self) -> str:
        return f"KeyringContent({sum(len(parcel.keys) for parcel in self.parcels)} keys, •••)"


_decode_envelope = msgspec.msgpack.Decoder(_Envelope).decode
_decode_content = msgspec.msgpack.Decoder(KeyringContent).decode


class KeyringBackup(msgspec.Struct, frozen=True, kw_only=True):
    """What ``keyring.backup()`` wrote: how many ``keys``, and the ids of how many ``destroyed`` ones."""

    path: str
    keyring: str
    keys: int
    destroyed: int

    def __str__(self) -> str:
        gone = f", {self.destroyed:,} destroyed" if self.destroyed else ""
        return f"{counted(self.keys, 'key')} of {self.keyring}{gone}, in {self.path}"


class KeyringRestored(msgspec.Struct, frozen=True, kw_only=True):
    """What ``keyring.restore()`` came to.

    ``keys`` are new here, ``present`` were here already. ``refused`` belong to persons who were erased, here,
    where the backup was made, or from a store that was asked: they stay away. ``destroyed`` were alive here
    and are destroyed now, because they had been where the backup was made; ``held`` of these are left alone,
    because a legal hold is on them.
    """

    path: str
    keyring: str
    keys: int = 0
    present: int = 0
    refused: int = 0
    destroyed: int = 0
    held: int = 0

    def __str__(self) -> str:
        parts = [f"{counted(self.keys, 'key')} brought into {self.keyring}"]
        if self.present:
            parts.append(f"{self.present:,} there already")
        if self.refused:
            parts.append(f"{self.refused:,} left out: they belong to persons who were erased")
        if self.destroyed:
            parts.append(f"{self.destroyed:,} destroyed here, as they were where the backup was made")
        if self.held:
            parts.append(f"{self.held:,} destroyed there and under a legal hold here: left as they are")
        return "; ".join(parts)


def write_backup(keyring: Keyring, path: str | os.PathLike[str], passphrase: str | bytes) -> KeyringBackup:
    """Write all keys of a keyring to ``path``, which must not exist; for the owner alone, durable, whole or
    not at all."""
    place = Path(os.path.abspath(check_path(path)))
    secret = ParcelSecret(passphrase, "passphrase")
    if os.path.lexists(place):
        raise UsageError(f"{place} is there already; a {_WHAT} never overwrites anything")
    content = keyring.content()
    name = keyring.random_id()
    closed = secret.close_bytes(msgspec.msgpack.encode(content), _AD_LABEL + name)
    data = MAGIC + msgspec.msgpack.encode(_Envelope(FORMAT, name, closed))
    _put(place, data + sha256(data).digest(), name.hex())
    keys = sum(len(parcel.keys) for parcel in content.parcels)
    return KeyringBackup(path=str(place), keyring=keyring.place, keys=keys, destroyed=len(content.destroyed))


def read_backup(path: str | os.PathLike[str], passphrase: str | bytes) -> KeyringContent:
    """What a backup holds. Raises :class:`KeyringError` if the passphrase isn't the one that it is under,
    :class:`StateCorruptedError` if it is damaged, :class:`NotAStoreError` if it is something else."""
    place = os.path.abspath(check_path(path))
    secret = ParcelSecret(passphrase, "passphrase")
    envelope = _open(place)
    plain = secret.open_bytes(envelope.closed, _AD_LABEL + envelope.id, f"the keys in {place}")
    try:
        content = _decode_content(plain)
    except msgspec.MsgspecError as error:
        raise _damaged(place) from error
    for parcel in content.parcels:
        check_parcel(parcel)
    ids = [*content.destroyed, *content.holds, *(by for holds in content.holds.values() for by in holds)]
    if any(len(each) != ID_BYTES for each in ids):
        raise _damaged(place)
    return content


def restore_backup(
    keyring: Keyring, path: str | os.PathLike[str], passphrase: str | bytes, erased: Collection[bytes] = ()
) -> KeyringRestored:
    """Bring the keys of a backup into a keyring; but for those of the ``erased`` and those that the backup or
    this keyring knows to be destroyed. Doing it again does no harm."""
    content = read_backup(path, passphrase)
    given = {key[0] for parcel in content.parcels for key in parcel.keys}
    gone = set(erased) | set(content.destroyed)
    present = (keyring.held() - keyring.destroyed()) & (given - gone)
    held = {key_id for key_id in gone if keyring.holds([key_id])}
    destroyed = keyring.refuse(gone - held)
    parcels = [
        msgspec.structs.replace(parcel, keys=[key for key in parcel.keys if key[0] not in gone])
        for parcel in content.parcels
    ]
    taken = keyring.take_in(parcels)
    for key_id, holds in content.holds.items():
        for by in holds:
            # A key that isn't alive here needs none.
            keyring.set_hold(key_id, by, on=True)
    return KeyringRestored(
        path=os.path.abspath(check_path(path)),
        keyring=keyring.place,
        keys=taken,
        present=len(present),
        refused=len(given) - taken - len(present),
        destroyed=len(destroyed),
        held=len(held),
    )


def keys_in(content: KeyringContent) -> list[bytes]:
    """The ids of the keys in a backup."""
    return [key[0] for parcel in content.parcels for key in parcel.keys]


def _open(place: str) -> _Envelope:
    try:
        with open(place, "rb") as file:
            data = file.read(_BYTES_MAX + 1)
    except FileNotFoundError:
        raise NotFoundError(f"there is no {_WHAT} at {place}") from None
    except OSError as error:
        raise StoreUnavailableError(f"can't read {place}: {error.strerror}") from error
    if not data.startswith(MAGIC):
        raise NotAStoreError(f"{place} isn't a {_WHAT}: everthread keyring backup FILE makes one")
    body, digest = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
    if sha256(body).digest() != digest:
        raise _damaged(place)
    try:
        version = msgspec.msgpack.decode(body[len(MAGIC) :])[0]
        if version != FORMAT:
            raise SchemaVersionError(
                f"{place} was written by a newer Everthread: upgrade this one to read it; nothing was "
                "changed",
                found=version,
                supported=FORMAT,
            )
        return _decode_envelope(body[len(MAGIC) :])
    except (msgspec.MsgspecError, IndexError, TypeError, KeyError) as error:
        raise _damaged(place) from error


def _put(place: Path, data: bytes, token: str) -> None:
    temporary = place.with_name(f"{place.name}.partial-{token[:16]}")
    try:
        try:
            write_file(temporary, data)
            # Unlike renaming this overwrites nothing.
            os.link(temporary, place)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        sync_directory(place.parent)
    except FileExistsError:
        raise UsageError(f"{place} is there already; a {_WHAT} never overwrites anything") from None
    except FileNotFoundError as error:
        raise StoreUnavailableError(
            f"the folder {place.parent} doesn't exist; create it, or choose another place"
        ) from error
    except OSError as error:
        raise StorageWriteError(f"can't write {place}: {error.strerror}") from error


def _damaged(place: str) -> StateCorruptedError:
    return StateCorruptedError(
        f"the {_WHAT} {place} is damaged; use another one, or make a new one where the keys are", where=place
    )
