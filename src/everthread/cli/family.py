"""Where a thread was forked from, its forks, and how its last run stands.

The one module of the command line that knows the inside of a store: these are questions about lines, which no
handle answers, and each costs a look-up or a listing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from everthread.errors import StateCorruptedError
from everthread.threads.sync.journals import LEASE, beside

if TYPE_CHECKING:
    from everthread.store import Store
    from everthread.threads.sync.thread import Thread

_PAGE = 200
#: Threads that are looked through for forks: more would take longer than the rest of the command.
LOOKED_THROUGH_MAX = 5_000


class Fork(NamedTuple):
    """A thread and the version at which it went its own way."""

    thread: str
    seq: int


class Family(NamedTuple):
    """``source``: what a thread was forked from, and at which version. ``forks``: its own forks, by name.
    ``complete``: whether all threads were looked through."""

    source: Fork | None
    forks: tuple[Fork, ...]
    complete: bool

    def forks_at(self, seq: int) -> list[str]:
        """The forks that branched off at a version."""
        return [fork.thread for fork in self.forks if fork.seq == seq]


def family(thread: Thread, *, everything: bool = False) -> Family:
    """The relatives of a thread that has versions. ``everything``: however many threads there are."""
    core, line = thread.core, thread.handle.line
    assert line is not None, "a thread with versions has a line"
    above = core.backend.line(line.parent) if line.parent else None
    source = None if above is None else Fork(above.name, line.parent_seq)
    forks: list[Fork] = []
    seen, after = 0, None
    while entries := core.backend.lines(core.space, "", after, _PAGE):
        own = [each.line for each in entries if each.line.parent == line.id]
        forks += [Fork(each.name, each.parent_seq) for each in own]
        seen += len(entries)
        after = entries[-1].line.name
        if seen >= LOOKED_THROUGH_MAX and not everything:
            return Family(source, tuple(forks), complete=False)
    return Family(source, tuple(forks), complete=True)


def untouched_fork(store: Store, name: str) -> bool:
    """Whether a thread is a fork that nothing was saved to since."""
    found = store.core.find(name)
    return found is not None and found.newest is None


def has_session(store: Store, name: str) -> bool:
    """Whether a run was ever begun on a thread."""
    return _with_session(store, name) is not None


def _with_session(store: Store, name: str) -> str | None:
    """What names the line of a thread on which a run was begun: it has a journal or, before that, a lease."""
    core = store.core
    found = core.find(name)
    if found is None:
        return None
    uid, now_us = found.line.uid.hex(), core.runtime.now_us()
    if core.backend.find(beside(core).space, uid) is not None:
        return uid
    return None if core.backend.cell(beside(core, LEASE).space, uid, now_us) is None else uid


def session_status(store: Store, name: str) -> str | None:
    """How the last run of a thread stands; ``None`` if there never was one, or the thread isn't there.

    Loads nothing of sessions where there is none, and little where there is one.
    """
    uid = _with_session(store, name)
    if uid is None:
        return None
    from everthread.sessions.sync.journal import newest_status

    try:
        return newest_status(store.core, uid)
    except StateCorruptedError:
        # Then as it stood at the last version that can be read.
        return store.session_records(name).status
