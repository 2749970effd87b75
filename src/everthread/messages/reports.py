"""What a conversion dropped, changed or added: nothing goes missing without a word."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

Kind = Literal["dropped", "changed", "added"]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not as it was stored. ``index`` is the message's place in the log, if it has one."""

    kind: Kind
    what: str
    why: str
    index: int | None = None

    def __str__(self) -> str:
        where = "" if self.index is None else f"message {self.index}: "
        return f"{where}{self.what} {self.kind}: {self.why}"


@dataclass(frozen=True, slots=True)
class Report:
    """All changes of a conversion, in the order of the messages. True if there are any."""

    changes: tuple[Change, ...] = ()

    @property
    def dropped(self) -> tuple[Change, ...]:
        return tuple(each for each in self.changes if each.kind == "dropped")

    @property
    def changed(self) -> tuple[Change, ...]:
        return tuple(each for each in self.changes if each.kind == "changed")

    @property
    def added(self) -> tuple[Change, ...]:
        return tuple(each for each in self.changes if each.kind == "added")

    def __bool__(self) -> bool:
        return bool(self.changes)

    def summary(self) -> str:
        """One line: ``2 dropped, 1 changed``."""
        counts = Counter(each.kind for each in self.changes)
        return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "nothing lost"

    def __str__(self) -> str:
        return "\n".join(map(str, self.changes)) or "nothing lost"


class Notes:
    """Collects changes while a conversion goes on."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        #: The message that is being converted.
        self.index: int | None = None

    def dropped(self, what: str, why: str) -> None:
        self._changes.append(Change("dropped", what, why, self.index))

    def changed(self, what: str, why: str) -> None:
        self._changes.append(Change("changed", what, why, self.index))

    def added(self, what: str, why: str) -> None:
        self._changes.append(Change("added", what, why, self.index))

    def report(self) -> Report:
        return Report(tuple(sorted(self._changes, key=lambda each: -1 if each.index is None else each.index)))
