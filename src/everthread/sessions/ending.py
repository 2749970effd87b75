"""How a run ends: the reason, and a teardown that goes through on every path."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from everthread.errors import EverthreadError, ThreadDeletedError
from everthread.sessions.entries import Reason

_STOPPED = (KeyboardInterrupt, SystemExit, GeneratorExit)


def reason_of(error: BaseException | None, chosen: Reason | None, exhausted: bool) -> Reason:
    """Why a run ends that leaves its block with ``error``; what was ``chosen`` before counts without one."""
    if error is None:
        return chosen or "completed"
    if exhausted:
        return "max_turns"
    return "cancelled" if is_cancellation(error) else "failed"


def is_cancellation(error: BaseException) -> bool:
    """Whether somebody stopped it, rather than that it failed."""
    # Looked up where they are loaded: who has never loaded them can't have raised these.
    kinds = [
        getattr(sys.modules[name], "CancelledError", None)
        for name in ("asyncio", "concurrent.futures")
        if name in sys.modules
    ]
    return isinstance(error, (*_STOPPED, *(kind for kind in kinds if kind is not None)))


class Teardown:
    """Steps that are all taken, whatever becomes of those before; the first failure is remembered."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None

    def take(self, step: Callable[..., Any], *args: Any) -> Any:
        """What the step gives; ``None`` if it fails."""
        try:
            return step(*args)
        except Exception as error:
            self.failure = self.failure or error
        except BaseException as error:
            # An interrupt in the middle of it: the rest is still to be done, and then it counts.
            if self.failure is None or isinstance(self.failure, Exception):
                self.failure = error
        return None

    def conclude(self, error: BaseException | None) -> None:
        """Raise what failed, or make it a note to the error that is on its way already."""
        # What was deleted meanwhile needs no end.
        if self.failure is None or self.failure is error or isinstance(self.failure, ThreadDeletedError):
            return
        if error is None or not isinstance(self.failure, EverthreadError):
            raise self.failure
        error.add_note(f"ending the session: {self.failure}")
