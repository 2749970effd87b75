"""Where ``everthread.open()`` finds its place."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

import everthread
from everthread import InvalidValueError, StoreUnavailableError
from everthread.stores.urls import default_url
from everthread.testing.driver import open_driven


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a current folder without any store."""
    home, work = tmp_path / "home", tmp_path / "work" / "deep"
    home.mkdir()
    work.mkdir(parents=True)
    monkeypatch.delenv("EVERTHREAD_URL", raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(work)
    return home


def test_the_variable_comes_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTHREAD_URL", "memory:")
    with everthread.open() as store:
        assert store.url == "memory:"
    assert list(home.iterdir()) == []


def test_the_nearest_folder_comes_next(home: Path) -> None:
    far, near = Path("../../.everthread"), Path("../.everthread")
    far.mkdir()
    near.mkdir()
    with everthread.open() as store:
        assert store.url.endswith("/work/.everthread/everthread.db")
    assert list(home.iterdir()) == []


def test_home_comes_last_and_is_private(home: Path) -> None:
    old = os.umask(0)
    try:
        with everthread.open() as store:
            store.thread("a").commit(label="first")
    finally:
        os.umask(old)
    folder = home / ".everthread"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in folder.glob("everthread.db*"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_a_link_is_followed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (home / ".everthread").symlink_to(tmp_path / "elsewhere")
    everthread.open().close()
    assert (tmp_path / "elsewhere" / "everthread.db").exists()


def test_looking_creates_nothing(home: Path) -> None:
    assert default_url(create=False).endswith("/home/.everthread/everthread.db")
    assert list(home.iterdir()) == []


def test_it_explains_itself_when_it_cannot(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(why: str) -> None:
        with pytest.raises(StoreUnavailableError, match=why) as caught:
            everthread.open()
        assert "EVERTHREAD_URL" in str(caught.value)

    (home / ".everthread").write_text("a file")
    refused("in the way")
    (home / ".everthread").unlink()
    (home / ".everthread").symlink_to(home / "nowhere")
    refused("in the way")
    (home / ".everthread").unlink()
    (home / ".everthread").mkdir()
    (home / ".everthread").chmod(0o777)
    refused("everybody can write")
    for missing in ("/nonexistent/home", "relative"):
        monkeypatch.setenv("HOME", missing)
        refused("no home folder")


def test_a_url_in_a_missing_folder_names_it(home: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="doesn't exist; create it"):
        everthread.open("sqlite:///missing/agent.db")


@pytest.mark.parametrize("url", ["memory:x", "memory:///x", "memory:?a=1", "memory: "])
def test_a_store_in_memory_has_no_name(url: str) -> None:
    for open_ in (everthread.open, open_driven):
        with pytest.raises(InvalidValueError, match="has no name; write memory:"):
            open_(url)
    with pytest.raises(InvalidValueError, match="has no name"):
        everthread.WorkingState(store=url, thread="a").save()
    everthread.open("memory:").close()
    everthread.open("memory://").close()


def test_a_path_is_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given in ("agent.db", Path("agent.db"), tmp_path / "b.sqlite", "c d%.sqlite3", "a:b.db"):
        with everthread.open(given) as store:
            store.thread("t").commit(label=str(given))
        with everthread.open(given) as store:
            assert store.url.startswith("sqlite:///")
            assert store.thread("t").at("head").version.label == str(given)
        assert Path(given).is_file()
    # Whatever it is called: it is one already.
    Path("agent.db").rename("renamed")
    everthread.open("renamed").close()
    with everthread.open(f"file://{tmp_path}/folder") as store:
        store.thread("t").commit(label="in a folder")
    for given in ("folder", Path("folder"), f"{tmp_path}/folder/"):
        with everthread.open(given) as store:
            assert store.url.startswith("file://")
            assert store.thread("t").at("head").version.label == "in a folder"


def test_any_other_path_is_refused_with_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder.db").mkdir()
    (tmp_path / "notes.txt").write_text("notes")
    for given, hint in [
        ("agent", "sqlite:///agent"),
        ("notes.txt", "sqlite:///notes.txt"),
        ("empty", f"file://{tmp_path}/empty"),
        ("folder.db", f"file://{tmp_path}/folder.db"),
        ("memory", "memory:"),
        ("", "memory:"),
    ]:
        with pytest.raises(everthread.UnsupportedError) as caught:
            everthread.open(given)
        assert hint in str(caught.value)
    with pytest.raises(InvalidValueError):
        everthread.open(7)  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "folder.db", "notes.txt"]


def test_an_async_store_is_opened_by_path_too(tmp_path: Path) -> None:
    async def body() -> str:
        async with everthread.open_async(tmp_path / "agent.db") as store:
            return store.url

    assert asyncio.run(body()) == f"sqlite:///{tmp_path}/agent.db"
