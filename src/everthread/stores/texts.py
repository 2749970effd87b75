"""Texts that a store makes findable: an index apart from everything else, made when somebody searches.

It is derived and may be dropped at any time. It holds words in their plain form, never a text, and never
anything sealed. ``mark`` is the caller's note of what the index covers of a line: whoever brings it up to
date names the mark that they began with, so that two who do it at once can't mix.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from everthread.errors import UnsupportedError


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


class NoTexts:
    """The verbs of a store that keeps no index: nobody calls them, as its capabilities say."""

    def texts_covered(self, space: str) -> dict[bytes, bytes]:
        raise self._none()

    def text_keys(self, space: str, uid: bytes, kinds: Sequence[str]) -> list[str]:
        raise self._none()

    def cover_texts(self, space: str, covered: Covered) -> bool:
        raise self._none()

    def forget_texts(self, space: str, uids: Sequence[bytes]) -> None:
        raise self._none()

    def find_texts(self, space: str, wanted: Wanted) -> list[TextFound]:
        raise self._none()

    def drop_texts(self) -> None:
        """There is nothing to drop."""

    def _none(self) -> UnsupportedError:
        return UnsupportedError("this store keeps no index of texts")
