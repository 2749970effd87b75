"""Where a thread was forked from, its forks, and whether it ever had a run.

The one module of the command line that knows the inside of a store: these are questions about lines, which no
handle answers, and each costs a look-up or a listing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from everthread.threads.sync.companions import beside

if TYPE_CHECKING:
    from everthread.opening import Store
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
    core, line = thread._core, thread._line
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


def has_session(store: Store, name: str) -> bool:
    """Whether a run was ever begun on a thread. Loads nothing of sessions, which most threads never have."""
    thread = store.thread(name)
    if thread.head is None or thread.uid is None:
        return False
    core = beside(store._core)
    return core.backend.find(core.space, thread.uid) is not None
