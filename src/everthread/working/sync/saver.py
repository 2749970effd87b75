# Generated from src/everthread/working/aio/saver.py by tools/twin.py: change that, then run: make twin
"""Committing the thread of a working state, also where others save it at the same time."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from everthread.errors import ConflictError, InvalidValueError, MergeConflictError, UsageError
from everthread.history.merge import ABSENT, Conflict
from everthread.stores.colours import pause
from everthread.working.document import Place, explained, get_place, may_settle, put_place, rule_of
from everthread.working.home import tags

if TYPE_CHECKING:
    from everthread.threads.sync.thread import Thread

#: How often somebody else may come first before it is given up.
TRIES: Final = 100


class Saver:
    """Commits a thread as a state: marked, so that it is found again; or through its owner, who commits."""

    def __init__(self, session_id: str | None, owner: Callable[[], Any] | None = None) -> None:
        self._session_id = session_id
        self._owner = owner
        #: Whether a commit of ours has marked the thread. Metadata stay until they are given anew.
        self.marked = False

    @property
    def owned(self) -> bool:
        return self._owner is not None

    def commit(
        self,
        thread: Thread,
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        resolve: str | None = None,
    ) -> None:
        """Commit what is pending; changes that others have made in between are brought together with it."""
        if self._owner is not None:
            if label or metadata:
                raise UsageError("the owner of this thread commits it: give label and metadata there")
            commit_after_others(self._owner, thread, resolve)
            return
        if metadata is not None and not isinstance(metadata, Mapping):
            raise InvalidValueError("metadata must be a mapping", path="metadata")
        if not self.marked:
            metadata = {**(metadata or {}), **self._missing(thread)}
        commit_after_others(lambda: thread.commit(label=label, metadata=metadata), thread, resolve)
        self.marked = True

    def mark(self, thread: Thread) -> None:
        """Mark a thread that has just been forked: it carries its source's marks."""
        thread.commit(metadata=tags(thread.name, self._session_id))
        self.marked = True

    def _missing(self, thread: Thread) -> dict[str, Any]:
        """The marks, unless the head at hand has them."""
        known = {} if thread.head is None else thread.head.metadata
        wanted = tags(thread.name, self._session_id)
        return {} if all(known.get(name) == value for name, value in wanted.items()) else wanted


def commit_after_others(commit: Callable[[], Any], thread: Thread, resolve: str | None = None) -> None:
    """Commit; where somebody else was first, move the changes onto theirs and commit again.

    Raises :class:`MergeConflictError`, a :class:`ConflictError`, where both changed the same thing in
    different ways; the changes are still in the handle then.
    """
    for attempt in range(TRIES):
        try:
            commit()
            return
        except ConflictError:
            # Also an owner's MergeConflictError: the rules for items may settle it.
            if attempt + 1 == TRIES:
                raise
        rebase(thread, resolve)
        if attempt > 1:
            pause(random.uniform(0, min(0.001 * 2**attempt, 0.05)))  # noqa: S311 - no secret


def rebase(thread: Thread, resolve: str | None = None) -> None:
    """Move a handle's uncommitted changes onto the newest version.

    Changes of different items, or of different fields of one, come together; two times for the same event are
    settled by the rule. ``resolve`` says whose change stands in all other cases, in the fields of items;
    without it these raise :class:`MergeConflictError` and nothing is moved.
    """
    for attempt in range(TRIES):
        try:
            thread.rebase()
            return
        except MergeConflictError as error:
            conflicts = list(error.conflicts)
            if attempt + 1 == TRIES or not all(may_settle(each, resolve) for each in conflicts):
                raise explained(error) from error
        if _settle(thread, conflicts, resolve):
            return


def _settle(thread: Thread, conflicts: list[Conflict], resolve: str | None) -> bool:
    """Take our side of the conflicts back, rebase, and put it on top of theirs where it stands.

    False if there are new conflicts, since somebody else has committed again; then all is as it was.
    """
    head = thread.head
    base = (thread.at(head)).state if head is not None else None
    ours: dict[Place, Any] = {}
    for conflict in conflicts:
        # The whole field of an item: inside a value, places in lists may have moved.
        place = conflict.path[:3]
        if place not in ours:
            ours[place] = get_place(thread.state, place)
            put_place(thread.state, place, ABSENT if base is None else get_place(base, place))
    try:
        thread.rebase()
    except BaseException as error:
        for place, value in ours.items():
            put_place(thread.state, place, value)
        if isinstance(error, MergeConflictError):
            return False
        raise
    for conflict in conflicts:
        rule = rule_of(conflict)
        place = conflict.path[:3]
        if rule is not None:
            put_place(thread.state, place, rule(conflict.ours, conflict.theirs))
        elif resolve == "ours":
            put_place(thread.state, place, ours[place])
    return True
