"""The readable files beside a store of JSON."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Config, Personal, StorageBackend, StorageWriteError, WorkingState
from everthread.recovery import SelfHealer
from everthread.working.home import View, write_view


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(storage_backend=StorageBackend.JSON, storage_path=tmp_path)


def view_of(config: Config, state: WorkingState) -> Path:
    return Path(str(config.storage_path)) / f"{state.id}.json"


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_view_shows_the_state(config: Config) -> None:
    state = WorkingState(config)
    state.add_todo("é and \N{SNOWMAN}")
    state.set_context("odd", {1: (b"x", float("nan")), "set": {3, 1, 2}, "big": 2**100})
    state.set_context("who", Personal("ann", "0171"))
    state.save()
    text = view_of(config, state).read_text(encoding="utf-8")
    assert "é and \N{SNOWMAN}" in text, "readable"
    assert "0171" not in text
    view = json.loads(text)
    assert view["context"]["odd"]["value"] == {"1": ["b'x'", "nan"], "set": [1, 2, 3], "big": 2**100}
    assert view["everthread"]["seq"] == 1
    assert view_of(config, state).stat().st_mode & 0o777 == 0o600
    assert [name for name in os.listdir(str(config.storage_path)) if name.endswith(".tmp")] == []


def test_a_view_follows_saves_rewinds_forks_and_merges(config: Config) -> None:
    state = WorkingState(config)
    todo = state.add_todo("x")
    state.save()
    state.complete_todo(todo)
    state.save()
    assert read(view_of(config, state))["todos"][0]["status"] == "completed"
    state.rewind(1)
    assert read(view_of(config, state))["todos"][0]["status"] == "pending"
    fork = state.fork()
    fork.add_todo("y")
    fork.save()
    assert len(read(view_of(config, fork))["todos"]) == 2
    state.merge(fork)
    assert len(read(view_of(config, state))["todos"]) == 2


def test_a_diff_of_views_is_small(config: Config) -> None:
    state = WorkingState(config)
    for number in range(50):
        state.add_todo(f"todo {number}")
    state.save()
    before = view_of(config, state).read_text().splitlines()
    state.complete_todo(state.todos[20])
    state.save()
    after = view_of(config, state).read_text().splitlines()
    assert len(set(after) - set(before)) <= 6


def test_an_edited_view_is_moved_aside_and_never_believed(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    state = WorkingState(config)
    state.add_todo("truth")
    id = state.save()
    path = view_of(config, state)
    edited = read(path)
    edited["todos"][0]["content"] = "edited"
    path.write_text(json.dumps(edited))
    assert WorkingState.load(id, config).todos[0].content == "truth"
    with caplog.at_level(logging.WARNING):
        state.add_todo("more")
        state.save()
    assert "edited by hand" in caplog.text
    assert [todo["content"] for todo in read(path)["todos"]] == ["truth", "more"]
    assert read(path.with_name(f"{path.name}.edited-1"))["todos"][0]["content"] == "edited"
    path.write_text("{ half a fi")
    state.add_todo("again")
    state.save()
    assert len(read(path)["todos"]) == 3
    assert path.with_name(f"{path.name}.edited-2").read_text() == "{ half a fi"


def test_white_space_is_no_edit(config: Config, tmp_path: Path) -> None:
    state = WorkingState(config)
    state.add_todo("x")
    state.save()
    path = view_of(config, state)
    path.write_text(json.dumps(read(path), sort_keys=True))
    state.add_todo("y")
    state.save()
    assert sorted(each.name for each in tmp_path.iterdir()) == [path.name, "history"]


def test_a_view_that_was_not_written_is_mended(config: Config) -> None:
    """As if the process had died between the save and its view."""
    state = WorkingState(config)
    state.add_todo("x")
    id = state.save()
    url = f"file://{config.storage_path}/history"
    with everthread.open(url) as store:
        other = WorkingState.load(id, store=store)
        other.add_todo("y")
        other.save()
    assert len(read(view_of(config, state))["todos"]) == 1
    WorkingState.load(id, config)
    assert len(read(view_of(config, state))["todos"]) == 2
    view_of(config, state).unlink()
    WorkingState.resume(config=config)
    assert len(read(view_of(config, state))["todos"]) == 2


def test_an_older_version_never_replaces_a_newer_view(config: Config, tmp_path: Path) -> None:
    state = WorkingState(config)
    state.add_todo("x")
    state.save()
    old, snapshot = state.version, state.snapshot()
    assert old is not None
    state.add_todo("y")
    state.save()
    write_view(str(tmp_path), state.id, snapshot, old)
    assert len(read(view_of(config, state))["todos"]) == 2


def test_a_view_that_cannot_be_written_does_not_lose_the_save(config: Config, tmp_path: Path) -> None:
    state = WorkingState(config)
    state.add_todo("x")
    id = state.save()
    # A folder stands where the new file is written first: also root can't write over it.
    blocker = tmp_path / f"{id}.json.{os.getpid()}.tmp"
    blocker.mkdir()
    state.add_todo("y")
    with pytest.raises(StorageWriteError, match="the state is saved"):
        state.save()
    assert state.status == "LOADED"
    assert len(WorkingState.load(id, config).todos) == 2
    blocker.rmdir()
    state.save()
    assert len(read(view_of(config, state))["todos"]) == 2, "the next save writes it, though nothing changed"


def test_views_heal(config: Config) -> None:
    state = WorkingState(config)
    state.add_todo("x")
    state.set_context("k", [1])
    state.save()
    view = read(view_of(config, state))
    healed = SelfHealer.recover(view)
    assert healed.recovery.complete
    assert healed.recovery.source_id == state.id
    assert "everthread" not in healed.snapshot()
    assert (healed.todos, healed.get_context("k")) == (state.todos, [1])


def test_without_a_folder_there_is_no_view() -> None:
    view = View(None)
    view.due = True
    view.write("x", lambda: pytest.fail("not asked"), None)
    assert not view.due


def test_two_processes_leave_the_newest_view(config: Config, tmp_path: Path) -> None:
    program = """
import sys
from everthread import Config, WorkingState
config = Config(storage_backend="json", storage_path=sys.argv[1], auto_save=True)
state = WorkingState(config, thread="shared")
for step in range(15):
    state.add_todo(f"{sys.argv[2]}.{step}")
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(everthread.__file__).parents[1])}
    command = [sys.executable, "-c", program, str(tmp_path)]
    workers = [subprocess.Popen([*command, name], env=environment) for name in "ab"]
    assert [worker.wait() for worker in workers] == [0, 0]
    state = WorkingState(config, thread="shared")
    assert len(state.todos) == 30
    assert len(read(view_of(config, state))["todos"]) == 30
