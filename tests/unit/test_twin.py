"""What the generator of the blocking twin makes of branches on the colour, and what it refuses."""

from __future__ import annotations

import pytest

from tools import twin


def test_the_blocking_branch_is_taken() -> None:
    assert twin.branches("if ASYNC:\n    a()\nelse:\n    b()\n") == "b()\n"
    assert twin.branches("if ASYNC and x:\n    a()\n") == ""
    assert twin.branches("if not ASYNC:\n    b()\n") == "b()\n"


def test_a_condition_that_would_be_lost_is_refused() -> None:
    with pytest.raises(SystemExit, match="line 2"):
        twin.branches("x = 1\nif not ASYNC and x:\n    b()\n")
