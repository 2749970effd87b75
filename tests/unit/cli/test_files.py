"""``everthread files``: what a sandbox or a working folder held at any version."""

from __future__ import annotations

from pathlib import Path

import everthread
from everthread.sandboxes import Files
from tests.unit.cli.calling import Program


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
