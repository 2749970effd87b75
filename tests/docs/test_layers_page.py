"""docs/internals/layers.md has a section on every room of the package."""

from __future__ import annotations

import re
from pathlib import Path

import everthread

PACKAGE = Path(everthread.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "internals" / "layers.md"


def sections() -> dict[str, str]:
    """The text below each heading of the second level."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_package_and_module_of_the_first_level_has_a_section() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert modules | packages <= set(sections())
