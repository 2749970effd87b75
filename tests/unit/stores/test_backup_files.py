"""A backup that is one file is there whole and on disk, or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import everthread
from everthread.errors import StorageWriteError, UsageError
from everthread.stores import backup_file


def test_one_that_the_disk_may_not_know_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    folder = tmp_path / "backups"
    folder.mkdir()
    with everthread.open(url, durability="process", keyring="memory:") as store:
        store.thread("a").commit(label="first")

        def failing(path: str) -> None:
            if os.path.isdir(path):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patched:
            patched.setattr(backup_file, "sync", failing)
            with pytest.raises(StorageWriteError, match="couldn't be written"):
                store.backup(folder / "one")
        assert list(folder.iterdir()) == []
        store.backup(folder / "one")
        (folder / "link").symlink_to(folder / "nowhere")
        for taken in ("one", "link"):
            with pytest.raises(UsageError, match="nothing is overwritten"):
                store.backup(folder / taken)
        assert sorted(os.listdir(folder)) == ["link", "one"]
