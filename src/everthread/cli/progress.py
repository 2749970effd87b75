"""A bar for work that takes longer than a moment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


@contextmanager
def progress(words: str) -> Iterator[Callable[[int, int], None]]:
    """A function to be told how far the work is, and of how much. Silent unless stderr is a terminal."""
    bar: Progress | None = None

    def step(done: int, total: int) -> None:
        nonlocal bar
        if sys.stderr is None or not sys.stderr.isatty():
            return
        if bar is None:
            from rich.console import Console
            from rich.progress import Progress

            bar = Progress(console=Console(stderr=True), transient=True)
            bar.start()
            bar.add_task(words, total=total)
        bar.update(bar.task_ids[0], completed=done, total=total)

    try:
        yield step
    finally:
        if bar is not None:
            bar.stop()
