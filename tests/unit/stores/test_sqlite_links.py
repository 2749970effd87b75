"""A store that is named by a symbolic link: SQLite keeps its log beside the file itself."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

import everthread
from everthread.errors import StoreUnavailableError


@pytest.fixture
def real(tmp_path: Path) -> Path:
    (tmp_path / "real").mkdir()
    return tmp_path / "real" / "store.db"


@pytest.fixture
def link(tmp_path: Path, real: Path) -> Path:
    link = tmp_path / "link.db"
    link.symlink_to(real)
    return link


def commit(store: everthread.Store, values: int) -> None:
    thread = store.thread("a")
    for value in range(values):
        thread.state["n"] = value
        thread.commit()


def test_nothing_is_kept_beside_the_link(link: Path, real: Path) -> None:
    with everthread.open(f"sqlite:///{link}") as store:
        commit(store, 3)
        thread = store.thread("a")
        thread.state["mail"] = everthread.Personal("ann", "ann@example.org")
        thread.commit()
        assert not list(store.search("nothing"))
        assert store.erase("ann").complete
        assert os.path.getsize(f"{real}-wal")
    assert sorted(os.listdir(link.parent)) == ["link.db", "real"]
    with everthread.open(f"sqlite:///{real}") as store:
        assert store.thread("a").state["n"] == 2


def test_what_an_erasure_looks_through_is_beside_the_file(link: Path, real: Path) -> None:
    with everthread.open(f"sqlite:///{link}") as store:
        commit(store, 1)
        wal = Path(f"{real}-wal")
        planted = os.urandom(32)
        wal.write_bytes(wal.read_bytes() + planted)
        assert dict(store.core.backend.residues([planted]).hits) == {str(wal): 1}


def test_a_salvage_reads_the_log(link: Path, real: Path, tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{link}") as store:
        commit(store, 20)
        assert os.path.getsize(f"{real}-wal")
        everthread.salvage(f"sqlite:///{link}", f"sqlite:///{tmp_path}/saved.db")
    with everthread.open(f"sqlite:///{tmp_path}/saved.db") as store:
        assert store.thread("a").state["n"] == 19


def test_a_log_that_goes_is_noticed(link: Path, real: Path) -> None:
    with everthread.open(f"sqlite:///{link}") as store:
        commit(store, 2)
        os.unlink(f"{real}-wal")
        # Noticed with the next connection, which would begin another log.
        with pytest.raises(StoreUnavailableError, match="-wal was removed"):
            store.stats()


def test_a_link_that_leads_elsewhere_is_noticed(link: Path, real: Path, tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{link}") as store:
        commit(store, 2)
        with everthread.open(f"sqlite:///{tmp_path}/other.db"):
            pass
        link.unlink()
        link.symlink_to(tmp_path / "other.db")
        with pytest.raises(StoreUnavailableError, match="moved, removed or replaced"):
            store.stats()


def test_an_archive_and_a_backup_may_be_named_by_links(link: Path, tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{link}") as store:
        commit(store, 3)
        store.export(tmp_path / "archive")
        store.backup(tmp_path / "backup")
        for name in ("archive", "backup"):
            (tmp_path / f"{name}-link").symlink_to(tmp_path / name)
        commit(store, 9)
        store.restore(tmp_path / "backup-link")
        assert store.thread("a").state["n"] == 2
    with everthread.open("memory:") as store:
        store.import_from(tmp_path / "archive-link")
        assert store.thread("a").state["n"] == 2


@pytest.mark.parametrize("kind", ["device", "pipe", "socket"])
@pytest.mark.parametrize("linked", [False, True])
def test_what_keeps_nothing_is_no_place_for_a_store(
    tmp_path: Path, kind: str, linked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A socket's path must be short.
    monkeypatch.chdir(tmp_path)
    place = Path("/dev/null") if kind == "device" else tmp_path / "place"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind("place")
    named = tmp_path / "link.db" if linked else place
    if linked:
        named.symlink_to(place)

    def beside() -> list[str]:
        return sorted(map(str, (*tmp_path.iterdir(), *Path("/dev").glob("null*"))))

    before = beside()
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match=f"isn't a file but a {kind}"):
            everthread.open(f"sqlite:///{named}")
    assert beside() == before, "nothing is made beside it"
