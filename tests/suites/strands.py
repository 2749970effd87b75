"""The session tests of Strands with our repository. ``python -m tests.suites.strands``."""

from __future__ import annotations

import sys

from tests.suites._runner import Suite, run

SUITES = (
    Suite(
        package="strands-agents",
        extra="strands",
        needs=("pytest", "pytest-asyncio", "moto[s3]", "strands-agents[bidi]"),
        plugin="strands_substitute",
        paths=("tests/strands/session/test_repository_session_manager.py",),
        arguments=("-o", "asyncio_mode=auto"),
    ),
)

if __name__ == "__main__":
    sys.exit(run(*SUITES))
