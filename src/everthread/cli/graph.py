"""The versions of a thread as a graph in columns, newest first. Pure: no terminal, no store.

A rewind goes on from the version it went back to; what it left behind stands in a column of its own::

    ●   9
    ↶   8   back to 3
    │ ● 7
    │ ● 4
    ├─╯
    ●   3
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from everthread.versions import Version

MARKS = {"commit": "●", "rewind": "↶", "merge": "◆", "fork": "○", "fence": "▪"}
#: Columns that are drawn; what is further to the right is only hinted at.
_COLUMNS_MAX = 10


class Row(NamedTuple):
    """One line of the graph: what is drawn, where the mark is in it, and the version it stands for.

    A line without a version joins columns. ``left``: a rewind left this version behind.
    """

    drawn: str
    mark: int = -1
    version: Version | None = None
    left: bool = False


def rows(versions: Iterable[Version]) -> Iterator[Row]:
    """The graph of versions that come newest first. Any of them may be missing."""
    #: The version that each column goes on to; 0 for a column that is free.
    columns: list[int] = []
    for version in versions:
        # Where a version was pruned its column goes on to the next one that is left.
        waiting = [index for index, seq in enumerate(columns) if seq >= version.seq]
        main = waiting[0] if waiting else _free(columns)
        if len(waiting) > 1:
            yield Row(_cut(_join(columns, main, waiting[1:])))
        for index in waiting[1:]:
            columns[index] = 0
        _trim(columns, main + 1)
        # The head is in the first column, and with it all that it goes back to.
        yield Row(_cut(_line(columns, main, MARKS[version.kind])), 2 * main, version, main > 0)
        columns[main] = _before(version)
        _trim(columns, 1)


def _trim(columns: list[int], least: int) -> None:
    while len(columns) > least and columns[-1] == 0:
        columns.pop()


def _before(version: Version) -> int:
    """The version whose state this one goes on from."""
    if version.kind == "rewind" and version.source:
        return int(version.source.partition("-")[0])
    return version.seq - 1


def _free(columns: list[int]) -> int:
    for index, seq in enumerate(columns):
        if seq == 0:
            return index
    columns.append(0)
    return len(columns) - 1


def _line(columns: list[int], main: int, mark: str) -> str:
    return " ".join(mark if index == main else "│" if seq else " " for index, seq in enumerate(columns))


def _join(columns: list[int], main: int, ending: list[int]) -> str:
    """Columns that come together: ``├─┴─╯``."""
    last = ending[-1]
    drawn = []
    for index, seq in enumerate(columns):
        inside = main < index < last
        if index == main:
            sign = "├"
        elif index in ending:
            sign = "╯" if index == last else "┴"
        elif seq:
            sign = "┼" if inside else "│"
        else:
            sign = "─" if inside else " "
        drawn.append(sign + ("─" if main <= index < last else " "))
    return "".join(drawn).rstrip()


def _cut(drawn: str) -> str:
    return drawn if len(drawn) <= 2 * _COLUMNS_MAX else drawn[: 2 * _COLUMNS_MAX - 1] + "…"
