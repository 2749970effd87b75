"""Versions as people name them: by number, id, label, or their distance from the head."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from everthread.errors import InvalidValueError, VersionNotFoundError

if TYPE_CHECKING:
    from everthread.threads.sync.thread import Thread
    from everthread.versions import Version

#: Said in the help of every command that takes a version.
HOW = (
    "A version is named by its number (7 or v7), its id, its label, head, or head~2 for two before it, "
    "as log lists them."
)

_NUMBER = re.compile(r"v?([0-9]{1,12})")
_BACK = re.compile(r"head(?:~([0-9]{0,9}))?")
_ID = re.compile(r"[0-9]+-[0-9a-f]+")
_LABEL = "label:"


def find_version(thread: Thread, text: str) -> Version:
    """The version of a thread that ``text`` names. A number or id comes before a label that looks like one;
    ``label:7`` is always the label. Of several with a label the newest counts.

    Raises :class:`VersionNotFoundError`.
    """
    if not text.startswith(_LABEL):
        if number := _NUMBER.fullmatch(text):
            return thread.at(int(number[1])).version
        if back := _BACK.fullmatch(text):
            return _before_head(thread, 0 if back[1] is None else int(back[1] or 1))
        if _ID.fullmatch(text):
            # A label may look like an id that is too short.
            with suppress(InvalidValueError):
                return thread.at(text).version
    label = text.removeprefix(_LABEL)
    for version in thread.history(limit=None):
        if version.label == label:
            return version
    raise VersionNotFoundError(f"{thread.name!r} has no version {text!r}. {HOW}")


def _before_head(thread: Thread, steps: int) -> Version:
    for version in thread.history(limit=None):
        if steps == 0:
            return version
        steps -= 1
    raise VersionNotFoundError(f"{thread.name!r} has fewer versions than that; see everthread log")
