"""Errors can be sent to another process, and kept in the history of an engine."""

from __future__ import annotations

import copy
import pickle

import pytest

from everthread import errors

CASES = [
    errors.FencedError("stop", attempt=1, newest=2),
    errors.SessionFencedError("stop", attempt=1, newest=2, holder="somebody"),
    errors.SessionBusyError("busy", holder=None, expires=None),
    errors.MergeConflictError("both", conflicts=[1, 2]),
    errors.InvalidValueError("bad", path="a.b"),
    errors.ThreadNotFoundError("gone"),
    errors.MissingDependencyError("not there", name="package"),
]


@pytest.mark.parametrize("error", CASES, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_elsewhere(error: errors.EverthreadError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(other), str(other), other.args, vars(other)) == (
            type(error),
            str(error),
            error.args,
            vars(error),
        )
        assert getattr(other, "name", None) == getattr(error, "name", None)
