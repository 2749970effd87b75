"""What a server promises to keep, from what it says about itself."""

from __future__ import annotations

import msgspec

#: What acknowledged writes survive: a power cut · the end of the server but for its last moment · the end of
#: the server's processes, but not of its machine · the server doesn't say.
FULL, SECOND, PROCESS, UNKNOWN = "full", "second", "process", "unknown"


class Durability(msgspec.Struct, frozen=True, kw_only=True):
    """How a server keeps what was acknowledged. Each is the setting's value, ``None`` if it isn't told."""

    fsync: str | None
    full_page_writes: str | None
    synchronous_commit: str | None
    standbys: str | None
    #: Whether commits of this store wait for the disk, whatever the server's default says.
    durable: bool = True

    @property
    def level(self) -> str:
        if "off" in (self.fsync, self.full_page_writes):
            return PROCESS
        if None in (self.fsync, self.full_page_writes, self.synchronous_commit):
            return UNKNOWN
        return FULL if self.durable else SECOND

    def __str__(self) -> str:
        said = {FULL: _FULL, SECOND: _SECOND, UNKNOWN: _UNKNOWN}.get(self.level)
        if said is None:
            said = _NO_SYNC if self.fsync == "off" else _TORN
        if self.durable and self.synchronous_commit == "off":
            said += "; the server's synchronous_commit = off is overruled by every commit"
        if self.standbys:
            said += f"; {self._standby}"
        return said

    @property
    def _standby(self) -> str:
        if not self.durable or self.synchronous_commit in ("local", "remote_write"):
            return (
                f"a failover may lose the newest writes: they don't wait until a synchronous standby "
                f"({self.standbys}) has them on disk"
            )
        return f"they are on disk of a synchronous standby too ({self.standbys})"

    @property
    def advice(self) -> str:
        """What to do so that nothing acknowledged is lost."""
        if self.level == UNKNOWN:
            return "ask whoever runs the server whether fsync and full_page_writes are on"
        wrong = [
            name
            for name, value in (("fsync", self.fsync), ("full_page_writes", self.full_page_writes))
            if value == "off"
        ]
        if not wrong:
            return ""
        told = "; ".join(f"ALTER SYSTEM SET {name} = on" for name in wrong)
        whole = ", unless its file system never writes half a page" if wrong == ["full_page_writes"] else ""
        return f"{told}; SELECT pg_reload_conf(){whole}"

    @property
    def ok(self) -> bool:
        return self.level in (FULL, SECOND)


_FULL = "acknowledged writes survive a power cut (fsync on, full_page_writes on)"
_SECOND = 'with durability="process" the end of the server may take the last second (synchronous_commit off)'
_NO_SYNC = (
    "acknowledged writes survive the end of the server's processes only: a power cut may lose them and "
    "damage the whole database (fsync off)"
)
_TORN = (
    "acknowledged writes survive the end of the server's processes only: a power cut may leave half-written "
    "pages that can't be mended (full_page_writes off)"
)
_UNKNOWN = "the server doesn't say how it keeps its data"
