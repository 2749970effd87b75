"""What ``store.gc()`` and ``store.cool()`` answer."""

from __future__ import annotations

import msgspec

from everthread.arguments import counted


class GcReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed, or with ``dry_run`` what would be.

    ``expired`` are the names of threads whose time was over (the first thousand of ``expired_count``).
    ``subjects`` counts persons, and single values of persons, that were erased because their time was over.
    ``versions`` were pruned, in ``threads``; ``bytes`` is how much less they take up now, below 0 if what
    stays of very small ones is more. ``companions`` belonged to threads that are gone. ``problems`` say what
    was left alone, and why: all else was done.
    """

    dry_run: bool = False
    expired: tuple[str, ...] = ()
    expired_count: int = 0
    subjects: int = 0
    companions: int = 0
    threads: int = 0
    versions: int = 0
    bytes: int = 0
    #: Of the whole store on disk, before and after, without room that is kept ready; 0 if it has no files.
    size_before: int = 0
    size_after: int = 0
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [
            counted(self.expired_count, "expired thread"),
            f"{counted(self.versions, 'version')} of {counted(self.threads, 'thread')}",
        ]
        if self.subjects:
            whose = "person or value of one whose time was over"
            parts.append(counted(self.subjects, whose, "persons or values of them whose time was over"))
        if self.companions:
            parts.append(counted(self.companions, "orphan"))
        text = ", ".join(parts)
        if not self.dry_run:
            # What stands for the versions may take more room than a few short ones did.
            freed = f"{self.bytes:,} bytes freed" if self.bytes >= 0 else f"it grew by {-self.bytes:,} bytes"
            text += f"; {freed}, {self.size_before:,} → {self.size_after:,} bytes on disk"
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
