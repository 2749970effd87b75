"""What people see: a graph of versions, a tree of a state, a diff. The only module that draws with rich."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.text import Text
from rich.tree import Tree

from everthread.cli.telling import ago, clean, console, plain

if TYPE_CHECKING:
    from everthread.history.diff import Diff
    from everthread.model.versions import Version

_MARKS = {"commit": "●", "rewind": "↶", "merge": "◆", "fork": "⑂", "fence": "▪"}
_COLOURS = {"commit": "green", "rewind": "yellow", "merge": "magenta", "fork": "cyan", "fence": "dim"}
#: Items of a mapping or list shown before the rest is counted.
_SHOWN = 30


def draw_log(versions: Sequence[Version], now_us: int) -> None:
    """Newest first; versions that a rewind left behind stand on a branch of their own."""
    screen = console()
    left = _left_behind(versions)
    for version in versions:
        mark = Text("  ", style="dim") if version.seq not in left else Text("│ ", style="yellow")
        line = Text.assemble(
            mark,
            (_MARKS[version.kind], _COLOURS[version.kind]),
            (f" {version.seq:<6}", "bold"),
            (f"{version.id.partition('-')[2][:8]}  ", "dim"),
            f"{ago(version.at_us, now_us):<11}",
        )
        if version.kind != "commit":
            source = f" {version.source.partition('-')[0]}" if version.source else ""
            line.append(f"{version.kind}{source}  ", style=_COLOURS[version.kind])
        if version.label:
            line.append(clean(version.label, 40), style="bold")
        if version.metadata:
            line.append("  " + clean(json.dumps(plain(version.metadata), ensure_ascii=False), 60), style="dim")
        if version.seq in left:
            line.stylize("dim")
        screen.print(line)


def _left_behind(versions: Sequence[Version]) -> set[int]:
    """The versions between a rewind and what it went back to: still there, no longer in the way."""
    left: set[int] = set()
    for version in versions:
        if version.kind == "rewind" and version.source and version.seq not in left:
            back_to = int(version.source.partition("-")[0])
            left.update(range(back_to + 1, version.seq))
    return left


def draw_state(data: Mapping[str, Any], log_name: str, now_us: int) -> None:
    """The document as a tree, how long the logs are, and the end of one."""
    version = data["version"]
    title = f"[bold]{escape(clean(data['thread']))}[/]  [dim]version {version['seq']}[/]" if version else "empty"
    tree = Tree(title)
    _grow(tree, data["state"])
    screen = console()
    screen.print(tree)
    counts = ", ".join(f"{escape(clean(name))} {count:,}" for name, count in data["logs"].items())
    if counts:
        screen.print(f"[dim]logs: {counts}[/]")
    for item in data[log_name]:
        screen.print(_one_message(item))


def _grow(tree: Tree, value: Any) -> None:
    items: list[tuple[str, Any]]
    if isinstance(value, dict):
        items = [(clean(str(key), 60), item) for key, item in value.items()]
    else:
        items = [(str(index), item) for index, item in enumerate(value)]
    for key, item in items[:_SHOWN]:
        if isinstance(item, dict | list) and item:
            _grow(tree.add(f"[cyan]{escape(key)}[/] [dim]({len(item)})[/]"), item)
        else:
            tree.add(f"[cyan]{escape(key)}[/] {escape(clean(json.dumps(item, ensure_ascii=False), 100))}")
    if len(items) > _SHOWN:
        tree.add(f"[dim]… {len(items) - _SHOWN:,} more[/]")


def _one_message(item: Any) -> Text:
    if not isinstance(item, dict):
        return Text("  " + clean(json.dumps(item, ensure_ascii=False), 160))
    role = clean(str(item.get("role", "")), 12)
    content = item.get("content", {key: v for key, v in item.items() if key not in ("id", "role")})
    shown = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return Text.assemble("  ", (f"{role:<10}", "bold"), clean(shown, 140))


def draw_diff(title: str, found: Diff) -> None:
    """Added green, removed red, changed yellow, one place a line; then the logs."""
    screen = console()
    screen.print(Text.assemble((clean(title), "bold"), f"  {found.summary()}"))
    for sign, style, places in (("+", "green", found.added), ("-", "red", found.removed)):
        for path, value in places.items():
            screen.print(Text(f"{sign} {clean(str(path), 60)}  {_short(value)}", style=style))
    for path, (old, new) in found.changed.items():
        screen.print(
            Text.assemble((f"~ {clean(str(path), 60)}  ", "yellow"), (_short(old), "red"), " → ", (_short(new), "green"))
        )
    for name, change in found.logs.items():
        for sign, style, items in (("-", "red", change.removed_items), ("+", "green", change.added_items)):
            for item in items[-_SHOWN:]:
                line = Text.assemble((f"{sign} {clean(name)} ", style), _one_message(plain(item)))
                screen.print(line)
            if len(items) > _SHOWN:
                screen.print(f"[dim]  … {len(items) - _SHOWN:,} more[/]")


def _short(value: Any) -> str:
    return clean(json.dumps(plain(value), ensure_ascii=False), 80)
