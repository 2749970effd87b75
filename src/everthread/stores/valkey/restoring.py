"""What a backup brings back: not what was erased since, no revision that anybody holds, no number again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from everthread.stores.contract import FINISHED, ErasedKey, PutCell, erasure_after_restore, split_keys
from everthread.stores.valkey.backups import Entry
from everthread.stores.valkey.keys import SHARDS, Keys
from everthread.stores.valkey.resp import Argument

_CELL = re.compile(rb"(\d+) (\d+) ([0-9a-f]+) ")
_SLICE = 500
#: Cells may be replaced while a backup is on its way: they don't come near this many revisions.
_AHEAD = 1_000_000


def restored(
    entries: Sequence[Entry], present: Sequence[Entry], keys: Keys, cells: Sequence[PutCell] = ()
) -> list[Entry]:
    """What takes the place of ``present`` if these are the entries of a backup; ``cells`` come on top."""
    work = _Restored(entries, present)
    work.merge_ledgers(keys)
    work.raise_revisions()
    work.put_cells(keys, cells)
    work.keep_counters()
    return work.entries


class _Restored:
    def __init__(self, entries: Sequence[Entry], present: Sequence[Entry]) -> None:
        self._found = {key: (kind, content) for key, kind, content in entries}
        self._present = {key: (kind, content) for key, kind, content in present}

    @property
    def entries(self) -> list[Entry]:
        """Which keys are erased comes first: where this isn't one transaction, nobody slips in between."""
        found = [(key, kind, content) for key, (kind, content) in self._found.items() if content]
        return sorted(found, key=lambda entry: not _is_refusal(entry[0]))

    def merge_ledgers(self, keys: Keys) -> None:
        """Whatever the backup holds of an erased person stays away."""
        known, told = (
            {key_id: read_entry(key_id, value) for key_id, value in _fields(every, keys.ledger).items()}
            for every in (self._present, self._found)
        )
        ledger = {
            **told,
            **{id_: erasure_after_restore(entry, told.get(id_)) for id_, entry in known.items()},
        }
        flat = [part for id_, entry in ledger.items() for part in (id_, write_entry(entry))]
        self._found[keys.ledger] = ("hash", flat)
        open_ = [id_ for id_, entry in ledger.items() if entry.phase != FINISHED]
        self._found[keys.unfinished] = ("set", open_)
        self._drop_sealed(keys, set(ledger))
        for first in SHARDS:
            self._found[keys.shard("v", first)[:-1] + b"x"] = ("set", list(ledger))

    def _drop_sealed(self, keys: Keys, erased: set[bytes]) -> None:
        """Leave out what is sealed under erased keys; what is derived from the rest is made anew."""
        registers = {keys.shard("v", first) for first in SHARDS}
        for key in [key for key in self._found if key[: key.find(b"}") + 2] + b"v" in registers]:
            if key not in registers:
                del self._found[key]
        for key in registers & self._found.keys():
            kept: list[bytes] = []
            for value_id, value in _fields(self._found, key).items():
                used = split_keys(value[2 : 2 + int.from_bytes(value[:2], "big")])
                if erased.isdisjoint(used):
                    kept += [value_id, value]
                    for key_id in used:
                        place = key[:-1] + b"k:" + key_id.hex().encode()
                        self._found.setdefault(place, ("zset", []))[1].extend((value_id, b"0"))
            self._found[key] = ("hash", kept)

    def raise_revisions(self) -> None:
        """No cell comes back at a revision that it had in either content."""
        highest = 0
        for every in (self._found, self._present):
            for key in every:
                if _is_cells(key):
                    highest = max([highest, *(_revision(value) for value in _fields(every, key).values())])
                elif _is_floor(key):
                    highest = max(highest, int(_fields(every, key).get(b"floor", b"0")))
        if not highest:
            return
        highest += _AHEAD
        bases = {key[:-1] for every in (self._found, self._present) for key in every if _is_space(key)}
        for base in bases:
            self._found[base + b"i"] = ("hash", [b"floor", b"%d" % highest])
            flat: list[bytes] = []
            for name, value in _fields(self._found, base + b"c").items():
                flat += [name, _CELL.sub(rb"%d \2 \3 " % (highest + 1), value, count=1)]
            if flat:
                self._found[base + b"c"] = ("hash", flat)

    def put_cells(self, keys: Keys, cells: Sequence[PutCell]) -> None:
        """After the revisions were raised: a cell that is there keeps its new one, others begin above."""
        spaces: dict[str, dict[bytes, PutCell]] = {}
        for cell in cells:
            spaces.setdefault(cell.space, {})[cell.name.encode()] = cell
        listed = _fields(self._found, keys.spaces)
        for space, named in spaces.items():
            base = keys.space(space)[:-1]
            above = int(_fields(self._found, base + b"i").get(b"floor", b"0")) + 1
            there, order = _fields(self._found, base + b"c"), _fields(self._found, base + b"o")
            for name, cell in named.items():
                revision = _revision(there.get(name, b"")) or above
                there[name] = b"%d %d 0 %b" % (revision, cell.written_us, cell.value)
                order[name] = b"0"
            listed[space.encode()] = b"0"
            self._found[base + b"c"] = ("hash", _flat(there))
            self._found[base + b"o"] = ("zset", _flat(order))
        if spaces:
            self._found[keys.spaces] = ("zset", _flat(listed))

    def keep_counters(self) -> None:
        """Places in a family that were given out since are never given out again."""
        for key in self._present:
            if key.endswith(b"}:f"):
                given = int(_fields(self._present, key).get(b"c", b"0"))
                fields = _fields(self._found, key)
                fields[b"c"] = b"%d" % max(given, int(fields.get(b"c", b"0")))
                self._found[key] = ("hash", _flat(fields))


def read_entry(key_id: bytes, value: bytes) -> ErasedKey:
    """An entry of the erasure ledger: phase, when it was noted, erasure, note."""
    phase, noted, erasure, note = value.split(b" ", 3)
    return ErasedKey(
        key_id=key_id,
        phase=int(phase),
        erasure=bytes.fromhex(erasure.decode()),
        noted_us=int(noted),
        note=note,
    )


def write_entry(entry: ErasedKey) -> bytes:
    return b"%d %d %b %b" % (entry.phase, entry.noted_us, entry.erasure.hex().encode(), entry.note)


def _is_refusal(key: bytes) -> bool:
    return key.endswith(b"}:x")


def _fields(entries: dict[bytes, tuple[str, Any]], key: bytes) -> dict[bytes, bytes]:
    flat = entries.get(key, ("hash", []))[1]
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _flat(fields: dict[bytes, bytes]) -> list[bytes]:
    return [part for pair in fields.items() for part in pair]


def _is_space(key: bytes) -> bool:
    return b":{s" in key and key[-3:-1] == b"}:"


def _is_cells(key: bytes) -> bool:
    return _is_space(key) and key.endswith(b"c")


def _is_floor(key: bytes) -> bool:
    return _is_space(key) and key.endswith(b"i")


def _revision(value: bytes) -> int:
    found = _CELL.match(value)
    return int(found[1]) if found else 0


def commands(entry: Entry) -> Iterable[Sequence[Argument]]:
    """What writes an entry."""
    key, kind, content = entry
    if kind == "string":
        yield b"SET", key, content[0]
    elif kind == "stream":
        entries, groups = content
        for seq, fields in entries:
            yield b"XADD", key, seq, *fields
        for at in range(0, len(groups), 2):
            yield b"XGROUP", b"CREATE", key, groups[at], groups[at + 1], b"MKSTREAM"
    else:
        flat = list(content)
        if kind == "zset":
            flat = [part for at in range(0, len(flat), 2) for part in (flat[at + 1], flat[at])]
        verb = {"hash": b"HSET", "zset": b"ZADD", "set": b"SADD"}[kind]
        for at in range(0, len(flat), _SLICE):
            yield verb, key, *flat[at : at + _SLICE]
