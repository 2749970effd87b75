"""What stays of pruned versions: one line of the journal, and a file with the items that others still hold.

    {"seq":80,"kind":"pruned","first":5,"digests":…,"keyframe":{"json":[…]},"hash":…,"sum":…}

The digests are there so that the chain of hashes can be followed, the heads for whoever still asks for a key,
a step or a source, and the keyframe or the net change because later versions go on from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise

import msgspec
from msgspec import Struct

from everthread.codec import records
from everthread.errors import EverthreadError, StateCorruptedError
from everthread.history.chain import HASH_BYTES
from everthread.history.packs import Chunk, pruned_chunks
from everthread.history.retention import read_tombstone, tombstone
from everthread.stores.contract import PRUNED, Row
from everthread.stores.files.escaping import base64_bytes, base64_text
from everthread.stores.files.jsonl import encode_json, stamp
from everthread.stores.files.rendering import Part, render_items
from everthread.stores.files.values import Value, read_value, write_value


class Tomb(Struct, omit_defaults=True, kw_only=True):
    """A line of pruned versions. ``keys`` are (key hash, seq), ``gone`` (log, position, count) of items."""

    seq: int
    kind: str
    first: int
    digests: str
    heads: dict[str, str] = {}
    net: Value | None = None
    keyframe: Value | None = None
    keys: list[tuple[str, int]] = []
    tags: dict[str, str] = {}
    items: str = ""
    apart: list[Part] = []
    gone: list[tuple[str, int, int]] = []
    hash: str

    def row(self) -> Row:
        """The row of the contract. Raises :class:`StateCorruptedError`."""
        try:
            joined = base64_bytes(self.digests)
            digests = [joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES)]
            heads = {int(index): base64_bytes(head) for index, head in self.heads.items()}
            if len(digests) != self.seq - self.first + 1:
                raise ValueError(self.first)
            return Row(
                self.seq,
                self.first,
                PRUNED,
                bytes.fromhex(self.hash),
                tombstone(digests, heads),
                _frame(self.net),
                _frame(self.keyframe),
            )
        except (ValueError, EverthreadError) as error:
            raise StateCorruptedError(
                f"the tombstone of versions {self.first} to {self.seq} makes no sense"
            ) from error

    def key_hashes(self) -> list[tuple[bytes, int]]:
        return [(bytes.fromhex(key), seq) for key, seq in self.keys]

    def newest_tags(self) -> dict[str, bytes]:
        return {name: base64_bytes(value) for name, value in self.tags.items()}

    def stubs(self) -> list[Chunk]:
        """What stands for the items that are gone."""
        return [Chunk(log, position, count, b"", b"") for log, position, count in self.gone]


_decode = msgspec.json.Decoder(Tomb).decode


def _frame(value: Value | None) -> bytes | None:
    return None if value is None else records.compress(read_value(value))


def read_tomb(line: bytes, where: str) -> Tomb:
    """What an intact line holds. Raises :class:`StateCorruptedError`."""
    try:
        return _decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise StateCorruptedError(
            f"{where} isn't the line of pruned versions: {error}", where=where
        ) from error


def render_tomb(
    row: Row,
    keys: Iterable[tuple[bytes, int]],
    tags: Mapping[str, bytes],
    chunks: Sequence[Chunk],
    *,
    durable: bool,
) -> tuple[bytes, str, bytes]:
    """The line of a PRUNED row, and the name and content of the file for its items, if there are any."""
    tomb = read_tombstone(row.body)
    ordered = sorted(chunks, key=lambda chunk: (chunk.log, chunk.position))
    items, parts = render_items([chunk for chunk in ordered if not chunk.pruned], fingerprints=True)
    name = f"items-{row.seq:010}-{sha256(items).hexdigest()[:16]}.jsonl" if items else ""
    line = Tomb(
        seq=row.seq,
        kind="pruned",
        first=row.first,
        digests=base64_text(b"".join(tomb.digests)),
        heads={str(index): base64_text(head) for index, head in sorted(tomb.heads.items())},
        net=_readable(row.net, "a net change"),
        keyframe=_readable(row.keyframe, "a keyframe"),
        keys=[(key.hex(), seq) for key, seq in keys],
        tags={name: base64_text(value) for name, value in tags.items()},
        items=name,
        apart=parts,
        gone=_gone(ordered),
        hash=row.hash.hex(),
    )
    return stamp(encode_json(line), durable=durable), name, items


def _readable(frame: bytes | None, what: str) -> Value | None:
    return None if frame is None else write_value(records.expand(frame, what))


def _gone(ordered: list[Chunk]) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    for log in dict.fromkeys(chunk.log for chunk in ordered):
        spans = ((chunk.position, chunk.count) for chunk in ordered if chunk.log == log and chunk.pruned)
        found.extend((log, stub.position, stub.count) for stub in pruned_chunks(log, spans))
    return found


def without(chunk: Chunk, dropped: Iterable[tuple[str, int, int]]) -> list[Chunk]:
    """A chunk without items at positions that nobody holds any more: cut up, with stubs in their place."""
    if chunk.pruned:
        return [chunk]
    edges = {chunk.position, chunk.end}
    holes = []
    for log, start, stop in dropped:
        start, stop = max(start, chunk.position), min(stop, chunk.end)
        if log == chunk.log and start < stop:
            holes.append((start, stop))
            edges |= {start, stop}
    if not holes:
        return [chunk]
    items = records.split(chunk.block())
    found = []
    cuts = sorted(edges)
    for start, stop in pairwise(cuts):
        low, high = start - chunk.position, stop - chunk.position
        if any(first <= start < last for first, last in holes):
            found.append(Chunk(chunk.log, start, stop - start, b"", b""))
        else:
            block = records.compress(records.array(items[low:high]))
            prints = chunk.fingerprints[4 * low : 4 * high]
            found.append(Chunk(chunk.log, start, stop - start, prints, block))
    return found
