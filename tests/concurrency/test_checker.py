"""The checker itself: it finds what must not be, and accepts what may."""

from __future__ import annotations

from tests.concurrency.histories import OK, REFUSED, UNKNOWN, Transaction, anomalies


def t(
    began: float,
    ended: float,
    read: dict[str, tuple[int, ...]],
    appended: dict[str, int],
    outcome: str = OK,
) -> Transaction:
    return Transaction("t", began, ended, outcome, read, appended)


def test_one_after_another_is_fine() -> None:
    history = [t(0, 1, {"a": ()}, {"a": 1}), t(2, 3, {"a": (1,)}, {"a": 2}), t(4, 5, {"a": (1, 2)}, {})]
    assert anomalies(history, {"t": {"a": (1, 2)}}) == []


def test_at_once_in_either_order_is_fine() -> None:
    history = [t(0, 9, {"a": (2,)}, {"a": 1}), t(0, 9, {"a": ()}, {"a": 2})]
    assert anomalies(history, {"t": {"a": (2, 1)}}) == []


def test_a_lost_append() -> None:
    assert anomalies([t(0, 1, {}, {"a": 1})], {"t": {"a": ()}})


def test_a_lost_update() -> None:
    history = [t(0, 9, {"a": ()}, {"a": 1}), t(0, 9, {"a": ()}, {"a": 2})]
    assert anomalies(history, {"t": {"a": (1, 2)}})


def test_a_stale_read() -> None:
    history = [t(0, 1, {"a": ()}, {"a": 1}), t(2, 3, {"a": ()}, {"b": 2})]
    assert anomalies(history, {"t": {"a": (1,), "b": (2,)}})


def test_a_skewed_write() -> None:
    history = [t(0, 9, {"a": (), "b": ()}, {"a": 1}), t(0, 9, {"a": (), "b": ()}, {"b": 2})]
    assert anomalies(history, {"t": {"a": (1,), "b": (2,)}})


def test_refused_and_yet_there() -> None:
    assert anomalies([t(0, 1, {}, {"a": 1}, REFUSED)], {"t": {"a": (1,)}})


def test_half_of_a_transaction() -> None:
    assert anomalies([t(0, 1, {}, {"a": 1, "b": 1}, UNKNOWN)], {"t": {"a": (1,), "b": ()}})


def test_an_unknown_one_may_be_there_or_not() -> None:
    history = [t(0, 1, {"a": ()}, {"a": 1}, UNKNOWN), t(2, 3, {"a": ()}, {"a": 2})]
    assert anomalies(history, {"t": {"a": (2,)}}) == []
    # It may also have come late.
    history = [t(0, 1, {"a": (2,)}, {"a": 1}, UNKNOWN), t(2, 3, {"a": ()}, {"a": 2})]
    assert anomalies(history, {"t": {"a": (2, 1)}}) == []


def test_twice_and_from_nowhere() -> None:
    assert anomalies([t(0, 1, {}, {"a": 1})], {"t": {"a": (1, 1)}})
    assert anomalies([t(0, 1, {}, {"a": 1})], {"t": {"a": (1, 7)}})


def test_a_read_of_what_never_was() -> None:
    history = [t(0, 1, {}, {"a": 1}), t(0, 1, {"a": (1,)}, {"a": 2}), t(0, 9, {"a": (2,)}, {})]
    assert anomalies(history, {"t": {"a": (1, 2)}})
