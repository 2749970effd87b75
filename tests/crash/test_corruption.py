"""A wrong bit anywhere is noticed, harmless, or leaves an older whole version; it never crashes or lies.

Here a sample that follows from a seed; all of it by ``make torture WHAT=corrupt``.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from everthread.codec import records
from everthread.codec.values import encode, same
from everthread.errors import EverthreadError
from everthread.history import packs
from everthread.history.logs import LogState
from everthread.history.snapshots import Snapshot, read_keyframe, write_keyframe
from everthread.salvager.salvager import salvage
from tests.crash.corruption import (
    ENGINES,
    SMALL_COMMITS,
    Engine,
    Tally,
    build,
    run_cases,
    salvage_cases,
    sampled,
    wounds,
)
from tests.crash.workload import memory_directory

SEED = int(os.environ.get("EVERTHREAD_SEED", "20260101"))
CASES = 100
SALVAGED = 40
SLICE = 199


# Single records, every bit of them, in memory.


def _record(number: int) -> bytes:
    head = records.write_head(
        records.Head(records.COMMIT, 1_750_000_000_000_000 + number, f"version {number}")
    )
    change = records.write_change(
        records.Change(
            [[0, ["n"], number], [2, ["list"], 0, 0, ["ä", 1.5, None]]],
            [["messages", number, 0, 1, number, b"abcd"]],
        )
    )
    return records.write_record(
        head, change, [records.array([encode({"id": f"m{number}", "text": "x" * 20})])]
    )


def _read_record(body: bytes) -> Any:
    head, change, blocks = records.read_record(body)
    items = [item for block in blocks for item in records.split(block)]
    return repr((records.read_head(head), records.read_change(change), items))


def _pack() -> packs.Pack:
    bodies = [_record(number) for number in range(12)]
    return packs.fold(1, bodies, [bytes([number]) * 32 for number in range(12)])


def _keyframe() -> bytes:
    logs = {"messages": LogState(9, ((0, 4), (6, 9)), 7)}
    keyframe = write_keyframe(Snapshot({"a": [1, {"b": "ü" * 300}]}, logs, 3, {b"u" * 16: [4, 0]}))
    assert keyframe is not None
    return keyframe


def _read_keyframe(data: bytes) -> Any:
    snapshot = read_keyframe(data)
    return repr((snapshot.document, snapshot.logs, snapshot.segment, snapshot.merged))


def _read_chunk(data: bytes) -> Any:
    return records.split(packs.Chunk("messages", 0, 12, b"abcd" * 12, data).block())


KINDS: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "record": (_record(1), _read_record),
    "pack": (_pack().body, lambda data: repr(packs.read_pack(data))),
    "net": (_pack().net, lambda data: repr(packs.read_net(data))),
    "chunk": (_pack().chunks[0].data, _read_chunk),
    "keyframe": (_keyframe(), _read_keyframe),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_of_a_record(kind: str) -> None:
    data, read = KINDS[kind]
    whole = read(data)
    for position in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        try:
            found = read(bytes(flipped))
        except EverthreadError:
            continue
        assert found == whole, f"bit {position} of a {kind} changes it, and nothing says so"


@pytest.mark.parametrize("kind", KINDS)
def test_every_cut_and_every_swap_within_a_record(kind: str) -> None:
    data, read = KINDS[kind]
    for end in range(len(data)):
        with pytest.raises(EverthreadError):
            read(data[:end])
    for at in range(len(data) - 1):
        swapped = data[:at] + data[at + 1 : at + 2] + data[at : at + 1] + data[at + 2 :]
        if swapped != data:
            with pytest.raises(EverthreadError):
                read(swapped)


def test_the_reading_is_able_to_differ() -> None:
    """Else nothing above could fail."""
    assert _read_record(_record(1)) != _read_record(_record(2))
    assert not same({"a": 1}, {"a": True})


# A whole store.


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
        yield Path(directory).resolve()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_damaged_store_never_lies(memory: Path, engine: Engine) -> None:
    print(f"EVERTHREAD_SEED={SEED}")
    sample = build(memory / "sample", engine)
    tally = Tally()

    run_cases(sample, sampled(wounds(sample, SEED), CASES, SEED), tally)

    print(tally.outcomes)
    assert not tally.broken, "\n".join(tally.broken)
    assert tally.outcomes["detected"] > CASES // 20


@pytest.mark.parametrize("engine", ENGINES)
def test_a_slice_of_every_byte_of_a_small_store(memory: Path, engine: Engine) -> None:
    """Every 199th of what ``make torture WHAT=corrupt`` does: every byte, every cut, every swap."""
    print(f"EVERTHREAD_SEED={SEED}")
    sample = build(memory / "sample", engine, SMALL_COMMITS)
    assert sum(map(len, sample.files.values())) < 130_000
    tally = Tally()

    run_cases(sample, wounds(sample, SEED)[SEED % SLICE :: SLICE], tally, quick=True)

    print(tally.outcomes)
    assert not tally.broken, "\n".join(tally.broken)
    assert tally.outcomes["detected"] > 0


@pytest.mark.parametrize("engine", ["sqlite", "sqlite-512", "file"])
def test_what_is_not_damaged_can_be_salvaged(memory: Path, engine: Engine) -> None:
    print(f"EVERTHREAD_SEED={SEED}")
    sample = build(memory / "sample", engine)
    flipped = [wound for wound in wounds(sample, SEED) if wound.kind == "flip"]
    cases = random.Random(SEED).sample(flipped, SALVAGED)

    found = salvage_cases(sample, cases, memory, salvage)

    kept, undamaged = sum(case.kept for case in found), sum(case.undamaged for case in found)
    print(f"{kept} of {undamaged}")
    assert undamaged > 100 * SALVAGED // 2
    assert kept >= 0.99 * undamaged, [
        f"{w}: {c}" for w, c in zip(cases, found, strict=True) if c.kept < c.undamaged
    ]


def test_the_judge_finds_a_store_that_lies(memory: Path) -> None:
    """A store whose newest version says something else, with all its sums in order."""
    import everthread
    from tests.kit.damage import write_files
    from tests.kit.verdict import judge

    sample = build(memory / "sample", "sqlite", commits=12)
    folder = memory / "copy"
    write_files(folder, sample.files)
    assert (
        judge(sample.url(folder), sample.chronicle, writes=True, keyring=sample.keyring).outcome == "harmless"
    )
    with everthread.open(sample.url(folder), keyring=sample.keyring) as store:
        thread = store.thread("main")
        thread.state["n"] = "a lie"
        thread.commit()
    assert judge(sample.url(folder), sample.chronicle, keyring=sample.keyring).outcome == "silent"
