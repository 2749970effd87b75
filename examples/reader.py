"""Reads an Everthread SQLite store without Everthread: everything here follows docs/internals/format.md.

    python examples/reader.py agent.db                    the threads
    python examples/reader.py agent.db invoice-bot        its versions, and its newest state
    python examples/reader.py agent.db invoice-bot 3      its state at version 3

It is short rather than fast. Sealed values stay references: opening them takes the keyring.
"""

from __future__ import annotations

import datetime as dt
import decimal
import sqlite3
import sys
import urllib.parse
import uuid
import zlib
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
import zstandard

APPLICATION_ID, SCHEMA_VERSION, FORMAT = 0x45565448, 1, 1
DELTA, PACK, REWIND, SEAL = range(4)
KINDS = ("commit", "rewind", "merge", "fork", "fence")
SET, DELETE, SPLICE, ADD = range(4)
HASH_KEPT = 16


# ── values ───────────────────────────────────────────────────────────────────────────────────────


class Ext(NamedTuple):
    """A MessagePack extension as it was found."""

    code: int
    data: bytes


class Object(NamedTuple):
    """An instance of a registered class."""

    tag: str
    data: Any


class Sealed(NamedTuple):
    """A reference to a personal value; its encrypted bytes are in the table ``sealed``."""

    key_ids: tuple[bytes, ...]
    value_id: bytes
    digest: bytes


def unpack(data: bytes) -> Any:
    return msgspec.msgpack.decode(data, ext_hook=lambda code, raw: Ext(code, bytes(raw)))


def plain(node: Any) -> Any:
    """What a decoded tree stands for."""
    if type(node) is dict:
        return {plain(key): plain(value) for key, value in node.items()}
    if type(node) is list:
        return [plain(value) for value in node]
    if type(node) is not Ext:
        return node
    code, data = node
    if code == 1:
        return int.from_bytes(data, "big", signed=True)
    if code in (2, 3, 4):
        return {2: tuple, 3: set, 4: frozenset}[code](plain(unpack(data)))
    if code == 5:
        clock_us, fold, *zone = unpack(data)
        at = dt.datetime(1, 1, 1) + dt.timedelta(microseconds=clock_us)  # noqa: DTZ001 - its own clock
        return at.replace(fold=fold, tzinfo=timezone(zone))
    if code == 6:
        return dt.date.fromordinal(unpack(data))
    if code == 7:
        clock_us, fold, *zone = unpack(data)
        at = dt.datetime(1, 1, 1) + dt.timedelta(microseconds=clock_us)  # noqa: DTZ001 - its own clock
        return at.time().replace(fold=fold, tzinfo=timezone(zone))
    if code == 8:
        return dt.timedelta(*unpack(data))
    if code == 9:
        return decimal.Decimal(data.decode("ascii"))
    if code == 10:
        return uuid.UUID(bytes=data)
    if code == 11:
        return data.decode("utf-8", "surrogatepass")
    if code == 20:
        tag, fields = unpack(data)
        return Object(tag, plain(fields))
    if code == 30:
        _format, key_ids, value_id, digest = unpack(data)
        return Sealed(tuple(key_ids), value_id, digest)
    return node


def timezone(zone: list[Any]) -> dt.tzinfo | None:
    if not zone:
        return None
    if len(zone) == 3:
        import zoneinfo

        return zoneinfo.ZoneInfo(zone[1])
    offset_us, *name = zone
    return dt.timezone(dt.timedelta(microseconds=offset_us), *name)


# ── frames ───────────────────────────────────────────────────────────────────────────────────────


def unframe(data: bytes) -> bytes:
    """One byte format, four bytes CRC-32 (little endian) of that byte and the rest, the rest."""
    if zlib.crc32(data[:1] + data[5:]).to_bytes(4, "little") != data[1:5]:
        raise ValueError("a frame fails its checksum")
    if data[0] != FORMAT:
        raise ValueError(f"format {data[0]} is unknown")
    return data[5:]


def frame(payload: bytes) -> bytes:
    return bytes([FORMAT]) + zlib.crc32(bytes([FORMAT]) + payload).to_bytes(4, "little") + payload


def expand(data: bytes) -> bytes:
    """A frame whose payload says in its first byte whether the rest is compressed."""
    payload = unframe(data)
    return zstandard.decompress(payload[1:]) if payload[0] else payload[1:]


# ── the store ────────────────────────────────────────────────────────────────────────────────────


class Line(NamedTuple):
    """One incarnation of a thread."""

    id: int
    uid: bytes
    space: str
    name: str
    parent: int
    parent_seq: int
    parent_hash: bytes
    start_hash: bytes
    counts: dict[str, int]
    deleted: bool


class Row(NamedTuple):
    seq: int
    first: int
    kind: int
    hash: bytes
    body: bytes
    net: bytes | None
    keyframe: bytes | None


class Record(NamedTuple):
    """One version: its own words (``head``), what it changed (``change``), and the beginning of its hash."""

    seq: int
    head: bytes
    change: bytes
    hash: bytes


class Version(NamedTuple):
    seq: int
    id: str
    parent: str | None
    kind: str
    at_us: int
    label: str | None
    metadata: dict[str, Any]
    key: str | None
    source: str | None


class State:
    """The document and, for each log, the physical positions of its items in order."""

    def __init__(self) -> None:
        self.document: Any = {}
        self.logs: dict[str, list[int]] = {}
        self.counts: dict[str, int] = {}

    def advance(self, change: list[Any]) -> None:
        """Apply a change, or the net change of a pack."""
        ops, splices, *_ = [*change, [], []]
        for op in ops:
            self.document = edited(self.document, op)
        for log, at, remove, insert, *_ in splices:
            start = self.counts.get(log, 0)
            self.logs.setdefault(log, [])[at : at + remove] = range(start, start + insert)
            self.counts[log] = start + insert


def edited(document: Any, op: list[Any]) -> Any:
    code, path = op[0], op[1]
    if not path:
        return op[2]
    node = document
    for key in path[:-1]:
        node = node[key]
    last = path[-1]
    if code == SET:
        node[last] = op[2]
    elif code == DELETE:
        node.pop(last, None)
    elif code == SPLICE:
        node[last][op[2] : op[2] + op[3]] = op[4]
    elif code == ADD:
        node[last] = (node.get(last, 0) if isinstance(node, dict) else node[last]) + op[2]
    return document


_LINE = """SELECT id, uid, space, name, parent, parent_seq, parent_hash, start_hash, counts, deleted
           FROM line WHERE id > 0 AND """


class Store:
    """An Everthread store, opened for reading only."""

    def __init__(self, path: str) -> None:
        self.db = sqlite3.connect(f"file:{urllib.parse.quote(path)}?mode=ro", uri=True)
        if self.db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise ValueError(f"{path} isn't an Everthread store")
        if self.db.execute("PRAGMA user_version").fetchone()[0] != SCHEMA_VERSION:
            raise ValueError(f"{path} has tables that this reader doesn't know")

    def close(self) -> None:
        self.db.close()

    def _lines(self, where: str, *values: Any) -> list[Line]:
        rows = self.db.execute(_LINE + where, values).fetchall()
        return [Line(*row[:8], unpack(row[8]) if row[8] else {}, bool(row[9])) for row in rows]

    def threads(self, space: str = "") -> dict[str, Line]:
        """The live threads of a namespace, by name."""
        return {line.name: line for line in self._lines("space = ? AND deleted = 0 ORDER BY name", space)}

    def every_line(self) -> list[Line]:
        return self._lines("1 ORDER BY id")

    def parent(self, line: Line) -> Line:
        return self._lines("id = ?", line.parent)[0]

    def rows(self, line: Line) -> list[Row]:
        """The rows of a line itself, oldest first. The seq is the lower half of the id."""
        low = line.id << 32
        found = self.db.execute(
            "SELECT id, first, kind, hash, body, net, keyframe FROM record "
            "WHERE id BETWEEN ? AND ? AND kind <> ? ORDER BY id",
            (low, low + 0xFFFFFFFF, SEAL),
        )
        return [Row(id & 0xFFFFFFFF, *rest) for id, *rest in found]

    # ── versions ─────────────────────────────────────────────────────────────────────────────

    def records(self, row: Row) -> list[Record]:
        """The versions that a row holds, oldest first."""
        if row.kind != PACK:
            head, change, _blocks = unpack(unframe(row.body))
            return [Record(row.seq, head, change, row.hash)]
        heads, changes, joined = unpack(expand(row.body))
        hashes = [joined[at : at + HASH_KEPT] for at in range(0, len(joined), HASH_KEPT)]
        numbered = enumerate(zip(heads, changes, hashes, strict=True), row.first)
        return [Record(seq, *parts) for seq, parts in numbered]

    def versions(self, line: Line) -> list[Version]:
        """Every version of a thread, oldest first, those it shares with what it was forked from included."""
        found, before = [], b""
        if line.parent:
            found = [v for v in self.versions(self.parent(line)) if v.seq <= line.parent_seq]
            before = line.parent_hash
        for row in self.rows(line):
            for record in self.records(row):
                kind, at_us, label, metadata, key, source = [*unpack(record.head), *[None] * 5][:6]
                found.append(
                    Version(
                        seq=record.seq,
                        id=version_id(record.seq, record.hash),
                        parent=version_id(record.seq - 1, before) if before else None,
                        kind=KINDS[kind],
                        at_us=at_us,
                        label=label,
                        metadata=plain(unpack(metadata)) if metadata else {},
                        key=key,
                        source=source[3] if source else None,
                    )
                )
                before = record.hash
        return found

    # ── state ────────────────────────────────────────────────────────────────────────────────

    def state(self, line: Line, seq: int, shortcuts: bool = True) -> State:
        """The state of a line at a version: back to something known, then forward again.

        ``shortcuts=False`` uses neither keyframes nor net changes; the result must be the same.
        """
        if seq <= line.parent_seq:
            return self.state(self.parent(line), seq, shortcuts) if line.parent else State()
        changes: list[list[Any]] = []
        state: State | None = None
        for row in reversed(self.rows(line)):
            if row.first > seq:
                continue
            if shortcuts and row.keyframe is not None and row.seq <= seq:
                state = keyframe(row.keyframe)
                break
            if shortcuts and row.kind == PACK and row.seq <= seq:
                changes.append(unpack(expand(row.net or b"")))
                continue
            records = [record for record in self.records(row) if record.seq <= seq]
            if row.kind == REWIND:
                state = self._rewound(records[0], shortcuts)
                break
            changes.extend(unpack(record.change) for record in reversed(records))
        if state is None:
            state = self.state(self.parent(line), line.parent_seq, shortcuts) if line.parent else State()
        for change in reversed(changes):
            state.advance(change)
        return state

    def _rewound(self, record: Record, shortcuts: bool) -> State:
        """What a rewind went back to, with the log positions that its own line has used."""
        uid, seq, _segment, _id = unpack(record.head)[5]
        state = self.state(self._lines("uid = ?", uid)[0], seq, shortcuts)
        _ops, _logs, _merged, counts = [*unpack(record.change), [], {}, {}][:4]
        state.counts.update(counts)
        return state

    def document(self, line: Line, seq: int) -> Any:
        return plain(self.state(line, seq).document)

    def log(self, line: Line, seq: int, name: str) -> list[Any]:
        positions = self.state(line, seq).logs.get(name, [])
        items = self.items(line, name)
        return [plain(unpack(items[position])) for position in positions]

    def logs(self, line: Line, seq: int) -> list[str]:
        """The names of the logs. One that begins with NUL belongs to Everthread itself: the step results."""
        return sorted(self.state(line, seq).logs)

    # ── items ────────────────────────────────────────────────────────────────────────────────

    def items(self, line: Line, log: str) -> dict[int, bytes]:
        """Every item that a log of this line ever had, encoded, by physical position."""
        found: dict[int, bytes] = {}
        if line.parent:
            inherited = line.counts.get(log, 0)
            found = {at: raw for at, raw in self.items(self.parent(line), log).items() if at < inherited}
        chunks = self.db.execute(
            "SELECT position, data FROM chunk WHERE line = ? AND log = ?", (line.id, log)
        )
        for position, data in chunks:
            found.update(enumerate(split(expand(data)), position))
        for row in self.rows(line):
            if row.kind == DELTA:
                _head, change, blocks = unpack(unframe(row.body))
                inserts = [splice for splice in [*unpack(change), []][1] if splice[3]]
                # A record without blocks is detached: its items are in chunks.
                for (name, _, _, _, position, _), block in zip(inserts, blocks, strict=bool(blocks)):
                    if name == log:
                        found.update(enumerate(split(block), position))
        return found

    # ── the chain ────────────────────────────────────────────────────────────────────────────

    def check_chain(self, line: Line) -> int:
        """Recompute the hash of every version of a line itself; how many there are. Raises if one differs."""
        reached = sha256(b"everthread/genesis/1\0" + line.uid).digest()
        if line.parent:
            reached = sha256(b"everthread/branch/1\0" + line.parent_hash + line.uid).digest()
        if reached != line.start_hash:
            raise ValueError(f"{line.name!r} doesn't begin where it says")
        count = 0
        items: dict[str, dict[int, bytes]] = {}
        for row in self.rows(line):
            for record in self.records(row):
                splices = [*unpack(record.change), []][1] if row.kind != REWIND else []
                blocks = []
                for log, _, _, insert, position, *_ in splices:
                    if log not in items:
                        items[log] = self.items(line, log)
                    if insert:
                        blocks.append(array([items[log][position + n] for n in range(insert)]))
                body = frame(msgspec.msgpack.encode([record.head, record.change, blocks]))
                head = unpack(record.head)
                # Of a record in which something was redacted, the digest of what was committed.
                redacted = head[8] if len(head) > 8 else None
                reached = sha256(reached + (redacted or sha256(body).digest())).digest()
                if reached[: len(record.hash)] != record.hash:
                    raise ValueError(f"version {record.seq} of {line.name!r} isn't what its hash says")
                count += 1
            if reached != row.hash:
                raise ValueError(f"version {row.seq} of {line.name!r} isn't what its hash says")
        return count


def keyframe(data: bytes) -> State:
    document, logs, _segment, _merged = unpack(expand(data))[:4]
    state = State()
    state.document = document
    for log, (count, edges) in logs.items():
        pairs = zip(edges[::2], edges[1::2], strict=True)
        state.logs[log] = [position for first, last in pairs for position in range(first, last)]
        state.counts[log] = count
    return state


def split(block: bytes) -> list[bytes]:
    """The items of a MessagePack array, each still encoded."""
    return [bytes(raw) for raw in msgspec.msgpack.decode(block, type=list[msgspec.Raw])]


def array(items: list[bytes]) -> bytes:
    """A MessagePack array of items that are encoded already."""
    n = len(items)
    if n < 16:
        prefix = bytes([0x90 | n])
    else:
        prefix = b"\xdc" + n.to_bytes(2, "big") if n < 0x10000 else b"\xdd" + n.to_bytes(4, "big")
    return prefix + b"".join(items)


def version_id(seq: int, hash: bytes) -> str:
    return f"{seq}-{hash.hex()[:24]}"


def main(path: str, name: str | None = None, seq: str | None = None) -> None:
    store = Store(path)
    if name is None:
        for thread, line in store.threads().items():
            print(f"{thread}: {len(store.versions(line))} versions")
        return
    line = store.threads()[name]
    versions = store.versions(line)
    if seq is None:
        for version in versions:
            print(version.id, version.kind, version.label or "")
    at = int(seq) if seq is not None else versions[-1].seq
    print(store.document(line, at))
    for log in store.logs(line, at):
        print(f"{log!r}:", *store.log(line, at, log), sep="\n  ")


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
