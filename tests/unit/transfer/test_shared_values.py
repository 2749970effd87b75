"""Personal values that are shared by what is brought and what isn't: they come with who needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import everthread
from everthread import Personal, Store
from everthread.transfer import exporter, importer, thread_writer

Bring = Callable[..., everthread.ImportReport]


def opened(tmp_path: Path, url: str = "memory:") -> Store:
    return everthread.open(url, keyring=f"{tmp_path}/keyring", durability="process")


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


def share(source: Store) -> None:
    """The first thread's value, in another thread and in an event."""
    mail = source.thread("one").state["mail"]
    source.thread("two").update(lambda draft: draft.state.update(mail=mail))
    source.events("seen").append("seen", {"mail": mail})


def check(target: Store, stored: int = 1) -> None:
    assert target.thread("two").state["mail"].value == "ann@x"
    assert [event.data["mail"].value for event in target.events("seen")] == ["ann@x"]
    assert target.verify().ok
    key_ids = target.core.vault.keyring.key_ids("ann")
    assert len(target.core.backend.sealed_under(list(key_ids), b"", 99)) == stored


@pytest.mark.parametrize("url", ["memory:", "sqlite:///{}/t.db", "file://{}/t"])
def test_of_a_thread_whose_name_is_taken(bring: Bring, url: str, tmp_path: Path) -> None:
    with opened(tmp_path) as source, opened(tmp_path, url.format(tmp_path)) as target:
        target.thread("one").update(lambda draft: draft.state.update(other=True))
        thread = source.thread("one")
        thread.state["mail"] = Personal("ann", "ann@x")
        thread.state["only here"] = Personal("ann", "not needed")
        thread.commit()
        share(source)
        report = bring(source, target, on_conflict="skip")
        assert list(report.skipped) == ["one"]
        assert report.sealed == 1
        check(target)


def test_of_a_thread_that_was_changed_on_both_sides(bring: Bring, tmp_path: Path) -> None:
    with opened(tmp_path) as source, opened(tmp_path) as target:
        source.thread("one").update(lambda draft: draft.state.update(n=1))
        source.copy_to(target)
        target.thread("one").update(lambda draft: draft.state.update(other=True))
        source.thread("one").update(lambda draft: draft.state.update(mail=Personal("ann", "ann@x")))
        share(source)
        bring(source, target, on_conflict="skip")
        check(target)


def test_of_a_thread_that_was_deleted_here(bring: Bring, tmp_path: Path) -> None:
    with opened(tmp_path) as source, opened(tmp_path) as target:
        source.thread("one").update(lambda draft: draft.state.update(n=1))
        source.copy_to(target)
        target.thread("one").delete()
        source.thread("one").update(lambda draft: draft.state.update(mail=Personal("ann", "ann@x")))
        share(source)
        bring(source, target)
        check(target)


def test_of_a_stream_whose_name_is_taken(bring: Bring, tmp_path: Path) -> None:
    with opened(tmp_path) as source, opened(tmp_path) as target:
        target.events("a").append("other")
        source.events("a").append("made", {"mail": Personal("ann", "ann@x")})
        last = source.events("a").last
        assert last is not None
        source.events("b").append("made", {"mail": last.data["mail"]})
        bring(source, target, on_conflict="skip")
        assert [event.data["mail"].value for event in target.events("b")] == ["ann@x"]
        assert target.verify().ok


def test_more_than_are_remembered(bring: Bring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes out forgets what went out long ago, and so does whoever puts in."""
    for module in (exporter, thread_writer, importer):
        monkeypatch.setattr(module, "REMEMBERED", 5)
    with opened(tmp_path) as source, opened(tmp_path) as target:
        target.thread("one").update(lambda draft: draft.state.update(other=True))
        thread = source.thread("one")
        for number in range(12):
            thread.log("who").append(Personal("ann", number))
            thread.commit()
        other = source.thread("two")
        for number in (11, 0, 9, 3, 11, 5, 1, 10, 0):
            other.log("who").append(thread.log("who")[number])
            other.commit()
        bring(source, target, on_conflict="skip")
        assert [who.value for who in target.thread("two").log("who")] == [11, 0, 9, 3, 11, 5, 1, 10, 0]
        assert target.verify().ok


def test_who_was_erased_isnt_looked_for_again(bring: Bring, tmp_path: Path) -> None:
    with opened(tmp_path) as source, opened(tmp_path) as target:
        target.thread("one").update(lambda draft: draft.state.update(other=True))
        source.thread("one").update(lambda draft: draft.state.update(mail=Personal("ann", "ann@x")))
        share(source)
        source.erase("ann")
        assert bring(source, target, on_conflict="skip").sealed == 0
        assert isinstance(target.thread("two").state["mail"], everthread.Erased)
        assert target.verify().ok


def test_async(tmp_path: Path) -> None:
    async def run() -> None:
        with opened(tmp_path) as source:
            source.thread("one").update(lambda draft: draft.state.update(mail=Personal("ann", "ann@x")))
            share(source)
            source.export(tmp_path / "archive")
        async with everthread.open_async("memory:", keyring=f"{tmp_path}/keyring") as target:
            await (await target.thread("one")).update(lambda draft: draft.state.update(other=True))
            await target.import_from(tmp_path / "archive", on_conflict="skip")
            assert (await target.verify()).ok
            assert [event.data["mail"].value async for event in target.events("seen")] == ["ann@x"]

    asyncio.run(run())


def test_keys_that_are_missing_are_counted(bring: Bring, tmp_path: Path) -> None:
    with opened(tmp_path) as source, everthread.open("memory:", keyring=f"{tmp_path}/other") as target:
        source.thread("one").update(lambda draft: draft.state.update(mail=Personal("ann", "ann@x")))
        report = bring(source, target)
        assert report.keys_missing == 1
        assert "1 key of personal values isn't in the keyring here" in str(report)
        with opened(tmp_path) as same:
            assert bring(source, same).keys_missing == 0
