"""What erasure works on: encrypted personal values, a file each, and the ledger of erased keys."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct

from everthread.errors import StateCorruptedError
from everthread.stores.contract import ErasedKey, SealedRow, erasure_after_restore, merged_erasure, split_keys
from everthread.stores.files.disk import (
    TEMPORARY,
    Disk,
    RecordFile,
    Replaced,
    encode_json,
    intact,
    read_file,
    with_sum,
    write_at,
)
from everthread.stores.files.json_form import base64_bytes, base64_text

FOLDER = "sealed"


class _Sealed(Struct):
    value: str
    keys: str
    data: str


_decode_sealed = msgspec.json.Decoder(_Sealed).decode


class SealedValues:
    """The folder of sealed values of a content."""

    def __init__(self, content: str, disk: Disk) -> None:
        self._folder = os.path.join(content, FOLDER)
        self._disk = disk

    def _path(self, value_id: bytes) -> str:
        name = value_id.hex()
        return os.path.join(self._folder, name[:2] or "x", f"{name}.json")

    def put(self, rows: Iterable[SealedRow]) -> None:
        """Write values, durably. One that is there already stays."""
        for value_id, keys, data in rows:
            path = self._path(value_id)
            # A row without bytes refers to a value that is stored already.
            if data and not self._has(path):
                self._disk.make_folder(os.path.dirname(path))
                self._disk.replace(path, _text(value_id, keys, data))

    def _has(self, path: str) -> bool:
        try:
            return self._read(path) is not None
        except StateCorruptedError:
            return False

    def get(self, value_ids: Iterable[bytes]) -> dict[bytes, bytes]:
        """The values that are there. Raises :class:`StateCorruptedError` for a damaged one."""
        found = {}
        for value_id in value_ids:
            path = self._path(value_id)
            sealed = self._read(path)
            if sealed is not None:
                found[value_id] = sealed
        return found

    def _read(self, path: str) -> bytes | None:
        row = self._row(path)
        return None if row is None else row[2]

    def _row(self, path: str) -> SealedRow | None:
        try:
            record = read_file(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            if not intact(record):
                raise ValueError(path)
            found = _decode_sealed(record)
            return bytes.fromhex(found.value), base64_bytes(found.keys), base64_bytes(found.data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise StateCorruptedError(f"the sealed value {path} is damaged", where=path) from error

    # ── by key: every file is looked at, because nothing but the files themselves can be relied on ───

    def under(self, key_ids: Collection[bytes] | None, after: bytes, limit: int) -> list[SealedRow]:
        """Those that need one of these keys (``None``: all), by value id, from the first one > ``after``."""
        found: list[SealedRow] = []
        for path in self._paths(after):
            if len(found) >= limit:
                break
            row = self._known(path)
            if row is not None and (key_ids is None or not set(key_ids).isdisjoint(split_keys(row[1]))):
                found.append(row)
        return found

    def _known(self, path: str) -> SealedRow | None:
        """A value, or ``None`` if it is damaged: then its keys are unknown, and :meth:`check` names it."""
        with suppress(StateCorruptedError):
            return self._row(path)
        return None

    def drop(self, key_ids: Collection[bytes]) -> int:
        """Overwrite and remove them; how many there were. The caller holds the lock."""
        dropped = 0
        folders = set()
        for path in self._paths(b""):
            row = self._known(path)
            if row is not None and not set(key_ids).isdisjoint(split_keys(row[1])):
                # Rename it first: an interrupt must not leave half a value under its name.
                left = os.path.join(os.path.dirname(path), TEMPORARY + os.path.basename(path))
                os.rename(path, left)
                overwrite_and_remove(left)
                folders.add(os.path.dirname(path))
                dropped += 1
        for folder in folders:
            self._disk.sync_folder(folder)
        return dropped

    def _paths(self, after: bytes) -> Iterator[str]:
        """All files, in the order of their values, behind that of ``after``."""
        beyond = self._path(after) if after else ""
        for folder, inside, names in os.walk(self._folder):
            inside.sort()
            for name in sorted(names):
                path = os.path.join(folder, name)
                if name.endswith(".json") and not name.startswith(TEMPORARY) and path > beyond:
                    yield path

    def check(self) -> Iterator[str]:
        """What is wrong with the files."""
        for folder, _, names in os.walk(self._folder):
            for name in sorted(names):
                # Skip files that a kill left half written.
                if name.endswith(".json") and not name.startswith(TEMPORARY):
                    try:
                        self._read(os.path.join(folder, name))
                    except StateCorruptedError as error:
                        yield str(error)


def overwrite_and_remove(path: str) -> None:
    """Write zeros over a file, make sure that they reach the disk, and remove it."""
    with suppress(FileNotFoundError):
        file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            write_at(file, bytes(os.fstat(file).st_size), 0)
            os.fsync(file)
        finally:
            os.close(file)
        os.unlink(path)


def _text(value_id: bytes, keys: bytes, data: bytes) -> bytes:
    return with_sum(encode_json(_Sealed(value_id.hex(), base64_text(keys), base64_text(data))))


# ── the erasure ledger ─────────────────────────────────────────────────────────────────────────────
# ``erased.jsonl``: {"keys":[{"key":…,"phase":1,"erasure":…,"noted_us":…,"note":…}],"sum":…}
# A record holds the keys that were noted together. Records are only added; the last one about a key counts.


LEDGER = "erased.jsonl"


class _Key(Struct, omit_defaults=True):
    key: str
    phase: int
    erasure: str = ""
    noted_us: int = 0
    note: str = ""


class _Record(Struct):
    keys: list[_Key]


_decode_entry = msgspec.json.Decoder(_Record).decode


class ErasureLedger:
    """The file, read as far as it goes. Not for two threads at once."""

    def __init__(self, content: str, disk: Disk) -> None:
        self.path = os.path.join(content, LEDGER)
        self._disk = disk
        self._clear()

    def _clear(self) -> None:
        self._file = RecordFile(self.path, self._disk)
        self._entries: dict[bytes, ErasedKey] = {}
        self._damaged: list[int] = []

    def read(self) -> dict[bytes, ErasedKey]:
        """The entries by key id. Raises :class:`StateCorruptedError` if any may be missing."""
        self._refresh()
        if self._damaged:
            raise self._file.damage(self._damaged[0])
        return self._entries

    def _refresh(self) -> None:
        for _ in range(3):
            try:
                while found := self._file.grow():
                    for offset, record, good in found:
                        self._take(offset, record if good else b"")
                return
            except (Replaced, FileNotFoundError) as error:
                self.close()
                if isinstance(error, FileNotFoundError) and not self._entries:
                    # Nobody was erased here yet.
                    return
                self._clear()

    def _take(self, offset: int, record: bytes) -> None:
        try:
            for key in _decode_entry(record).keys:
                entry = ErasedKey(
                    key_id=base64_bytes(key.key),
                    phase=key.phase,
                    erasure=base64_bytes(key.erasure),
                    noted_us=key.noted_us,
                    note=base64_bytes(key.note),
                )
                self._entries[entry.key_id] = entry
        except (msgspec.MsgspecError, ValueError, StateCorruptedError):
            self._damaged.append(offset)

    def sound(self) -> list[ErasedKey]:
        """The entries that can be read, whatever is wrong with others."""
        self._refresh()
        return list(self._entries.values())

    def note(self, keys: Sequence[ErasedKey]) -> None:
        """Merge entries in, durably. The caller holds the lock."""
        known = self.read()
        self._add([merged_erasure(known.get(entry.key_id), entry) for entry in keys])

    def carry_over(self, present: ErasureLedger) -> list[bytes]:
        """Merge in the ledger of the content that this one replaces; all keys that it then holds."""
        mine = self.read()
        self._add([erasure_after_restore(entry, mine.get(entry.key_id)) for entry in present.read().values()])
        return list(self.read())

    def _add(self, entries: list[ErasedKey]) -> None:
        if not entries:
            return
        record = with_sum(
            encode_json(_Record([_key(entry) for entry in entries])), durable=self._disk.durable
        )
        if os.path.exists(self.path):
            self._refresh()
            self._file.prepare()
            self._file.append(record)
        else:
            self._disk.write_new(self.path, record)
            self._disk.sync_folder(os.path.dirname(self.path))
        self._entries.update((entry.key_id, entry) for entry in entries)

    def check(self) -> Iterator[str]:
        """What is wrong with the file."""
        self._refresh()
        for offset in self._damaged:
            yield str(self._file.damage(offset))

    def close(self) -> None:
        self._file.close()


def _key(entry: ErasedKey) -> _Key:
    return _Key(
        base64_text(entry.key_id),
        entry.phase,
        base64_text(entry.erasure),
        entry.noted_us,
        base64_text(entry.note),
    )
