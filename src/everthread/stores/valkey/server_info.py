"""What a server says about itself: how durable its data is, and where its files are."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from everthread.errors import UsageError
from everthread.stores.byte_scan import NEEDLE_BYTES_MIN, search
from everthread.stores.contract import Progress, Residues

#: What acknowledged writes survive: a power cut · all but the last second of one · the end of the server's
#: process · whatever came before the last snapshot · nothing · the server doesn't say.
FULL, SECOND, PROCESS, SNAPSHOT, NOTHING, UNKNOWN = (
    "full",
    "second",
    "process",
    "snapshot",
    "nothing",
    "unknown",
)

_SAYS = {
    FULL: "acknowledged writes survive a power cut (appendonly yes, appendfsync always)",
    SECOND: "a power cut may lose the last second (appendonly yes, appendfsync everysec)",
    PROCESS: "a power cut may lose what the system hasn't written yet (appendonly yes, appendfsync no)",
    SNAPSHOT: "whatever came after the last snapshot is lost when the server ends (appendonly no)",
    NOTHING: "everything is lost when the server ends (appendonly no, no snapshots)",
    UNKNOWN: "the server doesn't say how it keeps its data (CONFIG GET is forbidden, INFO tells too little)",
}
ADVICE = "CONFIG SET appendonly yes, CONFIG SET appendfsync always, then CONFIG REWRITE"


class Durability(msgspec.Struct, frozen=True, kw_only=True):
    """How a server keeps what was acknowledged. ``evicts``: it throws data away when its memory is full."""

    level: str
    evicts: str = ""
    replicas: int = 0

    def __str__(self) -> str:
        evicts = (
            f"; when memory is full it throws keys away ({self.evicts}): set maxmemory-policy noeviction"
            if self.evicts
            else ""
        )
        replicas = (
            f"; a failover to one of its {self.replicas} replicas may lose the newest writes"
            if self.replicas
            else ""
        )
        return _SAYS[self.level] + evicts + replicas

    @property
    def advice(self) -> str:
        """What to do so that nothing acknowledged is lost."""
        if self.level == UNKNOWN:
            return "ask whoever runs the server whether it has appendonly yes and appendfsync always"
        return ADVICE if self.level != FULL else "" if self.ok else "CONFIG SET maxmemory-policy noeviction"

    @property
    def ok(self) -> bool:
        return self.level == FULL and not self.evicts


def read_durability(config: Mapping[str, str] | None, info: Mapping[str, str]) -> Durability:
    """From CONFIG GET, where that is allowed, and INFO."""
    policy = (config or info).get("maxmemory-policy", info.get("maxmemory_policy", "noeviction"))
    limited = info.get("maxmemory", "0") != "0"
    evicts = policy if policy != "noeviction" and limited else ""
    slaves = info.get("connected_slaves", "0")
    replicas = int(slaves) if slaves.isdigit() else 0
    level = UNKNOWN
    if config is not None and "appendonly" in config:
        if config["appendonly"] == "yes":
            level = {"always": FULL, "everysec": SECOND}.get(config.get("appendfsync", ""), PROCESS)
        else:
            level = SNAPSHOT if config.get("save") else NOTHING
    elif "aof_enabled" in info:
        # How often it is synced isn't told.
        level = UNKNOWN if info["aof_enabled"] == "1" else SNAPSHOT
    return Durability(level=level, evicts=evicts, replicas=replicas)


def worst(every: list[Durability]) -> Durability:
    """What a cluster promises: what the weakest of its servers does."""
    order = (NOTHING, SNAPSHOT, UNKNOWN, PROCESS, SECOND, FULL)
    level = min((each.level for each in every), key=order.index)
    evicts = next((each.evicts for each in every if each.evicts), "")
    return Durability(level=level, evicts=evicts, replicas=sum(each.replicas for each in every))


def read_info(text: bytes) -> dict[str, str]:
    """The lines of INFO."""
    pairs = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in pairs if colon}


# Looking for byte strings in what a server holds, and in its files where they are on this machine.


class ResidueSearch:
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
