"""Texts that a store makes findable: an index apart from everything else, made when somebody searches.

It is derived and may be dropped at any time. It holds words in their plain form, never a text, and never
anything sealed. ``mark`` is the caller's note of what the index covers of a line: whoever brings it up to
date names the mark that they began with, so that two who do it at once can't mix.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Text(msgspec.Struct, frozen=True):
    """What can be found of a line: ``words`` in plain form, with spaces between them, under a ``key`` that is
    unique in the line."""

    key: str
    kind: str
    words: str


class Covered(msgspec.Struct, frozen=True):
    """The texts of a line that come and go between two marks."""

    uid: bytes
    before: bytes | None
    mark: bytes
    gone: Sequence[str] = ()
    texts: Sequence[Text] = ()


class Wanted(msgspec.Struct, frozen=True):
    """What is looked for: ``terms`` of one word, or of several that follow each other, which must all occur,
    in texts of these kinds, and of these lines unless that is ``None``."""

    terms: tuple[tuple[str, ...], ...]
    kinds: tuple[str, ...]
    uids: tuple[bytes, ...] | None
    limit: int


class TextFound(msgspec.Struct, frozen=True):
    """A text that fits; a higher score fits better."""

    uid: bytes
    key: str
    kind: str
    score: float
