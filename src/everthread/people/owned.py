"""What a store holds of somebody, by their keys: sealed values, wherever they stand, and user data."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from everthread.errors import EverthreadError
from everthread.stores.contract import Backend, Line, SealedRow, split_keys
from everthread.threads.sync.thread import Thread

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core

#: The spaces of threads with user data end with this, in every namespace.
_USERS = "\0users"
_PAGE = 500


def sealed_values(backend: Backend, key_ids: Sequence[bytes]) -> Iterator[SealedRow]:
    """All sealed values that need one of these keys."""
    after = b""
    while key_ids and (page := backend.sealed_under(key_ids, after, _PAGE)):
        yield from page
        after = page[-1][0]


def used_keys(backend: Backend, key_ids: Collection[bytes]) -> set[bytes]:
    """Under which of these keys something is sealed here: in one go, because a store may have to look at all
    that it holds."""
    wanted = frozenset(key_ids)
    found: set[bytes] = set()
    for _, joined, _ in sealed_values(backend, sorted(wanted)):
        found.update(wanted.intersection(split_keys(joined)))
    return found


def user_lines(backend: Backend, key_ids: Sequence[bytes]) -> list[Line]:
    """The threads of user data that are called after these keys, in whichever namespace."""
    names = {key_id.hex() for key_id in key_ids}
    if not names:
        return []
    return [
        line
        for line in backend.every_line()
        if line.name in names and line.space.endswith(_USERS) and not line.deleted
    ]


def count_values(core: Core, line: Line) -> int:
    """How many values a thread of user data holds; none if it can't be read."""
    core = copy.copy(core)
    core.space = line.space
    with suppress(EverthreadError):
        thread = Thread(core, line.name)
        return len(thread.state)
    return 0
