"""What healing came to: checking a whole store, and standing on an older version than the newest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from everthread.arguments import counted
from everthread.versions import Version

#: Called now and then with the number of versions looked at so far, and of how many there are.
Progress = Callable[[int, int], None]

#: What is damaged: the files or tables of the store, the entry of a thread, a version (or a pack of them),
#: items of a log, something derived that only makes reading faster, a signed head that history doesn't fit.
What = Literal["store", "thread", "version", "items", "derived", "anchor"]

_COMPANION = "companion (a journal, a user's data or the record of redactions)"
_COMPANIONS = "companions (journals, users' data, the record of redactions)"


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """What restoring a backup came to.

    ``doubtful`` are the threads whose ledger of effects knew more before, in the order of their names: a key
    that it doesn't know any more is verified, or in doubt, until somebody accepts the loss. ``erased`` is the
    number of erasures that the backup knew nothing of, or not the end: what they were about is erased again.
    """

    doubtful: tuple[str, ...] = ()
    erased: int = 0


class Affected(msgspec.Struct, frozen=True):
    """Versions of a thread that can't be read, or not in full, because of some damage."""

    thread: str
    first: int
    last: int
    #: "journal" for what a session keeps beside the thread.
    beside: str = ""

    def __str__(self) -> str:
        return f"{_called(self.thread, self.beside)} {_span(self.first, self.last)}"


class Damage(msgspec.Struct, frozen=True):
    """One thing that isn't as it was written: in which thread, at which versions, what.

    ``affected`` are the versions, of this thread and of others, that need what is damaged. Nothing is lost
    where it is ``derived``: the records say the same, and reading goes by them.
    """

    thread: str
    first: int
    last: int
    problem: str
    what: What = "version"
    affected: tuple[Affected, ...] = ()
    #: "journal" for what a session keeps beside the thread.
    beside: str = ""

    @property
    def derived(self) -> bool:
        return self.what == "derived"

    def __str__(self) -> str:
        where = _called(self.thread, self.beside) + (f", {_span(self.first, self.last)}" if self.last else "")
        others = f"; touches {', '.join(map(str, self.affected))}" if self.affected else ""
        return f"{where}: {self.problem}{others}"


class VerifyReport(msgspec.Struct, frozen=True):
    """What ``store.verify()`` found. True if all is well.

    ``companions`` are what the library keeps beside threads: the journals of sessions, data of users.
    """

    threads: int
    versions: int
    damage: tuple[Damage, ...] = ()
    #: Of how many versions the content was redacted; the chain holds through them.
    redacted: int = 0
    companions: int = 0
    #: Imports and copies that were cut short, in words, with what to do. They are no damage.
    unfinished: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.damage

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        found = "no damage" if self.ok else counted(len(self.damage), "damaged place")
        beside = f" and {counted(self.companions, _COMPANION, _COMPANIONS)}" if self.companions else ""
        redacted = f", {self.redacted:,} of them redacted" if self.redacted else ""
        versions = counted(self.versions, "version")
        unfinished = "".join(f"; {each}" for each in self.unfinished)
        return f"{counted(self.threads, 'thread')}{beside}, {versions}{redacted}: {found}{unfinished}"


class Recovered(msgspec.Struct, frozen=True):
    """What ``thread.recovered`` says: the newest versions can't be read, the handle stands on ``version``.

    ``first`` to ``last`` are the versions after it that can't be rebuilt; ``reasons`` say why.
    """

    version: Version
    first: int
    last: int
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        lost = _span(self.first, self.last)
        return f"stands on {self.version}, because {lost} can't be read: {'; '.join(self.reasons)}"


def _called(thread: str, beside: str) -> str:
    return f"the {beside} of {thread!r}" if beside else repr(thread)


def _span(first: int, last: int) -> str:
    return f"version {first}" if first == last else f"versions {first}–{last}"
