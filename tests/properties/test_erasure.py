"""Random histories, erased from: nothing of the person is read or found, all else is as it was.

Twenty for each store here; a thousand with `make torture WHAT=erase`.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest

import everthread
from tests.crash.workload import memory_directory
from tests.properties.erasure import (
    ANN,
    History,
    belongings,
    canary,
    encodings,
    found_in,
    read_all,
    without_ann,
)

HISTORIES = 20
STEPS = 25


def open_at(kind: str, folder: Path) -> everthread.Store:
    place = {"sqlite": f"sqlite:///{folder}/store.db", "files": f"file://{folder}/store"}
    keyring = "memory:" if kind == "memory" else str(folder / "keys")
    store = everthread.open(place.get(kind, "memory:"), keyring=keyring, durability="process")
    # Folded early: packs, chunks and keyframes hold references, too.
    store.core.folder.records_max = 4
    return store


def erase_from_a_history(kind: str, seed: int, folder: Path, steps: int = STEPS) -> None:
    """One history: written, erased from, opened again, exported; every claim is checked."""
    rng = random.Random(seed)
    live = folder / "live"
    live.mkdir()
    store = open_at(kind, live)
    history = History(store, rng)
    history.run(steps)
    store.export(folder / "before.archive")
    before = read_all(store)
    theirs = belongings(store, ANN)
    plain = {f"{text} {name}": form for text in history.canaries for name, form in encodings(text).items()}
    if kind != "memory":
        missed = theirs.keys() - found_in(theirs, live).keys()
        assert not missed, "a control: this search finds what belongs to the person, before"
        assert not found_in(plain, folder), "nothing was ever in clear, not even in an archive"
    report = store.erase(ANN)
    assert report, report
    assert report.is_signed()
    assert report.needles >= len(theirs)
    expected = {
        name: without_ann(value) for name, value in before.items() if not name.startswith(f"user {ANN}")
    }
    assert read_all(store) == expected
    store.export(folder / "after.archive")
    assert not found_in({**theirs, **plain}, live)
    if kind != "memory":
        store.close()
        assert not found_in({**theirs, **plain}, live), "closed"
        store = open_at(kind, live)
        assert read_all(store) == expected, "opened again"
        assert not found_in({**theirs, **plain}, live), "opened again"
    found = store.verify()
    assert found, "\n".join(map(str, found.damage))
    (folder / "before.archive").unlink()
    assert not found_in({**theirs, **plain}, folder), "nor in an archive that is made now"
    store.close()


@pytest.mark.parametrize("number", range(HISTORIES))
@pytest.mark.parametrize("kind", ["memory", "sqlite", "files"])
def test_nothing_is_left(kind: str, number: int, seed: int, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=memory_directory() or tmp_path) as place:
        erase_from_a_history(kind, seed + number, Path(place))


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_plain_text_is_found_where_it_isn_t_sealed(kind: str, tmp_path: Path, seed: int) -> None:
    """The control of the control: in a store without seals this search finds every form of a canary."""
    rng = random.Random(seed)
    text = canary(ANN, rng)
    forms = encodings(text)
    with open_at(kind, tmp_path) as store:
        thread = store.thread("a")
        thread.state["utf-8"] = text
        thread.state["utf-16"] = forms["utf-16"].decode("latin-1")
        for name in ("json", "base64", "hex"):
            thread.state[name] = forms[name].decode()
        thread.commit()
        found = found_in({**forms, "utf-16": forms["utf-16"].decode("latin-1").encode()}, tmp_path)
    # A file store writes the backslash of a JSON escape as two.
    expected = set(forms) - ({"utf-16", "json"} if kind == "files" else set())
    assert expected <= set(found)


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_equal_values_are_sealed_differently_and_tokens_can_t_be_linked(kind: str, tmp_path: Path) -> None:
    with open_at(kind, tmp_path) as store:
        thread = store.thread("a")
        for number in range(20):
            thread.state[f"p{number}"] = everthread.Personal("ann", "the same text")
        thread.commit()
        key_ids = store.core.vault.keyring.key_ids("ann")
        rows = store.core.backend.sealed_under(key_ids, b"", 100)
        assert len({data for _, _, data in rows}) == 20
        assert len({data[:13] for _, _, data in rows}) == 20, "no nonce twice"
        token = store.core.vault.keyring.token("ann")
    with everthread.open("memory:", keyring=str(tmp_path / "other")) as other:
        other.core.vault.keyring.key_for("ann")
        assert other.core.vault.keyring.token("ann") != token, "another keyring, another token"
    names = {name: form for name, form in encodings("ann").items() if name in ("base64", "hex")}
    assert not found_in({**names, "json": b'"ann"'}, tmp_path / "keys")
