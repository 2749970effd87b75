"""Checking the document against a schema before it is committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from everthread.arguments import format_path, with_extra
from everthread.errors import InvalidValueError, MissingDependencyError, ValidationError
from everthread.threads.twins import refuse_coroutine


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
