"""Those tests of the Claude Agent SDK that use a session store. ``python -m tests.suites.claude``."""

from __future__ import annotations

import sys

from tests.suites._runner import Suite, run

_TURNS = "counts turns of the event loop, and a store that really keeps things waits longer"
_NAMES = ("helpers_store", "import", "resume", "store_anyio", "store_conformance", "summary")

SUITES = (
    Suite(
        package="claude-agent-sdk",
        extra="claude",
        needs=("pytest", "anyio", "trio", "pytest-mock", "pytest-asyncio"),
        plugin="claude_substitute",
        paths=(*(f"tests/test_session_{name}.py" for name in _NAMES), "tests/test_transcript_mirror.py"),
        excluded={
            r"\[trio": "our stores wait with asyncio; under trio they refuse in words",
            r"test_continue_(picks_most_recent|skips_sidechain|tie_break)": (
                "sets the times of InMemorySessionStore's own dictionary"
            ),
            r"test_load_concurrency_is_bounded|test_gap_fill_bounded_concurrency": _TURNS,
            r"test_eager_flush_mode_appends_per_frame|test_cancelled_after_mkdtemp": _TURNS,
        },
    ),
)

if __name__ == "__main__":
    sys.exit(run(*SUITES))
