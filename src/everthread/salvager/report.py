"""``SalvageReport``: what could be saved of a damaged store, and what could not."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from everthread.arguments import counted

#: Called now and then with the number of rows dealt with so far, and of how many there are.
Progress = Callable[[int, int], None]
#: Threads that are named in a summary.
_NAMED_MAX = 5


class SalvagedThread(msgspec.Struct, frozen=True):
    """One thread of the damaged store.

    ``kept`` is how many of its versions are in the new store as they were, with their ids. ``remade`` is how
    many later ones are there with the same content under new ids, in the thread ``remade_as``; each says in
    its metadata which version it stands for (``salvaged_from``). ``lost`` are (first, last) of the versions
    that are in neither. ``items_lost`` counts the items of logs in whose place a :class:`Corrupt` stands in
    versions that were made anew. ``open_ended``: parts of the store are unreadable, so that versions after
    the newest one that was found may be lost without a trace. ``beside`` is "journal" for what sessions keep
    beside the thread ``name``. Where nothing tells the state after a hole, the later changes are made to
    the state before it: so many versions are ``incomplete``, and each says in its metadata which versions it
    lacks (``salvaged_without``).
    """

    name: str
    namespace: str = ""
    kept: int = 0
    remade: int = 0
    remade_as: str | None = None
    lost: tuple[tuple[int, int], ...] = ()
    items_lost: int = 0
    incomplete: int = 0
    reasons: tuple[str, ...] = ()
    open_ended: bool = False
    beside: str = ""

    @property
    def whole(self) -> bool:
        """Whether nothing of it is missing, and nothing had to be made anew."""
        return not self.lost and not self.remade

    def __str__(self) -> str:
        parts = [f"{counted(self.kept, 'version')} kept"]
        if self.remade_as is not None:
            parts.append(f"{self.remade} made anew" + ("" if self.beside else f" in {self.remade_as!r}"))
        if self.incomplete:
            parts.append(f"{self.incomplete} of these incomplete")
        if self.items_lost:
            parts.append(f"{counted(self.items_lost, 'item')} lost")
        spans = [f"{first}" if first == last else f"{first}–{last}" for first, last in self.lost]
        if spans and not self.kept and not self.remade:
            parts = ["nothing of it is left"]
        elif spans:
            parts.append(f"lost: {', '.join(spans)}")
        if self.open_ended and parts[0] != "nothing of it is left":
            parts.append("newer ones may be lost")
        called = f"the {self.beside} of {self.name!r}" if self.beside else repr(self.name)
        return f"{called}: {'; '.join(parts)}"


class SalvageReport(msgspec.Struct, frozen=True):
    """What ``everthread.salvage()`` found and brought over. True if nothing was lost."""

    threads: tuple[SalvagedThread, ...] = ()
    sealed: int = 0
    cells: int = 0
    events: int = 0
    events_lost: int = 0
    #: What couldn't be read at all, in words.
    problems: tuple[str, ...] = ()
    #: Threads whose journal may have lost records: what it doesn't know counts as in doubt there.
    doubtful: tuple[str, ...] = ()

    @property
    def kept(self) -> int:
        return sum(thread.kept for thread in self.threads)

    @property
    def remade(self) -> int:
        return sum(thread.remade for thread in self.threads)

    @property
    def lost(self) -> int:
        """How many versions are in neither form in the new store, as far as that is known."""
        return sum(last - first + 1 for thread in self.threads for first, last in thread.lost)

    @property
    def ok(self) -> bool:
        return not self.problems and not self.events_lost and all(thread.whole for thread in self.threads)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        beside = sum(1 for thread in self.threads if thread.beside)
        journals = f" and {counted(beside, 'journal')}" if beside else ""
        # What stood in an unreadable place nobody can count.
        least = "at least " if any(thread.open_ended for thread in self.threads) else ""
        doubtful = counted(len(self.doubtful), "thread")
        threads = counted(len(self.threads) - beside, "thread")
        return (
            f"{threads}{journals}: {counted(self.kept, 'version')} kept, "
            f"{self.remade:,} made anew, {least}{self.lost:,} lost; {counted(self.events, 'event')}, "
            f"{self.events_lost:,} lost; {counted(len(self.problems), 'unreadable place')}"
            + (f"; effects in doubt in {doubtful}: {_named(self.doubtful)}" if self.doubtful else "")
        )


def _named(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED_MAX:,} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(map(repr, names[:_NAMED_MAX])) + more
