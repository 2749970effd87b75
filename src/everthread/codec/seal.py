"""Sealed personal values: the reference a record carries, and the sealed bytes stored apart from it.

A value is encrypted under the key of each of its subjects, one layer inside the other, so that opening it
needs all of the keys and destroying any one of them kills it. The bytes are specified in
``docs/internals/sealing.md``. Nothing here reads a clock, a file or a keyring.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from everthread.arguments import check_name
from everthread.codec.types import Code
from everthread.codec.values import decode
from everthread.errors import (
    InvalidValueError,
    LimitError,
    SchemaVersionError,
    SealError,
    StateCorruptedError,
)
from everthread.limits import DEFAULT_LIMITS
from everthread.values import Tagged, _set_code, _set_data

SEALED = int(Code.SEALED)
"""The type code of a reference in the closed table of types."""

FORMAT = 1
ID_BYTES = 16
KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
DIGEST_BYTES = 32
SUBJECTS_MAX = 255

# For shorter values trying costs more than the encryption itself, and their length says the less about them.
_COMPRESS_BYTES_MIN = 2_048
# The fastest: a value is sealed while its caller waits, and most are short.
_COMPRESS_LEVEL = 1
_FORMAT = bytes([FORMAT])
_PLAIN = b"\x00"
_ZSTD = b"\x01"
_AD_LABEL = b"everthread sealed value\x00"

#: Room for so many ids in a microsecond; the rest of eight bytes holds microseconds for two thousand years.
_TICK_BITS = 8
_ORDER_MASK = (1 << 63) - 1
#: The random half of an id, and a nonce.
_FRESH_BYTES = 8 + NONCE_BYTES

RandomBytes = Callable[[int], bytes]

# A zstd context costs more to make than a small value costs to compress, and one must not be used by two
# threads at once.
_contexts = threading.local()
_encode = msgspec.msgpack.Encoder().encode
_aesgcm: Any = None
_NOTHING_HASHED = hashlib.sha256()
_new = object.__new__
#: What stands before the key id, the value id and the digest in a reference with one key.
_REF_KEY, _REF_VALUE, _REF_DIGEST = b"\x94\x01\x91\xc4\x10", b"\xc4\x10", b"\xc4\x20"


class SubjectKey(msgspec.Struct, frozen=True, dict=True):
    """The key of one subject and the random id it is known by. The key shows in no representation."""

    key_id: bytes
    key: bytes

    def __post_init__(self) -> None:
        _check_id(self.key_id, "key id")
        if type(self.key) is not bytes or len(self.key) != KEY_BYTES:
            raise InvalidValueError(f"a subject's key must be {KEY_BYTES} bytes")

    @cached_property
    def cipher(self) -> Any:
        """AES-GCM with this key. Kept with the key, so that it is gone with the key."""
        return _cipher()(self.key)

    def __repr__(self) -> str:
        return f"SubjectKey({self.key_id.hex()}, •••)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        # The inherited one, used by pretty printers, would print the key.
        return [("key_id", self.key_id.hex()), ("key", "•••")]


class SealedRef(msgspec.Struct, frozen=True):
    """What a record says about a sealed value: whose keys, which bytes, and the digest of those bytes.

    ``key_ids`` stand in the order of sealing: the innermost layer first.
    """

    key_ids: tuple[bytes, ...]
    value_id: bytes
    digest: bytes


class ValueIds:
    """Fresh ids for values that are about to be sealed: eight bytes that grow with time, eight random ones.

    They grow, so that the sealed values of a store stand in the order in which they came: where an id is
    random, each value is put on another page of an index. The clock may stand still or go back.
    """

    def __init__(self, now_us: Callable[[], int], random_bytes: RandomBytes = os.urandom) -> None:
        self._now_us = now_us
        self._random_bytes = random_bytes
        self._last = 0

    def new(self) -> tuple[bytes, bytes]:
        """An id, and a nonce to seal its value with: asking twice for randomness would cost twice as much."""
        random = self._random_bytes(_FRESH_BYTES)
        if len(random) != _FRESH_BYTES:
            raise SealError(f"the source of randomness gave {len(random)} bytes, not {_FRESH_BYTES}")
        # Two threads at once may come to the same eight bytes; the others differ.
        self._last = last = max(self._last + 1, self._now_us() << _TICK_BITS & _ORDER_MASK)
        return last.to_bytes(8, "big") + random[:8], random[8:]


def seal(
    plaintext: bytes,
    keys: Sequence[SubjectKey],
    value_id: bytes,
    tenant: str,
    random_bytes: RandomBytes = os.urandom,
    *,
    plaintext_bytes_max: int = DEFAULT_LIMITS.payload_bytes_max,
) -> bytes:
    """Return the bytes to store under ``value_id``; opening them needs every one of ``keys``.

    Never seal two values under one value id. Raises :class:`SealError` without keys or with one key twice,
    :class:`LimitError` for more than ``plaintext_bytes_max`` bytes.
    """
    _check_id(value_id, "value id")
    if len(keys) != 1:
        _check_key_ids([key.key_id for key in keys])
    if len(plaintext) > plaintext_bytes_max:
        raise LimitError(
            f"a personal value has {len(plaintext):,} bytes; at most {plaintext_bytes_max:,} can be sealed"
        )
    layer, context = _pack(plaintext), _context(tenant)
    for key in keys:
        nonce = random_bytes(NONCE_BYTES)
        if len(nonce) != NONCE_BYTES:
            raise SealError(f"the source of randomness gave {len(nonce)} bytes, not {NONCE_BYTES}")
        layer = nonce + key.cipher.encrypt(nonce, layer, context + key.key_id + value_id)
    return _FORMAT + layer


class Sealer(ValueIds):
    """Seals for single persons: what :func:`seal` and :func:`make_reference` give for one key and a fresh id.

    It is what a save waits for: a call less is a cache miss less.
    """

    def __init__(
        self, tenant: str, now_us: Callable[[], int], random_bytes: RandomBytes = os.urandom
    ) -> None:
        super().__init__(now_us, random_bytes)
        self._tenant = tenant
        self._context = b""

    def _find_context(self) -> bytes:
        # Not before there is something to seal: some tenants have names that are none.
        self._context = _context(self._tenant)
        return self._context

    def seal(self, plaintext: bytes, key: SubjectKey) -> tuple[bytes, bytes, Tagged]:
        """The id of the value, its sealed bytes, and the reference to it."""
        value_id, nonce = self.new()
        key_id, context = key.key_id, self._context or self._find_context()
        packed = _PLAIN + plaintext if len(plaintext) < _COMPRESS_BYTES_MIN else _pack(plaintext)
        sealed = _FORMAT + nonce + key.cipher.encrypt(nonce, packed, context + key_id + value_id)
        # A copy of one that is there already, as the chain of versions does: what a save runs twice it has to
        # fetch from memory once.
        digest = _NOTHING_HASHED.copy()
        digest.update(sealed)
        # As Tagged() does, without the call of a class that is written in Python: a save waits for this.
        tagged = _new(Tagged)
        _set_code(tagged, SEALED)
        _set_data(tagged, b"".join((_REF_KEY, key_id, _REF_VALUE, value_id, _REF_DIGEST, digest.digest())))
        return value_id, sealed, tagged


def _cipher() -> Any:
    """AES-GCM, imported when the first value is sealed: even asking for it again would cost a microsecond."""
    global _aesgcm  # noqa: PLW0603 - set once
    if _aesgcm is None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        _aesgcm = AESGCM
    return _aesgcm


def open_sealed(
    sealed: bytes,
    ref: SealedRef,
    keys: Sequence[SubjectKey],
    tenant: str,
    *,
    plaintext_bytes_max: int = DEFAULT_LIMITS.payload_bytes_max,
) -> bytes:
    """Return the plaintext that ``ref`` stands for. ``keys`` may come in any order and hold others too.

    Raises :class:`StateCorruptedError` if the bytes aren't the ones the reference names,
    :class:`SealError` if a key is missing, or if the bytes are intact but a key is wrong or they were
    sealed for another tenant or value, :class:`SchemaVersionError` for a newer format, and
    :class:`LimitError` if the plaintext is larger than ``plaintext_bytes_max``, before it is unpacked.
    """
    from cryptography.exceptions import InvalidTag

    check_sealed(sealed, ref)
    by_id = {key.key_id: key for key in keys}
    layer = sealed[1:]
    for key_id in reversed(ref.key_ids):
        key = by_id.get(key_id)
        if key is None:
            raise SealError(f"the key {key_id.hex()} that this personal value needs isn't available")
        if len(layer) < NONCE_BYTES + TAG_BYTES:
            raise _damaged("is too short", ref)
        try:
            layer = key.cipher.decrypt(
                layer[:NONCE_BYTES], layer[NONCE_BYTES:], _context(tenant) + key_id + ref.value_id
            )
        except InvalidTag:
            raise SealError(
                f"the key {key_id.hex()} doesn't open the personal value {ref.value_id.hex()}: the key is a "
                "different one, or the value was sealed for another tenant or place"
            ) from None
    return _unpack(layer, ref, plaintext_bytes_max)


def check_sealed(sealed: bytes, ref: SealedRef) -> None:
    """Check without any key that ``sealed`` are the bytes which ``ref`` names, in a known format.

    Raises :class:`StateCorruptedError` or :class:`SchemaVersionError`.
    """
    if hashlib.sha256(sealed).digest() != ref.digest:
        raise _damaged("doesn't have the digest its record names", ref)
    if not sealed or sealed[0] == 0:
        raise _damaged("has no format", ref)
    if sealed[0] > FORMAT:
        raise _newer(sealed[0])


def make_reference(key_ids: Sequence[bytes], value_id: bytes, sealed: bytes) -> Tagged:
    """The reference to put into a record, for ``sealed`` as made by :func:`seal` with keys of these ids."""
    _check_key_ids(key_ids)
    _check_id(value_id, "value id")
    return Tagged(SEALED, _encode([FORMAT, key_ids, value_id, hashlib.sha256(sealed).digest()]))


def read_reference(tagged: Tagged) -> SealedRef:
    """Raises :class:`StateCorruptedError` if damaged, :class:`SchemaVersionError` if of a newer format."""
    if tagged.code != SEALED:
        raise StateCorruptedError(f"a value of type code {tagged.code} is no reference to a sealed value")
    try:
        parts = msgspec.msgpack.decode(tagged.data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise _bad_reference() from None
    if type(parts) is not list or not parts or type(parts[0]) is not int:
        raise _bad_reference()
    if parts[0] > FORMAT:
        raise _newer(parts[0])
    if parts[0] != FORMAT or len(parts) != 4:
        raise _bad_reference()
    _, key_ids, value_id, digest = parts
    if type(key_ids) is not list or not 1 <= len(key_ids) <= SUBJECTS_MAX:
        raise _bad_reference()
    if not all(_is_bytes(key_id, ID_BYTES) for key_id in key_ids) or len(set(key_ids)) != len(key_ids):
        raise _bad_reference()
    if not _is_bytes(value_id, ID_BYTES) or not _is_bytes(digest, DIGEST_BYTES):
        raise _bad_reference()
    return SealedRef(tuple(key_ids), value_id, digest)


@lru_cache(maxsize=64)
def _context(tenant: str) -> bytes:
    """What associated data begins with; key id and value id follow."""
    # The empty name is the tenant of stores that were opened without a namespace.
    name = check_name(tenant, "tenant").encode() if tenant else b""
    return b"".join((_AD_LABEL, _FORMAT, len(name).to_bytes(2, "big"), name))


def _pack(plaintext: bytes) -> bytes:
    if len(plaintext) >= _COMPRESS_BYTES_MIN:
        compressor = getattr(_contexts, "compressor", None)
        if compressor is None:
            import zstandard

            compressor = _contexts.compressor = zstandard.ZstdCompressor(level=_COMPRESS_LEVEL)
        packed: bytes = compressor.compress(plaintext)
        if len(packed) < len(plaintext):
            return _ZSTD + packed
    return _PLAIN + plaintext


def _unpack(packed: bytes, ref: SealedRef, plaintext_bytes_max: int) -> bytes:
    how, body = packed[:1], packed[1:]
    if how == _PLAIN:
        _check_size(len(body), plaintext_bytes_max)
        return body
    if how != _ZSTD:
        raise _damaged("is packed in an unknown way", ref)
    import zstandard

    try:
        # The size that the frame declares is what gets allocated, so it is checked before, not after.
        size = zstandard.frame_content_size(body)
        if size < 0:
            raise _damaged("doesn't declare its size", ref)
        _check_size(size, plaintext_bytes_max)
        decompressor = getattr(_contexts, "decompressor", None)
        if decompressor is None:
            decompressor = _contexts.decompressor = zstandard.ZstdDecompressor()
        plaintext: bytes = decompressor.decompress(body, allow_extra_data=False)
    except zstandard.ZstdError:
        raise _damaged("can't be unpacked", ref) from None
    return plaintext


def _check_size(size: int, plaintext_bytes_max: int) -> None:
    if size > plaintext_bytes_max:
        raise LimitError(
            f"a sealed value unpacks to {size:,} bytes; at most {plaintext_bytes_max:,} are allowed"
        )


def _check_key_ids(key_ids: Sequence[bytes]) -> None:
    if not key_ids:
        raise SealError("a personal value needs the key of at least one subject")
    if len(key_ids) > SUBJECTS_MAX:
        raise LimitError(f"a personal value has {len(key_ids)} subjects; at most {SUBJECTS_MAX} are allowed")
    for key_id in key_ids:
        _check_id(key_id, "key id")
    if len(key_ids) > 1 and len(set(key_ids)) != len(key_ids):
        raise SealError("a personal value was given the same key twice")


def _check_id(value: object, what: str) -> None:
    if not _is_bytes(value, ID_BYTES):
        raise InvalidValueError(f"a {what} must be {ID_BYTES} bytes")


def _is_bytes(value: object, size: int) -> bool:
    return type(value) is bytes and len(value) == size


def _damaged(why: str, ref: SealedRef) -> StateCorruptedError:
    value_id = ref.value_id.hex()
    return StateCorruptedError(f"the sealed value {value_id} {why}", where=f"sealed value {value_id}")


def _bad_reference() -> StateCorruptedError:
    return StateCorruptedError("a reference to a sealed value is damaged", where="sealed reference")


def _newer(found: int) -> SchemaVersionError:
    return SchemaVersionError(
        f"a sealed value has format {found}; this Everthread reads up to {FORMAT}: upgrade it",
        found=found,
        supported=FORMAT,
    )


# Finding references in encoded values.

#: How a reference begins, from its type code on; seldom anything else does.
_REFERENCE = b"\x1e\x94\x01"


def may_refer(data: bytes) -> bool:
    """Whether encoded values may hold a reference: no if not, perhaps otherwise."""
    return _REFERENCE in data


def references(parts: Iterable[bytes]) -> dict[bytes, SealedRef]:
    """The references in encoded values, by value id. Looks only into what may hold one."""
    tagged: list[Tagged] = []
    for part in parts:
        if _REFERENCE in part:
            _gather(decode(part), tagged)
    return {reference.value_id: reference for reference in map(read_reference, tagged)}


def _gather(node: Any, found: list[Tagged]) -> None:
    if type(node) is dict:
        for value in node.values():
            _gather(value, found)
    elif type(node) is list:
        for value in node:
            _gather(value, found)
    elif type(node) is Tagged and node.code == Code.SEALED:
        found.append(node)
    elif type(node) is Tagged and _REFERENCE in node.data:
        # A tuple, a set or an object: packed once more.
        _gather(decode(node.data), found)
