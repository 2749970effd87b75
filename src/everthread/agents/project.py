"""The default thread of a project, and how people and models name an item of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from everthread.agents.quoting import quoted
from everthread.errors import NotFoundError, UsageError

T = TypeVar("T")

THREAD_VARIABLE = "EVERTHREAD_THREAD"
#: The file in a project's `.everthread` folder that names its default thread.
THREAD_FILE = "thread"
#: Items that an error lists, and the characters that it shows of each.
_LISTED_MAX = 5
_LISTED_CHARACTERS = 30


def chosen_thread(given: str | None) -> str | None:
    """Return the given thread, else that of $EVERTHREAD_THREAD, else the project's default, if any."""
    return given or os.environ.get(THREAD_VARIABLE) or default_thread(os.getcwd())


def default_thread(folder: str) -> str | None:
    """Return the default thread of the nearest project at or above a folder, if it has one."""
    from everthread.stores.urls import FOLDER

    here = os.path.abspath(folder)
    while True:
        place = os.path.join(here, FOLDER)
        if os.path.isdir(place):
            try:
                with open(os.path.join(place, THREAD_FILE), encoding="utf-8") as file:
                    return file.read(4096).strip() or None
            except (OSError, UnicodeDecodeError):
                return None
        above = os.path.dirname(here)
        if above == here:
            return None
        here = above


def find_item(items: Iterable[T], given: str, what: str, text: Callable[[T], Any]) -> T:
    """Return the one item whose id starts with `given`, or whose text is or contains it.

    Raises :class:`NotFoundError` if there is none, and :class:`UsageError` if there are several.
    """
    found = list(items)
    wanted = given.casefold()
    rules: list[Callable[[T], bool]] = [
        lambda item: str(item.id) == given,  # type: ignore[attr-defined]
        lambda item: str(text(item)).casefold() == wanted,
        lambda item: str(item.id).startswith(given),  # type: ignore[attr-defined]
        lambda item: wanted in str(text(item)).casefold(),
    ]
    for fits in rules:
        hits = [item for item in found if fits(item)]
        if len(hits) == 1:
            return hits[0]
        if hits:
            raise UsageError(f"{given!r} fits {len(hits)} {what}s: {_listed(hits, text)}; give the id")
    names = _listed(found, text)
    raise NotFoundError(f"there is no {what} {given!r}; {f'there is {names}' if names else 'there is none'}")


def _listed(items: list[T], text: Callable[[T], Any]) -> str:
    return ", ".join(
        f"{item.id} ({quoted(str(text(item)), _LISTED_CHARACTERS)})"  # type: ignore[attr-defined]
        for item in items[:_LISTED_MAX]
    )
