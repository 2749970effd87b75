"""Standing orders: constraints of a whole namespace, which every briefing in it shows. Without I/O.

They are in the document of a thread beside the threads of the namespace, so that exports and copies take them
along and their history shows who ordered what. No session and no tool of a model leads there.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec

from everthread.errors import InvalidValueError
from everthread.sessions.records import moment

#: The space beside the threads of a namespace, the thread in it, and the field of its document.
SPACE = "orders"
THREAD = "orders"
ORDERS = "orders"
_TEXT_CHARS_MAX = 4_000
_AUTHOR_CHARS_MAX = 200


class StandingOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A constraint for all agents of a namespace: what is ordered, by whom, and since when."""

    id: str
    text: str
    author: str
    at_us: int

    @property
    def at(self) -> datetime.datetime:
        return moment(self.at_us)

    def __str__(self) -> str:
        return self.text


def checked(value: Any, what: str) -> str:
    """Text that people wrote. Raises :class:`InvalidValueError`."""
    if not isinstance(value, str) or not value.strip() or len(value) > _TEXT_CHARS_MAX:
        raise InvalidValueError(
            f"the {what} of a constraint is text of at most {_TEXT_CHARS_MAX:,} characters, and not empty",
            path=what,
        )
    return value


def checked_author(value: Any) -> str:
    """A name on one line, since it stands in the label of the order."""
    author = checked(value, "author")
    if len(author) > _AUTHOR_CHARS_MAX or not author.isprintable():
        raise InvalidValueError(
            f"the author of a constraint is a name on one line, of at most {_AUTHOR_CHARS_MAX} characters",
            path="author",
        )
    return author


def orders_in(document: Mapping[str, Any]) -> list[StandingOrder]:
    """The orders in a document, in the order in which they were given."""
    found = document.get(ORDERS)
    if not isinstance(found, Mapping):
        return []
    return [
        StandingOrder(id=id_, text=each["text"], author=each["author"], at_us=each["at_us"])
        for id_, each in found.items()
    ]
