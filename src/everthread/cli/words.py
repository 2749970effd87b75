"""Text from a store, made harmless for a terminal: on one line, within its width, nothing hidden."""

from __future__ import annotations

#: Joiners that pictures and some scripts need between letters.
_JOINERS = "\u200c\u200d"
_HOUR_S, _DAY_S = 3_600, 86_400


def clean(text: str, width: int = 0) -> str:
    """``text`` on one line: what can't be seen, or would move the cursor or turn the direction of writing, is
    written as an escape (``\\n``, ``\\x1b``, ``\\u202e``). At most ``width`` columns, if that is given."""
    if width:
        # Cut first: a text of megabytes costs what its beginning costs.
        whole, text = len(text), text[: 4 * width]
    shown = text if text.isprintable() else "".join(map(_visible, " " + text, text))
    if width and (whole > len(text) or cells(shown) > width):
        shown = _cut(shown, width - 1) + "…"
    return shown


def _visible(before: str, character: str) -> str:
    if character.isprintable() or (character in _JOINERS and not before.isascii()):
        return character
    return character.encode("unicode_escape").decode("ascii")


def cells(text: str) -> int:
    """How many columns a printable text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


def _cells(character: str) -> int:
    from unicodedata import combining, east_asian_width

    if combining(character) or character in _JOINERS:
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


def _cut(text: str, width: int) -> str:
    if text.isascii():
        return text[:width]
    taken = 0
    for index, character in enumerate(text):
        taken += _cells(character)
        if taken > width:
            return text[:index]
    # Marks that take no room could go on for ever.
    return text[: 4 * width]


def pad(text: str, width: int) -> str:
    """``text`` with blanks up to ``width`` columns."""
    return text + " " * (width - cells(text))


def ago(then_us: int, now_us: int) -> str:
    """How long ago, in one short word. A clock that ran ahead counts as now."""
    seconds = max(0, now_us - then_us) // 1_000_000
    if seconds >= 2 * _DAY_S:
        return f"{seconds // _DAY_S} d ago"
    if seconds >= 2 * _HOUR_S:
        return f"{seconds // _HOUR_S} h ago"
    if seconds >= 120:
        return f"{seconds // 60} min ago"
    return f"{seconds} s ago"


def moment(at_us: int) -> str:
    """A point in time, to the minute, whatever the time zone of who reads it."""
    import datetime

    try:
        return f"{datetime.datetime.fromtimestamp(at_us / 1e6, datetime.UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return "at no time that there is"


def typed(name: str) -> str:
    """A name as it is typed in a shell, after ``--`` where it looks like an option."""
    from shlex import quote

    if not name.isprintable():
        # Only $'…' can say it.
        escaped = clean(name.replace("\\", "\\\\").replace("'", "\\'"))
        return f"{'-- ' if name[:1] == '-' else ''}$'{escaped}'"
    return f"-- {quote(name)}" if name[:1] == "-" else quote(name)
