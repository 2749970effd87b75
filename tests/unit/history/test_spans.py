from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from everthread.history.retention import Spans

ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(-3, 12)).map(lambda p: (p[0], p[0] + p[1])))


@given(ranges, st.integers(0, 60), st.integers(0, 30))
def test_spans_are_sets_of_numbers(spans: list[tuple[int, int]], first: int, length: int) -> None:
    found = Spans(spans)
    numbers = {n for a, b in spans for n in range(a, b + 1)}
    assert {n for n in range(-5, 90) if n in found} == numbers
    assert len(found) == len(numbers)
    ordered = list(found)
    assert all(b + 1 < c for (_, b), (c, _) in pairwise(ordered)), "they don't touch"
    last = first + length
    assert found.covers(first, last) == (set(range(first, last + 1)) <= numbers)
    cut = list(found.split(first, last))
    assert [n for a, b, _ in cut for n in range(a, b + 1)] == list(range(first, last + 1))
    assert all((n in numbers) == held for a, b, held in cut for n in range(a, b + 1))
