"""A session killed with SIGKILL at every store operation, before and after it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.session_script import (
    FORK,
    KEYS,
    Script,
    World,
    check,
    open_store,
    run_child,
)
from tests.crash.workload import memory_directory

EVERY = [1] * len(KEYS)
#: The moments are dealt out to so many shares; odd, so that each dies before operations and after them.
SHARES = 3
STORES = ("store.db", "folder")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system without a disk, if there is one: hundreds of stores are made here."""
    with tempfile.TemporaryDirectory(dir=memory_directory() or tmp_path) as place:
        yield Path(place)


def _fresh(place: Path, template: Path, number: int) -> tuple[Path, World]:
    folder = place / str(number)
    folder.mkdir()
    path = folder / template.name
    if template.is_dir():
        shutil.copytree(template, path)
    else:
        shutil.copyfile(template, path)
    return path, World(folder / "world")


@pytest.mark.parametrize(("share", "name"), list(enumerate(STORES)))
def test_killed_at_store_operations(place: Path, share: int, name: str) -> None:
    """At a third of them; ``python -m tests.torture.moments`` takes every one."""
    kill_at_moments(place, share, name)


def kill_at_moments(place: Path, share: int, name: str) -> int:
    """Kill a session at each moment of a share, and let another one go on; how many that were."""
    template = place / name
    open_store(template)[0].close()
    path, world = _fresh(place, template, 0)
    killed, told = run_child(path, world, None)
    assert not killed
    moments = [int(moment) for moment in told[-1].split()]
    assert len(moments) > 180
    seen = {"done": 0, "in_doubt": 0, "not done": 0}
    for moment in moments[share::SHARES]:
        path, world = _fresh(place, template, moment + 1)
        killed, told = run_child(path, world, moment)
        assert killed, f"moment {moment} of {len(moments)}"
        store, _ = open_store(path)
        try:
            for state in check(store, world, told):
                seen[state] += 1
            # The next run finds out what is in doubt, does the rest, and nothing twice.
            told = []
            Script(store, world, told.append).run()
            check(store, world, told)
            assert [world.counts()[key] for key in KEYS] == EVERY
            with store.session(FORK) as session:
                session.rewind(1)
                for number, key in enumerate(KEYS, 1):
                    session.call(key, world.do, key, number)
            assert [world.counts()[key] for key in KEYS] == EVERY
        except BaseException as error:
            error.add_note(f"moment {moment} of {len(moments)}, acknowledged: {told}")
            raise
        finally:
            store.close()
        shutil.rmtree(path.parent)
    # All three were met, or this has tested nothing.
    assert all(seen.values()), seen
    return len(moments[share::SHARES])
