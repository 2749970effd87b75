"""SQL and Lua that lie in files of their own, beside the code that uses them.

A file has sections. Each begins with a line ``-- name: section``, in SQL and Lua alike a comment::

    -- name: find
    -- What it is given and what it answers.
    SELECT …
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import Any

_NAME = re.compile(r"^-- name: *(.*?) *$", re.MULTILINE)


def read_sections(package: str, file: str) -> dict[str, str]:
    """The sections of a file of a package, by name, without the lines that name them.

    Raises :class:`ValueError` if a name stands there twice or text comes before the first name.
    """
    module: Any = import_module(package)
    # Not importlib.resources: it takes longer to load than a store takes to open.
    data: bytes = module.__spec__.loader.get_data(os.path.join(os.path.dirname(module.__file__), file))
    before, *parts = _NAME.split(data.decode())
    if any(line and not line.startswith("--") for line in before.splitlines()):
        raise ValueError(f"{package}/{file} begins with text that belongs to no section")
    sections: dict[str, str] = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        if name in sections:
            raise ValueError(f"{package}/{file} has two sections named {name!r}")
        sections[name] = text.strip()
    return sections
