"""An object as it is in memory at one moment, to go back to.

Going back puts the former content into the very same objects, so that whoever refers to one of them, inside
or outside, still refers to it afterwards, and so that what two of them share stays shared. An object that can
only be copied, such as a generator of random numbers, gives way to the copy.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import types
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from everthread.checkpoints.arrays import is_array
from everthread.checkpoints.states import ATOMS
from everthread.values import Erased, Opaque, Personal

if TYPE_CHECKING:
    from types import TracebackType

#: Looking into these would reach the program rather than its data.
_PROGRAM = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


#: These never change, so that nothing has to be kept of them.
_FIXED = (
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal, uuid.UUID),
    *(enum.Enum, PurePath, range, frozenset, tuple, Personal, Erased, Opaque),
)

_INTERRUPTS_MAX = 10


class Image:
    """Everything that can change in an object and below it.

    It holds the attributes of the object and of every object like it that it holds, the private ones as
    well, and the containers in them. The insides of other objects belong to it where they are part of a
    field that is saved: what is private may be a connection or a lock, whose insides aren't ours.

    As a context manager it goes back when the block raises, whatever it raises.
    """

    def __init__(self, root: Any, fields: Callable[[Any], Iterable[str] | None]) -> None:
        """``fields`` names the saved fields of an object whose attributes are kept, else gives ``None``."""
        self._fields = fields
        self._undo: list[Callable[[], None]] = []
        #: id → the object, so that the id stays taken, and whether its insides were looked into.
        self._seen: dict[int, tuple[Any, bool]] = {}
        #: id → the copy that takes the place of an object that can't be put back itself.
        self._copies: dict[int, Any] = {}
        self._pending: list[tuple[Any, bool]] = [(root, True)]
        while self._pending:
            self._visit(*self._pending.pop())

    def restore(self) -> list[Exception]:
        """Go back, as far as possible; what wasn't is returned. An interrupt is raised when all is done."""
        problems: list[Exception] = []
        interrupts: list[BaseException] = []
        at = 0
        while at < len(self._undo):
            try:
                self._undo[at]()
                at += 1
            except Exception as error:
                problems.append(error)
                at += 1
            except BaseException as error:
                # The same again: putting back twice does no harm, and half is worse than late.
                interrupts.append(error)
                at += len(interrupts) > _INTERRUPTS_MAX
        if interrupts:
            raise interrupts[0]
        return problems

    def __enter__(self) -> Image:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for problem in self.restore():
                error.add_note(f"a part of the object could not be put back: {problem!r}")

    def _visit(self, value: Any, inside: bool) -> None:
        if type(value) in ATOMS:
            return
        known = self._seen.get(id(value))
        if known is not None and (known[1] or not inside):
            return
        self._seen[id(value)] = (value, inside)
        undo = _contents(value, self._former)
        if undo is not None and known is None:
            self._undo.append(undo)
        for item in _items(value):
            if type(item) not in ATOMS:
                self._pending.append((item, inside))
        saved = self._fields(value)
        if saved is not None or (inside and _is_data(value)):
            self._keep_attributes(value, None if saved is None else frozenset(saved), known is None)
        elif inside and undo is None and not isinstance(value, (*_FIXED, *_PROGRAM)):
            # What can't be copied can't be saved either.
            with suppress(Exception):
                self._copies[id(value)] = copy.deepcopy(value)

    def _former(self, value: Any) -> Any:
        """What stood where ``value`` stands in something kept."""
        return self._copies.get(id(value), value)

    def _keep_attributes(self, value: Any, saved: frozenset[str] | None, first: bool) -> None:
        attributes = dict(attributes_of(value))
        if first or saved is None:
            self._undo.append(
                lambda: _put_back(value, {name: self._former(item) for name, item in attributes.items()})
            )
        for name, item in attributes.items():
            if type(item) not in ATOMS:
                self._pending.append((item, saved is None or name in saved))


def attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes that the object itself has, those in slots as well."""
    yield from getattr(value, "__dict__", {}).items()
    for name in slots_of(type(value)):
        try:
            yield name, object.__getattribute__(value, name)
        except AttributeError:
            continue


def slots_of(cls: type) -> list[str]:
    """The names of the slots of a class, as they are after name mangling."""
    names = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{base.__name__.lstrip('_')}{name}" if private else name)
    return names


def set_attributes(value: Any, attributes: dict[str, Any]) -> None:
    """Set attributes where they are kept, past any ``__setattr__`` or property."""
    slots = frozenset(slots_of(type(value)))
    for name, item in attributes.items():
        if name in slots:
            object.__setattr__(value, name, item)
        else:
            value.__dict__[name] = item


def _put_back(value: Any, attributes: dict[str, Any]) -> None:
    if hasattr(value, "__dict__"):
        value.__dict__.clear()
    for name in slots_of(type(value)):
        if name not in attributes and hasattr(value, name):
            object.__delattr__(value, name)
    set_attributes(value, attributes)


def _is_data(value: Any) -> bool:
    """Whether this is an object that is the sum of its attributes, as far as copying is concerned."""
    cls: Any = type(value)
    return (
        cls.__reduce_ex__ is object.__reduce_ex__
        and cls.__reduce__ is object.__reduce__
        and not isinstance(value, _PROGRAM)
        and (hasattr(value, "__dict__") or bool(slots_of(cls)))
    )


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return dict.values(value)
    if isinstance(value, list | tuple | set | frozenset | deque):
        return value
    return ()


def _contents(value: Any, former: Callable[[Any], Any]) -> Callable[[], None] | None:
    """What puts the present content back into a container; ``None`` for what isn't one.

    By the methods of the built-in types, since those of a subclass may do more.
    """
    if isinstance(value, OrderedDict):
        return _ordered(value, former)
    if isinstance(value, dict):
        return _mapped(value, former)
    if isinstance(value, list):
        listed = list.__getitem__(value, slice(None))
        return lambda: list.__setitem__(value, slice(None), [former(item) for item in listed])
    if isinstance(value, set):
        elements = frozenset(value)
        return lambda: (set.clear(value), set.update(value, elements), None)[-1]
    if isinstance(value, deque):
        queued = tuple(value)
        return lambda: (deque.clear(value), deque.extend(value, map(former, queued)), None)[-1]
    if isinstance(value, bytearray):
        content = bytes(value)
        return lambda: bytearray.__setitem__(value, slice(None), content)
    return _elements(value) if is_array(value) else None


def _mapped(value: dict[Any, Any], former: Callable[[Any], Any]) -> Callable[[], None]:
    entries = dict(dict.items(value))

    def undo() -> None:
        dict.clear(value)
        dict.update(value, {key: former(item) for key, item in entries.items()})

    return undo


def _ordered(value: OrderedDict[Any, Any], former: Callable[[Any], Any]) -> Callable[[], None]:
    entries = list(OrderedDict.items(value))

    def undo() -> None:
        OrderedDict.clear(value)
        for key, item in entries:
            OrderedDict.__setitem__(value, key, former(item))

    return undo


def _elements(array: Any) -> Callable[[], None] | None:
    if not array.flags.writeable:
        return None
    copied = array.copy()
    return lambda: array.__setitem__(..., copied)
