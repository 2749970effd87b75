"""B5: files that a person reads, git compares, and two processes write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import everthread
from tests.unit.cli.calling import Program

WRITER = """
import sys, everthread
with everthread.open(sys.argv[1], durability="process") as store:
    thread = store.thread("shared")
    for number in range(40):
        thread.update(lambda draft: draft.state.update({f"{sys.argv[2]}{number}": number}))
"""


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def test_B5_git_diff_shows_the_change_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    url = f"file://{folder}"
    with everthread.open(url) as store:
        thread = store.thread("invoice-bot")
        thread.state["todos"] = [{"text": "reconcile March", "done": False}]
        thread.commit()
    _git(folder, "init", "-q")
    _git(folder, "add", "-A")
    _git(folder, "commit", "-q", "-m", "before")
    with everthread.open(url) as store:
        thread = store.thread("invoice-bot")
        thread.state["todos"][0]["done"] = True
        thread.commit()
    journal, view = sorted(_git(folder, "diff", "--name-only").split())
    assert (Path(journal).suffix, Path(view).name) == (".jsonl", "view.json")
    changed = [
        line for line in _git(folder, "diff", "-U0", "--", journal).splitlines()[4:] if line[0] in "+-"
    ]
    (added,) = changed
    assert json.loads(added[1:])["document"] == [["set", ["todos", 0, "done"], True]]
    assert '+        "done": true' in _git(folder, "diff", "--", view)


def test_B5_nobody_else_reads_it_and_writing_leaves_no_half_file(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with everthread.open(f"file://{folder}") as store:
        for number in range(20):
            thread = store.thread(f"../../{number}'; drop")
            thread.state["n"] = number
            thread.commit()
    for place, folders, files in os.walk(folder):
        assert not os.stat(place).st_mode & 0o077, place
        for name in files:
            path = Path(place, name)
            assert not path.stat().st_mode & 0o077, path
            assert not name.startswith(".new-"), path
        assert not {".."} & set(folders)
    assert {entry.name for entry in tmp_path.iterdir()} == {"store"}


def test_B5_two_processes_write_in_turn(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    running = [subprocess.Popen([sys.executable, "-c", WRITER, url, letter]) for letter in "ab"]
    assert [process.wait(60) for process in running] == [0, 0]
    with everthread.open(url) as store:
        found = store.thread("shared").state.plain()
        assert found == {f"{letter}{number}": number for letter in "ab" for number in range(40)}
        assert store.verify()


def test_B5_yaml_and_tsv_are_output_formats(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    with everthread.open(url) as store:
        thread = store.thread("bot")
        thread.state["phase"] = "reconcile\tMarch"
        thread.commit(label="first")
    program = Program(url, tmp_path)
    shown = program("show", "bot", "--format", "yaml").out
    assert "schema_version: 1\n" in shown
    assert 'phase: "reconcile\\tMarch"\n' in shown
    headings, row = program("status", "--format", "tsv").out.splitlines()
    assert dict(zip(headings.split("\t"), row.split("\t"), strict=True))["name"] == "bot"
