"""Damages a small store in every way, one at a time, and judges what a reader makes of each.

The damaged stores are read in child processes: an engine that gets bad pages may crash or hang, and that
must be seen, not suffered. A child tells of each case before the next; whoever dies or falls silent has
been on the one after.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import random
import resource
import select
import shutil
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import apsw
import msgspec

import everthread
from everthread import Personal
from tests.crash.workload import memory_directory
from tests.kit.damage import Files, Wound, cuts, flips, read_files, swaps, write_files
from tests.kit.verdict import Chronicle, Salvaged, judge, salvaged

Engine = Literal["sqlite", "sqlite-512", "sqlite-wal", "file"]
ENGINES: tuple[Engine, ...] = ("sqlite", "sqlite-512", "sqlite-wal", "file")

SILENCE_S_MAX = 20.0
MEMORY_BYTES_MAX = 3 << 30
COMMITS = 150
#: Of the small store, of which every byte gets its turn. It folds early, so that nothing is missing in it.
SMALL_COMMITS = 24
SMALL_FOLDS = 8
#: Where the engine reads the very same rows as before, only every n-th case is judged in full.
SAME_EVERY = 25

#: Worse than any verdict.
BROKEN = ("crashed", "hung", "foreign", "misread", "silent")


@dataclasses.dataclass(frozen=True)
class Sample:
    """A store as files, and all that was ever committed to it."""

    engine: Engine
    files: Files
    chronicle: Chronicle
    keyring: str

    def url(self, folder: Path) -> str:
        return _url(self.engine, folder)


@dataclasses.dataclass
class Tally:
    """How many cases came to what, and a description of each that is broken."""

    outcomes: Counter[str] = dataclasses.field(default_factory=Counter)
    broken: list[str] = dataclasses.field(default_factory=list)

    def add(self, wound: Wound, outcome: str, text: str) -> None:
        self.outcomes[outcome] += 1
        if outcome in BROKEN or (outcome == "older" and not older_allowed(wound)):
            self.broken.append(f"{wound}: {outcome}: {text}")


def older_allowed(wound: Wound) -> bool:
    """Whether this damage may pass for commits that never happened: in the log, or at the end of a file.

    Never in the list of threads: their folders bear witness.
    """
    if wound.file.endswith("lines.jsonl"):
        return False
    return wound.file.endswith(("-wal", ".jsonl")) or wound.kind == "cut"


def _url(engine: Engine, folder: Path) -> str:
    return f"file://{folder}/store" if engine == "file" else f"sqlite:///{folder}/store.db"


def build(folder: Path, engine: Engine, commits: int = COMMITS) -> Sample:
    """A small store with packs, chunks, forks, rewinds, deletions, keys, steps, tags and a personal value."""
    folder.mkdir(parents=True)
    keyring = f"file://{folder}-keys"
    small = commits <= SMALL_COMMITS
    if engine == "sqlite-512" or (engine == "sqlite-wal" and small):
        # Small pages: then the trees have inner nodes, and damage is spread over more kinds of places.
        connection = apsw.Connection(str(folder / "store.db"))
        connection.execute("PRAGMA page_size = 512")
        connection.execute("VACUUM")
        connection.close()
    chronicle = Chronicle()
    options = "?wal_autocheckpoint=0" if engine == "sqlite-wal" else ""
    store = everthread.open(_url(engine, folder) + options, keyring=keyring)
    if small:
        store.core.folder.records_max = SMALL_FOLDS
    _fill(store, chronicle, commits)
    if engine == "sqlite-wal":
        # Part of it in the database, the rest in the log.
        files = read_files(folder)
        store.close()
    else:
        store.close()
        files = read_files(folder)
    return Sample(engine, files, chronicle, keyring)


def _fill(store: everthread.Store, chronicle: Chronicle, commits: int) -> None:
    main = store.thread("main")
    main.messages.append({"id": "p", "text": Personal("ann", "secret")})
    for number in range(commits):
        main.state["n"] = number
        if number % 10 == 0:
            main.state[f"part {number % 30}"] = {"x": number, "list": [1, 2, number]}
        if number % 3 == 0:
            main.messages.append({"id": f"m{number}", "text": f"hello {number}"})
        key = f"key {number}" if number % 9 == 0 else None
        main.commit(
            label=f"version {number}", key=key, metadata={"run": number % 4} if number % 5 == 0 else None
        )
        chronicle.note(main, key=key)
        if number == commits // 2:
            _checkpoint(store)
    fork = main.fork("fork", at=commits * 2 // 3)
    chronicle.note(fork)
    for number in range(5):
        fork.state["f"] = number
        fork.messages.append({"id": f"f{number}"})
        fork.commit(label=f"fork {number}")
        chronicle.note(fork)
    main.rewind(commits * 4 // 5)
    chronicle.note(main)
    # A key whose version was rewound past is refused.
    kept_keys = set(chronicle.pasts[main.at(commits * 4 // 5).version.id])
    chronicle.keys["main"] = {k: v for k, v in chronicle.keys["main"].items() if v in kept_keys}
    for number in range(6):
        main.state["r"] = number
        main.log("notes").append({"number": number})
        main.commit(label=f"late {number}", key=f"late {number}" if number % 3 == 0 else None)
        chronicle.note(main, key=f"late {number}" if number % 3 == 0 else None)
    doomed = store.thread("doomed")
    doomed.state["x"] = 1
    doomed.commit()
    chronicle.note(doomed)
    kept = doomed.fork("kept")
    chronicle.note(kept)
    kept.state["y"] = 2
    kept.commit(label="kept")
    chronicle.note(kept)
    doomed.delete()
    chronicle.note_deleted("doomed")
    with main.step("a step") as step:
        step.result = 5
        step.messages.append({"id": "stepped"})
    chronicle.note(main)
    chronicle.steps["main"] = {"a step": 5}
    for value in range(5):
        metadata = {"run": value}
        chronicle.searches.append((metadata, [info.name for info in store.threads(metadata=metadata)]))


def _checkpoint(store: everthread.Store) -> None:
    if store.url.startswith("sqlite"):
        connection = apsw.Connection(store.url.removeprefix("sqlite:///"))
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        connection.close()


# ── the cases ────────────────────────────────────────────────────────────────────────────────────


def wounds(sample: Sample, seed: int) -> list[Wound]:
    """One bit in every byte, a cut at every 512 bytes, swapped pages."""
    page = _page_size(sample)
    if sample.engine == "sqlite-wal":
        # Frames of the log: a header of 24 bytes and a page each.
        log = {name: data for name, data in sample.files.items() if name.endswith("-wal")}
        frames = [
            msgspec.structs.replace(wound, at=wound.at + 32, other=wound.other + 32)
            for wound in swaps({name: data[32:] for name, data in log.items()}, size=24 + page, seed=seed)
        ]
        swapped = [
            *frames,
            *swaps({n: d for n, d in sample.files.items() if n not in log}, size=page, seed=seed),
        ]
    else:
        swapped = list(swaps(sample.files, size=page, seed=seed))
    return [*flips(sample.files, seed=seed), *cuts(sample.files), *swapped]


def _page_size(sample: Sample) -> int:
    """As the header of the database says; a sector where there is none."""
    if sample.engine == "file":
        return 512
    (data,) = (data for name, data in sample.files.items() if name.endswith(".db"))
    return int.from_bytes(data[16:18], "big")


def sampled(every: Sequence[Wound], count: int, seed: int) -> list[Wound]:
    """``count`` of them: as many of each kind as is fair, drawn from the seed."""
    rng = random.Random(seed)
    by_kind: dict[str, list[Wound]] = {}
    for wound in every:
        by_kind.setdefault(wound.kind, []).append(wound)
    found: list[Wound] = []
    others = [kind for kind in by_kind if kind != "flip"]
    for kind in others:
        found += rng.sample(by_kind[kind], min(len(by_kind[kind]), count // 4))
    return found + rng.sample(by_kind["flip"], min(len(by_kind["flip"]), count - len(found)))


# ── judging them in children ─────────────────────────────────────────────────────────────────────


class _Told(msgspec.Struct):
    index: int
    outcome: str
    text: str


def run_cases(
    sample: Sample, cases: Sequence[Wound], tally: Tally, *, deep: bool = False, quick: bool = False
) -> None:
    """Judge every case; those that take their process with them, too. ``quick``: see ``SAME_EVERY``."""
    position = 0
    while position < len(cases):
        told = list(_run_child(sample, cases, position, deep, quick))
        for answer in told:
            tally.add(cases[answer.index], answer.outcome, answer.text)
        position = told[-1].index + 1 if told else position + 1


def _run_child(
    sample: Sample, cases: Sequence[Wound], start: int, deep: bool, quick: bool
) -> Iterator[_Told]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _child(sample, cases, start, writing, deep, quick)
    os.close(writing)
    index = start
    buffer = b""
    hung = False
    while True:
        readable, _, _ = select.select([reading], [], [], SILENCE_S_MAX)
        if not readable:
            hung = True
            os.kill(pid, signal.SIGKILL)
            break
        chunk = os.read(reading, 1 << 16)
        if not chunk:
            break
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            answer = msgspec.json.decode(line, type=_Told)
            index = answer.index + 1
            yield answer
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    if index < len(cases) and (hung or os.WIFSIGNALED(status) or os.WEXITSTATUS(status)):
        yield _Told(index, "hung" if hung else "crashed", f"status {status}")


def _child(sample: Sample, cases: Sequence[Wound], start: int, writing: int, deep: bool, quick: bool) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
        logging.disable()
        with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
            for index in range(start, len(cases)):
                folder = Path(directory, str(index))
                outcome, text = _case(sample, cases[index], folder, deep, quick)
                os.write(writing, msgspec.json.encode(_Told(index, outcome, text[:1500])) + b"\n")
                shutil.rmtree(folder)
        os._exit(0)
    finally:
        os._exit(1)


def _case(sample: Sample, wound: Wound, folder: Path, deep: bool, quick: bool) -> tuple[str, str]:
    folder.mkdir(mode=0o700)
    wounded = wound.apply(sample.files)
    write_files(folder, wounded)
    same = not deep and _holds_the_same(sample, folder)
    if same and quick and wound.at % SAME_EVERY:
        return "harmless", "the same rows"
    if quick and not deep and sample.engine == "sqlite-wal":
        return _known_or_judged(sample, wound, folder, wounded)
    return _judged(sample, folder, same, deep)


def _known_or_judged(sample: Sample, wound: Wound, folder: Path, wounded: Files) -> tuple[str, str]:
    """Most damage to a log cuts it off somewhere: where SQLite reads the very rows that it read in a case
    that was judged before, only every n-th is judged in full."""
    with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
        # Apart: reading with a log changes the files.
        write_files(Path(directory), wounded)
        rows = _rows(Path(directory, "store.db"), "mode=rw")
    found = None if rows is None else hashlib.sha256(repr(rows).encode()).digest()
    if found in _judgements and wound.at % SAME_EVERY:
        return _judgements[found]
    outcome = _judged(sample, folder, same=False, deep=False)
    if found is not None and outcome[0] not in BROKEN:
        _judgements[found] = outcome
    return outcome


#: What became of rows that were seen in this process, by their digest.
_judgements: dict[bytes | None, tuple[str, str]] = {}


def _judged(sample: Sample, folder: Path, same: bool, deep: bool) -> tuple[str, str]:
    try:
        verdict = judge(
            sample.url(folder),
            sample.chronicle,
            every=40 if same else 1 if deep else 6,
            writes=not same,
            per_thread=sample.engine == "file",
            keyring=sample.keyring,
        )
    except Exception:
        return "foreign", " ".join(traceback.format_exc()[-700:].split())
    return verdict.outcome, str(verdict)


def _holds_the_same(sample: Sample, folder: Path) -> bool:
    """Whether SQLite reads the same rows as before and finds nothing wrong: then little is left to look at.

    Only without a log: reading with one changes the files.
    """
    if sample.engine not in ("sqlite", "sqlite-512"):
        return False
    dumps = [_rows(folder / "store.db"), _untouched(sample)]
    return dumps[0] is not None and dumps[0] == dumps[1]


_known: dict[int, Any] = {}


def _untouched(sample: Sample) -> Any:
    found = _known.get(id(sample))
    if found is None:
        with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
            write_files(Path(directory), sample.files)
            found = _known[id(sample)] = _rows(Path(directory, "store.db"))
    return found


def _rows(path: Path, how: str = "immutable=1") -> Any:
    flags = apsw.SQLITE_OPEN_READONLY if how == "immutable=1" else apsw.SQLITE_OPEN_READWRITE
    try:
        connection = apsw.Connection(f"file:{path}?{how}", flags=flags | apsw.SQLITE_OPEN_URI)
        try:
            if connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                return None
            schema = connection.execute("SELECT * FROM sqlite_schema").fetchall()
            tables = [row[1] for row in schema if row[0] == "table"]
            pragmas = [connection.pragma(name) for name in ("application_id", "user_version", "journal_mode")]
            return (
                schema,
                pragmas,
                [connection.execute(f'SELECT * FROM "{name}"').fetchall() for name in tables],
            )
        finally:
            connection.close()
    except (apsw.Error, UnicodeDecodeError):
        return None


# ── salvaging ────────────────────────────────────────────────────────────────────────────────────

#: Takes the URLs of a damaged and of a new store, and brings what can be saved from one to the other.
Salvage = Callable[[str, str], Any]


def salvage_cases(sample: Sample, cases: Sequence[Wound], folder: Path, salvage: Salvage) -> list[Salvaged]:
    """What can be saved after each of these."""
    found = []
    for index, wound in enumerate(cases):
        broken, saved = folder / f"broken-{index}", folder / f"saved-{index}"
        broken.mkdir()
        saved.mkdir()
        write_files(broken, wound.apply(sample.files))
        target = f"sqlite:///{saved}/store.db"
        salvage(sample.url(broken), target)
        found.append(salvaged(sample.url(broken), target, sample.chronicle, keyring=sample.keyring))
        shutil.rmtree(broken)
        shutil.rmtree(saved)
    return found
