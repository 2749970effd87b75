"""List every test function of an earlier commit that no longer exists, with its replacement or the reason.

    python -m tools.tests_removed            the table, grouped by file
    python -m tools.tests_removed --check    exit 1 if a removed test has neither replacement nor reason

A test that moved to another file under the same name counts as kept. Reasons are in `tests/removed.toml`:
a section for each file, with a line for each test, or one line `"*"` for all of them.

    ["tests/unit/stores/test_memory.py"]
    "test_rows_are_sorted" = "tests/contract/test_reading.py::test_pages_are_in_key_order"
    "*" = "pinned the internals of the old memory store"
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BASE = "85fa5d27"
REASONS = ROOT / "tests" / "removed.toml"


def test_names(source: str) -> Iterator[str]:
    """Yield the qualified name of each test function in a module."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if _is_test(member):
                    yield f"{node.name}::{member.name}"  # type: ignore[attr-defined]
        elif _is_test(node):
            yield node.name  # type: ignore[attr-defined]


def _is_test(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def tests_of_commit(commit: str) -> dict[str, list[str]]:
    """Return the test functions of each file below `tests` as of a commit."""
    listing = _git("ls-tree", "-r", "--name-only", commit, "tests").splitlines()
    paths = [path for path in listing if path.endswith(".py")]
    return {path: list(test_names(_git("show", f"{commit}:{path}"))) for path in paths}


def tests_of_tree() -> dict[str, list[str]]:
    """Return the test functions of each file below `tests` in the working tree."""
    paths = sorted((ROOT / "tests").rglob("*.py"))
    return {str(path.relative_to(ROOT)): list(test_names(path.read_text("utf-8"))) for path in paths}


def removed(before: Mapping[str, list[str]], now: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the tests of `before` that have no test of the same name in `now`, grouped by file."""
    kept = {name.rpartition("::")[2] for names in now.values() for name in names}
    lost: dict[str, list[str]] = defaultdict(list)
    for path, names in before.items():
        present = set(now.get(path, ()))
        for name in names:
            if name not in present and name.rpartition("::")[2] not in kept:
                lost[path].append(name)
    return dict(lost)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="exit 1 if a removed test is unexplained")
    parser.add_argument("--base", default=BASE, help=f"the earlier commit (default {BASE})")
    options = parser.parse_args()

    reasons = tomllib.loads(REASONS.read_text("utf-8")) if REASONS.exists() else {}
    before = tests_of_commit(options.base)
    lost = removed(before, tests_of_tree())
    unexplained = 0
    for path, names in sorted(lost.items()):
        print(f"{path} ({len(names)})")
        section = reasons.get(path, {})
        for name in names:
            reason = section.get(name, section.get("*"))
            unexplained += reason is None
            print(f"  {name}: {reason or 'UNEXPLAINED'}")
    total = sum(len(names) for names in before.values())
    gone = sum(len(names) for names in lost.values())
    print(f"{gone} of {total} test functions of {options.base} are gone, {unexplained} of them unexplained")
    return 1 if options.check and unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
