"""From errors to words and exit codes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from everthread.cli.output import clean, say
from everthread.errors import (
    DamageError,
    EverthreadError,
    NotFoundError,
    RetryError,
    SessionBusyError,
    StoreBusyError,
    UsageError,
)

#: What a command ends with. 3: nothing is there, or nothing to resume. 5: another run or process holds it.
#: 7: sealed values can't be opened here.
OK, FAILURE, USAGE, NOTHING, DRIFT, BUSY, CORRUPT, UNOPENED = range(8)
#: As shells have it: 128 and the number of the signal.
INTERRUPTED = 130
_PASSPHRASE = "--with-keys takes a passphrase of at least 12 characters"  # noqa: S105 - words
#: What errors say to those who write Python, and what stands for it here.
_AS_TYPED = (
    ("store.verify()", "everthread doctor"),
    ("store.scan()", "everthread scan"),
    ("store.search()", "everthread search"),
    ("store.erase()", "everthread erase"),
    ("store.gc()", "everthread gc"),
    ("history() shows", "everthread log shows"),
    ("max_tokens", "--max-tokens"),
    ("open(…, cold=…)", "--cold"),
    ("cold=…", "--cold FOLDER"),
    ("keys= takes a passphrase of at least 12 characters, or 32 random bytes", _PASSPHRASE),
    (
        "passphrase= takes a passphrase of at least 12 characters, or 32 random bytes",
        "the passphrase must have at least 12 characters",
    ),
    ("(keyring=…, --keyring, $EVERTHREAD_KEYRING)", "(--keyring, $EVERTHREAD_KEYRING)"),
    ("keyring=…, $EVERTHREAD_KEYRING", "--keyring, $EVERTHREAD_KEYRING"),
    ("the secret that was given (keys=)", "this passphrase"),
    ("the secret that was given (passphrase=)", "this passphrase"),
    ("on_conflict='skip'", "--on-conflict skip"),
    ('durability="process"', "--durability process"),
    ('durability="full"', "--durability full"),
    ("everthread.salvage()", "everthread salvage"),
    ("store.restore()", "everthread restore"),
    ("store.backup()", "everthread backup"),
)
#: What tells of damage and names one of these says what to do about it.
_ADVISERS = ("everthread doctor", "everthread salvage", "backup")
#: True of whatever looks only, asks first, or is done in one commit. See :func:`goes_on` for the others.
STOPPED = "stopped; nothing is half done"


class Stopped(KeyboardInterrupt):
    """Interrupted in the middle of what isn't done all at once; says what is true then."""


@contextmanager
def goes_on(words: Callable[[], str]) -> Iterator[None]:
    """What to say if the block is interrupted: how far it came, and how it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(words()) from None


def code_of(error: EverthreadError) -> int:
    """The exit code that says what kind of error this is."""
    if isinstance(error, NotFoundError):
        return NOTHING
    if isinstance(error, StoreBusyError | SessionBusyError | RetryError):
        return BUSY
    if isinstance(error, DamageError):
        return CORRUPT
    return USAGE if isinstance(error, UsageError) else FAILURE


def ending(invoke: Callable[[], int]) -> int:
    """Run a command; its exit code. Errors become words, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            # What the terminal has no letter for is escaped, not an error.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _told(invoke)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read us has seen enough, as in `everthread log x | head`.
        _silence()
        return OK
    except OSError as error:
        _silence()
        where = f": {error.filename}" if error.filename else ""
        return tell(f"{error.strerror or error}{where}", FAILURE)
    return code


def _told(invoke: Callable[[], int]) -> int:
    try:
        return invoke()
    except KeyboardInterrupt as stopped:
        with _ignored_interrupts():
            return tell(_what_is_true(stopped), INTERRUPTED)
    except EverthreadError as error:
        return tell(_with_advice(error), code_of(error))
    except RecursionError:
        return tell("what is stored there is nested too deeply to be shown", FAILURE)


@contextmanager
def _ignored_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C within the block, so that a second one doesn't cut off the answer to the first."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:
        # Only the main thread handles signals.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _what_is_true(stopped: BaseException | None) -> str:
    """What to say of an interruption. Whoever can't wait interrupts twice: what was true at the first time
    is, while everything is being closed."""
    while stopped is not None:
        if isinstance(stopped, Stopped):
            return str(stopped)
        stopped = stopped.__context__
    return STOPPED


def _with_advice(error: EverthreadError) -> str:
    """What went wrong; where it is damage, also who says what to do about it."""
    return with_doctor(str(error)) if isinstance(error, DamageError) else as_typed(str(error))


def with_doctor(words: str) -> str:
    """Words of damage, and who says what to do about it, unless they say so themselves."""
    words = as_typed(words)
    known = any(each in words for each in _ADVISERS)
    return words if known else f"{words}; everthread doctor says what is damaged, and what to do"


def as_typed(words: str) -> str:
    """What was said to those who write Python, said to those who type commands."""
    for call, command in _AS_TYPED:
        words = words.replace(call, command)
    return words


def tell(words: str, code: int) -> int:
    """Say what went wrong, line by line, in the words of who types commands."""
    words = as_typed(words)
    # Where nobody listens any more there is still the exit code.
    with suppress(OSError):
        for line in words.splitlines() or [""]:
            say(f"everthread: {clean(line)}", err=True)
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
