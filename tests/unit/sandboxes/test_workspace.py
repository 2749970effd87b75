"""A person's working folder beside a thread: recorded, brought back, never overrun."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import everthread
from everthread import Retention, Store
from everthread.errors import InvalidStateError, InvalidValueError, UsageError, VersionNotFoundError
from everthread.sandboxes.directory import RESTORING, restore_directory
from everthread.sandboxes.workspace import files_at, files_beside
from tests.kit.trees import held


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with everthread.open(f"sqlite:///{tmp_path}/s.db", durability="process") as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    (made / "main.py").write_text("one\n")
    return made


def _texts(folder: Path) -> dict[str, str]:
    return {
        os.fsdecode(path): data.decode() for path, (kind, _, data) in held(folder).items() if kind == "file"
    }


def test_code_and_conversation_go_back_together_and_forward_again(store: Store, folder: Path) -> None:
    thread = store.thread("t")
    thread.attach_workspace(folder)
    thread.state["turn"] = 1
    first = thread.commit()
    (folder / "main.py").write_text("two\n")
    (folder / "sub").mkdir()
    (folder / "sub" / "new.py").write_text("new\n")
    thread.state["turn"] = 2
    second = thread.commit()
    # Not committed by anybody: it is saved before anything is put in its place.
    (folder / "main.py").write_text("three\n")
    thread.rewind(first, files=True)
    assert thread.state["turn"] == 1
    assert _texts(folder) == {"main.py": "one\n"}
    assert not (folder / "sub").exists()
    unsaved = next(v for v in thread.history() if v.kind == "rewind").parent
    thread.rewind(unsaved or "", files=True)
    assert _texts(folder) == {"main.py": "three\n", "sub/new.py": "new\n"}
    thread.rewind(second, files=True)
    assert thread.state["turn"] == 2
    assert _texts(folder) == {"main.py": "two\n", "sub/new.py": "new\n"}
    assert not (folder / RESTORING).exists()
    # Nothing changed since, so nothing is recorded.
    assert thread.commit() == thread.head
    assert store.verify()


def test_a_diff_tells_of_files(store: Store, folder: Path) -> None:
    thread = store.thread("t")
    thread.attach_workspace(folder)
    first = thread.head
    assert first is not None
    (folder / "main.py").write_text("two\n")
    (folder / "b").write_text("b")
    thread.state["x"] = 1
    thread.commit()
    found = thread.diff(first, files=True)
    assert [each.path for each in found.files.added] == ["b"]
    assert [old.path for old, _ in found.files.changed] == ["main.py"]
    assert found.summary() == "+1 in x; files +1 ~1"
    assert thread.diff(first).files is None
    assert not thread.diff(thread.head, files=True)


def test_a_fork_has_a_folder_of_its_own(store: Store, folder: Path, tmp_path: Path) -> None:
    thread = store.thread("t")
    thread.attach_workspace(folder)
    first = thread.head
    (folder / "main.py").write_text("two\n")
    thread.state["x"] = 1
    thread.commit()
    fork = thread.fork("u", at=first, files=tmp_path / "fork")
    assert _texts(tmp_path / "fork") == {"main.py": "one\n"}
    (tmp_path / "fork" / "main.py").write_text("fork\n")
    fork.state["y"] = 1
    fork.commit()
    assert _texts(folder) == {"main.py": "two\n"}
    fork.rewind(first or 1, files=True)
    assert _texts(tmp_path / "fork") == {"main.py": "one\n"}
    with pytest.raises(InvalidValueError, match="isn't empty"):
        thread.fork("v", files=folder)
    assert [info.name for info in store.threads()] == ["t", "u"]
    # A fork has its files also when the thread it came from is gone.
    thread.delete()
    store.gc()
    assert files_beside(store.thread("u")).exists("main.py")
    store.thread("u").delete()
    assert store.verify()


def test_what_is_ignored_isnt_recorded_and_never_touched(store: Store, folder: Path) -> None:
    (folder / ".gitignore").write_text("*.log\nbuild/\n!keep.log\n/top.txt\n")
    (folder / "sub").mkdir()
    (folder / "sub" / ".gitignore").write_text("local\n")
    for name in ("a.log", "keep.log", "top.txt", "sub/top.txt", "sub/local", "sub/b.log"):
        (folder / name).write_text(name)
    (folder / "build").mkdir()
    (folder / "build" / "out").write_text("out")
    thread = store.thread("t")
    thread.attach_workspace(folder)
    recorded = {each.path for each in files_beside(store.thread("t")).list() if each.kind == "file"}
    assert recorded == {"main.py", ".gitignore", "keep.log", "sub/.gitignore", "sub/top.txt"}
    first = thread.head
    (folder / "a.log").write_text("more")
    (folder / "main.py").unlink()
    (folder / "sub" / "top.txt").unlink()
    thread.commit()
    before = _texts(folder)
    thread.rewind(first or 1, files=True)
    assert _texts(folder) == {**before, "main.py": "one\n", "sub/top.txt": "sub/top.txt"}


def test_secrets_are_left_out_and_named(store: Store, folder: Path) -> None:
    secret = "sk-" + "a1B2" * 10
    (folder / ".env").write_text(f"KEY={secret}\n")
    thread = store.thread("t")
    workspace = thread.attach_workspace(folder)
    assert workspace.last.left_out == {".env": "it seems to hold a secret (api key)"}
    assert list(store.scan(secret)) == []
    first = thread.head
    (folder / "main.py").write_text("two\n")
    thread.commit()
    thread.rewind(first or 1, files=True)
    assert (folder / ".env").read_text() == f"KEY={secret}\n"
    # One that comes into a recorded file takes the file out from then on.
    (folder / "main.py").write_text(secret)
    thread.commit()
    assert set(workspace.last.left_out) == {".env", "main.py"}
    assert list(store.scan(secret)) == []


def test_the_users_repository_and_index_are_untouched(store: Store, folder: Path) -> None:
    def git(*arguments: str) -> str:
        options = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", *options, *arguments], cwd=folder, check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    (folder / "staged").write_text("staged")
    git("add", "staged")
    thread = store.thread("t")
    thread.attach_workspace(folder)
    first = thread.head
    before = held(folder / ".git")
    (folder / "main.py").write_text("two\n")
    thread.commit()
    thread.rewind(first or 1, files=True)
    assert held(folder / ".git") == before
    assert git("status", "--porcelain") == "A  staged\n"


def test_a_file_that_isnt_recorded_is_never_overwritten(store: Store, folder: Path) -> None:
    thread = store.thread("t")
    workspace = thread.attach_workspace(folder)
    first = thread.head
    (folder / "main.py").write_text("two\n")
    (folder / ".gitignore").write_text("main.py\n")
    thread.commit()
    (folder / "main.py").write_text("mine alone\n")
    thread.rewind(first or 1, files=True)
    assert (folder / "main.py").read_text() == "mine alone\n"
    assert workspace.restored is not None
    assert set(workspace.restored.kept) == {"main.py"}


def test_a_store_inside_the_folder_isnt_recorded(folder: Path) -> None:
    with everthread.open(folder / "agent.db") as store:
        thread = store.thread("t")
        thread.attach_workspace(folder)
        assert [each.path for each in files_beside(store.thread("t")).list()] == ["main.py"]
        assert thread.commit() == thread.head


def test_a_handle_without_a_folder_says_so(store: Store, folder: Path, tmp_path: Path) -> None:
    thread = store.thread("t")
    thread.state["x"] = 1
    first = thread.commit()
    with pytest.raises(UsageError, match="attach_workspace"):
        thread.rewind(first, files=True)
    with pytest.raises(InvalidValueError, match="is no folder"):
        thread.attach_workspace(tmp_path / "absent")
    thread.attach_workspace(folder)
    with pytest.raises(VersionNotFoundError, match="no files were recorded"):
        thread.rewind(first, files=True)


def test_a_restore_that_was_cut_short_is_told_and_undone_or_finished(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        (folder / f"f{number}").write_text("one")
    thread = store.thread("t")
    workspace = thread.attach_workspace(folder)
    first = thread.head
    for number in range(5):
        (folder / f"f{number}").write_text("two")
    thread.commit()
    changed = held(folder)

    def cut() -> None:
        from everthread.sandboxes.disk import Folder

        real, calls = Folder.rename, iter(range(100))

        def rename(self: Folder, old: str, new: str) -> None:
            if next(calls) == 2:
                raise KeyboardInterrupt
            real(self, old, new)

        monkeypatch.setattr(Folder, "rename", rename)
        with pytest.raises(KeyboardInterrupt):
            thread.rewind(first or 1, files=True)
        monkeypatch.undo()

    cut()
    again = store.thread("t").attach_workspace(folder)
    assert "cut short" in str(again.interrupted())
    thread.state["x"] = 1
    with pytest.raises(InvalidStateError, match="cut short"):
        thread.commit()
    again.undo()
    assert held(folder) == changed
    assert again.interrupted() is None
    thread.commit()
    cut()
    thread.rewind(first or 1, files=True)
    assert {text for name, text in _texts(folder).items() if name.startswith("f")} == {"one"}
    assert workspace.interrupted() is None


def test_retention_keeps_the_files_of_the_versions_it_keeps(store: Store, folder: Path) -> None:
    thread = store.thread("t")
    thread.attach_workspace(folder)
    kept = {}
    for turn in range(12):
        (folder / "main.py").write_text(f"turn {turn}\n")
        thread.state["turn"] = turn
        version = thread.commit(label="kept" if turn == 3 else None)
        kept[turn] = version
    store.gc(Retention(keep_last=2))
    thread = store.thread("t")
    thread.attach_workspace(folder)
    for turn in (3, 10, 11):
        thread.rewind(kept[turn], files=True)
        assert (folder / "main.py").read_text() == f"turn {turn}\n"
    assert store.verify()


def test_files_of_a_folder_travel_with_their_thread(store: Store, folder: Path, tmp_path: Path) -> None:
    thread = store.thread("t")
    thread.attach_workspace(folder)
    store.export(tmp_path / "x.archive")
    with everthread.open("memory:") as other:
        other.import_from(tmp_path / "x.archive")
        assert files_beside(other.thread("t")).read("main.py") == b"one\n"
        other.thread("t").attach_workspace(folder)
        places = list(other.scan("one"))
        assert [(place.thread, place.beside) for place in places] == [("t", "files")]


def test_the_certificate_of_an_erasure_names_the_folders_it_cant_reach(store: Store, folder: Path) -> None:
    store.users.set("ann", "email", "a@b")
    store.thread("t").attach_workspace(folder)
    report = store.erase("ann")
    assert any(str(folder) in words for words in report.unreached)


def test_a_step_records_the_folder_with_its_result(store: Store, folder: Path) -> None:
    thread = store.thread("t")
    thread.attach_workspace(folder)
    with thread.step("one") as step:
        (folder / "main.py").write_text("by the step\n")
        step.result = 1
    first = step.version
    with thread.step("two") as step:
        (folder / "main.py").write_text("by the next\n")
        step.result = 2
    thread.rewind(first or 1, files=True)
    assert (folder / "main.py").read_text() == "by the step\n"
    assert thread.step_result("two") is None


def test_a_session_records_the_folder_when_a_turn_ends(store: Store, folder: Path) -> None:
    with store.session("s") as session:
        session.thread.attach_workspace(folder, each="turn")
        with session.turn():
            session.messages.append({"role": "user", "content": "x"})
            (folder / "main.py").write_text("by the turn\n")
            session.work.add_todo("a todo")
            assert files_beside(store.thread("s")).read("main.py") == b"one\n"
        assert files_beside(store.thread("s")).read("main.py") == b"by the turn\n"


def test_what_a_rewind_of_files_saves_first_is_a_version_that_says_so(store: Store, folder: Path) -> None:
    thread = store.thread("t")
    thread.attach_workspace(folder)
    first = thread.head
    assert first is not None
    (folder / "main.py").write_text("by hand\n")
    (folder / "new").write_text("new\n")
    thread.rewind(first, files=True)
    back, saved = thread.history(limit=2)
    assert (back.kind, saved.label) == ("rewind", f"files before rewind to {first.seq}")
    found = thread.diff(first, saved, files=True)
    assert (found.summary(), found.files.counts) == (
        "files +1 ~1",
        {"added": 1, "changed": 1, "removed": 0},
    )
    assert found.plain()["files"] == found.files.counts
    assert thread.diff(first, saved).plain()["files"] is None
    thread.rewind(saved, files=True)
    assert _texts(folder) == {"main.py": "by hand\n", "new": "new\n"}
    # Nothing was changed by hand before that one: nothing had to be saved.
    assert [each.label for each in thread.history()] == [None, None, saved.label, None, None]


def test_a_diff_compares_the_files_of_two_threads(store: Store, folder: Path, tmp_path: Path) -> None:
    thread = store.thread("t")
    thread.attach_workspace(folder)
    fork = thread.fork("u", files=tmp_path / "fork")
    (tmp_path / "fork" / "forked").write_text("fork\n")
    (folder / "main.py").unlink()
    fork.commit()
    thread.commit()
    assert fork.head is not None
    found = thread.diff(thread.head, fork.at(fork.head), files=True)
    assert [each.path for each in found.files.added] == ["forked", "main.py"]


def test_the_last_save_is_told_from_the_files_that_the_thread_knows(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    thread = store.thread("t")
    thread.attach_workspace(folder)
    first = thread.head
    assert first is not None
    for number in range(3):
        (folder / f"f{number}").write_text(str(number))
    thread.commit()
    # The thread goes back alone, and its files are restored elsewhere: there nothing has changed.
    thread.rewind(first)
    restore_directory(files_at(thread), tmp_path / "as-it-was")
    before = thread.head
    again = store.thread("t")
    workspace = again.attach_workspace(tmp_path / "as-it-was")
    assert (workspace.last.added, workspace.last.changed, workspace.last.removed) == (0, 0, 0)
    assert again.head == before
    # In the folder that didn't go along three files are more than the thread knows.
    workspace = again.attach_workspace(folder)
    assert (workspace.last.added, workspace.last.changed, workspace.last.removed) == (3, 0, 0)
    assert again.diff(before, files=True).summary() == "files +3"
    assert store.verify()


def test_a_session_takes_its_folder_back(store: Store, folder: Path) -> None:
    with store.session("s") as session:
        session.thread.attach_workspace(folder, each="turn")
        with session.turn():
            (folder / "main.py").write_text("by the turn\n")
        first = session.thread.head
        assert first is not None
        session.checkpoint("one turn")
        with session.turn():
            session.messages.append({"role": "user", "content": "x"})
            (folder / "main.py").write_text("by another turn\n")
        (folder / "main.py").write_text("by hand\n")
        session.state["uncommitted"] = True
        session.rewind(first, files=True)
        assert (_texts(folder), len(session.messages)) == ({"main.py": "by the turn\n"}, 0)
        saved = next(v for v in session.thread.history() if v.label == f"files before rewind to {first.seq}")
        session.rewind(saved, files=True)
        assert (_texts(folder), len(session.messages)) == ({"main.py": "by hand\n"}, 1)
        assert session.state["uncommitted"] is True
        session.rewind_to_checkpoint("one turn", files=True)
        assert (_texts(folder), len(session.messages)) == ({"main.py": "by the turn\n"}, 0)
    assert store.verify()


def test_a_turn_takes_back_what_it_did_to_files_and_nothing_else(store: Store, folder: Path) -> None:
    with store.session("s") as session:
        session.thread.attach_workspace(folder, each="turn")
        # Between turns, by a person: no turn takes that back.
        (folder / "main.py").write_text("by hand\n")
        with session.turn() as turn:
            turn.messages.append({"role": "user", "content": "x"})
            (folder / "main.py").write_text("by the turn\n")
            (folder / "new").write_text("new\n")
            turn.rewind(files=True)
            assert turn.rewound
        assert (_texts(folder), len(session.messages)) == ({"main.py": "by hand\n"}, 0)
        (saved,) = (v for v in session.thread.history() if (v.label or "").startswith("files before rewind"))
        session.rewind(saved, files=True)
        assert _texts(folder) == {"main.py": "by the turn\n", "new": "new\n"}
        # A turn that did nothing but change files.
        with session.turn() as turn:
            (folder / "new").unlink()
            turn.rewind(files=True)
        assert _texts(folder) == {"main.py": "by the turn\n", "new": "new\n"}
    assert store.verify()


def test_a_session_without_a_folder_says_so_and_changes_nothing(store: Store, folder: Path) -> None:
    with store.session("s") as session:
        first = session.thread.head
        assert first is not None
        session.state["uncommitted"] = True
        for files in (lambda: session.rewind(first, files=True), lambda: session.rewind(1, files=True)):
            with pytest.raises(UsageError, match="attach_workspace"):
                files()
        assert session.thread.dirty
        with session.turn() as turn:
            with pytest.raises(UsageError, match="attach_workspace"):
                turn.rewind(files=True)
            # Attached after the turn began: what the folder was then, nobody knows.
            session.thread.attach_workspace(folder, each="turn")
            with pytest.raises(VersionNotFoundError, match="no files were recorded"):
                turn.rewind(files=True)
            turn.messages.append({"role": "user", "content": "x"})
        assert len(session.messages) == 1


def test_an_async_session_takes_its_folder_back(folder: Path, tmp_path: Path) -> None:
    asyncio.run(_with_an_async_session(folder, tmp_path))


async def _with_an_async_session(folder: Path, tmp_path: Path) -> None:
    async with (
        everthread.open_async(f"sqlite:///{tmp_path}/s.db") as store,
        await store.session("s") as session,
    ):
        with pytest.raises(UsageError, match="attach_workspace"):
            await session.rewind(1, files=True)
        await session.thread.attach_workspace(folder, each="turn")
        first = session.thread.head
        assert first is not None
        async with session.turn() as turn:
            await turn.messages.append({"role": "user", "content": "x"})
            (folder / "main.py").write_text("by the turn\n")
            await turn.rewind(files=True)
        assert _texts(folder) == {"main.py": "one\n"}
        (folder / "main.py").write_text("by hand\n")
        await session.rewind(first, files=True)
        assert (_texts(folder), len(session.messages)) == ({"main.py": "one\n"}, 0)
        saved = [v async for v in session.thread.history() if v.label is not None]
        await session.rewind(saved[0], files=True)
        assert _texts(folder) == {"main.py": "by hand\n"}
        await session.rewind(saved[1], files=True)
        assert (_texts(folder), len(session.messages)) == ({"main.py": "by the turn\n"}, 1)


def test_async_threads_have_working_folders(folder: Path, tmp_path: Path) -> None:
    asyncio.run(_with_async_threads(folder, tmp_path))


async def _with_async_threads(folder: Path, tmp_path: Path) -> None:
    async with everthread.open_async(f"sqlite:///{tmp_path}/s.db") as store:
        thread = await store.thread("t")
        workspace = await thread.attach_workspace(folder)
        first = thread.head
        (folder / "main.py").write_text("two\n")
        await thread.commit()
        assert (await thread.diff(first, files=True)).files.summary() == "1 changed"
        fork = await thread.fork("u", files=tmp_path / "fork")
        assert _texts(tmp_path / "fork") == {"main.py": "two\n"}
        await thread.rewind(first or 1, files=True)
        assert _texts(folder) == {"main.py": "one\n"}
        assert await workspace.interrupted() is None
        assert (await workspace.save()).changed == 0
        assert fork.head is not None
