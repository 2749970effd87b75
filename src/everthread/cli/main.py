"""``everthread``: the program."""

from __future__ import annotations

import signal
import sys


def main(arguments: list[str] | None = None) -> None:
    """The program. Ends with one of the exit codes of ``docs/guides/command-line.md``."""
    given = sys.argv[1:] if arguments is None else arguments
    code = 130
    try:
        # Here, so that an interrupt while they are loaded ends as any other does.
        from everthread.cli.commands import hint, invoke
        from everthread.cli.errors import NOTHING, USAGE, ending

        code = ending(lambda: invoke(given))
        if code in (USAGE, NOTHING):
            hint(given)
    except KeyboardInterrupt:
        # Before the command began, or after it had ended.
        pass
    if arguments is None:
        # Everything is closed: another Ctrl-C must end the process, not print a traceback of its shutdown.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)
