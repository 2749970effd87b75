"""A caller's values into lowered trees: checked, copied, typed.

This is on the way of every change to a document, so ordinary JSON-like data go through with one type test per
value. A path is put together only when something is refused, while the calls unwind.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, MutableSequence
from typing import Any

import msgspec

from everthread.arguments import format_path
from everthread.codec.scalars import (
    DUMPERS,
    INTEGER_MAX,
    INTEGER_MIN,
    LOADERS,
    Refused,
    dump_float,
    dump_int,
    dump_text,
    integer_bound,
)
from everthread.codec.types import Code, shape_of
from everthread.errors import InvalidValueError, LimitError
from everthread.limits import DEFAULT_LIMITS, Limits
from everthread.values import Corrupt, Erased, Opaque, Personal, Tagged

DEPTH_MAX = 500
"""No limit on depth may be higher: Python's own stack has to hold a tree."""

Seal = Callable[[Personal], Tagged]

#: Of a longer path so many parts are shown of its beginning, and of its end.
_PATH_MAX, _SHOWN = 24, 6
#: What iterators, coroutines and modules have: of Python's own classes those that are no data.
_WORKING = ("__next__", "__await__", "__anext__", "__spec__")


def _to_extension(node: Any) -> msgspec.msgpack.Ext:
    if type(node) is not Tagged:
        raise TypeError(f"{type(node).__name__} has no place in a lowered tree")
    return msgspec.msgpack.Ext(int(node.code), node.data)


pack = msgspec.msgpack.Encoder(enc_hook=_to_extension).encode


class _Job:
    """What one call of :func:`lower` carries along."""

    __slots__ = ("high", "limits", "low", "nodes", "seal")

    def __init__(self, limits: Limits, seal: Seal | None) -> None:
        self.limits = limits
        self.seal = seal
        self.nodes = limits.nodes_max
        self.low = INTEGER_MIN
        self.high = INTEGER_MAX
        if limits.integer_digits_max < 20:
            self.high = min(INTEGER_MAX, integer_bound(limits.integer_digits_max) - 1)
            self.low = max(INTEGER_MIN, -self.high)


def lower(
    value: Any, *, limits: Limits = DEFAULT_LIMITS, seal: Seal | None = None, root: str = "state"
) -> Any:
    """Check ``value`` and copy it, whole, into a lowered tree. Lowering a lowered tree copies it.

    Subclasses of dict, list, str, int, float and bytes become these; other mappings become dicts, other
    mutable sequences lists. ``seal`` turns a :class:`Personal` into its sealed reference. ``root`` begins the
    paths in errors. Raises :class:`LimitError` for what is too large or too deep (cycles included) and
    :class:`InvalidValueError` for what can't be stored; both name the place.
    """
    if limits.depth_max > DEPTH_MAX:
        raise InvalidValueError(f"depth_max is {limits.depth_max:,}; at most {DEPTH_MAX} is possible")
    try:
        return _lower(value, limits.depth_max, _Job(limits, seal))
    except Refused as refused:
        path = _place(refused.path[::-1], root)
        error = LimitError if refused.limit else InvalidValueError
        raise error(f"{path or 'the value'}: {refused.reason}", path=path) from None
    except RecursionError:
        raise LimitError(
            f"{root or 'the value'} is nested deeper than the rest of Python's stack allows", path=root
        ) from None


def _place(path: list[Any], root: str) -> str:
    """Where something stands that is refused; of what is very deep the beginning and the end."""
    if len(path) <= _PATH_MAX:
        return format_path(path, root)
    return f"{format_path(path[:_SHOWN], root)} … {format_path(path[-_SHOWN:])}"


def is_plain(tree: dict[Any, Any] | list[Any], limits: Limits) -> bool:
    """Whether all that :func:`lower` would do to ``tree`` is copy it.

    Who encodes it at once needs no copy.
    """
    if limits.nan == "refuse" or limits.integer_digits_max < 20 or limits.depth_max > DEPTH_MAX:
        return False
    try:
        return _room_left(tree, limits.depth_max, limits.nodes_max) >= 0
    except RecursionError:
        return False


#: Leaves that are stored as they are, whatever their value.
_SURE = frozenset({bool, type(None), float, bytes})


def _room_left(tree: dict[Any, Any] | list[Any], depth: int, nodes: int) -> int:
    """How many of so many values are left after these; below zero if too many or too deep, or not plain."""
    nodes -= len(tree)
    if not depth or nodes < 0:
        return -1
    if type(tree) is dict:
        for key in tree:
            if type(key) is not str or not (key.isascii() or _is_unicode(key)):
                return -1
        items: Collection[Any] = tree.values()
    else:
        items = tree
    for item in items:
        kind = type(item)
        if kind is str:
            if not (item.isascii() or _is_unicode(item)):
                return -1
        elif kind is int:
            if not INTEGER_MIN <= item <= INTEGER_MAX:
                return -1
        elif kind is dict or kind is list:
            nodes = _room_left(item, depth - 1, nodes)
            if nodes < 0:
                return -1
        elif kind not in _SURE:
            return -1
    return nodes


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _lower(value: Any, depth: int, job: _Job) -> Any:
    kind = type(value)
    if kind is dict:
        return _lower_dict(value, depth, job)
    if kind is list:
        return _lower_list(value, depth, job)
    if kind is str:
        return value if value.isascii() else dump_text(value, job.limits)
    if kind is bool or value is None or kind is bytes:
        return value
    if kind is int:
        return value if job.low <= value <= job.high else dump_int(value, job.limits)
    if kind is float:
        return dump_float(value, job.limits)
    return _lower_other(value, depth, job)


def _lower_dict(value: dict[Any, Any], depth: int, job: _Job) -> dict[Any, Any]:
    if not depth:
        raise _too_deep(job)
    job.nodes -= len(value)
    if job.nodes < 0:
        raise _too_many(job)
    depth -= 1
    out: dict[Any, Any] = {}
    key: Any = None
    try:
        for key, item in value.items():
            kind = type(item)
            at = key if type(key) is str and key.isascii() else _lower_key(key, depth, job)
            if kind is str and item.isascii():
                out[at] = item
            elif kind is dict:
                out[at] = _lower_dict(item, depth, job)
            elif kind is list:
                out[at] = _lower_list(item, depth, job)
            else:
                out[at] = _lower(item, depth, job)
    except Refused as refused:
        refused.path.append(key)
        raise
    if len(out) != len(value):
        raise Refused("two keys would be stored as the same key; make them differ in more than their class")
    return out


def _lower_list(value: list[Any], depth: int, job: _Job) -> list[Any]:
    if not depth:
        raise _too_deep(job)
    job.nodes -= len(value)
    if job.nodes < 0:
        raise _too_many(job)
    depth -= 1
    out: list[Any] = []
    add = out.append
    try:
        for item in value:
            kind = type(item)
            if kind is str and item.isascii():
                add(item)
            elif kind is dict:
                add(_lower_dict(item, depth, job))
            elif kind is list:
                add(_lower_list(item, depth, job))
            else:
                add(_lower(item, depth, job))
    except Refused as refused:
        refused.path.append(len(out))
        raise
    return out


def _too_deep(job: _Job) -> Refused:
    return Refused(
        f"nested deeper than {job.limits.depth_max} levels, or containing itself; flatten it, "
        "or raise depth_max",
        limit=True,
    )


def _too_many(job: _Job) -> Refused:
    return Refused(
        f"more than {job.limits.nodes_max:,} values in all; split it, keep long lists in a log, "
        "or raise nodes_max",
        limit=True,
    )


KEY_TYPES = frozenset({str, int, float, bool, type(None), bytes, Tagged})


def _lower_key(key: Any, depth: int, job: _Job) -> Any:
    node = _lower(key, depth, job)
    if type(node) not in KEY_TYPES:
        raise Refused(f"{type(key).__name__} can't be stored as a key; use text")
    if node != node:
        raise Refused("NaN can't be a key: nothing would ever find it again; use text")
    return node


def _lower_other(value: Any, depth: int, job: _Job) -> Any:
    """Everything that isn't exactly a type of the tree itself."""
    kind = type(value)
    shape = shape_of(kind)
    if shape is not None:
        if not depth:
            raise _too_deep(job)
        return Tagged(Code.OBJECT, pack([shape.tag, _lower(shape.to_data(value), depth - 1, job)]))
    dump = DUMPERS.get(kind)
    if dump is not None:
        return dump(value, job.limits)
    special = _SPECIAL.get(kind)
    if special is not None:
        return special(value, depth, job)
    return _lower_subclass(value, depth, job)


def _lower_tuple(value: Any, depth: int, job: _Job) -> Tagged:
    return Tagged(Code.TUPLE, pack(_lower_list(value, depth, job)))


def _lower_set(value: Any, depth: int, job: _Job) -> Tagged:
    code = Code.SET if isinstance(value, set) else Code.FROZENSET
    try:
        items = _lower_list(value, depth, job)
    except Refused as refused:
        # The elements of a set have no place in it, so the path ends at the set.
        if refused.path:
            refused.path.pop()
        raise
    # Sorted, so that equal sets become equal bytes.
    return Tagged(code, pack(sorted(items, key=pack)))


def _lower_personal(value: Personal, depth: int, job: _Job) -> Tagged:
    if job.seal is None:
        raise Refused("a Personal value needs a keyring to be sealed; open the store with keyring=…")
    return job.seal(value)


def _lower_tagged(value: Tagged, depth: int, job: _Job) -> Tagged:
    # Extension -1 is MessagePack's own timestamp.
    if not -128 <= value.code <= 127 or value.code == -1:
        raise Refused(f"there is no type code {value.code}")
    return value


_SPECIAL: dict[type, Callable[[Any, int, _Job], Any]] = {
    tuple: _lower_tuple,
    set: _lower_set,
    frozenset: _lower_set,
    bytearray: lambda value, depth, job: bytes(value),
    memoryview: lambda value, depth, job: bytes(value),
    Tagged: _lower_tagged,
    Opaque: lambda value, depth, job: _lower_tagged(value.tagged, depth, job),
    Personal: _lower_personal,
    Erased: lambda value, depth, job: Tagged(Code.ERASED, b"") if value.sealed is None else value.sealed,
    Corrupt: lambda value, depth, job: Tagged(Code.CORRUPT, value.reason.encode("utf-8", "replace")),
}


def _lower_subclass(value: Any, depth: int, job: _Job) -> Any:
    if isinstance(value, str):
        # Also a member of an enum of texts: who wants it back as one registers its class.
        return _lower(str.__str__(value), depth, job)
    if not isinstance(value, enum.Enum) and not hasattr(type(value), "_fields"):
        if isinstance(value, int):
            return _lower(int.__int__(value), depth, job)
        if isinstance(value, float):
            return _lower(float.__float__(value), depth, job)
        if isinstance(value, (bytes, bytearray)):
            return bytes(memoryview(value))
        if isinstance(value, Mapping):
            return _lower_dict(dict(value.items()), depth, job)
        if isinstance(value, MutableSequence):
            return _lower_list(list(value), depth, job)
        if isinstance(value, tuple):
            return _lower_tuple(value, depth, job)
        if isinstance(value, (set, frozenset)):
            return _lower_set(value, depth, job)
        for base, dump in DUMPERS.items():
            if isinstance(value, base) and _keeps(value, dump, job):
                return dump(value, job.limits)
    cls = type(value)
    if cls.__module__ == "builtins" and (callable(value) or any(hasattr(value, name) for name in _WORKING)):
        raise Refused(
            f"a {cls.__name__} is something at work, not data, and can't be stored; store its result"
        )
    raise Refused(
        f"a value of class {cls.__module__}.{cls.__qualname__} can't be stored; register the class with "
        f"everthread.register({cls.__name__}), or store plain data"
    )


def _keeps(value: Any, dump: Callable[[Any, Limits], Tagged], job: _Job) -> bool:
    """Whether a subclass of, say, datetime is nothing more than one: others have nanoseconds, or no year."""
    try:
        node = dump(value, job.limits)
        return bool(LOADERS[node.code](node.data) == value)
    except (TypeError, ValueError):
        return False
