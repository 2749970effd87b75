"""What pruning does to the folder of a file store: what a person sees, what is gone, what others notice."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Retention, Store, Thread
from everthread.errors import VersionPrunedError
from everthread.stores.files import journal as editions
from everthread.stores.files import line_files


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def opened(path: Path) -> Store:
    return everthread.open(f"file://{path}")


def talk(thread: Thread, first: int, last: int, **options: Any) -> None:
    for number in range(first, last):
        thread.state["count"] = number
        thread.messages.append({"id": f"m{number}", "content": f"word-{number}-" * 5})
        thread.commit(**options)


def lines_of(path: Path) -> list[dict[str, Any]]:
    journals = sorted(path.rglob("journal-*.jsonl"))
    return [json.loads(line) for journal in journals for line in journal.read_text().splitlines()]


def test_a_diff_shows_what_went_and_nothing_else(path: Path) -> None:
    with opened(path) as store:
        thread = store.thread("a")
        talk(thread, 0, 60)
        thread.state["decided"] = True
        thread.commit(label="decided")
        talk(thread, 60, 120)
        git(path, "init", "-q")
        git(path, "add", "-A")
        git(path, "commit", "-q", "-m", "before")
        before = {line["seq"]: line for line in lines_of(path) if "seq" in line}
        store.gc(Retention(keep_last=10))
    changed = git(path, "diff", "--unified=0", "--", "*.jsonl").splitlines()
    added = [json.loads(line[1:]) for line in changed if line.startswith("+{")]
    removed = [json.loads(line[1:]) for line in changed if line.startswith("-{")]
    assert [(line["kind"], line["first"], line["seq"]) for line in added] == [
        ("pruned", 1, 60),
        ("pruned", 62, 111),
    ], "a line for each stretch that is gone"
    assert [line["seq"] for line in removed] == [*range(1, 61), *range(62, 112)]
    after = {line["seq"]: line for line in lines_of(path) if "seq" in line and line["kind"] != "pruned"}
    assert after == {seq: before[seq] for seq in (61, *range(112, 122))}, "what stays is the same bytes"
    assert added[0]["keyframe"]["json"][0] == {"count": 59}, "what came of them can be read"
    assert added[1]["net"]["json"][0] == [[0, ["count"], 109]]


def test_what_went_is_nowhere_in_the_folder(path: Path) -> None:
    with opened(path) as store:
        thread = store.thread("a")
        talk(thread, 0, 100)
        thread.messages.truncate_from("m3")
        thread.state["secret"] = "gone-for-good"
        thread.commit()
        del thread.state["secret"]
        thread.commit()
        talk(thread, 200, 203)
        store.gc(Retention(keep_last=1, keep_labelled=False))
        assert [item["id"] for item in store.thread("a").messages] == [
            "m0",
            "m1",
            "m2",
            "m200",
            "m201",
            "m202",
        ]
        assert store.verify()
    found = b"".join(each.read_bytes() for each in path.rglob("*") if each.is_file())
    for word in (b"word-3-", b"word-50-", b"gone-for-good"):
        assert word not in found
    assert b"word-2-" in found


def test_a_clone_of_a_pruned_store_is_equal(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_files, "SEGMENT_BYTES", 8_000)
    with opened(path) as store:
        thread = store.thread("a")
        talk(thread, 0, 300, metadata={"run": "r1"})
        fork = thread.fork("b", at=150)
        talk(fork, 500, 520)
        thread.rewind(200)
        talk(thread, 700, 800, key=None)
        thread.commit(key="once")
        store.gc(Retention(keep_last=20))
        assert len(list(path.rglob("journal-*.jsonl"))) > 4
        git(path, "init", "-q")
        git(path, "add", "-A")
        git(path, "commit", "-q", "-m", "one")
        clone = tmp_path / "elsewhere"
        git(tmp_path, "clone", "-q", str(path), str(clone))
        with opened(clone) as copy:
            for _ in range(2):
                for name in ("a", "b"):
                    ours, theirs = store.thread(name), copy.thread(name)
                    assert list(ours.history(limit=None)) == list(theirs.history(limit=None))
                    assert ours.state.plain() == theirs.state.plain()
                    assert ours.messages[:] == theirs.messages[:]
                assert copy.verify()
                assert copy.thread("a").commit(key="once") == store.thread("a").commit(key="once")
                assert [info.name for info in copy.threads(metadata={"run": "r1"})] == ["a", "b"]
            assert copy.gc(Retention(keep_last=20)).versions == 0
            talk(copy.thread("a"), 900, 1000)
            assert copy.gc(Retention(keep_last=3)).problems == ()
            assert copy.verify()


def test_who_has_it_open_notices(path: Path) -> None:
    with opened(path) as store, opened(path) as other:
        thread = store.thread("a")
        talk(thread, 0, 100)
        theirs = other.thread("a")
        was = theirs.at(5)
        assert was.state["count"] == 4
        store.gc(Retention(keep_last=2))
        for verb in (theirs.at, theirs.rewind, lambda seq: theirs.fork("b", at=seq)):
            with pytest.raises(VersionPrunedError):
                verb(5)
        theirs.refresh()
        talk(theirs, 100, 101)
        thread.refresh()
        assert thread.messages[-1]["id"] == "m100"
        assert other.verify()


def test_a_pruning_that_was_interrupted_is_tidied_up(path: Path) -> None:
    """Whoever comes next finds an odd count: it trusts the journal alone, and then makes the rest again."""
    with opened(path) as store:
        talk(store.thread("a"), 0, 200)
        store.gc(Retention(keep_last=150))
    (folder,) = (path / "data" / "threads").iterdir()
    assert editions.edition_of(folder) == 2
    (folder / editions.EDITION_FILE).write_bytes(b"...")
    (folder / ".new-journal-0000000001.jsonl").write_bytes(b"torn")
    (folder / "items-0000000007-0123456789abcdef.jsonl").write_bytes(b"never named")
    with opened(path) as store:
        thread = store.thread("a")
        assert len(list(thread.history(limit=None))) == 150
        assert [item["id"] for item in thread.messages] == [f"m{number}" for number in range(200)]
        assert store.verify()
    assert editions.edition_of(folder) == 4
    left = {each.name for each in folder.iterdir()}
    assert not left & {".new-journal-0000000001.jsonl", "items-0000000007-0123456789abcdef.jsonl"}
    with opened(path) as store:
        assert store.gc(Retention(keep_last=10)).versions == 140
        assert store.verify()


def test_a_backup_and_what_it_brings_back(path: Path, tmp_path: Path) -> None:
    with opened(path) as store:
        thread = store.thread("a")
        talk(thread, 0, 100)
        store.backup(str(tmp_path / "full"))
        store.gc(Retention(keep_last=5))
        store.backup(str(tmp_path / "pruned"))
        talk(thread, 100, 110)
        store.restore(str(tmp_path / "pruned"))
        assert [version.seq for version in store.thread("a").history(limit=None)] == [100, 99, 98, 97, 96]
        assert store.verify()
        store.restore(str(tmp_path / "full"))
        assert store.thread("a").at(5).state["count"] == 4
        assert store.verify()


def test_a_damaged_tombstone_is_found(path: Path) -> None:
    with opened(path) as store:
        talk(store.thread("a"), 0, 100)
        store.gc(Retention(keep_last=5))
    (journal,) = path.rglob("journal-*.jsonl")
    text = journal.read_bytes()
    at = text.index(b'"digests"') + 20
    journal.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
    with opened(path) as store:
        report = store.verify()
        assert not report
        assert any("checksum" in str(each) for each in report.damage), report.damage


@pytest.mark.parametrize("first", [False, True])
def test_metadata_below_a_rewind_is_found_after_pruning(first: bool, tmp_path: Path) -> None:
    """A rewind is in no pack: what stands below it was overlooked."""
    with everthread.open(f"file://{tmp_path}/f", durability="process") as store:
        thread = store.thread("t")
        if first:
            thread.state["n"] = 9
            thread.commit()
        thread.state["n"] = 0
        kept = thread.commit(label="kept", metadata={"run": 1})
        thread.state["n"] = 1
        thread.commit(label="kept")
        thread.fork("f", at=thread.rewind(kept.seq))
        for number in range(4):
            thread.state["n"] = number
            thread.commit()
        store.gc(everthread.Retention(keep_last=1))
        assert [info.name for info in store.threads(metadata={"run": 1})] == ["t"]
        assert store.verify().ok
