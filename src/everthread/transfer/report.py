"""``ExportReport`` and ``ImportReport``: what an export, an import or a copy did."""

from __future__ import annotations

import msgspec

from everthread.arguments import counted
from everthread.maintenance.key_needs import BRING, KeyNeeds

#: What stands beside threads has no name that anybody knows: it is told of in words, which begin like this.
PERSON = "the user data of a person"
JOURNAL = "the journal of"
INBOX = "the inbox of"
FILES = "the files of"


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``store.export()`` wrote: ``bytes`` is the size of the archive, ``keys`` how many keys of persons
    are in it, ``skipped`` the threads that were deleted while it was under way."""

    path: str = ""
    bytes: int = 0
    threads: int = 0
    versions: int = 0
    streams: int = 0
    events: int = 0
    sealed: int = 0
    keys: int = 0
    skipped: tuple[str, ...] = ()
    #: Which keys its sealed values need. They are in it only if it was exported with keys.
    needs: KeyNeeds = KeyNeeds()

    def __str__(self) -> str:
        along = self.needs.to_take_along if self.keys < self.needs.keys else ""
        return f"{told(self)}, {self.bytes:,} bytes" + (f"; {along}" if along else "")


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``store.import_from()`` or ``store.copy_to()`` brought.

    ``threads``, ``versions``, ``events`` count what is new here; ``present`` are threads that were here
    already, with all of their versions or more. ``renamed`` maps names that were taken to those that were
    given instead; ``skipped`` are names that were left out, with the reason; user data of persons, which has
    none, is in it by the id of its key. ``keys`` were taken into the keyring; what needs one of the
    ``keys_missing`` can't be opened with it.
    """

    threads: int = 0
    versions: int = 0
    streams: int = 0
    events: int = 0
    sealed: int = 0
    keys: int = 0
    keys_missing: int = 0
    present: int = 0
    renamed: dict[str, str] = {}
    skipped: dict[str, str] = {}

    def __str__(self) -> str:
        parts = [told(self)]
        if self.present:
            parts.append(f"{counted(self.present, 'thread')} here already")
        if self.keys_missing:
            verb, whose = ("isn't", "it") if self.keys_missing == 1 else ("aren't", "they")
            parts.append(
                f"{counted(self.keys_missing, 'key')} of personal values {verb} in the keyring here: what "
                f"{whose} sealed can't be opened ({BRING})"
            )
        parts.extend(f"{old!r} is called {new!r} here" for old, new in self.renamed.items())
        parts.extend(f"{shown(name)} was left out: {why}" for name, why in self.skipped.items())
        return "; ".join(parts)


def shown(name: str) -> str:
    """What was left out, as it stands in a sentence: names in quotes."""
    return name if name.startswith((f"{PERSON} (", f"{JOURNAL} ", f"{INBOX} ", f"{FILES} ")) else repr(name)


def told(report: ExportReport | ImportReport) -> str:
    """The counts that any of them has."""
    parts = [counted(report.threads, "thread"), counted(report.versions, "version")]
    counts = ((report.events, "event"), (report.sealed, "sealed value"), (report.keys, "key"))
    for number, what in counts:
        if number:
            parts.append(counted(number, what))
    return ", ".join(parts)
