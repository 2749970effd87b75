"""Tests every adapter with the oldest release of its framework that the extras allow.

``python -m tools.minimums [adapter …]`` makes an environment for each adapter, installs Everthread from this
tree with the declared minimum in place of the newest release, and runs the adapter's tests there. It needs a
package index and some minutes, so that it runs by itself, not with ``make test``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: What the tests themselves need beside the framework; servers are left to ``make test``.
TOOLS = ("hypothesis", "pytest")
WITHOUT_SERVERS = ("-k", "not postgres and not valkey")
#: Extra → the test files of its adapter, and what only these need. ``create-agent`` is no extra: agents that
#: are built on LangGraph, with the newest releases.
TESTS = {
    "adk": (("tests/adapters/test_adk.py",), ()),
    "agent-framework": (("tests/adapters/test_agent_framework.py",), ()),
    "claude": (("tests/adapters/test_claude.py",), ()),
    "create-agent": (("tests/adapters/test_create_agent.py",), ("deepagents", "langchain", "langgraph")),
    "crewai": (("tests/adapters/test_crewai.py",), ()),
    "langgraph": (("tests/adapters/langgraph",), ("langgraph-checkpoint-conformance",)),
    "llama-index": (("tests/adapters/test_llama_index.py",), ()),
    "openai-agents": (("tests/adapters/test_openai_agents.py",), ()),
    "pydantic-ai": (("tests/adapters/test_pydantic_history.py",), ()),
    "strands": (
        ("tests/adapters/test_strands.py", "tests/adapters/test_pairs.py"),
        # The other frameworks of the pairs.
        (f"everthread[adk,langgraph,openai-agents,pydantic-ai] @ file://{ROOT}",),
    ),
}


def minimum(extra: str) -> list[str]:
    """The requirements of an extra, each at the lowest release that it allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [
        re.sub(r">=([^,;]+).*", r"==\1", each) for each in project["optional-dependencies"].get(extra, [])
    ]


def test(extra: str, folder: Path) -> bool:
    """Whether the tests of an adapter pass with its minimum."""
    home = folder / extra
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--quiet", "--disable-pip-version-check"]
    wanted = minimum(extra)
    files, more = TESTS[extra]
    # With the drivers that the fixtures of servers import.
    ours = f"everthread[postgres,valkey] @ file://{ROOT}"
    print(f"{extra}: {', '.join(wanted)}", flush=True)
    if subprocess.run([*pip, ours, *wanted, *TOOLS, *more], check=False, cwd=folder).returncode:
        print(f"{extra}: can't be installed")
        return False
    # Far from the user's own stores. What an old release warns of is its own affair.
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        *WITHOUT_SERVERS,
        *files,
    ]
    apart = {**os.environ, "HOME": str(home)}
    return subprocess.run(command, check=False, cwd=ROOT, env=apart).returncode == 0


def main() -> int:
    chosen = sys.argv[1:] or list(TESTS)
    if unknown := set(chosen) - set(TESTS):
        print(f"there are {', '.join(TESTS)}, not {', '.join(sorted(unknown))}")
        return 2
    with tempfile.TemporaryDirectory(prefix="everthread-minimums-") as folder:
        failed = [extra for extra in chosen if not test(extra, Path(folder))]
    print("failed: " + ", ".join(failed) if failed else "all pass with their minimum")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
