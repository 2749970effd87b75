"""What a server promises to keep, from what it says about itself."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

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


class Keeping(msgspec.Struct, frozen=True, kw_only=True):
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


def read_keeping(config: Mapping[str, str] | None, info: Mapping[str, str]) -> Keeping:
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
    return Keeping(level=level, evicts=evicts, replicas=replicas)


def worst(every: list[Keeping]) -> Keeping:
    """What a cluster promises: what the weakest of its servers does."""
    order = (NOTHING, SNAPSHOT, UNKNOWN, PROCESS, SECOND, FULL)
    level = min((each.level for each in every), key=order.index)
    evicts = next((each.evicts for each in every if each.evicts), "")
    return Keeping(level=level, evicts=evicts, replicas=sum(each.replicas for each in every))


def read_info(text: bytes) -> dict[str, str]:
    """The lines of INFO."""
    pairs = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in pairs if colon}
