"""Objects that can be saved: their state as a dictionary, taken out and put back."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Self

from everthread.checkpoints.comparing import differences
from everthread.checkpoints.images import Image, attributes_of, set_attributes
from everthread.checkpoints.migrations import upgrade
from everthread.checkpoints.states import ATOMS, CLASS, FIRST_VERSION, VERSION, ObjectState
from everthread.errors import InvalidStateError, InvalidValueError, LimitError, UsageError
from everthread.values import Opaque


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
        held = present if isinstance(present, list | tuple) else ()
        items = [
            _copy_in(owner, item, held[index] if index < len(held) else None, where)
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
