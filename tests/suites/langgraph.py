"""LangGraph's own tests with our saver and store: langgraph, prebuilt, checkpoint, and the tests of
checkpoint-sqlite. ``python -m tests.suites.langgraph``."""

from __future__ import annotations

import sys

from tests.suites._runner import Suite, run

_TOOLS = ("pytest", "pytest-asyncio", "pytest-mock", "pytest-dotenv", "syrupy", "httpx", "numpy")
_PEERS = ("langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres", "psycopg[binary,pool]", "redis")
_NEEDS = (*_TOOLS, *_PEERS, "langgraph-prebuilt", "langgraph-cli", "pycryptodome", "uvloop", "pyperf")
_ALONE = {"NO_DOCKER": "true"}
_INSIDE = "looks into InMemorySaver's own dictionaries"
_SAVER_FILES = (
    "sqlite",
    "aiosqlite",
    "delta_channel_migration",
    "delta_parent_walk",
    "get_delta_channel_history",
)

SUITES = (
    Suite(
        package="langgraph",
        extra="langgraph",
        needs=_NEEDS,
        plugin="langgraph_substitute",
        paths=("tests",),
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
        # Not test_writes_task_path_migration.py, which migrates SqliteSaver's own tables, nor
        # test_conformance_delta.py: tests/adapters/langgraph runs the conformance suite itself.
        paths=tuple(f"tests/test_{name}.py" for name in (*_SAVER_FILES, "store", "async_store", "ttl")),
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
            r"test_walk_terminates_when_put_makes_the_parent_chain_cycle": (
                "wants an empty history where checkpoints are their own ancestors; here it is "
                "StateCorruptedError"
            ),
            r"test_walk_step_looks_up_the_parent_by_primary_key": "reads SqliteSaver's query plan",
            r"test_informative_async_errors": "wants no async methods on a blocking saver; ours has them",
            r"test_checkpoint_search_sql_injection_prevention": (
                "wants SqliteSaver's ValueError for hostile keys; here no key reaches SQL"
            ),
            r"test_metadata_filter_keys_with_hyphens": (
                "asks for nested keys by a dotted path, which only SQL has"
            ),
            r"test_async_ttl_sweeper": "an async store is swept by awaiting asweep()",
        },
    ),
)

if __name__ == "__main__":
    sys.exit(run(*SUITES))
