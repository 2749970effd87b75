"""What reading, forking and rewinding cost at several lengths of a thread."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import everthread

from .measure import Report, Samples, say, take_turns
from .messages import Transcript
from .savers import THREAD, EverthreadSaver, RawRows, url

#: Repeats of the short reads. Between two repeats each thread grows by one message, so that every fill of the
#: unfolded tail is seen: more than the 64 commits after which a tail is folded.
READ_REPEATS = 66
FORK_REPEATS = 40
TAIL = 20


def build(path: Path, length: int, seed: int) -> list[Any]:
    """Write a thread of `length` messages; returns a sample of its versions."""
    saver = EverthreadSaver(path)
    for step, message in zip(range(length), Transcript(seed), strict=False):
        saver.prepare(step, message)
        saver.save()
    saver.close()
    return saver.versions


def read_tail(store: Any) -> None:
    """What a resume reads: the document and the last messages, through a handle that knows nothing yet."""
    thread = store.thread(THREAD)
    thread.state.plain()
    if len(thread.messages[-TAIL:]) != TAIL:
        raise AssertionError("the tail is incomplete")


def measure_resumes(paths: dict[int, Path], report: Report, seed: int) -> None:
    """Open + document + last 20, at each length: on a newly opened store, and on one that is open."""
    rng = random.Random(seed)
    samples: Samples = {}
    transcript = Transcript(seed + 1)
    for repeat in range(READ_REPEATS):
        for path in paths.values():
            saver = EverthreadSaver(path)
            saver.prepare(repeat, next(transcript))
            saver.save()
            saver.close()
        opened: list[Any] = []

        def fresh(path: Path, opened: list[Any] = opened) -> None:
            opened.append(everthread.open(url(path)))
            read_tail(opened[-1])

        take_turns(rng, {f"opened {n}": partial(fresh, path) for n, path in paths.items()}, samples)
        for store in opened:
            store.close()

    savers = {length: EverthreadSaver(path) for length, path in paths.items()}
    for repeat in range(READ_REPEATS):
        for saver in savers.values():
            saver.prepare(repeat, next(transcript))
            saver.save()
        actions: dict[str, Callable[[], object]] = {}
        for length, saver in savers.items():
            actions[f"handle {length}"] = partial(read_tail, saver.store)
            actions[f"slice {length}"] = partial(read_slice, saver.store, length, rng)
        take_turns(rng, actions, samples)
    for saver in savers.values():
        saver.close()
    rows = []
    for kind, title in (
        ("opened", "newly opened store: open + document + last 20"),
        ("handle", "open store: new handle + document + last 20"),
        ("slice", "open store: new handle + 20 at random"),
    ):
        medians = {length: statistics.median(samples[f"{kind} {length}"]) / 1e3 for length in paths}
        report.data[f"read_{kind}_us"] = medians
        rows.append([title, *medians.values()])
        shortest, longest = min(paths), max(paths)
        if kind != "slice":
            ratio = medians[longest] / medians[shortest]
            report.goal(
                f"{title}: {longest:,} ÷ {shortest:,} messages",
                ratio,
                1.2,
                1.1,
                note=f"{medians[longest]:.0f} µs",
            )
    report.table("Reads, median µs", "", ["messages", *(f"{n:,}" for n in paths)], rows)


def read_slice(store: Any, length: int, rng: random.Random) -> None:
    """Twenty messages from anywhere in the thread, through a new handle."""
    start = rng.randrange(max(1, length - TAIL))
    if len(store.thread(THREAD).messages[start : start + TAIL]) != min(TAIL, length):
        raise AssertionError("the slice is incomplete")


def timed_load(path: Path, version: Any) -> tuple[float, list[Any]]:
    """Seconds to read every message of a version (the head if None) from a newly opened store."""
    store = everthread.open(url(path))
    thread = store.thread(THREAD)
    gc.collect()
    gc.disable()
    started = time.perf_counter()
    view = thread if version is None else thread.at(version)
    messages = list(view.messages)
    elapsed = time.perf_counter() - started
    gc.enable()
    store.close()
    return elapsed, messages


def timed_decode(blob: bytes) -> float:
    """Seconds to decode the same messages from one blob of MessagePack."""
    gc.collect()
    gc.disable()
    started = time.perf_counter()
    messages = msgspec.msgpack.decode(blob)
    elapsed = time.perf_counter() - started
    gc.enable()
    del messages
    return elapsed


def measure_loads(paths: dict[int, Path], versions: dict[int, list[Any]], report: Report, seed: int) -> None:
    """Load everything, now and at a past version, against decoding one blob of the same messages."""
    rng = random.Random(seed)
    rows = []
    for length, path in paths.items():
        repeats = max(5, min(40, 200_000 // length))
        for title, past in (("all", False), ("past", True)):
            ratios, loads, decodes = [], [], []
            for _ in range(repeats):
                elapsed, messages = timed_load(path, rng.choice(versions[length]) if past else None)
                blob = msgspec.msgpack.encode(messages)
                if not messages:
                    continue
                del messages
                decoded = timed_decode(blob)
                loads.append(elapsed * 1e3)
                decodes.append(decoded * 1e3)
                ratios.append(elapsed / decoded)
            ratio = statistics.median(ratios)
            rows.append(
                [f"{length:,}", title, statistics.median(loads), statistics.median(decodes), ratio, repeats]
            )
            report.data.setdefault("load_ratio", {})[f"{title} {length}"] = ratio
            if length == max(paths):
                name = "load everything" if not past else "load everything at a past version"
                report.goal(
                    f"{name} ÷ decoding one blob", ratio, 2.3, 1.9, note=f"{statistics.median(loads):.0f} ms"
                )
        say(f"loads at {length:,} done")
    header = ["messages", "what", "load ms", "decode ms", "ratio", "repeats"]
    report.table("Loading every message, cyclic GC off, median", "", header, rows)


def measure_branches(
    paths: dict[int, Path], versions: dict[int, list[Any]], report: Report, raw_path: Path, seed: int
) -> None:
    """Fork and rewind at each length, in units of a raw durable commit taken in the same rounds."""
    rng = random.Random(seed)
    samples: Samples = {}
    raw = RawRows(raw_path)
    raw.prepare(0, next(Transcript(seed)))
    savers = {length: EverthreadSaver(path) for length, path in paths.items()}
    heads = {length: saver.thread.head for length, saver in savers.items()}
    for repeat in range(FORK_REPEATS):
        actions: dict[str, Callable[[], object]] = {"raw": raw.save}
        for length, saver in savers.items():
            thread, past = saver.thread, rng.choice(versions[length])
            actions[f"head {length}"] = partial(thread.fork, f"head-{repeat}")
            actions[f"past {length}"] = partial(thread.fork, f"past-{repeat}", at=past)
        take_turns(rng, actions, samples)
    for _ in range(FORK_REPEATS):
        actions = {"raw": raw.save}
        for length, saver in savers.items():
            thread, past = saver.thread, rng.choice(versions[length])
            actions[f"rewind {length}"] = partial(thread.rewind, past)
        take_turns(rng, actions, samples)
        actions = {}
        for length, saver in savers.items():

            def back(thread: Any = saver.thread, head: Any = heads[length]) -> None:
                thread.rewind(head)
                thread.state.plain()
                thread.messages[-TAIL:]

            actions[f"back {length}"] = back
        take_turns(rng, actions, samples)
    raw.close()
    for saver in savers.values():
        saver.close()
    unit = statistics.median(samples["raw"])
    rows = []
    for kind, title in (
        ("head", "fork at the head"),
        ("past", "fork at a random version"),
        ("rewind", "rewind to a random version"),
        ("back", "rewind + document + last 20"),
    ):
        ratios = {length: statistics.median(samples[f"{kind} {length}"]) / unit for length in paths}
        report.data[f"branch_{kind}_x_raw"] = ratios
        rows.append([title, *(f"{ratio:.2f} ({ratio * unit / 1e3:.0f} µs)" for ratio in ratios.values())])
        if kind in ("head", "past"):
            report.goal(f"{title} ÷ raw commit, worst length", max(ratios.values()), 1.7, 1.3)
    note = f"Raw durable commit in the same rounds: {unit / 1e3:.0f} µs."
    report.table("Fork and rewind, × raw commit", note, ["messages", *(f"{n:,}" for n in paths)], rows)
