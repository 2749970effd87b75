"""Reading the values of a damaged SQLite store from its pages, without SQLite and without writing a byte.

Nothing of a page is trusted: a value counts only if the checksum fits that the caller keeps in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from everthread.arguments import counted
from everthread.stores.interface import Key, Table
from everthread.stores.sqlite.pages import Pages
from everthread.stores.sqlite.tables import Layout

_PROBLEMS_MAX = 100


class Found(NamedTuple):
    """A value whose checksum fits its key.

    ``reachable`` is False if no tree leads to its page: it may have been deleted or replaced long ago.
    """

    key: Key
    value: bytes
    reachable: bool = True


class DamagedFile:
    """The file of a damaged store and its write-ahead log."""

    def __init__(self, path: str, tables: Sequence[Table], fits: Callable[[Key, bytes], bool]) -> None:
        self._pages = Pages(path)
        self._layout = Layout(tables)
        self._fits = fits
        self._failed = 0
        #: What couldn't be read, one sentence each; complete when :meth:`values` has ended.
        self.problems: list[str] = []

    def values(self) -> Iterator[Found]:
        """Yield every sound value, those that trees lead to first. A key may come several times."""
        pages = self._pages
        if pages.log_damaged:
            self.problems.append(f"{pages.log_damaged} frames of the write-ahead log fail their checksum")
        #: Pages of trees, and pages on which their values continue.
        seen: set[int] = set()
        continued: set[int] = set()
        roots = pages.roots(seen)
        for table in self._layout.tables.values():
            name = "entry" if table.named else table.table.name
            if name not in roots:
                self.problems.append(f"the table {name!r} isn't found by its definition")
        numbered = {table.table.name for table in self._layout.tables.values() if table.numbered}
        for name, root in roots.items():
            for page in pages.leaves(root, seen, index=name not in numbered):
                yield from self._on_page(page, name, continued, reachable=True)
        self.problems += [f"page {page} isn't of the kind its tree needs" for page in sorted(pages.astray)]
        if pages.beyond:
            missing = counted(len(pages.beyond), "page")
            self.problems.append(f"the file ends too early: {missing} of its trees are missing")
        known = seen | continued | pages.free()
        for page in range(1, pages.count + 1):
            if page not in known:
                # If no definition can be read, no tree says which pages are in use.
                yield from self._on_page(page, "", set(), reachable=not roots)
        if self._failed:
            self.problems.append(f"{counted(self._failed, 'value')} failed the checksum")
        self.problems = sorted(set(self.problems))[:_PROBLEMS_MAX]

    def _on_page(self, page: int, name: str, continued: set[int], *, reachable: bool) -> Iterator[Found]:
        """Yield the sound values on a page. A damaged tree may lead to a page of another table."""
        pages = self._pages
        for offset in pages.cells(page):
            row = pages.row((page, offset), continued)
            if row is not None and len(row[1]) == 2 and type(row[1][1]) is bytes:
                keys = self._numbered_keys(row[0], name)
                yield from self._sound(keys, row[1][1], reachable=reachable)
        for offset in pages.cells(page, index=True):
            columns = pages.entry((page, offset), continued)
            if columns is not None and len(columns) == 4 and type(columns[3]) is bytes:
                yield from self._sound(self._named_keys(columns), columns[3], reachable=reachable)

    def _numbered_keys(self, id_: int, name: str) -> list[Key]:
        """Return the keys that a value may have: which table a page belongs to may be unknown."""
        tables = [table for table in self._layout.tables.values() if table.numbered]
        tables.sort(key=lambda table: table.table.name != name)
        return [(table.table.number, *table.split(id_)) for table in tables if id_ > 0]

    def _named_keys(self, columns: list[Any]) -> list[Key]:
        first, second, third, _ = columns
        if type(first) is not int:
            return []
        if type(second) is int and type(third) is bytes and first in self._layout.tables:
            return [(first, second, third)]
        if type(second) is bytes and type(third) is int:
            return [(table.table.number, first, second) for table in self._layout.followed]
        return []

    def _sound(self, keys: list[Key], value: bytes, *, reachable: bool) -> Iterator[Found]:
        for key in keys:
            if self._fits(key, value):
                yield Found(key, value, reachable)
                return
        self._failed += reachable

    def close(self) -> None:
        self._pages.close()
