"""File stores that several processes use at once, each a store object of its own here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Store
from everthread.stores.files import backup, layout
from everthread.stores.files import content as checking
from everthread.stores.files import store as backend_module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def stores(folder: Path, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    url, keys = f"file://{folder}", str(tmp_path / "keys")
    with everthread.open(url, keyring=keys) as one, everthread.open(url, keyring=keys) as other:
        yield one, other


def put(store: Store, name: str, number: int) -> None:
    thread = store.thread(name)
    thread.state["n"] = number
    thread.commit()


def test_two_make_one_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process makes the folder between two looks at it."""
    real = os.path.isdir
    looked: list[Any] = []

    def isdir(path: Any) -> bool:
        found = real(path)
        if path == str(folder) and not looked:
            looked.append(path)
            folder.mkdir(mode=0o700)
        return found

    monkeypatch.setattr(layout.os.path, "isdir", isdir)
    with everthread.open(f"file://{folder}") as store:
        put(store, "a", 1)
    assert looked


def test_a_thread_that_is_deleted_meanwhile_is_no_damage(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = stores
    put(store, "a", 1)
    put(store, "b", 1)
    check, deleted = checking._check_line, list[str]()

    def meanwhile(content: Any, line: Any) -> list[str]:
        if line.name == "a" and not deleted:
            deleted.append("a")
            other.thread("a").delete()
        return check(content, line)

    monkeypatch.setattr(checking, "_check_line", meanwhile)
    assert store.verify(), store.verify().damage
    assert deleted


def test_a_folder_that_is_missing_is_damage_all_the_same(stores: tuple[Store, Store], folder: Path) -> None:
    store, _ = stores
    put(store, "a", 1)
    (found,) = [path for path in (folder / "data" / "threads").iterdir() if path.name.startswith("a-")]
    shutil.rmtree(found)
    assert not store.verify()


def test_a_backup_beside_one_erasure_after_another(
    stores: tuple[Store, Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often something goes before it was copied, the backup comes about in the end."""
    store, _ = stores
    put(store, "a", 1)
    list_content, tries = backup.list_content, list[int]()

    def listed(content: str) -> backup.Listed:
        found = list_content(content)
        if len(tries) < backend_module.TRIES:
            tries.append(1)
            found.append(("sealed/00/gone.json", backup.Size(1, 1)))
        return found

    monkeypatch.setattr(backup, "list_content", listed)
    store.backup(tmp_path / "backup")
    assert len(tries) == backend_module.TRIES
    with everthread.open(f"file://{tmp_path}/restored") as restored:
        restored.restore(tmp_path / "backup")
        assert restored.thread("a").state["n"] == 1
        assert restored.verify()


def test_a_lock_file_that_is_removed_is_made_again(stores: tuple[Store, Store], folder: Path) -> None:
    """Who has the old one open, and who comes later, still take turns."""
    store, other = stores
    put(store, "a", 1)
    (folder / "lock").unlink()
    put(other, "a", 2)
    put(store, "a", 3)
    one, two = (each.core.backend._access._write_lock for each in stores)  # type: ignore[attr-defined]
    assert os.fstat(one._file).st_ino == os.fstat(two._file).st_ino == (folder / "lock").stat().st_ino
    with two:
        assert not one.try_acquire(), "two at a time"
    assert one.try_acquire()
    one.release()


def test_a_folder_that_is_removed_gets_no_new_lock(stores: tuple[Store, Store], folder: Path) -> None:
    store, _ = stores
    put(store, "a", 1)
    shutil.rmtree(folder)
    folder.mkdir()
    with pytest.raises(everthread.StoreUnavailableError, match="moved or removed"):
        put(store, "a", 2)
    assert not list(folder.iterdir())
