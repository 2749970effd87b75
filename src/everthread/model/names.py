"""The one rule for names of threads, logs, keys, subjects and labels."""

from __future__ import annotations

from everthread.errors import InvalidNameError

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
