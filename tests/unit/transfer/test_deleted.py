"""Threads that were deleted on one side or on both: moving brings nobody back, and takes nothing away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import everthread
from everthread import Retention, Store
from everthread.errors import ThreadExistsError

Bring = Callable[..., everthread.ImportReport]
DELETED = "it was deleted here, and deletion is final"


@pytest.fixture(params=["copy", "archive"])
def bring(request: pytest.FixtureRequest, tmp_path: Path) -> Bring:
    """Both ways into another store."""

    def copy(source: Store, target: Store, **rule: str) -> everthread.ImportReport:
        return source.copy_to(target, **rule)  # type: ignore[arg-type]

    def archive(source: Store, target: Store, **rule: str) -> everthread.ImportReport:
        path = tmp_path / f"archive {len(list(tmp_path.iterdir()))}"
        source.export(path)
        return target.import_from(path, **rule)  # type: ignore[arg-type]

    return copy if request.param == "copy" else archive


@pytest.fixture(params=["memory:", "sqlite:///{}/t.db", "file://{}/t"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return everthread.open(request.param.format(tmp_path), keyring="memory:", durability="process")


@pytest.fixture
def source() -> Store:
    return everthread.open("memory:", keyring="memory:")


def put(store: Store, name: str, **values: object) -> None:
    store.thread(name).update(lambda draft: draft.state.update(values))


def heads(store: Store) -> dict[str, int]:
    return {info.name: info.seq for info in store.threads()}


def test_what_was_deleted_there_stays_here(bring: Bring, source: Store, target: Store) -> None:
    for name in ("own", "same", "behind"):
        put(source, name, n=1)
        source.thread(name).fork(f"fork of {name}")
    bring(source, target)
    put(target, "own", here=True)
    put(source, "behind", n=2)
    source.thread("behind").fork("later")
    for name in ("own", "same", "behind"):
        source.thread(name).delete()
    report = bring(source, target)
    assert report.skipped == {}
    assert target.thread("own").state["here"] is True
    # What its new fork shares with it came as well.
    assert heads(target) == {
        "own": 2,
        "same": 1,
        "behind": 2,
        "fork of own": 1,
        "fork of same": 1,
        "fork of behind": 1,
        "later": 2,
    }
    assert bring(source, target).versions == 0
    assert target.verify().ok


def test_what_only_forks_need_is_deleted_again_after_a_kill(
    bring: Bring, source: Store, target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(source, "gone", n=1)
    source.thread("gone").fork("fork")
    source.thread("gone").delete()

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(target.core.backend, "delete", fail)
        with pytest.raises(KeyboardInterrupt):
            bring(source, target)
    bring(source, target)
    assert heads(target) == {"fork": 1}
    (line,) = [line for line in target.core.backend.every_line() if line.name == "gone"]
    assert line.deleted
    assert target.verify().ok


def test_deleted_on_both_sides(bring: Bring, source: Store, target: Store) -> None:
    put(source, "p", n=1)
    source.thread("p").fork("f")
    bring(source, target)
    target.thread("p").delete()
    put(source, "p", n=2)
    source.thread("p").fork("g")
    put(source, "f", k=1)
    left_out = {"p": DELETED, "g": "a fork of 'p', which was left out"}
    report = bring(source, target)
    assert report.skipped == left_out
    # The fork that is here goes on.
    assert heads(target) == {"f": 2}
    source.thread("p").delete()
    put(source, "f", k=2)
    assert bring(source, target).skipped == left_out
    assert heads(target) == {"f": 3}
    assert bring(source, target, on_conflict="skip").skipped == left_out
    assert target.verify().ok


def test_deleted_and_changed_on_both_sides(bring: Bring, source: Store, target: Store) -> None:
    put(source, "p", n=1)
    bring(source, target)
    for store in (source, target):
        put(store, "p", n=str(store))
        store.thread("p").fork(f"fork in {'target' if store is target else 'source'}")
        store.thread("p").delete()
    report = bring(source, target)
    assert report.skipped["p"] == DELETED
    assert heads(target) == {"fork in target": 2}


def test_new_forks_of_what_was_purged_here(bring: Bring, source: Store, target: Store) -> None:
    put(source, "p", n=1)
    source.thread("p").fork("f")
    bring(source, target)
    for name in ("p", "f"):
        target.thread(name).delete()
    target.gc()
    source.thread("f").fork("g")
    source.thread("p").delete()
    report = bring(source, target)
    assert set(report.skipped) == {"f", "g"}
    assert heads(target) == {}
    assert bring(source, target).skipped == report.skipped


def test_forks_of_versions_that_are_pruned_here(bring: Bring, source: Store, target: Store) -> None:
    """Told before anything is written."""
    for number in range(10):
        put(source, "p", n=number)
    bring(source, target)
    target.gc(Retention(keep_last=1))
    put(source, "a", n=1)
    source.thread("p").fork("f", at=5)
    put(source, "p", n=10)
    source.thread("p").fork("g")
    with pytest.raises(ThreadExistsError, match=r"nothing was brought here, because of 'f' \(the version"):
        bring(source, target)
    assert heads(target) == {"p": 10}
    assert list(bring(source, target, on_conflict="skip").skipped) == ["f"]
    assert heads(target) == {"a": 1, "p": 11, "g": 11}
    assert target.verify().ok


def test_what_is_left_of_a_deleted_thread_may_have_no_newest_version(
    bring: Bring, source: Store, target: Store
) -> None:
    """Its newest versions were pruned there after that: here, where it lives, it couldn't be read."""
    put(source, "p", n=1)
    bring(source, target)
    put(source, "p", n=2)
    source.thread("p").fork("f")
    put(source, "p", n=3)
    source.thread("p").delete()
    source.gc(Retention(keep_last=1))
    with pytest.raises(ThreadExistsError, match=r"'p' .it was deleted there, and versions that aren't here"):
        bring(source, target)
    assert heads(target) == {"p": 1}
    assert set(bring(source, target, on_conflict="skip").skipped) == {"p", "f"}
    assert heads(target) == {"p": 1}
    target.thread("p").delete()
    bring(source, target)
    assert target.verify().ok
