"""Files of SQL and Lua are read section by section."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from everthread.stores.resources import read_sections


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "some_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "some_package", raising=False)
    return folder


def test_sections_by_name(package: Path) -> None:
    text = "-- What this file is.\n\n-- name: find\n-- One line.\nSELECT 1;\n\n-- name: put all\nINSERT …\n"
    (package / "some.sql").write_text(text, encoding="utf-8")
    assert read_sections("some_package", "some.sql") == {
        "find": "-- One line.\nSELECT 1;",
        "put all": "INSERT …",
    }


@pytest.mark.parametrize("text", ["SELECT 1\n-- name: a\n", "-- name: a\n1\n-- name: a\n2\n"])
def test_what_has_no_name_or_the_same_is_an_error(package: Path, text: str) -> None:
    (package / "some.sql").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"some_package/some\.sql"):
        read_sections("some_package", "some.sql")
