"""Making recorded text harmless: it stays on its line, inside the envelope, and can be seen.

What is escaped is a character reference of XML, so that a parser gives back the very text. The exception are
the control characters that XML can't express; they become visible signs.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

_CONTROL_PICTURES = 0x2400
_DELETE = 0x7F
_GAPS = re.compile(r"[^\S\n\r\u2028\u2029\x85]+")
_LINE_ENDS = re.compile(r"\s*[\n\r\u2028\u2029\x85]\s*")
_HARMLESS = re.compile(r"[ -%'-;=?-~]*").fullmatch
#: Letters and marks that show nothing, besides those that Unicode calls format characters.
_INVISIBLE = frozenset(
    (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x3164, 0xFFA0)
)


def verbatim(text: str) -> str:
    """``text`` on one line, nothing left out: unescaped by an XML parser, it is what it was."""
    if _HARMLESS(text):
        return text
    return "".join(map(_escaped, text)).replace("]]>", "]]&gt;")


def inline(text: str, characters_max: int) -> str:
    """``text`` on one line, shortened, its line ends shown as ``⏎`` and other white space as one blank."""
    # Cut first: a text of megabytes costs what its beginning costs.
    cut = text[: 4 * characters_max].strip()
    line = _GAPS.sub(" ", _LINE_ENDS.sub(" ⏎ ", cut))
    if len(line) > characters_max or len(text) > 4 * characters_max:
        line = line[: max(0, characters_max - 1)].rstrip() + "…"
    return verbatim(line)


def label(text: str, characters_max: int = 48) -> str:
    """``text`` as an id or source in front of a line: it can't end the brackets it stands in."""
    if len(text) > characters_max:
        # Both ends: ids that were made together often begin alike.
        text = f"{text[: characters_max - 13]}…{text[-12:]}"
    escaped = verbatim(text)
    return escaped.replace("[", "&#91;").replace("]", "&#93;").replace("·", "&#183;")


def attribute(text: str, characters_max: int = 200) -> str:
    """``text`` as the value of an XML attribute, with its quotes."""
    return '"' + inline(text, characters_max).replace('"', "&quot;") + '"'


@cache
def _escaped(character: str) -> str:
    code = ord(character)
    if character == "&":
        return "&amp;"
    if character == "<":
        return "&lt;"
    if code < 0x20 and character not in "\t\n\r":
        return chr(_CONTROL_PICTURES + code)
    if code == _DELETE:
        return "\N{SYMBOL FOR DELETE}"
    if 0xD800 <= code <= 0xDFFF or code in (0xFFFE, 0xFFFF):
        return "\N{REPLACEMENT CHARACTER}"
    if _hidden(character, code):
        return f"&#x{code:X};"
    return character


def _hidden(character: str, code: int) -> bool:
    """Whether a character is not to be seen, or changes how others are seen: line ends, direction marks,
    joiners, tags, fillers, selectors other than those that choose a picture."""
    if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp"):
        return True
    return code in _INVISIBLE or 0xFE00 <= code <= 0xFE0D or 0xE0000 <= code <= 0xE0FFF
