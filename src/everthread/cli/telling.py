"""Answers: text for people, JSON, YAML or TSV for programs. Answers go to stdout, words to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from everthread.cli.words import clean

if TYPE_CHECKING:
    from rich.console import Console

FORMATS = ("text", "json", "yaml", "tsv")
#: Grows when a field changes its meaning or goes; new fields don't count.
SCHEMA_VERSION = 1
#: Of a drawing that goes into a file or a pipe.
_WIDTH = 240


class Table(NamedTuple):
    """An answer as a table."""

    columns: Sequence[str]
    rows: Iterable[Sequence[Any]]


class Telling:
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
        from everthread.cli import formats

        found = formats.plain(data)
        whole = {"schema_version": SCHEMA_VERSION, "command": command, **found}
        if self.format == "json":
            shown = formats.json_text(whole)
        elif self.format == "yaml":
            shown = formats.yaml_text(whole)
        else:
            made = table(found) if table else Table(("field", "value"), list(found.items()))
            shown = formats.tsv_text(made.columns, made.rows)
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
