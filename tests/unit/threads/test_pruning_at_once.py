"""Two gc() at the same time: what one has looked at, the other may have pruned since."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Retention
from everthread.history import packs
from everthread.maintenance import prune


@pytest.mark.parametrize("url", ["memory:", "sqlite:///{}/a.db", "file://{}/a"])
def test_items_of_a_head_outlive_a_sweep_that_looked_before(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest version that the slow one knows is gone, and with it what said who holds its items."""
    monkeypatch.setattr(packs, "FOLD_BYTES", 60)
    monkeypatch.setattr(prune, "GROUP_MAX", 8)
    with everthread.open(url.format(tmp_path), durability="process") as store:
        store.core.folder.records_max = 4
        thread = store.thread("a")

        def talk(first: int, last: int) -> None:
            for number in range(first, last):
                thread.messages.append({"id": f"m{number}", "text": "x" * 50})
                thread.commit()

        talk(0, 20)
        sweep = prune.Sweep.run
        others: list[Any] = []

        def slow(self: prune.Sweep) -> None:
            if not others:
                others.append(None)
                talk(20, 40)
                others.append(store.gc(Retention(keep_last=1)))
            sweep(self)

        monkeypatch.setattr(prune.Sweep, "run", slow)
        report = store.gc(Retention(keep_last=1))
        assert report.problems == ()
        assert others[1].versions == 20
        again = store.thread("a")
        assert [item["id"] for item in again.messages] == [f"m{number}" for number in range(40)]
        assert store.verify()


@pytest.mark.parametrize("url", ["memory:", "sqlite:///{}/a.db", "file://{}/a"])
def test_items_of_a_head_outlive_a_fold_in_between(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was the newest version when it was looked at is in a pack with later ones by now."""
    monkeypatch.setattr(packs, "FOLD_BYTES", 60)
    with everthread.open(url.format(tmp_path), durability="process") as store:
        store.core.folder.records_max = 8
        thread = store.thread("a")

        def talk(first: int, last: int) -> None:
            for number in range(first, last):
                thread.messages.append({"id": f"m{number}", "text": "x" * 50})
                thread.commit()

        talk(0, 20)
        sweep = prune.Sweep.run
        done: list[int] = []

        def slow(self: prune.Sweep) -> None:
            if not done:
                talk(20, 40)
                rows = store.core.backend.scan(1, 20, 1)
                done.extend((rows[0].first, rows[0].seq))
            sweep(self)

        monkeypatch.setattr(prune.Sweep, "run", slow)
        assert store.gc(Retention(keep_last=1)).problems == ()
        assert done[0] <= 20 < done[1], "no pack goes beyond what was the newest version"
        assert [item["id"] for item in store.thread("a").messages] == [f"m{number}" for number in range(40)]
        assert store.verify()
