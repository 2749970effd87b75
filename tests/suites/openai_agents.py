"""The session tests of the OpenAI Agents SDK with our session. ``python -m tests.suites.openai_agents``."""

from __future__ import annotations

import sys

from tests.adapters.test_openai_agents_suite import EXCLUDED, FILES
from tests.suites._runner import Suite, run

SUITES = (
    Suite(
        package="openai-agents",
        extra="openai-agents",
        needs=("pytest", "pytest-asyncio", "inline-snapshot"),
        plugin="openai_substitute",
        paths=tuple(f"tests/memory/{name}" for name in FILES),
        environment={"EVERTHREAD_SUITE_URL": "sqlite:///{path}", "OPENAI_AGENTS_DISABLE_TRACING": "1"},
        arguments=("-o", "asyncio_mode=auto"),
        excluded={rf"::{name}(\[|$)": reason for name, reason in EXCLUDED.items()},
    ),
)

if __name__ == "__main__":
    sys.exit(run(*SUITES))
