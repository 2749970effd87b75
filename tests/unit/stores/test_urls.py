"""Where ``everthread.open()`` finds its place."""

from __future__ import annotations

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
