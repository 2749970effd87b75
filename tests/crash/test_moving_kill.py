"""A process killed (kill -9) at moments of an import, and of a redaction: each time at others.

An import needs its archive and a redaction the text, neither of which a store keeps: whoever started one runs
it again, and that finishes it. Until then the store opens, verifies, goes on, and no version shows half of
itself.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Personal
from tests.crash.test_erasure_kill import killed_in_child
from tests.crash.workload import memory_directory
from tests.properties.erasure import files_in, revealed

SECRET = "SECRET-4711-abcdefgh"
PASSPHRASE = b"k" * 32
#: About so many moments of all.
KILLS = 24


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=memory_directory() or tmp_path) as found:
        yield Path(found)


def _open(kind: str, folder: Path) -> everthread.Store:
    url = f"sqlite:///{folder}/store.db" if kind == "sqlite" else f"file://{folder}/store"
    store = everthread.open(url, keyring=str(folder / "keys"), durability="process")
    store._core.folder.records_max = 8
    return store


def _fill(store: everthread.Store) -> None:
    thread = store.thread("a")
    for number in range(30):
        thread.state["n"] = f"{number} {SECRET}" if number % 9 == 0 else number
        thread.messages.append({"id": f"{number}", "content": f"x {SECRET}" if number % 7 == 0 else "x"})
        thread.state["ann"] = Personal("ann", f"ann {number}")
        thread.commit()
    fork = thread.fork("b", at=20)
    fork.state["newest"] = SECRET
    fork.commit(label=f"label {SECRET}")
    store.events("e").extend([("told", {"who": Personal("bob", n), "text": SECRET}) for n in range(3)])
    store.users.set("ann", "city", "Paris")


def _seen(store: everthread.Store) -> dict[str, Any]:
    """By version id what it shows: a version is there as a whole or not at all."""
    found: dict[str, Any] = {}
    for info in store.threads():
        thread = store.thread(info.name)
        for version in thread.history(limit=None):
            if version.label != "redacted":
                past = thread.at(version)
                found[version.id] = revealed([past.state.plain(), past.messages[:], version.label])
    for event in store.events("e").replay():
        found[f"event {event.seq}"] = revealed(event.data)
    return found


def _without(seen: Any) -> Any:
    return eval(repr(seen).replace(SECRET, "[redacted]"))


def _some(moments: int, seed: int) -> range:
    stride = max(1, moments // KILLS)
    return range(seed % stride, moments, stride)


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_an_import_killed(place: Path, kind: str, seed: int) -> None:
    source = place / "source"
    source.mkdir()
    with _open("sqlite", source) as store:
        _fill(store)
        store.export(place / "archive", keys=PASSPHRASE)
        expected = _seen(store)

    def deed(store: everthread.Store) -> object:
        return store.import_from(place / "archive", keys=PASSPHRASE)

    (place / "rehearsal").mkdir()
    moments = killed_in_child(lambda: _open(kind, place / "rehearsal"), deed, -1)
    assert moments is not None
    assert moments > 50
    partial = 0
    for moment in _some(moments, seed):
        folder = place / str(moment)
        folder.mkdir()
        assert killed_in_child(lambda: _open(kind, folder), deed, moment) is None, moment  # noqa: B023
        with _open(kind, folder) as store:
            assert store.verify(), moment
            opened = bool(store._core.vault.keyring.alive())
            ids = [v.id for info in store.threads() for v in store.thread(info.name).history(limit=None)]
            assert set(ids) <= set(expected), "nothing but whole versions, as they were there"
            partial += 0 < len(set(ids)) < len(expected)
            if opened:
                assert all(expected[name] == value for name, value in _seen(store).items()), moment
            assert store.import_from(place / "archive", keys=PASSPHRASE).keys_missing == 0
            assert _seen(store) == expected, moment
            assert store.users.get("ann", "city") == "Paris"
            assert store.verify(), moment
        shutil.rmtree(folder)
    assert partial > 0


def test_a_redaction_killed(place: Path, seed: int) -> None:
    template = place / "template"
    template.mkdir()
    with _open("sqlite", template) as store:
        _fill(store)
        before = _seen(store)
    after = _without(before)
    shutil.copytree(template, place / "rehearsal")
    moments = killed_in_child(
        lambda: _open("sqlite", place / "rehearsal"), lambda store: store.redact(SECRET), -1
    )
    assert moments is not None
    assert moments > 50
    midway = 0
    for moment in _some(moments, seed):
        folder = place / str(moment)
        shutil.copytree(template, folder)
        ended = killed_in_child(lambda: _open("sqlite", folder), lambda s: s.redact(SECRET), moment)  # noqa: B023
        assert ended is None, moment
        with _open("sqlite", folder) as store:
            found = store.verify()
            assert found, (moment, found.damage[:3])
            seen = _seen(store)
            assert seen.keys() == before.keys()
            assert _without(seen) == after, "each place as it was, or as it shall be, and all else as it was"
            told = repr(seen)
            midway += SECRET in told and "[redacted]" in told
            store.redact(SECRET)
            assert list(store.scan(SECRET)) == []
            assert _seen(store) == after
            assert store.verify(), moment
        assert not [path for path in files_in(folder) if SECRET.encode() in path.read_bytes()], moment
        shutil.rmtree(folder)
    assert midway > 0
