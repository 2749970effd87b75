"""Sandboxes of this machine: a directory is a cache of one version. Any machine can go on with any sandbox.

A directory is marked dirty before anything runs in it, and clean, with its version, after it was saved. If a
process dies in between, the directory is rebuilt from the version that is asked for. If a directory can't be
saved when its owner leaves it, it is set aside: it is never emptied then.
"""

from __future__ import annotations

import datetime
import fcntl
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import msgspec

from everthread.arguments import check_name, check_seconds
from everthread.errors import (
    ConflictError,
    EverthreadError,
    InvalidStateError,
    InvalidValueError,
    StorageWriteError,
    StoreBusyError,
    ThreadExistsError,
    ThreadNotFoundError,
    UsageError,
)
from everthread.sandboxes.directory import (
    Everything,
    Saved,
    Scan,
    holds_content,
    restore_within,
    save_directory,
)
from everthread.sandboxes.disk import Folder, Identity, identity, read_file, remove_tree
from everthread.sandboxes.files import DEFAULT_FILE_LIMITS, FileLimits, Files, SnapshotRef
from everthread.sandboxes.folders import forget_folder, note_folder
from everthread.sandboxes.paths import AnyPath, shown
from everthread.sandboxes.stat_cache import StatCache, boot_id
from everthread.sandboxes.step_note import StepNote, current_step, version_in_history
from everthread.sandboxes.tree import MODE_BITS, FileEntry

if TYPE_CHECKING:
    from everthread.threads.sync.store import ThreadStore

Init = Literal["new", "continue", "fork", "snapshot", "inherit"]
Shutdown = Literal["destroy", "snapshot", "keep"]

#: Threads of sandboxes are called so, and those of base snapshots.
_SANDBOXES, _BASES = "sandboxes/", "sandboxes/base/"
_BASE = "base"
#: How long seeding a base may take before somebody else tries.
_SEED_S = 600.0
_PAUSE_S = 0.02
#: Pins of sandboxes last until then: by that they are told from those of callers.
_OWN_PIN = datetime.datetime(2999, 9, 9, tzinfo=datetime.UTC)


_FILES = "files"
_MARK_BYTES_MAX = 4096
_log = logging.getLogger("everthread")


class _Mark(msgspec.Struct, frozen=True):
    """What a directory holds: a version of a thread, or nobody knows what (``None``)."""

    uid: str
    version: str | None
    boot: str
    #: False if contents that no version holds are in it, since they couldn't be saved.
    is_whole: bool = True


class LocalSandboxes:
    """Sandboxes as directories below ``root``, on the threads of a store."""

    def __init__(
        self, store: ThreadStore, root: AnyPath, *, limits: FileLimits = DEFAULT_FILE_LIMITS
    ) -> None:
        if not hasattr(store, "thread") or not hasattr(store, "core"):
            raise UsageError("LocalSandboxes() takes an open store: everthread.open(…)")
        self.store = store
        self.root = os.path.abspath(os.fsdecode(root))
        self._limits = limits

    def base(self, recipe: str, seed: Callable[[str], Any]) -> SnapshotRef:
        """The base snapshot of a recipe: ``seed(directory)`` fills it once, whoever asks for it at the same
        time and wherever; then it is only forked. What ``seed`` raises is raised, and nothing is kept."""
        name = _BASES + check_name(recipe, "recipe")
        found = self._seeded(name)
        if found is not None:
            return found
        with self.store.thread(name).lock(lease_s=_SEED_S):
            found = self._seeded(name)
            if found is not None:
                return found
            place = self._make(f"seed-{self.store.core.runtime.random_bytes(6).hex()}")
            try:
                seed(place)
                files = Files(self.store.thread(name), limits=self._limits)
                return files.save_directory(place, label=_BASE).snapshot
            finally:
                with suppress(OSError):
                    remove_tree(place)

    def _seeded(self, name: str) -> SnapshotRef | None:
        thread = self.store.thread(name)
        if thread.head is None:
            return None
        for version in thread.history(limit=None):
            if version.label == _BASE:
                return SnapshotRef(name, version.id)
        return None

    def open(
        self,
        sandbox_id: str,
        *,
        init: Init = "continue",
        source: SnapshotRef | str | Sandbox | None = None,
        at: SnapshotRef | str | None = None,
        shutdown: Shutdown = "destroy",
        session: Any = None,
        timeout_s: float = 30.0,
    ) -> Sandbox:
        """Enter a sandbox; close it, or use it as a context manager.

        ``init``: ``"new"`` makes one, empty or from the snapshot ``source``; ``"continue"`` goes on with the
        one of this id, or makes it; ``"fork"`` makes one from the newest version of the sandbox ``source``;
        ``"snapshot"`` from the snapshot ``source``; ``"inherit"`` works in the sandbox ``source`` itself,
        which stays its owner's. ``at`` is the version to go on from, where later ones are to be left behind.
        Without it, inside a step of an engine, versions are left behind that were saved by steps which the
        workflow was reset behind.

        ``shutdown``, by the owner: ``"destroy"`` deletes the sandbox, ``"snapshot"`` saves it and removes its
        directory, ``"keep"`` saves it and leaves that. A ``session`` is told of it (``on_sandbox_ready``),
        and of the snapshot that closing makes (``on_session_exit``). Raises :class:`StoreBusyError` if
        another process works in it for longer than ``timeout_s``.
        """
        for value, kind, name in ((init, Init, "init"), (shutdown, Shutdown, "shutdown")):
            if value not in get_args(kind):
                raise InvalidValueError(
                    f"{name} is one of {', '.join(get_args(kind))}, not {value!r}", path=name
                )
        if init == "inherit":
            if not isinstance(source, Sandbox):
                raise UsageError('init="inherit" takes the sandbox to work in: source=sandbox')
            return Sandbox._inherited(source)
        thread, is_new = self._thread(check_name(sandbox_id, "sandbox id"), init, source)
        files = Files(self.store.thread(thread), limits=self._limits)
        place = os.path.join(self.root, _place(self.store.core.space, thread))
        step = current_step.get()
        if step is not None and at is None and not is_new:
            at = version_in_history(self.store, files.thread, step)
        sandbox = Sandbox(self, sandbox_id, files, place, shutdown, session, step)
        sandbox._enter(at, is_new, check_seconds(timeout_s, "timeout_s"))
        return sandbox

    def _thread(self, sandbox_id: str, init: Init, source: Any) -> tuple[str, bool]:
        """The name of the thread, which is there afterwards, and whether it was made just now."""
        name = _SANDBOXES + sandbox_id
        if init == "continue" and self.store.core.find(name) is not None:
            return name, False
        if isinstance(source, Sandbox):
            source = source.files.head
        elif isinstance(source, str):
            source = SnapshotRef(_SANDBOXES + source, "head")
        if source is None:
            if init in ("fork", "snapshot"):
                raise UsageError(f'init="{init}" needs a source: what is it made from?')
            if init == "new" and self.store.core.find(name) is not None:
                raise ThreadExistsError(f"there is a sandbox {sandbox_id!r} already; choose another id")
            Files(self.store.thread(name)).save()
            return name, True
        ref = SnapshotRef.from_plain(source)
        origin = self.store.thread(ref.thread)
        if origin.head is None:
            raise ThreadNotFoundError(f"there are no files {ref.thread!r} to begin with")
        origin.fork(name, at=ref.version)
        return name, True

    def _make(self, name: str) -> str:
        place = os.path.join(self.root, name)
        try:
            os.makedirs(self.root, mode=0o700, exist_ok=True)
            os.mkdir(place, 0o700)
        except OSError as error:
            raise StorageWriteError(f"{place} can't be made: {shown(error)}") from None
        return place


class Sandbox:
    """A sandbox that this process works in. ``path`` is its directory, ``files`` what was saved of it."""

    def __init__(
        self,
        sandboxes: LocalSandboxes,
        sandbox_id: str,
        files: Files,
        place: str,
        shutdown: Shutdown,
        session: Any,
        step: StepNote | None = None,
    ) -> None:
        self.id = sandbox_id
        self.files = files
        self.path = os.path.join(place, _FILES)
        self.shutdown = shutdown
        #: Whether closing it does anything.
        self.is_owned = True
        #: The snapshot that it began with, if it was made just now.
        self.base: SnapshotRef | None = None
        #: The report of the last save, which names what was left out.
        self.last: Saved | None = None
        #: The path of the directory that was set aside because it couldn't be saved as a whole.
        self.set_aside: str | None = None
        self._sandboxes = sandboxes
        self._place = place
        self._session = session
        #: The open folder that holds the directory, and the lock in it.
        self._parent = self._lock = -1
        self._root: Identity = (0, 0)
        self._is_whole = True
        self._step = step
        self._cache = StatCache(os.path.join(place, "stat"))

    @classmethod
    def _inherited(cls, other: Sandbox) -> Sandbox:
        made = cls.__new__(cls)
        made.__dict__.update(other.__dict__)
        made.is_owned, made._session = False, None
        return made

    # ── entering ─────────────────────────────────────────────────────────────────────────────

    def _enter(self, at: SnapshotRef | str | None, is_new: bool, timeout_s: float) -> None:
        self._take_lock(timeout_s)
        try:
            if at is not None:
                self._go_back(at.version if isinstance(at, SnapshotRef) else at)
            mark = self._mark()
            self._is_whole = mark is None or mark.is_whole
            if not self._is_clean(mark):
                if not self._is_whole:
                    self._set_directory_aside()
                self._rebuild()
            else:
                self._root = self._directory() or (0, 0)
            note_folder(self._sandboxes.store.core, self.path)
            if is_new and self.shutdown == "snapshot":
                self.base = self.files.head
            if self._session is not None:
                base = None if self.base is None else self.base.plain()
                self._session.sandbox_ready(self.id, base)
        except BaseException:
            self._leave()
            raise

    def _take_lock(self, timeout_s: float) -> None:
        flags = os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            os.makedirs(self._place, mode=0o700, exist_ok=True)
            self._parent = os.open(self._place, os.O_RDONLY | os.O_DIRECTORY | flags)
            self._lock = os.open("lock", os.O_RDWR | os.O_CREAT | flags, 0o600, dir_fd=self._parent)
        except OSError as error:
            self._leave()
            raise StorageWriteError(f"{self._place} can't be made: {shown(error)}") from None
        until = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= until:
                    self._leave()
                    raise StoreBusyError(f"another process works in the sandbox {self.id!r}") from None
                time.sleep(_PAUSE_S)

    def _go_back(self, version: str) -> None:
        """Go on from a version; later ones, of a run that was reset or a try that died, are left behind."""
        thread = self.files.thread
        wanted = thread.handle.find_version(version)
        head = thread.head
        if head is not None and wanted.id not in (head.id, head.source if head.kind == "rewind" else None):
            self.files.rewind(wanted)

    def _directory(self) -> Identity | None:
        """Return the identity of the directory; ``None`` if there is none, or something else in its place."""
        with suppress(FileNotFoundError):
            found = os.stat(_FILES, dir_fd=self._parent, follow_symlinks=False)
            return identity(found) if stat.S_ISDIR(found.st_mode) else None
        return None

    def _is_clean(self, mark: _Mark | None) -> bool:
        """Whether the directory holds what the newest version says: by its mark, and by a look at it."""
        head = self.files.head
        if mark is None or head is None or mark.version != head.version or mark.uid != self.files.thread.uid:
            return False
        if mark.boot != boot_id() or self._directory() is None:
            return False
        try:
            with Folder(self.path, parent=self._parent) as folder:
                scan = Scan(folder, self.files.tree, self._cache, self.files.limits, Everything())
                scan.run()
                for text in scan.changed:
                    # Written just now, perhaps once more since: only its content tells.
                    entry = self.files.tree.get(text)
                    if type(entry) is bytes and self._holds(folder, text, FileEntry.unpack(entry, text)):
                        scan.tree[text] = entry
        except (EverthreadError, OSError):
            return False
        return scan.tree == self.files.tree

    def _holds(self, folder: Folder, text: str, file: FileEntry) -> bool:
        with folder.open_file(text) as fd:
            return os.fstat(fd).st_mode & MODE_BITS == file.mode and holds_content(fd, file, self.files)

    def _rebuild(self) -> None:
        self._set_mark(None)
        self._empty()
        restore_within(self.files, self.path, self._parent)
        self._root, self._is_whole = self._directory() or (0, 0), True
        self._set_mark(self.files.head)

    def _empty(self) -> None:
        try:
            remove_tree(_FILES, self._parent)
            found = os.stat(self._place, follow_symlinks=False)
        except OSError as error:
            raise StorageWriteError(f"{self.path} can't be removed: {shown(error)}") from error
        if identity(found) == identity(os.fstat(self._parent)):
            self._cache.forget()

    def _set_directory_aside(self) -> None:
        """Move the directory to another name, where nothing removes it."""
        name = f"unsaved-{self._sandboxes.store.core.runtime.random_bytes(6).hex()}"
        try:
            os.rename(_FILES, name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageWriteError(f"{self.path} can't be set aside: {shown(error)}") from error
        self.set_aside = os.path.join(self._place, name)
        note_folder(self._sandboxes.store.core, self.set_aside)
        _log.warning(
            "the directory of the sandbox %r couldn't be saved as a whole: it was set aside at %s",
            self.id,
            self.set_aside,
        )

    def _mark(self) -> _Mark | None:
        with suppress(msgspec.MsgspecError):
            return msgspec.json.decode(read_file("mark", self._parent, _MARK_BYTES_MAX), type=_Mark)
        return None

    def _set_mark(self, at: SnapshotRef | None) -> None:
        version = None if at is None else at.version
        mark = _Mark(self.files.thread.uid or "", version, boot_id(), self._is_whole)
        try:
            remove_tree("mark.new", self._parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open("mark.new", flags, 0o600, dir_fd=self._parent), "wb") as file:
                file.write(msgspec.json.encode(mark))
            os.replace("mark.new", "mark", src_dir_fd=self._parent, dst_dir_fd=self._parent)
        except OSError as error:
            raise StorageWriteError(f"{self._place}/mark can't be written: {shown(error)}") from None

    # ── working ──────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def working(self) -> Iterator[str]:
        """Run something in the directory: it is marked before, so that nobody trusts what a process that dies
        leaves there. :meth:`save` makes what was done a version."""
        self.mark_dirty()
        yield self.path

    def mark_dirty(self) -> None:
        """From now on nobody trusts the directory, until it is saved."""
        self._check()
        self._set_mark(None)

    def save(self, label: str | None = None) -> SnapshotRef:
        """Make the directory, as it is, a version. The version before that this sandbox made is released:
        retention may take it.

        Pipes, sockets, devices, and what can't be read or exceeds a limit of one file, are left out and named
        in ``last.left_out``. Raises :class:`LimitError` if the directory as a whole exceeds a limit,
        :class:`InvalidStateError` if something else was put in its place.
        """
        self._check()
        self._set_mark(None)
        tree = dict(self.files.tree)
        try:
            self.last = self._save(label)
        except ConflictError:
            # Another writer committed to the thread. If it left the files alone, none of its work is undone.
            self.files.thread.refresh()
            if self.files.tree != tree:
                raise
            self.last = self._save(label)
        self._is_whole = self.last.is_whole
        made = self.last.snapshot
        self._set_mark(made)
        self._release(made)
        return made

    def _save(self, label: str | None) -> Saved:
        metadata = None if self._step is None else self._step.metadata
        return save_directory(
            self.files,
            self.path,
            label=label,
            change_metadata=metadata,
            cache=self._cache,
            choice=Everything(),
            root=self._root,
        )

    def _release(self, made: SnapshotRef) -> None:
        """Keep the snapshot that was just made, whatever retention says, and let go of those before it."""
        thread = self.files.thread
        stays = {made.version, None if self.base is None else self.base.version}
        own = [pin.version_id for pin in thread.pins() if pin.until == _OWN_PIN]
        for version in own:
            if version not in stays:
                thread.unpin(version)
        if made.version not in own:
            thread.pin(made.version, _OWN_PIN)

    def discard(self) -> None:
        """Make the directory what the newest version is, and drop what was done since."""
        self._check()
        self._rebuild()

    def _check(self) -> None:
        if self._lock < 0:
            raise InvalidStateError(f"the sandbox {self.id!r} is closed; open it again")

    # ── leaving ──────────────────────────────────────────────────────────────────────────────

    def close(self) -> SnapshotRef | None:
        """Leave the sandbox as its ``shutdown`` says; the snapshot that this made. May be called twice.

        If the directory can't be saved, it is set aside; the error, which :meth:`save` raises as well, and
        ``set_aside`` say where.
        """
        if self._lock < 0 or not self.is_owned:
            return None
        made: SnapshotRef | None = None
        try:
            if self.shutdown != "destroy":
                made = self._last_save()
                if self._session is not None:
                    self._session.exit_snapshot = made.plain()
            if self.shutdown != "keep":
                self._remove_directory()
            if self.shutdown == "destroy":
                with suppress(ThreadNotFoundError):
                    self.files.thread.delete()
        finally:
            self._leave()
        return made

    def _last_save(self) -> SnapshotRef:
        try:
            return self.save()
        except BaseException as error:
            self._set_directory_aside()
            if self.set_aside is not None:
                words = f"the directory was set aside at {self.set_aside}"
                if isinstance(error, EverthreadError):
                    error.args = (f"{error}; {words}", *error.args[1:])
                else:
                    error.add_note(words)
            raise

    def _remove_directory(self) -> None:
        self._set_mark(None)
        if self.shutdown != "destroy" and not self._is_whole:
            self._set_directory_aside()
        self._empty()
        forget_folder(self._sandboxes.store.core, self.path)

    def _leave(self) -> None:
        if self.is_owned:
            for fd in (self._lock, self._parent):
                if fd >= 0:
                    os.close(fd)
            self._lock = self._parent = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<sandbox {self.id!r}: {self.path}>"


def _place(space: str, thread: str) -> str:
    return sha256(f"{space}\0{thread}".encode("utf-8", "surrogatepass")).hexdigest()[:24]
