"""Objects that can be saved: their state taken out and put back, and images in memory to go back to."""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import types
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Self

from everthread.checkpoints.arrays import is_array
from everthread.checkpoints.compare import differences
from everthread.checkpoints.states import ATOMS, CLASS, FIRST_VERSION, VERSION, ObjectState, upgrade
from everthread.errors import (
    InvalidStateError,
    InvalidValueError,
    LimitError,
    UsageError,
)
from everthread.values import Erased, Opaque, Personal

if TYPE_CHECKING:
    from types import TracebackType


# ── an object in memory, to go back to ──────────────────────────────────────────────────────────────
# Going back puts the former content into the very same objects, so that whoever refers to one of them,
# inside or outside, still refers to it afterwards, and so that what two of them share stays shared. An
# object that can only be copied, such as a generator of random numbers, gives way to the copy.


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


class Checkpointable:
    """Inherit from this, and the state of your objects can be saved, loaded, compared and rolled back.

    The state is every attribute that doesn't begin with an underscore, objects of this kind among them and
    within lists, tuples and dictionaries included. Override :meth:`_checkpoint_fields` to name the
    attributes yourself, and :meth:`_checkpoint_version` when their meaning changes.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if issubclass(cls, dict | list | tuple | set | frozenset | str | bytes | int | float):
            raise TypeError(f"{cls.__name__} is also a built-in value; keep that in an attribute instead")

    def _checkpoint_fields(self) -> list[str]:
        """The attributes that are saved; by default those that don't begin with an underscore."""
        return [name for name, _ in attributes_of(self) if not name.startswith("_")]

    def _checkpoint_version(self) -> str:
        """The version of the state that this class saves; states of older ones are migrated."""
        return FIRST_VERSION

    def _checkpoint_new(self, class_name: str) -> Checkpointable | None:
        """A new object to load into, where a state holds one of ``class_name`` that this object hasn't.

        By default there is none: no class is ever chosen by a name found in data.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        """The state as a dictionary of its own, with ``"__version__"`` and ``"__class__"`` first.

        Raises :class:`InvalidStateError` for a named field that isn't there and
        :class:`InvalidValueError` for a value that can't be copied.
        """
        name = type(self).__name__
        state = ObjectState({VERSION: str(self._checkpoint_version()), CLASS: name})
        try:
            for field in self._checkpoint_fields():
                _check_field(name, field)
                if not hasattr(self, field):
                    raise InvalidStateError(f"{name} has no attribute {field!r}, which is to be saved")
                state[field] = _copy_out(getattr(self, field), f"{name}.{field}")
        except RecursionError:
            raise LimitError(f"{name} is nested too deeply, or contains itself", path=name) from None
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over ``state``, wholly or, if anything raises, not at all.

        A state of an older version is migrated first. Objects of this kind that are there already are loaded
        into and stay the objects they are. Attributes that the state doesn't have stay as they are. Raises
        :class:`SchemaVersionError` for a state of another version that no migration helps, and
        :class:`InvalidStateError` for one of another class.
        """
        with image_of(self):
            self._take(state)

    def diff(self, other: Checkpointable) -> dict[str, dict[str, Any]]:
        """What leads from here to ``other``: ``{"added", "removed", "changed": {field: (old, new)}}``."""
        if not isinstance(other, Checkpointable):
            raise UsageError(f"diff() takes another Checkpointable, not {type(other).__name__}")
        return differences(self.state_dict(), other.state_dict())

    def clone(self) -> Self:
        """An independent copy, all the way down; what two attributes share stays shared in the copy.

        Only where a private attribute can't be copied (a lock, a connection) do both have the same one.
        """
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        cls = type(self)
        other = cls.__new__(cls)
        memo[id(self)] = other
        saved = frozenset(self._checkpoint_fields())
        private = {}
        for name, value in attributes_of(self):
            if name in saved:
                set_attributes(other, {name: copy.deepcopy(value, memo)})
            else:
                private[name] = value
        for name, value in private.items():
            # A copy that fails half way leaves half a copy in the memo.
            trial = dict(memo)
            try:
                value = copy.deepcopy(value, trial)
                memo.update(trial)
            except Exception:
                trial.clear()
            set_attributes(other, {name: value})
        return other

    def _take(self, state: Mapping[str, Any]) -> None:
        """What :meth:`load_state_dict` does, for a caller that puts everything back if it fails."""
        name = type(self).__name__
        if not isinstance(state, Mapping):
            raise InvalidValueError(f"a state of {name} is a dictionary, not {type(state).__name__}")
        state = upgrade(state, name, str(self._checkpoint_version()))
        if (found := str(state.get(CLASS, name))) not in {cls.__name__ for cls in type(self).__mro__}:
            raise InvalidStateError(f"this is the state of a {found}, it can't be loaded into a {name}")
        values = {}
        for field, value in state.items():
            if field not in (VERSION, CLASS):
                _check_field(name, field)
                values[field] = _copy_in(self, value, getattr(self, field, None), f"{name}.{field}")
        for field, value in values.items():
            setattr(self, field, value)


def image_of(value: Checkpointable) -> Image:
    """``value`` as it is now: a context manager that goes back to it when its block raises."""
    return Image(value, _saved_fields)


def _saved_fields(value: Any) -> Iterable[str] | None:
    return value._checkpoint_fields() if isinstance(value, Checkpointable) else None


def _check_field(owner: str, field: Any) -> None:
    """Refuse what must never be set from data: what makes an object what it is, and how it is loaded."""
    if not isinstance(field, str) or (hasattr(Checkpointable, field) and field not in ("clone", "diff")):
        raise InvalidValueError(f"{field!r} can't be a field of {owner}", path=f"{owner}.{field}")


def _copy_out(value: Any, where: str) -> Any:
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is list:
        return [item if type(item) in ATOMS else _copy_out(item, where) for item in value]
    if kind is dict:
        return {key: item if type(item) in ATOMS else _copy_out(item, where) for key, item in value.items()}
    if kind is tuple:
        return tuple([_copy_out(item, where) for item in value])
    if isinstance(value, Checkpointable):
        return value.state_dict()
    return _copied(value, where)


def _copy_in(owner: Checkpointable, value: Any, present: Any, where: str) -> Any:
    """A copy of ``value``, in which the objects of ``present`` stand for the states that fit them."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if isinstance(present, Checkpointable) and isinstance(value, Mapping):
        fits = value.get(CLASS) in (None, *(cls.__name__ for cls in type(present).__mro__))
        new = None if fits or kind is not ObjectState else owner._checkpoint_new(value[CLASS])
        return load_into(present if new is None else new, value)
    if kind is ObjectState:
        new = owner._checkpoint_new(value[CLASS])
        if new is None:
            raise InvalidStateError(
                f"{where} is a {value[CLASS]} in the checkpoint, and the object has none there: "
                "put one there before loading, or let _checkpoint_new() make it"
            )
        return load_into(new, value)
    if kind is list or kind is tuple:
        former = present if isinstance(present, list | tuple) else ()
        items = [
            _copy_in(owner, item, former[index] if index < len(former) else None, where)
            for index, item in enumerate(value)
        ]
        return items if kind is list else tuple(items)
    if kind is dict:
        entries = present if isinstance(present, dict) else {}
        return {key: _copy_in(owner, item, entries.get(key), where) for key, item in value.items()}
    if kind is Opaque:
        raise InvalidStateError(
            f"{where} holds a value of a class that isn't registered in this process, or has changed since: "
            "everthread.register() the class before loading (for NumPy's: import numpy)"
        )
    return _copied(value, where)


def load_into(target: Checkpointable, state: Mapping[str, Any]) -> Checkpointable:
    """Load, for a caller that puts everything back if it fails."""
    if type(target).load_state_dict is Checkpointable.load_state_dict:
        target._take(state)
    else:
        target.load_state_dict(state)
    return target


def _copied(value: Any, where: str) -> Any:
    try:
        return copy.deepcopy(value)
    except RecursionError:
        raise
    except Exception as error:
        raise InvalidValueError(
            f"{where} can't be copied ({error}); begin its name with an underscore to leave it out, "
            "or name the fields in _checkpoint_fields()",
            path=where,
        ) from error
