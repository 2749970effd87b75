"""A word to whoever sits at the terminal while a server doesn't answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Timer

from everthread.cli.telling import note

#: Silence up to here is what everybody expects.
_SILENT_S = 1.0


@contextmanager
def told_to_wait(url: str) -> Iterator[None]:
    """Within the block: say on a terminal that a server is being connected to, if that takes long."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    timer = Timer(_SILENT_S, _tell, (url,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell(url: str) -> None:
    scheme, _, rest = url.partition("://")
    # Neither who nor with which password.
    hosts = rest.partition("/")[0].partition("?")[0].rpartition("@")[2]
    with suppress(OSError):
        note(f"connecting to {scheme}://{hosts} …")
