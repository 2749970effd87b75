"""A person's own working folder, recorded beside a thread: code and conversation go back together.

Its versions are those of a thread beside the thread (its *files*), which a fork takes along and a delete
removes. The folder belongs to the person: what is ignored, looks like a secret or can't be read is left out
and named, and never touched; what was changed since is saved before anything is put in its place.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.codec import records
from everthread.detectors import Detector, secrets
from everthread.errors import (
    ConflictError,
    EverthreadError,
    InvalidStateError,
    InvalidValueError,
    NotFoundError,
    StorageWriteError,
    StoreBusyError,
)
from everthread.sandboxes.contents import Contents
from everthread.sandboxes.directory import (
    RESTORING,
    Restored,
    Saved,
    Writer,
    holds_content,
    restore_directory,
    save_directory,
)
from everthread.sandboxes.disk import Folder, identity
from everthread.sandboxes.files import DEFAULT_FILE_LIMITS, FileLimits, Files, FilesView
from everthread.sandboxes.folders import note_folder
from everthread.sandboxes.ignore import IgnoreRules
from everthread.sandboxes.paths import AnyPath, bytes_text, parents, shown, text_name
from everthread.sandboxes.stat_cache import StatCache
from everthread.sandboxes.tree import (
    MODE_BITS,
    TREE,
    Entry,
    FileEntry,
    FilesDiff,
    Tree,
    check_tree,
    compare,
    link_target,
    with_folders,
)
from everthread.stores.contract import StaleCell
from everthread.stores.urls import unquoted
from everthread.threads.sync.journals import FILES, beside, every_cell, space_beside
from everthread.threads.sync.thread import Thread
from everthread.threads.sync.workspace import RecordedFiles, recorded_at

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core
    from everthread.threads.sync.handle import AnyVersion

#: How often saving is tried again when another process has recorded the same folder meanwhile.
_TRIES = 5
_PAUSE_S = 0.02
#: Larger files aren't looked through for secrets.
_SEARCHED_BYTES_MAX = 4 * 1024 * 1024
#: Where the store keeps the plans of restores that are under way: cells, called after the uid of the thread
#: and the folder, within the working folder, that the restore keeps its files in.
_RESTORES = "restores"
#: What a SQLite store, or a keyring in one, has beside its file.
_SQLITE_ENDINGS = tuple(
    f"{search}{ending}" for search in ("", "-search") for ending in ("", "-wal", "-shm", "-journal", "-lock")
)


class Interrupted(msgspec.Struct, frozen=True):
    """A restore that was cut short: the folder holds files of two versions.

    ``target`` is the version of the files that it went to, ``before`` the one that holds what was there.
    """

    target: str
    before: str

    def __str__(self) -> str:
        return (
            "a restore of this folder was cut short: it holds files of two versions. "
            "workspace.undo() brings back what was there; thread.rewind(version, files=True) goes on"
        )


class _Choice:
    """What of a working folder is recorded."""

    def __init__(self, path: str, detectors: Iterable[Detector], apart: Iterable[str]) -> None:
        self._rules = IgnoreRules()
        self._detectors = list(detectors)
        #: Paths of the store and its keyring: what these write while the folder is recorded must not be.
        within = [each for each in apart if each.startswith(f"{path}/")]
        self._apart = {bytes_text(os.fsencode(os.path.relpath(each, path))) for each in within}
        names = "\0".join(f"{each.name}" for each in self._detectors)
        self.digest = sha256(names.encode("utf-8", "surrogatepass")).digest()[:8]

    def enter(self, prefix: str, fd: int) -> None:
        self._rules.enter(prefix, fd)

    def enters(self, text: str, name: str, is_folder: bool) -> bool:
        return text not in self._apart and not self._rules.ignores(text, name, is_folder)

    def objection(self, text: str, data: bytes) -> str | None:
        if not self._detectors or len(data) > _SEARCHED_BYTES_MAX or b"\0" in data[:8192]:
            return None
        content = data.decode("utf-8", "replace")
        for detector in self._detectors:
            if any(True for _ in detector.find(content)):
                return f"it seems to hold a secret ({detector.name})"
        return None


class Workspace:
    """A working folder that is recorded beside a thread: what ``thread.attach_workspace(path)`` gives."""

    def __init__(
        self,
        core: Core,
        uid: str,
        path: AnyPath,
        *,
        detectors: Iterable[Detector] | None = None,
        limits: FileLimits = DEFAULT_FILE_LIMITS,
    ) -> None:
        given = os.path.abspath(os.path.expanduser(os.fsdecode(path)))
        if not os.path.isdir(given):
            raise InvalidValueError(
                f"{given} is no folder; attach_workspace() takes one that is there", path="path"
            )
        #: The folder, with no link in its path.
        self.path = os.path.realpath(given)
        self._root = identity(os.stat(self.path, follow_symlinks=False))
        self._core = core
        self._uid = uid
        self._limits = limits
        self._files = Files(Thread(beside(core, FILES), uid), limits=limits)
        self._choice = _Choice(self.path, secrets() if detectors is None else detectors, _own_paths(core))
        kept = os.path.join(os.path.expanduser("~"), ".everthread", "workspaces")
        name = sha256(os.fsencode(f"{self.path}\0{uid}")).hexdigest()[:32]
        self._cache = StatCache(os.path.join(kept, f"{name}.stat"))
        self._lock_path = os.path.join(kept, f"{sha256(os.fsencode(self.path)).hexdigest()[:32]}.lock")
        #: What the last save came to: what was left out, and why.
        self.last: Saved | None = None
        #: What the last restore came to: what was left as it was, and why.
        self.restored: Restored | None = None
        note_folder(core, self.path)

    # ── recording ────────────────────────────────────────────────────────────────────────────

    def save(self, label: str | None = None) -> Saved:
        """Record the folder as it is now, as a version of the files beside the thread. Committing the thread
        does so by itself. Raises :class:`InvalidStateError` after a restore that was cut short, or if the
        folder was replaced."""
        with self._locked():
            return self._save(label)[1]

    def _save(self, label: str | None = None) -> tuple[str | None, Saved]:
        """Also the version that the files stood at before."""
        if (cut_short := self.interrupted()) is not None:
            raise InvalidStateError(str(cut_short))
        for left in reversed(range(_TRIES)):
            try:
                before = self._standing()
                self.last = save_directory(
                    self._files,
                    self.path,
                    label=label,
                    cache=self._cache,
                    choice=self._choice,
                    root=self._root,
                )
                return before, self.last
            except ConflictError:
                if not left:
                    raise
                # Another process has recorded the folder meanwhile, or the answer to an earlier save was
                # lost: from what it came to.
                self._files.thread.refresh()
        raise AssertionError("the last try ends by returning or raising")

    def record(self, since: str | None) -> str:
        """For the thread, before it commits: record the folder, and the version of the files that it is.

        ``since`` is the version that the thread knows, which ``last`` tells the changes from. The newest one
        of the files may be another, since a rewind of the thread alone doesn't move them.
        """
        with self._locked():
            before, saved = self._save()
            standing = self._known_standing()
            if since in (before, standing):
                return standing
            return self._tell_from(since, saved) or standing

    def _tell_from(self, since: str | None, saved: Saved) -> str | None:
        """Let ``last`` tell what differs from a version; that version, if nothing does."""
        try:
            known: Tree = {} if since is None else self._files.at(since).tree
        except NotFoundError:
            # Somebody has pruned it: what differs from the newest one was told.
            return None
        found = compare(known, self._files.tree)
        self.last = msgspec.structs.replace(
            saved, added=len(found.added), changed=len(found.changed), removed=len(found.removed)
        )
        return None if found else since

    def _standing(self) -> str | None:
        """The version of the files that the newest one equals: a rewind is what it went back to."""
        head = self._files.thread.head
        if head is None:
            return None
        return head.source if head.kind == "rewind" and head.source is not None else head.id

    def _known_standing(self) -> str:
        standing = self._standing()
        assert standing is not None, "it was just saved"
        return standing

    @property
    def files(self) -> Files:
        """The recorded files, newest version. What they hold can be read at any version, whatever the folder
        has come to since."""
        self._files.thread.refresh()
        return self._files

    # ── restoring ────────────────────────────────────────────────────────────────────────────

    def interrupted(self) -> Interrupted | None:
        """The restore that was cut short and left this folder with files of two versions, if there is one.

        The plan of a restore is in the store, with the thread; the folder holds nothing that is believed.
        """
        with self._opened() as folder:
            found = self._plan(folder)
        return None if found is None else found[2]

    def _plan(self, folder: Folder) -> tuple[str, int, Interrupted] | None:
        """Return the name of the restore that is under way in this folder, the revision of its plan, and the
        plan."""
        # No restore is under way without this folder: the store needn't be asked.
        if folder.stat(RESTORING) is not None:
            prefix = f"{self._uid}/"
            for cell_name, cell in every_cell(self._core, space_beside(self._core.space, _RESTORES), prefix):
                name = cell_name.removeprefix(prefix)
                if folder.stat(f"{RESTORING}/{name}") is not None:
                    with suppress(EverthreadError, msgspec.MsgspecError):
                        data = records.expand(cell.value, "the plan of a restore")
                        return name, cell.revision, msgspec.msgpack.decode(data, type=Interrupted)
        return None

    def _set_plan(self, name: str, revision: int, plan: Interrupted | None) -> None:
        space = space_beside(self._core.space, _RESTORES)
        value = None if plan is None else records.compress(msgspec.msgpack.encode(plan))
        now_us = self._core.runtime.now_us()
        try:
            self._core.backend.swap(space, f"{self._uid}/{name}", revision, value, now_us)
        except StaleCell:
            raise StoreBusyError(f"another process restores the folder {self.path}; try again") from None

    def begin(self, version: str) -> Restored:
        """Make the folder what the files were at a version. Until :meth:`finish` it counts as under way.

        What was changed since the last save is saved first. What isn't recorded, and what another process
        changes meanwhile, is left as it is and named.
        """
        with self._locked(), self._opened() as folder:
            found = self._plan(folder)
            if found is None:
                self._save()
                name, revision = self._core.runtime.random_bytes(16).hex(), 0
                before = self._known_standing()
                known = self._views([before])
            else:
                name, revision, cut_short = found
                before = cut_short.before
                known = self._views([before, cut_short.target])
            target = self._files.at(version)
            check_tree(target.tree)
            self._make_staging(folder, name)
            self._set_plan(name, revision, Interrupted(version, before))
            prefix = f"{RESTORING}/{name}/{self._core.runtime.random_bytes(4).hex()}-"
            self.restored = _Restore(folder, target, known, prefix).run()
            return self.restored

    def _views(self, versions: list[str]) -> list[FilesView]:
        """Return the files at these versions, as far as retention has left them."""
        found: list[FilesView] = []
        for version in versions:
            with suppress(NotFoundError):
                found.append(self._files.at(version))
        return found

    def _make_staging(self, folder: Folder, name: str) -> None:
        """Make the folder for files that are about to be put in place; a power cut leaves it there."""
        there = folder.stat(RESTORING)
        if there is not None and not stat.S_ISDIR(there.st_mode):
            folder.remove_all(RESTORING)
        folder.make_folder(RESTORING)
        folder.unlock(RESTORING)
        folder.make_folder(f"{RESTORING}/{name}")
        folder.sync({RESTORING, ""})

    def finish(self) -> None:
        """The restore is complete: the files stand at the version that it went to."""
        with self._locked(), self._opened() as folder:
            found = self._plan(folder)
            if found is None:
                return
            name, revision, plan = found
            self._files.thread.refresh()
            if self._standing() != plan.target:
                self._files.rewind(plan.target)
            self._cache.forget()
            # Without its plan the restore is over, whatever is left of its files.
            self._set_plan(name, revision, None)
            folder.remove_all(f"{RESTORING}/{name}")
            folder.remove(RESTORING)

    @contextmanager
    def _opened(self) -> Iterator[Folder]:
        """Open the folder, and no other that was put in its place."""
        folder = Folder(self.path, self._root)
        try:
            yield folder
        except OSError as error:
            words = f"{self.path} can't be restored: {shown(error)}"
            with suppress(EverthreadError, OSError):
                if (found := self._plan(folder)) is not None:
                    words += f". {found[2]}"
            raise StorageWriteError(words) from error
        finally:
            folder.close()

    def undo(self) -> Restored:
        """After a restore that was cut short: bring back what was there before it. Raises
        :class:`InvalidStateError` if none was."""
        plan = self.interrupted()
        if plan is None:
            raise InvalidStateError(
                "no restore of this folder was cut short; thread.rewind() undoes a whole one"
            )
        restored = self.begin(plan.before)
        self.finish()
        return restored

    def fill(self, version: str | None) -> None:
        """Put the files of a version into the folder, which must be empty: the folder of a fork."""
        if version is None:
            return
        restore_directory(self._files.at(version), self.path)
        self._root = identity(os.stat(self.path, follow_symlinks=False))
        head = self._files.thread.head
        if head is not None and self._standing() != version:
            self._files.rewind(version)

    @contextmanager
    def _locked(self, timeout_s: float = 60.0) -> Iterator[None]:
        """One at a time works on a folder, over all processes of this machine."""
        try:
            os.makedirs(os.path.dirname(self._lock_path), mode=0o700, exist_ok=True)
            fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageWriteError(f"{self._lock_path} can't be made: {shown(error)}") from None
        try:
            until = time.monotonic() + timeout_s
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise StoreBusyError(
                            f"another process is at work on the folder {self.path}; waited {timeout_s:.0f} s"
                        ) from None
                    time.sleep(_PAUSE_S)
            yield
        finally:
            os.close(fd)

    def __repr__(self) -> str:
        return f"<workspace {self.path}>"


def compare_versions(core: Core, a: RecordedFiles | None, b: RecordedFiles | None) -> FilesDiff:
    """What differs between two versions of the files beside threads; ``None``: nothing was recorded."""
    # By far the most versions of a thread have the files of the one before.
    return FilesDiff() if a == b else compare(_recorded_tree(core, a), _recorded_tree(core, b))


def _recorded_tree(core: Core, at: RecordedFiles | None) -> Tree:
    if at is None:
        return {}
    uid, version = at
    return Files(Thread(beside(core, FILES), uid)).at(version).tree


class Workspaces:
    """Opens the working folders of threads: what threads have through ``core.open_workspaces``."""

    def open(self, thread: Thread, path: AnyPath, options: dict[str, Any]) -> Workspace:
        return Workspace(thread.core, thread.uid or "", path, **options)

    def open_fork(
        self, thread: Thread, path: AnyPath, version: str | None, options: dict[str, Any]
    ) -> Workspace:
        workspace = Workspace(thread.core, thread.uid or "", check_empty(path), **options)
        workspace.fill(version)
        return workspace

    def check_empty(self, thread: Thread, path: AnyPath) -> None:
        check_empty(path)

    def compare(self, thread: Thread, a: RecordedFiles | None, b: RecordedFiles | None) -> FilesDiff:
        return compare_versions(thread.core, a, b)


def files_beside(thread: Thread) -> Files:
    """What was recorded of the working folder of a thread."""
    return Files(Thread(beside(thread.core, FILES), thread.uid or ""))


def files_at(thread: Thread, version: AnyVersion | None = None) -> FilesView:
    """The files of a thread at one of its versions: what was recorded of its working folder, or those that it
    holds itself, as a sandbox does. Raises :class:`NotFoundError` if it has neither."""
    handle = thread.handle
    _, head = handle.require()
    found = head.version if version is None else handle.find_version(version)
    past = thread.at(found)
    # First: beside a folder, what the document has under this name is the caller's own.
    recorded = recorded_at(past)
    if recorded is not None:
        return files_beside(thread).at(recorded)
    if TREE in past.state:
        return Files(thread).at(found)
    raise NotFoundError(f"{thread.name!r} holds no files, and none were recorded beside it, at {found}")


def empty_view(thread: Thread) -> FilesView:
    """A tree without any files."""
    return FilesView(Contents(thread), {}, None, None)


class _Restore:
    """One folder on its way from the versions that it may hold files of to another one."""

    def __init__(self, folder: Folder, target: FilesView, known: list[FilesView], prefix: str) -> None:
        #: What the paths of files begin with that are about to be put in place.
        self._prefix = prefix
        self._folder = folder
        self._target = target
        self._known = known
        self._kept: dict[str, str] = {}
        self._synced: set[str] = set()
        self._number = self._written = self._removed = 0

    def run(self) -> Restored:
        new = with_folders(self._target.tree)
        old: dict[str, None] = {text: None for view in self._known for text in with_folders(view.tree)}
        self._remove(
            [text for text in old if text not in new or self._is_folder(text) != (type(new[text]) is int)],
            new,
        )
        folders = [text for text in new if type(new[text]) is int]
        opened = self._make_folders(folders, new)
        writer = Writer(self._target, self._folder, sync=True)
        files = [text for text in new if type(new[text]) is bytes and self._is_due(text, new[text])]
        writer.files(files, self._place_file)
        for text, entry in new.items():
            if type(entry) is dict and self._is_due(text, entry):
                self._place_link(text, link_target(entry, text))
        for text in reversed(folders):
            mode = new[text]
            assert type(mode) is int
            if text in opened and not self._is_kept(text):
                self._folder.set_folder_mode(text, mode)
        self._folder.sync(self._synced)
        return Restored(
            version=self._target.version,
            written=self._written,
            removed=self._removed,
            kept={text_name(text): why for text, why in sorted(self._kept.items())},
            erased=tuple(writer.erased),
        )

    def _is_folder(self, text: str) -> bool:
        found = self._folder.stat(text)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def _is_kept(self, text: str) -> bool:
        return text in self._kept or any(above in self._kept for above in parents(text))

    def _remove(self, texts: list[str], new: Tree) -> None:
        """What goes: the innermost first, so that folders are empty when their turn comes."""
        for text in sorted(texts, key=lambda each: each.count("/"), reverse=True):
            found = self._folder.stat(text)
            if found is None:
                continue
            if not stat.S_ISDIR(found.st_mode) and not self._is_known(text):
                self._kept[text] = "it was changed since it was recorded"
                continue
            self._open_parent(text)
            if self._folder.remove(text):
                self._removed += text not in new
                self._synced.add(text.rpartition("/")[0])
            elif text in new:
                self._kept[text] = "a folder with files that aren't recorded is in its place"

    def _make_folders(self, folders: list[str], new: Tree) -> set[str]:
        """The folders of the target; those whose mode has to be set in the end."""
        due: set[str] = set()
        for text in folders:
            if self._is_kept(text):
                continue
            found = self._folder.stat(text)
            if found is None:
                self._open_parent(text)
                self._folder.make_folder(text)
                self._synced.add(text.rpartition("/")[0])
                due.add(text)
            elif not stat.S_ISDIR(found.st_mode):
                self._kept[text] = "a file that isn't recorded is in its place"
            elif found.st_mode & MODE_BITS != new[text] or found.st_mode & 0o700 != 0o700:
                due.add(text)
        return due

    def _is_due(self, text: str, entry: Entry) -> bool:
        """Whether a file or link has to be put in its place."""
        if self._is_kept(text):
            return False
        found = self._folder.stat(text)
        if found is None or self._is_known(text):
            return found is None or not self._is_there(text, entry, self._target, found)
        if not self._is_there(text, entry, self._target, found):
            self._kept[text] = "it was changed since it was recorded, or isn't recorded"
        return False

    def _is_known(self, text: str) -> bool:
        """Whether what is on disk is what one of the known versions says: nothing is lost with it."""
        found = self._folder.stat(text)
        for view in self._known:
            entry = view.tree.get(text)
            if (
                entry is not None
                and found is not None
                and self._is_there(text, entry, view, found, mode=False)
            ):
                return True
        return False

    def _is_there(
        self, text: str, entry: Entry, view: FilesView, found: os.stat_result, *, mode: bool = True
    ) -> bool:
        """Whether a path holds just what an entry says."""
        kind = stat.S_IFMT(found.st_mode)
        if type(entry) is int:
            return kind == stat.S_IFDIR
        if type(entry) is dict:
            return kind == stat.S_IFLNK and self._folder.read_link(text) == link_target(entry, text)
        assert type(entry) is bytes
        file = FileEntry.unpack(entry, text)
        if kind != stat.S_IFREG or (mode and found.st_mode & MODE_BITS != file.mode):
            return False
        with self._folder.open_file(text) as fd:
            return holds_content(fd, file, view)

    def _place_file(self, text: str, file: FileEntry, pieces: Iterator[bytes]) -> None:
        staged = self._staged()
        self._folder.write_file(staged, pieces, file.mode, sync=True)
        self._put(staged, text)

    def _place_link(self, text: str, target: bytes) -> None:
        staged = self._staged()
        self._folder.make_link(staged, target)
        self._put(staged, text)

    def _staged(self) -> str:
        self._number += 1
        return f"{self._prefix}{self._number}"

    def _put(self, staged: str, text: str) -> None:
        self._open_parent(text)
        self._folder.rename(staged, text)
        self._written += 1
        self._synced.add(text.rpartition("/")[0])

    def _open_parent(self, text: str) -> None:
        above = text.rpartition("/")[0]
        if above:
            self._folder.unlock(above)


def _own_paths(core: Core) -> list[str]:
    """Return where the store and its keyring are on this machine: databases, with what is beside them, and
    folders."""
    scheme, _, rest = core.backend.url.partition("://")
    location = unquoted(rest.partition("?")[0])
    databases = [location.removeprefix("/")] if scheme == "sqlite" else []
    others = [location] if scheme == "file" else []
    with suppress(EverthreadError):
        keyring: Any = core.vault.keyring
        if (folder := getattr(keyring, "directory", None)) is not None:
            others.append(str(folder))
        if (file := getattr(keyring, "path", None)) is not None:
            databases.append(str(file))
            others += [f"{file}.master", f"{file}.master.next"]
    found = [os.path.realpath(each) for each in others]
    return found + [os.path.realpath(each) + ending for each in databases for ending in _SQLITE_ENDINGS]


def check_empty(path: AnyPath) -> str:
    """A folder for a fork, made if need be. Raises :class:`InvalidValueError` if there is anything in it."""
    given = os.path.abspath(os.path.expanduser(os.fsdecode(path)))
    try:
        os.makedirs(given, exist_ok=True)
        with os.scandir(given) as entries:
            if next(entries, None) is None:
                return given
    except OSError as error:
        raise InvalidValueError(f"{given} can't be made: {shown(error)}", path="files") from None
    raise InvalidValueError(f"{given} isn't empty; a fork needs a folder of its own", path="files")
