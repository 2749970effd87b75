"""What is no backup of this store, but something known: said with what to do, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import NotAStoreError
from everthread.testing.driver import open_driven

URLS = {"sqlite": "sqlite:///{}/agent.db", "file": "file://{}/folder"}


@pytest.mark.parametrize("open_", [everthread.open, open_driven])
@pytest.mark.parametrize("kind", URLS)
def test_an_archive_or_a_backup_of_another_kind(tmp_path: Path, kind: str, open_: Callable[..., Any]) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/other.db") as other:
        other.thread("other").commit(label="other")
        other.export(tmp_path / "archive")
        other.backup(tmp_path / "copy.db")
    with everthread.open(f"file://{tmp_path}/others") as other:
        other.backup(tmp_path / "copy")
    foreign = tmp_path / ("copy" if kind == "sqlite" else "copy.db")
    with open_(URLS[kind].format(tmp_path)) as store:
        store.thread("bot").commit(label="mine")
        with pytest.raises(NotAStoreError, match=r"is an archive, not a backup: store\.import_from\(\)"):
            store.restore(tmp_path / "archive")
        with pytest.raises(NotAStoreError, match=r"of another kind \((SQLite|files)\).*copy_to\(\)"):
            store.restore(foreign)
        # What isn't known is told as before.
        (tmp_path / "text").write_text("something else")
        with pytest.raises(everthread.EverthreadError, match=r"backup"):
            store.restore(tmp_path / "text")
        assert [info.name for info in store.threads()] == ["bot"]
