"""Hooks of a session, however they are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.errors import InvalidValueError
from everthread.hooks import SessionLifecycle


def hooks_of(given: Any) -> SessionLifecycle:
    """A :class:`SessionLifecycle` as it is, or one made from a dictionary: event → function or several."""
    if given is None:
        return SessionLifecycle()
    if isinstance(given, SessionLifecycle):
        return given
    if not isinstance(given, Mapping):
        raise InvalidValueError(
            f"hooks is a SessionLifecycle or a dictionary of functions, not {type(given).__name__}",
            path="hooks",
        )
    hooks = SessionLifecycle()
    for event, functions in given.items():
        for function in functions if isinstance(functions, list | tuple) else (functions,):
            hooks.register(event, function)
    return hooks
