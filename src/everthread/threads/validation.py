"""Checking the document against a schema before it is committed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from everthread.arguments import format_path, with_extra
from everthread.errors import InvalidValueError, MissingDependencyError, ValidationError
from everthread.threads.twins import refuse_coroutine

if TYPE_CHECKING:
    from everthread.threads.document import TrackedDict

#: The key of a document that holds the JSON Schema, as text, that every commit to its thread must satisfy.
ATTACHED: Final = "everthread:schema"


def validator(schema: Any) -> Callable[[Any], None] | None:
    """A function that raises :class:`ValidationError`, naming the path, if a document breaks the schema.

    ``schema`` is a pydantic model class, a JSON Schema as a dictionary, or such a function itself.
    """
    if schema is None:
        return None
    if isinstance(schema, Mapping):
        return _json_schema(schema)
    if hasattr(schema, "model_validate"):
        return _pydantic(schema)
    if callable(schema):
        return _function(schema)
    raise InvalidValueError(
        "schema must be a JSON Schema dictionary, a pydantic model or a function that raises on bad documents"
    )


def _function(schema: Callable[[Any], Any]) -> Callable[[Any], None]:
    def check(document: Any) -> None:
        refuse_coroutine(schema(document), "the schema", "give a plain function")

    return check


def _json_schema(schema: Mapping[str, Any]) -> Callable[[Any], None]:
    try:
        import jsonschema  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingDependencyError(
            f"checking against a JSON Schema needs jsonschema: {with_extra('jsonschema')}"
        ) from error
    kind = jsonschema.validators.validator_for(schema)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise InvalidValueError(f"this isn't a valid JSON Schema: {error.message}") from error
    checker = kind(schema)

    def check(document: Any) -> None:
        found = jsonschema.exceptions.best_match(checker.iter_errors(document))
        if found is not None:
            path = format_path(tuple(found.absolute_path), "state")
            raise ValidationError(f"{path}: {found.message}; nothing was committed", path=path)

    return check


def _pydantic(model: Any) -> Callable[[Any], None]:
    def check(document: Any) -> None:
        try:
            model.model_validate(document)
        except ValueError as error:
            details = error.errors() if hasattr(error, "errors") else []
            path = format_path(details[0]["loc"] if details else (), "state")
            message = details[0]["msg"] if details else str(error)
            raise ValidationError(f"{path}: {message}; nothing was committed", path=path) from error

    return check


# ── schemas that are recorded in a thread ──


def attachable(schema: Any) -> str:
    """Return a schema as it is recorded in a thread. Raises :class:`InvalidValueError` for what can't be."""
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    if not isinstance(schema, Mapping):
        raise InvalidValueError(
            "schema must be a JSON Schema dictionary or a pydantic model: a function can't be recorded in a "
            "thread; give it to store.thread(schema=…) in every program that writes",
            path="schema",
        )
    try:
        text = json.dumps(schema, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f"this isn't a valid JSON Schema: {error}", path="schema") from error
    _attached(text)
    return text


@lru_cache(maxsize=64)
def _attached(text: str) -> Callable[[Any], None]:
    return _json_schema(json.loads(text))


def check_attached(root: TrackedDict, may_change: bool) -> None:
    """Raise :class:`ValidationError` if a changed document breaks the schema that is attached to its thread,
    or takes that schema away."""
    if ATTACHED in root._changes and not may_change:
        raise ValidationError(
            f"state[{ATTACHED!r}] holds the schema of this thread: change it by attach_schema(); "
            "nothing was committed",
            path=f"state[{ATTACHED!r}]",
        )
    text = root._raw.get(ATTACHED)
    if isinstance(text, str):
        document = root.plain()
        del document[ATTACHED]
        _attached(text)(document)
