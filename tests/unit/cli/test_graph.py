"""The graph shows every version once, and what a rewind left behind beside the line of the head."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.cli.render import rows
from everthread.versions import Version


def versions(sources: list[int]) -> list[Version]:
    """A thread whose version n is a commit (0) or a rewind to that version; newest first."""
    return [
        Version(
            seq=seq,
            id=f"{seq}-{seq:024x}",
            parent=None,
            at_us=0,
            kind="rewind" if source else "commit",
            source=f"{source}-{source:024x}" if source else None,
        )
        for seq, source in reversed(list(enumerate(sources, 1)))
    ]


def drawn(sources: list[int]) -> list[str]:
    return [
        f"{row.drawn:<8}{row.version.seq if row.version else ''}".rstrip() for row in rows(versions(sources))
    ]


def test_a_straight_line() -> None:
    assert drawn([0, 0, 0]) == ["●       3", "●       2", "●       1"]


def test_a_rewind_leaves_a_branch() -> None:
    assert drawn([0, 0, 0, 0, 2, 0]) == [
        "●       6",
        "↶       5",
        "│ ●     4",
        "│ ●     3",
        "├─╯",
        "●       2",
        "●       1",
    ]


def test_a_rewind_that_is_undone() -> None:
    assert drawn([0, 0, 0, 1, 3]) == [
        "↶       5",
        "│ ↶     4",
        "● │     3",
        "● │     2",
        "├─╯",
        "●       1",
    ]


def test_branches_of_branches() -> None:
    assert drawn([0, 0, 0, 2, 0, 4, 0, 1]) == [
        "↶       8",
        "│ ●     7",
        "│ ↶     6",
        "│ │ ●   5",
        "│ ├─╯",
        "│ ↶     4",
        "│ │ ●   3",
        "│ ├─╯",
        "│ ●     2",
        "├─╯",
        "●       1",
    ]


def test_a_rewind_to_the_version_before_leaves_nothing() -> None:
    assert drawn([0, 0, 2]) == ["↶       3", "●       2", "●       1"]


@st.composite
def histories(draw: st.DrawFn) -> list[int]:
    length = draw(st.integers(1, 25))
    return [0, *(draw(st.just(0) | st.integers(1, seq - 1)) for seq in range(2, length + 1))]


def reached(sources: list[int]) -> set[int]:
    """The versions that the head goes back to."""
    found, seq = set(), len(sources)
    while seq:
        found.add(seq)
        seq = sources[seq - 1] or seq - 1
    return found


@given(histories())
def test_every_version_is_there_once_and_on_its_side(sources: list[int]) -> None:
    shown = list(rows(versions(sources)))
    assert [row.version.seq for row in shown if row.version] == list(range(len(sources), 0, -1))
    assert {row.version.seq for row in shown if row.version and not row.left} == reached(sources)
    for row in shown:
        if row.version and row.mark < len(row.drawn) - 1:
            assert row.drawn[row.mark] in "●↶"
            assert sum(sign in "●↶" for sign in row.drawn) == 1


@given(histories(), st.sets(st.integers(1, 25)))
def test_versions_that_were_pruned_are_passed_over(sources: list[int], gone: set[int]) -> None:
    left = [
        version for version in versions(sources) if version.seq not in gone or version.seq == len(sources)
    ]
    shown = [row.version for row in rows(left) if row.version]
    assert shown == left


@pytest.mark.parametrize("count", [30, 200])
def test_a_wide_graph_stays_within_bounds(count: int) -> None:
    # Every second version goes back to the first one.
    sources = [0] + [0, 1] * count
    assert all(len(row.drawn) <= 20 for row in rows(versions(sources)))
