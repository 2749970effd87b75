"""What people see: a graph of versions, a tree of a state, a diff. The only module that draws with rich."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.text import Text
from rich.tree import Tree

from everthread.arguments import counted, format_path
from everthread.briefing.facts import message_text, shown
from everthread.cli.descendants import described
from everthread.cli.output import Mark, ago, clean, console

if TYPE_CHECKING:
    from everthread.cli.family import Family
    from everthread.history.diff import Diff
    from everthread.sandboxes.tree import FileInfo
    from everthread.versions import Version
from everthread.cli.outline import MARKS, Part, bookkeeping, item_texts, outline

VERSION_MARKS = {"commit": "●", "rewind": "↶", "merge": "◆", "fork": "○", "fence": "▪"}


#: Columns that are drawn; what is further to the right is only hinted at.
_COLUMNS_MAX = 10


class Row(NamedTuple):
    """One line of the graph: what is drawn, where the mark is in it, and the version it stands for.

    A line without a version joins columns. ``left``: a rewind left this version behind.
    """

    drawn: str
    mark: int = -1
    version: Version | None = None
    left: bool = False


def rows(versions: Iterable[Version]) -> Iterator[Row]:
    """The graph of versions that come newest first. Any of them may be missing."""
    #: The version that each column goes on to; 0 for a column that is free.
    columns: list[int] = []
    for version in versions:
        # Where a version was pruned its column goes on to the next one that is left.
        waiting = [index for index, seq in enumerate(columns) if seq >= version.seq]
        main = waiting[0] if waiting else _free(columns)
        if len(waiting) > 1:
            yield Row(_cut_row(_join(columns, main, waiting[1:])))
        for index in waiting[1:]:
            columns[index] = 0
        _trim(columns, main + 1)
        # The head is in the first column, and with it all that it goes back to.
        yield Row(
            _cut_row(_graph_row(columns, main, VERSION_MARKS[version.kind])), 2 * main, version, main > 0
        )
        columns[main] = _before(version)
        _trim(columns, 1)


def _trim(columns: list[int], least: int) -> None:
    while len(columns) > least and columns[-1] == 0:
        columns.pop()


def _before(version: Version) -> int:
    """The version whose state this one goes on from."""
    if version.kind == "rewind" and version.source:
        return int(version.source.partition("-")[0])
    return version.seq - 1


def _free(columns: list[int]) -> int:
    for index, seq in enumerate(columns):
        if seq == 0:
            return index
    columns.append(0)
    return len(columns) - 1


def _graph_row(columns: list[int], main: int, mark: str) -> str:
    return " ".join(mark if index == main else "│" if seq else " " for index, seq in enumerate(columns))


def _join(columns: list[int], main: int, ending: list[int]) -> str:
    """Columns that come together: ``├─┴─╯``."""
    last = ending[-1]
    drawn = []
    for index, seq in enumerate(columns):
        inside = main < index < last
        if index == main:
            sign = "├"
        elif index in ending:
            sign = "╯" if index == last else "┴"
        elif seq:
            sign = "┼" if inside else "│"
        else:
            sign = "─" if inside else " "
        drawn.append(sign + ("─" if main <= index < last else " "))
    return "".join(drawn).rstrip()


def _cut_row(drawn: str) -> str:
    return drawn if len(drawn) <= 2 * _COLUMNS_MAX else drawn[: 2 * _COLUMNS_MAX - 1] + "…"


_COLOURS = {"commit": "green", "rewind": "yellow", "merge": "magenta", "fork": "cyan", "fence": "dim"}


_MARK_COLOURS = {MARKS["completed"]: "green", MARKS["in_progress"]: "yellow", MARKS["cancelled"]: "dim"}


#: Items of a mapping or list, or changes of a kind, that are shown before the rest is counted.
_SHOWN = 30


_DEPTH_MAX = 8


_NAMES_MAX = 3


def draw_log(versions: Sequence[Version], changes: Mapping[int, str], relatives: Family, now_us: int) -> None:
    """The graph, each version with its age and what is known of it; ``changes`` says what it changed."""
    screen = console()
    drawn = list(rows(versions))
    width = max((len(row.drawn) for row in drawn), default=0)
    numbers = max((len(str(version.seq)) for version in versions), default=0)
    source = relatives.source
    for row in drawn:
        version = row.version
        if version is None:
            screen.print(Text(row.drawn, style="dim"))
            continue
        if source is not None and version.seq <= source.seq:
            screen.print(Text(f"⑂ from {clean(source.thread, 60)}, version {source.seq}", style="cyan"))
            source = None
        line = Text().append(row.drawn.ljust(width), style="dim")
        line.stylize(f"{_COLOURS[version.kind]} not dim", row.mark, row.mark + 1)
        line.append(f"  {version.seq:>{numbers}}  ", style="bold")
        line.append(f"{ago(version.at_us, now_us):<11}", style="dim")
        line.append_text(_about(version, changes.get(version.seq, "")))
        forks = relatives.forks_at(version.seq)
        if forks:
            line.append(f"  ⑂ {_named(forks)}", style="cyan")
        if row.left:
            line.stylize("dim")
        screen.print(line)


def _about(version: Version, change: str) -> Text:
    about = Text()
    source = (version.source or "").partition("-")[0]
    words = {"rewind": f"back to {source}", "merge": f"merged {version.source}"}
    if version.kind != "commit":
        about.append(words.get(version.kind, version.kind), style=_COLOURS[version.kind])
    if version.label:
        about.append(("  " if about else "") + clean(version.label, 50), style="bold")
    step, metadata = _step(version)
    if step and step != version.label:
        about.append(("  " if about else "") + clean(step, 50), style="bold")
    for key, execution in metadata.pop("skipped", {}).items():
        about.append(
            ("  " if about else "") + f"skipped {clean(key, 50)}, made by execution {execution}", "yellow"
        )
    if metadata:
        about.append(("  " if about else "") + _short(metadata, 60), style="cyan")
    if change and version.kind != "rewind":
        about.append(("  " if about else "") + clean(change, 80), style="dim")
    return about


#: In the metadata of a version that a step of an engine made: what the engine needs to know, not a reader.
_ENGINE = frozenset({"run", "scheduler", "attempt", "number", "made_by", "claim", "left", "owner"})


def _step(version: Version) -> tuple[str, dict[str, Any]]:
    """Return the name of the step that made a version, and the metadata that its caller gave. The key of an
    engine's step begins with the run that it belongs to."""
    metadata = dict(version.metadata)
    if version.step is None:
        return "", metadata
    parts = [version.step] if isinstance(version.step, str) else list(version.step)
    if "run" in metadata and len(parts) > 1:
        parts = parts[1:]
        metadata = {name: value for name, value in metadata.items() if name not in _ENGINE}
    slot = "" if version.slot is None else f" #{version.slot}"
    return " ".join(map(str, parts)) + slot, metadata


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return ", ".join(clean(name, 40) for name in names[:_NAMES_MAX]) + more


def draw_state(title: Text, document: Mapping[str, Any], logs: Mapping[str, int]) -> None:
    """The document as a tree: first what agents work by, then the rest; and how long the logs are."""
    parts, rest = outline(document)
    tree = Tree(title, guide_style="dim")
    for part in parts:
        if part.lines:
            _grow_part(tree.add(Text(part.title, style="bold")), part)
    _grow(tree, rest, _DEPTH_MAX)
    for name, count in logs.items():
        if count:
            tree.add(Text.assemble((clean(name, 60), "cyan"), (f"  {counted(count, 'item')}", "dim")))
    console().print(tree, no_wrap=True, overflow="ellipsis")


def draw_descendants(title: Text, found: Sequence[Mapping[str, Any]]) -> None:
    """Subagents, and theirs, as a tree."""
    tree = Tree(title, guide_style="dim")
    pending = [(tree, node) for node in reversed(found)]
    while pending:
        above, node = pending.pop()
        colour = {"open": "yellow", "failed": "red"}.get(node["status"], "green")
        name = Text.assemble((clean(node["name"], 60), colour), (f"  {clean(described(node), 160)}", "dim"))
        below = above.add(name)
        pending.extend((below, each) for each in reversed(node["subagents"]))
    console().print(tree, no_wrap=True, overflow="ellipsis")


def draw_title(thread: str, version: Version, session: str, now_us: int) -> Text:
    """Which thread, which version of it, and how its session stands."""
    title = Text(clean(thread, 80), style="bold")
    label = f" {clean(version.label, 50)}" if version.label else ""
    title.append(f"  version {version.seq}{label}, {ago(version.at_us, now_us)}", style="not bold")
    if version.expires_at is not None:
        title.append(f"  expires {version.expires_at:%Y-%m-%d %H:%M} UTC", style="not bold yellow")
    if session:
        title.append(f"  {clean(session, 80)}", style="not bold cyan")
    return title


def _grow_part(tree: Tree, part: Part) -> None:
    for line in part.lines[:_SHOWN]:
        text = Text.assemble((line.mark, _MARK_COLOURS.get(line.mark, "yellow")), f" {clean(line.text, 120)}")
        if line.hint:
            text.append(f"  {clean(line.hint, 80)}", style="dim")
        if line.over:
            text.stylize("dim", 1)
        tree.add(text)
    _grow_more(tree, len(part.lines))


def _grow(tree: Tree, value: Mapping[str, Any] | Sequence[Any], depth: int) -> None:
    items: Iterable[tuple[str, Any]]
    items = value.items() if isinstance(value, Mapping) else ((str(i), v) for i, v in enumerate(value))
    for (key, item), _ in zip(items, range(_SHOWN), strict=False):
        name = Text(clean(key, 60), style="cyan")
        if isinstance(item, dict | list) and item and depth > 0:
            name.append(f"  {counted(len(item), 'item')}", style="dim")
            _grow(tree.add(name), item, depth - 1)
        else:
            tree.add(Text.assemble(name, "  ", _short(item, 120)))
    _grow_more(tree, len(value))


def _grow_more(tree: Tree, count: int) -> None:
    if count > _SHOWN:
        tree.add(Text(f"… {count - _SHOWN:,} more", style="dim"))


def draw_items(items: Iterable[Any]) -> None:
    """Items of a log, one line each."""
    screen = console()
    for item in items:
        screen.print(Text.assemble("  ", _message(item)))


def _message(item: Any) -> Text:
    role, content = message_text(item)
    return Text.assemble((f"{clean(role, 12):<10}" if role else "", "bold"), clean(content, 160))


def draw_diff(
    title: str, found: Diff, old: Mapping[str, Any], new: Mapping[str, Any], *, indent: int = 0
) -> None:
    """Added green, removed red, changed yellow, one place a line; then the logs.

    ``old`` and ``new`` are the documents, for the words behind the ids of todos and tasks.
    """
    named = _Places(item_texts(old) | item_texts(new))
    lines = [Text.assemble((clean(title), "bold"), f"  {clean(found.summary(but=bookkeeping))}")]
    for sign, style, places in (("+", "green", found.added), ("-", "red", found.removed)):
        seen = [path for path in places if not bookkeeping(path)]
        for path in seen[:_SHOWN]:
            line = Text.assemble((f"{sign} ", style), named.text(path))
            if told := _item(places[path]):
                line.append(f"  {told}", style=style)
            lines.append(line)
        lines += _more(len(seen))
    changed = [path for path in found.changed if not bookkeeping(path)]
    for path in changed[:_SHOWN]:
        was, now = _apart(*found.changed[path])
        lines.append(
            Text.assemble(("~ ", "yellow"), named.text(path), "  ", (was, "red"), " → ", (now, "green"))
        )
    lines += _more(len(changed))
    for name, change in found.logs.items():
        for sign, style, items in (("-", "red", change.removed_items), ("+", "green", change.added_items)):
            lines += _log_lines(name, items, sign, style)
    if found.files:
        changed_files = [after for _, after in found.files.changed]
        lines += _file_lines(found.files.added, "+", "green")
        lines += _file_lines(found.files.removed, "-", "red")
        lines += _file_lines(changed_files, "~", "yellow")
    screen = console()
    for line in lines:
        screen.print(Text.assemble(" " * indent, line))


def _file_lines(files: Sequence[FileInfo], sign: str, style: str) -> list[Text]:
    lines = [
        Text.assemble((f"{sign} ", style), (f"{each.kind} ", "cyan"), clean(each.path, 80))
        for each in files[:_SHOWN]
    ]
    return lines + _more(len(files))


def _log_lines(name: str, items: Sequence[Any], sign: str, style: str) -> list[Text]:
    if not items:
        return []
    lines = [Text(f"{sign} {clean(name, 60)}: {counted(len(items), 'item')}", style=style)]
    if not name.startswith("session/"):
        # What sessions note for themselves is only counted.
        lines += [Text.assemble((f"  {sign}  ", style), _message(item)) for item in items[-_SHOWN:]]
    return lines


def _more(count: int) -> list[Text]:
    return [Text(f"  … {count - _SHOWN:,} more", style="dim")] if count > _SHOWN else []


class _Places:
    """Paths of a diff, with the words of a todo or task in the place of its id."""

    def __init__(self, texts: Mapping[tuple[str, str], str]) -> None:
        self._texts = {format_path(place): (place[0], text) for place, text in texts.items()}

    def text(self, path: str) -> Text:
        end = len(path)
        while end > 0:
            if path[:end] in self._texts:
                key, words = self._texts[path[:end]]
                place = Text(f"{key} ", style="cyan")
                return place.append(f"“{clean(words, 60)}”").append(clean(path[end:], 60))
            end = max(path.rfind(".", 0, end), path.rfind("[", 0, end))
        return Text(clean(path, 80), style="cyan")


def _item(value: Any) -> str:
    """An item that came or went: the ids and times in it say nothing here."""
    if isinstance(value, dict) and ("created_at" in value or "created_us" in value):
        kept = {key: value[key] for key in ("value", "status", "priority") if key in value}
        return _short(kept, 80) if kept else ""
    return _short(value, 100)


def _apart(old: Any, new: Any) -> tuple[str, str]:
    """Two values, short; of two long texts the part in which they differ."""
    if not (isinstance(old, str) and isinstance(new, str)) or max(len(old), len(new)) <= 60:
        return _short(old, 60), _short(new, 60)
    start, shorter = 0, min(len(old), len(new))
    while start < shorter:
        # By halves: texts may have megabytes.
        middle = (start + shorter + 1) // 2
        if old[start:middle] == new[start:middle]:
            start = middle
        else:
            shorter = middle - 1
    start = max(0, start - 12)
    lead = "…" if start else ""
    return clean(lead + old[start : start + 200], 60), clean(lead + new[start : start + 200], 60)


def _short(value: Any, width: int) -> str:
    if isinstance(value, Mark):
        return clean(value, width)
    return clean(f'"{value[: 4 * width]}"' if isinstance(value, str) else shown(value), width)
