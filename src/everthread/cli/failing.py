"""From errors to words and exit codes: 0 ok, 1 failure, 2 usage, 3 nothing to resume, 4 drift, 5 busy, 6 corrupt."""

from __future__ import annotations

import os
import sys

import click

from everthread.errors import (
    DamageError,
    EverthreadError,
    InvalidNameError,
    InvalidValueError,
    NotFoundError,
    SessionBusyError,
    StoreBusyError,
    UsageError,
)

OK, FAILURE, USAGE, NOTHING, DRIFT, BUSY, CORRUPT = range(7)


def code_of(error: EverthreadError) -> int:
    """The exit code that says what kind of error this is."""
    if isinstance(error, NotFoundError):
        return NOTHING
    if isinstance(error, StoreBusyError | SessionBusyError):
        return BUSY
    if isinstance(error, DamageError):
        return CORRUPT
    if isinstance(error, UsageError | InvalidValueError | InvalidNameError):
        return USAGE
    return FAILURE


def run(group: click.Group, arguments: list[str]) -> None:
    """Run a command; errors become one line on stderr and an exit code, never a traceback."""
    try:
        code = group.main(arguments, prog_name="everthread", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as ended:
        code = ended.exit_code
    except click.UsageError as error:
        error.show()
        code = USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped; nothing is half done", err=True)
        code = 130
    except EverthreadError as error:
        click.echo(f"everthread: {error}", err=True)
        code = code_of(error)
    except BrokenPipeError:
        # Whoever read us has seen enough, as in `everthread log x | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = OK
    sys.exit(code if isinstance(code, int) else OK)
