"""What gc, cool, verify and restore report."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Literal

import msgspec

from everthread.arguments import counted
from everthread.maintenance.key_needs import KeyNeeds
from everthread.stores.contract import Line
from everthread.threads.reports import version_span
from everthread.versions import Pin

#: The kind of what ``store.threads()`` lists; the other kinds are counted apart from it.
THREAD = "thread"
EXPIRED, DELETED = "expired thread", "deleted thread"
_PLURALS = {
    "inbox": "inboxes",
    "files": "file histories",
    "users": "users",
    "redactions": "redaction records",
}
_SINGULARS = {"files": "file history", "users": "user", "redactions": "redaction record"}


def kind_of(line: Line, space: str, *, is_expired: bool) -> str:
    """Return what a branch of the namespace ``space`` is: a thread, or the kind of another record."""
    if line.space != space:
        return line.space[len(space) + 1 :]
    if line.deleted:
        return DELETED
    return EXPIRED if is_expired else THREAD


def counted_kinds(threads: int, others: Mapping[str, int]) -> str:
    """Return the number of threads and of each other kind: ``3 threads, 2 journals and 1 inbox``."""
    parts = [counted(threads, THREAD)]
    for kind, number in others.items():
        if number:
            parts.append(counted(number, _SINGULARS.get(kind, kind), _PLURALS.get(kind, "")))
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else parts[0]


class GcReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed, or with ``dry_run`` what would be.

    ``expired`` are the names of threads whose time was over (the first thousand of ``expired_count``).
    ``subjects`` counts persons, and single values of persons, that were erased because their time was over.
    ``versions`` were pruned, in ``threads`` that ``store.threads()`` lists and in ``others``, counted by kind
    (``"journal"``, ``"inbox"``, ``"files"``, ``"deleted thread"`` …); ``bytes`` is how much less they take
    up now, below 0 if what stays of very small ones is more. ``events`` were trimmed as the retention of
    their streams says. ``companions`` belonged to threads that are gone. ``pins`` are the versions that stay
    because they are pinned.
    ``problems`` say what was left alone, and why: all else was done.
    """

    dry_run: bool = False
    expired: tuple[str, ...] = ()
    expired_count: int = 0
    subjects: int = 0
    companions: int = 0
    threads: int = 0
    others: Mapping[str, int] = {}
    versions: int = 0
    events: int = 0
    bytes: int = 0
    #: Of the whole store on disk, before and after, without room that is kept ready; 0 if it has no files.
    size_before: int = 0
    size_after: int = 0
    pins: tuple[Pin, ...] = ()
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [
            counted(self.expired_count, "expired thread"),
            f"{counted(self.versions, 'version')} of {counted_kinds(self.threads, self.others)}",
        ]
        if self.subjects:
            whose = "person or value of one whose time was over"
            parts.append(counted(self.subjects, whose, "persons or values of them whose time was over"))
        if self.companions:
            parts.append(counted(self.companions, "orphan"))
        if self.events:
            parts.append(counted(self.events, "event"))
        text = ", ".join(parts)
        if not self.dry_run:
            # What stands for the versions may take more room than a few short ones did.
            freed = f"{self.bytes:,} bytes freed" if self.bytes >= 0 else f"it grew by {-self.bytes:,} bytes"
            text += f"; {freed}, {self.size_before:,} → {self.size_after:,} bytes on disk"
        if self.pins:
            text += f"; {counted(len(self.pins), 'pinned version')} kept"
        return text + "".join(f"; {problem}" for problem in self.problems)


class CoolReport(msgspec.Struct, frozen=True, kw_only=True):
    """What went to the archive: ``versions`` of ``threads`` (companions of threads count too), in parcels of
    ``bytes``; and how many parcels that nobody needs any more were removed (``swept``). ``problems`` say what
    was left where it is, and why."""

    threads: int = 0
    versions: int = 0
    bytes: int = 0
    swept: int = 0
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = (
            f"{counted(self.versions, 'version')} of {counted(self.threads, 'thread')}, {self.bytes:,} bytes"
        )
        if self.swept:
            text += f"; {counted(self.swept, 'parcel')} removed"
        return text + "".join(f"; {problem}" for problem in self.problems)


#: What is damaged: the files or tables of the store, the entry of a thread, a version (or a pack of them),
#: items of a log, something derived that only makes reading faster, a signed head that history doesn't fit.
What = Literal["store", "thread", "version", "items", "derived", "anchor"]

_COMPANION = "companion (a journal, a user's data or the record of redactions)"
_COMPANIONS = "companions (journals, users' data, the record of redactions)"


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """What restoring a backup came to.

    ``doubtful`` are the threads whose ledger of effects may lack some, in the order of their names, those
    included that the backup doesn't have: a key that the ledger doesn't know is verified, or in doubt, until
    somebody accepts the loss. ``since`` is the time of the backup if nothing here knows which effects were
    called after it; then threads that are created later are doubtful, too. ``erased`` is the
    number of erasures that the backup knew nothing of, or not the end: what they were about is erased again.
    """

    doubtful: tuple[str, ...] = ()
    since: datetime.datetime | None = None
    erased: int = 0
    #: Which keys the restored values need, and how many of the values can't be opened here.
    needs: KeyNeeds = KeyNeeds()


class BackupReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where ``store.backup()`` has put the copy, and which keys its sealed values need: none is in it."""

    path: str = ""
    needs: KeyNeeds = KeyNeeds()

    def __str__(self) -> str:
        along = self.needs.to_take_along
        return f"{self.path}; {along}" if along else self.path


class Affected(msgspec.Struct, frozen=True):
    """Versions of a thread that can't be read, or not in full, because of some damage."""

    thread: str
    first: int
    last: int
    #: "journal" for what a session keeps beside the thread, "inbox" for messages on their way to it.
    beside: str = ""

    def __str__(self) -> str:
        return f"{_called(self.thread, self.beside)} {version_span(self.first, self.last)}"


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
    #: "journal" for what a session keeps beside the thread, "inbox" for messages on their way to it.
    beside: str = ""

    @property
    def derived(self) -> bool:
        return self.what == "derived"

    def __str__(self) -> str:
        where = _called(self.thread, self.beside) + (
            f", {version_span(self.first, self.last)}" if self.last else ""
        )
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
    #: Which keys sealed values need, and how many values can't be opened here. That is no damage.
    needs: KeyNeeds = KeyNeeds()

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
        closed = f"; {self.needs}" if self.needs.unopened else ""
        return f"{counted(self.threads, 'thread')}{beside}, {versions}{redacted}: {found}{closed}{unfinished}"


def _called(thread: str, beside: str) -> str:
    return f"the {beside} of {thread!r}" if beside else repr(thread)
