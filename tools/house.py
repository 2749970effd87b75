"""Count the house: code by hand and generated, modules, importers, private accesses, contract, words.

    python -m tools.house                 one table of this tree
    python -m tools.house DIR [DIR …]     the same for other checkouts, side by side
    python -m tools.house --single        also list the modules that exactly one other module imports,
                                          with the reason to stand alone of those that have one

Two reasons to stand alone are known. A module is *loaded when used* if its importer imports it inside a
function, or when a name of it is asked for (a door with ``__getattr__``): whoever doesn't use it doesn't
pay. The modules of `everthread.testing.rules` are the *rules of the conformance suite*, which lists them.

Code is what is left without blank lines, comments and docstrings. SQL and Lua count as code wherever they are
kept, in Python or in files of their own.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GENERATED = "# Generated from "
MODULE_LINES_MAX = 900
FUNCTION_LINES_MAX = 75
SMALL_MODULE_LINES = 100
RULES = "everthread.testing.rules."


@dataclass
class House:
    """What was counted in one checkout."""

    rows: dict[str, int] = field(default_factory=dict)
    single: list[str] = field(default_factory=list)


def docstring_rows(tree: ast.AST) -> set[int]:
    """The numbers of the source lines that docstrings take up."""
    rows: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
                rows.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return rows


def code_lines(text: str, tree: ast.AST) -> int:
    """The source lines that hold code."""
    rows: set[int] = set()
    passed_over = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
        tokenize.ENCODING,
    }
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in passed_over:
            rows.update(range(token.start[0], token.end[0] + 1))
    blank = {number for number, row in enumerate(text.splitlines(), 1) if not row.strip()}
    return len(rows - blank - docstring_rows(tree))


def resource_lines(text: str) -> int:
    """The lines of SQL or Lua that hold code: both begin a comment with ``--``."""
    return sum(1 for row in text.splitlines() if row.strip() and not row.lstrip().startswith("--"))


def imported_modules(tree: ast.AST, modules: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                whole = f"{node.module}.{each.name}"
                if whole in modules:
                    yield whole
                elif node.module in modules:
                    yield node.module


def loaded_when_used(tree: ast.AST, module: str) -> bool:
    """Whether whatever a module takes from another at run time is imported inside functions."""

    def imports(node: ast.AST) -> int:
        return sum(name == module for name in imported_modules(node, {module}))

    checked_only = sum(
        imports(node) for node in ast.walk(tree) if isinstance(node, ast.If) and is_type_checking(node)
    )
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    nested = {inner for outer in functions for inner in ast.walk(outer) if inner is not outer}
    lazy = sum(imports(node) for node in functions if node not in nested)
    at_run_time = imports(tree) - checked_only
    by_name = any(node.name == "__getattr__" for node in functions if node not in nested)
    return lazy == at_run_time and (lazy > 0 or by_name)


def is_type_checking(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def private_accesses(tree: ast.AST) -> int:
    """Accesses to the ``_private`` names of another object than ``self`` or ``cls``."""
    return sum(
        1
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})
        and not (isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "super")
    )


def protocol_members(path: Path, name: str) -> int:
    """The members that a protocol class states."""
    if not path.exists():
        return 0
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
    return 0


def function_lengths(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def dotted(package: Path, path: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def count(root: Path) -> House:
    package = root / "src" / "everthread"
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    names = {path: dotted(package, path) for path in texts}
    modules = set(names.values())
    rows: Counter[str] = Counter()
    importers: dict[str, set[str]] = defaultdict(set)
    for path, text in texts.items():
        tree, is_generated = trees[path], text.startswith(GENERATED)
        lines = code_lines(text, tree)
        rows["code, generated" if is_generated else "code, by hand"] += lines
        rows["modules"] += 1
        rows["modules by hand"] += not is_generated
        rows[f"modules by hand under {SMALL_MODULE_LINES} lines"] += (
            not is_generated and path.name != "__init__.py" and len(text.splitlines()) < SMALL_MODULE_LINES
        )
        rows[f"modules over {MODULE_LINES_MAX} lines"] += len(text.splitlines()) > MODULE_LINES_MAX
        rows[f"functions over {FUNCTION_LINES_MAX} lines"] += sum(
            length > FUNCTION_LINES_MAX for length in function_lengths(tree)
        )
        if not is_generated:
            rows["foreign private accesses"] += private_accesses(tree)
            in_threads = path.is_relative_to(package / "threads")
            rows["foreign private accesses in threads"] += private_accesses(tree) if in_threads else 0
        for module in imported_modules(tree, modules - {names[path]}):
            importers[module].add(names[path])
    for pattern in ("*.sql", "*.lua"):
        for path in package.rglob(pattern):
            lines = resource_lines(path.read_text(encoding="utf-8"))
            rows["code, by hand"] += lines
            rows["of it SQL and Lua in files"] += lines
    hand = [names[path] for path, text in texts.items() if not text.startswith(GENERATED)]
    doors = {names[path] for path in texts if path.name in {"__init__.py", "__main__.py"}}
    single = sorted(each for each in hand if each not in doors and len(importers[each]) == 1)
    rows["modules with one importer"] = len(single)
    by_name = {name: trees[path] for path, name in names.items()}
    reasons: dict[str, str] = {}
    for each in single:
        (importer,) = importers[each]
        if each.startswith(RULES):
            reasons[each] = "rules of the conformance suite"
        elif loaded_when_used(by_name[importer], each):
            reasons[each] = "loaded when used"
    rows["of these with a reason"] = len(reasons)
    rows["members of the store contract"] = protocol_members(package / "stores" / "contract.py", "Backend")
    pages = [*root.glob("docs/**/*.md"), root / "README.md"]
    rows["words of docs"] = sum(len(page.read_text(encoding="utf-8").split()) for page in pages)
    rows["words of the README"] = len((root / "README.md").read_text(encoding="utf-8").split())
    shown = [
        f"{each} ← {next(iter(importers[each]))}" + (f" ({reasons[each]})" if each in reasons else "")
        for each in single
    ]
    return House(dict(rows), shown)


ORDER = (
    "code, by hand",
    "of it SQL and Lua in files",
    "code, generated",
    "modules",
    "modules by hand",
    f"modules by hand under {SMALL_MODULE_LINES} lines",
    "modules with one importer",
    "of these with a reason",
    f"modules over {MODULE_LINES_MAX} lines",
    f"functions over {FUNCTION_LINES_MAX} lines",
    "foreign private accesses",
    "foreign private accesses in threads",
    "members of the store contract",
    "words of docs",
    "words of the README",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the house.")
    parser.add_argument(
        "checkouts", nargs="*", type=Path, default=[ROOT], help="folders to count side by side"
    )
    parser.add_argument("--single", action="store_true", help="list the modules with one importer")
    args = parser.parse_args()
    houses = [count(each.resolve()) for each in args.checkouts]
    for row in ORDER:
        print(f"{row:40}" + "".join(f"{house.rows.get(row, 0):>12,}" for house in houses))
    if args.single:
        print("\n".join(("", *houses[-1].single)))


if __name__ == "__main__":
    main()
