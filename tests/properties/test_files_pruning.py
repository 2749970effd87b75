"""Pruning in a file store against the naive model, with what only that store has.

Tiny segments and volumes, so that what goes together stands in several of them; two open stores, so that each
finds what the other rewrote; and what is derived is removed in between, whole or in part, as a clone or a
clean-up would.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from everthread import Store
from everthread.maintenance import prune
from everthread.stores.files import line_files, pack_files
from tests.properties.test_pruning import World, opened

_DERIVED = (["*.index", "*.packs"], ["folds-*.index"], ["*.packs"], ["prunes.index"])


class FileWorld(World):
    """As its base, on two stores by turns."""

    def __init__(self, folder: Path, clock: list[int], seed: int) -> None:
        self.folder = folder
        self.stores = [opened(f"file://{folder}", clock) for _ in range(2)]
        super().__init__(self.stores[0], clock, seed)

    def _turn(self) -> None:
        self.store = self.random.choice(self.stores)

    def commit(self, name: str | None = None) -> None:
        self._turn()
        chance = self.random.random()
        if chance < 0.05:
            self._reopen()
        elif chance < 0.08:
            self._lose_derived()
        super().commit(name)

    def fork(self) -> None:
        self._turn()
        super().fork()

    def rewind(self) -> None:
        self._turn()
        super().rewind()

    def clean(self) -> None:
        self._turn()
        super().clean()

    def _reopen(self) -> None:
        index = self.random.randrange(2)
        self.stores[index].close()
        self.stores[index] = self.store = opened(f"file://{self.folder}", self.clock)

    def _lose_derived(self) -> None:
        files = sorted(self.folder.rglob("folds-*"))
        if files and self.random.random() < 0.2:
            self.random.choice(files).unlink()
        else:
            for pattern in self.random.choice(_DERIVED):
                for path in self.folder.rglob(pattern):
                    path.unlink()
        self.close()
        self.stores = [opened(f"file://{self.folder}", self.clock) for _ in range(2)]
        self._turn()

    def close(self) -> None:
        for store in self.stores:
            store.close()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "GROUP_MAX", 12)
    monkeypatch.setattr(prune, "_KEYFRAME_EVERY", 3)
    monkeypatch.setattr(line_files, "SEGMENT_BYTES", 1500)
    for module in (pack_files, pack_files):
        monkeypatch.setattr(module, "VOLUME_PACKS", 3)


@pytest.mark.parametrize("part", range(4))
def test_what_must_stay_stays_in_files(part: int, seed: int, tmp_path: Path) -> None:
    for number in range(3):
        clock = [1_800_000_000 * 1_000_000]
        which = seed * 1000 + part * 10 + number
        print(f"world {which}")
        world = FileWorld(tmp_path / str(number), clock, which)
        try:
            world.run(150)
        finally:
            world.close()
        # Counted, not looked for in the journals: whatever was pruned may have been deleted since.
        assert world.removed, "nothing was ever pruned"
        journals = [path.read_bytes() for path in world.folder.rglob("journal-*.jsonl")]
        _check_nothing_is_left_over(world.folder, journals)


def _check_nothing_is_left_over(folder: Path, journals: list[bytes]) -> None:
    """Files of items that nobody names would be content that was to go."""
    for path in folder.rglob("items-*.jsonl"):
        assert any(f'"items":"{path.name}"'.encode() in text for text in journals), path
    assert not list(folder.rglob(".new-journal*"))


def test_the_stores_are_of_use(tmp_path: Path) -> None:
    """What the other tests rely on: both stores see what either did."""
    clock = [1_800_000_000 * 1_000_000]
    world = FileWorld(tmp_path / "store", clock, 1)
    world.create()
    seen: list[Store] = world.stores
    assert [info.name for info in seen[0].threads()] == [info.name for info in seen[1].threads()] != []
    world.close()
