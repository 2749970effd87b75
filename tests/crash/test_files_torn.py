"""Appends cut short at any byte: the old state or the new one, never a mixture, and life goes on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.stores.contract import NewEvent


def opened(path: Path, durability: str = "process") -> everthread.Store:
    return everthread.open(f"file://{path}", durability=durability)


def commit(thread: Any, number: int) -> None:
    """Document and log say the same, always."""
    thread.state["count"] = number
    thread.messages.append({"id": f"m{number}", "content": "é" * number})
    thread.commit(metadata={"n": number})


def check(thread: Any, allowed: tuple[int, ...]) -> int:
    count: int = thread.state["count"]
    assert count in allowed
    assert [item["id"] for item in thread.messages] == [f"m{n}" for n in range(count + 1)]
    assert thread.head.seq == count + 1
    assert thread.head.metadata == {"n": count}
    return count


@pytest.mark.parametrize("durability", ["full", "process"])
@pytest.mark.parametrize("rest", ["gone", "zeros"])
def test_the_last_line_of_a_journal(tmp_path: Path, durability: str, rest: str) -> None:
    path = tmp_path / "store"
    with opened(path, durability) as store:
        for number in range(4):
            commit(store.thread("a"), number)
    (segment,) = path.glob("data/threads/a-*/journal-*.jsonl")
    good = segment.read_bytes()
    start = good[:-1].rindex(b"\n") + 1
    for cut in range(start, len(good)):
        torn = good[:cut] if rest == "gone" else good[:cut] + bytes(len(good) - cut)
        segment.write_bytes(torn)
        with opened(path, durability) as store:
            thread = store.thread("a")
            check(thread, (2,))
            if cut % 7 == 0:
                assert store.verify(), cut
            assert segment.read_bytes() == torn, "reading changes nothing"
            commit(thread, 3)
        with opened(path) as store:
            check(store.thread("a"), (3,))
            if cut % 7 == 0:
                assert store.verify(), cut
    segment.write_bytes(good)
    with opened(path) as store:
        check(store.thread("a"), (3,))


def test_a_hole_further_up_after_weak_commits(tmp_path: Path) -> None:
    """Without syncs a power cut may keep later pages and lose earlier ones: then all of it is gone."""
    path = tmp_path / "store"
    with opened(path, "process") as store:
        for number in range(30):
            commit(store.thread("a"), number)
    (segment,) = path.glob("data/threads/a-*/journal-*.jsonl")
    good = segment.read_bytes()
    for start in range(600, len(good) - 600, 350):
        torn = bytearray(good)
        torn[start : start + 512] = bytes(512)
        segment.write_bytes(torn)
        with opened(path) as store:
            count = check(store.thread("a"), tuple(range(30)))
            assert count < good[:start].count(b'"kind"') + 1
            assert store.verify()
            commit(store.thread("a"), count + 1)
            assert store.verify()
        cut = segment.with_name(f"{segment.name}.cut-1")
        assert cut.read_bytes() in bytes(torn), "what was cut off is kept"
        cut.unlink()
        segment.write_bytes(good)


def test_a_hole_before_a_synced_line_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path, "process") as store:
        for number in range(10):
            commit(store.thread("a"), number)
    with opened(path, "full") as store:
        commit(store.thread("a"), 10)
    (segment,) = path.glob("data/threads/a-*/journal-*.jsonl")
    torn = bytearray(segment.read_bytes())
    torn[1000:1512] = bytes(512)
    segment.write_bytes(torn)
    with opened(path) as store:
        assert not store.verify()
        assert store.core.backend.find("", "a").newest.seq == 11


def test_the_last_line_of_the_list_of_lines(tmp_path: Path) -> None:
    path, made = tmp_path / "store", tmp_path / "made"
    with opened(made) as store:
        commit(store.thread("a"), 0)
        commit(store.thread("b"), 0)
    # A view is written once the line exists: who died while adding the entry left none.
    (view,) = made.glob("data/threads/b-*/view.json")
    view.unlink()
    good = (made / "data" / "lines.jsonl").read_bytes()
    start = good[:-1].rindex(b"\n") + 1
    for cut in range(start, len(good), 3):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(made, path)
        (path / "data" / "lines.jsonl").write_bytes(good[:cut])
        with opened(path) as store:
            assert [info.name for info in store.threads()] == ["a"]
            assert store.thread("b").head is None
            commit(store.thread("b"), 0)
            assert [info.name for info in store.threads()] == ["a", "b"]
            assert store.verify()


@pytest.mark.parametrize("versions", [1, 2])
def test_a_list_that_lost_its_end_is_damage(tmp_path: Path, versions: int) -> None:
    """A thread that was written to, or shown, existed: it never vanishes without a word."""
    path, made = tmp_path / "store", tmp_path / "made"
    with opened(made) as store:
        commit(store.thread("a"), 0)
        for number in range(versions):
            commit(store.thread("b"), number)
    if versions > 1:
        for view in made.glob("data/threads/*/view.json"):
            view.unlink()
    good = (made / "data" / "lines.jsonl").read_bytes()
    start = good[:-1].rindex(b"\n") + 1
    for cut in (start, start + 1, start + 40, len(good) - 2):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(made, path)
        catalog = path / "data" / "lines.jsonl"
        catalog.write_bytes(good[:cut])
        for other in ("c0", "c1"):
            with opened(path) as store:
                with pytest.raises(everthread.StateCorruptedError):
                    _ = store.thread("b").head
                check(store.thread("a"), (0,))
                assert not store.verify()
                store.thread(other).commit(label="others go on")
        assert good[start:cut] in catalog.read_bytes(), "evidence stays"
        report = everthread.salvage(path, f"file://{tmp_path}/saved-{cut}")
        with opened(tmp_path / f"saved-{cut}") as store:
            assert store.verify(), report
            names = {info.name for info in store.threads()}
            assert {"a", "c0", "c1"} < names
            (other,) = names - {"a", "c0", "c1"}
            check(store.thread(other), (versions - 1,))


def test_an_entry_without_its_end_of_line_gets_it_back(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as store:
        commit(store.thread("a"), 0)
        commit(store.thread("b"), 0)
    catalog = path / "data" / "lines.jsonl"
    catalog.write_bytes(catalog.read_bytes()[:-1])
    with opened(path) as store:
        with pytest.raises(everthread.StateCorruptedError):
            _ = store.thread("b").head
        commit(store.thread("c"), 0)
    with opened(path) as store:
        for name in "abc":
            check(store.thread(name), (0,))
        assert store.verify()


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_end_of_line(tmp_path: Path, bit: int) -> None:
    path = tmp_path / "store"
    with opened(path, "full") as store:
        for number in range(3):
            commit(store.thread("a"), number)
    (segment,) = path.glob("data/threads/a-*/journal-*.jsonl")
    for file in (path / "data" / "lines.jsonl", segment):
        text = bytearray(file.read_bytes())
        text[-1] ^= 1 << bit
        file.write_bytes(text)
    with opened(path, "full") as store:
        check(store.thread("a"), (2,))
        assert store.verify()
        commit(store.thread("a"), 3)
        commit(store.thread("b"), 0)
    with opened(path) as store:
        check(store.thread("a"), (3,))
        check(store.thread("b"), (0,))
        assert store.verify()


def test_the_last_line_of_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "store"
    events = [NewEvent(1, "t", "a", b"one"), NewEvent(2, "t", None, b"two")]
    with opened(path) as store:
        for _ in range(2):
            store.core.backend.emit("", "s", events)
    (stream,) = path.glob("data/events/*/*.jsonl")
    good = stream.read_bytes()
    start = good[:-1].rindex(b"\n") + 1
    for cut in range(start, len(good)):
        stream.write_bytes(good[:cut])
        with opened(path) as store:
            backend = store.core.backend
            assert [event.seq for event in backend.events("", "s", 0, 9)] == [1, 2], (
                "both of a batch, or none"
            )
            assert backend.emit("", "s", events) == 3
            assert [event.seq for event in backend.events("", "s", 0, 9)] == [1, 2, 3, 4]


def test_an_unfinished_segment_was_never_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between making a new segment and naming it in the old one."""
    from everthread.stores.files import line_files

    monkeypatch.setattr(line_files, "SEGMENT_BYTES", 20_000)
    path = tmp_path / "store"
    with opened(path) as store:
        thread = store.thread("a")
        for number in range(60):
            commit(thread, number)
    (folder,) = path.glob("data/threads/a-*")
    (segment,) = folder.glob("journal-*.jsonl")
    header = segment.read_bytes().splitlines(keepends=True)[0]
    for content in (b"", header[:20], header):
        (folder / "journal-0000000061.jsonl").write_bytes(content)
        copy = tmp_path / "copy"
        shutil.copytree(path, copy)
        with opened(copy) as store:
            thread = store.thread("a")
            check(thread, (59,))
            for number in range(60, 200):
                commit(thread, number)
        with opened(copy) as store:
            check(store.thread("a"), (199,))
            assert store.verify()
            assert len(list(copy.glob("data/threads/a-*/journal-*.jsonl"))) > 1
        shutil.rmtree(copy)
