"""Answers as text for people, and as JSON, YAML or TSV for programs."""

from __future__ import annotations

import datetime
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

FORMATS = ("text", "json", "yaml", "tsv")
#: Grows when a field changes its meaning or goes; new fields don't count.
SCHEMA_VERSION = 1


class Telling:
    """Prints one answer."""

    def __init__(self, format_: str) -> None:
        self.format = format_

    @property
    def for_people(self) -> bool:
        return self.format == "text"

    def answer(self, command: str, data: Mapping[str, Any], text: Callable[[], None]) -> None:
        """Print ``data`` in the format that was asked for, or let ``text`` print it for people."""
        if self.for_people:
            text()
            return
        whole = {"schema_version": SCHEMA_VERSION, "command": command, **plain(data)}
        if self.format == "json":
            click.echo(json.dumps(whole, indent=2, ensure_ascii=False))
        elif self.format == "yaml":
            click.echo("\n".join(yaml_lines(whole)))
        else:
            click.echo("\n".join(tsv_lines(whole)))


def note(words: str) -> None:
    """A word for the person at the terminal; it isn't part of the answer."""
    click.echo(words, err=True)


def console() -> Console:
    """Rich, when a command draws: width and colours as the terminal has them."""
    from rich.console import Console

    piped = not sys.stdout.isatty()
    return Console(highlight=False, soft_wrap=piped, no_color=bool(os.environ.get("NO_COLOR")) or None)


def plain(value: Any) -> Any:
    """A value with nothing in it but what JSON has. Personal values stay masked."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return repr(value)


def yaml_lines(value: Any, indent: str = "") -> Iterable[str]:
    """Block YAML whose scalars are written as JSON: readable, and no text is ever taken for something else."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _entry(f"{indent}{json.dumps(key, ensure_ascii=False)}:", item, indent)
    elif isinstance(value, list) and value:
        for item in value:
            yield from _entry(f"{indent}-", item, indent)
    else:
        yield indent + json.dumps(value, ensure_ascii=False)


def _entry(head: str, item: Any, indent: str) -> Iterable[str]:
    if isinstance(item, dict | list) and item:
        yield head
        yield from yaml_lines(item, indent + "  ")
    else:
        yield f"{head} {json.dumps(item, ensure_ascii=False)}"


def tsv_lines(data: Mapping[str, Any]) -> Iterable[str]:
    """The first list of records as a table, else the fields one by one."""
    for value in data.values():
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            columns = list(dict.fromkeys(key for row in value for key in row))
            yield "\t".join(columns)
            for row in value:
                yield "\t".join(_cell(row.get(column)) for column in columns)
            return
    for key, value in data.items():
        yield f"{key}\t{_cell(value)}"


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def ago(then_us: int, now_us: int) -> str:
    """How long ago, in one short word."""
    seconds = max(0, now_us - then_us) / 1e6
    for size, letter in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {letter} ago"
    return f"{seconds:.0f} s ago"


def clean(text: str, width: int = 0) -> str:
    """Text from a store for a terminal: one line, no control characters that could move the cursor."""
    shown = "".join(c if c.isprintable() else "·" for c in text)
    return shown if not width or len(shown) <= width else shown[: width - 1] + "…"
