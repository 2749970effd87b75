"""A list and the log behind it, where an item of the log is several items of the list, or none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everthread.adapters.langgraph.values import Gap, places_of, split_spans, value_gaps

SPANS = st.lists(st.integers(0, 3), max_size=8)


@given(SPANS, st.data())
def test_edits_of_the_list_are_found_in_the_log(spans: list[int], data: st.DataObject) -> None:
    # Each item of the log is named by its number, each of the list by the item that it is of and its place.
    old = [(at, part) for at, count in enumerate(spans) for part in range(count)]
    kept = [item for item in old if data.draw(st.booleans())]
    new: list[tuple[int, int]] = []
    for item in kept:
        if data.draw(st.booleans()):
            new.append((-1, len(new)))
        new.append(item)
    gaps = value_gaps(old, new)
    log: list[list[tuple[int, int]]] = [[(at, part) for part in range(n)] for at, n in enumerate(spans)]
    empty = [at for at, count in enumerate(spans) if not count]
    counts = list(spans)
    for at in reversed(split_spans(counts, gaps)):
        log[at : at + 1] = [[part] for part in log[at]]
        counts[at : at + 1] = [1] * counts[at]
    for gap in gaps:
        (start, stop), *others = places_of(counts, gap.start, gap.stop)
        for begin, end in reversed(others):
            del log[begin:end], counts[begin:end]
        fresh = [[item] for item in new[gap.begin : gap.end]]
        log[start:stop] = fresh
        counts[start:stop] = [1] * len(fresh)
    assert [part for item in log for part in item] == new
    assert [len(item) for item in log] == counts
    # What is nothing in the list is never removed.
    assert len([item for item in log if not item]) == len(empty)


def test_what_is_appended_goes_behind_everything() -> None:
    assert places_of([1, 0, 0], 1, 1) == [(3, 3)]
    assert places_of([1, 0, 1], 1, 1) == [(2, 2)]
    assert split_spans([3], [Gap(1, 2, 1, 1)]) == [0]
