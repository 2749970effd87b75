"""A conversation begun in one framework goes on in another, whose model is shown all of it, and back again.

``python -m tests.adapters.test_pairs`` writes the tables of docs/adapters/one-thread.md. Strands isn't among
the locked frameworks: its row and column are written and tested where it is installed, by
``python -m tools.minimums strands``.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import everthread
from tests.adapters.frameworks import FRAMEWORKS, Said, Turn, said
from tests.adapters.handover import BEGINNINGS, KEEP_SYSTEM, SAID, SYSTEM

PAGE = Path(__file__).parents[2] / "docs" / "adapters" / "one-thread.md"
#: A table of the page by the name in the comment above it.
TABLE = r"(?<=<!-- {name}: made by tests/adapters/test_pairs.py -->\n)(?:\|.*\n)+"

TURNS = (
    Turn("Weather in Oslo?", ("call_1", "weather", {"city": "Oslo"}), "It rains in Oslo."),
    Turn("Then book the Bristol.", ("call_2", "book", {"hotel": "Bristol"}), "Booked the Bristol."),
    Turn("Sum it up.", None, "Rain, and a room."),
)


def converse(url: str, *frameworks: str) -> tuple[list[list[Said]], list[list[Any]]]:
    """What each model was shown at first, and the log after each turn. Every turn opens the store anew."""
    shown, logs = [], []
    for name, turn in zip(frameworks, TURNS, strict=False):
        with everthread.open(url) as store:
            shown.append(asyncio.run(FRAMEWORKS[name](store, "trip", turn)))
            logs.append(list(store.thread("trip").messages))
            assert store.verify().ok
    return shown, logs


def cell(url: str, begun: str, continued: str) -> str:
    """Begun here, continued there, and back again: what the table says of it."""
    shown, logs = converse(url, begun, continued, begun)
    whole = [each for turn in TURNS for each in turn.said()]
    before = [TURNS[0].said(), [*TURNS[0].said(), *TURNS[1].said()]]
    counts = []
    for there, earlier, turn in zip(shown[1:], before, TURNS[1:], strict=True):
        assert there == [*earlier, ("user", turn.ask)]
        counts.append(f"{len(there)} of {len(earlier) + 1}")
    # Nothing that one of them wrote was removed, hidden, reordered or changed by the other.
    assert logs[1][: len(logs[0])] == logs[0]
    assert logs[2][: len(logs[1])] == logs[1]
    assert said(logs[2]) == whole
    return ", ".join(counts)


def rich_cell(url: str, begun: str, continued: str) -> str:
    """Return how much of the rich conversation the model of another framework was shown."""
    if begun == continued:
        return "its own"
    with everthread.open(url) as store:
        asyncio.run(BEGINNINGS[begun](store, "trip"))
        kept = list(store.thread("trip").messages)
        shown = asyncio.run(FRAMEWORKS[continued](store, "trip", Turn("And?", None, "So.")))
        assert list(store.thread("trip").messages)[: len(kept)] == kept
        assert store.verify().ok
    expected = [*SAID, ("user", "And?")]
    if begun in KEEP_SYSTEM:
        # The ADK and Strands take a system prompt beside the conversation only.
        marked = [("user", "[system message]"), ("user", SYSTEM)]
        expected[:0] = marked if continued in ("ADK", "Strands") else [("system", SYSTEM)]
    assert shown == expected
    return f"{len(shown)} of {len(expected)}"


CELLS = {"turns": cell, "rich": rich_cell}


def row(name: str, folder: Path, begun: str) -> list[str]:
    cells = [
        CELLS[name](f"sqlite:///{folder}/{number}.db", begun, continued)
        for number, continued in enumerate(FRAMEWORKS)
    ]
    return [f"**{begun}**", *cells]


def head() -> list[str]:
    return ["begun in, continued in →", *FRAMEWORKS]


def page_table(name: str) -> dict[str, list[str]]:
    """Return the rows of a table of the page by their first cells, as far as the frameworks are installed."""
    found = re.search(TABLE.format(name=name), PAGE.read_text(encoding="utf-8"))
    assert found is not None
    rows = [[each.strip() for each in line.strip("|").split("|")] for line in found[0].splitlines()]
    columns = [at for at, title in enumerate(rows[0]) if title in head()]
    return {cells[0]: [cells[at] for at in columns] for cells in rows}


@pytest.mark.parametrize("begun", FRAMEWORKS)
def test_a_conversation_goes_on_in_every_framework_and_back_again(begun: str, tmp_path: Path) -> None:
    assert page_table("turns")[f"**{begun}**"] == row("turns", tmp_path, begun)


@pytest.mark.parametrize("begun", FRAMEWORKS)
def test_prompts_images_parallel_and_lost_calls_reach_every_other_framework(
    begun: str, tmp_path: Path
) -> None:
    assert page_table("rich")[f"**{begun}**"] == row("rich", tmp_path, begun)


@pytest.mark.parametrize("name", CELLS)
def test_the_page_names_every_framework(name: str) -> None:
    table = page_table(name)
    assert table[head()[0]] == head()
    assert {f"**{each}**" for each in FRAMEWORKS} <= set(table)


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in CELLS:
        lines = [head(), ["---"] * len(head())]
        with tempfile.TemporaryDirectory() as folder:
            for number, begun in enumerate(FRAMEWORKS):
                (Path(folder) / str(number)).mkdir()
                lines.append(row(name, Path(folder) / str(number), begun))
        table = "".join(f"| {' | '.join(each)} |\n" for each in lines)
        page = re.sub(TABLE.format(name=name), lambda _, table=table: table, page)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
