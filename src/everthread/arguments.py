"""What callers hand in besides names and values: counts, times, paths, functions, options of a store.

Checked at the door of a verb, before anything is read or written: a slip of the caller is then told in words,
not by an error from somewhere within.
"""

from __future__ import annotations

import operator
import os
import reprlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from everthread.errors import InvalidNameError, InvalidValueError, MissingDependencyError, UnsupportedError
from everthread.limits import Limits

# The one rule for names of threads, logs, keys, subjects and labels.


NAME_BYTES_MAX = 1024


def check_name(name: object, what: str) -> str:
    """Return ``name`` if it is a legal name, else raise :class:`InvalidNameError`.

    Any non-empty text up to 1,024 UTF-8 bytes without NUL or lone surrogates is legal.
    """
    if type(name) is str and name.isascii() and 0 < len(name) <= NAME_BYTES_MAX and "\0" not in name:
        return name
    if not isinstance(name, str):
        raise InvalidNameError(f"{what} must be text, not {type(name).__name__}")
    if not name:
        raise InvalidNameError(f"{what} must not be empty")
    # Checked before encoding, so that a name of many megabytes costs nothing.
    if len(name) > NAME_BYTES_MAX:
        raise InvalidNameError(
            f"{what} has {len(name):,} characters; at most {NAME_BYTES_MAX:,} UTF-8 bytes are allowed"
        )
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidNameError(f"{what} {name!r} contains a lone surrogate") from None
    if size > NAME_BYTES_MAX:
        raise InvalidNameError(f"{what} has {size:,} UTF-8 bytes; at most {NAME_BYTES_MAX:,} are allowed")
    if "\0" in name:
        raise InvalidNameError(f"{what} {name!r} contains NUL")
    return name if type(name) is str else str.__str__(name)


#: What ``keyring=`` may be.
KEYRINGS = (
    "available are a directory (a path or file:///absolute/path), a store of its own (sqlite:///keys.db, "
    "postgresql://…, valkey://…) and memory:"
)
_KEYRING_SCHEMES = (
    "file", "sqlite", "postgresql", "postgres", "valkey", "valkeys", "redis", "rediss", "memory",
)  # fmt: skip
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


def check_limit(value: Any, name: str = "limit") -> int:
    """How many at most; ``None`` for all. Raises :class:`InvalidValueError`."""
    return sys.maxsize if value is None else check_count(value, name)


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


def check_options(namespace: Any, limits: Any, keyring: Any) -> None:
    """Refuse what no store can be opened with."""
    check_keyring(keyring)
    if namespace != "":
        check_name(namespace, "namespace")
    if not isinstance(limits, Limits):
        raise InvalidValueError("limits must be everthread.Limits(…)")


def check_keyring(value: Any) -> None:
    """Something that may name a keyring, or be one; nothing is opened, made or read.

    Raises :class:`InvalidValueError` for another kind of value, :class:`UnsupportedError` for a text that
    names no place where a keyring can be.
    """
    if value is None or isinstance(value, os.PathLike) or callable(getattr(value, "key_for", None)):
        return
    if not isinstance(value, str):
        what = "a text, a pathlib.Path or a keyring object"
        raise InvalidValueError(f"{_wrong(value, 'keyring', what)}; {KEYRINGS}", path="keyring")
    scheme, found, _ = value.partition("://")
    if found and scheme.lower() not in _KEYRING_SCHEMES and scheme.replace("+", "").isalnum():
        raise UnsupportedError(f"no keyring opens {scheme}:// URLs; {KEYRINGS}")
    if not value or "\0" in value:
        raise UnsupportedError(f"this names no directory for a keyring; {KEYRINGS}")


def _wrong(value: Any, name: str, what: str) -> InvalidValueError:
    return InvalidValueError(f"{name} must be {what}, not {type(value).__name__}", path=name)


# How a place inside a document is written in errors, diffs and reports.


KEY_CHARS_MAX: Final = 80

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = KEY_CHARS_MAX


def format_path(path: Sequence[object], root: str = "") -> str:
    """Render ``("todos", 3, "content")`` under ``root="state"`` as ``state.todos[3].content``.

    Keys that aren't identifiers appear as ``["odd key"]``. Long keys are shortened, so that a key of many
    megabytes never ends up in an error message. Never raises, whatever the keys are.
    """
    parts = [root] if root else []
    for key in path:
        if type(key) is str and len(key) <= KEY_CHARS_MAX and key.isidentifier():
            parts.append(f".{key}" if parts else key)
        else:
            parts.append(f"[{_shown(key)}]")
    return "".join(parts)


def _shown(key: object) -> str:
    try:
        text = _short.repr(key)
    except Exception:
        # A key's own repr may fail, and Python refuses to print very long integers.
        return f"<{type(key).__name__}>"
    if text[:1] == "'" and '"' not in text:
        # As in the JSON that most documents come from.
        text = f'"{text[1:-1]}"'
    return text if len(text) <= KEY_CHARS_MAX else f"{text[: KEY_CHARS_MAX - 1]}…"


# Numbers in sentences, and what several sentences say alike.


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun: ``1 thread``, ``2 threads``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def with_extra(extra: str) -> str:
    """What to do about a package that is missing, wherever Everthread came from."""
    return f"install Everthread with its extra {extra!r}, such as pip install '.[{extra}]' in its clone"


@contextmanager
def framework(extra: str) -> Iterator[None]:
    """Around the imports of a framework.

    Raises :class:`MissingDependencyError` if one fails; its message ends with what to install.
    """
    try:
        yield
    except ImportError as error:
        if isinstance(error, MissingDependencyError) or (error.name or "").partition(".")[0] == "everthread":
            raise
        raise MissingDependencyError(
            f"a package isn't installed, or is too old ({error}): {with_extra(extra)}", name=error.name
        ) from error


#: For those who may read a store and not write to it. Opening one takes both: locks and logs stand beside it.
LOOK_ONLY = "to look at it only, copy it, with the files beside it, to a place that you may write to"
