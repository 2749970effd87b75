from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.codec.records import frame
from everthread.errors import DamageError, InvalidValueError, SchemaVersionError, StateCorruptedError
from everthread.history import chain
from everthread.history.retention import Retention, read_tombstone, select, tombstone

SECOND_US = 1_000_000
NOW_US = 1_800_000_000 * SECOND_US


class Kept(msgspec.Struct, frozen=True):
    """The three fields that the rules look at."""

    seq: int
    at_us: int = NOW_US
    label: str | None = None


def line(count: int, labelled: tuple[int, ...] = ()) -> list[Kept]:
    """Versions 1..count, the newest of now, each a second older than the next."""
    return [
        Kept(seq, NOW_US - (count - seq) * SECOND_US, f"v{seq}" if seq in labelled else None)
        for seq in range(1, count + 1)
    ]


def test_no_rule_takes_nothing() -> None:
    assert select(line(5), Retention(), now_us=NOW_US) == []
    assert select(line(5), Retention(keep_labelled=False), now_us=NOW_US) == []


def test_keep_last() -> None:
    assert select(line(5), Retention(keep_last=2), now_us=NOW_US) == [1, 2, 3]
    assert select(line(5), Retention(keep_last=5), now_us=NOW_US) == []
    assert select(line(5), Retention(keep_last=50), now_us=NOW_US) == []
    assert select([], Retention(keep_last=1), now_us=NOW_US) == []


@pytest.mark.parametrize("within", [2, 2.0, datetime.timedelta(seconds=2)])
def test_keep_within_includes_its_edge(within: Any) -> None:
    assert select(line(5), Retention(keep_within=within), now_us=NOW_US) == [1, 2]
    assert select(line(5), Retention(keep_within=within), now_us=NOW_US + 1) == [1, 2, 3]


def test_either_rule_keeps() -> None:
    assert select(line(9), Retention(keep_last=2, keep_within=4), now_us=NOW_US) == [1, 2, 3, 4]
    assert select(line(9), Retention(keep_last=6, keep_within=1), now_us=NOW_US) == [1, 2, 3]


def test_labels_keep_unless_told_otherwise() -> None:
    versions = line(5, labelled=(1, 3))
    assert select(versions, Retention(keep_last=1), now_us=NOW_US) == [2, 4]
    assert select(versions, Retention(keep_last=1, keep_labelled=False), now_us=NOW_US) == [1, 2, 3, 4]


def test_a_clock_that_ran_ahead_keeps_its_versions() -> None:
    versions = [Kept(1, NOW_US + 10**12), Kept(2, 0), Kept(3, 0)]
    assert select(versions, Retention(keep_within=0), now_us=NOW_US) == [2]


class Even:
    """A container that can be asked but not iterated."""

    def __contains__(self, seq: object) -> bool:
        return isinstance(seq, int) and seq % 2 == 0


@pytest.mark.parametrize(
    "pinned",
    [{2, 4}, [2, 4], (2, 4), range(2, 5, 2), iter([2, 4]), Even(), frozenset({2, 4, 99}), {2: "", 4: ""}],
)
def test_pinned_versions_stay(pinned: Any) -> None:
    assert select(line(5), Retention(keep_last=1), now_us=NOW_US, pinned=pinned) == [1, 3]


def test_order_of_the_versions_does_not_matter() -> None:
    versions = line(6)
    assert select(versions[::-1], Retention(keep_last=3), now_us=NOW_US) == [1, 2, 3]
    assert select(iter(versions[3:] + versions[:3]), Retention(keep_last=3), now_us=NOW_US) == [1, 2, 3]


def test_a_version_given_twice_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="twice"):
        select([*line(3), Kept(2)], Retention(keep_last=1), now_us=NOW_US)


versions = st.lists(
    st.builds(
        Kept,
        st.integers(0, 60),
        st.integers(NOW_US - 60 * SECOND_US, NOW_US + SECOND_US),
        st.sampled_from([None, None, "label"]),
    ),
    unique_by=lambda version: version.seq,
)
rules = st.builds(
    Retention,
    keep_last=st.none() | st.integers(1, 20),
    keep_labelled=st.booleans(),
    keep_within=st.none()
    | st.integers(0, 60)
    | st.timedeltas(datetime.timedelta(0), datetime.timedelta(minutes=1)),
)


@given(versions, rules, st.frozensets(st.integers(0, 60)))
def test_what_pruning_may_never_take(versions: list[Kept], rule: Retention, pinned: frozenset[int]) -> None:
    taken = select(versions, rule, now_us=NOW_US, pinned=pinned)
    by_seq = {version.seq: version for version in versions}
    newest = sorted(by_seq, reverse=True)
    assert taken == sorted(set(taken))
    assert set(taken) <= set(by_seq) - pinned - set(newest[: max(rule.keep_last or 1, 1)])
    for seq in taken:
        assert not (rule.keep_labelled and by_seq[seq].label)
        if rule.keep_within_us is not None:
            assert by_seq[seq].at_us < NOW_US - rule.keep_within_us
    if rule.keep_last is None and rule.keep_within is None:
        assert taken == []
    # Pruning what it names and asking again names nothing more.
    left = [version for version in versions if version.seq not in taken]
    assert select(left, rule, now_us=NOW_US, pinned=pinned) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("keep_last", 0),
        ("keep_last", -1),
        ("keep_last", 1.5),
        ("keep_last", True),
        ("keep_last", "5"),
        ("keep_within", -1),
        ("keep_within", float("nan")),
        ("keep_within", float("inf")),
        ("keep_within", True),
        ("keep_within", "7d"),
        ("keep_within", datetime.timedelta(seconds=-1)),
        ("keep_labelled", None),
        ("keep_labelled", 1),
    ],
)
def test_values_that_make_no_sense(field: str, value: Any) -> None:
    with pytest.raises(InvalidValueError) as raised:
        Retention(**{field: value})
    assert raised.value.path == field


DIGESTS = [chain.record_digest(b"%d" % i) for i in range(40)]


@given(st.integers(0, chain.SEQ_MAX), st.lists(st.binary(min_size=32, max_size=32), min_size=1))
def test_tombstones_round_trip(first_seq: int, digests: list[bytes]) -> None:
    assert read_tombstone(tombstone(first_seq, digests)) == (first_seq, digests)


def test_the_chain_verifies_across_a_tombstone() -> None:
    start = chain.genesis(b"line")
    _, pruned = read_tombstone(tombstone(11, DIGESTS[10:20]))
    whole = chain.verify_chain(start, DIGESTS)
    assert chain.verify_chain(start, [*DIGESTS[:10], *pruned, *DIGESTS[20:]]) == whole


def test_tombstones_are_a_promise_across_releases() -> None:
    data = tombstone(7, [bytes(32)])
    assert data == frame(b"\x92\x07\x91\xc4\x20" + bytes(32))
    assert data[0] == 1


@pytest.mark.parametrize("digests", [[], [b""], [bytes(31)], [bytes(33)], [bytes(32), "x" * 32]])
def test_only_digests_can_be_kept(digests: Any) -> None:
    with pytest.raises(InvalidValueError):
        tombstone(1, digests)


@pytest.mark.parametrize("first_seq", [-1, 2**63, True, "1", None])
def test_only_sequence_numbers_can_come_first(first_seq: Any) -> None:
    with pytest.raises(InvalidValueError):
        tombstone(first_seq, DIGESTS)


def test_every_flipped_bit_shows() -> None:
    data = tombstone(300, DIGESTS[:3])
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((DamageError, SchemaVersionError)):
            read_tombstone(bytes(damaged))


def test_every_cut_shows() -> None:
    data = tombstone(300, DIGESTS[:3])
    for size in range(len(data)):
        with pytest.raises(StateCorruptedError):
            read_tombstone(data[:size])
    with pytest.raises(StateCorruptedError):
        read_tombstone(data + b"\0")


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        [1],
        [1, []],
        [-1, [bytes(32)]],
        [2**63, [bytes(32)]],
        [1, [bytes(31)]],
        ["1", [bytes(32)]],
        [1, ["x"]],
    ],
)
def test_a_good_checksum_over_other_content(content: Any) -> None:
    with pytest.raises(StateCorruptedError):
        read_tombstone(frame(msgspec.msgpack.encode(content)))


def test_a_newer_format_is_named() -> None:
    newer = b"\x02" + tombstone(1, DIGESTS)[1:]
    with pytest.raises((SchemaVersionError, StateCorruptedError)):
        read_tombstone(newer)
