"""The SDK's own session tests, from its source release, with our class in place of SQLiteSession."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import everthread
from tests.adapters.sdists import source_of

FILES = ("test_session.py", "test_session_limit.py", "test_session_context_wrapper.py")

#: Tests that look into SQLiteSession itself: its connections, locks, tables, or the name in its message.
EXCLUDED = {
    "test_sqlite_session_close_closes_worker_thread_connections": "counts sqlite3 connections",
    "test_sqlite_session_reaps_connections_from_exited_worker_threads": "counts sqlite3 connections",
    "test_sqlite_session_closes_retired_connections_before_the_next_allocation": "counts sqlite3 connections",
    "test_sqlite_session_keeps_connections_of_live_worker_threads": "counts sqlite3 connections",
    "test_sqlite_session_closed_rejects_empty_add_items": "wants RuntimeError('SQLiteSession is closed')",
    "test_sqlite_session_pop_item_skips_corrupt_most_recent": "writes broken JSON into its table",
    "test_sqlite_session_pop_item_returns_none_after_dropping_only_corrupt_rows": "the same",
    "test_sqlite_session_get_items_limit_skips_corrupt_newest_rows": "the same",
    "test_sqlite_session_get_items_session_settings_limit_skips_corrupt_rows": "the same",
    "test_sqlite_session_file_lock_is_shared_across_instances": "looks at its class's lock table",
    "test_sqlite_session_failed_add_items_releases_write_lock": "asks its table with sqlite3",
    "test_sqlite_session_failed_clear_session_rolls_back": "drops its table with sqlite3",
    "test_sqlite_session_failed_pop_item_releases_write_lock": "makes a trigger on its table",
    "test_sqlite_session_rollback_failure_evicts_connection": "puts a connection of its own into it",
    "test_sqlite_session_close_retries_quarantined_connection": "puts a connection of its own into it",
    "test_sqlite_session_post_commit_cancellation_propagates_after_known_outcome": (
        "puts a connection of its own into it"
    ),
}


#: What a path of SQLiteSession becomes. Its tests make stores by paths, so that servers aren't among them.
URLS = {"sqlite": "sqlite:///{path}", "files": "file://{path}"}


@pytest.mark.parametrize("kind", URLS)
def test_the_sdks_own_session_tests(
    kind: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    source = source_of("openai-agents", request, tmp_path_factory)
    here = Path(__file__).parent
    environment = {
        **os.environ,
        "EVERTHREAD_SUITE_URL": URLS[kind],
        "PYTHONPATH": os.pathsep.join([str(here), str(Path(everthread.__file__).parents[1]), str(source)]),
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(source), "-q", "-rA"]
    command += ["-p", "openai_substitute", "-p", "no:cacheprovider", "--tb=short", "--basetemp"]
    command += [str(tmp_path / "suite"), *(str(source / "tests" / "memory" / name) for name in FILES)]
    command += [argument for name in EXCLUDED for argument in ("--deselect-name", name)]
    ran = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    passed = re.findall(r"^PASSED (\S+)", ran.stdout, re.MULTILINE)
    print(f"{len(passed)} passed, {len(EXCLUDED)} kinds of tests look into SQLiteSession itself")
    assert len(passed) >= 50
    (left_out,) = re.findall(r"(\d+) deselected", ran.stdout)
    # Every test that is left out is one that is listed here, and is there.
    assert int(left_out) >= len(EXCLUDED)
    assert not re.search(r"\d+ (skipped|failed|error)", ran.stdout.splitlines()[-1])
