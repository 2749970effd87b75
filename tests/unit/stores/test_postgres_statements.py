"""The SQL files beside the code: every statement is used, and every one that is used is there."""

from __future__ import annotations

import re
from importlib.resources import files

from everthread.stores.postgres.schema import MIGRATIONS, statements

PACKAGE = files("everthread.stores.postgres")
#: A name where a statement is run: run("find", …), read("find", …), sql["find"], statements["find"].
USED = re.compile(
    r"""(?:\b(?:run|read|_run)\(|run_sealing\(\s*self\.pool,|\b(?:sql|statements|_statements)\[)\s*"(\w+)\""""
)


def _code() -> str:
    folders = (PACKAGE, PACKAGE / "aio")
    return "\n".join(
        each.read_text("utf-8")
        for folder in folders
        for each in folder.iterdir()
        if each.name.endswith(".py")
    )


def test_every_statement_is_used_and_there() -> None:
    code = _code()
    known = set(statements('"everthread"'))
    assert set(USED.findall(code)) <= known
    assert [name for name in sorted(known) if f'"{name}"' not in code] == []


def test_another_schema_takes_the_place_of_ours() -> None:
    for text in statements('"agents"').values():
        assert b"everthread." not in text


def test_every_section_says_what_it_does() -> None:
    for file in ("statements.sql", "upkeep.sql"):
        for name, after in re.findall(
            r"^-- name: (.*)\n(.*)$", (PACKAGE / file).read_text("utf-8"), re.MULTILINE
        ):
            assert after.startswith("-- "), name


def test_every_file_belongs_to_the_statements_or_a_migration() -> None:
    found = {each.name for each in PACKAGE.iterdir() if each.name.endswith(".sql")}
    assert found == {"statements.sql", "upkeep.sql"}.union(*MIGRATIONS)
