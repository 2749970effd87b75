"""Damages the ledger of effects, one record at a time: no effect may ever run twice in silence.

A session pays bills in a few runs, the last of which dies with a payment under way. Then each record of its
journal is damaged in turn, and so is everything that leads to it. Whoever pays the same bills afterwards, in
the store as it is or in what was salvaged of it, must get what was recorded, or an error that says that
nobody knows; the function must not be called.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw

import everthread
from everthread import EverthreadError, Store, salvage

ENGINES = ("sqlite", "file")
RUNS, BILLS_PER_RUN = 3, 4
BILLS = RUNS * BILLS_PER_RUN + 1
SMALL_FOLD = 12


def url_of(engine: str, folder: Path) -> str:
    return f"sqlite:///{folder}/store.db" if engine == "sqlite" else f"file://{folder}/store"


def opened(engine: str, folder: Path) -> Store:
    store = everthread.open(url_of(engine, folder), durability="process", keyring="memory:")
    store.core.folder.records_max = SMALL_FOLD
    return store


class Died(BaseException):
    """As if the process had been killed."""


def build(engine: str, folder: Path, crash: bool = True, dying: Callable[[int], None] | None = None) -> None:
    """Three runs that pay four bills each; in the end one that dies while it pays one more."""
    folder.mkdir(parents=True)
    store = opened(engine, folder)
    with suppress(Died):
        for run in range(RUNS):
            with store.session("bot") as session:
                session.add_usage(runs=1)
                for bill in range(run * BILLS_PER_RUN, (run + 1) * BILLS_PER_RUN):
                    session.call(f"pay {bill}", lambda bill: {"paid": bill}, bill)
        if crash:
            session = store.session("bot")
            session.call(f"pay {BILLS - 1}", dying or die, BILLS - 1)
    store.close()


def die(bill: int) -> None:
    raise Died


class Payer:
    """Pays the bills again and counts whatever is really paid."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.outcomes: Counter[str] = Counter()
        self.texts: list[str] = []

    def pay(self, bill: int) -> Any:
        self.paid.append(bill)
        return {"paid": bill}

    def run(self, store: Store, name: str, bills: int) -> None:
        try:
            session = store.session(name)
        except EverthreadError as error:
            self.outcomes[f"no session: {type(error).__name__}"] += 1
            self.texts.append(str(error))
            return
        with suppress(EverthreadError), session:
            for bill in range(bills):
                try:
                    assert session.call(f"pay {bill}", self.pay, bill) == {"paid": bill}
                    self.outcomes["known"] += 1
                except EverthreadError as error:
                    self.outcomes[type(error).__name__] += 1
                    self.texts.append(str(error))


def pay_again(engine: str, folder: Path, bills: int) -> Payer:
    """Every thread that there is is gone on with, and a fork of each."""
    payer = Payer()
    try:
        store = opened(engine, folder)
    except EverthreadError as error:
        payer.outcomes[f"no store: {type(error).__name__}"] += 1
        return payer
    with store:
        names: list[str] = []
        with suppress(EverthreadError):
            names = [info.name for info in store.threads()]
        for name in names or ["bot"]:
            with suppress(EverthreadError):
                store.thread(name).fork(f"fork of {name}")
                payer.run(store, f"fork of {name}", bills)
            payer.run(store, name, bills)
    return payer


def check(engine: str, folder: Path, what: str, bills: int, target: str) -> Counter[str]:
    """Pay in the damaged store and in what is salvaged of it."""
    outcomes: Counter[str] = Counter()
    saved = folder.with_name(f"{folder.name}-saved")
    saved.mkdir()
    try:
        salvage(url_of(engine, folder), url_of(target, saved))
        payer = pay_again(target, saved, bills)
        assert not payer.paid, f"{what}, salvaged into {target}: paid again: {payer.paid}"
        outcomes.update({f"salvaged: {name}": count for name, count in payer.outcomes.items()})
    except EverthreadError as error:
        outcomes[f"not salvaged: {type(error).__name__}"] += 1
    shutil.rmtree(saved)
    payer = pay_again(engine, folder, bills)
    assert not payer.paid, f"{what}: paid again: {payer.paid}"
    outcomes.update(payer.outcomes)
    return outcomes


# ── the ways in which records are damaged ────────────────────────────────────────────────────────

Wound = tuple[str, Callable[[Path], None]]


def _statement(text: str, *values: Any) -> Callable[[Path], None]:
    def wound(folder: Path) -> None:
        database = apsw.Connection(str(folder / "store.db"))
        database.pragma("foreign_keys", False)
        database.execute(text, values)
        assert database.changes() > 0, text
        database.close()

    return wound


def unreadable_folds(folder: Path) -> None:
    """Index, fingerprints, items and records of what is folded in the journal: nothing but nets is left."""
    journal = "SELECT id FROM line WHERE instr(space, 'journal')"
    _statement("DELETE FROM keyed")(folder)
    _statement(f"UPDATE record SET body = zeroblob(40) WHERE kind = 1 AND id >> 32 IN ({journal})")(folder)
    _statement(f"UPDATE chunk SET data = x'00', fingerprints = x'00' WHERE line IN ({journal})")(folder)


def sqlite_wounds(folder: Path) -> Iterator[Wound]:
    database = apsw.Connection(str(folder / "store.db"))
    journal = "SELECT id FROM line WHERE instr(space, 'journal')"
    rows = database.execute(f"SELECT id FROM record WHERE id >> 32 IN ({journal})").fetchall()
    lines = database.execute(journal).fetchall()
    keyed = database.execute(f"SELECT key FROM keyed WHERE line IN ({journal})").fetchall()
    chunks = database.execute(f"SELECT id FROM chunk WHERE line IN ({journal})").fetchall()
    database.close()
    assert len(rows) > 5, rows
    assert keyed, "something must be folded"
    for (row,) in rows:
        name = f"record {row & 0xFFFFFFFF}"
        yield f"{name} zeroed", _statement("UPDATE record SET body = zeroblob(40) WHERE id = ?", row)
        yield (
            f"{name} without net",
            _statement(
                "UPDATE record SET body = zeroblob(9), net = zeroblob(9), keyframe = x'00' WHERE id = ?",
                row,
            ),
        )
        yield f"{name} gone", _statement("DELETE FROM record WHERE id = ?", row)
        yield f"{name} elsewhere", _statement("UPDATE record SET id = id + 4294967296 * 77 WHERE id = ?", row)
    for (chunk,) in chunks:
        yield f"chunk {chunk} zeroed", _statement("UPDATE chunk SET data = zeroblob(9) WHERE id = ?", chunk)
        yield f"chunk {chunk} gone", _statement("DELETE FROM chunk WHERE id = ?", chunk)
    for (key,) in keyed:
        name = f"key {key.hex()[:8]}"
        yield f"{name} gone", _statement("DELETE FROM keyed WHERE key = ?", key)
        yield f"{name} damaged", _statement("UPDATE keyed SET key = zeroblob(16) WHERE key = ?", key)
    yield "no keys", _statement("DELETE FROM keyed")
    yield "nothing folded left to read", unreadable_folds
    for (line,) in lines:
        yield "its entry damaged", _statement("UPDATE line SET sum = sum + 1 WHERE id = ?", line)
        yield "its name damaged", _statement("UPDATE line SET name = 'x' || name WHERE id = ?", line)
        yield "its entry gone", _statement("DELETE FROM line WHERE id = ?", line)


def _flip(path: Path, offset: int) -> Callable[[Path], None]:
    def wound(folder: Path) -> None:
        data = bytearray((folder / path).read_bytes())
        data[offset] ^= 1
        (folder / path).write_bytes(data)

    return wound


def _cut(path: Path, start: int, end: int) -> Callable[[Path], None]:
    def wound(folder: Path) -> None:
        data = (folder / path).read_bytes()
        (folder / path).write_bytes(data[:start] + data[end:])

    return wound


def _unlink(path: Path) -> Callable[[Path], None]:
    return lambda folder: (folder / path).unlink()


def file_wounds(folder: Path) -> Iterator[Wound]:
    (first,) = {p.parent for p in folder.rglob("journal-*.jsonl") if b"u0000journal" in p.read_bytes()[:400]}
    place = first.relative_to(folder)
    for path in sorted(first.iterdir()):
        name = place / path.name
        if path.suffix == ".jsonl":
            offset = 0
            for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
                yield f"{path.name}:{number} flipped", _flip(name, offset + len(line) // 2)
                yield f"{path.name}:{number} gone", _cut(name, offset, offset + len(line))
                offset += len(line)
        elif path.name != "view.json":
            size = path.stat().st_size
            for at in range(0, size, max(1, size // 8)):
                yield f"{path.name} flipped at {at}", _flip(name, at)
        yield f"{path.name} gone", _unlink(name)
    catalog = next(folder.rglob("lines.jsonl")).relative_to(folder)
    offset = 0
    for number, line in enumerate((folder / catalog).read_bytes().splitlines(keepends=True), 1):
        yield f"{catalog.name}:{number} flipped", _flip(catalog, offset + len(line) // 2)
        offset += len(line)


def wounds(engine: str, folder: Path) -> Iterator[Wound]:
    return sqlite_wounds(folder) if engine == "sqlite" else file_wounds(folder)
