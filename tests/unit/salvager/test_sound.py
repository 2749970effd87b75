"""Salvaging a store that nothing is wrong with, after pruning and with many personal values: all of it comes
over, and is found there."""

from __future__ import annotations

from pathlib import Path

import pytest

import everthread
from everthread import Personal, Retention, Store, reveal, salvage
from everthread.salvager import writer

PLACES = {"sqlite": "sqlite:///{}.db", "file": "file://{}"}
KINDS = pytest.mark.parametrize(
    ("source", "target"), [(source, target) for source in PLACES for target in PLACES]
)


@pytest.fixture
def urls(tmp_path: Path, source: str, target: str) -> tuple[str, str]:
    return PLACES[source].format(tmp_path / "a"), PLACES[target].format(tmp_path / "b")


def opened(url: str, tmp_path: Path) -> Store:
    return everthread.open(url, durability="process", keyring=f"{tmp_path}/keyring")


@KINDS
def test_items_in_chunks_that_reach_across_pruned_versions(urls: tuple[str, str], tmp_path: Path) -> None:
    with opened(urls[0], tmp_path) as store:
        thread = store.thread("t")
        for number in range(8):
            thread.messages.append({"id": f"m{number}"})
            thread.commit(label="kept" if number == 0 else None)
        # Now one chunk holds items of versions that are kept, before and after, and of those that go.
        assert thread.handle.line is not None
        store.core.folder.fold_tail(thread.handle.line, newest=False)
        store.gc(Retention(keep_last=2))
        wanted = thread.messages[:]
    assert salvage(urls[0], urls[1])
    with opened(urls[1], tmp_path) as store:
        assert store.verify().ok
        thread = store.thread("t")
        assert thread.messages[:] == wanted
        assert [version.seq for version in thread.history(limit=None)] == [8, 7, 1]
        assert [thread.messages.find(f"m{number}") for number in range(8)] == list(range(8))
        # What is there already isn't appended twice.
        thread.messages.append({"id": "m3"})
        assert len(thread.messages) == 8


@KINDS
def test_what_kept_versions_before_pruned_ones_are_found_by(urls: tuple[str, str], tmp_path: Path) -> None:
    with opened(urls[0], tmp_path) as store:
        thread = store.thread("t")
        thread.state["paid"] = 1
        paid = thread.commit(label="paid", key="pay-817", metadata={"run": "r1"})
        with thread.step("turn") as step:
            step.result = "answer"
            step.state["x"] = 1
        thread.commit(label="after the step")
        for number in range(5):
            thread.state["n"] = number
            thread.commit(key=f"pruned {number}")
        store.gc(Retention(keep_last=1))
    assert salvage(urls[0], urls[1])
    with opened(urls[1], tmp_path) as store:
        assert store.verify().ok
        assert [info.name for info in store.threads(metadata={"run": "r1"})] == ["t"]
        thread = store.thread("t")
        with thread.step("turn") as step:
            assert (step.done, step.result) == (True, "answer")
        thread.state["paid"] = 2
        assert thread.commit(key="pay-817") == paid
    with opened(urls[1], tmp_path) as store:
        thread = store.thread("t")
        thread.state["paid"] = 2
        found = thread.commit(key="pruned 2")
        assert found is not None
        assert found.seq == 6


@KINDS
def test_items_that_were_dropped_with_their_versions(urls: tuple[str, str], tmp_path: Path) -> None:
    with opened(urls[0], tmp_path) as store:
        thread = store.thread("t")
        log = thread.log("x")
        log.append({"id": "a"})
        thread.commit()
        log.extend([{"id": f"m{number}", "text": "z" * 1000} for number in range(600)])
        thread.commit()
        log.truncate_from("m0")
        thread.commit()
        log.append({"id": "b"})
        thread.commit()
        for number in range(2):
            thread.state["n"] = number
            thread.commit()
        store.gc(Retention(keep_last=1))
    assert salvage(urls[0], urls[1])
    with opened(urls[1], tmp_path) as store:
        assert store.verify().ok
        log = store.thread("t").log("x")
        assert log[:] == [{"id": "a"}, {"id": "b"}]
        assert [log.find(each) for each in ("a", "b", "m0")] == [0, 1, None]


@KINDS
def test_all_personal_values_come_along(
    urls: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many one version has, and also those that no thread refers to."""
    monkeypatch.setattr(writer, "_SEALED_MAX", 8)
    with opened(urls[0], tmp_path) as store:
        thread = store.thread("t")
        thread.messages.extend([{"id": f"m{n}", "text": Personal("ann", n)} for n in range(50)])
        thread.commit()
        store.events("s").append("made", {"mail": Personal("ann", "x@y")})
        erased = store.thread("erased")
        erased.state["p"] = Personal("bob", "secret")
        erased.commit()
        store.erase("bob")
    report = salvage(urls[0], urls[1])
    assert report
    assert report.sealed == 51
    with opened(urls[1], tmp_path) as store:
        assert store.verify().ok
        assert [message["text"].value for message in store.thread("t").messages] == list(range(50))
        (event,) = store.events("s").replay()
        assert reveal(event.data) == {"mail": "x@y"}
        assert store.core.backend.streams("\0salvage", "", None, 10) == []
