"""Running a program with bounds on its time and its output. Never through a shell."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import subprocess

OUTPUT_BYTES_MAX = 1 << 20


class Ran(msgspec.Struct, frozen=True):
    """How a program ended. ``status`` is negative if a signal ended it."""

    status: int
    output: bytes


class NotRunError(Exception):
    """The program could not be run to its end within its bounds; says why."""


def run(
    argv: Sequence[str], *, timeout_s: float, cwd: str | None = None, env: Mapping[str, str] | None = None
) -> Ran:
    """Run a program to its end. Raises :class:`NotRunError` if it can't be started, takes longer than
    ``timeout_s`` or writes more than a megabyte; it and its process group are killed then."""
    import subprocess

    until = time.monotonic() + timeout_s
    try:
        process = subprocess.Popen(  # noqa: S603 - an argument list, and the caller has permission
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=cwd,
            env=None if env is None else dict(env),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise NotRunError(f"{argv[0]} can't be started: {error}") from None
    try:
        output = _read(process.stdout, until)
        status = process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise NotRunError(f"{argv[0]} took longer than {timeout_s:g} s and was stopped") from None
    finally:
        _stop(process)
    return Ran(status, output)


def _read(stream: Any, until: float) -> bytes:
    """All that the stream gives before the deadline, within bounds."""
    found = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            left = until - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise NotRunError("it took too long and was stopped")
            block = os.read(stream.fileno(), 1 << 16)
            if not block:
                return bytes(found)
            found += block
            if len(found) > OUTPUT_BYTES_MAX:
                raise NotRunError(f"it wrote more than {OUTPUT_BYTES_MAX:,} bytes and was stopped")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a process group that was started here."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
