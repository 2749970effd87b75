"""A process killed (kill -9) at moments of an import, and of a redaction: each time at others.

An import needs its archive, which a store doesn't keep: the next open, ``verify()`` and ``doctor`` name it,
and whoever started it runs it again, which finishes it. A redaction is finished by the next open. In between
the store verifies, and no version shows half of itself.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Personal
from everthread.cli.errors import FAILURE, UNOPENED
from tests.crash.test_erasure_kill import killed_in_child
from tests.crash.workload import memory_directory
from tests.properties.erasure import files_in, revealed
from tests.unit.cli.calling import here

SECRET = "SECRET-4711-abcdefgh"
PASSPHRASE = b"k" * 32
KINDS = ("sqlite", "files")
#: About so many moments of all.
KILLS = 24


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=memory_directory() or tmp_path) as found:
        yield Path(found)


def _open(kind: str, folder: Path) -> everthread.Store:
    url = f"sqlite:///{folder}/store.db" if kind == "sqlite" else f"file://{folder}/store"
    store = everthread.open(url, keyring=str(folder / "keys"), durability="process")
    store.core.folder.records_max = 8
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


@contextmanager
def untouched() -> Iterator[None]:
    """Stores that are opened meanwhile leave everything as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(everthread.Store, "_finish_erasures", lambda self: None)
        yield


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
    partial = unmarked = 0
    for moment in _some(moments, seed):
        folder = place / str(moment)
        folder.mkdir()
        assert killed_in_child(lambda: _open(kind, folder), deed, moment) is None, moment  # noqa: B023
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            store = _open(kind, folder)
        with store:
            found = store.verify()
            assert found, moment
            begun = [str(each.message) for each in told]
            assert [text.partition(": ")[2] for text in begun] == list(found.unfinished)
            unmarked += not begun
            for text in begun:
                assert str(place / "archive") in text
                assert "import_from() it again" in text
                # Where the keys aren't here yet either, that has a code of its own.
                code = FAILURE if found.needs else UNOPENED
                keyring = str(folder / "keys")
                answer = here("doctor", "--quick", "--store", store.url, "--keyring", keyring, code=code)
                assert answer.out.count("cut short") == 1
            opened = bool(store.core.vault.keyring.alive())
            ids = [v.id for info in store.threads() for v in store.thread(info.name).history(limit=None)]
            assert set(ids) <= set(expected), "nothing but whole versions, as they were there"
            if 0 < len(set(ids)) < len([name for name in expected if not name.startswith("event ")]):
                partial += 1
                assert begun, "whatever is here in part is told of"
            if opened:
                assert all(expected[name] == value for name, value in _seen(store).items()), moment
            assert store.import_from(place / "archive", keys=PASSPHRASE).keys_missing == 0
            assert _seen(store) == expected, moment
            assert store.users.get("ann", "city") == "Paris"
            found = store.verify()
            assert found, moment
            assert found.unfinished == ()
        _open(kind, folder).close()  # A warning would be an error.
        shutil.rmtree(folder)
    assert partial > 0
    assert unmarked < KILLS, "control: most of the moments are after the mark"


@pytest.mark.parametrize("kind", KINDS)
def test_a_redaction_killed(place: Path, kind: str, seed: int) -> None:
    template = place / "template"
    template.mkdir()
    with _open(kind, template) as store:
        _fill(store)
        before = _seen(store)
    after = _without(before)
    shutil.copytree(template, place / "rehearsal")
    moments = killed_in_child(
        lambda: _open(kind, place / "rehearsal"), lambda store: store.redact(SECRET), -1
    )
    assert moments is not None
    assert moments > 50
    midway = finished = 0
    for moment in _some(moments, seed):
        folder = place / str(moment)
        shutil.copytree(template, folder)
        ended = killed_in_child(lambda: _open(kind, folder), lambda s: s.redact(SECRET), moment)  # noqa: B023
        assert ended is None, moment
        shutil.copytree(folder, place / "unfinished")
        with untouched(), _open(kind, place / "unfinished") as store:
            found = store.verify()
            assert found, (moment, found.damage[:3])
            seen = _seen(store)
            assert seen.keys() == before.keys()
            assert _without(seen) == after, "each place as it was, or as it shall be, and all else as it was"
            told = repr(seen)
            midway += SECRET in told and "[redacted]" in told
        shutil.rmtree(place / "unfinished")
        with _open(kind, folder) as store:
            if moment > moments // 4:
                # The intention was written by then: opening has finished it.
                finished += 1
                assert store.verify().unfinished == ()
            else:
                store.redact(SECRET)
            assert [each for each in store.scan(SECRET) if each.redactable] == []
            assert _seen(store) == after
            assert store.verify(), moment
        for text in (SECRET.encode(), bytes(byte ^ 0xA5 for byte in SECRET.encode())):
            assert not [path for path in files_in(folder) if text in path.read_bytes()], moment
        shutil.rmtree(folder)
    assert midway > 0
    assert finished > KILLS // 2
