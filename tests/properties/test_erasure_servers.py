"""Random histories on servers, erased from: nothing of the person is read, or found in the server's files.

Ten for each here; as many as one likes with `make torture WHAT=erase ARGS='--servers 100'`.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import everthread
from tests.crash.workload import memory_directory
from tests.properties.erasure import (
    ANN,
    History,
    belongings,
    encodings,
    found_in,
    read_all,
    without_ann,
)
from tests.properties.erasure_servers import PLACES, Place
from tests.servers.colours import Url

HISTORIES = 10
STEPS = 20


@pytest.fixture(scope="module", params=["postgres", "valkey"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(dir=memory_directory()))
    folder.chmod(0o711)
    made = PLACES[request.param](folder / "server")
    yield made
    made.stop()
    shutil.rmtree(folder, ignore_errors=True)


def open_at(url: Url, folder: Path) -> everthread.Store:
    store = url.open(keyring=str(folder / "keys"), durability="process")
    # Folded early: packs, chunks and keyframes hold references, too.
    store.core.folder.records_max = 4
    return store


def erase_from_a_server(
    place: Place, seed: int, folder: Path, steps: int = STEPS, *, colour: str = ""
) -> None:
    """One history: written, erased from, opened again; every claim is checked on the server's own files."""
    rng = random.Random(seed)
    url = Url(place.fresh(), colour)
    store = open_at(Url(url), folder)
    history = History(store, rng)
    history.run(steps)
    store.export(folder / "before.archive")
    before = read_all(store)
    theirs = belongings(store, ANN)
    plain = {f"{text} {name}": form for text in history.canaries for name, form in encodings(text).items()}
    shown = found_in({**theirs, **plain}, *place.files(), folder)
    assert not theirs.keys() - shown.keys(), "a control: this search finds what belongs to the person, before"
    assert not plain.keys() & shown.keys(), "nothing was ever in clear"
    if colour:
        # The histories have objects, and adapters, that only know blocking stores; erasing is the other's.
        store.close()
        store = open_at(url, folder)
    report = store.erase(ANN)
    assert report, report
    assert report.is_signed()
    assert any(place.unreached in each for each in report.unreached), "what may be left is named"
    expected = {
        name: without_ann(value) for name, value in before.items() if not name.startswith(f"user {ANN}")
    }
    (folder / "before.archive").unlink()
    assert read_all(store) == expected
    assert not found_in({**theirs, **plain}, *place.files(), folder)
    store.close()
    store = open_at(url, folder)
    assert read_all(store) == expected, "opened again"
    found = store.verify()
    assert found, "\n".join(map(str, found.damage))
    store.export(folder / "after.archive")
    assert not found_in({**theirs, **plain}, *place.files(), folder), "nor in an archive that is made now"
    store.close()


# Histories of one server follow each other, each with a keyring of its own.
@pytest.mark.filterwarnings("ignore:.*holds sealed values, and the keyring:UserWarning")
@pytest.mark.parametrize("number", range(HISTORIES))
def test_nothing_is_left(place: Place, number: int, seed: int, tmp_path: Path) -> None:
    # Half of them through the async driver.
    erase_from_a_server(place, seed + number, tmp_path, colour="async" if number % 2 else "")
