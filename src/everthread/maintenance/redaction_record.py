"""What was redacted, as the store remembers it: by version, the digest of what was committed and of what is
there instead.

The record is a thread of its own, in a space that no public name reaches; so it has a chain of hashes of its
own, folds, moves and is backed up like any other. It holds digests and no texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.codec.values import decode_plain
from everthread.stores.contract import SEAL_SEQ
from everthread.threads.sync.reader import Reader

NAME = "redactions"
#: (uid of the line, seq) → digests of what may stand there instead of what was committed.
Redactions = Mapping[tuple[bytes, int], frozenset[bytes]]


def redactions_space(space: str) -> str:
    """Where a namespace keeps the record."""
    return f"{space.partition(chr(0))[0]}\0{NAME}"


def entry(id_: str, at_us: int, uid: bytes, versions: Sequence[tuple[int, bytes, bytes]], reason: str) -> Any:
    """One item of the record: versions of a line, each with the digest before and after."""
    told = [[seq, old, new] for seq, old, new in versions]
    return {"redaction": id_, "at_us": at_us, "line": uid, "versions": told, "reason": reason}


def events_entry(
    id_: str, at_us: int, stream: str, events: Sequence[tuple[int, bytes, bytes]], reason: str
) -> Any:
    """The same for events of a stream."""
    told = entry(id_, at_us, b"", (), reason)
    return {**told, "stream": stream, "events": [[seq, old, new] for seq, old, new in events]}


def read_redactions(reader: Reader, space: str) -> Redactions:
    """All that was ever redacted in a namespace."""
    found = reader.backend.find(redactions_space(space), NAME)
    if found is None:
        return {}
    line = found.line
    snapshot = (reader.load(line, found.newest.seq if found.newest else SEAL_SEQ)).snapshot
    known: dict[tuple[bytes, int], frozenset[bytes]] = {}
    state = snapshot.logs.get(NAME)
    for start in range(0, state.length if state is not None else 0, 256):
        for item in _items(reader, found.line, start, min(start + 256, state.length if state else 0)):
            for seq, _, new in item["versions"]:
                place = (item["line"], seq)
                known[place] = known.get(place, frozenset()) | {new}
    return known


def _items(reader: Reader, line: Any, start: int, stop: int) -> list[Any]:
    raws = reader.raw_items(line, NAME, start, stop)
    return [decode_plain(raw) for raw in raws]
