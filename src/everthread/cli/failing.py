"""From errors to words and exit codes."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import click

from everthread.cli.words import clean
from everthread.errors import (
    DamageError,
    EverthreadError,
    NotFoundError,
    RetryError,
    SessionBusyError,
    StoreBusyError,
    UsageError,
)

#: What a command ends with. 3: nothing is there, or nothing to resume. 5: somebody else is at it.
OK, FAILURE, USAGE, NOTHING, DRIFT, BUSY, CORRUPT = range(7)
#: As shells have it: 128 and the number of the signal.
INTERRUPTED = 130


def code_of(error: EverthreadError) -> int:
    """The exit code that says what kind of error this is."""
    if isinstance(error, NotFoundError):
        return NOTHING
    if isinstance(error, StoreBusyError | SessionBusyError | RetryError):
        return BUSY
    if isinstance(error, DamageError):
        return CORRUPT
    return USAGE if isinstance(error, UsageError) else FAILURE


def run(group: click.Group, arguments: list[str]) -> int:
    """Run a command; its exit code. Errors become words, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            # What the terminal has no letter for is escaped, not an error.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _invoke(group, arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read us has seen enough, as in `everthread log x | head`.
        _silence()
        return OK
    except OSError as error:
        _silence()
        where = f": {error.filename}" if error.filename else ""
        return _tell(f"{error.strerror or error}{where}", FAILURE)
    return code


def _invoke(group: click.Group, arguments: list[str]) -> int:
    try:
        if "_EVERTHREAD_COMPLETE" in os.environ:
            from click.shell_completion import shell_complete

            wanted = os.environ["_EVERTHREAD_COMPLETE"]
            return shell_complete(group, {}, "everthread", "_EVERTHREAD_COMPLETE", wanted)
        with group.make_context("everthread", list(arguments)) as context:
            group.invoke(context)
        return OK
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.UsageError as error:
        return _tell_usage(error)
    except click.ClickException as error:
        return _tell(error.format_message(), FAILURE)
    except click.Abort as error:
        stopped = isinstance(error.__context__, KeyboardInterrupt)
        return _tell("stopped; nothing is half done", INTERRUPTED if stopped else FAILURE)
    except KeyboardInterrupt:
        return _tell("stopped; nothing is half done", INTERRUPTED)
    except EverthreadError as error:
        return _tell(str(error), code_of(error))
    except RecursionError:
        return _tell("what is stored there is nested too deeply to be shown", FAILURE)


def _tell_usage(error: click.UsageError) -> int:
    if error.ctx is not None:
        with suppress(OSError):
            click.echo(error.ctx.get_usage(), err=True)
            click.echo(f"{error.ctx.command_path} --help says more", err=True)
    return _tell(error.format_message(), USAGE)


def _tell(words: str, code: int) -> int:
    # Where nobody listens any more there is still the exit code.
    with suppress(OSError):
        for line in words.splitlines() or [""]:
            click.echo(f"everthread: {clean(line)}", err=True)
    return code


def _silence() -> None:
    """If nothing more can be written to stdout, the interpreter must not try when it ends."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
