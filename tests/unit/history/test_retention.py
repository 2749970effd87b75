from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.codec.records import compress, frame
from everthread.errors import DamageError, InvalidValueError, SchemaVersionError, StateCorruptedError
from everthread.history import chain
from everthread.history.retention import Retention, Tombstone, read_tombstone, tombstone

SECOND_US = 1_000_000
NOW_US = 1_800_000_000 * SECOND_US


class Kept(msgspec.Struct, frozen=True):
    """The three fields that the rules look at."""

    seq: int
    at_us: int = NOW_US
    label: str | None = None


def test_no_rule_takes_nothing() -> None:
    assert not Retention().takes
    assert not Retention(keep_labelled=False).takes
    assert Retention(keep_last=1).takes
    assert Retention(keep_within=0).takes


@pytest.mark.parametrize("within", [2, 2.0, datetime.timedelta(seconds=2)])
def test_keep_within_includes_its_edge(within: Any) -> None:
    rule = Retention(keep_within=within)
    assert rule.keeps(Kept(1, NOW_US - 2 * SECOND_US), NOW_US)
    assert not rule.keeps(Kept(1, NOW_US - 2 * SECOND_US), NOW_US + 1)


def test_labels_keep_unless_told_otherwise() -> None:
    old = Kept(1, 0, "label")
    assert Retention(keep_last=1).keeps(old, NOW_US)
    assert not Retention(keep_last=1, keep_labelled=False).keeps(old, NOW_US)
    assert not Retention(keep_last=1).keeps(Kept(1, NOW_US), NOW_US), "which are the last isn't said here"


def test_a_clock_that_ran_ahead_keeps_its_versions() -> None:
    assert Retention(keep_within=0).keeps(Kept(1, NOW_US + 10**12), NOW_US)


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


@given(
    st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=70),
    st.dictionaries(st.integers(0, 69), st.binary()),
)
def test_tombstones_round_trip(digests: list[bytes], heads: dict[int, bytes]) -> None:
    heads = {index: head for index, head in heads.items() if index < len(digests)}
    assert read_tombstone(tombstone(digests, heads)) == Tombstone(digests, heads)


def test_the_chain_verifies_across_a_tombstone() -> None:
    start = chain.genesis(b"line")
    pruned = read_tombstone(tombstone(DIGESTS[10:20], {})).digests
    whole = chain.verify_chain(start, DIGESTS)
    assert chain.verify_chain(start, [*DIGESTS[:10], *pruned, *DIGESTS[20:]]) == whole


def test_tombstones_are_a_promise_across_releases() -> None:
    data = tombstone([bytes(32)], {0: b"head"})
    assert data == frame(b"\0\x92\xc4\x20" + bytes(32) + b"\x81\x00\xc4\x04head")


@pytest.mark.parametrize("digests", [[], [b""], [bytes(31)], [bytes(33)], [bytes(32), "x" * 32]])
def test_only_digests_can_be_kept(digests: Any) -> None:
    with pytest.raises(InvalidValueError):
        tombstone(digests, {})


@pytest.mark.parametrize("index", [-1, 3])
def test_only_heads_of_its_own_can_be_kept(index: int) -> None:
    with pytest.raises(InvalidValueError):
        tombstone(DIGESTS[:3], {index: b""})


def test_every_flipped_bit_shows() -> None:
    data = tombstone(DIGESTS[:3], {1: b"head"})
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((DamageError, SchemaVersionError)):
            read_tombstone(bytes(damaged))


def test_every_cut_shows() -> None:
    data = tombstone(DIGESTS[:3], {})
    for length in range(len(data)):
        with pytest.raises(StateCorruptedError):
            read_tombstone(data[:length])


@pytest.mark.parametrize("payload", [b"", b"\x90", b"\x92\xc4\x01x\x80", b"\x92\xc4\0\x80", b"\xff"])
def test_what_is_none_is_refused(payload: bytes) -> None:
    with pytest.raises(StateCorruptedError):
        read_tombstone(compress(payload))
