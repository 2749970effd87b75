"""Three-way merge of documents and of the tails of logs. What both sides changed is told, never guessed.

Works on lowered trees (see ``codec.values``); only conflicts hold callers' values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, final

import msgspec

from everthread.arguments import format_path
from everthread.codec.values import encode_stored, same
from everthread.codec.values import lift as lift_value
from everthread.codec.values import lower as lower_value
from everthread.errors import InvalidValueError, LimitError
from everthread.history.diff import Path, copy_tree, item_key
from everthread.values import Personal
from everthread.versions import Version

# The integers a lowered tree holds as such.
_INT_MIN = -(2**63)
_INT_MAX = 2**64 - 1


@final
class Absent:
    """The type of :data:`ABSENT`."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "ABSENT"

    def __reduce__(self) -> str:
        # Copies and unpickles as the one instance there is.
        return "ABSENT"


#: Where a side of a conflict has nothing. Returned by a resolver, it deletes.
ABSENT: Final = Absent()


class Conflict(msgspec.Struct, frozen=True):
    """A place that both sides changed, each in its own way, with the three values found there.

    ``path`` is the place in the merged document, which holds ``ours`` there. Where that is
    :data:`ABSENT` and the place is in a list, it is where the item would stand.
    """

    path: tuple[Any, ...]
    base: Any
    ours: Any
    theirs: Any

    @property
    def where(self) -> str:
        """The path as text."""
        return format_path(self.path)


class Merge(msgspec.Struct, frozen=True):
    """What a merge came to. True if it is clean; then ``version`` holds it.

    With conflicts left, nothing was committed and ``version`` is ``None``. ``effects`` is how many effects
    came into the ledger, with which no version of the thread is made.
    """

    version: Version | None
    conflicts: tuple[Conflict, ...] = ()
    effects: int = 0

    def __bool__(self) -> bool:
        return not self.conflicts


class Merged(msgspec.Struct, frozen=True):
    """A merged document, a lowered tree of its own, and what couldn't be merged.

    ``sides`` holds base, ours and theirs of each conflict as lowered trees.
    """

    document: Any
    conflicts: tuple[Conflict, ...] = ()
    sides: tuple[tuple[Any, Any, Any], ...] = ()


Item = tuple[Any, Any]
Resolver = Callable[[Conflict], Any]


class MergedTail(msgspec.Struct, frozen=True):
    """The merged tail of a log, as pairs of id and content, and the ids whose contents disagree."""

    items: tuple[Item, ...]
    conflicts: tuple[Conflict, ...] = ()


def merge_documents(
    base: Any,
    ours: Any,
    theirs: Any,
    *,
    increments: Mapping[Path, int | float] | None = None,
    lift: Callable[[Any], Any] = lift_value,
) -> Merged:
    """Bring the changes from ``base`` to ``ours`` and those from ``base`` to ``theirs`` together.

    A change on one side is taken; the same change on both is taken once. Dicts are merged key by key,
    also where base has none. Lists whose items all have an ``"id"`` of their own are merged by it, in
    base's order (or that of the one side that reordered), then what theirs added, then what ours added.
    Other lists are joined if both sides only appended: base, theirs, ours. ``increments`` maps paths in
    ours to what ours added to the number there since base; it is added to theirs. All else that both
    changed is a conflict, as is a deletion on one side of what the other changed; there the merged
    document holds ours.

    Inputs are left alone and share nothing with the result. ``lift`` translates the values in
    conflicts. Raises :class:`LimitError` if a tree is too deep for Python's stack.
    """
    merger = _Merger(increments or {}, lift)
    try:
        document = merger.node(base, ours, theirs, (), ())
    except RecursionError:
        raise LimitError("the documents are nested deeper than the rest of Python's stack allows") from None
    return Merged(document, tuple(merger.conflicts), tuple(merger.sides))


class _Merger:
    """One merge, collecting its conflicts in the order of the merged document."""

    def __init__(self, increments: Mapping[Path, int | float], lift: Callable[[Any], Any]) -> None:
        self.conflicts: list[Conflict] = []
        self.sides: list[tuple[Any, Any, Any]] = []
        self._lift = lift
        self._increments = increments
        #: Containers with an increment inside: two of these that are equal may still be two changes.
        self._above = {path[:length] for path in increments for length in range(len(path))}

    def node(self, base: Any, ours: Any, theirs: Any, path: Path, mine: Path) -> Any:
        """The merged value for ``path``, or ABSENT; ``mine`` is the path in ours.

        Calls itself directly, one frame a level, so that the deepest legal tree fits Python's stack.
        """
        if _same(theirs, base):
            return copy_tree(ours)
        if mine in self._increments:
            grown = _grown(base, ours, theirs, self._increments[mine])
            if grown is not None:
                return grown
        if mine not in self._above:
            if _same(ours, theirs):
                return copy_tree(ours)
            if _same(ours, base):
                return copy_tree(theirs)
        if type(ours) is dict and type(theirs) is dict:
            keys = _keys(base if type(base) is dict else {}, ours, theirs)
            if keys is not None:
                fields = {}
                for key in keys:
                    before = base.get(key, ABSENT) if type(base) is dict else ABSENT
                    after, other = ours.get(key, ABSENT), theirs.get(key, ABSENT)
                    value = self.node(before, after, other, (*path, key), (*mine, key))
                    if value is not ABSENT:
                        fields[key] = value
                return fields
        elif type(ours) is list and type(theirs) is list:
            aligned = _by_id(base if type(base) is list else [], ours, theirs)
            if aligned is not None:
                items: list[Any] = []
                for place, before, after, other in aligned:
                    value = self.node(before, after, other, (*path, len(items)), (*mine, place))
                    if value is not ABSENT:
                        items.append(value)
                return items
            if type(base) is list and _begins(ours, base) and _begins(theirs, base):
                return copy_tree(theirs) + copy_tree(ours[len(base) :])
        self.sides.append((copy_tree(base), copy_tree(ours), copy_tree(theirs)))
        self.conflicts.append(_conflict(path, base, ours, theirs, self._lift))
        return copy_tree(ours)


def _conflict(path: Path, base: Any, ours: Any, theirs: Any, lift: Callable[[Any], Any]) -> Conflict:
    return Conflict(path, *(ABSENT if side is ABSENT else lift(side) for side in (base, ours, theirs)))


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    return a is not ABSENT and b is not ABSENT and same(a, b)


def _grown(base: Any, ours: Any, theirs: Any, number: int | float) -> int | float | None:
    """``theirs`` with our increment, or ``None`` where that makes no sense or no legal number."""
    # Not isinstance: True is no number to add to. What base or ours doesn't have counts as 0.
    numbers = [0 if side is ABSENT else side for side in (base, ours)] + [theirs]
    if not all(type(side) in (int, float) for side in numbers):
        return None
    if base is ABSENT and ours != number:
        # Ours has set it as well: two such settings are for somebody to decide.
        return None
    grown: int | float = theirs + number
    return grown if type(grown) is float or _INT_MIN <= grown <= _INT_MAX else None


def _keys(base: dict[Any, Any], ours: dict[Any, Any], theirs: dict[Any, Any]) -> Iterable[Any] | None:
    """All keys in order, or ``None`` if two are equal but of different types, such as 1 and True.

    Such dicts can't be brought together key by key: one key would silently take the place of the other.
    """
    spelling: dict[Any, Any] = {}
    for side in (base, theirs, ours):
        for key in side:
            if type(key) is not str and not same(spelling.setdefault(key, key), key):
                return None
            spelling.setdefault(key, key)
    return spelling


def _begins(items: list[Any], prefix: list[Any]) -> bool:
    return len(items) >= len(prefix) and all(map(_same, items, prefix))


def _by_id(
    base: list[Any], ours: list[Any], theirs: list[Any]
) -> list[tuple[int | None, Any, Any, Any]] | None:
    """Items of the three lists that share an id, side by side, with the index in ours; in merged order.

    ``None`` if not every item has an id of its own, or if both sides reordered in different ways.
    """
    b, o, t = _index(base), _index(ours), _index(theirs)
    if b is None or o is None or t is None:
        return None
    in_ours = [key for key in o if key in b]
    in_theirs = [key for key in t if key in b]
    ours_moved = in_ours != [key for key in b if key in o]
    theirs_moved = in_theirs != [key for key in b if key in t]
    if ours_moved and theirs_moved and [k for k in in_ours if k in t] != [k for k in in_theirs if k in o]:
        return None
    kept = in_ours if ours_moved else in_theirs if theirs_moved else []
    return [
        (
            o.get(key),
            base[b[key]] if key in b else ABSENT,
            ours[o[key]] if key in o else ABSENT,
            theirs[t[key]] if key in t else ABSENT,
        )
        for key in dict.fromkeys([*kept, *b, *t, *o])
    ]


def _index(items: list[Any]) -> dict[tuple[type, Any], int] | None:
    places: dict[tuple[type, Any], int] = {}
    for index, item in enumerate(items):
        key = item_key(item)
        if key is None or key in places:
            return None
        places[key] = index
    return places


def resolve(
    merged: Merged,
    choices: Literal["ours", "theirs"] | Resolver,
    *,
    lower: Callable[[Any], Any] = lower_value,
) -> Any:
    """The merged document with every conflict settled, a lowered tree of its own.

    ``choices`` is ``"ours"``, ``"theirs"``, or is called with each :class:`Conflict`, in order, and
    returns the value to stand there: one side of the conflict, anything else that can be stored, or
    :data:`ABSENT` to delete. ``lower`` translates new values. Raises :class:`InvalidValueError` for
    other choices, for a value that can't be stored, and for deleting the whole document.
    """
    settled = [
        (conflict, _chosen(conflict, sides, choices, lower))
        for conflict, sides in zip(merged.conflicts, merged.sides, strict=True)
    ]
    document = copy_tree(merged.document)
    # From the back: an item put into a list or taken out of it moves only what is settled already.
    for conflict, value in reversed(settled):
        document = _put(document, conflict, value)
    return document


def _chosen(
    conflict: Conflict,
    sides: tuple[Any, Any, Any],
    choices: Literal["ours", "theirs"] | Resolver,
    lower: Callable[[Any], Any],
) -> Any:
    if choices == "ours":
        return copy_tree(sides[1])
    if choices == "theirs":
        return copy_tree(sides[2])
    if not callable(choices):
        raise InvalidValueError(f'conflicts are resolved by "ours", "theirs" or a function, not {choices!r}')
    value = choices(conflict)
    if value is ABSENT:
        return ABSENT
    # A personal value handed back keeps its seal; to seal it anew would need the keyring.
    if isinstance(value, Personal):
        for known, side in zip((conflict.base, conflict.ours, conflict.theirs), sides, strict=True):
            if value is known:
                return side
    return lower(value)


def _put(document: Any, conflict: Conflict, value: Any) -> Any:
    if not conflict.path:
        if value is ABSENT:
            raise InvalidValueError("the whole document can't be deleted by resolving a conflict")
        return value
    *above, last = conflict.path
    holder = document
    for key in above:
        holder = holder[key]
    if type(holder) is list and conflict.ours is ABSENT:
        holder[last:last] = [] if value is ABSENT else [value]
    elif type(holder) is list:
        holder[last : last + 1] = [] if value is ABSENT else [value]
    elif value is ABSENT:
        holder.pop(last, None)
    else:
        holder[last] = value
    return document


def merge_tails(
    theirs: Sequence[Item],
    ours: Sequence[Item],
    *,
    path: Path = (),
    equal: Callable[[Any, Any], bool] = same,
    lift: Callable[[Any], Any] = lift_value,
) -> MergedTail:
    """What both sides appended to a log: theirs as it is, then of ours what isn't there yet by its id.

    An item is a pair of its id (or ``None``) and its content, a lowered tree or a digest. Items without
    an id are always kept. The same id with contents that aren't ``equal`` is a conflict at ``path`` and
    the id; ours is kept, at the first place.
    """
    items = [(id, copy_tree(content)) for id, content in theirs]
    places = {
        encode_stored(id): place for place, (id, _) in reversed(list(enumerate(items))) if id is not None
    }
    conflicts: list[Conflict] = []
    for id, content in ours:
        key = None if id is None else encode_stored(id)
        if key is None or key not in places:
            if key is not None:
                places[key] = len(items)
            items.append((id, copy_tree(content)))
            continue
        place = places[key]
        earlier = items[place][1]
        if not equal(earlier, content):
            conflicts.append(_conflict((*path, id), ABSENT, content, earlier, lift))
            items[place] = (id, copy_tree(content))
    return MergedTail(tuple(items), tuple(conflicts))
