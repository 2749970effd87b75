"""Arguments of a tool call compared with the tool's schema, in workflow code: nothing here reads a clock or
draws a random number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.arguments import format_path

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list, tuple),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def mismatch(schema: Any, arguments: Any) -> str | None:
    """Return why arguments don't fit a schema, in words for the model; ``None`` if they do.

    A class with ``model_validate()`` judges by that. Of a JSON Schema these words are looked at: ``type``,
    ``enum``, ``const``, ``required``, ``properties``, ``additionalProperties: false`` and ``items``.
    """
    validate = getattr(schema, "model_validate", None)
    if validate is not None:
        try:
            validate(arguments)
        except ValueError as error:
            return str(error)
        return None
    return _mismatch(schema, arguments, []) if isinstance(schema, Mapping) else None


def _mismatch(schema: Any, value: Any, path: list[str | int]) -> str | None:
    if not isinstance(schema, Mapping):
        return "nothing is allowed here" if schema is False else None
    where = format_path(path) if path else "the arguments"
    wanted = schema.get("type")
    names = [wanted] if isinstance(wanted, str) else wanted if isinstance(wanted, list) else []
    if names and not any(_is_a(value, name) for name in names):
        return f"{where} must be {' or '.join(map(str, names))}, not {_name_of(value)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} must be one of {schema['enum']!r}, not {value!r}"
    if "const" in schema and value != schema["const"]:
        return f"{where} must be {schema['const']!r}, not {value!r}"
    if isinstance(value, Mapping):
        return _object_mismatch(schema, value, path, where)
    if isinstance(value, list | tuple) and "items" in schema:
        found = (_mismatch(schema["items"], each, [*path, at]) for at, each in enumerate(value))
        return next((each for each in found if each is not None), None)
    return None


def _object_mismatch(
    schema: Mapping[str, Any], value: Mapping[str, Any], path: list[str | int], where: str
) -> str | None:
    known = schema.get("properties") or {}
    for name in schema.get("required") or ():
        if name not in value:
            return f"{where} must have {name!r}"
    for name, each in value.items():
        if name in known:
            found = _mismatch(known[name], each, [*path, name])
            if found is not None:
                return found
        elif schema.get("additionalProperties") is False:
            return f"{where} must not have {name!r}; known are: {', '.join(map(str, known)) or 'none'}"
    return None


def _is_a(value: object, name: object) -> bool:
    kinds = _TYPES.get(name) if isinstance(name, str) else None
    if kinds is None:
        # A type that this doesn't know.
        return True
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return bool(value.is_integer())
    return isinstance(value, kinds)


def _name_of(value: Any) -> str:
    return next((name for name in _TYPES if name != "number" and _is_a(value, name)), type(value).__name__)
