"""Errors in the code of a workflow, as the engine knows them that runs it. Imports no engine."""

from __future__ import annotations

import importlib
import sys

from everthread.errors import InvalidValueError


class MessageRefusedError(InvalidValueError):
    """An inbox doesn't take a message: it can't be stored, or the run takes no more of them."""


def own_failure(error: Exception) -> Exception:
    """Return what to raise in the place of ``error``: in the code of a Temporal workflow an
    ``ApplicationError`` of its name and message, else ``error`` itself. Temporal would take any other
    exception for a flaw of the code, fail the workflow task, and repeat that for ever."""
    temporal = sys.modules.get("temporalio.workflow")
    if temporal is None or not temporal.in_workflow():
        return error
    exceptions = importlib.import_module("temporalio.exceptions")
    own: type[Exception] = exceptions.FailureError
    if isinstance(error, own):
        return error
    name = type(error).__name__
    failure: Exception = exceptions.ApplicationError(str(error) or name, type=name, non_retryable=True)
    failure.__cause__ = error
    return failure
