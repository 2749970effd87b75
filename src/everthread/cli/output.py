"""Answers: text for people, JSON, YAML or TSV for programs. Answers go to stdout, words to stderr."""

from __future__ import annotations

import datetime
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Timer
from typing import TYPE_CHECKING, Any, NamedTuple

from everthread.values import Erased, Personal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


# Answers as data: plain values, and these as JSON, YAML and TSV.
#
# Whatever a store holds, the text is valid, and safe to look at on a terminal: what can't be seen is
# escaped.


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
        from everthread.briefing.facts import shown

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


def yaml_text(data: Any) -> str:
    """``data`` as YAML, in blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes texts with characters that can't be seen, so that these can be escaped."""

    def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = None if text.isprintable() else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style=style)

    Dumper.add_multi_representer(str, represent_text)
    Dumper.add_representer(str, represent_text)
    text = yaml.dump(data, Dumper=Dumper, allow_unicode=True, sort_keys=False, width=math.inf)
    # A lone scalar is followed by a mark that ends the document.
    return _seen(text.removesuffix("\n").removesuffix("\n..."), _YAML_ESCAPES)


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


# Text from a store, made harmless for a terminal: on one line, within its width, nothing hidden.


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


FORMATS = ("text", "json", "yaml", "tsv")
#: Places that are shown one by one.
SHOWN_MAX = 100
#: Grows when a field changes its meaning or goes; new fields don't count.
SCHEMA_VERSION = 1
#: Of a drawing that goes into a file or a pipe.
_WIDTH = 240


class Table(NamedTuple):
    """An answer as a table."""

    columns: Sequence[str]
    rows: Iterable[Sequence[Any]]


class Output:
    """Prints one answer."""

    def __init__(self, format_: str) -> None:
        self.format = format_

    @property
    def for_people(self) -> bool:
        return self.format == "text"

    def answer(
        self,
        command: str,
        data: Mapping[str, Any],
        text: Callable[[], None],
        table: Callable[[Mapping[str, Any]], Table] | None = None,
    ) -> None:
        """Print ``data`` in the format that was asked for, or let ``text`` print it for people.

        ``table`` makes the table of the plain data; without one it has a row for each field.
        """
        if self.for_people:
            text()
            return

        found = plain(data)
        whole = {"schema_version": SCHEMA_VERSION, "command": command, **found}
        if self.format == "json":
            shown = json_text(whole)
        elif self.format == "yaml":
            shown = yaml_text(whole)
        else:
            made = table(found) if table else Table(("field", "value"), list(found.items()))
            shown = tsv_text(made.columns, made.rows)
        say(shown)


def records(field: str, columns: Sequence[str]) -> Callable[[Mapping[str, Any]], Table]:
    """The table of a field that holds records."""
    return lambda data: Table(columns, [[row.get(name) for name in columns] for row in data[field]])


def note(words: str) -> None:
    """A word for the person at the terminal; it isn't part of the answer."""
    say(clean(words), err=True)


def say(text: str, *, err: bool = False) -> None:
    """A line to stdout or stderr, at once. Without click: not every command loads it."""
    stream = sys.stderr if err else sys.stdout
    if stream is not None:
        stream.write(f"{text}\n")
        stream.flush()


def painted(text: str, *codes: int) -> str:
    """Text in the colours of these codes of a terminal, if stdout takes colours."""
    if not codes or not coloured():
        return text
    return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m"


def columns_of_terminal() -> int:
    """How wide the terminal is that stdout goes to; 0 if there is none, or it doesn't say."""
    if sys.stdout is None or not sys.stdout.isatty():
        return 0
    told = os.environ.get("COLUMNS", "")
    if told.isascii() and told.isdigit() and 0 < len(told) <= 4:
        return int(told)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return 0


def coloured() -> bool:
    """Whether what goes to stdout is coloured."""
    chosen = colours()
    return sys.stdout is not None and sys.stdout.isatty() if chosen is None else chosen


def colours() -> bool | None:
    """Whether to use colours; ``None``: on a terminal. See https://no-color.org and force-color.org."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return False if os.environ.get("TERM") == "dumb" else None


def console() -> Console:
    """Rich, when a command draws: as wide as the terminal, lines of any length where there is none."""
    from rich.console import Console

    class Ours(Console):
        def on_broken_pipe(self) -> None:
            # Ended like everything else that nobody reads to its end; rich would exit with 1.
            raise BrokenPipeError

    terminal = sys.stdout is not None and sys.stdout.isatty()
    return Ours(
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=not terminal,
        width=None if terminal else _WIDTH,
        force_terminal=coloured(),
        color_system="auto" if coloured() else None,
    )


# A bar for work that takes longer than a moment.


class Step:
    """Is told how far the work is, and of how much; remembers it. Silent unless stderr is a terminal."""

    def __init__(self, words: str) -> None:
        self._words = words
        self._bar: Progress | None = None
        self.done = self.total = 0

    def __call__(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        if sys.stderr is None or not sys.stderr.isatty():
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._bar.add_task(self._words, total=total)
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)

    def reached(self, what: str) -> str:
        """How far it has come, in words that stand after *stopped*."""
        return f" after {self.done:,} of {self.total:,} {what}" if self.total else " at the beginning"

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def progress(words: str) -> Iterator[Step]:
    """A bar for the length of a block."""
    step = Step(words)
    try:
        yield step
    finally:
        step.end()


# A word to whoever sits at the terminal while a server doesn't answer.


#: Silence up to here is what everybody expects.
_SILENT_S = 1.0


@contextmanager
def told_to_wait(url: str) -> Iterator[None]:
    """Within the block: say on a terminal that a server is being connected to, if that takes long."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    timer = Timer(_SILENT_S, _tell, (url,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell(url: str) -> None:
    scheme, _, rest = url.partition("://")
    # Neither who nor with which password.
    hosts = rest.partition("/")[0].partition("?")[0].rpartition("@")[2]
    with suppress(OSError):
        note(f"connecting to {scheme}://{hosts} …")
