"""What checking a whole store came to."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

#: Called now and then with the number of versions looked at so far and the thread at hand.
Progress = Callable[[int, str], None]


class Damage(msgspec.Struct, frozen=True):
    """One thing that isn't as it was written: in which thread, at which versions, what."""

    thread: str
    first: int
    last: int
    problem: str

    def __str__(self) -> str:
        where = f"version {self.first}" if self.first == self.last else f"versions {self.first}–{self.last}"
        return f"{self.thread!r}, {where}: {self.problem}"


class VerifyReport(msgspec.Struct, frozen=True):
    """What ``store.verify()`` found. True if all is well."""

    threads: int
    versions: int
    damage: tuple[Damage, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.damage

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        found = "no damage" if self.ok else f"{len(self.damage)} damaged places"
        return f"{self.threads} threads, {self.versions} versions: {found}"
