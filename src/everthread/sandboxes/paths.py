"""Paths inside a tree of files: relative, with ``/``, never out of it.

A tree knows a path by its *text*: UTF-8, with every byte that isn't UTF-8 as ``\\xNN`` and every backslash
doubled, so that each path has one text and each text one path. Callers use paths as Python does (``str`` with
surrogate escapes, ``bytes``, ``os.PathLike``).
"""

from __future__ import annotations

import os
import re
from typing import Any

from everthread.errors import InvalidValueError, LimitError

#: What Linux takes in one call, without its NUL.
PATH_BYTES_MAX = 4095
#: How deep folders may be nested: each level is a file descriptor while a tree is looked at.
DEPTH_MAX = 256

_ESCAPED = re.compile(rb"\\\\|\\x([0-9a-f]{2})")

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]


def name_text(name: str) -> str:
    """The text of a name that ``os.scandir()`` gave."""
    if "\\" not in name and name.isascii():
        return name
    return bytes_text(os.fsencode(name))


def bytes_text(path: bytes) -> str:
    """The text of a path in bytes."""
    return path.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def text_bytes(text: str) -> bytes:
    """The path that a text stands for. Raises :class:`InvalidValueError` for a text that stands for none."""
    if "\\" not in text:
        return text.encode()
    path = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()) if found[1] else b"\\", text.encode())
    if bytes_text(path) != text:
        raise InvalidValueError(f"{text!a} is the text of no path", path="path")
    return path


def text_name(text: str) -> str:
    """A path as Python shows it: text with surrogate escapes."""
    return os.fsdecode(text_bytes(text)) if "\\" in text else text


def path_text(path: AnyPath, what: str = "path") -> str:
    """The text of a path that a caller hands in; ``.`` and doubled slashes are taken out.

    Raises :class:`InvalidValueError` if it is absolute, empty, leads out of the tree or can't be a path.
    """
    try:
        raw = os.fsencode(path)
    except TypeError:
        raise InvalidValueError(
            f"{what} must be a path: text, bytes or a pathlib.Path, not {type(path).__name__}", path=what
        ) from None
    except UnicodeEncodeError:
        raise InvalidValueError(f"{what} {path!a} can't be the name of a file here", path=what) from None
    parts = [part for part in raw.split(b"/") if part not in (b"", b".")]
    shown = os.fsdecode(raw[:120])
    if raw.startswith(b"/"):
        raise InvalidValueError(
            f"{what} {shown!a} is absolute; files are named from their folder on", path=what
        )
    if b".." in parts:
        raise InvalidValueError(f"{what} {shown!a} leads out of its folder", path=what)
    if not parts:
        raise InvalidValueError(f"{what} is empty; name a file", path=what)
    if b"\0" in raw:
        raise InvalidValueError(f"{what} {shown!a} contains NUL; no file can be called so", path=what)
    joined = b"/".join(parts)
    check_size(bytes_text(joined), len(joined), len(parts))
    return bytes_text(joined)


def folder_text(folder: AnyPath) -> str:
    """As :func:`path_text`; the tree itself (``""``, ``"."``) is a folder as well."""
    if not isinstance(folder, os.PathLike) and folder in ("", b"", ".", b".", "/", b"/"):
        return ""
    return path_text(folder, "folder")


def check_size(text: str, size: int, depth: int) -> None:
    """Raise :class:`LimitError` for a path that no system call takes."""
    if size > PATH_BYTES_MAX:
        raise LimitError(f"the path {text[:80]}… has {size:,} bytes; at most {PATH_BYTES_MAX:,}", path=text)
    if depth > DEPTH_MAX:
        raise LimitError(f"{text[:80]}… is nested {depth:,} folders deep; at most {DEPTH_MAX}", path=text)


def is_within(text: str, folder: str) -> bool:
    """Whether a path is a folder or in it."""
    return not folder or text == folder or text.startswith(f"{folder}/")


def parents(text: str) -> list[str]:
    """The folders above a path, the outermost first."""
    found, at = [], text.find("/")
    while at >= 0:
        found.append(text[:at])
        at = text.find("/", at + 1)
    return found


def shown(error: Any) -> str:
    """What went wrong with a file, in words."""
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
