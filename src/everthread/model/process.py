"""Whether this process is still the one that opened something, or a child that fork(2) made of it."""

from __future__ import annotations

import os

#: How many forks lie between this process and the first that loaded this module. Whoever noted another number
#: is in a child now. Asking the kernel for the process id instead would cost a system call each time.
generation = 0


def _in_child() -> None:
    global generation  # noqa: PLW0603 - it is this process that has one
    generation += 1


os.register_at_fork(after_in_child=_in_child)
