"""The package of adapters loads no framework; an adapter without its framework names the command."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import everthread
from everthread.adapters.bridge import framework
from everthread.errors import MissingDependencyError
from tests.adapters.conftest import APART

ROOT = Path(__file__).parents[2]
SOURCE = Path(everthread.__file__).parents[1]
#: Adapter → the extra that installs its framework, and what that framework is imported as.
FRAMEWORKS = {
    "adk": ("adk", "google.adk"),
    "agent_framework": ("agent-framework", "agent_framework"),
    "claude": ("claude", "claude_agent_sdk"),
    "crewai": ("crewai", "crewai"),
    "langgraph": ("langgraph", "langgraph"),
    "llama_index": ("llama-index", "llama_index"),
    "openai_agents": ("openai-agents", "agents"),
    "pydantic_ai": ("pydantic-ai", "pydantic_ai"),
    "strands": ("strands", "strands"),
}
#: What is loaded by an adapter alone.
STAYS_OUT = (
    "agents",
    "anthropic",
    "claude_agent_sdk",
    "google",
    "httpx",
    "langchain_core",
    "langgraph",
    "openai",
    "pydantic",
    "pydantic_ai",
)
ADAPTERS = sorted(
    path.stem
    for path in (SOURCE / "everthread" / "adapters").iterdir()
    if path.stem not in {"__init__", "__pycache__", "bridge"}
)

PROBE = """
import sys
before = set(sys.modules)
sys.path.insert(0, sys.argv[1])
import importlib
importlib.import_module(sys.argv[2])
print(*sorted(set(sys.modules) - before), sep="\\n")
"""

# A framework that can't be found is one that isn't installed, as far as an importer can tell.
WITHOUT = """
import sys
sys.path.insert(0, sys.argv[1])
missing = sys.argv[3]
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == missing or name.startswith(missing + "."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
import importlib
from everthread.errors import MissingDependencyError
try:
    importlib.import_module(sys.argv[2])
except MissingDependencyError as error:
    print(error)
"""


def run(program: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-I", "-c", program, str(SOURCE), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.parametrize("module", ["adapters", "adapters.bridge"])
def test_what_adapters_share_loads_no_framework(module: str) -> None:
    loaded = run(PROBE, f"everthread.{module}")
    assert f"everthread.{module}" in loaded
    assert {name.partition(".")[0] for name in loaded}.isdisjoint(STAYS_OUT)


def test_every_adapter_is_known_here() -> None:
    assert set(ADAPTERS) <= set(FRAMEWORKS)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_without_the_framework_the_command_is_named(adapter: str) -> None:
    extra, framework = FRAMEWORKS[adapter]
    if adapter not in APART:
        assert find_spec(framework) is not None, "the framework must be installed for this to show anything"
    told = run(WITHOUT, f"everthread.adapters.{adapter}", framework)
    assert told
    assert all(line.endswith(f"pip install '.[{extra}]' in its clone") for line in told)


@pytest.mark.parametrize("adapter", FRAMEWORKS)
def test_the_extra_exists(adapter: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert FRAMEWORKS[adapter][0] in project["optional-dependencies"]


def test_a_missing_package_is_told_with_its_command() -> None:
    with pytest.raises(MissingDependencyError, match=r"with its extra 'some'") as caught, framework("some"):
        import a_framework_that_is_not_there  # type: ignore[import-not-found]  # noqa: F401
    assert caught.value.name == "a_framework_that_is_not_there"


def test_a_fault_of_our_own_is_not_taken_for_a_missing_package() -> None:
    with pytest.raises(ImportError, match="NoSuchError") as caught, framework("some"):
        from everthread.errors import NoSuchError  # type: ignore[attr-defined]  # noqa: F401
    assert not isinstance(caught.value, MissingDependencyError)
