"""LangGraph's own tests with our saver and store: langgraph, prebuilt, checkpoint, and the store tests of
checkpoint-sqlite. ``python -m tests.suites.langgraph``."""

from __future__ import annotations

import sys

from tests.suites._runner import Suite, run

_TOOLS = ("pytest", "pytest-asyncio", "pytest-mock", "pytest-dotenv", "syrupy", "httpx", "numpy")
_PEERS = ("langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres", "psycopg[binary,pool]", "redis")
_NEEDS = (*_TOOLS, *_PEERS, "langgraph-prebuilt", "langgraph-cli", "pycryptodome", "uvloop", "pyperf")
_ALONE = {"NO_DOCKER": "true"}
_INSIDE = "looks into InMemorySaver's own dictionaries"

SUITES = (
    Suite(
        package="langgraph",
        extra="langgraph",
        needs=_NEEDS,
        plugin="langgraph_substitute",
        paths=("tests",),
        # Their savers on SQLite are not what is substituted.
        arguments=("-k", "not sqlite"),
        environment=_ALONE,
        excluded={
            r"test_delta_channel_snapshot_version_based": _INSIDE,
            r"test_a?bulk_update_state_replays_updates_in_the_order_given": _INSIDE,
        },
    ),
    Suite(
        package="langgraph-prebuilt",
        extra="langgraph",
        needs=_NEEDS,
        plugin="langgraph_substitute",
        paths=("tests",),
        environment=_ALONE,
    ),
    Suite(
        package="langgraph-checkpoint",
        extra="langgraph",
        needs=_NEEDS,
        plugin="langgraph_substitute",
        paths=("tests/test_memory.py", "tests/test_store.py"),
        arguments=("-o", "asyncio_mode=auto"),
        excluded={
            r"test_load_blobs_omits_delta_channel": _INSIDE,
            r"test_get_channel_writes_(collects|at_root)": _INSIDE,
            r"TestBaseFallbackGetChannelWrites": _INSIDE,
            r"TestPreDeltaBlobTerminator::test_seed": _INSIDE,
            r"test_vector_store_initialization": "looks at InMemoryStore's own copy of its settings",
        },
    ),
    Suite(
        package="langgraph-checkpoint-sqlite",
        extra="langgraph",
        needs=_NEEDS,
        plugin="langgraph_sqlite_substitute",
        paths=("tests/test_store.py", "tests/test_async_store.py", "tests/test_ttl.py"),
        arguments=("-o", "asyncio_mode=auto"),
        excluded={
            r"test_vector_store_initialization": "looks at SqliteStore's own copy of its settings",
            r"test_nonnull_migrations": "reads SqliteStore's migrations",
            r"test_sql_injection_vulnerability": "wants SqliteStore's ValueError for hostile keys",
            r"test_filter_keys_with_hyphens": "asks for nested keys by a dotted path, which only SQL has",
            r"test_no_running_loop": "wants asyncio.InvalidStateError; here it is UsageError",
            r"test_ttl_override_default": (
                "SqliteStore refreshes on reading only if asked, TTLConfig says by default"
            ),
            r"test_async_ttl_sweeper": "an async store is swept by awaiting asweep()",
        },
    ),
)

if __name__ == "__main__":
    sys.exit(run(*SUITES))
