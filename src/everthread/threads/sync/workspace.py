# Generated from src/everthread/threads/aio/workspace.py by tools/twin.py: change that, then run: make twin
"""The working folder of a thread: which of its files belong to each version, and going back with them.

Threads know nothing of files. What records a folder is handed in through ``core.open_workspaces``; here is
only what ties it to versions: a log of the thread that says, from the version on that brought an item, which
version of the files was there. So a fork, a rewind or a look at the past finds the files of that moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from everthread.errors import UnsupportedError, UsageError, VersionNotFoundError

if TYPE_CHECKING:
    from everthread.threads.sync.handle import AnyVersion, Handle
    from everthread.threads.sync.past import Past
    from everthread.threads.sync.thread import Thread
    from everthread.versions import Version

#: Which files were there, item by item; no caller's log has this name.
FILES_LOG = "\0files"
_FILES = "files"
#: A version of the files beside a thread: the uid of the thread, and the id of the version.
RecordedFiles = tuple[str, str]


class Recorder(Protocol):
    """What records the folder of a thread."""

    def record(self, since: str | None) -> str:
        """Record the folder as it is; the version of the files that it is. ``since`` is the one that the
        thread knows, which it is compared with."""

    def begin(self, version: str) -> Any:
        """Make the folder what the files were at a version; what was there is saved."""

    def finish(self) -> None:
        """The thread has gone back, too."""

    def interrupted(self) -> Any:
        """The restore of the folder that was cut short, if there is one."""


class Workspaces(Protocol):
    """Opens the folders of threads, and compares what was recorded of them."""

    def open(self, thread: Thread, path: Any, options: dict[str, Any]) -> Any:
        """The recorder of a folder."""

    def open_fork(self, thread: Thread, path: Any, version: str | None, options: dict[str, Any]) -> Any:
        """The recorder of an empty folder, into which the files of a version are put."""

    def check_empty(self, thread: Thread, path: Any) -> None:
        """Raise unless a folder can be that of a fork."""

    def compare(self, thread: Thread, a: RecordedFiles | None, b: RecordedFiles | None) -> Any:
        """What differs between two versions of the files, of one thread or of two."""


def workspaces_of(handle: Handle) -> Workspaces:
    opener = handle.core.open_workspaces
    if opener is None:
        raise UnsupportedError("this store records no folders; everthread.open() gives one that does")
    return opener()


def attach(thread: Thread, path: Any, each: str, options: dict[str, Any]) -> Any:
    if each not in ("commit", "turn"):
        raise UsageError(f'each is "commit" or "turn", not {each!r}')
    handle = thread.handle
    handle.load()
    if handle.head is None:
        # The files are kept beside the thread: first there must be one.
        thread.commit()
    workspace = workspaces_of(handle).open(thread, path, options)
    handle.workspace, handle.records_each_commit = workspace, each == "commit"
    handle.workspace_options = options
    _record_now(thread)
    return workspace


def _record_now(thread: Thread) -> None:
    """Record the folder, unless a restore of it was cut short: then it is no version at all."""
    handle = thread.handle
    if handle.workspace.interrupted() is None:
        record_turn(handle)
        thread.commit()


def attach_fork(thread: Thread, path: Any, options: Mapping[str, Any]) -> None:
    """Give a fork a folder of its own, with the files that were recorded at the version it was made from."""
    handle = thread.handle
    handle.load()
    version = thread.head
    assert version is not None, "a fork begins with a version"
    wanted = recorded_at(thread.at(version))
    opener = workspaces_of(handle)
    handle.workspace = opener.open_fork(thread, path, wanted, dict(options))
    handle.records_each_commit, handle.workspace_options = True, options


def record(handle: Handle) -> None:
    """Record the folder of a handle, if it has one; which files it holds becomes part of the next commit."""
    recorder: Recorder | None = handle.workspace
    if recorder is None:
        return
    log = handle.log(FILES_LOG)
    newest = log.read(-1)
    known = newest[0].get(_FILES) if newest else None
    version = recorder.record(known)
    if version != known:
        log.append({_FILES: version})


def record_turn(handle: Handle) -> None:
    """As :func:`record`, for a handle whose commits don't do so by themselves."""
    if not handle.records_each_commit:
        record(handle)


def recorded_at(past: Past) -> str | None:
    """The version of the files that was there at a version of the thread."""
    newest = past.hidden_log(FILES_LOG).read(-1)
    return newest[0].get(_FILES) if newest else None


def wanted_files(thread: Thread, version: AnyVersion) -> tuple[Version, str]:
    """The version to go back to with the working folder of a thread, and that of its files. Raises
    :class:`UsageError` if the handle has no folder, :class:`VersionNotFoundError` if nothing was recorded of
    it by then."""
    handle = thread.handle
    if handle.workspace is None:
        raise UsageError("this handle has no working folder: attach_workspace(path) first")
    target = handle.find_version(version)
    wanted = recorded_at(thread.at(target))
    if wanted is None:
        raise VersionNotFoundError(f"no files were recorded at {target} of {thread.name!r}")
    return target, wanted


def go_back(thread: Thread, version: AnyVersion) -> Version:
    """Rewind a thread and its folder. What was changed since is saved first, so that this can be undone."""
    handle = thread.handle
    target, wanted = wanted_files(thread, version)
    handle.require_clean("rewind()")
    recorder: Recorder = handle.workspace
    if recorder.interrupted() is None:
        record(handle)
        if handle.dirty:
            thread.commit(f"files before rewind to {target.seq}")
    recorder.begin(wanted)
    made = thread.rewind(target)
    recorder.finish()
    return made


def compare(thread: Thread, a: Past | None, b: Past) -> Any:
    """What differs between the files at two versions, of one thread or of two."""
    old = None if a is None else _recorded_files(a)
    return workspaces_of(thread.handle).compare(thread, old, _recorded_files(b))


def _recorded_files(past: Past) -> RecordedFiles | None:
    version = recorded_at(past)
    return None if version is None else (past.uid, version)
