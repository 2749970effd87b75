"""What threads report: progress, and that a handle stands on an older version than the newest."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from everthread.versions import Version

#: Called now and then with the number of versions looked at so far, and of how many there are.
Progress = Callable[[int, int], None]


class Recovered(msgspec.Struct, frozen=True):
    """What ``thread.recovered`` says: the newest versions can't be read, the handle stands on ``version``.

    ``first`` to ``last`` are the versions after it that can't be rebuilt; ``reasons`` say why.
    """

    version: Version
    first: int
    last: int
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        lost = version_span(self.first, self.last)
        return f"stands on {self.version}, because {lost} can't be read: {'; '.join(self.reasons)}"


def version_span(first: int, last: int) -> str:
    return f"version {first}" if first == last else f"versions {first}–{last}"
