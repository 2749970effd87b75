"""The names of keys: where everything is, and which of it lies in one slot of a cluster.

No name of a caller's stands in a key: what is looked up by a name is looked up by a digest of it. A key is
``prefix:{tag}:kind…``; what has the same tag is in the same slot, so that one script may touch it all.

- A *family* of lines (a line that isn't a fork, all its forks and theirs) has a tag made of the name of its
  first line. The number of a line is its tag and its place in it, so that it leads to its slot.
- A *space* has a tag for its lists of names and its cells, a *stream* of events one for its events.
- Registers of the whole store are cut into sixteen by the first digit of what they list.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

#: A line's number is its family's tag (32 bits) and its place in that family.
MEMBER_BITS = 31
MEMBER_MAX = (1 << MEMBER_BITS) - 1

SHARDS = "0123456789abcdef"


def digest(*parts: str | bytes) -> bytes:
    """Sixteen bytes that stand for these parts, each with its length, so that no two lists are alike."""
    found = sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        found.update(len(raw).to_bytes(8, "big"))
        found.update(raw)
    return found.digest()[:16]


@lru_cache(maxsize=4096)
def name_digest(space: str, name: str) -> bytes:
    return digest("name", space, name)


def name_tag(space: str, name: str) -> str:
    """The tag of the entry of a name, and of the family whose first line has it."""
    return name_digest(space, name)[:4].hex()


def line_id(tag: str, member: int) -> int:
    return int(tag, 16) << MEMBER_BITS | member


def split_id(line: int) -> tuple[str, int]:
    """The tag and the place of a line. Nobody has a line of a number that is too large."""
    return f"{line >> MEMBER_BITS:08x}"[-8:], line & MEMBER_MAX


class Keys:
    """The keys of one store."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.encode()

    def family(self, tag: str) -> bytes:
        return b"%b:{%b}:f" % (self.prefix, tag.encode())

    def rows(self, line: int) -> bytes:
        return b"%b:{%08x}:r:%d" % (self.prefix, line >> MEMBER_BITS, line & MEMBER_MAX)

    def space(self, space: str) -> bytes:
        """The list of names of a space; its other keys begin like it."""
        return b"%b:{s%b}:N" % (self.prefix, digest("space", space).hex().encode())

    def stream(self, space: str, stream: str) -> bytes:
        return b"%b:{e%b}:e" % (self.prefix, digest("stream", space, stream).hex().encode())

    def shard(self, kind: str, first: str) -> bytes:
        """One of sixteen registers: ``u`` of lines by uid, ``t`` of tags, ``v`` of sealed values."""
        return b"%b:{%b%b}:%b" % (self.prefix, kind.encode(), first.encode(), kind.encode())

    @property
    def spaces(self) -> bytes:
        return b"%b:{root}:S" % self.prefix

    @property
    def info(self) -> bytes:
        return b"%b:{root}:i" % self.prefix

    @property
    def ledger(self) -> bytes:
        """The erasure ledger."""
        return b"%b:{root}:L" % self.prefix

    @property
    def unfinished(self) -> bytes:
        """The keys of the ledger whose erasure isn't finished."""
        return b"%b:{root}:U" % self.prefix

    @property
    def news(self) -> bytes:
        """The channel that tells of new lines."""
        return b"%b:news" % self.prefix


def slot_tag(key: bytes) -> bytes:
    """What of a key decides about its slot."""
    start = key.find(b"{")
    if start >= 0:
        stop = key.find(b"}", start + 1)
        if stop > start + 1:
            return key[start + 1 : stop]
    return key
