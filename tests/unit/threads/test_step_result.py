"""What a recorded step gives can't be given anew by an attempt that didn't look."""

from __future__ import annotations

import pytest

import everthread
from everthread import InvalidStateError


def test_the_result_of_a_done_step_is_not_replaced() -> None:
    with everthread.open("memory:") as store:
        thread = store.thread("bot")
        with thread.step("ask") as step:
            step.result = "recorded"
        with pytest.raises(InvalidStateError, match="is done"), thread.step("ask") as again:
            again.result = "another"
        assert (again.result, thread.step_result("ask")) == ("recorded", "recorded")
