"""Looking for byte strings in what a server holds, and in its files where they are on this machine."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from everthread.errors import UsageError
from everthread.stores.byte_scan import NEEDLE_BYTES_MIN, search
from everthread.stores.contract import Progress, Residues


class Remains:
    """What was found so far."""

    def __init__(self, needles: Sequence[bytes], progress: Progress | None) -> None:
        if any(len(needle) < NEEDLE_BYTES_MIN for needle in needles):
            raise UsageError(f"what is looked for must have at least {NEEDLE_BYTES_MIN} bytes")
        self._needles = list(set(needles))
        self._progress = progress
        self._looked: dict[str, int] = {}
        self._hits: dict[str, int] = {}
        self._unreached: list[str] = []

    def look_into(self, place: str, content: Any) -> None:
        """Values that a script gave."""
        for value in _values(content):
            self._looked[place] = self._looked.get(place, 0) + len(value)
            times = sum(value.count(needle) for needle in self._needles)
            if times:
                self._hits[place] = self._hits.get(place, 0) + times

    def look_at_files(self, host: str, paths: list[str] | None) -> None:
        """The files of a server; those of another machine can't be looked at."""
        if paths is None or not _is_here(host):
            self._unreached.append(f"the files of the server at {host}, and its memory")
            return
        try:
            found = search(paths, self._needles, self._progress)
        except OSError as error:
            self._unreached.append(f"the files of the server at {host} ({error})")
            return
        for place, size in found.looked:
            self._looked[place] = size
        for place, times in found.hits:
            self._hits[place] = times

    def found(self) -> Residues:
        return Residues(
            looked=tuple(self._looked.items()),
            hits=tuple(self._hits.items()),
            unreached=tuple(dict.fromkeys(self._unreached)),
        )


def _values(content: Any) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
    elif isinstance(content, list):
        for each in content:
            yield from _values(each)


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def server_files(config: Mapping[str, str]) -> list[str] | None:
    """The files that a server has told of, as far as they are there; ``None`` if its folder can't be read."""
    folder = config.get("dir", "")
    if not folder or not os.access(folder, os.R_OK | os.X_OK):
        return None
    names = [name for name in (config.get("dbfilename"), config.get("appendfilename")) if name]
    found = [path for name in names if os.path.isfile(path := os.path.join(folder, name))]
    appended = os.path.join(folder, config.get("appenddirname") or "appendonlydir")
    if os.path.isdir(appended):
        found += [os.path.join(appended, name) for name in sorted(os.listdir(appended))]
    return found
