"""The shape of the source: what import-linter can't see.

Sizes, names, doors without code, and SQL that is constant text. Each rule is a function from source text to
the complaints about it, so that the rules themselves are tested below.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import everthread

PACKAGE = Path(everthread.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
MODULE_LINES_MAX = 900
FUNCTION_LINES_MAX = 75
VAGUE_NAMES = frozenset({"util", "utils", "helper", "helpers", "manager", "managers", "misc", "common"})


def long_module(text: str) -> Iterator[str]:
    lines = len(text.splitlines())
    if lines > MODULE_LINES_MAX:
        yield f"{lines} lines, allowed are {MODULE_LINES_MAX}"


def long_functions(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"line {node.lineno}: {node.name} has {lines} lines, allowed are {FUNCTION_LINES_MAX}"


def code_in_door(text: str) -> Iterator[str]:
    """Complain about everything in an `__init__.py` that isn't needed to let names out."""
    for position, node in enumerate(ast.parse(text).body):
        if position == 0 and _is_docstring(node):
            continue
        if not _belongs_to_door(node):
            yield f"line {node.lineno}: {type(node).__name__} doesn't belong into an __init__.py"


def _is_docstring(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
    return False


def _belongs_to_door(node: ast.stmt) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom():
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body, orelse=[]):
            return all(isinstance(each, ast.Import | ast.ImportFrom) for each in body)
        case ast.With(body=body):
            # Around the imports of a framework that may be missing.
            return all(isinstance(each, ast.Import | ast.ImportFrom) for each in body)
        case ast.FunctionDef(name=name):
            return name in {"__getattr__", "__dir__"}
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return _is_door_data(name, value)
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            return _is_door_data(name, value)
    return False


def _is_door_data(name: str, value: ast.expr) -> bool:
    """`__all__`, `__version__`, or the private table of a lazy door: where each name lives."""
    if not name.startswith("_"):
        return False
    try:
        ast.literal_eval(value)
    except ValueError:
        return False
    return True


# Two words where one is also English: f"update {name}" may be a message, f"update {name} set" is SQL.
SQL_START = re.compile(
    r"""\s*(
        alter\s+table | analyze\s | attach\s+database
        | create\s+(temp\w*\s+|unique\s+|virtual\s+)*(index|table|trigger|view)
        | delete\s+from | detach\s+database | drop\s+(index|table|trigger|view) | explain\s
        | insert\s+(or\s+\w+\s+)?into | pragma\s | reindex\s | replace\s+into | savepoint\s
        | select\s.*?(\sfrom\s|\() | update\s+(or\s+\w+\s+)?\S+\s+set\s | vacuum\s+into
        | values\s*\( | with\s+(recursive\s+)?\S+\s*(\([^)]*\)\s*)?as\s.*?\(
    )""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
PLACEHOLDER = "\N{REPLACEMENT CHARACTER}"
TEXT_BUILDERS = frozenset({"format", "format_map", "join", "replace", "substitute"})


def built_sql(text: str) -> Iterator[str]:
    """Complain about SQL that is put together from strings, in whichever way."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.JoinedStr(values=values) if any(isinstance(each, ast.FormattedValue) for each in values):
                pass
            case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str())):
                pass
            case ast.BinOp(op=ast.Add()) if PLACEHOLDER in _template(node):
                pass
            case ast.Call(func=ast.Attribute(attr=attr)) if attr in TEXT_BUILDERS:
                pass
            case _:
                continue
        if SQL_START.match(_template(node) + " "):
            yield f"line {node.lineno}: SQL built from strings; use constant text and bound parameters"


def _template(node: ast.AST) -> str:
    """What is known of a text expression before the program runs, with a placeholder for the rest."""
    match node:
        case ast.Constant(value=str(known)):
            return known
        case ast.JoinedStr(values=values):
            return "".join(_template(each) for each in values)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return _template(left) + _template(right)
        case ast.BinOp(op=ast.Mod(), left=left):
            return _template(left) + PLACEHOLDER
        case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in TEXT_BUILDERS:
            return _template(value) + PLACEHOLDER
    return PLACEHOLDER


def vague_name(path: Path) -> bool:
    return any(set(part.removesuffix(".py").split("_")) & VAGUE_NAMES for part in path.parts)


RULES = {"module": long_module, "function": long_functions, "sql": built_sql}


@pytest.mark.parametrize("rule", RULES)
def test_source_keeps_the_rule(rule: str) -> None:
    complaints = [
        f"{path.relative_to(PACKAGE)}: {complaint}"
        for path in MODULES
        for complaint in RULES[rule](path.read_text(encoding="utf-8"))
    ]
    assert not complaints, "\n".join(complaints)


def test_doors_hold_no_code() -> None:
    doors = [path for path in MODULES if path.name == "__init__.py"]
    assert PACKAGE / "__init__.py" in doors
    complaints = [
        f"{path.relative_to(PACKAGE)}: {complaint}"
        for path in doors
        for complaint in code_in_door(path.read_text(encoding="utf-8"))
    ]
    assert not complaints, "\n".join(complaints)


def test_modules_have_names_that_say_something() -> None:
    vague = [str(path) for path in (each.relative_to(PACKAGE) for each in MODULES) if vague_name(path)]
    assert not vague, f"find the noun that these are about: {vague}"


def test_every_folder_is_a_package() -> None:
    # import-linter doesn't see a folder without __init__.py, so that its modules would escape the layers.
    folders = {path.parent for path in MODULES}
    assert not [str(folder) for folder in folders if not (folder / "__init__.py").exists()]


def test_too_long_is_noticed() -> None:
    body = "    pass\n"
    assert not list(long_module("x = 1\n" * MODULE_LINES_MAX))
    assert list(long_module("x = 1\n" * (MODULE_LINES_MAX + 1)))
    for head in ("def f():\n", "async def f():\n"):
        assert not list(long_functions(head + body * (FUNCTION_LINES_MAX - 1)))
        assert list(long_functions(head + body * FUNCTION_LINES_MAX))


@pytest.mark.parametrize(
    "text",
    [
        '"""Door."""',
        "from everthread.errors import NotFoundError\nimport everthread.model",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from everthread.threads import Thread",
        '__all__ = ["a", "b"]\n__version__ = "0.1.0"\n_HOMES: dict[str, str] = {"a": "everthread.a"}',
        "def __getattr__(name: str) -> object: ...\ndef __dir__() -> list[str]: ...",
    ],
)
def test_door_may_hold(text: str) -> None:
    assert not list(code_in_door(text))


@pytest.mark.parametrize(
    "text",
    [
        "def open(): ...",
        "class Store: ...",
        "import os\nos.umask(0o77)",
        "LIMIT = 64",
        "_LIMIT = compute()",
        "for name in (): pass",
        "if TYPE_CHECKING:\n    x = 1",
        "if TYPE_CHECKING:\n    import a\nelse:\n    a = 1",
        "import a\n'''a text that isn't the docstring'''",
    ],
)
def test_door_may_not_hold(text: str) -> None:
    assert list(code_in_door(text))


@pytest.mark.parametrize(
    "text",
    [
        'f"SELECT * FROM {table}"',
        'f"select {columns} from versions"',
        'f"select count({column}) from versions"',
        '"select * from {}".format(table)',
        '"insert into %s values (?)" % table',
        '"insert or ignore into " + table',
        'prefix = "delete from versions where id in (" + ",".join(marks) + ")"',
        '"delete from versions where line = ?" f" and seq > {seq}"',
        '"update threads set name = NAME".replace("NAME", name)',
        'f"update {table} set seq = ?"',
        'f"pragma user_version = {version}"',
        'f"""\n    create table {name} (id integer)"""',
        'f"with recursive up(id) as (select {line}) select id from up"',
        'f"vacuum into {path!r}"',
        'f"drop table if exists {name}"',
    ],
)
def test_built_sql_is_noticed(text: str) -> None:
    assert list(built_sql(text))


@pytest.mark.parametrize(
    "text",
    [
        '"select * from versions where id = ?"',
        '"select * from versions " + "where id = ?"',
        '"select * from versions " "where id = ?"',
        'f"select * from versions"',
        'f"update of {name} refused"',
        'f"delete {name!r} first"',
        'f"select one of {names}"',
        '"insert %s before it" % name',
        '"replace it with {}".format(name)',
        'f"with {name} as its parent"',
        '", ".join(["select"])',
    ],
)
def test_constant_sql_and_plain_words_pass(text: str) -> None:
    assert not list(built_sql(text))


@pytest.mark.parametrize(
    ("path", "vague"),
    [
        ("stores/utils.py", True),
        ("helpers/rows.py", True),
        ("threads/thread_manager.py", True),
        ("stores/sqlite.py", False),
        ("model/managed.py", False),
    ],
)
def test_vague_name_is_noticed(path: str, vague: bool) -> None:
    assert vague_name(Path(path)) is vague
