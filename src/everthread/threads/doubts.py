"""Doubts: periods of which no ledger of the store knows which effects happened.

A backup that is restored where the old store is lost knows nothing of the effects that were called after it
was made. Neither does any other copy that an operator brings back. A doubt is recorded once for the whole
store, in a cell that every run reads when it begins. The run then writes the doubt into the journal of its
thread. This also reaches threads that the backup doesn't have, and threads that are created later under a
name that may have been used in that period.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

#: In the document of a journal: the doubts that it has taken over into its own mark, each with the uid of
#: the thread. A fork copies the document and has another uid: its name may have been used before, too.
DOUBTS = "doubts"


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def moment(at_us: int) -> datetime.datetime:
    """Return microseconds since 1970 as an aware datetime."""
    return _EPOCH + datetime.timedelta(microseconds=at_us)


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """That no ledger of the store knows the effects called since ``since_us``, and ``why``.

    ``since_us`` is 0 if the time isn't known. ``recorded_us`` is the time when the doubt was recorded.
    """

    id: str
    why: str
    since_us: int
    recorded_us: int

    @property
    def since(self) -> datetime.datetime | None:
        """The time from which on effects are unknown; None if that time isn't known."""
        return moment(self.since_us) if self.since_us else None

    def __str__(self) -> str:
        since = "an unknown time" if self.since is None else f"{self.since:%Y-%m-%d %H:%M:%S} UTC"
        return f"effects since {since} are unknown: {self.why}"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The store that a backup was made of, and when. A restore elsewhere results in a store of another id."""

    id: str
    at_us: int


def read_doubt(value: bytes) -> Doubt:
    """Return the doubt that a cell holds; a damaged cell is a doubt as well."""
    try:
        return msgspec.msgpack.decode(value, type=Doubt)
    except (msgspec.DecodeError, ValueError):
        return Doubt(id="damaged", why="the record of this doubt is damaged", since_us=0, recorded_us=0)


def read_origin(value: bytes) -> Origin | None:
    """Return the origin that a cell holds, or None if it is damaged."""
    try:
        return msgspec.msgpack.decode(value, type=Origin)
    except (msgspec.DecodeError, ValueError):
        return None


def unacknowledged(doubts: Iterable[Doubt], journal: Mapping[str, Any], uid: str) -> list[Doubt]:
    """Return the doubts that the journal of the thread ``uid`` hasn't taken over yet, the oldest first."""
    known = journal.get(DOUBTS)
    found = [each for each in doubts if not isinstance(known, Mapping) or known.get(each.id) != uid]
    return sorted(found, key=lambda each: (each.since_us, each.id))
