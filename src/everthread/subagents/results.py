"""Whether what a subagent answers is what its parent asked for. No I/O, and no library that the caller hasn't
brought along: a pydantic model is used by its own methods."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from everthread.errors import InvalidValueError
from everthread.subagents.task import shortened

#: A pydantic model, a msgspec Struct, a dataclass, another type such as ``list[int]``, or a function that
#: gives the value to take, or raises.
Wanted = Any

_GENERICS = (types.GenericAlias, types.UnionType, type(typing.List[int]), type(typing.Optional[int]))  # noqa: UP006, UP045
_PLAIN = (int, float, str, bool, bytes, list, dict, tuple, set, frozenset, type(None))


class UnfitError(Exception):
    """What was answered isn't what was asked for; the text is for the model."""


def check_wanted(wanted: Wanted) -> None:
    """Raises :class:`InvalidValueError` if nothing can be checked by this."""
    if wanted is None or _is_pydantic(wanted) or _is_type(wanted) or callable(wanted):
        return
    raise InvalidValueError(
        "result is a pydantic model, a msgspec Struct, a dataclass, a type or a function, "
        f"not {type(wanted).__name__}",
        path="result",
    )


def fitted(value: Any, wanted: Wanted, name: str) -> Any:
    """The value in the form that was asked for. Text is read as JSON where something else is wanted. Raises
    :class:`UnfitError`."""
    if wanted is None:
        return value
    try:
        return _conversion(wanted)(value)
    except Exception as error:
        what = getattr(wanted, "__name__", None) or str(wanted)
        raise UnfitError(
            shortened(f"The answer of the subagent {name!r} doesn't fit {what}: {error}")
        ) from error


def restored(value: Any, wanted: Wanted, name: str) -> Any:
    """A value that fitted when it was recorded, in the form that was asked for; as it was recorded, where
    another release of the program wants another form, or a function gave it."""
    if wanted is None or not (_is_pydantic(wanted) or _is_type(wanted)):
        return value
    with suppress(UnfitError):
        return fitted(value, wanted, name)
    return value


def plain_form(value: Any) -> Any:
    """The value as JSON-like data where it is a model; anything else as it is."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, msgspec.Struct) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return msgspec.to_builtins(value)
    if isinstance(value, list | tuple):
        return [plain_form(item) for item in value]
    if isinstance(value, dict):
        return {key: plain_form(item) for key, item in value.items()}
    return value


def _is_pydantic(wanted: Wanted) -> bool:
    """A model, a dataclass of pydantic's, or a ``TypeAdapter``."""
    return any(hasattr(wanted, name) for name in ("__pydantic_validator__", "validate_python"))


def _is_type(wanted: Wanted) -> bool:
    if isinstance(wanted, _GENERICS) or wanted in _PLAIN:
        return True
    return isinstance(wanted, type) and (
        issubclass(wanted, msgspec.Struct) or dataclasses.is_dataclass(wanted)
    )


def _conversion(wanted: Wanted) -> Callable[[Any], Any]:
    if _is_pydantic(wanted):
        validator = getattr(wanted, "__pydantic_validator__", wanted)
        return lambda value: _by_pydantic(wanted, validator, value)
    if _is_type(wanted):
        return lambda value: _by_msgspec(wanted, value)
    found: Callable[[Any], Any] = wanted
    return found


def _by_pydantic(wanted: Wanted, validator: Any, value: Any) -> Any:
    if isinstance(value, str | bytes):
        return validator.validate_json(value)
    if isinstance(wanted, type) and isinstance(value, wanted) and hasattr(value, "model_dump"):
        # As it is: whether what was changed in it since still fits shows only anew.
        value = value.model_dump()
    return validator.validate_python(value)


def _by_msgspec(wanted: Wanted, value: Any) -> Any:
    if isinstance(value, str | bytes) and wanted not in (str, bytes):
        return msgspec.json.decode(value, type=wanted)
    return msgspec.convert(plain_form(value), wanted)
