"""A pytest plugin for the session tests of Strands: our repository in place of the mocked one."""

from __future__ import annotations

import everthread
import tests.fixtures.mock_session_repository as fixture
from everthread.adapters.strands import EverthreadSessionRepository


class Substitute(EverthreadSessionRepository):
    """Made without arguments."""

    def __init__(self) -> None:
        super().__init__(everthread.open("memory:"))


fixture.MockedSessionRepository = Substitute  # type: ignore[assignment,misc]
