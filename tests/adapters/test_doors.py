"""Importing an adapter loads nothing of its framework; using one without it names the command."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import everthread
from everthread.adapters.doors import load
from everthread.errors import MissingDependencyError

ROOT = Path(__file__).parents[2]
SOURCE = Path(everthread.__file__).parents[1]
#: Adapter → the extra that installs its framework, and what that framework is imported as.
FRAMEWORKS = {
    "adk": ("adk", "google.adk"),
    "claude": ("claude", "claude_agent_sdk"),
    "langgraph": ("langgraph", "langgraph"),
    "openai_agents": ("openai-agents", "agents"),
    "pydantic_ai": ("pydantic-ai", "pydantic_ai"),
}
#: What no adapter loads before it is used.
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
    path.name for path in (SOURCE / "everthread" / "adapters").iterdir() if (path / "__init__.py").exists()
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
module = importlib.import_module(sys.argv[2])
assert module.__all__
for name in module.__all__:
    try:
        getattr(module, name)
    except MissingDependencyError as error:
        print(error)
"""


def run(program: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-I", "-c", program, str(SOURCE), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.parametrize("adapter", ["doors", *ADAPTERS])
def test_importing_an_adapter_loads_nothing_of_its_framework(adapter: str) -> None:
    loaded = run(PROBE, f"everthread.adapters.{adapter}")
    assert f"everthread.adapters.{adapter}" in loaded
    assert {name.partition(".")[0] for name in loaded}.isdisjoint(STAYS_OUT)


def test_every_adapter_is_known_here() -> None:
    assert set(ADAPTERS) <= set(FRAMEWORKS)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_without_the_framework_the_command_is_named(adapter: str) -> None:
    extra, framework = FRAMEWORKS[adapter]
    assert find_spec(framework) is not None, "the framework must be installed for this to show anything"
    told = run(WITHOUT, f"everthread.adapters.{adapter}", framework)
    assert told
    assert all(line.endswith(f"pip install '.[{extra}]' in its clone") for line in told)


@pytest.mark.parametrize("adapter", FRAMEWORKS)
def test_the_extra_exists(adapter: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert FRAMEWORKS[adapter][0] in project["optional-dependencies"]


def test_a_missing_package_is_told_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_a_framework.py").write_text("import a_framework_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError, match=r"with its extra 'some'") as caught:
        load("everthread.adapters.some", "Thing", {"Thing": "needs_a_framework"}, extra="some")
    assert caught.value.name == "a_framework_that_is_not_there"


def test_a_fault_of_our_own_is_not_taken_for_a_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imports_wrongly.py").write_text("from everthread.errors import NoSuchError\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="NoSuchError") as caught:
        load("everthread.adapters.some", "Thing", {"Thing": "imports_wrongly"}, extra="some")
    assert not isinstance(caught.value, MissingDependencyError)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        load("everthread.adapters.some", "Other", {}, extra="some")
