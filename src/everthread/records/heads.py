"""HEAD: the entry of a thread's name, with the newest version and what a commit needs to follow it.

The value starts with the version's hash (32 bytes) and a revision (8 bytes), which a commit guards
together. The revision changes with every put that keeps the hash, so that a commit can't undo a change of
the metadata index that it hasn't seen. HEAD names nothing derived (no pack, no keyframe): an index that is
rebuilt from the journal may lack those.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import msgspec

from everthread.errors import StateCorruptedError
from everthread.records.keys import Put, decode_number, encode_name, encode_number, end_of_prefix, only
from everthread.records.tables import DETAIL, EXPIRY, HEAD, METADATA
from everthread.stores.interface import Key, Span

HASH_BYTES = 32
_FIXED = HASH_BYTES + 8
#: Bytes that stand for a metadata name and its value in the index.
DIGEST_BYTES = 16
#: The most bytes of a HEAD. Metadata that doesn't fit is kept in DETAIL.
HEAD_MAX = 1_000

Digests = Mapping[str, bytes]

_encode = msgspec.msgpack.encode


class Head(msgspec.Struct, frozen=True):
    """The newest version of a live thread."""

    hash: bytes
    #: The branch's number.
    branch: int
    #: 0 for a thread without versions; the fork point's for a fork without versions of its own.
    seq: int
    at_us: int = 0
    #: The thread expires so many microseconds after ``at_us``; 0: never.
    ttl_us: int = 0
    revision: int = 0
    #: The indexed metadata, encoded (see :func:`encode_digests`); ``None``: in DETAIL, because it is long.
    digests: bytes | None = b""

    @property
    def guard(self) -> bytes:
        """The beginning of the stored value, which nothing but this very head has."""
        return self.hash + encode_number(self.revision)


_decode = msgspec.msgpack.Decoder(tuple[int, int, int, int, bytes | None]).decode
_decode_digests = msgspec.msgpack.Decoder(dict[str, bytes]).decode


def encode_head(head: Head) -> bytes:
    rest = (head.branch, head.seq, head.at_us, head.ttl_us, head.digests)
    return head.guard + _encode(rest)


def decode_head(content: bytes) -> Head:
    try:
        branch, seq, at_us, ttl_us, digests = _decode(content[_FIXED:])
    except (msgspec.MsgspecError, ValueError) as error:
        raise StateCorruptedError("a head can't be decoded", where="head") from error
    revision = decode_number(content[HASH_BYTES:_FIXED])
    return Head(content[:HASH_BYTES], branch, seq, at_us, ttl_us, revision, digests)


def head_key(namespace: int, name: str) -> Key:
    return HEAD.number, namespace, encode_name(name)


# ── metadata ──


def digest_metadata(name: str, value: bytes) -> bytes:
    """Return what stands for a metadata name and its value in the index."""
    return sha256(_encode((name, value))).digest()[:DIGEST_BYTES]


def encode_digests(digests: Digests) -> bytes:
    return _encode(digests) if digests else b""


def decode_digests(encoded: bytes) -> dict[str, bytes]:
    return _decode_digests(encoded) if encoded else {}


def detail_key(branch: int) -> Key:
    """Return where the metadata of a branch is kept that HEAD has no room for."""
    return DETAIL.number, branch, b"metadata"


def with_digests(head: Head, digests: Digests) -> tuple[Head, list[Put]]:
    """Return the head with this indexed metadata, and what is put besides it if HEAD has no room."""
    encoded = encode_digests(digests)
    head = msgspec.structs.replace(head, digests=encoded)
    if len(encode_head(head)) <= HEAD_MAX:
        return head, []
    return msgspec.structs.replace(head, digests=None), [(detail_key(head.branch), encoded)]


def metadata_at(digest: bytes, name: str) -> bytes:
    return digest + encode_name(name)


def index_metadata(
    namespace: int, name: str, before: Digests, after: Digests
) -> tuple[list[Put], list[Span]]:
    """Return the puts and deletes that turn the index entries of a thread from ``before`` to ``after``."""
    old, new = set(before.values()), set(after.values())
    puts: list[Put] = [
        ((METADATA.number, namespace, metadata_at(digest, name)), b"") for digest in sorted(new - old)
    ]
    return puts, [only(METADATA, namespace, metadata_at(digest, name)) for digest in sorted(old - new)]


def metadata_range(digest: bytes, after: str | None) -> tuple[bytes, bytes]:
    """Return the range of index entries of one digest, from the first thread after this one."""
    start = digest if after is None else metadata_at(digest, after) + b"\0"
    return start, end_of_prefix(digest)


# ── expiry ──


def expiry_at(head: Head, name: str) -> bytes | None:
    """Return where the expiry of a thread is entered, ``None`` if it never expires."""
    return encode_number(head.at_us + head.ttl_us) + encode_name(name) if head.ttl_us else None


def index_expiry(namespace: int, name: str, before: Head | None, after: Head) -> tuple[list[Put], list[Span]]:
    """Return the puts and deletes that move a thread's expiry entry."""
    old = None if before is None else expiry_at(before, name)
    new = expiry_at(after, name)
    if old == new:
        return [], []
    puts: list[Put] = [] if new is None else [((EXPIRY.number, namespace, new), b"")]
    return puts, [] if old is None else [only(EXPIRY, namespace, old)]
