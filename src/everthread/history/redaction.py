"""Finding a text in what is stored, and putting something else in its place, without taking anything apart
that doesn't hold it.

Everything here works on lowered trees and on encoded records. Replacing is the same substitution wherever a
text stands (values, keys of mappings, paths of edits), so that what replays to a state before replays to the
same state with the substitution made in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from everthread.codec import records
from everthread.codec.records import Head
from everthread.codec.types import Code
from everthread.codec.values import decode, encode_stored
from everthread.history import packs
from everthread.history.chain import record_digest
from everthread.history.retention import read_tombstone, tombstone
from everthread.history.snapshots import Snapshot, read_keyframe
from everthread.model.values import Tagged

#: Types whose data is packed once more.
_PACKED = frozenset({Code.TUPLE, Code.SET, Code.FROZENSET, Code.OBJECT})

_SETS = frozenset({Code.SET, Code.FROZENSET})
#: Types whose data is text.
_TEXTS = frozenset({Code.SURROGATE_TEXT, Code.DECIMAL, Code.CORRUPT})

Path = tuple[Any, ...]
#: A place in a tree and the text, or bytes, that stand there.
Hit = tuple[Path, str]


class Needle:
    """A text to look for, and what to put in its place."""

    def __init__(self, text: str, replacement: str = "") -> None:
        self.text = text
        self.data = text.encode("utf-8", "surrogatepass")
        self.replacement = replacement
        self._new = replacement.encode("utf-8", "surrogatepass")

    def within(self, data: bytes) -> bool:
        """Whether encoded values may hold it. Text is stored as UTF-8, so nothing that does is missed."""
        return self.data in data

    # ── finding ──────────────────────────────────────────────────────────────────────────────

    def hits(self, node: Any, path: Path = ()) -> Iterator[Hit]:
        """Every text in a lowered tree that holds it; a key of a mapping counts as standing at that key."""
        if type(node) is str:
            if self.text in node:
                yield path, node
        elif type(node) is bytes:
            if self.data in node:
                yield path, node.decode("utf-8", "replace")
        elif type(node) is dict:
            for key, value in node.items():
                yield from self.hits(key, (*path, key))
                yield from self.hits(value, (*path, key))
        elif type(node) is list:
            for index, value in enumerate(node):
                yield from self.hits(value, (*path, index))
        elif type(node) is Tagged and self.data in node.data:
            if node.code in _PACKED:
                yield from self.hits(decode(node.data), path)
            elif node.code in _TEXTS:
                yield path, node.data.decode("utf-8", "replace")

    def masked(self, path: Path) -> Path:
        """A path in which the text doesn't show."""
        return tuple(key.replace(self.text, "•••") if type(key) is str else key for key in path)

    # ── replacing ────────────────────────────────────────────────────────────────────────────

    def replaced(self, node: Any) -> Any:
        """The tree with something else in the place of the text, wherever that stands."""
        if type(node) is str:
            return node.replace(self.text, self.replacement)
        if type(node) is bytes:
            return node.replace(self.data, self._new)
        if type(node) is dict:
            return {self.replaced(key): self.replaced(value) for key, value in node.items()}
        if type(node) is list:
            return [self.replaced(value) for value in node]
        if type(node) is Tagged and self.data in node.data:
            if node.code in _PACKED:
                inner = self.replaced(decode(node.data))
                # The elements of a set stand in the order of their bytes.
                ordered = sorted(inner, key=encode_stored) if node.code in _SETS else inner
                return Tagged(node.code, encode_stored(ordered))
            if node.code in _TEXTS:
                # A number with something else in it is none any more.
                exact = node.code != Code.DECIMAL
                return (
                    Tagged(node.code, node.data.replace(self.data, self._new)) if exact else self.replacement
                )
        return node

    def encoded(self, data: bytes) -> bytes:
        """Encoded values with the text replaced; the very same bytes if it isn't in them."""
        return encode_stored(self.replaced(decode(data))) if self.within(data) else data

    def head(self, data: bytes) -> bytes:
        """A head with the text replaced in its label and metadata. Keys and steps stay: they are names."""
        if not self.within(data):
            return data
        head = records.read_head(data)
        label = None if head.label is None else self.replaced(head.label)
        metadata = None if head.metadata is None else self.encoded(head.metadata)
        if (label, metadata) == (head.label, head.metadata):
            return data
        return records.write_head(msgspec.structs.replace(head, label=label, metadata=metadata))

    def change(self, data: bytes) -> bytes:
        """A change with the text replaced in its edits. Names of logs stay."""
        if not self.within(data):
            return data
        parts = decode(data)
        parts[0] = [self.replaced(op) for op in parts[0]]
        return encode_stored(parts)

    def keyframe(self, snapshot: Snapshot) -> Snapshot:
        return Snapshot(self.replaced(snapshot.document), snapshot.logs, snapshot.segment, snapshot.merged)

    def tombstone(self, body: bytes) -> bytes:
        """The body of a row for pruned versions: of these only some heads are left."""
        tomb = read_tombstone(body)
        heads = {index: self.head(head) for index, head in tomb.heads.items()}
        return body if heads == tomb.heads else tombstone(tomb.digests, heads)


def digest_of(head: bytes, change: bytes, blocks: list[bytes]) -> bytes:
    """The digest by which the chain knows a version: that of its record as it was committed."""
    return record_digest(records.write_record(head, change, blocks))


def mark(head: bytes, digest: bytes) -> bytes:
    """The head of a record that was redacted: it keeps the digest of what was committed."""
    told: Head = records.read_head(head)
    return (
        head
        if told.redacted is not None
        else records.write_head(msgspec.structs.replace(told, redacted=digest))
    )


def reprinted(change: bytes, prints: Callable[[str, int, int, bytes], bytes]) -> bytes:
    """A change whose splices have the fingerprints that ``prints`` gives for (log, start, count, old)."""
    parts = decode(change)
    if len(parts) < 2:
        return change
    for splice in parts[1]:
        if splice[3]:
            splice[5] = prints(splice[0], splice[4], splice[3], splice[5])
    return encode_stored(parts)


def excerpt(text: str, needle: str, around: int = 24) -> str:
    """A few characters around the first hit, which itself is masked."""
    at = text.find(needle)
    if at < 0:
        return "•••"
    before, after = text[max(at - around, 0) : at], text[at + len(needle) : at + len(needle) + around]
    cut = ("…" if at > around else "", "…" if at + len(needle) + around < len(text) else "")
    return f"{cut[0]}{before}•••{after}{cut[1]}".replace(needle, "•••")


def logs_of_pruned(net: bytes | None, keyframe: bytes | None) -> set[str]:
    """The logs that pruned versions wrote to, as far as items of theirs may be left."""
    logs = set() if net is None else {log for log, *_ in packs.read_net(net).logs}
    return logs if keyframe is None else logs | set(read_keyframe(keyframe).logs)
