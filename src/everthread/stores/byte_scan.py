"""Looking for byte strings in files, however many strings there are.

Every stretch of 16 bytes holds, wherever it begins, eight bytes that start at a multiple of eight in the file
and at one of its own first eight. So the words at these eight places of every needle are looked for among the
aligned words of a file: one look-up for eight bytes, no matter how many needles. What is found so is
compared in full.
"""

from __future__ import annotations

import os
import sys
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from everthread.errors import UsageError
from everthread.stores.contract import Progress, Residues

NEEDLE_BYTES_MIN = 16
_WORD = 8
_BLOCK_BYTES = 1 << 20


def base64_forms(needle: bytes) -> Iterator[bytes]:
    """How a byte string looks inside the base64 text of a longer one, for each of the three places."""
    for shift in range(3):
        text = b2a_base64(bytes(shift) + needle, newline=False).rstrip(b"=")
        # The first and last characters also stand for bits of what is around it.
        first = -(-8 * shift // 6)
        yield text[first : (8 * (shift + len(needle))) // 6]


class Bytes(Protocol):
    """An open file."""

    def read(self, count: int, offset: int) -> bytes: ...

    def close(self) -> None: ...


class PlainFile:
    """A file that nobody in this process has locked by ``fcntl``: closing it would free such locks."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, count: int, offset: int) -> bytes:
        return os.pread(self._file, count, offset)

    def close(self) -> None:
        os.close(self._file)


def search(
    paths: Iterable[str],
    needles: Sequence[bytes],
    progress: Progress | None = None,
    opened: Callable[[str], Bytes] = PlainFile,
) -> Residues:
    """Count the needles in files. One that is gone when it is looked at counts as empty."""
    if any(len(needle) < NEEDLE_BYTES_MIN for needle in needles):
        raise UsageError(f"what is looked for must have at least {NEEDLE_BYTES_MIN} bytes")
    words: dict[int, list[tuple[int, bytes]]] = {}
    for needle in set(needles):
        for at in range(_WORD):
            word = int.from_bytes(needle[at : at + _WORD], sys.byteorder)
            words.setdefault(word, []).append((at, needle))
    sizes = {path: _size(path) for path in paths}
    total, before = max(sum(sizes.values()), 1), 0
    looked, hits = [], []
    for path, size in sizes.items():
        found = read = 0
        for counted in _occurrences(path, words, opened):
            found, read = counted
            if progress is not None:
                progress("looking for what is left", min((before + read) / total, 1.0))
        looked.append((path, read))
        if found:
            hits.append((path, found))
        before += size
    return Residues(looked=tuple(looked), hits=tuple(hits))


def _occurrences(
    path: str, words: dict[int, list[tuple[int, bytes]]], opened: Callable[[str], Bytes]
) -> Iterator[tuple[int, int]]:
    """How many needles were found so far, and how many bytes were read, block by block."""
    wanted = frozenset(words)
    found: set[tuple[int, bytes]] = set()
    offset = 0
    try:
        file = opened(path)
    except FileNotFoundError:
        return
    try:
        while block := _whole(file, offset):
            padded = block + bytes(-len(block) % _WORD)
            view = memoryview(padded).cast("Q")
            if not wanted.isdisjoint(view):
                for index, word in enumerate(view.tolist()):
                    for at, needle in words.get(word, ()):
                        start = offset + index * _WORD - at
                        if start >= 0 and file.read(len(needle), start) == needle:
                            found.add((start, needle))
            offset += len(block)
            yield len(found), offset
    finally:
        file.close()


def _whole(file: Bytes, offset: int) -> bytes:
    """A block: a whole one, unless the file ends, so that the next one begins at a multiple of a word."""
    block = file.read(_BLOCK_BYTES, offset)
    while len(block) % _WORD and (more := file.read(_BLOCK_BYTES - len(block), offset + len(block))):
        block += more
    return block


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
