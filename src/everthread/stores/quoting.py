"""Paths in URLs, and behind symbolic links.

What quotes them takes longer to load than a store to open, and few paths need it.
"""

from __future__ import annotations

import os

_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/_.-~")


def quoted(path: str) -> str:
    """A path as it is written in a URL, whatever characters it has."""
    if _PLAIN.issuperset(path):
        return path
    from urllib.parse import quote

    # Names of files are bytes: what isn't UTF-8 in them is kept as it is.
    return quote(path, errors="surrogateescape")


def unquoted(text: str) -> str:
    """A path as it was before it was written into a URL."""
    if "%" not in text:
        return text
    from urllib.parse import unquote

    return unquote(text, errors="surrogateescape")


def options_of(query: str) -> dict[str, str]:
    """The options after the question mark of a URL."""
    if not query:
        return {}
    from urllib.parse import parse_qsl

    return dict(parse_qsl(query, keep_blank_values=True))


def real_path(path: str) -> str:
    """The file that a symbolic link leads to, by a path; other paths as they are."""
    return os.path.realpath(path) if os.path.islink(path) else path
