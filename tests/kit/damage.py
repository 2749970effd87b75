"""Damage to the files of a store, one small thing at a time, every one of which can be done again.

    for wound in flips(files, seed=1):
        write(wound.apply(files))

``files`` maps names to contents. See :mod:`tests.kit.verdict` for what to make of a damaged store.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

__all__ = ["Files", "Wound", "cuts", "flips", "read_files", "swaps", "write_files"]

Files = dict[str, bytes]

_STATELESS = ("lock",)
_STATELESS_ENDINGS = ("-shm", "-lock")


class Wound(msgspec.Struct, frozen=True):
    """One thing that is wrong with one file.

    ``flip``: bit ``other`` of byte ``at`` is the other one. ``cut``: the file ends at ``at``. ``swap``: the
    ``size`` bytes at ``at`` and those at ``other`` have changed places.
    """

    file: str
    kind: Literal["flip", "cut", "swap"]
    at: int
    other: int = 0
    size: int = 0

    def apply(self, files: Mapping[str, bytes]) -> Files:
        """The files with this wound; those given stay as they are."""
        data = bytearray(files[self.file])
        if self.kind == "flip":
            data[self.at] ^= 1 << self.other
        elif self.kind == "cut":
            del data[self.at :]
        else:
            first, second = slice(self.at, self.at + self.size), slice(self.other, self.other + self.size)
            data[first], data[second] = data[second], data[first]
        return {**files, self.file: bytes(data)}

    def __str__(self) -> str:
        if self.kind == "flip":
            return f"{self.file}: bit {self.other} of byte {self.at:,} flipped"
        if self.kind == "cut":
            return f"{self.file}: cut at byte {self.at:,}"
        return f"{self.file}: {self.size} bytes at {self.at:,} and {self.other:,} swapped"


def flips(files: Mapping[str, bytes], *, seed: int = 0) -> Iterator[Wound]:
    """One bit in every byte of every file; which one follows from the seed."""
    for name in sorted(files):
        rng = random.Random(f"{seed} {name}")
        for at in range(len(files[name])):
            yield Wound(name, "flip", at, rng.randrange(8))


def cuts(files: Mapping[str, bytes], *, step: int = 512) -> Iterator[Wound]:
    """Every file, cut at every multiple of ``step`` bytes, also to nothing."""
    for name in sorted(files):
        for at in range(0, len(files[name]), step):
            yield Wound(name, "cut", at)


def swaps(files: Mapping[str, bytes], *, size: int = 512, seed: int = 0) -> Iterator[Wound]:
    """Every block of ``size`` bytes swapped with the next one, and with one that follows from the seed."""
    for name in sorted(files):
        data = files[name]
        blocks = range(0, len(data) - size + 1, size)
        rng = random.Random(f"{seed} {name}")
        for at in blocks:
            for other in {at + size, rng.choice(blocks)}:
                inside = other in blocks and other != at
                if inside and data[at : at + size] != data[other : other + size]:
                    yield Wound(name, "swap", at, other, size)


def read_files(folder: Path) -> Files:
    """What is below ``folder``, by relative name, except for what holds no state: locks, shared memory, and
    notes about the files there, which don't count for copies."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in _STATELESS and not path.name.endswith(_STATELESS_ENDINGS)
    }


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make ``folder``, which must be new or empty, hold these files."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_bytes(data)
