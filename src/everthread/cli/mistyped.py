"""A store that stands where the name of a thread is expected: said how it is named instead."""

from __future__ import annotations

import os
from contextlib import suppress

from everthread.cli.telling import note
from everthread.cli.words import typed
from everthread.stores.urls import NETWORK, sqlite_url

#: Commands whose arguments are names of threads, or words.
_NAMING = ("status", "resume", "log", "show", "diff", "search", "fork", "rewind")
_SCHEMES = ("sqlite", "file", *NETWORK)


def hint(given: list[str]) -> None:
    """Say that a store is named with ``--store``, if an argument looks like one."""
    command = next((word for word in given if word in _NAMING), None)
    if command is None or any(word.partition("=")[0] == "--store" for word in given):
        return
    for word in given:
        url = _store(word)
        if url is not None:
            with suppress(OSError):
                note(f"{word} looks like a store, not a name: everthread {command} --store {typed(url)}")
            return


def _store(word: str) -> str | None:
    """The URL of the store that a word means, if it looks like one."""
    scheme, found, _ = word.partition("://")
    if found:
        return word if scheme in _SCHEMES else None
    try:
        if os.path.isfile(os.path.join(word, "everthread.json")):
            return f"file://{os.path.abspath(word)}"
        with open(word, "rb") as file:
            return sqlite_url(word) if file.read(16) == b"SQLite format 3\0" else None
    except (OSError, ValueError):
        return None
