"""docs/internals/layers.md has a word on every module, in the section of its layer."""

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


def test_every_module_is_on_the_page() -> None:
    texts = sections()
    missing = []
    for path in sorted(PACKAGE.rglob("*.py")):
        layer, *below = path.relative_to(PACKAGE).with_suffix("").parts
        if path.name == "__init__.py" or layer == "errors":
            continue
        # A package inside a layer is named as a whole, or module by module.
        below = below or [layer]
        names = {"/".join(below), below[0], below[0].split("_")[0]}
        if not any(f"`{name}`" in texts[layer] for name in names):
            missing.append("/".join((layer, *below)))
    assert not missing


def test_every_layer_has_a_section() -> None:
    layers = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert layers | {"errors"} <= set(sections())
