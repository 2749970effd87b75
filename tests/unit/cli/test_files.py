"""``everthread files``: what a sandbox or a working folder held at any version."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.errors import StateCorruptedError
from everthread.sandboxes import Files, workspace
from tests.unit.cli.calling import Program

#: The command of the same name hides the module.
cli_diff = import_module("everthread.cli.diff")


def test_the_files_of_a_sandbox_at_any_version(
    program: Program, store: everthread.Store, tmp_path: Path
) -> None:
    files = Files(store.thread("box"))
    files.write("src/main.py", "one\n", mode=0o755)
    files.link("link", b"\xff")
    files.save()
    files.write("src/main.py", "two\n")
    files.write(b"\xff", "odd")
    files.save()
    listed = program("files", "list", "box").out
    assert listed.splitlines() == [
        "-rw-r--r--           3  \\xff",
        "lrwxrwxrwx           0  link -> \\xff",
        "-rwxr-xr-x           4  src/main.py",
    ]
    found = program.json("files", "list", "box", "src")
    assert [each["path"] for each in found["files"]] == ["src/main.py"]
    assert program("files", "cat", "box", "src/main.py").out == "two\n"
    assert program("files", "cat", "box", "src/main.py", "--at", "head~1").out == "one\n"
    assert program.json("files", "diff", "box")["changes"][0]["path"] == "\\xff"
    assert "changed  src/main.py" in program("files", "diff", "box", "--at", "1").out
    target = tmp_path / "then"
    assert program.json("files", "restore", "box", str(target), "--at", "1")["written"] == 3
    assert (target / "src" / "main.py").read_text() == "one\n"
    assert "isn't an empty folder" in program("files", "restore", "box", str(target), code=2).err
    assert "no file 'absent'" in program("files", "cat", "box", "absent", code=3).err


def test_the_files_of_a_working_folder(program: Program, store: everthread.Store, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a").write_text("one")
    thread = store.thread("bot")
    thread.commit()
    assert "holds no files" in program("files", "list", "bot", code=3).err
    thread.attach_workspace(folder)
    (folder / "a").write_text("two")
    thread.state["n"] = 1
    thread.commit()
    assert program("files", "cat", "bot", "a").out == "two"
    assert program("files", "cat", "bot", "a", "--at", "head~1").out == "one"
    # What the document has under this name is none of the folder's.
    thread.state["files"] = ["a list of the agent's own"]
    thread.commit()
    assert program("files", "cat", "bot", "a").out == "two"
    # Nothing was recorded at the first version: everything has come since.
    assert program("files", "diff", "bot", "--at", "1").out == "added    a\n"


def test_what_is_sealed_is_shown_to_who_asks_for_it(
    program: Program, store: everthread.Store, tmp_path: Path
) -> None:
    files = Files(store.thread("box"), subject="ann")
    files.write("cv", "Ann")
    files.save()
    assert "--reveal" in program("files", "cat", "box", "cv", code=2).err
    assert "--reveal" in program("files", "restore", "box", str(tmp_path / "x"), code=2).err
    assert program("files", "cat", "box", "cv", "--reveal").out == "Ann"
    assert "(personal)" in program("files", "list", "box").out


def test_rewind_says_that_a_working_folder_stays(
    program: Program, store: everthread.Store, tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    thread = store.thread("coder")
    thread.attach_workspace(folder)
    for number in range(2):
        (folder / "a.py").write_text(f"a = {number}\n")
        thread.state["n"] = number
        thread.commit()
    first = next(version.seq for version in thread.history() if thread.at(version).state.get("n") == 0)
    told = program("rewind", "coder", str(first), "--yes").err
    assert "working folder stays as it is" in told
    assert (folder / "a.py").read_text() == "a = 1\n"
    store.thread("plain").commit()
    store.thread("plain").commit(label="second")
    assert "working folder" not in program("rewind", "plain", "1", "--yes").err


def test_log_and_diff_tell_of_files(program: Program, store: everthread.Store, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("changed", "gone", "same"):
        (folder / name).write_text(name)
    thread = store.thread("coder")
    thread.attach_workspace(folder)
    first = thread.head
    assert first is not None
    (folder / "changed").write_text("other")
    (folder / "gone").unlink()
    (folder / "new").write_text("new")
    thread.commit()
    (folder / "same").write_text("by hand")
    thread.messages.append({"role": "user", "content": "x"})
    thread.commit()
    (folder / "same").write_text("by hand again")
    thread.rewind(first, files=True)
    _, saved, both, alone, *_ = program("log", "coder").out.splitlines()
    assert alone.endswith("files +1 ~1 \u22121")
    assert both.endswith("messages +1; files ~1")
    assert saved.endswith(f"files before rewind to {first.seq}  files ~1")
    versions = program.json("log", "coder", "--changes")["versions"]
    assert [each["files"] for each in versions] == [
        {"added": 1, "changed": 2, "removed": 1},
        {"added": 0, "changed": 1, "removed": 0},
        {"added": 0, "changed": 1, "removed": 0},
        {"added": 1, "changed": 1, "removed": 1},
        {"added": 3, "changed": 0, "removed": 0},
        # Nothing was recorded by then.
        None,
    ]
    # As with the summary: what each version changed is told to programs that ask for it.
    assert {each["files"] for each in program.json("log", "coder")["versions"]} == {None}
    told = program("diff", "coder", str(first.seq), str(first.seq + 1)).out.splitlines()
    assert told[0].endswith("files +1 ~1 \u22121")
    assert told[1:] == ["+ file new", "- file gone", "~ file changed"]
    found = program.json("diff", "coder", str(first.seq), str(first.seq + 1))
    assert (found["summary"], found["files"]) == (
        "files +1 ~1 \u22121",
        {"added": 1, "changed": 1, "removed": 1},
    )


@pytest.mark.parametrize("place", [(workspace, "compare_versions"), (cli_diff, "recorded_at")])
def test_files_that_cant_be_read_dont_hide_what_else_changed(
    program: Program,
    store: everthread.Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: tuple[Any, str],
) -> None:
    thread = store.thread("coder")
    (tmp_path / "work").mkdir()
    thread.attach_workspace(tmp_path / "work")
    (tmp_path / "work" / "a").write_text("a")
    thread.state["n"] = 1
    thread.commit()

    def damaged(*_: object) -> None:
        raise StateCorruptedError("a record is damaged")

    monkeypatch.setattr(*place, damaged)
    assert "+1 in n" in program("log", "coder").out
    told = program("diff", "coder")
    assert "+1 in n" in told.out
    assert "can't be compared: a record is damaged" in told.err
    assert program.json("diff", "coder")["files"] is None


def test_a_restore_counts_what_it_wrote(program: Program, store: everthread.Store, tmp_path: Path) -> None:
    files = Files(store.thread("box"))
    files.write("one", "1")
    files.save()
    files.write("sub/two", "2")
    files.save()
    files.link("latest", "one")
    files.write(b"ann", everthread.Personal("ann", "hers"))
    files.save()
    for at, words in (
        ("1", "1 file of"),
        ("2", "2 files and 1 folder of"),
        ("3", "3 files, 1 link and 1 fo"),
    ):
        told = program("files", "restore", "box", str(tmp_path / at), "--at", at, "--reveal").err
        assert told.startswith(words), told
    store.erase("ann")
    told = program("files", "restore", "box", str(tmp_path / "erased"), "--reveal").err
    assert told.startswith("2 files, 1 link and 1 folder of")
    assert "ann belonged to somebody who was erased" in told


def test_what_files_says_to_a_slip(program: Program, store: everthread.Store, tmp_path: Path) -> None:
    files = Files(store.thread("box"))
    files.write("one", "1")
    files.save()
    assert "there is no folder 'absent'" in program("files", "list", "box", "absent", code=3).err
    assert "'one' is no folder" in program("files", "list", "box", "one", code=2).err
    (tmp_path / "plain").write_text("a file")
    told = program("files", "restore", "box", str(tmp_path / "plain" / "below"), code=2).err
    assert "there is a file in the place of a folder above it" in told
    # No line of the overview is cut off.
    assert not any(row.endswith("...") for row in program("files", "--help").out.splitlines()[1:])
