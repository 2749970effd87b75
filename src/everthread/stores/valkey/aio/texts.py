"""No index of texts: a search reads the threads themselves."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.errors import UnsupportedError
from everthread.stores.contract import Covered, TextFound, Wanted


class NoTexts:
    """The verbs of an index: nobody calls them, as the store's capabilities say."""

    async def texts_covered(self, space: str) -> dict[bytes, bytes]:
        raise _none()

    async def text_keys(self, space: str, uid: bytes, kinds: Sequence[str]) -> list[str]:
        raise _none()

    async def cover_texts(self, space: str, covered: Covered) -> bool:
        raise _none()

    async def forget_texts(self, space: str, uids: Sequence[bytes]) -> None:
        raise _none()

    async def find_texts(self, space: str, wanted: Wanted) -> list[TextFound]:
        raise _none()

    async def drop_texts(self) -> None:
        """There is nothing to drop."""


def _none() -> UnsupportedError:
    return UnsupportedError("this store keeps no index of texts")
