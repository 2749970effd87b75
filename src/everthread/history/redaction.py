"""Finding a text in what is stored, and putting something else in its place, without taking anything apart
that doesn't hold it.

Everything here works on lowered trees and on encoded records. Replacing is the same substitution wherever a
text stands (values, keys of mappings, paths of edits), so that what replays to a state before replays to the
same state with the substitution made in it. Keys get a replacement of their own, with a random token in it
that stands nowhere else: putting the text back in its place gives the key that was there, so that no two keys
become the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from everthread.codec import records
from everthread.codec.records import Head
from everthread.codec.types import Code
from everthread.codec.values import decode, encode_stored
from everthread.history import packs
from everthread.history.chain import record_digest
from everthread.history.retention import read_tombstone, tombstone
from everthread.history.snapshots import Snapshot, read_keyframe
from everthread.values import Tagged

#: Types whose data is packed once more.
_PACKED = frozenset({Code.TUPLE, Code.SET, Code.FROZENSET, Code.OBJECT, Code.DATETIME, Code.TIME})
#: Of a packed moment: how many parts one with a zone of the time zone database has, and where its key stands.
_ZONED, _ZONE = 5, 3

_SETS = frozenset({Code.SET, Code.FROZENSET})
#: Types whose data is text.
_TEXTS = frozenset({Code.SURROGATE_TEXT, Code.DECIMAL, Code.CORRUPT})

#: Hardly any text that somebody wants to be rid of is made of these alone.
_LETTERS, _TOKEN = "bcdfghjklmnpqrstvwxz", 12
_DRAWS = 100

Path = tuple[Any, ...]
#: Where items of logs are, in the place of a path.
ITEM: Path = ("\0item",)
#: What stands in journals, and in the record of redactions, that is neither structure nor a name.
JOURNAL_PROSE = frozenset({"result", "error", "message", "where", "handled"})
REDACTIONS_PROSE = frozenset({"reason", "stream"})


class Hit(NamedTuple):
    """A place in a tree and the text, or bytes, that stand there; ``stays``: as a name, which isn't data."""

    path: Path
    text: str
    stays: bool = False


def key_replacement(text: str, replacement: str, random_bytes: Callable[[int], bytes]) -> str:
    """What takes the place of the text in keys: the replacement with a token that is drawn anew each time.

    It doesn't make up the text again together with what stands around it.
    """
    closing = replacement[-1:] if replacement[-1:] in tuple(")]}>") else ""
    opening = replacement.removesuffix(closing)
    for form in (f"{opening} {{}}{closing}", f"{replacement}-{{}}-", "{}"):
        for _ in range(_DRAWS):
            token = "".join(_LETTERS[byte % len(_LETTERS)] for byte in random_bytes(_TOKEN))
            if not _joins(text, made := form.replace("{}", token)):
                return made
    return token


def _joins(text: str, made: str) -> bool:
    """Whether the text is in what takes its place, or may be in that together with its surroundings."""
    lengths = range(1, min(len(text), len(made)) + 1)
    return text in made or any(text.startswith(made[-n:]) or text.endswith(made[:n]) for n in lengths)


class Needle:
    """A text to look for, and what to put in its place: ``in_keys`` in the place of it in a key."""

    def __init__(self, text: str, replacement: str = "", in_keys: str = "") -> None:
        self.text = text
        self.data = text.encode("utf-8", "surrogatepass")
        self.replacement = replacement
        self.in_keys = in_keys or replacement

    def within(self, data: bytes) -> bool:
        """Whether encoded values may hold it. Text is stored as UTF-8, so nothing that does is missed."""
        return self.data in data

    # ── finding ──────────────────────────────────────────────────────────────────────────────

    def hits(self, node: Any, path: Path = ()) -> Iterator[Hit]:
        """Every text in a lowered tree that holds it; a key of a mapping counts as standing at that key."""
        if type(node) is str:
            if self.text in node:
                yield Hit(path, node)
        elif type(node) is bytes:
            if self.data in node:
                yield Hit(path, node.decode("utf-8", "replace"))
        elif type(node) is dict:
            for key, value in node.items():
                yield from self.hits(key, (*path, key))
                yield from self.hits(value, (*path, key))
        elif type(node) is list:
            for index, value in enumerate(node):
                yield from self.hits(value, (*path, index))
        elif type(node) is Tagged and self.data in node.data:
            if node.code in _PACKED:
                inner = decode(node.data)
                name = _name_at(node.code, inner)
                for index, value in enumerate(inner):
                    for hit in self.hits(value, (*path, index)):
                        yield hit._replace(stays=True) if index == name else hit
            elif node.code in _TEXTS:
                yield Hit(path, node.data.decode("utf-8", "replace"))

    def found(self, node: Any, at: Path) -> Iterator[Hit]:
        """The same for what stands at a place of a document, or is an item of a log (``ITEM``)."""
        return self.hits(node)

    def found_in_path(self, path: list[Any]) -> Iterator[Hit]:
        """The same for the path of an edit."""
        return self.hits(path)

    def masked(self, path: Path) -> Path:
        """A path in which the text doesn't show."""
        masked = (key if not any(self.hits(key)) else "•••" for key in path)
        return tuple(
            key.replace(self.text, "•••") if type(key) is str else shown
            for key, shown in zip(path, masked, strict=True)
        )

    # ── replacing ────────────────────────────────────────────────────────────────────────────

    def replaced(self, node: Any, *, key: bool = False) -> Any:
        """The tree with something else in the place of the text, wherever that stands; ``key``: as a key, or
        as a part of one."""
        if type(node) is str:
            return self._out(node, key) if self.text in node else node
        if type(node) is bytes:
            return self._out_of_bytes(node, key) if self.data in node else node
        if type(node) is dict:
            return {self.replaced(k, key=True): self.replaced(value, key=key) for k, value in node.items()}
        if type(node) is list:
            return [self.replaced(value, key=key) for value in node]
        if type(node) is Tagged and self.data in node.data:
            if node.code in _PACKED:
                return self._packed(node, key)
            if node.code == Code.DECIMAL:
                # A number with something else in it is none any more.
                return f"number {self._out(node.data.decode(), key)}" if key else self.replacement
            if node.code in _TEXTS:
                return _as_text(Tagged(node.code, self._out_of_bytes(node.data, key)))
        return node

    def _out(self, text: str, key: bool) -> str:
        text = text.replace(self.text, self.in_keys if key else self.replacement)
        while self.text in text:
            # The replacement and what stands around it make up the text again: that goes without one.
            text = text.replace(self.text, "")
        return text

    def _out_of_bytes(self, data: bytes, key: bool) -> bytes:
        new = (self.in_keys if key else self.replacement).encode("utf-8", "surrogatepass")
        lines = self.data.count(b"\n") if self.data.strip(b"\n") else 0
        data = data.replace(self.data, _with_lines(new, lines))
        while self.data in data:
            data = data.replace(self.data, b"\n" * lines)
        return data

    def _packed(self, node: Tagged, key: bool) -> Tagged:
        inner = decode(node.data)
        name = _name_at(node.code, inner)
        new = [each if at == name else self.replaced(each, key=key) for at, each in enumerate(inner)]
        if node.code in _SETS:
            # The elements of a set stand in the order of their bytes, each once.
            new = [decode(each) for each in sorted(set(map(encode_stored, new)))]
        return Tagged(node.code, encode_stored(new))

    def put(self, node: Any, at: Path) -> Any:
        """The same for what stands at a place of a document, or is an item of a log (``ITEM``)."""
        return self.replaced(node)

    def item(self, data: bytes) -> bytes:
        """An item of a log with the text replaced; the very same bytes if it isn't in it."""
        return encode_stored(self.put(decode(data), ITEM)) if self.within(data) else data

    def metadata(self, data: bytes) -> bytes:
        """Metadata with the text replaced in its values. What these are called stays: by that threads are
        found, and the index of it forgets no name."""
        if not self.within(data):
            return data
        return encode_stored({name: self.replaced(value) for name, value in decode(data).items()})

    def head(self, data: bytes) -> bytes:
        """A head with the text replaced in its label and metadata. Keys and steps stay: they are names."""
        if not self.within(data):
            return data
        head = records.read_head(data)
        label = None if head.label is None else self.replaced(head.label)
        metadata = None if head.metadata is None else self.metadata(head.metadata)
        if (label, metadata) == (head.label, head.metadata):
            return data
        return records.write_head(msgspec.structs.replace(head, label=label, metadata=metadata))

    def change(self, data: bytes) -> bytes:
        """A change with the text replaced in its edits. Names of logs stay."""
        if not self.within(data):
            return data
        parts = decode(data)
        parts[0] = [self.op(op) for op in parts[0]]
        return encode_stored(parts)

    def op(self, op: list[Any]) -> list[Any]:
        """An edit; its path is made of keys."""
        code, path, *values = op
        return [code, self.replaced(path, key=True), *(self.put(value, tuple(path)) for value in values)]

    def keyframe(self, snapshot: Snapshot) -> Snapshot:
        document = self.put(snapshot.document, ())
        return Snapshot(document, snapshot.logs, snapshot.segment, snapshot.merged)

    def tombstone(self, body: bytes) -> bytes:
        """The body of a row for pruned versions: of these only some heads are left."""
        tomb = read_tombstone(body)
        heads = {index: self.head(head) for index, head in tomb.heads.items()}
        return body if heads == tomb.heads else tombstone(tomb.digests, heads)


class RecordNeedle(Needle):
    """The same for what the store writes of its own accord beside threads: journals of sessions, and the
    record of redactions. All of it is structure and names, by which effects are known to have happened,
    but for a few fields (``prose``) that hold what somebody said or got."""

    def __init__(self, needle: Needle, prose: frozenset[str]) -> None:
        super().__init__(needle.text, needle.replacement, needle.in_keys)
        self._prose = prose

    def found(self, node: Any, at: Path) -> Iterator[Hit]:
        return self._found(node, at, ())

    def _found(self, node: Any, at: Path, path: Path) -> Iterator[Hit]:
        if self._is_prose(at):
            yield from self.hits(node, path)
        elif type(node) is dict:
            for key, value in node.items():
                yield from (hit._replace(stays=True) for hit in self.hits(key, (*path, key)))
                yield from self._found(value, (*at, key), (*path, key))
        else:
            yield from (hit._replace(stays=True) for hit in self.hits(node, path))

    def found_in_path(self, path: list[Any]) -> Iterator[Hit]:
        return (hit._replace(stays=True) for hit in self.hits(path))

    def put(self, node: Any, at: Path) -> Any:
        if self._is_prose(at):
            return self.replaced(node)
        return (
            {key: self.put(value, (*at, key)) for key, value in node.items()} if type(node) is dict else node
        )

    def op(self, op: list[Any]) -> list[Any]:
        code, path, *values = op
        return [code, path, *(self.put(value, tuple(path)) for value in values)]

    def head(self, data: bytes) -> bytes:
        return data

    def _is_prose(self, at: Path) -> bool:
        """Such fields are in the run that is under way, in open effects and in items."""
        parents, last = at[:-1], at[-1] if at else None
        known = parents in (ITEM, ("run",)) or (len(parents) == 2 and parents[0] == "open")
        return known and last in self._prose


def _with_lines(data: bytes, count: int) -> bytes:
    """Bytes with so many ends of lines. Contents of files are kept as edits of earlier ones, by line: what is
    redacted in one of these must not move the lines after it."""
    lines = data.split(b"\n")
    first, rest = lines[: count + 1], lines[count + 1 :]
    return b" ".join((b"\n".join(first), *rest)) + b"\n" * (count + 1 - len(first))


def _as_text(node: Tagged) -> Any:
    """Text whose lone surrogates are gone is stored as any other."""
    try:
        return node.data.decode() if node.code == Code.SURROGATE_TEXT else node
    except UnicodeDecodeError:
        return node


def _name_at(code: int, parts: list[Any]) -> int | None:
    """Which part of packed data is a name, without which the rest can't be read: the tag of a registered
    class, the key of a zone in the time zone database."""
    if code == Code.OBJECT:
        return 0
    return _ZONE if code in (Code.DATETIME, Code.TIME) and len(parts) == _ZONED else None


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
