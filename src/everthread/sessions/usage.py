"""What runs have used up: named counters that only grow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from everthread.arguments import check_name
from everthread.errors import InvalidValueError

Count = int | float


class Usage(Mapping[str, Count]):
    """Counters by name, read only: ``usage["input_tokens"]`` or ``usage.input_tokens``, 0 where nothing was
    counted. Two can be added."""

    __slots__ = ("_counts",)

    def __init__(self, counts: Mapping[str, Any] | None = None) -> None:
        found = dict(counts or {}).items()
        # What isn't a count can only have been put there by other means: it counts nothing.
        self._counts: dict[str, Count] = {
            name: count for name, count in found if isinstance(name, str) and type(count) in (int, float)
        }

    def __getitem__(self, name: str) -> Count:
        return self._counts.get(name, 0)

    def __getattr__(self, name: str) -> Count:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self._counts

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def __add__(self, other: Mapping[str, Count]) -> Usage:
        names = dict.fromkeys([*self._counts, *other])
        return Usage({name: self[name] + other.get(name, 0) for name in names})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and self._counts == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}={count}" for name, count in self._counts.items())
        return f"Usage({counts})"


class Total(msgspec.Struct, frozen=True):
    """Turns and usage over several runs."""

    turns: int = 0
    usage: Usage = msgspec.field(default_factory=Usage)

    def __add__(self, other: Total) -> Total:
        return Total(self.turns + other.turns, self.usage + other.usage)

    def since(self, before: Total) -> Total:
        """What came after ``before``. Nothing shrinks: a thread that was begun anew counts from nothing."""
        grown = {name: max(0, self.usage[name] - before.usage[name]) for name in self.usage}
        return Total(max(0, self.turns - before.turns), Usage(grown))


def checked_counts(counts: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Count]:
    """What is to be added, or :class:`InvalidValueError`: numbers that aren't negative."""
    if not isinstance(counts, Mapping):
        raise InvalidValueError("usage is counted by name: add_usage(input_tokens=120)", path="usage")
    checked: dict[str, Count] = {}
    for name, count in {**counts, **more}.items():
        check_name(name, "the name of a counter")
        if type(count) not in (int, float) or not 0 <= count < math.inf:
            raise InvalidValueError(
                f"usage is counted in numbers that aren't negative; {name} is {count!r}", path=f"usage.{name}"
            )
        checked[name] = count
    return checked
