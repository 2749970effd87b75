"""The session, compaction and encryption tests of the OpenAI Agents SDK with our session.

``python -m tests.suites.openai_agents``.
"""

from __future__ import annotations

import sys

from tests.adapters.test_openai_agents_suite import EXCLUDED, FILES
from tests.suites._runner import Suite, run

_TABLE = "reads or locks SQLiteSession's own table, by its path"
_POP = "EncryptedSession checks the key inside a pop only with SQLiteSession, as its docstring says"
_CONNECTION = "puts a connection of its own into SQLiteSession"

#: Files whose tests use SQLiteSession beside other sessions.
COMPACTION = (
    "memory/test_compaction_model_visibility.py",
    "memory/test_compaction_suffix.py",
    "memory/test_openai_responses_compaction_session.py",
    "extensions/memory/test_encrypt_session.py",
)

NOT_ASKED = {
    r"test_suffix_transaction_rolls_back_failed_insert\[sqlite": _TABLE,
    r"test_failed_encrypted_suffix_transaction_preserves_original_tokens\[sqlite": _TABLE,
    r"test_cancelled_suffix_transaction_settles_before_newer_append\[sqlite": (
        "replaces SQLiteSession's method that inserts rows"
    ),
    r"test_settled_(pop|clear)_failure_invalidates_response_chain": _CONNECTION,
    r"test_encrypted_pop_wrong_key_preserves_recoverable_history": _POP,
    r"test_encrypted_pop_rechecks_authentication_after_expired_tail": _POP,
    r"test_encrypted_pop_cancellation_waits_for_authentication_rollback": _POP,
    r"test_encrypted_pop_authentication_is_atomic_with_concurrent_mutations": _TABLE,
    r"test_encrypted_pop_wrong_key_preserves_row_identity": _TABLE,
}

SUITES = (
    Suite(
        package="openai-agents",
        extra="openai-agents",
        needs=("pytest", "pytest-asyncio", "inline-snapshot", "cryptography", "aiosqlite"),
        plugin="openai_substitute",
        paths=(*(f"tests/memory/{name}" for name in FILES), *(f"tests/{name}" for name in COMPACTION)),
        environment={"EVERTHREAD_SUITE_URL": "sqlite:///{path}", "OPENAI_AGENTS_DISABLE_TRACING": "1"},
        arguments=("-o", "asyncio_mode=auto"),
        excluded={**{rf"::{name}(\[|$)": reason for name, reason in EXCLUDED.items()}, **NOT_ASKED},
    ),
)

if __name__ == "__main__":
    sys.exit(run(*SUITES))
