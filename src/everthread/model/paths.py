"""How a place inside a document is written in errors, diffs and reports."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Final

KEY_CHARS_MAX: Final = 80

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = KEY_CHARS_MAX


def format_path(path: Sequence[object], root: str = "") -> str:
    """Render ``("todos", 3, "content")`` under ``root="state"`` as ``state.todos[3].content``.

    Keys that aren't identifiers appear as ``["odd key"]``. Long keys are shortened, so that a key of many
    megabytes never ends up in an error message. Never raises, whatever the keys are.
    """
    parts = [root] if root else []
    for key in path:
        if type(key) is str and len(key) <= KEY_CHARS_MAX and key.isidentifier():
            parts.append(f".{key}" if parts else key)
        else:
            parts.append(f"[{_shown(key)}]")
    return "".join(parts)


def _shown(key: object) -> str:
    try:
        text = _short.repr(key)
    except Exception:
        # A key's own repr may fail, and Python refuses to print very long integers.
        return f"<{type(key).__name__}>"
    if text[:1] == "'" and '"' not in text:
        # As in the JSON that most documents come from.
        text = f'"{text[1:-1]}"'
    return text if len(text) <= KEY_CHARS_MAX else f"{text[: KEY_CHARS_MAX - 1]}…"
