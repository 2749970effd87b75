"""Every Python block in README.md and docs runs, in order, one namespace and one empty folder per file.

A comment ``# → text`` behind an expression says what its repr is, and is held to it.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from everthread.keyring.keyring import open_keyring

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
CLAIM = re.compile(r"# → (.*)$")
#: A store in the folder in which a reader is.
OPENED = re.compile(r"sqlite:///([\w.-]+\.db)")
#: The pages that README sends a reader to first, in its order.
IN_ONE_FOLDER = (
    "concepts",
    "guides/committing",
    "guides/time-travel",
    "guides/steps",
    "guides/sessions",
    "guides/effects",
    "guides/resuming",
    "guides/briefing",
    "guides/personal-values",
    "guides/erasure",
    "guides/stores",
    "guides/working-state",
)
#: Pages whose programs a reader runs more than once; those of Temporal: ``tests/engines/test_guide.py``.
TWICE = ("guides/engines", "guides/dbos", "guides/sandboxes", "guides/workspaces", "guides/subagents")
ONCE = [page for page in PAGES if not str(page.with_suffix("")).endswith(TWICE)]
INSTALLED = re.compile(r"\$ pip install '/path/to/the/clone\[([\w-]+)\]'")
WAIT = re.compile(r"\btime\.sleep\(\d+\)")
LINK = re.compile(r"\]\(([^)\s]+)\)")


class Block(NamedTuple):
    line: int
    code: str


def blocks(text: str) -> Iterator[Block]:
    """The Python blocks of a page, each with the number of its first line."""
    for found in BLOCK.finditer(text):
        indent = found[1]
        lines = [line.removeprefix(indent) for line in found[2].splitlines()]
        yield Block(text.count("\n", 0, found.start()) + 2, "\n".join(lines) + "\n")


class _Claims(ast.NodeTransformer):
    """Turns ``expression  # → text`` into a call that compares the two."""

    def __init__(self, code: str) -> None:
        found = enumerate(map(CLAIM.search, code.splitlines()), 1)
        self.expected = {number: match[1].strip() for number, match in found if match}

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        expected = self.expected.pop(node.end_lineno or 0, None)
        if expected is None:
            return node
        call = ast.Call(ast.Name("_claim", ast.Load()), [node.value, ast.Constant(expected)], [])
        return ast.copy_location(ast.Expr(call), node)


def run(page: str, text: str) -> int:
    """Run the blocks of a page one after another; how many claims they made. Raises if one is wrong."""
    claims = 0

    def claim(value: Any, expected: str) -> None:
        nonlocal claims
        claims += 1
        assert repr(value) == expected, f"{page} says {expected}, it is {value!r}"

    namespace: dict[str, Any] = {"__name__": "docs", "_claim": claim}
    for block in blocks(text):
        transformer = _Claims(block.code)
        # Where a reader is given time to kill a program, nobody does here.
        code = WAIT.sub("time.sleep(0)", block.code)
        tree = ast.fix_missing_locations(transformer.visit(ast.parse(code)))
        assert not transformer.expected, f"{page}: no expression stands before {transformer.expected}"
        # So that a traceback points into the page.
        ast.increment_lineno(tree, block.line - 1)
        exec(compile(tree, page, "exec", dont_inherit=True), namespace)
    return claims


@pytest.mark.parametrize("page", ONCE, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    run(str(page.relative_to(ROOT)), page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TWICE)
def test_a_page_runs_again_in_the_folder_that_it_left(name: str, tmp_path: Path) -> None:
    """In a process of its own each time, as a reader's."""
    code = "import pathlib, sys; from tests.docs.test_blocks import run; "
    code += "run(sys.argv[1], pathlib.Path(sys.argv[1]).read_text(encoding='utf-8'))"
    command = [sys.executable, "-c", code, str(ROOT / "docs" / f"{name}.md")]
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    for _ in range(2):
        found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert found.returncode == 0, found.stderr


def test_pages_can_be_followed_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As somebody does who reads: what one page leaves behind is in no other's way."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for page in (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in IN_ONE_FOLDER)):
        run(str(page.relative_to(ROOT)), page.read_text(encoding="utf-8"))


def test_the_erasure_page_leaves_no_hold_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader's keyring serves other stores, too, and a hold on it counts in all of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    run("erasure", (ROOT / "docs" / "guides" / "erasure.md").read_text(encoding="utf-8"))
    keyring = open_keyring(str(tmp_path / ".everthread" / "keyring"))
    assert keyring.key_ids("carol")
    assert keyring.holds(keyring.held()) == frozenset()
    keyring.close()


def test_no_two_pages_open_the_same_file() -> None:
    seen: dict[str, Path] = {}
    for page in PAGES:
        code = "".join(block.code for block in blocks(page.read_text(encoding="utf-8")))
        for name in set(OPENED.findall(code)):
            assert seen.setdefault(name, page) == page, f"{name} is the store of {seen[name]}, too"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    assert not broken


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_extras_are_installed_by_the_same_line_everywhere() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = set(extras["optional-dependencies"])
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").splitlines():
            if "pip install" not in line or "[" not in line.partition("pip install")[2]:
                continue
            found = INSTALLED.fullmatch(line)
            assert found is not None, f"{page.name}: {line}"
            assert found[1] in known, f"{page.name}: {line}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 500


def test_the_readme_shows_the_quickstart() -> None:
    first = next(blocks((ROOT / "README.md").read_text(encoding="utf-8"))).code
    program = (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8")
    assert program.split('"""\n\n', 1)[1] == first


def test_a_wrong_claim_is_noticed() -> None:
    assert run("page", "```python\nx = 1\nx + 1  # → 2\n```\n") == 1
    with pytest.raises(AssertionError, match="page says 3, it is 2"):
        run("page", "```python\nx = 1\nx + 1  # → 3\n```\n")
    with pytest.raises(AssertionError, match="no expression"):
        run("page", "```python\nx = 1  # → 1\n```\n")


def test_blocks_are_found_and_share_names() -> None:
    text = "Text\n\n```python\nx = 1\n```\n\n- item\n  ```python\n  assert x == 1\n  ```\n"
    text += "```console\n$ make\n```\n"
    assert [block.line for block in blocks(text)] == [4, 9]
    run("page", text)
