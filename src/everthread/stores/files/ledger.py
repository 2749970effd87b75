"""The erasure ledger: ``erased.jsonl``.

    {"keys":[{"key":…,"phase":1,"erasure":…,"noted_us":…,"note":…}],"sum":…}

A line holds what was noted at once. Lines are only added; what was noted last of a key counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from everthread.errors import StateCorruptedError
from everthread.stores.contract import ErasedKey, erasure_after_restore, merged_erasure
from everthread.stores.files.disk import Disk
from everthread.stores.files.escaping import base64_bytes, base64_text
from everthread.stores.files.jsonl import encode_json, stamp
from everthread.stores.files.linefile import LineFile, Replaced

LEDGER = "erased.jsonl"


class _Key(Struct, omit_defaults=True):
    key: str
    phase: int
    erasure: str = ""
    noted_us: int = 0
    note: str = ""


class _Line(Struct):
    keys: list[_Key]


_decode = msgspec.json.Decoder(_Line).decode


class Ledger:
    """The file, read as far as it goes. Not for two threads at once."""

    def __init__(self, content: str, disk: Disk) -> None:
        self.path = os.path.join(content, LEDGER)
        self._disk = disk
        self._clear()

    def _clear(self) -> None:
        self._file = LineFile(self.path, self._disk)
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
                    for offset, line, good in found:
                        self._take(offset, line if good else b"")
                return
            except (Replaced, FileNotFoundError) as error:
                self.close()
                if isinstance(error, FileNotFoundError) and not self._entries:
                    # Nobody was erased here yet.
                    return
                self._clear()

    def _take(self, offset: int, line: bytes) -> None:
        try:
            for key in _decode(line).keys:
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
        """Merge entries in, durably. The caller has the turn."""
        known = self.read()
        self._add([merged_erasure(known.get(entry.key_id), entry) for entry in keys])

    def carry_over(self, present: Ledger) -> list[bytes]:
        """Merge in that of the content which this one is about to replace; all keys that it then holds."""
        mine = self.read()
        self._add([erasure_after_restore(entry, mine.get(entry.key_id)) for entry in present.read().values()])
        return list(self.read())

    def _add(self, entries: list[ErasedKey]) -> None:
        if not entries:
            return
        line = stamp(encode_json(_Line([_key(entry) for entry in entries])), durable=self._disk.durable)
        if os.path.exists(self.path):
            self._refresh()
            self._file.prepare()
            self._file.append(line)
        else:
            self._disk.write_new(self.path, line)
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
