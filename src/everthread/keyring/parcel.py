"""Keys of persons on their way from one keyring to another, encrypted under a secret of the caller's.

Specified in ``docs/internals/archive.md``. Nothing here reads a file or a keyring.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator

import msgspec

from everthread.codec.archive import KeysEntry
from everthread.codec.seal import ID_BYTES, KEY_BYTES, NONCE_BYTES, RandomBytes
from everthread.errors import InvalidValueError, KeyringError, StateCorruptedError

FORMAT = 1
#: What stands for a subject.
TOKEN_BYTES = 32
#: How the secret becomes a key: it is one, or a passphrase that scrypt makes one of.
GIVEN, SCRYPT = 0, 1
PASSPHRASE_CHARS_MIN = 12
_COST = 15
#: What an archive may ask for: 256 MB of memory at most.
_COST_RANGE = range(14, 19)
_BLOCK = 8
_SALT_BYTES = 16
_KEYS_MAX = 50_000
_AD_LABEL = b"everthread archive keys\x00" + bytes([FORMAT])

#: (key id, token, key): of one subject, whom the token stands for.
KeyInParcel = tuple[bytes, bytes, bytes]


class KeyParcel(msgspec.Struct, frozen=True, array_like=True):
    """Keys of one keyring, and the key under which it makes tokens: by that a keyring that takes them in
    finds them by the name of their subject."""

    keyring_id: bytes
    token_key: bytes
    keys: list[KeyInParcel]
    #: Until when those may be used that have a time, in microseconds; 0 for ever.
    until: dict[bytes, int] = {}

    def __repr__(self) -> str:
        return f"KeyParcel({len(self.keys)} keys, •••)"


_decode = msgspec.msgpack.Decoder(KeyParcel).decode


class ParcelSecret:
    """What keys travel under: a passphrase, or 32 random bytes. Shows in no representation."""

    def __init__(self, secret: str | bytes, name: str = "keys") -> None:
        if isinstance(secret, bytes):
            if len(secret) != KEY_BYTES:
                raise InvalidValueError(
                    f"{name}= takes a passphrase as text, or a key of {KEY_BYTES} random bytes", path=name
                )
        elif not isinstance(secret, str) or len(secret) < PASSPHRASE_CHARS_MIN:
            raise InvalidValueError(
                f"{name}= takes a passphrase of at least {PASSPHRASE_CHARS_MIN} characters, or {KEY_BYTES} "
                "random bytes",
                path=name,
            )
        self._secret = secret
        self._name = name
        #: Of the entries that this one writes: deriving a key takes a while.
        self._salt = b""
        self._derived: dict[tuple[int, bytes, int], bytes] = {}

    def _key(self, kdf: int, salt: bytes, cost: int) -> bytes:
        if isinstance(self._secret, bytes):
            return self._secret if kdf == GIVEN else b""
        if kdf != SCRYPT or cost not in _COST_RANGE or len(salt) != _SALT_BYTES:
            return b""
        key = self._derived.get((kdf, salt, cost))
        if key is None:
            n, room = 1 << cost, (128 * _BLOCK << cost) + (1 << 20)
            text = self._secret.encode("utf-8", "surrogatepass")
            key = hashlib.scrypt(text, salt=salt, n=n, r=_BLOCK, p=1, maxmem=room, dklen=KEY_BYTES)
            self._derived[kdf, salt, cost] = key
        return key

    def close(
        self, parcels: Iterable[KeyParcel], archive: bytes, random_bytes: RandomBytes = os.urandom
    ) -> Iterator[KeysEntry]:
        """The entries of an archive, known by its id, that hold these keys."""
        for parcel in parcels:
            for at in range(0, len(parcel.keys), _KEYS_MAX):
                keys = parcel.keys[at : at + _KEYS_MAX]
                until = {key[0]: parcel.until[key[0]] for key in keys if key[0] in parcel.until}
                part = msgspec.structs.replace(parcel, keys=keys, until=until)
                yield self.close_bytes(msgspec.msgpack.encode(part), _AD_LABEL + archive, random_bytes)

    def open(self, entry: KeysEntry, archive: bytes) -> KeyParcel:
        """The keys of an entry. Raises :class:`KeyringError` if this isn't the secret that they are under."""
        plain = self.open_bytes(entry, _AD_LABEL + archive, "the keys in this archive")
        try:
            parcel = _decode(plain)
        except msgspec.MsgspecError as error:
            raise _damaged() from error
        check_parcel(parcel)
        return parcel

    def close_bytes(
        self, plain: bytes, associated: bytes, random_bytes: RandomBytes = os.urandom
    ) -> KeysEntry:
        """Bytes, encrypted; they open only together with what they are ``associated`` with."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if isinstance(self._secret, bytes):
            kdf, salt, cost = GIVEN, b"", 0
        else:
            kdf, cost = SCRYPT, _COST
            salt = self._salt = self._salt or random_bytes(_SALT_BYTES)
        nonce = random_bytes(NONCE_BYTES)
        data = AESGCM(self._key(kdf, salt, cost)).encrypt(nonce, plain, associated)
        return KeysEntry(kdf, salt, cost, nonce, data)

    def open_bytes(self, entry: KeysEntry, associated: bytes, what: str) -> bytes:
        """What :meth:`close_bytes` was given. Raises :class:`KeyringError`, of ``what``, if this isn't the
        secret."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key = self._key(entry.kdf, entry.salt, entry.cost)
        wanted = "a passphrase" if entry.kdf == SCRYPT else f"{KEY_BYTES} bytes"
        if not key or len(entry.nonce) != NONCE_BYTES:
            raise KeyringError(
                f"{what} are under {wanted}, not under what was given; give {wanted}. Nothing was changed"
            )
        try:
            return AESGCM(key).decrypt(entry.nonce, entry.data, associated)
        except InvalidTag:
            raise KeyringError(
                f"{what} don't open with the secret that was given ({self._name}=): give the one that they "
                "were written with. Nothing was changed"
            ) from None

    def __repr__(self) -> str:
        return "ParcelSecret(•••)"


def check_parcel(parcel: KeyParcel) -> None:
    """Raises :class:`StateCorruptedError` if keys can't be what they say they are."""
    sizes = {(len(key_id), len(token), len(key)) for key_id, token, key in parcel.keys}
    times_make_sense = all(0 <= until_us < 1 << 63 for until_us in parcel.until.values())
    if sizes - {(ID_BYTES, TOKEN_BYTES, KEY_BYTES)} or len(parcel.keyring_id) != ID_BYTES:
        raise _damaged()
    if len(parcel.token_key) != KEY_BYTES or not times_make_sense:
        raise _damaged()


def _damaged() -> StateCorruptedError:
    return StateCorruptedError("the keys in this file make no sense; use another copy of it", where="keys")
