"""Answers as data: plain values, and these as JSON, YAML and TSV.

Whatever a store holds, the text is valid, and safe to look at on a terminal: what can't be seen is escaped.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from everthread.briefing.facts import shown
from everthread.values import Erased, Personal

#: YAML wants longer keys written in another way.
_YAML_KEY_MAX = 1_000
_INT_BITS_MAX = 14_000
#: Left to right: the backslash first.
_TSV_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))


class Mark(str):
    """A text that stands for a value which isn't shown; it isn't itself one, so it has no quotes."""

    __slots__ = ()


def plain(value: Any) -> Any:
    """A value with nothing in it but what JSON has. Personal values stay masked.

    Numbers that JSON doesn't have become texts, and so does everything else: times as ISO 8601, bytes as
    Python writes them.
    """
    if value is None or type(value) in (bool, str, Mark):
        return value
    if type(value) is int:
        # Python refuses to write longer ones in decimal.
        return value if value.bit_length() < _INT_BITS_MAX else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return _plain_mapping(value)
    if isinstance(value, set | frozenset):
        # The order of a set differs from run to run.
        return sorted(map(plain, value), key=_text_of)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return [plain(item) for item in value]
    if isinstance(value, Personal | Erased):
        return Mark(shown(value))
    if isinstance(value, str):
        return str(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return repr(value) if isinstance(value, bytes | bytearray | memoryview) else str(value)


def _plain_mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in value.items():
        name = key if isinstance(key, str) else str(plain(key))
        while name in found or (name is not key and name in value):
            # 1 and "1" are two keys, and both must be seen.
            name = f"{name} ({type(key).__name__})"
        found[name] = plain(item)
    return found


def _text_of(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


class _Escapes(dict[int, str]):
    """How characters that can't be seen are written inside a text of JSON or YAML."""

    def __init__(self, *, pairs: bool) -> None:
        super().__init__()
        self._pairs = pairs

    def __missing__(self, code: int) -> str:
        character = chr(code)
        # A line end can only be one between two lines: inside texts they are escaped already.
        if character.isprintable() or character == "\n":
            shown = character
        elif code <= 0xFFFF:
            shown = f"\\u{code:04x}"
        elif self._pairs:
            high, low = divmod(code - 0x10000, 0x400)
            shown = f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
        else:
            shown = f"\\U{code:08x}"
        self[code] = shown
        return shown


_JSON_ESCAPES = _Escapes(pairs=True)
_YAML_ESCAPES = _Escapes(pairs=False)


def _seen(text: str, escapes: _Escapes) -> str:
    return text if text.isascii() and "\x7f" not in text else text.translate(escapes)


def json_text(data: Any) -> str:
    """``data`` as JSON, on several lines."""
    return _seen(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False), _JSON_ESCAPES)


# ── YAML ─────────────────────────────────────────────────────────────────────────────────────────


def yaml_text(data: Any) -> str:
    """``data`` as YAML: blocks whose texts are quoted, so that none is ever taken for something else."""
    return "\n".join(_yaml_lines(data, ""))


def _yaml_lines(value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            name = _yaml_scalar(key)
            if len(name) <= _YAML_KEY_MAX:
                yield from _yaml_entry(f"{indent}{name}:", item, indent)
            else:
                yield f"{indent}? {name}"
                yield from _yaml_entry(f"{indent}:", item, indent)
    elif isinstance(value, list) and value:
        for item in value:
            yield from _yaml_entry(f"{indent}-", item, indent)
    else:
        yield indent + _yaml_scalar(value)


def _yaml_entry(head: str, item: Any, indent: str) -> Iterator[str]:
    if isinstance(item, dict | list) and item:
        yield head
        yield from _yaml_lines(item, indent + "  ")
    else:
        yield f"{head} {_yaml_scalar(item)}"


def _yaml_scalar(value: Any) -> str:
    text = _seen(json.dumps(value, ensure_ascii=False), _YAML_ESCAPES)
    if isinstance(value, float) and "." not in text:
        # Readers of YAML 1.1 take 1e+16 for a text.
        text = text.replace("e", ".0e")
    return text


# ── TSV ──────────────────────────────────────────────────────────────────────────────────────────


def tsv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table with a line of headings. Texts stand as they are but for ``\\t``, ``\\n`` and the like, which
    are escaped as is the backslash; nothing is an empty cell, everything else is JSON."""
    return "\n".join("\t".join(map(_tsv_cell, row)) for row in (columns, *rows))


def _tsv_cell(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return _seen(json.dumps(value, ensure_ascii=False), _JSON_ESCAPES)
    text: str = value
    for character, escape in _TSV_ESCAPES:
        text = text.replace(character, escape)
    return text if text.isprintable() else text.translate(_JSON_ESCAPES)
