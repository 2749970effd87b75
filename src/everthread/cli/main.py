"""``everthread``: the program.

What every start pays for stays small: ``--version`` answers before anything is imported, ``status`` without
click, and neither rich nor a store is touched before a command needs it.
"""

from __future__ import annotations

import os
import sys

#: Wrong usage, and what isn't there.
_MAY_BE_MISTYPED = (2, 3)


def main(arguments: list[str] | None = None) -> None:
    """The program. Ends with one of the exit codes of ``docs/guides/command-line.md``."""
    given = sys.argv[1:] if arguments is None else arguments
    if given == ["--version"]:
        from everthread import __version__

        sys.stdout.write(f"everthread {__version__}\n")
        return
    try:
        from everthread.cli.failing import ending

        code = ending(lambda: _run(given))
        if code in _MAY_BE_MISTYPED:
            from everthread.cli.mistyped import hint

            hint(given)
    except KeyboardInterrupt:
        # While it was still starting.
        code = 130
    if arguments is None:
        _leave(code)
    sys.exit(code)


def _run(given: list[str]) -> int:
    from everthread.cli.quick import quickly

    code = quickly(given)
    if code is None:
        from everthread.cli.commands import invoke

        code = invoke(given)
    return code


def _leave(code: int) -> None:
    """End the process at once. Everything is written and closed; taking the interpreter apart in an orderly
    way would take a fifth of the time of a short command."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except OSError:
        return
    os._exit(code)
