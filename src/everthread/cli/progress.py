"""A bar for work that takes longer than a moment."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class Step:
    """Is told how far the work is, and of how much; remembers it. Silent unless stderr is a terminal."""

    def __init__(self, words: str) -> None:
        self._words = words
        self._bar: Progress | None = None
        self.done = self.total = 0

    def __call__(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        if sys.stderr is None or not sys.stderr.isatty():
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._bar.add_task(self._words, total=total)
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)

    def reached(self, what: str) -> str:
        """How far it has come, in words that stand after *stopped*."""
        return f" after {self.done:,} of {self.total:,} {what}" if self.total else " at the beginning"

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def progress(words: str) -> Iterator[Step]:
    """A bar for the length of a block."""
    step = Step(words)
    try:
        yield step
    finally:
        step.end()
