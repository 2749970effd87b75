"""The SHA-256 chain over the records of a line, and heads that can be signed and kept outside.

Every version's hash covers its own record and, through the hash before it, the line's whole past:

    genesis(line uid) ─ link(·, digest 1) ─ link(·, digest 2) ─ …        a line of its own
    branch(hash of the parent version, line uid) ─ link(·, digest) ─ …   a fork

What the chain shows: that no record was altered, exchanged, reordered or taken out of the middle.
What it can't show: who can rewrite the store can compute a new chain over other records. Against that
helps a signed head kept elsewhere (an *anchor*), as long as the signing key isn't held by the same
person: who holds the key can forge. Cutting off the newest versions leaves a chain that is intact; it
shows only against an anchor that is newer than the cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.arguments import check_name
from everthread.codec import records
from everthread.errors import InvalidValueError, SchemaVersionError
from everthread.type_names import type_names

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
else:
    _HOMES = {
        "cryptography.hazmat.primitives.asymmetric.ed25519": "Ed25519PrivateKey Ed25519PublicKey",
    }
    globals().update(type_names(_HOMES))


HASH_BYTES = 32
#: How many bytes of each version's hash a pack keeps: enough to name it, and to fork from it.
HASH_KEPT = 16
#: Enough of a hash that nobody finds two records with the same id, short enough to copy by hand.
ID_HEX_DIGITS = 24
_ID_BYTES = ID_HEX_DIGITS // 2
SEQ_MAX = 2**63 - 1

# Each kind of hash has its own prefix, so that none can be passed off as another. Links need none:
# what they hash is two hashes.
_GENESIS = b"everthread/genesis/1\0"
_BRANCH = b"everthread/branch/1\0"
_HEAD = b"everthread/head/1\0"
_HEAD_FORMAT = 1
_NOTHING_HASHED = sha256()
#: How a head begins that has as many elements as only those of redacted records have.
_LONG_HEAD = 0x99
#: Text that is no version id and no longer than this may be meant as a label.
_LABEL_MAX = 40
_VERSION_ID = re.compile(rf"(0|[1-9][0-9]{{0,18}})-([0-9a-f]{{{ID_HEX_DIGITS}}})")


def record_digest(body: bytes) -> bytes:
    """The digest by which the chain knows a record: that of what was committed. A record in which something
    was redacted since says itself what that was."""
    # The head comes first in the framed body: five bytes of frame, an array of three, the head's length.
    start = {0xC4: 8, 0xC5: 9, 0xC6: 11}.get(body[6], 0) if len(body) > 16 else 0
    if start and body[start] >= _LONG_HEAD:
        redacted = records.redacted_digest(records.read_record(body)[0])
        if redacted is not None:
            return _check_hash(redacted)
    return sha256(body).digest()


def link(previous: bytes, digest: bytes) -> bytes:
    """The hash of the version whose record has ``digest`` and whose parent has the hash ``previous``."""
    return sha256(previous + digest).digest()


def link_record(previous: bytes, body: bytes) -> bytes:
    """The hash of the version with this record: ``link(previous, record_digest(body))``."""
    # Copies of one that is there already: this is what every save waits for.
    inner, outer = _NOTHING_HASHED.copy(), _NOTHING_HASHED.copy()
    inner.update(body)
    outer.update(previous + inner.digest())
    return outer.digest()


def genesis(line_uid: bytes) -> bytes:
    """What stands before the first version of a line."""
    return sha256(_GENESIS + line_uid).digest()


def branch(parent_hash: bytes, line_uid: bytes) -> bytes:
    """What stands before the first own version of a fork from the version with ``parent_hash``.

    Takes the whole hash or its first 16 bytes, which are what counts: a pack keeps no more of it.
    """
    if len(parent_hash) != HASH_KEPT:
        parent_hash = _check_hash(parent_hash)[:HASH_KEPT]
    return sha256(_BRANCH + parent_hash + line_uid).digest()


def verify_chain(start: bytes, digests: Iterable[bytes]) -> bytes:
    """The hash reached from ``start`` over ``digests``; the caller compares it with the recorded one.

    A digest of a wrong length raises :class:`InvalidValueError`: two digests run together must not
    pass for others.
    """
    reached = _check_hash(start)
    for digest in digests:
        reached = sha256(reached + _check_hash(digest)).digest()
    return reached


def version_id(seq: int, hash: bytes) -> str:
    """The public id of a version: its place on the line and the beginning of its hash."""
    return f"{seq}-{hash[:_ID_BYTES].hex()}"


def parse_version_id(text: str) -> tuple[int, str]:
    """Sequence number and hash prefix of a version id.

    Raises :class:`InvalidValueError` if ``text`` can't be the id of any version.
    """
    found = _VERSION_ID.fullmatch(text) if isinstance(text, str) else None
    if found is None or int(found[1]) > SEQ_MAX:
        label = ". Of a label: thread.at(label).version"
        raise InvalidValueError(
            f"{_shortened(text)} isn't a version id; one looks like 17-{'0123456789ab' * 2}"
            + (label if isinstance(text, str) and len(text) <= _LABEL_MAX else "")
        )
    return int(found[1]), found[2]


class SignedHead(msgspec.Struct, frozen=True):
    """The newest version of a thread as somebody vouched for it. Keep it outside the store.

    It shows that the holder of the key saw this thread with this past at this version, and so that
    versions up to ``seq`` were neither altered nor cut off since. It can't show that nothing newer was
    cut off, and nothing at all against whoever holds the private key.
    """

    thread: str
    seq: int
    hash: bytes
    signature: bytes
    public_key: bytes

    @property
    def version_id(self) -> str:
        """The id of the version it speaks of."""
        return version_id(self.seq, self.hash)

    def verify(self, public_key: Ed25519PublicKey | bytes) -> bool:
        """Whether the holder of ``public_key`` signed exactly this.

        Pass a key you trust: the one in here only says which key to look for. A signature that is
        wrong in any way gives ``False``; a ``public_key`` that isn't one raises
        :class:`InvalidValueError`.
        """
        from cryptography.exceptions import InvalidSignature

        trusted, raw = _public_key(public_key)
        if raw != self.public_key:
            return False
        try:
            trusted.verify(self.signature, _signed_bytes(self.thread, self.seq, self.hash))
        except (InvalidSignature, TypeError, ValueError):
            return False
        return True

    def to_json(self) -> str:
        """One line of JSON, to be kept where the store's writers can't reach."""
        return msgspec.json.encode(
            {
                "everthread_head": _HEAD_FORMAT,
                "thread": self.thread,
                "seq": self.seq,
                "hash": self.hash.hex(),
                "signature": self.signature.hex(),
                "public_key": self.public_key.hex(),
            }
        ).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> SignedHead:
        """Read what :meth:`to_json` wrote; this says nothing yet about the signature.

        Raises :class:`InvalidValueError` if it is something else and
        :class:`~everthread.errors.SchemaVersionError` if a newer Everthread wrote it.
        """
        try:
            fields = msgspec.json.decode(text)
            found = fields["everthread_head"]
            if type(found) is not int or found < _HEAD_FORMAT:
                raise ValueError(found)
            if found > _HEAD_FORMAT:
                raise SchemaVersionError(
                    f"this head has format {found}, this Everthread reads up to {_HEAD_FORMAT}: upgrade it",
                    found=found,
                    supported=_HEAD_FORMAT,
                )
            head = cls(
                fields["thread"],
                fields["seq"],
                bytes.fromhex(fields["hash"]),
                bytes.fromhex(fields["signature"]),
                bytes.fromhex(fields["public_key"]),
            )
            _signed_bytes(head.thread, head.seq, head.hash)
        except (msgspec.DecodeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise InvalidValueError(f"{_shortened(text)} isn't a signed head") from error
        return head


def sign_head(thread: str, seq: int, hash: bytes, private_key: Ed25519PrivateKey | bytes) -> SignedHead:
    """Vouch for ``thread`` standing at version ``seq`` with ``hash``.

    ``private_key`` is an Ed25519 private key or its 32 raw bytes. Raises :class:`InvalidNameError` or
    :class:`InvalidValueError` if an argument is none.
    """
    message = _signed_bytes(check_name(thread, "thread name"), seq, hash)
    key = _private_key(private_key)
    return SignedHead(thread, seq, hash, key.sign(message), key.public_key().public_bytes_raw())


def _signed_bytes(thread: str, seq: int, hash: bytes) -> bytes:
    """What a signature covers. Every part has a fixed length or its length in front."""
    if type(seq) is not int or not 0 <= seq <= SEQ_MAX:
        raise InvalidValueError(f"{seq!r} isn't a sequence number")
    name = check_name(thread, "thread name").encode()
    return _HEAD + len(name).to_bytes(4, "big") + name + seq.to_bytes(8, "big") + _check_hash(hash)


def _check_hash(hash: bytes) -> bytes:
    if not isinstance(hash, bytes) or len(hash) != HASH_BYTES:
        raise InvalidValueError(f"{_shortened(hash)} isn't a SHA-256 hash of {HASH_BYTES} bytes")
    return hash


def _private_key(key: Any) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if isinstance(key, Ed25519PrivateKey):
        return key
    if isinstance(key, bytes) and len(key) == 32:
        return Ed25519PrivateKey.from_private_bytes(key)
    # The value itself stays out of the message: it may be a secret of the wrong length.
    raise InvalidValueError(
        f"an Ed25519 private key or its 32 raw bytes are needed, not {type(key).__name__}"
    )


def _public_key(key: Any) -> tuple[Ed25519PublicKey, bytes]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if isinstance(key, Ed25519PublicKey):
        return key, key.public_bytes_raw()
    if isinstance(key, bytes) and len(key) == 32:
        return Ed25519PublicKey.from_public_bytes(key), key
    raise InvalidValueError(f"an Ed25519 public key or its 32 raw bytes are needed, not {type(key).__name__}")


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
