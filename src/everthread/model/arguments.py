"""What callers hand in besides names and values: counts, times, paths, functions.

Checked at the door of a verb, before anything is read or written: a slip of the caller is then told in words,
not by an error from somewhere within.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from typing import Any

from everthread.errors import InvalidValueError

#: A hundred years: longer than that is for ever, and every clock has room for it.
_SECONDS_MAX = 100 * 365 * 86_400.0


def check_count(value: Any, name: str, least: int = 0) -> int:
    """A whole number, ``least`` or more. Raises :class:`InvalidValueError`."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise _wrong(value, name, "a whole number") from None
    if number < least:
        small = "not be negative" if least == 0 else f"be {least} at least"
        raise InvalidValueError(f"{name} must {small}", path=name)
    return number


def check_seconds(value: Any, name: str) -> float:
    """How many seconds to wait; none if that time is over already. Raises :class:`InvalidValueError`."""
    # NaN is no number: it is never reached, and would be waited for to no end.
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise _wrong(value, name, "a number of seconds")
    return float(min(max(value, 0), _SECONDS_MAX))


def check_path(value: Any, name: str = "path") -> str:
    """A path as text. Raises :class:`InvalidValueError` for what no file can be called."""
    try:
        path = os.fspath(value)
    except TypeError:
        raise _wrong(value, name, "a path: text, or a pathlib.Path") from None
    if not isinstance(path, str):
        raise _wrong(value, name, "a path: text, or a pathlib.Path (os.fsdecode() makes text of bytes)")
    if not path:
        raise InvalidValueError(f"{name} is empty; name a file", path=name)
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise InvalidValueError(f"{name} {path[:80]!a} can't be the name of a file here", path=name) from None
    if "\0" in path:
        raise InvalidValueError(f"{name} {path[:80]!a} contains NUL; no file can be called so", path=name)
    return path


def check_function(value: Any, name: str) -> None:
    """Something that can be called."""
    if not callable(value):
        raise _wrong(value, name, "a function")


def check_progress(value: Any) -> None:
    """What is told how far long work has come: a function, or nothing."""
    if value is not None:
        check_function(value, "progress")


def check_mapping(value: Any, name: str) -> None:
    """A dictionary, or something like one."""
    if not isinstance(value, Mapping):
        raise _wrong(value, name, "a dictionary")


def check_several(value: Any, name: str, of: str) -> None:
    """Something to iterate over; a text isn't meant to be taken apart into its letters."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise _wrong(value, name, f"a list of {of}")


def _wrong(value: Any, name: str, what: str) -> InvalidValueError:
    return InvalidValueError(f"{name} must be {what}, not {type(value).__name__}", path=name)
