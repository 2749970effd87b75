"""Committing a state that others may be saving as well."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from everthread.errors import ConflictError, InvalidValueError, MergeConflictError, UsageError
from everthread.history.merge import ABSENT, Conflict
from everthread.threads.document import TrackedDict
from everthread.working import places
from everthread.working.layout import COLLECTIONS

if TYPE_CHECKING:
    from everthread.threads.sync.thread import Thread

#: How often somebody else may come first before it is given up.
TRIES: Final = 100

#: Times that both sides may have set without contradicting each other, and which of the two stands.
_SETTLED: Final[Mapping[str, Callable[[str, str], str]]] = {
    "created_at": min,
    "completed_at": min,
    "resolved_at": min,
    "updated_at": max,
    "verified_at": max,
}

#: Where the conflicts are that whoever saves may settle.
_OURS: Final = frozenset((key,) for key in COLLECTIONS)

Place = tuple[Any, ...]


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
            until_first(self._owner, thread, resolve)
            return
        if metadata is not None and not isinstance(metadata, Mapping):
            raise InvalidValueError("metadata must be a mapping", path="metadata")
        if not self.marked:
            metadata = {**(metadata or {}), **self._missing(thread)}
        until_first(lambda: thread.commit(label=label, metadata=metadata), thread, resolve)
        self.marked = True

    def mark(self, thread: Thread) -> None:
        """Mark a thread that has just been forked: it carries its source's marks."""
        thread.commit(metadata=places.tags(thread.name, self._session_id))
        self.marked = True

    def _missing(self, thread: Thread) -> dict[str, Any]:
        """The marks, unless the head at hand has them."""
        known = {} if thread.head is None else thread.head.metadata
        wanted = places.tags(thread.name, self._session_id)
        return {} if all(known.get(name) == value for name, value in wanted.items()) else wanted


def check_resolve(resolve: str | None) -> None:
    if resolve not in (None, "ours", "theirs"):
        raise InvalidValueError('resolve is "ours" or "theirs"', path="resolve")


def until_first(commit: Callable[[], Any], thread: Thread, resolve: str | None = None) -> None:
    """Commit; where somebody else was first, move the changes onto theirs and commit again.

    Raises :class:`MergeConflictError`, a :class:`ConflictError`, where both changed the same thing in
    different ways; the changes are still in the handle then.
    """
    for attempt in range(TRIES):
        try:
            commit()
            return
        except MergeConflictError:
            raise
        except ConflictError:
            if attempt + 1 == TRIES:
                raise
        rebase(thread, resolve)
        if attempt > 1:
            time.sleep(random.uniform(0, min(0.001 * 2**attempt, 0.05)))  # noqa: S311 - no secret


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
            if attempt + 1 == TRIES or not all(_may_settle(each, resolve) for each in conflicts):
                raise _explained(error) from error
        if _settle(thread, conflicts, resolve):
            return


def _may_settle(conflict: Conflict, resolve: str | None) -> bool:
    return _rule(conflict) is not None or (resolve is not None and conflict.path[:1] in _OURS)


def _rule(conflict: Conflict) -> Callable[[str, str], str] | None:
    """How to settle it without asking: only two times in the same field of an item are that clear."""
    path = conflict.path
    if len(path) != 3 or path[0] not in COLLECTIONS:
        return None
    both = isinstance(conflict.ours, str) and isinstance(conflict.theirs, str)
    return _SETTLED.get(path[2]) if both else None


def _settle(thread: Thread, conflicts: list[Conflict], resolve: str | None) -> bool:
    """Take our side of the conflicts back, rebase, and put it on top of theirs where it stands.

    False if there are new conflicts, since somebody else has committed again; then all is as it was.
    """
    head = thread.head
    base = thread.at(head).state if head is not None else None
    ours: dict[Place, Any] = {}
    for conflict in conflicts:
        # The whole field of an item: inside a value, places in lists may have moved.
        place = conflict.path[:3]
        if place not in ours:
            ours[place] = _get(thread.state, place)
            _put(thread.state, place, ABSENT if base is None else _get(base, place))
    try:
        thread.rebase()
    except BaseException as error:
        for place, value in ours.items():
            _put(thread.state, place, value)
        if isinstance(error, MergeConflictError):
            return False
        raise
    for conflict in conflicts:
        rule = _rule(conflict)
        place = conflict.path[:3]
        if rule is not None:
            _put(thread.state, place, rule(conflict.ours, conflict.theirs))
        elif resolve == "ours":
            _put(thread.state, place, ours[place])
    return True


def _get(root: Any, place: Place) -> Any:
    """What stands at a place, as plain data, or ABSENT."""
    node = root
    for key in place:
        if not isinstance(node, TrackedDict) or key not in node:
            return ABSENT
        node = node[key]
    return node.plain() if hasattr(node, "plain") else node


def _put(root: TrackedDict, place: Place, value: Any) -> None:
    """Make ``value`` stand at a place, or nothing if it is ABSENT."""
    *above, last = place
    node: Any = root
    for key in above:
        if key not in node:
            if value is ABSENT:
                return
            node[key] = {}
        node = node[key]
    if value is not ABSENT:
        node[last] = value
    elif last in node:
        del node[last]


def _explained(error: MergeConflictError) -> MergeConflictError:
    places = ", ".join(conflict.where for conflict in error.conflicts[:5])
    more = len(error.conflicts) - 5
    return MergeConflictError(
        f"somebody else changed the same as you since you read it: {places}"
        + (f" and {more} more" if more > 0 else "")
        + '; your changes are kept. save(resolve="ours") or save(resolve="theirs") settles it, '
        "reload() gives yours up",
        conflicts=error.conflicts,
        expected=error.expected,
        actual=error.actual,
    )
