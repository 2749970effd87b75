"""An erasing process killed at operations of a store on a server, and of the keyring: the next open finishes
it.

Here at every few of the moments, each time from another one on; at every one with
`make torture WHAT=erase ARGS='--servers 1'`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import everthread
from everthread import Erased, Personal
from tests.crash.test_erasure_kill import erase_in_child
from tests.crash.workload import memory_directory
from tests.properties.erasure import belongings, found_in
from tests.properties.erasure_servers import PLACES, Place

#: Every so many-th moment.
STRIDE = 7


@pytest.fixture(scope="module", params=["postgres", "valkey"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(dir=memory_directory()))
    folder.chmod(0o711)
    made = PLACES[request.param](folder / "server")
    yield made
    made.stop()
    shutil.rmtree(folder, ignore_errors=True)


def open_at(url: str, folder: Path) -> everthread.Store:
    return everthread.open(url, keyring=str(folder / "keys"), durability="process")


def fill(url: str, folder: Path, subject: str) -> dict[str, bytes]:
    """Something of a person that nobody else has, beside what is there of others."""
    with open_at(url, folder) as store:
        thread = store.thread(subject)
        for number in range(2):
            thread.state["own"] = Personal(subject, f"{number} " * 50)
            thread.state["bob"] = Personal("bob", f"bob {number}")
            thread.messages.append({"id": f"{number}", "content": Personal(["bob", subject], "both")})
            thread.commit()
        store.users.set(subject, "city", "Paris")
        store.users.set("bob", "city", "Rome")
        store.rotate_keys(subject)
        thread.state["newer"] = Personal(subject, "under a second key")
        thread.commit()
        return belongings(store, subject)


def kill_at_moments(place: Place, folder: Path, start: int, stride: int) -> tuple[int, int]:
    """How many moments there were, and how often the person was still there when the process was killed."""
    url = place.fresh()
    fill(url, folder, "rehearsal")
    moments = erase_in_child(lambda: open_at(url, folder), "rehearsal", -1)
    assert moments is not None
    assert moments > 40
    before = 0
    for moment in range(start % stride, moments, stride):
        subject = f"person {moment}"
        theirs = fill(url, folder, subject)
        assert erase_in_child(lambda: open_at(url, folder), subject, moment) is None, f"moment {moment}"
        try:
            before += check(place, url, folder, subject, theirs)
        except BaseException as error:
            error.add_note(f"killed at moment {moment} of {moments}")
            raise
    return moments, before


def check(place: Place, url: str, folder: Path, subject: str, theirs: dict[str, bytes]) -> bool:
    with open_at(url, folder) as store:
        thread = store.thread(subject)
        backend = store.core.backend
        assert backend.erasures(True) == [], "the next open finishes it"
        erased = isinstance(thread.state["own"], Erased)
        if not erased:
            assert thread.state["own"].value.startswith("1 "), "all of it or nothing"
            assert store.users.get(subject, "city") == "Paris"
            assert store.erase(subject)
        for version in thread.history(limit=None):
            past = thread.at(version)
            assert isinstance(past.state["own"], Erased)
            assert past.state["bob"].value.startswith("bob")
            assert not any(item["content"] for item in past.messages)
        assert store.users.get(subject, "city") is None
        assert store.users.get("bob", "city") == "Rome"
        assert store.erase(subject).key_ids == ()
        assert all(report and report.is_signed() for report in store.erasure_reports())
        assert not found_in(theirs, *place.files(), folder)
        return not erased


def test_killed_at_many_moments(place: Place, tmp_path: Path, seed: int) -> None:
    moments, before = kill_at_moments(place, tmp_path, seed, STRIDE)
    assert 0 < before < moments // STRIDE
