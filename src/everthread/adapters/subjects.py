"""Whose data a framework's records are: sealed on their way in; opened, or missing, on their way out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.values import Erased, Personal


def sealed(subject: str | None, value: Any) -> Any:
    """The value as it is kept: under that person's key, until ``store.erase(subject)``."""
    if subject is None or isinstance(value, Personal | Erased):
        return value
    return Personal(subject, value)


def sealed_values(subject: str | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """Each value by itself, so that a change costs no more than what changed."""
    return {key: sealed(subject, value) for key, value in values.items()}


def opened(value: Any) -> Any:
    """The value itself; ``None`` if it was erased."""
    return value.value if isinstance(value, Personal | Erased) else value


def opened_record(value: Any) -> dict[str, Any] | None:
    """The same for what was sealed as a dictionary; ``None`` if it isn't one any more."""
    value = opened(value)
    return value if isinstance(value, dict) else None


def opened_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values that were sealed one by one; erased ones are left out."""
    return {key: opened(value) for key, value in values.items() if not isinstance(value, Erased)}
