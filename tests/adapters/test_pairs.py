"""A conversation begun in one framework goes on in another, whose model is shown all of it, and back again.

``python -m tests.adapters.test_pairs`` writes the table of docs/adapters/one-thread.md anew.
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

PAGE = Path(__file__).parents[2] / "docs" / "adapters" / "one-thread.md"
TABLE = re.compile(r"(?<=<!-- made by tests/adapters/test_pairs.py -->\n)(?:\|.*\n)+")

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


def row(folder: Path, begun: str) -> str:
    cells = [
        cell(f"sqlite:///{folder}/{number}.db", begun, continued)
        for number, continued in enumerate(FRAMEWORKS)
    ]
    return f"| **{begun}** | {' | '.join(cells)} |"


def head() -> list[str]:
    return [f"| begun in, continued in → | {' | '.join(FRAMEWORKS)} |", "|---" * (len(FRAMEWORKS) + 1) + "|"]


@pytest.mark.parametrize("begun", FRAMEWORKS)
def test_a_conversation_goes_on_in_every_framework_and_back_again(begun: str, tmp_path: Path) -> None:
    table = TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert table is not None
    assert row(tmp_path, begun) in table[0].splitlines()


def test_the_page_names_every_framework() -> None:
    table = TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert table is not None
    assert table[0].splitlines()[:2] == head()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for number, begun in enumerate(FRAMEWORKS):
            (Path(folder) / str(number)).mkdir()
            rows.append(row(Path(folder) / str(number), begun))
    table = "\n".join([*head(), *rows]) + "\n"
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(TABLE.sub(lambda _: table, page), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
